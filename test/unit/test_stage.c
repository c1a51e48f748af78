/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs through bounce buffers, over the stand-in: copies that fail, that can't be taken back, buffers that
 * are short. What is moved at all is the conformance suite's ("... GPU").
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/gpu.h"
#include "drivers/tcp/wire.h"
#include "lib/engine.h"
#include "meta/location.h"

#define MIB ((size_t)1 << 20)
#define AREA (8 * MIB)
#define HELD_MS 150 /* long after everything that can end has */

enum { NEAR = 1, FAR = 2 };

static uint64_t seed;

/* An engine and its peer; near and far are addresses, local and remote what the CPU sees of them. */
struct rig {
	int gpus;
	struct lw_engine *engine, *target;
	struct lw_channel *channel;
	lw_segment_t segment;
	unsigned char *near, *far, *local, *remote;
	lw_buffer_t near_id, far_id;
};

static unsigned char *map(bool gpu, int device, unsigned char **seen)
{
	unsigned char *memory = gpu ? test_gpu_alloc(LW_GPU_CUDA, device, AREA) : test_map(AREA, NULL);

	*seen = gpu ? test_gpu_peek(memory) : memory;
	return memory;
}

static void unmap(bool gpu, unsigned char *memory)
{
	if (gpu)
		test_gpu_free(LW_GPU_CUDA, memory);
	else
		test_unmap(memory, AREA);
}

static struct rig set_up(int gpus, const char *settings, const char *target_settings)
{
	struct rig rig = {.gpus = gpus};

	rig.engine = test_engine(settings);
	rig.target = test_engine(target_settings);
	rig.near = map((gpus & NEAR) != 0, 0, &rig.local);
	rig.far = map((gpus & FAR) != 0, 1, &rig.remote);
	test_fill(rig.local, AREA, test_random(&seed));
	test_fill(rig.remote, AREA, test_random(&seed));
	rig.near_id = test_register(rig.engine, rig.near, AREA, LW_ACCESS_LOCAL);
	rig.far_id = test_register(rig.target, rig.far, AREA, LW_ACCESS_REMOTE);
	rig.segment = test_segment(rig.engine, rig.target);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	return rig;
}

/* left: bounce buffers may be left that nobody can tell the end of. */
static void tear_down(struct rig *rig, bool left)
{
	if (rig->engine != NULL)
		assert_int_equal(lw_engine_close(rig->engine), 0);
	assert_int_equal(lw_engine_close(rig->target), 0);
	if (rig->near != NULL)
		unmap((rig->gpus & NEAR) != 0, rig->near);
	if (rig->far != NULL)
		unmap((rig->gpus & FAR) != 0, rig->far);
	assert_int_equal(test_gpu_live("memory"), 0);
	assert_int_equal(test_gpu_blocked(), 0);
	if (left)
		return;
	assert_int_equal(test_gpu_live("stream"), 0);
	assert_int_equal(test_gpu_live("event"), 0);
	assert_int_equal(test_gpu_live("host"), 0);
}

static struct lw_request request(const struct rig *rig, enum lw_op op, size_t at, size_t length)
{
	return (struct lw_request){.local = rig->near + at,
				   .segment = rig->segment,
				   .offset = (uint64_t)(uintptr_t)rig->far + at,
				   .length = length,
				   .op = (uint8_t)op};
}

static lw_batch_t submit(const struct rig *rig, struct lw_request what)
{
	lw_batch_t batch;

	assert_int_equal(lw_batch_alloc(rig->channel, 1, 0, NULL, &batch), 0);
	test_submit(rig->channel, batch, &what, 1);
	return batch;
}

/* How it ended, within so many ms. */
static struct lw_task_status end_of(const struct rig *rig, lw_batch_t batch, uint32_t within_ms)
{
	struct lw_task_status status;

	if (lw_batch_wait(rig->engine, batch, within_ms, NULL) != 0)
		fail_msg("not ended within %u ms", within_ms);
	assert_int_equal(lw_task_status(rig->engine, batch, 0, &status), 0);
	assert_int_equal(lw_batch_free(rig->engine, batch), 0);
	return status;
}

