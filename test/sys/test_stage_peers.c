/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs between two processes, through bounce buffers: over tcp and shm, with copies and the wire side by
 * side, and peers that are killed in the middle. Each process has a stand-in of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/gpu.h"
#include "common/peer.h"

#define MIB ((uint64_t)1 << 20)
#define AREA (16 * MIB)
#define LOAD 48 /* requests under way, of 1 MiB */
#define ROUNDS 6
#define TIMEOUT_MS 2000
#define BOUND_MS (TIMEOUT_MS + (TEST_TSAN || TEST_ASAN ? 4000 : 1500))

static uint64_t seed;

static void check_rest(void)
{
	assert_int_equal(test_gpu_live("stream"), 0);
	assert_int_equal(test_gpu_live("event"), 0);
	assert_int_equal(test_gpu_live("host"), 0);
	assert_int_equal(test_gpu_blocked(), 0);
}

/* The mover's WRITE and READ, with its sums and the target's. */
static void move_both_ways(const char *const *mover_options, const char *const *target_options, const char *driver)
{
	static const uint64_t sizes[] = {1, 4095, 65537, MIB, 7 * MIB + 3};
	struct peer mover, target;
	unsigned long long shm = 0, tcp = 0;
	char sent[64];
	uint64_t segment;

	peer_start(&mover, AREA, mover_options);
	peer_start(&target, AREA, target_options);
	segment = strtoull(peer_expect(&mover, "segment ", "open %s", target.name) + strlen("segment "), NULL, 16);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t size = sizes[i], here = test_random(&seed) % (8 * MIB - size),
			 there = test_random(&seed) % (AREA - size), back = 8 * MIB + here;

		peer_expect(&mover, "ok", "fill %" PRIu64 " %" PRIu64 " %" PRIu64, here, size, test_random(&seed));
		peer_expect(&mover, "ran 1 0 0 0", "run write %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " 1 10000",
			    segment, here, target.addr + there, size);
		snprintf(sent, sizeof(sent), "%s", peer_expect(&mover, "sum ", "sum %" PRIu64 " %" PRIu64, here, size));
		assert_string_equal(peer_expect(&target, "sum ", "sum %" PRIu64 " %" PRIu64, there, size), sent);
		peer_expect(&mover, "ran 1 0 0 0", "run read %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " 1 10000",
			    segment, back, target.addr + there, size);
		assert_string_equal(peer_expect(&mover, "sum ", "sum %" PRIu64 " %" PRIu64, back, size), sent);
	}
	assert_int_equal(sscanf(peer_ask(&mover, "drivers"), "drivers %llu %llu", &shm, &tcp), 2);
	if (strcmp(driver, "shm") == 0)
		assert_true(shm > 0 && tcp == 0);
	else
		assert_true(shm == 0 && tcp > 0);
	peer_end(&mover);
	peer_end(&target);
}

static void test_between_processes_exact(void **state)
{
	static const char *const tcp_gpu[] = {"drivers=tcp", "gpu=0", NULL};
	static const char *const tcp_host[] = {"drivers=tcp", NULL};
	static const char *const shm_gpu[] = {"drivers=shm,tcp", "shm_peers=on", "gpu=1", NULL};
	static const char *const shm_host[] = {"drivers=shm,tcp", "shm_peers=on", NULL};

	(void)state;
	move_both_ways(tcp_gpu, tcp_gpu, "tcp");
	move_both_ways(tcp_gpu, tcp_host, "tcp");
	move_both_ways(tcp_host, tcp_gpu, "tcp");
	move_both_ways(shm_gpu, shm_host, "shm");
	/* Nobody but its owner's GPU gets there by shm: the same peer by another way. */
	move_both_ways(shm_host, shm_gpu, "tcp");
	move_both_ways(shm_gpu, shm_gpu, "tcp");
}

/* How long one WRITE of the area takes. */
static uint64_t time_of(struct lw_engine *engine, void *local, lw_segment_t segment, uint64_t remote)
{
	struct lw_channel *channel;
	struct lw_request what = {.local = local, .segment = segment, .offset = remote, .length = AREA, .op = LW_WRITE};
	uint64_t begin_ms = test_now_ms();

	assert_int_equal(lw_channel_self(engine, &channel), 0);
	assert_int_equal(test_transfer(engine, channel, what).state, LW_COMPLETED);
	return test_now_ms() - begin_ms;
}

/* Copies take 4 ms a piece, here and there: from GPU to GPU it takes little longer than the slower of
 * the two, not as long as both one after the other. */
static void test_copies_and_wire_overlap(void **state)
{
	static const char *const host[] = {"drivers=tcp", NULL};
	static const char *const gpu[] = {"drivers=tcp", "gpu=0", NULL};
	struct lw_engine *engine = test_engine("drivers=tcp");
	unsigned char *plain = test_map(AREA, NULL), *memory = test_gpu_alloc(LW_GPU_CUDA, 0, AREA);
	struct peer near, far;
	lw_segment_t to_host, to_gpu;
	uint64_t here = 0, there = 0, both = 0;

	(void)state;
	test_register(engine, plain, AREA, LW_ACCESS_LOCAL);
	test_register(engine, memory, AREA, LW_ACCESS_LOCAL);
	setenv("STANDIN_GPU", "slow=2000", 1); /* a copy, and the event behind it */
	peer_start(&near, AREA, host);
	peer_start(&far, AREA, gpu);
	unsetenv("STANDIN_GPU");
	assert_int_equal(lw_segment_open(engine, near.name, 0, &to_host), 0);
	assert_int_equal(lw_segment_open(engine, far.name, 0, &to_gpu), 0);
	test_gpu_slow(2000);
	for (int i = 0; i < 3; i++) {
		here += time_of(engine, memory, to_host, near.addr);
		there += time_of(engine, plain, to_gpu, far.addr);
		both += time_of(engine, memory, to_gpu, far.addr);
	}
	test_gpu_slow(0);
	print_message("copies here %" PRIu64 " ms, there %" PRIu64 " ms, both %" PRIu64 " ms\n", here, there, both);
	assert_true(both * 4 < (here + there) * 3);
	peer_end(&near);
	peer_end(&far);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(plain, AREA);
	test_gpu_free(LW_GPU_CUDA, memory);
	check_rest();
}

