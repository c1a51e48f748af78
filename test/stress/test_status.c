/* SPDX-License-Identifier: Apache-2.0 */
/* Who looks at a batch while requests are being submitted to it never sees an end that has not come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "common/engines.h"

#define ROUNDS 30000

static _Atomic lw_batch_t shown;
static _Atomic bool end;
static char memory[64];

struct looker {
	struct lw_engine *engine;
	uint64_t looks, wrong_batch, wrong_task;
};

/* Nobody drives the engine while a batch is shown: nothing of it can end. */
static void *look(void *arg)
{
	struct looker *looker = arg;

	for (; !atomic_load(&end); looker->looks++) {
		lw_batch_t batch = atomic_load(&shown);
		struct lw_batch_status status;
		struct lw_task_status task;

		if (batch == 0)
			continue;
		if (lw_batch_status(looker->engine, batch, &status) == 0 && status.tasks != 0 &&
		    (status.state != LW_PENDING || status.done != 0) && atomic_load(&shown) == batch)
			looker->wrong_batch++;
		if (lw_task_status(looker->engine, batch, 0, &task) == 0 && task.state != LW_PENDING &&
		    atomic_load(&shown) == batch)
			looker->wrong_task++;
	}
	return NULL;
}

static void test_status_beside_the_first_submit_shows_no_end(void **state)
{
	struct looker looker = {.engine = test_engine("poll=caller")};
	struct lw_request request = {.local = memory, .length = sizeof(memory), .op = LW_WRITE};
	struct lw_channel *channel;
	pthread_t thread;

	(void)state;
	test_register(looker.engine, memory, sizeof(memory), LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_open(looker.engine, &channel), 0);
	assert_int_equal(lw_segment_open(looker.engine, "null://", 0, &request.segment), 0);
	assert_int_equal(pthread_create(&thread, NULL, look, &looker), 0);
	for (int i = 0; i < ROUNDS; i++) {
		lw_batch_t batch;

		assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &batch), 0);
		atomic_store(&shown, batch);
		assert_int_equal(lw_submit(channel, batch, &request, 1), 0);
		atomic_store(&shown, 0);
		assert_int_equal(test_wait(looker.engine, batch).state, LW_COMPLETED);
		assert_int_equal(lw_batch_free(looker.engine, batch), 0);
	}
	atomic_store(&end, true);
	pthread_join(thread, NULL);
	print_message("%llu looks\n", (unsigned long long)looker.looks);
	assert_int_equal(looker.wrong_batch, 0);
	assert_int_equal(looker.wrong_task, 0);
	assert_int_equal(lw_engine_close(looker.engine), 0);
}

static void test_batch_alloc_takes_back_freed_batches_that_nobody_polled(void **state)
{
	struct lw_engine *engine = test_engine("max_tasks=1024 max_batches=4096");
	struct lw_request request = {.local = memory, .length = sizeof(memory), .op = LW_WRITE};
	struct lw_channel *channel;

	(void)state;
	test_register(engine, memory, sizeof(memory), LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_open(engine, &channel), 0);
	assert_int_equal(lw_segment_open(engine, "null://", 0, &request.segment), 0);
	for (int i = 0; i < 2000; i++) {
		lw_batch_t batch = 0;

		/* The last one's slot may be on its way back still. */
		TEST_EVENTUALLY(lw_batch_alloc(channel, 64, LW_BATCH_EVENT, NULL, &batch) == 0);
		assert_int_equal(lw_submit(channel, batch, &request, 1), 0);
		test_wait(engine, batch);
		assert_int_equal(lw_batch_free(engine, batch), 0);
	}
	assert_int_equal(lw_engine_close(engine), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_status_beside_the_first_submit_shows_no_end),
		cmocka_unit_test(test_batch_alloc_takes_back_freed_batches_that_nobody_polled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