static void completes(const struct rig *rig, enum lw_op op, size_t at, size_t length)
{
	struct lw_task_status status = end_of(rig, submit(rig, request(rig, op, at, length)), 20000);

	if (status.state != LW_COMPLETED)
		fail_msg("not completed: %s", lw_reason_string((int)status.reason));
	assert_memory_equal(rig->local + at, rig->remote + at, length);
}

static uint64_t copy_errors(struct lw_engine *engine)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	assert_int_equal(lw_stats_engine(engine, &stats), 0);
	return stats.copy_errors;
}

/* Registration ------------------------------------------------------------------------------------------------------*/

static void test_register_tells_where_memory_of_a_gpu_is(void **state)
{
	struct lw_engine *engine = test_engine("drivers=tcp");
	unsigned char *memory = test_gpu_alloc(LW_GPU_HIP, 1, MIB);
	struct lw_memory buffer = {.addr = memory + 4096, .length = 8192};
	char text[LW_LOCATION_TEXT];
	lw_buffer_t id;

	(void)state;
	assert_int_equal(lw_memory_register(engine, &buffer, 1, &id), 0);
	assert_int_equal(lw_memory_location(engine, id, 0, text, sizeof(text)), 0);
	assert_string_equal(text, "hip:1");
	assert_int_equal(lw_memory_unregister(engine, &id, 1, 0), 0);
	buffer.location = "*";
	assert_int_equal(lw_memory_register(engine, &buffer, 1, &id), 0);
	assert_int_equal(lw_memory_location(engine, id, 0, text, sizeof(text)), 0);
	assert_string_equal(text, "hip:1");
	assert_int_equal(lw_engine_close(engine), 0);
	test_gpu_free(LW_GPU_HIP, memory);
	assert_int_equal(test_gpu_live("host"), 0);
}

static void test_register_beyond_an_allocation_refused(void **state)
{
	struct lw_engine *engine = test_engine("drivers=tcp");
	unsigned char *memory = test_gpu_alloc(LW_GPU_CUDA, 0, MIB);
	struct lw_memory buffer = {.addr = memory + 4096, .length = MIB};
	lw_buffer_t id;

	(void)state;
	assert_int_equal(lw_memory_register(engine, &buffer, 1, &id), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "beyond"));
	assert_int_equal(lw_engine_close(engine), 0);
	test_gpu_free(LW_GPU_CUDA, memory);
}

/* Each call of the runtime fails once: nothing is registered then, and nothing is left. */
static void test_register_when_the_runtime_fails_leaves_nothing(void **state)
{
	static const char *const calls[] = {"HostAlloc", "StreamCreateWithFlags", "EventCreateWithFlags"};

	(void)state;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		struct lw_engine *engine = test_engine("drivers=tcp workers=2");
		unsigned char *memory = test_gpu_alloc(LW_GPU_CUDA, 0, MIB);
		struct lw_memory buffer = {.addr = memory, .length = MIB, .access = LW_ACCESS_REMOTE};
		lw_buffer_t id;

		test_gpu_fail(calls[i], 2, 2);
		assert_int_equal(lw_memory_register(engine, &buffer, 1, &id), -ENOMEM);
		assert_true(test_gpu_failed());
		assert_non_null(strstr(lw_last_error(), "stage_slots"));
		assert_int_equal(lw_memory_register(engine, &buffer, 1, &id), 0);
		assert_int_equal(lw_engine_close(engine), 0);
		test_gpu_free(LW_GPU_CUDA, memory);
		assert_int_equal(test_gpu_live("host") + test_gpu_live("stream") + test_gpu_live("event"), 0);
	}
}

