/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of hundreds of thousands of requests, and many big ones at once: all complete, in time that grows with the
 * count and not faster; a full ring is "again" and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/engines.h"

#define MOST 200000
#define BLOCK 64

struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *memory; /* MOST blocks to copy, then MOST to copy to */
	struct lw_request *requests;
};

static struct rig open_rig(const char *extra)
{
	struct rig rig = {.engine = test_engine(extra), .memory = malloc((size_t)2 * MOST * BLOCK)};

	rig.requests = calloc(MOST, sizeof(*rig.requests));
	assert_non_null(rig.memory);
	assert_non_null(rig.requests);
	for (size_t i = 0; i < (size_t)MOST * BLOCK; i++)
		rig.memory[i] = (unsigned char)(i * 31 >> 3);
	memset(rig.memory + (size_t)MOST * BLOCK, 0, (size_t)MOST * BLOCK);
	test_register(rig.engine, rig.memory, (size_t)2 * MOST * BLOCK, LW_ACCESS_REMOTE);
	for (size_t i = 0; i < MOST; i++)
		rig.requests[i] = (struct lw_request){
			.local = rig.memory + i * BLOCK,
			.segment = LW_SEGMENT_LOCAL,
			.offset = (uint64_t)(uintptr_t)rig.memory + (MOST + i) * BLOCK,
			.length = BLOCK,
			.op = LW_WRITE,
		};
	assert_int_equal(lw_channel_open(rig.engine, &rig.channel), 0);
	return rig;
}

static void close_rig(struct rig *rig)
{
	assert_int_equal(lw_engine_close(rig->engine), 0);
	free(rig->requests);
	free(rig->memory);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* One batch of count requests, the fastest of several. */
static uint64_t best_ns(struct rig *rig, uint32_t count)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 7; i++) {
		uint64_t start = now_ns();
		struct lw_batch_status status;
		lw_batch_t batch;

		assert_int_equal(lw_batch_alloc(rig->channel, count, 0, NULL, &batch), 0);
		assert_int_equal(lw_submit(rig->channel, batch, rig->requests, count), 0);
		status = test_wait(rig->engine, batch);
		assert_int_equal(status.state, LW_COMPLETED);
		assert_int_equal(status.done, count);
		assert_int_equal(lw_batch_free(rig->engine, batch), 0);
		best = now_ns() - start < best ? now_ns() - start : best;
	}
	return best;
}

static void test_batch_of_200000_moves_all_in_linear_time(void **state)
{
	struct rig rig = open_rig("drivers=shm max_tasks=262144");
	uint64_t part = best_ns(&rig, MOST / 8), whole = best_ns(&rig, MOST);

	(void)state;
	assert_memory_equal(rig.memory, rig.memory + (size_t)MOST * BLOCK, (size_t)MOST * BLOCK);
	print_message("%d requests in %.1f ms, %d in %.1f ms\n", MOST / 8, (double)part / 1e6, MOST,
		      (double)whole / 1e6);
	/* Linear is 8 times, quadratic 64; between them the caches have their say. */
	assert_true(whole <= part * 24);
	close_rig(&rig);
}

static void test_64_batches_of_4096_at_once_all_complete(void **state)
{
	/* A ring for fewer submits than there are batches: some must be told to come again. */
	struct rig rig = open_rig("drivers=shm max_tasks=524288 ring_size=16");
	lw_batch_t batches[64];
	uint32_t again = 0;

	(void)state;
	for (int i = 0; i < 64; i++) {
		int error;

		assert_int_equal(lw_batch_alloc(rig.channel, 4096, 0, NULL, &batches[i]), 0);
		for (uint32_t k = 0; k < 4096; k += 256) {
			while ((error = lw_submit(rig.channel, batches[i], &rig.requests[k], 256)) == -EAGAIN)
				again++;
			assert_int_equal(error, 0);
		}
	}
	for (int i = 0; i < 64; i++) {
		struct lw_batch_status status = test_wait(rig.engine, batches[i]);

		assert_int_equal(status.state, LW_COMPLETED);
		assert_int_equal(status.done, 4096);
		assert_int_equal(lw_batch_free(rig.engine, batches[i]), 0);
	}
	assert_memory_equal(rig.memory, rig.memory + (size_t)MOST * BLOCK, (size_t)4096 * BLOCK);
	print_message("told to come again %u times\n", again);
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_batch_of_200000_moves_all_in_linear_time),
		cmocka_unit_test(test_64_batches_of_4096_at_once_all_complete),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
