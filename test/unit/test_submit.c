/* SPDX-License-Identifier: Apache-2.0 */
/* Submission in place: lw_submit_reserve and lw_submit_commit, over the engine's own segment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "common/engines.h"

#define BLOCK 32
#define MOST 300

static unsigned char from[MOST * BLOCK], to[MOST * BLOCK];

struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	lw_batch_t batch;
};

static struct rig open_rig(uint32_t capacity)
{
	struct rig rig = {.engine = test_engine("drivers=shm,null")};

	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i * 7 + 1);
	memset(to, 0, sizeof(to));
	test_register(rig.engine, from, sizeof(from), LW_ACCESS_LOCAL);
	test_register(rig.engine, to, sizeof(to), LW_ACCESS_REMOTE);
	assert_int_equal(lw_channel_open(rig.engine, &rig.channel), 0);
	assert_int_equal(lw_batch_alloc(rig.channel, capacity, 0, NULL, &rig.batch), 0);
	return rig;
}

static struct lw_request block(uint32_t number)
{
	return (struct lw_request){.local = from + (size_t)number * BLOCK,
				   .segment = LW_SEGMENT_LOCAL,
				   .offset = (uint64_t)(uintptr_t)(to + (size_t)number * BLOCK),
				   .length = BLOCK,
				   .op = LW_WRITE};
}

static void test_submit_reserve_fill_commit_moves_every_block(void **state)
{
	struct rig rig = open_rig(MOST);
	struct lw_batch_status status;
	uint32_t done = 0;

	(void)state;
	while (done < MOST) {
		struct lw_slot *slots;
		int got = lw_submit_reserve(rig.channel, rig.batch, MOST - done, &slots);

		assert_true(got >= 1 && got <= 64);
		for (int i = 0; i < got; i++)
			slots[i].request = block(done + (uint32_t)i);
		assert_int_equal(lw_submit_commit(rig.channel, rig.batch, (uint32_t)got), 0);
		done += (uint32_t)got;
	}
	status = test_wait(rig.engine, rig.batch);
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(status.tasks, MOST);
	assert_int_equal(status.bytes, sizeof(to));
	assert_memory_equal(from, to, sizeof(to));
	assert_int_equal(lw_batch_free(rig.engine, rig.batch), 0);
	assert_int_equal(lw_engine_close(rig.engine), 0);
}

static void test_submit_commit_fewer_than_reserved_leaves_the_rest(void **state)
{
	struct rig rig = open_rig(70);
	struct lw_request ordinary = block(3);
	struct lw_slot *slots, *again;

	(void)state;
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch, 5, &slots), 5);
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch, 200, &again), 64);
	assert_ptr_equal(slots, again);
	for (uint32_t i = 0; i < 3; i++)
		slots[i].request = block(i);
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 65), -EINVAL);
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 3), 0);
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 1), -EINVAL);
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch, 100, &again), 61);
	assert_ptr_equal(slots + 3, again);
	/* lw_submit takes the same places. */
	assert_int_equal(lw_submit(rig.channel, rig.batch, &ordinary, 1), 0);
	assert_int_equal(test_wait(rig.engine, rig.batch).tasks, 4);
	assert_memory_equal(from, to, (size_t)4 * BLOCK);
	assert_int_equal(to[4 * BLOCK], 0);
	assert_int_equal(lw_batch_free(rig.engine, rig.batch), 0);
	assert_int_equal(lw_engine_close(rig.engine), 0);
}

static void test_submit_commit_wrong_request_takes_nothing_and_can_be_mended(void **state)
{
	struct rig rig = open_rig(8);
	struct lw_batch_status status;
	struct lw_slot *slots;

	(void)state;
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch, 4, &slots), 4);
	for (uint32_t i = 0; i < 4; i++)
		slots[i].request = block(i);
	slots[2].request.op = 9;
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 4), -EINVAL);
	assert_int_equal(lw_batch_status(rig.engine, rig.batch, &status), 0);
	assert_int_equal(status.tasks, 0);
	slots[2].request.op = LW_WRITE;
	slots[3].request.segment = 12345;
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 4), -EBADF);
	slots[3].request.segment = LW_SEGMENT_LOCAL;
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 4), 0);
	assert_int_equal(test_wait(rig.engine, rig.batch).state, LW_COMPLETED);
	assert_memory_equal(from, to, (size_t)4 * BLOCK);
	assert_int_equal(lw_batch_free(rig.engine, rig.batch), 0);
	assert_int_equal(lw_engine_close(rig.engine), 0);
}

static void test_submit_reserve_and_commit_bad_arguments_refused(void **state)
{
	struct rig rig = open_rig(66);
	struct lw_slot *slots = NULL;

	(void)state;
	assert_int_equal(lw_submit_reserve(NULL, rig.batch, 1, &slots), -EINVAL);
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch, 1, NULL), -EINVAL);
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch, 0, &slots), -EINVAL);
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch + 1, 1, &slots), -EBADF);
	assert_int_equal(lw_submit_commit(NULL, rig.batch, 1), -EINVAL);
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 0), -EINVAL);
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 65), -EINVAL);
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 67), -ENOSPC);
	assert_int_equal(lw_submit_commit(rig.channel, 0, 1), -EBADF);
	/* What was not reserved is not read. */
	assert_int_equal(lw_submit_commit(rig.channel, rig.batch, 1), -EINVAL);
	assert_null(slots);
	assert_int_equal(lw_batch_free(rig.engine, rig.batch), 0);
	assert_int_equal(lw_submit_reserve(rig.channel, rig.batch, 1, &slots), -EBADF);
	assert_int_equal(lw_engine_close(rig.engine), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_submit_reserve_fill_commit_moves_every_block),
		cmocka_unit_test(test_submit_commit_fewer_than_reserved_leaves_the_rest),
		cmocka_unit_test(test_submit_commit_wrong_request_takes_nothing_and_can_be_mended),
		cmocka_unit_test(test_submit_reserve_and_commit_bad_arguments_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