/* Buffers side by side in one allocation: a request may go over their seams, on both sides. */
static void test_request_over_seams_exact(void **state)
{
	struct lw_engine *engine = test_engine("drivers=tcp"), *target = test_engine("drivers=tcp");
	unsigned char *here = test_gpu_alloc(LW_GPU_CUDA, 0, AREA), *there = test_gpu_alloc(LW_GPU_CUDA, 1, AREA);
	struct lw_request what = {.length = 2 * MIB + 12345};
	struct lw_channel *channel;

	(void)state;
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	for (size_t i = 0; i < 4; i++) {
		test_register(engine, here + i * MIB, MIB, LW_ACCESS_LOCAL);
		test_register(target, there + i * 700001, 700001, LW_ACCESS_REMOTE);
	}
	what.segment = test_segment(engine, target);
	for (int i = 0; i < 20; i++) {
		size_t at = test_random(&seed) % (4 * MIB - what.length),
		       to = test_random(&seed) % (4 * 700001 - what.length);

		what.local = here + at;
		what.offset = (uint64_t)(uintptr_t)there + to;
		what.op = (uint8_t)(i % 2);
		test_fill(i % 2 == LW_WRITE ? test_gpu_peek(here + at) : test_gpu_peek(there + to), what.length,
			  test_random(&seed));
		assert_int_equal(test_transfer(engine, channel, what).state, LW_COMPLETED);
		assert_memory_equal(test_gpu_peek(here + at), test_gpu_peek(there + to), what.length);
	}
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(target), 0);
	test_gpu_free(LW_GPU_CUDA, here);
	test_gpu_free(LW_GPU_CUDA, there);
}

/* What drivers know beside what was registered is nobody's business. */
static void test_bounce_buffers_are_not_shown(void **state)
{
	struct rig rig = set_up(NEAR | FAR, "drivers=tcp", "drivers=tcp");
	struct lw_engine_stats stats = {.size = sizeof(stats)};
	struct lw_segment_range ranges[4];

	(void)state;
	assert_int_equal(lw_segment_ranges(rig.engine, LW_SEGMENT_LOCAL, ranges, 4), 1);
	assert_ptr_equal((void *)(uintptr_t)ranges[0].addr, rig.near);
	assert_int_equal(ranges[0].access, LW_ACCESS_LOCAL);
	assert_int_equal(lw_segment_ranges(rig.engine, rig.segment, ranges, 4), 1);
	assert_int_equal(ranges[0].access, LW_ACCESS_REMOTE);
	assert_int_equal(lw_stats_engine(rig.engine, &stats), 0);
	assert_int_equal(stats.live_buffers, 1);
	completes(&rig, LW_WRITE, 0, AREA);
	assert_int_equal(lw_stats_engine(rig.engine, &stats), 0);
	assert_int_equal(stats.staged_bytes, AREA);
	tear_down(&rig, false);
}

/* Copies that fail --------------------------------------------------------------------------------------------------*/

/* The nth of these calls fails; the request ends with a reason of its own, and what needs no copy goes on. */
static void fails(int gpus, const char *call, unsigned int nth, enum lw_op op, size_t length)
{
	struct rig rig = set_up(gpus, "drivers=tcp", "drivers=tcp");
	unsigned char *here = test_map(4096, NULL), *there = test_map(4096, NULL);
	struct lw_request plain = {.local = here, .length = 4096, .op = LW_WRITE};
	struct lw_task_status status;

	test_register(rig.engine, here, 4096, LW_ACCESS_LOCAL);
	test_register(rig.target, there, 4096, LW_ACCESS_REMOTE);
	completes(&rig, op, 0, length);
	test_gpu_fail(call, nth, 700);
	status = end_of(&rig, submit(&rig, request(&rig, op, 0, length)), 20000);
	if (!test_gpu_failed() || status.state != LW_FAILED || status.reason != LW_REASON_DEVICE)
		fail_msg("%s %u (%s), op %d, %zu bytes: state %u, %s", call, nth, test_gpu_failed() ? "met" : "not met",
			 (int)op, length, status.state, lw_reason_string((int)status.reason));
	assert_int_equal(status.error, -EIO);
	assert_true(copy_errors(rig.engine) + copy_errors(rig.target) > 0);
	test_gpu_fail(call, 0, 0);
	assert_int_equal(test_segment(rig.engine, rig.target), rig.segment);
	plain.segment = rig.segment;
	plain.offset = (uint64_t)(uintptr_t)there;
	assert_int_equal(test_transfer(rig.engine, rig.channel, plain).state, LW_COMPLETED);
	tear_down(&rig, strcmp(call, "EventRecord") == 0);
	test_unmap(here, 4096);
	test_unmap(there, 4096);
}

