/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs (the stand-in's) between processes: imported by handles, and all that can go wrong with those: peers
 * that are killed, that take memory back or live again, handles that go stale, and each entry point of the runtime
 * failing. Every request ends, and nothing of the runtime's is left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/gpu.h"
#include "common/peer.h"

#define MIB ((uint64_t)1 << 20)
#define AREA (4 * MIB)
#define LOAD 64
#define TIMEOUT_MS 3000
#define BOUND_MS (TIMEOUT_MS + 2000)

/* An engine of this process with memory of a GPU and of the host. */
struct side {
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *device, *seen; /* seen: the same bytes for the CPU */
	unsigned char *host;
	lw_buffer_t device_id, host_id;
};

static void begin_side(struct side *side, const char *settings)
{
	char text[1024];

	snprintf(text, sizeof(text), "drivers=shm,nvlink,tcp cuda_library=%s %s", test_gpu_library(), settings);
	side->device = test_gpu_alloc(LW_GPU_CUDA, 0, AREA);
	side->seen = test_gpu_peek(side->device);
	side->host = test_map(AREA, NULL);
	side->engine = test_engine(text);
	side->device_id = test_register(side->engine, side->device, AREA, LW_ACCESS_REMOTE);
	side->host_id = test_register(side->engine, side->host, AREA, LW_ACCESS_REMOTE);
	assert_int_equal(lw_channel_self(side->engine, &side->channel), 0);
}

/* The runtime holds nothing more of ours. */
static void check_nothing_left(const char *after)
{
	static const char *const kinds[] = {"stream", "event", "host", "pinned", "import"};
	uint64_t end_ms = test_now_ms() + 10000;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		while (test_gpu_live(kinds[i]) != 0 && test_now_ms() < end_ms)
			test_sleep_ms(1);
		if (test_gpu_live(kinds[i]) != 0)
			fail_msg("%s: %zu of %s are left", after, test_gpu_live(kinds[i]), kinds[i]);
	}
}

static void end_side(struct side *side, const char *after)
{
	assert_int_equal(lw_engine_close(side->engine), 0);
	check_nothing_left(after);
	test_unmap(side->host, AREA);
	test_gpu_free(LW_GPU_CUDA, side->device);
}

static void start_peer(struct peer *peer)
{
	peer_start(peer, AREA, (const char *const[]){"drivers=shm,nvlink,tcp", "gpu=1", NULL});
}

