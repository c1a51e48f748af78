/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer offers after it was opened: found by the first request that needs it, or asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/lanewise.h>

#include "common/bytes.h"
#include "common/engines.h"

#define AREA 65536u
#define PART 4096u

struct pair {
	struct lw_engine *a, *b;
	struct lw_channel *channel;
	lw_segment_t segment;
	unsigned char *local, *remote; /* remote is not registered as a whole */
};

static struct pair open_pair(const char *extra)
{
	struct pair pair = {.a = test_engine(extra), .b = test_engine("drivers=tcp")};

	pair.local = test_map(AREA, NULL);
	pair.remote = test_map(AREA, NULL);
	test_fill(pair.local, AREA, 1);
	test_register(pair.a, pair.local, AREA, LW_ACCESS_LOCAL);
	test_register(pair.b, pair.remote, PART, LW_ACCESS_REMOTE);
	assert_int_equal(lw_channel_self(pair.a, &pair.channel), 0);
	pair.segment = test_segment(pair.a, pair.b);
	return pair;
}

static void close_pair(struct pair *pair)
{
	lw_engine_close(pair->a);
	lw_engine_close(pair->b);
	test_unmap(pair->local, AREA);
	test_unmap(pair->remote, AREA);
}

static struct lw_request write_at(const struct pair *pair, size_t offset, size_t length)
{
	return (struct lw_request){.local = pair->local + offset,
				   .segment = pair->segment,
				   .offset = (uint64_t)(uintptr_t)(pair->remote + offset),
				   .length = length,
				   .op = LW_WRITE};
}

static struct lw_task_status move(struct pair *pair, size_t offset, size_t length)
{
	return test_transfer(pair->a, pair->channel, write_at(pair, offset, length));
}

static void test_buffer_registered_after_open_found_by_the_first_request(void **state)
{
	struct pair pair = open_pair("drivers=tcp");

	(void)state;
	for (size_t i = 1; i < 8; i++) {
		test_register(pair.b, pair.remote + i * PART, PART, LW_ACCESS_REMOTE);
		assert_int_equal(move(&pair, i * PART, PART).state, LW_COMPLETED);
		assert_memory_equal(pair.remote + i * PART, pair.local + i * PART, PART);
	}
	/* Over old and new ones. */
	assert_int_equal(move(&pair, 0, 8 * PART).state, LW_COMPLETED);
	assert_memory_equal(pair.remote, pair.local, 8 * PART);
	close_pair(&pair);
}