static void test_copy_fails_here_request_says_so(void **state)
{
	(void)state;
	for (int op = 0; op < 2; op++) {
		fails(NEAR, "MemcpyAsync", 1, (enum lw_op)op, 1000);
		fails(NEAR, "Copy", 1, (enum lw_op)op, 1000);
		fails(NEAR, "Copy", 3, (enum lw_op)op, 5 * MIB);
		fails(NEAR, "EventQuery", 1, (enum lw_op)op, 1000);
	}
}

static void test_copy_fails_at_the_peer_request_says_so(void **state)
{
	(void)state;
	for (int op = 0; op < 2; op++) {
		fails(FAR, "MemcpyAsync", 1, (enum lw_op)op, 1000);
		fails(FAR, "Copy", 1, (enum lw_op)op, 1000);
		fails(FAR, "Copy", 1, (enum lw_op)op, 3 * MIB);
		fails(FAR, "EventQuery", 1, (enum lw_op)op, 1000);
	}
	/* Of a WRITE any piece can: its answer comes at the end. */
	fails(FAR, "MemcpyAsync", 2, LW_WRITE, 5 * MIB);
	fails(FAR, "Copy", 3, LW_WRITE, 5 * MIB);
}

static void test_copy_of_unknown_end_costs_a_buffer_and_no_more(void **state)
{
	(void)state;
	fails(NEAR, "EventRecord", 1, LW_WRITE, 1000);
	fails(NEAR, "EventRecord", 1, LW_READ, 1000);
	fails(FAR, "EventRecord", 1, LW_WRITE, 1000);
	fails(FAR, "EventRecord", 1, LW_READ, 1000);
	assert_true(test_gpu_live("host") > 0); /* nobody can say that they may go */
}

/* Copies that can't be taken back -----------------------------------------------------------------------------------*/

/* A request of which a copy is under way, and does not end. */
static lw_batch_t submit_held(const struct rig *rig, struct lw_request what)
{
	unsigned int before = test_gpu_calls("MemcpyAsync");
	lw_batch_t batch;

	test_gpu_hold(true);
	batch = submit(rig, what);
	TEST_EVENTUALLY(test_gpu_calls("MemcpyAsync") > before);
	return batch;
}

static void pends(const struct rig *rig, lw_batch_t batch)
{
	assert_int_equal(lw_batch_wait(rig->engine, batch, HELD_MS, NULL), -ETIMEDOUT);
}

static void test_cancel_while_copying_ends_with_the_copy(void **state)
{
	(void)state;
	for (int op = 0; op < 2; op++) {
		struct rig rig = set_up(NEAR, "drivers=tcp", "drivers=tcp");
		struct lw_task_status status;
		uint32_t crc;
		lw_batch_t batch;

		completes(&rig, LW_WRITE, 4096, 1000);
		batch = submit_held(&rig, request(&rig, (enum lw_op)op, 0, 100000));
		crc = test_crc(rig.remote, AREA);
		assert_int_equal(lw_batch_cancel(rig.engine, batch), 0);
		pends(&rig, batch);
		test_gpu_hold(false);
		status = end_of(&rig, batch, 5000);
		/* All of a READ was there already. */
		assert_int_equal(status.state, op == LW_READ ? LW_COMPLETED : LW_CANCELED);
		/* The poison of a memory that is used anew stays. */
		test_fill(rig.local, AREA, 1234);
		test_sleep_ms(HELD_MS);
		assert_int_equal(test_crc(rig.remote, AREA), crc);
		completes(&rig, LW_WRITE, 0, AREA);
		tear_down(&rig, false);
	}
}

static void test_deadline_while_copying_ends_with_the_copy(void **state)
{
	struct rig rig = set_up(NEAR, "drivers=tcp", "drivers=tcp");
	struct lw_request what = request(&rig, LW_WRITE, 0, 100000);
	lw_batch_t batch;

	(void)state;
	what.timeout_ms = 20;
	batch = submit_held(&rig, what);
	pends(&rig, batch);
	test_gpu_hold(false);
	assert_int_equal(end_of(&rig, batch, 5000).state, LW_TIMEOUT);
	tear_down(&rig, false);
}