static lw_segment_t open_peer(const struct side *side, const struct peer *peer)
{
	lw_segment_t segment;

	if (lw_segment_open(side->engine, peer->name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	return segment;
}

/* Slices that lanes of that driver carried. */
static uint64_t carried(const struct side *side, const char *driver)
{
	struct lw_lane_stats lanes[64];
	uint64_t slices = 0;
	int count = lw_stats_lanes(side->engine, lanes, 64);

	for (int i = 0; i < count && i < 64; i++)
		if (strcmp(lanes[i].driver, driver) == 0 && lanes[i].target == 0)
			slices += lanes[i].slices;
	return slices;
}

static struct lw_task_status move(const struct side *side, enum lw_op op, lw_segment_t segment, void *local,
				  uint64_t offset, uint64_t length)
{
	return test_transfer(side->engine, side->channel,
			     (struct lw_request){.local = local,
						 .segment = segment,
						 .offset = offset,
						 .length = length,
						 .timeout_ms = TIMEOUT_MS,
						 .op = (uint8_t)op});
}

/* There and back: from the device and from the host, exact. */
static void check_exact(const struct side *side, const struct peer *peer, lw_segment_t segment)
{
	struct peer *other = (struct peer *)(uintptr_t)peer;
	unsigned char *locals[2] = {side->device, side->host}, *seen[2] = {side->seen, side->host};

	for (int i = 0; i < 2; i++) {
		uint64_t length = 1234567, at = 3 + (uint64_t)i * 2 * MIB;
		char want[64];

		test_fill(seen[i], AREA, 7 + (uint64_t)i);
		assert_int_equal(move(side, LW_WRITE, segment, locals[i] + 5, peer->addr + at, length).state,
				 LW_COMPLETED);
		snprintf(want, sizeof(want), "sum %08x", test_crc(seen[i] + 5, length));
		assert_string_equal(peer_ask(other, "sum %" PRIu64 " %" PRIu64, at, length), want);
		memset(seen[i], 0, AREA);
		assert_int_equal(move(side, LW_READ, segment, locals[i], peer->addr + at, length).state, LW_COMPLETED);
		snprintf(want, sizeof(want), "sum %08x", test_crc(seen[i], length));
		assert_string_equal(peer_ask(other, "sum %" PRIu64 " %" PRIu64, at, length), want);
	}
}

static void test_processes_reach_each_other_by_handles(void **state)
{
	struct side side, other;
	struct peer peer;
	lw_segment_t segment, again, theirs;

	(void)state;
	begin_side(&side, "");
	begin_side(&other, "");
	start_peer(&peer);
	segment = open_peer(&side, &peer);
	check_exact(&side, &peer, segment);
	assert_int_equal(carried(&side, "nvlink"), 4);
	assert_int_equal(carried(&side, "tcp") + carried(&side, "shm"), 0);
	/* Once a process, however often it is opened and by whom. */
	again = open_peer(&side, &peer);
	theirs = open_peer(&other, &peer);
	assert_int_equal(test_gpu_live("import"), 1);
	check_exact(&other, &peer, theirs);
	assert_int_equal(lw_segment_close(side.engine, segment), 0);
	assert_int_equal(lw_segment_close(side.engine, again), 0);
	assert_int_equal(lw_segment_close(other.engine, theirs), 0);
	TEST_EVENTUALLY(test_gpu_live("import") == 0);
	assert_int_equal(test_gpu_blocked(), 0);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(other.engine), 0);
	test_unmap(other.host, AREA);
	test_gpu_free(LW_GPU_CUDA, other.device);
	end_side(&side, "handles");
}

/* It has a runtime, and has not started it: it is not made to, and moves its bytes by a socket. */
static void test_process_that_uses_no_gpu_is_not_made_to(void **state)
{
	char text[1024];
	struct side side = {.host = test_map(AREA, NULL)};
	struct peer peer;
	lw_segment_t segment;
	lw_buffer_t id;

	(void)state;
	snprintf(text, sizeof(text), "drivers=shm,nvlink,tcp cuda_library=%s", test_gpu_library());
	assert_int_equal(test_gpu_live("context"), 0); /* this is the first test of the program */
	side.engine = test_engine(text);
	assert_int_equal(lw_channel_self(side.engine, &side.channel), 0);
	id = test_register(side.engine, side.host, AREA, LW_ACCESS_LOCAL);
	start_peer(&peer);
	segment = open_peer(&side, &peer);
	test_fill(side.host, AREA, 99);
	assert_int_equal(move(&side, LW_WRITE, segment, side.host, peer.addr, MIB).state, LW_COMPLETED);
	assert_int_equal(carried(&side, "nvlink"), 0);
	assert_int_equal(carried(&side, "tcp"), 1);
	assert_int_equal(test_gpu_live("context"), 0);
	assert_int_equal(lw_segment_close(side.engine, segment), 0);
	assert_int_equal(lw_memory_unregister(side.engine, &id, 1, 0), 0);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(side.engine), 0);
	test_unmap(side.host, AREA);
}

