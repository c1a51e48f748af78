/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that did not run for a while: what is asked of it afterwards has all the time that it was given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/fake.h"
#include "common/stall.h"

#define PAUSE_MS 1500
#define LIMIT_MS 1000

struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	struct test_fake *fake; /* answers nothing */
	unsigned char *memory;
	lw_batch_t batch;
};

static struct rig open_rig(const char *settings)
{
	struct rig rig = {.engine = test_engine(settings), .fake = test_fake_open(), .memory = test_map(4096, NULL)};

	test_register(rig.engine, rig.memory, 4096, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_open(rig.engine, &rig.channel), 0);
	assert_int_equal(lw_batch_alloc(rig.channel, 1, 0, NULL, &rig.batch), 0);
	return rig;
}

static void submit(struct rig *rig)
{
	struct lw_request request = {
		.local = rig->memory, .offset = TEST_FAKE_ADDR, .length = 100, .timeout_ms = LIMIT_MS, .op = LW_READ};

	assert_int_equal(lw_segment_open(rig->engine, test_fake_name(rig->fake), 0, &request.segment), 0);
	assert_int_equal(lw_submit(rig->channel, rig->batch, &request, 1), 0);
}

/* The request ends by its deadline, counted from begin_ms, and not sooner. */
static void assert_ends_in_time(struct rig *rig, uint64_t begin_ms)
{
	struct lw_task_status task;

	assert_int_equal(test_wait(rig->engine, rig->batch).failed, 1);
	assert_in_range(test_now_ms() - begin_ms, LIMIT_MS - 10, LIMIT_MS + 5000);
	assert_int_equal(lw_task_status(rig->engine, rig->batch, 0, &task), 0);
	assert_int_equal(task.state, LW_TIMEOUT);
}

static void close_rig(struct rig *rig)
{
	assert_int_equal(lw_batch_free(rig->engine, rig->batch), 0);
	assert_int_equal(lw_engine_close(rig->engine), 0);
	test_fake_close(rig->fake);
	test_unmap(rig->memory, 4096);
}

static void test_deadline_of_a_request_after_the_caller_paused_is_whole(void **state)
{
	struct rig rig = open_rig("drivers=tcp poll=caller");
	uint64_t begin_ms;

	(void)state;
	for (int i = 0; i < 100; i++)
		lw_engine_progress(rig.engine);
	test_sleep_ms(PAUSE_MS);
	begin_ms = test_now_ms();
	submit(&rig);
	assert_ends_in_time(&rig, begin_ms);
	close_rig(&rig);
}

static void test_deadline_of_a_request_after_the_worker_stood_still_is_whole(void **state)
{
	struct rig rig = open_rig("drivers=tcp workers=1");
	struct test_stall stall;
	uint64_t begin_ms;

	(void)state;
	test_stall_begin(&stall, rig.engine, 0);
	submit(&rig);
	test_sleep_ms(PAUSE_MS);
	begin_ms = test_now_ms();
	test_stall_end(&stall);
	assert_ends_in_time(&rig, begin_ms);
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_deadline_of_a_request_after_the_caller_paused_is_whole),
		cmocka_unit_test(test_deadline_of_a_request_after_the_worker_stood_still_is_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