/* A peer is killed in the middle: each request ends in its time, and nothing is left. */
static void kill_peers(const char *const *options)
{
	struct lw_engine *engine = test_engine("drivers=tcp log_level=error");
	unsigned char *memory = test_gpu_alloc(LW_GPU_CUDA, 1, AREA);
	struct lw_channel *channel;

	assert_int_equal(lw_channel_self(engine, &channel), 0);
	test_register(engine, memory, AREA, LW_ACCESS_LOCAL);
	test_gpu_delay(300);
	for (int round = 0; round < ROUNDS; round++) {
		struct lw_request requests[LOAD];
		struct lw_batch_status status;
		struct peer peer;
		lw_segment_t segment;
		lw_batch_t batch;

		peer_start(&peer, AREA, options);
		assert_int_equal(lw_segment_open(engine, peer.name, 0, &segment), 0);
		for (size_t i = 0; i < LOAD; i++)
			requests[i] = (struct lw_request){.local = memory + i % 16 * MIB,
							  .segment = segment,
							  .offset = peer.addr + i % 16 * MIB,
							  .length = MIB,
							  .timeout_ms = TIMEOUT_MS,
							  .op = i % 2 == 0 ? LW_WRITE : LW_READ};
		assert_int_equal(lw_batch_alloc(channel, LOAD, 0, NULL, &batch), 0);
		test_submit(channel, batch, requests, LOAD);
		test_sleep_ms((uint32_t)(test_random(&seed) % 30));
		peer_kill(&peer);
		if (lw_batch_wait(engine, batch, BOUND_MS, &status) != 0)
			fail_msg("round %d: requests to a peer that was killed did not end", round);
		assert_int_equal(status.done, LOAD);
		assert_int_equal(lw_batch_free(engine, batch), 0);
		assert_int_equal(lw_segment_close(engine, segment), 0);
	}
	test_gpu_delay(0);
	assert_int_equal(lw_engine_close(engine), 0);
	test_gpu_free(LW_GPU_CUDA, memory);
	check_rest();
}

static void test_target_killed_requests_end(void **state)
{
	static const char *const host[] = {"drivers=tcp", NULL};
	static const char *const gpu[] = {"drivers=tcp", "gpu=0", NULL};

	(void)state;
	kill_peers(host);
	kill_peers(gpu);
}

/* Initiators are killed in the middle of what they write to and read from a GPU of ours: that ends, and others are
 * served. */
static void test_initiator_killed_others_are_served(void **state)
{
	static const char *const host[] = {"drivers=tcp", "log_level=error", NULL};
	struct lw_engine *engine = test_engine("drivers=tcp stage_slots=4 log_level=error");
	unsigned char *memory = test_gpu_alloc(LW_GPU_CUDA, 0, AREA);
	lw_buffer_t id = test_register(engine, memory, AREA, LW_ACCESS_REMOTE);

	(void)state;
	test_gpu_delay(300);
	for (int round = 0; round < ROUNDS; round++) {
		struct peer killed, well;
		uint64_t segment;

		peer_start(&killed, AREA, host);
		segment = strtoull(peer_expect(&killed, "segment ", "open %s", lw_engine_name(engine)) +
					   strlen("segment "),
				   NULL, 16);
		peer_expect(&killed, "ok", "stream %s %" PRIx64 " 0 %" PRIu64 " %u 16",
			    round % 2 == 0 ? "read" : "write", segment, (uint64_t)(uintptr_t)memory, (unsigned)MIB);
		test_sleep_ms(20 + (uint32_t)(test_random(&seed) % 30));
		peer_kill(&killed);
		peer_start(&well, AREA, host);
		segment =
			strtoull(peer_expect(&well, "segment ", "open %s", lw_engine_name(engine)) + strlen("segment "),
				 NULL, 16);
		peer_expect(&well, "ran 16 0 0 0", "run write %" PRIx64 " 0 %" PRIu64 " %u 16 10000", segment,
			    (uint64_t)(uintptr_t)memory, (unsigned)MIB);
		peer_end(&well);
	}
	test_gpu_delay(0);
	assert_int_equal(lw_memory_unregister(engine, &id, 1, 5000), 0);
	test_gpu_free(LW_GPU_CUDA, memory); /* the stand-in ends us if a copy is under way */
	assert_int_equal(lw_engine_close(engine), 0);
	check_rest();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_between_processes_exact),
		cmocka_unit_test(test_copies_and_wire_overlap),
		cmocka_unit_test(test_target_killed_requests_end),
		cmocka_unit_test(test_initiator_killed_others_are_served),
	};
	const struct lw_gpu *gpu;
	char why[300];
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	seed = test_seed();
	if (lw_gpu_open(LW_GPU_CUDA, test_gpu_library(), &gpu, why, sizeof(why)) != 0)
		print_message("no stand-in: %s\n", why);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
