/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes of one worker share its time, and what is cut because of some requests does not fail the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/engines.h"
#include "common/stall.h"

#define MIB ((size_t)1 << 20)
#define BLOCK (4 * MIB)
#define BUFFERS 6
#define CUTS 4 /* one more than the attempts a slice has */
#define BATCH 16
#define BULK 128 /* half a GiB, all of which a lane has credits for */

static void *memory_of(size_t length, int value)
{
	void *memory = malloc(length);

	assert_non_null(memory);
	memset(memory, value, length);
	return memory;
}

/* Buffers are unregistered one after the other while copies out of all of them are under way: each time their lane is
 * cut. */
static void test_unregister_again_and_again_leaves_other_requests_alone(void **state)
{
	struct lw_engine *engine = test_engine("drivers=shm workers=1");
	unsigned char *target = memory_of(BLOCK, 0), *sources[BUFFERS];
	struct lw_request requests[BATCH];
	struct lw_channel *channel;
	lw_buffer_t ids[BUFFERS];
	lw_batch_t batches[BUFFERS];
	struct test_stall stall;

	(void)state;
	assert_int_equal(lw_channel_open(engine, &channel), 0);
	test_register(engine, target, BLOCK, LW_ACCESS_REMOTE);
	/* All are submitted before the worker begins. */
	test_stall_begin(&stall, engine, 0);
	for (int i = 0; i < BUFFERS; i++) {
		sources[i] = memory_of(BLOCK, i + 1);
		ids[i] = test_register(engine, sources[i], BLOCK, LW_ACCESS_LOCAL);
		for (int k = 0; k < BATCH; k++)
			requests[k] = (struct lw_request){.local = sources[i],
							  .segment = LW_SEGMENT_LOCAL,
							  .offset = (uint64_t)(uintptr_t)target,
							  .length = BLOCK,
							  .op = LW_WRITE};
		assert_int_equal(lw_batch_alloc(channel, BATCH, 0, NULL, &batches[i]), 0);
		assert_int_equal(lw_submit(channel, batches[i], requests, BATCH), 0);
	}
	test_stall_end(&stall);
	for (int i = 0; i < CUTS; i++)
		assert_int_equal(lw_memory_unregister(engine, &ids[i], 1, 0), 0);
	for (int i = 0; i < BUFFERS; i++) {
		struct lw_batch_status status = test_wait(engine, batches[i]);

		if (i >= CUTS)
			assert_int_equal(status.failed, 0);
		assert_int_equal(lw_batch_free(engine, batches[i]), 0);
	}
	assert_int_equal(lw_engine_close(engine), 0);
	for (int i = 0; i < BUFFERS; i++)
		free(sources[i]);
	free(target);
}

/* More lanes than one, and always something to do on each: none may wait until its deadline. */
static void test_lanes_of_one_worker_take_turns(void **state)
{
	struct lw_engine *engine = test_engine("drivers=shm workers=1 tcp_lanes=4");
	unsigned char *memory = memory_of(2 * MIB, 3);
	struct lw_request request = {.local = memory,
				     .segment = LW_SEGMENT_LOCAL,
				     .offset = (uint64_t)(uintptr_t)(memory + MIB),
				     .length = MIB,
				     .timeout_ms = 1000,
				     .op = LW_WRITE};
	uint64_t begin_ms = test_now_ms();
	lw_batch_t batches[BATCH] = {0};
	struct lw_channel *channel;
	int live = 0;

	(void)state;
	assert_int_equal(lw_channel_open(engine, &channel), 0);
	test_register(engine, memory, 2 * MIB, LW_ACCESS_REMOTE);
	/* Whichever batch ends is begun anew, for longer than a deadline; then all are waited for. */
	do {
		live = 0;
		for (int i = 0; i < BATCH; i++) {
			struct lw_batch_status status;

			if (batches[i] != 0) {
				assert_int_equal(lw_batch_status(engine, batches[i], &status), 0);
				live += status.state == LW_PENDING;
				if (status.state == LW_PENDING)
					continue;
				assert_int_equal(status.state, LW_COMPLETED);
				assert_int_equal(lw_batch_free(engine, batches[i]), 0);
				batches[i] = 0;
			}
			if (test_now_ms() - begin_ms < 2500) {
				assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &batches[i]), 0);
				assert_int_equal(lw_submit(channel, batches[i], &request, 1), 0);
				live++;
			}
		}
	} while (live > 0);
	assert_int_equal(lw_engine_close(engine), 0);
	free(memory);
}

/* A request in the foreground does not wait for all the bulk that was submitted before it, and neither for what of it
 * is on the lane already, but for a bounded part. */
static void overtake(const char *settings)
{
	struct lw_engine *engine = test_engine(settings), *peer = test_engine(settings);
	unsigned char *ours = memory_of(BLOCK, 7), *theirs = memory_of(BLOCK, 0);
	struct lw_request bulk[BULK], one;
	struct lw_batch_status status;
	struct lw_channel *channel;
	lw_batch_t slow, quick;

	assert_int_equal(lw_channel_open(engine, &channel), 0);
	test_register(engine, ours, BLOCK, LW_ACCESS_LOCAL);
	test_register(peer, theirs, BLOCK, LW_ACCESS_REMOTE);
	one = (struct lw_request){.local = ours,
				  .segment = test_segment(engine, peer),
				  .offset = (uint64_t)(uintptr_t)theirs,
				  .length = 4096,
				  .op = LW_READ};
	for (int i = 0; i < BULK; i++) {
		bulk[i] = one;
		bulk[i].length = BLOCK;
		bulk[i].op = LW_WRITE;
		bulk[i].priority = LW_BULK;
	}
	assert_int_equal(lw_batch_alloc(channel, BULK, 0, NULL, &slow), 0);
	assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &quick), 0);
	assert_int_equal(lw_submit(channel, slow, bulk, BULK), 0);
	TEST_EVENTUALLY(lw_batch_status(engine, slow, &status) == 0 && status.done > 0);
	assert_int_equal(lw_submit(channel, quick, &one, 1), 0);
	assert_int_equal(test_wait(engine, quick).failed, 0);
	assert_int_equal(lw_batch_status(engine, slow, &status), 0);
	print_message("%s: %u of %d when the request in the foreground was over\n", settings, status.done, BULK);
	assert_true(status.done < BULK / 2);
	assert_int_equal(test_wait(engine, slow).failed, 0);
	assert_int_equal(lw_batch_free(engine, slow), 0);
	assert_int_equal(lw_batch_free(engine, quick), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(peer), 0);
	free(ours);
	free(theirs);
}

static void test_foreground_overtakes_bulk(void **state)
{
	(void)state;
	overtake("drivers=tcp workers=1");
	overtake("drivers=tcp workers=1 tcp_lanes=2 tcp_splice_bytes=0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unregister_again_and_again_leaves_other_requests_alone),
		cmocka_unit_test(test_lanes_of_one_worker_take_turns),
		cmocka_unit_test(test_foreground_overtakes_bulk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