static void test_range_nobody_registered_fails_and_delays_no_other(void **state)
{
	enum { TASKS = 64 };
	struct pair pair = open_pair("drivers=tcp");
	struct lw_request list[TASKS];
	lw_batch_t batch;

	(void)state;
	for (size_t i = 0; i < TASKS; i++)
		list[i] = write_at(&pair, i % 2 == 0 ? 0 : 2 * PART, PART);
	assert_int_equal(lw_batch_alloc(pair.channel, TASKS, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(pair.channel, batch, list, TASKS), 0);
	assert_int_equal(test_wait(pair.a, batch).failed, TASKS / 2);
	for (uint32_t i = 0; i < TASKS; i++) {
		struct lw_task_status task;

		assert_int_equal(lw_task_status(pair.a, batch, i, &task), 0);
		assert_int_equal(task.error, i % 2 == 0 ? 0 : -EACCES);
	}
	assert_int_equal(lw_batch_free(pair.a, batch), 0);
	close_pair(&pair);
}

/* The peer's control thread answers nothing for as long as its engine is held in a call. Here it is stopped by a peer
 * that is no engine at all: the request waits, and ends by its deadline or its cancel. */
static void test_peer_that_does_not_answer_deadline_and_cancel_count(void **state)
{
	struct pair pair = open_pair("drivers=tcp handshake_timeout_ms=60000");
	struct lw_request request = write_at(&pair, 2 * PART, PART);
	struct lw_task_status status;
	lw_batch_t batch;

	(void)state;
	lw_engine_close(pair.b);
	request.timeout_ms = 50;
	status = test_transfer(pair.a, pair.channel, request);
	assert_true(status.state == LW_TIMEOUT || status.state == LW_FAILED);
	request.timeout_ms = 0;
	assert_int_equal(lw_batch_alloc(pair.channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(pair.channel, batch, &request, 1), 0);
	assert_int_equal(lw_batch_cancel(pair.a, batch), 0);
	assert_int_equal(test_wait(pair.a, batch).failed, 1);
	assert_int_equal(lw_batch_free(pair.a, batch), 0);
	pair.b = test_engine("drivers=tcp");
	close_pair(&pair);
}

static void test_refresh_off_fails_at_once(void **state)
{
	struct pair pair = open_pair("drivers=tcp refresh=off");
	struct lw_segment_range range[2];

	(void)state;
	test_register(pair.b, pair.remote + PART, PART, LW_ACCESS_REMOTE);
	assert_int_equal(move(&pair, PART, PART).reason, LW_REASON_REMOTE_RANGE);
	assert_int_equal(lw_segment_ranges(pair.a, pair.segment, range, 2), 1);
	assert_int_equal(lw_segment_refresh(pair.a, pair.segment, 0), 0);
	assert_int_equal(lw_segment_ranges(pair.a, pair.segment, range, 2), 2);
	assert_int_equal(move(&pair, PART, PART).state, LW_COMPLETED);
	close_pair(&pair);
}

static void test_refused_range_is_not_believed_in_any_more(void **state)
{
	struct pair pair = open_pair("drivers=tcp");
	struct lw_segment_range range;
	lw_buffer_t buffer;

	(void)state;
	buffer = test_register(pair.b, pair.remote + 2 * PART, PART, LW_ACCESS_REMOTE);
	assert_int_equal(move(&pair, 2 * PART, PART).state, LW_COMPLETED);
	assert_int_equal(lw_memory_unregister(pair.b, &buffer, 1, 0), 0);
	assert_int_equal(move(&pair, 2 * PART, PART).error, -EACCES);
	TEST_EVENTUALLY(lw_segment_ranges(pair.a, pair.segment, &range, 1) == 1);
	close_pair(&pair);
}

static void test_lw_segment_refresh_errors(void **state)
{
	struct pair pair = open_pair("drivers=tcp,null");
	lw_segment_t null_segment;

	(void)state;
	assert_int_equal(lw_segment_refresh(NULL, pair.segment, 0), -EINVAL);
	assert_int_equal(lw_segment_refresh(pair.a, pair.segment + 1, 0), -EBADF);
	assert_int_equal(lw_segment_refresh(pair.a, LW_SEGMENT_LOCAL, 0), 0);
	assert_int_equal(lw_segment_open(pair.a, "null://", 0, &null_segment), 0);
	assert_int_equal(lw_segment_refresh(pair.a, null_segment, 0), -ENOTSUP);
	assert_int_equal(lw_segment_close(pair.a, pair.segment), 0);
	assert_int_equal(lw_segment_refresh(pair.a, pair.segment, 0), -EBADF);
	pair.segment = test_segment(pair.a, pair.b);
	lw_engine_close(pair.b);
	assert_int_equal(lw_segment_refresh(pair.a, pair.segment, 0), -ECONNREFUSED);
	pair.b = test_engine("drivers=tcp");
	close_pair(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_buffer_registered_after_open_found_by_the_first_request),
		cmocka_unit_test(test_range_nobody_registered_fails_and_delays_no_other),
		cmocka_unit_test(test_peer_that_does_not_answer_deadline_and_cancel_count),
		cmocka_unit_test(test_refresh_off_fails_at_once),
		cmocka_unit_test(test_refused_range_is_not_believed_in_any_more),
		cmocka_unit_test(test_lw_segment_refresh_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