/* LOAD requests, from and to the device, or that and the host; offset: of the other side's memory. */
static lw_batch_t load_from(const struct side *side, bool host, lw_segment_t segment, uint64_t offset)
{
	struct lw_request requests[LOAD];
	lw_batch_t batch;

	for (size_t i = 0; i < LOAD; i++)
		requests[i] =
			(struct lw_request){.local = (host && i % 4 >= 2 ? side->host : side->device) + i % 16 * 65536,
					    .segment = segment,
					    .offset = offset + i % 16 * 65536,
					    .length = 65536,
					    .timeout_ms = TIMEOUT_MS,
					    .op = i % 2 == 0 ? LW_WRITE : LW_READ};
	assert_int_equal(lw_batch_alloc(side->channel, LOAD, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(side->channel, batch, requests, LOAD), 0);
	return batch;
}

static lw_batch_t load(const struct side *side, lw_segment_t segment, uint64_t offset)
{
	return load_from(side, true, segment, offset);
}

/* The same, waited for: each ended. */
static void load_and_wait(const struct side *side, lw_segment_t segment, uint64_t offset)
{
	lw_batch_t batch = load(side, segment, offset);
	struct lw_batch_status status = test_wait(side->engine, batch);

	assert_int_equal(status.done, LOAD);
	lw_batch_free(side->engine, batch);
}

static void test_peer_killed_every_request_ends_and_imports_go(void **state)
{
	(void)state;
	for (int round = 0; round < 5; round++) {
		struct lw_batch_status status;
		struct side side;
		struct peer peer;
		lw_segment_t segment;
		lw_batch_t batch, late;
		uint64_t begin_ms;

		begin_side(&side, round % 2 == 0 ? "workers=2" : "");
		start_peer(&peer);
		segment = open_peer(&side, &peer);
		check_exact(&side, &peer, segment);
		test_gpu_delay(2000);
		batch = load(&side, segment, peer.addr);
		begin_ms = test_now_ms();
		peer_kill(&peer);
		late = load(&side, segment, peer.addr);
		status = test_wait(side.engine, batch);
		assert_int_equal(status.done, LOAD);
		status = test_wait(side.engine, late);
		assert_int_equal(status.done, LOAD);
		assert_in_range(test_now_ms() - begin_ms, 0, BOUND_MS);
		test_gpu_delay(0);
		lw_batch_free(side.engine, batch);
		lw_batch_free(side.engine, late);
		assert_int_equal(lw_segment_close(side.engine, segment), 0);
		TEST_EVENTUALLY(test_gpu_live("import") == 0);
		end_side(&side, "a peer killed");
	}
}

/* The two processes know each other, and bytes arrive. */
static lw_segment_t meet(struct side *side, struct peer *peer)
{
	lw_segment_t segment;

	begin_side(side, "");
	start_peer(peer);
	segment = open_peer(side, peer);
	check_exact(side, peer, segment);
	return segment;
}

/* Both end; after: what was tried, for the message if something is left. */
static void part(struct side *side, struct peer *peer, lw_segment_t segment, const char *after)
{
	assert_int_equal(lw_segment_close(side->engine, segment), 0);
	peer_end(peer);
	end_side(side, after);
}

/* What the peer has taken back is refused; its next life is another one, whose memory is imported anew. */
static void test_memory_taken_back_is_refused_and_next_life_is_new(void **state)
{
	struct lw_task_status task;
	struct side side;
	struct peer peer;
	lw_segment_t segment, again;

	(void)state;
	segment = meet(&side, &peer);
	peer_expect(&peer, "ok", "withdraw 0");
	task = move(&side, LW_WRITE, segment, side.device, peer.addr, 4096);
	assert_int_equal(task.state, LW_FAILED);
	assert_true(task.reason == LW_REASON_REMOTE_RANGE || task.reason == LW_REASON_REFUSED);
	peer_ask(&peer, "again");
	assert_int_equal(sscanf(peer.line, "ready %127s %" SCNu64 " %" SCNu64, peer.name, &peer.addr, &peer.length), 3);
	task = move(&side, LW_READ, segment, side.device, peer.addr, 4096);
	assert_int_equal(task.state, LW_FAILED); /* the old handle is of the old life */
	assert_int_equal(lw_segment_close(side.engine, segment), 0);
	again = open_peer(&side, &peer);
	check_exact(&side, &peer, again);
	assert_int_equal(test_gpu_live("import"), 1);
	assert_true(carried(&side, "nvlink") >= 4);
	assert_int_equal(lw_segment_close(side.engine, again), 0);
	peer_end(&peer);
	end_side(&side, "another life");
}

/* A handle that is stale, or that the runtime does not take: bounce buffers and a socket do it instead. */
static void test_handle_that_cannot_be_imported_falls_back(void **state)
{
	struct side side;
	struct peer peer;
	lw_segment_t segment;

	(void)state;
	begin_side(&side, "log_level=error");
	start_peer(&peer);
	test_gpu_fail("IpcOpenMemHandle", 0, 400);
	segment = open_peer(&side, &peer);
	assert_true(test_gpu_failed());
	test_gpu_fail("IpcOpenMemHandle", 0, 0);
	check_exact(&side, &peer, segment);
	assert_int_equal(carried(&side, "nvlink"), 0);
	assert_true(carried(&side, "tcp") >= 4);
	part(&side, &peer, segment, "a stale handle");
}

/* The owner's unregister waits for copies that are under way here, and for nothing else. */
static void test_unregister_waits_for_copies_of_others(void **state)
{
	struct lw_batch_status status;
	struct side side;
	struct peer peer;
	lw_segment_t segment;
	lw_batch_t batch;

	(void)state;
	segment = meet(&side, &peer);
	test_gpu_hold(true);
	batch = load(&side, segment, peer.addr);
	TEST_EVENTUALLY(test_gpu_calls("EventRecord") > 0 && carried(&side, "nvlink") == 4);
	test_sleep_ms(50);
	peer_expect(&peer, "error -16", "withdraw 0"); /* EBUSY, after 5 s */
	test_gpu_hold(false);
	status = test_wait(side.engine, batch);
	assert_int_equal(status.done, LOAD);
	lw_batch_free(side.engine, batch);
	peer_expect(&peer, "ok", "withdraw 0");
	part(&side, &peer, segment, "unregister");
}

/* A lane that is busy with other memory of the peer's begins no more until it has left, so that the peer is not held up
 * for ever. */
static void test_unregister_returns_though_lanes_have_work_with_other_memory(void **state)
{
	struct lw_batch_status status;
	char offer[96];
	struct side side;
	struct peer peer;
	lw_segment_t segment;
	lw_batch_t under_way, next;
	unsigned int before;

	(void)state;
	begin_side(&side, "");
	snprintf(offer, sizeof(offer), "offer=0:4096:3,%" PRIu64 ":%" PRIu64 ":3", 2 * MIB, 2 * MIB);
	peer_start(&peer, AREA, (const char *const[]){"drivers=shm,nvlink,tcp", "gpu=1", offer, NULL});
	segment = open_peer(&side, &peer);
	before = test_gpu_calls("MemcpyAsync");
	test_gpu_hold(true);
	under_way = load_from(&side, false, segment, peer.addr + 2 * MIB);
	TEST_EVENTUALLY(test_gpu_calls("MemcpyAsync") == before + LOAD);
	peer_tell(&peer, "withdraw 0");
	test_sleep_ms(500); /* it waits for us by now */
	next = load_from(&side, false, segment, peer.addr + 2 * MIB);
	test_sleep_ms(100);
	assert_int_equal(test_gpu_calls("MemcpyAsync"), before + LOAD);
	test_gpu_hold(false);
	assert_string_equal(peer_answer(&peer), "ok");
	status = test_wait(side.engine, under_way);
	assert_int_equal(status.failed, 0);
	status = test_wait(side.engine, next);
	assert_int_equal(status.failed, 0);
	assert_int_equal(test_gpu_calls("MemcpyAsync"), before + 2 * LOAD);
	lw_batch_free(side.engine, under_way);
	lw_batch_free(side.engine, next);
	assert_int_equal(move(&side, LW_READ, segment, side.device, peer.addr, 64).state, LW_FAILED);
	part(&side, &peer, segment, "busy lanes");
}

/* The same for our own: copies can't be taken back, and the memory stays until they have ended. */
static void test_own_unregister_and_cancel_wait_for_copies(void **state)
{
	struct lw_batch_status status;
	struct side side;
	struct peer peer;
	lw_segment_t segment;
	lw_batch_t batch;

	(void)state;
	segment = meet(&side, &peer);
	test_gpu_hold(true);
	batch = load(&side, segment, peer.addr);
	test_sleep_ms(50);
	assert_int_equal(lw_memory_unregister(side.engine, &side.device_id, 1, 200), -EBUSY);
	assert_int_equal(lw_batch_cancel(side.engine, batch), 0);
	test_sleep_ms(50);
	assert_int_equal(lw_batch_status(side.engine, batch, &status), 0);
	assert_int_equal(status.state, LW_PENDING);
	test_gpu_hold(false);
	status = test_wait(side.engine, batch);
	assert_int_equal(status.done, LOAD);
	lw_batch_free(side.engine, batch);
	assert_int_equal(lw_memory_unregister(side.engine, &side.device_id, 1, 0), 0);
	part(&side, &peer, segment, "own unregister");
}

/* One life of an engine, with a fault somewhere in it; peer NULL: its requests are to itself. Whether that was met. */
static bool live_with_fault(enum lw_gpu_vendor vendor, const char *entry, unsigned int nth, const struct peer *peer)
{
	static const char *const drivers[LW_GPU_VENDORS] = {"nvlink", "hip", "musa", "maca"};
	struct side side = {.device = test_gpu_alloc(vendor, 0, AREA), .host = test_map(AREA, NULL)};
	unsigned char *other = test_gpu_alloc(vendor, 1, AREA);
	struct lw_memory memory[3] = {{.addr = side.host, .length = AREA, .access = LW_ACCESS_REMOTE},
				      {.addr = side.device, .length = AREA, .access = LW_ACCESS_REMOTE},
				      {.addr = other, .length = AREA, .access = LW_ACCESS_REMOTE}};
	uint64_t begin_ms = test_now_ms(), offset = peer != NULL ? peer->addr : (uint64_t)(uintptr_t)other;
	lw_segment_t segment = LW_SEGMENT_LOCAL;
	char settings[1024], after[80];
	lw_buffer_t id;
	bool met;

	snprintf(settings, sizeof(settings), "drivers=shm,%s,tcp log_level=error %s_library=%s", drivers[vendor],
		 lw_gpu_vendor_name(vendor), test_gpu_library());
	snprintf(after, sizeof(after), "%s, fault %u of %s", drivers[vendor], nth, entry);
	side.engine = test_engine(settings);
	test_gpu_fail(entry, nth, 2);
	assert_int_equal(lw_channel_self(side.engine, &side.channel), 0);
	/* Registering may fail with a reason; then there is less to do. */
	for (int i = 0; i < 3; i++)
		if (lw_memory_register(side.engine, &memory[i], 1, &id) != 0)
			assert_true(strlen(lw_last_error()) > 0);
	if (peer == NULL || lw_segment_open(side.engine, peer->name, 0, &segment) == 0) {
		load_and_wait(&side, segment, offset);
		load_and_wait(&side, segment, offset);
		if (peer != NULL)
			assert_int_equal(lw_segment_close(side.engine, segment), 0);
	}
	assert_int_equal(lw_engine_close(side.engine), 0);
	met = test_gpu_failed();
	test_gpu_fail(entry, 0, 0);
	check_nothing_left(after);
	if (test_gpu_device(vendor) != 0 && strcmp(entry, "SetDevice") != 0)
		fail_msg("%s: the thread's device is another one", after);
	test_gpu_set_device(vendor, 0);
	test_unmap(side.host, AREA);
	test_gpu_free(vendor, side.device);
	test_gpu_free(vendor, other);
	if (test_now_ms() - begin_ms > 15000)
		fail_msg("%s: took %" PRIu64 " ms", after, test_now_ms() - begin_ms);
	return met;
}

/* Faults of all entry points, one after the other. met: those that came into play are counted there. */
static void try_all_faults(enum lw_gpu_vendor vendor, const struct peer *peer, bool *met)
{
	static const unsigned int nths[] = {1, 2, 5, 70, 0};
	const char *entry;

	for (size_t i = 0; (entry = test_gpu_entry(i)) != NULL; i++)
		for (size_t k = 0; k < sizeof(nths) / sizeof(nths[0]); k++)
			met[i] |= live_with_fault(vendor, entry, nths[k], peer);
}

static void test_fault_of_every_entry_point_ends_everything_and_leaks_nothing(void **state)
{
	bool met[64] = {false};
	const char *entry;
	struct peer peer;

	(void)state;
	start_peer(&peer);
	try_all_faults(LW_GPU_CUDA, &peer, met);
	peer_end(&peer);
	for (int v = 0; v < LW_GPU_VENDORS; v++)
		try_all_faults((enum lw_gpu_vendor)v, NULL, met);
	/* GetDeviceCount is for programs that look around; a device's context is held once a process, see unit.gpu. */
	for (size_t i = 0; (entry = test_gpu_entry(i)) != NULL; i++)
		if (!met[i] && strcmp(entry, "GetDeviceCount") != 0 && strcmp(entry, "DevicePrimaryCtxRetain") != 0)
			fail_msg("no fault of %s was met", entry);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_process_that_uses_no_gpu_is_not_made_to),
		cmocka_unit_test(test_processes_reach_each_other_by_handles),
		cmocka_unit_test(test_peer_killed_every_request_ends_and_imports_go),
		cmocka_unit_test(test_memory_taken_back_is_refused_and_next_life_is_new),
		cmocka_unit_test(test_handle_that_cannot_be_imported_falls_back),
		cmocka_unit_test(test_unregister_waits_for_copies_of_others),
		cmocka_unit_test(test_unregister_returns_though_lanes_have_work_with_other_memory),
		cmocka_unit_test(test_own_unregister_and_cancel_wait_for_copies),
		cmocka_unit_test(test_fault_of_every_entry_point_ends_everything_and_leaks_nothing),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	test_gpu_library();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
