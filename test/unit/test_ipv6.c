/* SPDX-License-Identifier: Apache-2.0 */
/* Engines at IPv6 addresses: names, handshakes, data, notes; and beside them one at an IPv4 address. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/bytes.h"
#include "common/engines.h"

#define BYTES ((size_t)1 << 20)

/* Writes to the peer, reads back, and tells it. */
static void exchange(struct lw_engine *engine, struct lw_engine *peer)
{
	unsigned char *ours = test_map(BYTES, NULL), *theirs = test_map(BYTES, NULL);
	lw_buffer_t mine = test_register(engine, ours, BYTES, LW_ACCESS_LOCAL);
	lw_buffer_t its = test_register(peer, theirs, BYTES, LW_ACCESS_REMOTE);
	struct lw_request request = {
		.local = ours, .offset = (uint64_t)(uintptr_t)theirs, .length = BYTES, .op = LW_WRITE};
	struct lw_channel *channel;
	const struct lw_note six = {.name = "six", .name_size = 3, .text = "text", .text_size = 4};
	struct lw_note *note = NULL;

	assert_int_equal(lw_channel_open(engine, &channel), 0);
	request.segment = test_segment(engine, peer);
	test_fill(ours, BYTES, 6);
	assert_int_equal(test_transfer(engine, channel, request).state, LW_COMPLETED);
	assert_memory_equal(ours, theirs, BYTES);
	memset(ours, 0, BYTES);
	request.op = LW_READ;
	assert_int_equal(test_transfer(engine, channel, request).state, LW_COMPLETED);
	assert_memory_equal(ours, theirs, BYTES);
	assert_int_equal(lw_segment_probe(engine, request.segment, 2000), 0);
	assert_int_equal(lw_notify(engine, request.segment, &six, 2000), 0);
	TEST_EVENTUALLY(lw_note_poll(peer, &note) == 1);
	assert_int_equal(note->text_size, 4);
	assert_memory_equal(note->text, "text", 4);
	lw_note_free(note);
	assert_int_equal(lw_segment_close(engine, request.segment), 0);
	assert_int_equal(lw_channel_close(channel), 0);
	assert_int_equal(lw_memory_unregister(engine, &mine, 1, 0), 0);
	assert_int_equal(lw_memory_unregister(peer, &its, 1, 0), 0);
	test_unmap(ours, BYTES);
	test_unmap(theirs, BYTES);
}

static void test_engines_at_the_loopback_of_version_6_reach_each_other(void **state)
{
	struct lw_engine *a, *b;

	(void)state;
	assert_int_equal(test_engine_try("drivers=tcp", "[::1]", &a), 0);
	assert_int_equal(test_engine_try("drivers=tcp", "::1", &b), 0);
	assert_int_equal(strncmp(lw_engine_name(a), "[::1]:", 6), 0);
	assert_int_equal(strncmp(lw_engine_name(b), "[::1]:", 6), 0);
	exchange(a, b);
	exchange(b, a);
	assert_int_equal(lw_engine_close(a), 0);
	assert_int_equal(lw_engine_close(b), 0);
}

static void test_engines_of_both_versions_reach_each_other(void **state)
{
	struct lw_engine *a, *b;

	(void)state;
	assert_int_equal(test_engine_try("drivers=tcp", "127.0.0.1", &a), 0);
	assert_int_equal(test_engine_try("drivers=tcp", "[::1]", &b), 0);
	exchange(a, b);
	exchange(b, a);
	assert_int_equal(lw_engine_close(a), 0);
	assert_int_equal(lw_engine_close(b), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_engines_at_the_loopback_of_version_6_reach_each_other),
		cmocka_unit_test(test_engines_of_both_versions_reach_each_other),
	};
	struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&loopback, sizeof(loopback)) != 0) {
		printf("skipped: this host has no IPv6 loopback\n");
		return 77;
	}
	close(fd);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