/* Whose memory it is can't let it go before the copy has ended; then it may be freed at once. */
static void unregister_held(int side, enum lw_op op)
{
	struct rig rig = set_up(side, "drivers=tcp", "drivers=tcp");
	struct lw_engine *owner = side == NEAR ? rig.engine : rig.target;
	lw_buffer_t *id = side == NEAR ? &rig.near_id : &rig.far_id;
	unsigned char **memory = side == NEAR ? &rig.near : &rig.far;
	lw_batch_t batch = submit_held(&rig, request(&rig, op, 0, 3 * MIB));

	assert_int_equal(lw_memory_unregister(owner, id, 1, HELD_MS), -EBUSY);
	test_gpu_hold(false);
	assert_int_equal(lw_memory_unregister(owner, id, 1, 5000), 0);
	test_gpu_free(LW_GPU_CUDA, *memory); /* the stand-in ends us if a copy is under way */
	*memory = NULL;
	(void)end_of(&rig, batch, 5000);
	tear_down(&rig, false);
}

static void test_unregister_while_copying_waits_for_it(void **state)
{
	(void)state;
	unregister_held(NEAR, LW_WRITE);
	unregister_held(NEAR, LW_READ);
	unregister_held(FAR, LW_WRITE);
	unregister_held(FAR, LW_READ);
}

static void test_segment_close_while_copying_ends_with_the_copy(void **state)
{
	struct rig rig = set_up(NEAR, "drivers=tcp", "drivers=tcp");
	lw_batch_t batch = submit_held(&rig, request(&rig, LW_WRITE, 0, 100000));

	(void)state;
	assert_int_equal(lw_segment_close(rig.engine, rig.segment), 0);
	pends(&rig, batch);
	test_gpu_hold(false);
	assert_int_equal(end_of(&rig, batch, 5000).reason, LW_REASON_SEGMENT_CLOSED);
	rig.segment = test_segment(rig.engine, rig.target);
	completes(&rig, LW_WRITE, 0, AREA);
	tear_down(&rig, false);
}

static void *let_go(void *arg)
{
	test_sleep_ms(HELD_MS);
	test_gpu_hold(false);
	return arg;
}

static void test_engine_close_while_copying_waits_for_it(void **state)
{
	(void)state;
	for (int side = NEAR; side <= FAR; side++) {
		struct rig rig = set_up(side, "drivers=tcp", "drivers=tcp");
		pthread_t thread;

		(void)submit_held(&rig, request(&rig, LW_WRITE, 0, 3 * MIB));
		assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
		if (side == NEAR) {
			assert_int_equal(lw_engine_close(rig.engine), 0);
			rig.engine = NULL;
		} else {
			assert_int_equal(lw_engine_close(rig.target), 0);
			rig.target = test_engine("drivers=tcp");
		}
		pthread_join(thread, NULL);
		tear_down(&rig, false);
	}
}

/* A GPU that hangs: the engine closes nevertheless, in its time, and leaves alone what that may still touch. */
static void test_engine_close_with_a_gpu_that_hangs_leaves_its_buffers(void **state)
{
	struct rig rig = set_up(NEAR, "drivers=tcp log_level=error", "drivers=tcp");
	size_t left = test_gpu_live("host");
	uint64_t begin_ms = test_now_ms();

	(void)state;
	(void)submit_held(&rig, request(&rig, LW_WRITE, 0, 100000));
	assert_int_equal(lw_engine_close(rig.engine), 0);
	rig.engine = NULL;
	assert_in_range(test_now_ms() - begin_ms, 1500, 10000);
	assert_int_equal(test_gpu_live("host"), left);
	test_gpu_hold(false);
	test_sleep_ms(HELD_MS);
	tear_down(&rig, true);
}

/* Buffers that are short --------------------------------------------------------------------------------------------*/

