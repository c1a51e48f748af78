/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that an engine sends, once: data of several sizes in both framing versions, greetings, refusals, the
 * handshake, notes. test_uninitialised.sh runs it under Valgrind, which reports bytes that nobody wrote when they go
 * into a system call. Called with "spoil-data" or "spoil-send" it lets such bytes out, through a lane or by itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "drivers/tcp/tcp.h"
#include "lib/engine.h"
#include "meta/frame.h"

#define AREA ((size_t)512 * 1024)

/* a submits, b serves; both offer their area. What was allocated is what Valgrind knows best, so it is from malloc. */
struct pair {
	struct lw_engine *a, *b;
	struct lw_channel *channel;
	lw_segment_t segment;
	unsigned char *local, *remote;
	lw_buffer_t offered;
};

static unsigned char *area_new(uint64_t seed)
{
	unsigned char *area = malloc(AREA);

	assert_non_null(area);
	test_fill(area, AREA, seed);
	return area;
}

static struct pair open_pair(const char *extra)
{
	struct pair pair = {.a = test_engine(extra), .b = test_engine("drivers=tcp idle_us=0")};

	pair.local = area_new(1);
	pair.remote = area_new(2);
	assert_int_equal(lw_channel_open(pair.a, &pair.channel), 0);
	test_register(pair.a, pair.local, AREA, LW_ACCESS_REMOTE);
	pair.offered = test_register(pair.b, pair.remote, AREA, LW_ACCESS_REMOTE);
	pair.segment = test_segment(pair.a, pair.b);
	return pair;
}

static void close_pair(struct pair *pair)
{
	assert_int_equal(lw_engine_close(pair->a), 0);
	assert_int_equal(lw_engine_close(pair->b), 0);
	free(pair->local);
	free(pair->remote);
}

static struct lw_task_status move(struct pair *pair, int op, size_t offset, size_t length)
{
	return test_transfer(pair->a, pair->channel,
			     (struct lw_request){.local = pair->local + offset,
						 .segment = pair->segment,
						 .offset = (uint64_t)(uintptr_t)pair->remote + offset,
						 .length = length,
						 .op = (uint8_t)op});
}

static void move_all(const char *extra)
{
	static const size_t sizes[] = {1, 7, 8, 24, 4096, 65537, AREA};
	struct pair pair = open_pair(extra);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		assert_int_equal(move(&pair, LW_WRITE, AREA - sizes[i], sizes[i]).state, LW_COMPLETED);
		assert_int_equal(move(&pair, LW_READ, 0, sizes[i]).state, LW_COMPLETED);
	}
	close_pair(&pair);
}

static void test_data_of_either_version(void **state)
{
	(void)state;
	move_all("drivers=tcp idle_us=0");
	move_all("drivers=tcp idle_us=0 tcp_proto=1");
}

/* b takes back what a believes it offers: the refusal comes over the wire. */
static void test_refusal(void **state)
{
	struct pair pair = open_pair("drivers=tcp idle_us=0 refresh=off");

	(void)state;
	assert_int_equal(move(&pair, LW_READ, 0, 100).state, LW_COMPLETED);
	assert_int_equal(lw_memory_unregister(pair.b, &pair.offered, 1, 0), 0);
	assert_int_equal(move(&pair, LW_READ, 0, 100).reason, LW_REASON_REFUSED);
	assert_int_equal(move(&pair, LW_WRITE, 0, 100).reason, LW_REASON_REFUSED);
	close_pair(&pair);
}

static void test_notes_and_probes(void **state)
{
	struct lw_note note = {.name = "a name", .name_size = 6, .text = "a \"text\"\n", .text_size = 9};
	struct pair pair = open_pair("drivers=tcp idle_us=0");
	struct lw_note *got = NULL;

	(void)state;
	assert_int_equal(lw_segment_probe(pair.a, pair.segment, 0), 0);
	assert_int_equal(lw_notify(pair.a, pair.segment, &note, 0), 0);
	assert_int_equal(lw_note_poll(pair.b, &got), 1);
	assert_int_equal(got->text_size, note.text_size);
	lw_note_free(got);
	/* The peer is asked again, and then it is not one that we know. */
	assert_int_equal(lw_segment_close(pair.a, pair.segment), 0);
	pair.segment = test_segment(pair.a, pair.b);
	close_pair(&pair);
}