/* Peers that don't answer hold some of our bounce buffers, never all of them. */
static void test_peers_that_stand_still_leave_buffers_to_others(void **state)
{
	enum { STILL = 3 };
	struct rig rig = set_up(NEAR, "drivers=tcp stage_slots=16", "drivers=tcp");
	struct lw_engine *still[STILL];
	lw_batch_t batches[STILL];
	lw_segment_t segments[STILL];
	unsigned char *memory[STILL];

	(void)state;
	for (int i = 0; i < STILL; i++) {
		struct lw_request what = request(&rig, LW_WRITE, 0, AREA);

		still[i] = test_engine("drivers=tcp poll=caller");
		memory[i] = test_map(AREA, NULL);
		test_register(still[i], memory[i], AREA, LW_ACCESS_REMOTE);
		segments[i] = test_segment(rig.engine, still[i]);
		what.segment = segments[i];
		what.offset = (uint64_t)(uintptr_t)memory[i];
		batches[i] = submit(&rig, what);
		test_sleep_ms(100);
	}
	for (int i = 0; i < 10; i++)
		completes(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, 0, AREA);
	for (int i = 0; i < STILL; i++) {
		assert_int_equal(lw_batch_wait(rig.engine, batches[i], 0, NULL), -ETIMEDOUT);
		assert_int_equal(lw_batch_cancel(rig.engine, batches[i]), 0);
	}
	for (int i = 0; i < STILL; i++)
		assert_int_equal(end_of(&rig, batches[i], 5000).state, LW_CANCELED);
	tear_down(&rig, false);
	for (int i = 0; i < STILL; i++) {
		assert_int_equal(lw_engine_close(still[i]), 0);
		test_unmap(memory[i], AREA);
	}
}

/* The port of the peer's data connections. */
static uint16_t data_port(const struct rig *rig)
{
	char *text, *at;
	unsigned long port;

	assert_int_equal(lw_segment_json(rig->engine, rig->segment, &text), 0);
	at = strstr(text, "\"data\":[\"127.0.0.1:");
	assert_non_null(at);
	port = strtoul(at + strlen("\"data\":[\"127.0.0.1:"), NULL, 10);
	free(text);
	return (uint16_t)port;
}

static int dial(const struct rig *rig)
{
	struct sockaddr_in addr = {
		.sin_family = AF_INET, .sin_port = htons(data_port(rig)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

static void send_header(int fd, struct tcp_header header)
{
	unsigned char bytes[TCP_HEADER_BYTES];

	tcp_header_put(bytes, header);
	assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

/* Whether a status comes within so many ms; it says OK. */
static bool told_ok(int fd, int within_ms)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	uint64_t status = 1;

	if (poll(&wait, 1, within_ms) == 0)
		return false;
	assert_int_equal(recv(fd, &status, sizeof(status), MSG_WAITALL), sizeof(status));
	assert_int_equal(status, tcp_status_word(TCP_STATUS_OK));
	return true;
}

/* An initiator gave a WRITE up whose copy is under way: its next connection is not greeted before that has ended. */
static void test_fence_waits_for_copies_of_the_older_connection(void **state)
{
	const uint64_t token = UINT64_C(0x1234567890ab00);

	(void)state;
	for (int workers = 1; workers <= 2; workers++) {
		struct rig rig = set_up(FAR, "drivers=tcp", workers == 1 ? "drivers=tcp" : "drivers=tcp workers=2");
		struct tcp_header hello = {
			.size = token, .addr = rig.target->incarnation, .op = TCP_OP_HELLO | TCP_OP_V2};
		unsigned int before = test_gpu_calls("MemcpyAsync");
		struct linger abort = {.l_onoff = 1};
		int older = dial(&rig), newer;

		send_header(older, hello);
		assert_true(told_ok(older, 5000));
		test_gpu_hold(true);
		send_header(older, (struct tcp_header){.size = 4096,
						       .addr = (uint64_t)(uintptr_t)rig.far,
						       .op = TCP_OP_WRITE | TCP_OP_V2});
		assert_int_equal(send(older, rig.local, 4096, MSG_NOSIGNAL), 4096);
		TEST_EVENTUALLY(test_gpu_calls("MemcpyAsync") > before);
		setsockopt(older, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
		close(older);
		newer = dial(&rig);
		hello.size = token + 1;
		send_header(newer, hello);
		assert_false(told_ok(newer, HELD_MS));
		test_gpu_hold(false);
		assert_true(told_ok(newer, 5000));
		assert_memory_equal(rig.remote, rig.local, 4096);
		close(newer);
		tear_down(&rig, false);
	}
}

/* Peers that ask for much and don't read it get some of the target's bounce buffers; when others wait for those, they
 * lose their connection. */
static void test_peers_that_read_no_answers_lose_their_buffers(void **state)
{
	enum { GREEDY = 8 };
	struct rig rig = set_up(FAR, "drivers=tcp", "drivers=tcp stage_slots=4 stage_bytes=1048576");
	struct tcp_header header = {.size = AREA, .addr = (uint64_t)(uintptr_t)rig.far, .op = TCP_OP_READ | TCP_OP_V2};
	int sockets[GREEDY];

	(void)state;
	for (int i = 0; i < GREEDY; i++) {
		sockets[i] = dial(&rig);
		for (int k = 0; k < 4; k++)
			send_header(sockets[i], header);
	}
	test_sleep_ms(HELD_MS);
	for (int i = 0; i < 4; i++)
		completes(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, 0, AREA);
	for (int i = 0; i < GREEDY; i++)
		close(sockets[i]);
	tear_down(&rig, false);
}

/* A request inside memory of one kind may not reach into the other's, whose addresses may lie side by side. */
static void test_rangemap_covers_stays_inside_a_kind(void **state)
{
	const struct lw_range ranges[] = {{.addr = 4096, .end = 8192, .access = LW_ACCESS_REMOTE},
					  {.addr = 8192, .end = 12288, .access = LW_ACCESS_REMOTE | LW_RANGE_DEVICE},
					  {.addr = 12288, .end = 16384, .access = LW_ACCESS_REMOTE | LW_RANGE_DEVICE}};
	const struct lw_range *first;
	struct lw_rangemap *rangemap;

	(void)state;
	assert_int_equal(lw_rangemap_build(ranges, 3, &rangemap), 0);
	assert_true(lw_rangemap_covers(rangemap, 4096, 4096, LW_ACCESS_REMOTE_READ, &first));
	assert_true(lw_rangemap_covers(rangemap, 9000, 7000, LW_ACCESS_REMOTE_READ, &first));
	assert_false(lw_rangemap_covers(rangemap, 8191, 2, LW_ACCESS_REMOTE_READ, &first));
	lw_rangemap_free(rangemap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rangemap_covers_stays_inside_a_kind),
		cmocka_unit_test(test_register_tells_where_memory_of_a_gpu_is),
		cmocka_unit_test(test_register_beyond_an_allocation_refused),
		cmocka_unit_test(test_register_when_the_runtime_fails_leaves_nothing),
		cmocka_unit_test(test_request_over_seams_exact),
		cmocka_unit_test(test_bounce_buffers_are_not_shown),
		cmocka_unit_test(test_copy_fails_here_request_says_so),
		cmocka_unit_test(test_copy_fails_at_the_peer_request_says_so),
		cmocka_unit_test(test_cancel_while_copying_ends_with_the_copy),
		cmocka_unit_test(test_deadline_while_copying_ends_with_the_copy),
		cmocka_unit_test(test_unregister_while_copying_waits_for_it),
		cmocka_unit_test(test_segment_close_while_copying_ends_with_the_copy),
		cmocka_unit_test(test_engine_close_while_copying_waits_for_it),
		cmocka_unit_test(test_peers_that_stand_still_leave_buffers_to_others),
		cmocka_unit_test(test_peers_that_read_no_answers_lose_their_buffers),
		cmocka_unit_test(test_fence_waits_for_copies_of_the_older_connection),
		/* what they leave is left for ever */
		cmocka_unit_test(test_engine_close_with_a_gpu_that_hangs_leaves_its_buffers),
		cmocka_unit_test(test_copy_of_unknown_end_costs_a_buffer_and_no_more),
	};
	const struct lw_gpu *gpu;
	char why[300];

	seed = test_seed();
	for (int i = 0; i < LW_GPU_VENDORS; i++)
		if (lw_gpu_open((enum lw_gpu_vendor)i, test_gpu_library(), &gpu, why, sizeof(why)) != 0)
			print_message("no stand-in: %s\n", why);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