/* Sends bytes to a port and reads until the end. The number of bytes that came. */
static size_t talk(uint16_t port, const void *bytes, size_t length)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned char reply[4096];
	size_t have = 0;
	ssize_t got;

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
	while ((got = recv(fd, reply, sizeof(reply), 0)) > 0)
		have += (size_t)got;
	close(fd);
	return have;
}

static uint16_t data_port(struct lw_engine *engine)
{
	for (uint32_t i = 0; i < lw_drivers_count; i++)
		if (lw_drivers[i] == &lw_tcp_ops)
			return ((struct tcp_engine *)engine->driver_context[i])->listener[0].port;
	return 0;
}

static void test_strangers(void **state)
{
	static const struct tcp_header wrong[] = {
		{.size = 8, .addr = 8, .op = TCP_OP_V2 | TCP_OP_READ},
		{.size = 8, .addr = 8, .op = TCP_OP_V2 | TCP_OP_WRITE},
		{.size = 0, .addr = 8, .op = TCP_OP_V2 | TCP_OP_HELLO},
	};
	struct pair pair = open_pair("drivers=tcp idle_us=0");
	unsigned char header[TCP_HEADER_BYTES];
	size_t size;
	char *frame;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		tcp_header_put(header, wrong[i]);
		assert_int_equal(talk(data_port(pair.b), header, sizeof(header)), TCP_STATUS_BYTES);
	}
	for (int type = LW_FRAME_CONNECTION; type <= LW_FRAME_PROBE; type++) {
		const char *body = type == LW_FRAME_NOTIFY ? "{\"name\":\"n\",\"notify_msg\":\"m\"}" : "{}";

		assert_int_equal(lw_frame_encode(type, type == LW_FRAME_CONNECTION, body, strlen(body), &frame, &size),
				 0);
		assert_true(talk(lw_ctrl_port(pair.b->ctrl), frame, size) > 10);
		free(frame);
	}
	close_pair(&pair);
}

/* Bytes that nobody wrote: one at the end of a WRITE. */
static void spoil_data(void **state)
{
	struct pair pair = open_pair("drivers=tcp idle_us=0");
	unsigned char *bytes = malloc(64);
	lw_buffer_t id;

	(void)state;
	assert_non_null(bytes);
	memset(bytes, 1, 63);
	id = test_register(pair.a, bytes, 64, LW_ACCESS_LOCAL);
	assert_int_equal(test_transfer(pair.a, pair.channel,
				       (struct lw_request){.local = bytes,
							   .segment = pair.segment,
							   .offset = (uint64_t)(uintptr_t)pair.remote,
							   .length = 64,
							   .op = LW_WRITE})
				 .state,
			 LW_COMPLETED);
	assert_int_equal(lw_memory_unregister(pair.a, &id, 1, 0), 0);
	free(bytes);
	close_pair(&pair);
}

/* The padding of a header. */
static void spoil_send(void **state)
{
	unsigned char *bytes = malloc(TCP_HEADER_BYTES);
	int sockets[2];

	(void)state;
	assert_non_null(bytes);
	memset(bytes, 0, 17);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	assert_int_equal(send(sockets[0], bytes, TCP_HEADER_BYTES, MSG_NOSIGNAL), TCP_HEADER_BYTES);
	close(sockets[0]);
	close(sockets[1]);
	free(bytes);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_data_of_either_version),
		cmocka_unit_test(test_refusal),
		cmocka_unit_test(test_notes_and_probes),
		cmocka_unit_test(test_strangers),
	};
	const struct CMUnitTest data[] = {cmocka_unit_test(spoil_data)};
	const struct CMUnitTest padding[] = {cmocka_unit_test(spoil_send)};

	if (argc > 1 && strcmp(argv[1], "spoil-data") == 0)
		return cmocka_run_group_tests(data, NULL, NULL);
	if (argc > 1 && strcmp(argv[1], "spoil-send") == 0)
		return cmocka_run_group_tests(padding, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
