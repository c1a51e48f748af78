/* SPDX-License-Identifier: Apache-2.0 */
/* Which lane takes a slice, how long that is, and whose turn it is; with lanes of rates that the test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/still.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static struct test_still still;

static int tear_down(void **state)
{
	(void)state;
	test_still_close(&still);
	return 0;
}

static void set_rate(uint32_t lane, uint64_t rate)
{
	atomic_store(&still.lane[lane]->rate, rate);
}

static struct lw_lane *choose(uint64_t length, enum lw_priority priority)
{
	return lw_path_choose(still.worker, still.path, LW_LANES_ALL, length, priority, false);
}

static uint64_t inflight(uint32_t lane)
{
	return atomic_load(&still.lane[lane]->stats.inflight_bytes);
}

static void hold(uint32_t lane, uint64_t bytes)
{
	atomic_store(&still.lane[lane]->stats.inflight_bytes, bytes);
}

static void test_lone_lane_takes_all_up_to_its_bound(void **state)
{
	struct lw_task task = {.length = 100 * MIB};

	(void)state;
	test_still_open(&still, 1, 1);
	assert_int_equal(lw_path_slice_length(still.worker, still.path, still.lane[0], &task, 0), 4 * MIB);
	hold(0, 32 * MIB - 1);
	assert_ptr_equal(choose(100 * MIB, LW_FOREGROUND), still.lane[0]);
	hold(0, 32 * MIB);
	assert_null(choose(1, LW_FOREGROUND));
	hold(0, 0);
	still.lane[0]->credits = 0;
	assert_null(choose(1, LW_FOREGROUND));
}

static void test_small_request_goes_where_it_ends_first_and_stays_whole(void **state)
{
	struct lw_task task = {.length = 100 * KIB};

	(void)state;
	test_still_open(&still, 2, 2);
	set_rate(0, 25000000);
	set_rate(1, 100000000);
	assert_ptr_equal(choose(4 * KIB, LW_FOREGROUND), still.lane[1]);
	hold(1, 300 * KIB);
	assert_ptr_equal(choose(4 * KIB, LW_FOREGROUND), still.lane[0]);
	hold(0, 100 * KIB);
	assert_ptr_equal(choose(4 * KIB, LW_FOREGROUND), still.lane[1]);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(lw_path_slice_length(still.worker, still.path, still.lane[i], &task, 0), 100 * KIB);
}

static void test_what_the_peer_must_see_whole_stays_whole(void **state)
{
	struct lw_task task = {.length = 4 * MIB, .flags = LW_TASK_MISSED, .priority = LW_BULK};

	(void)state;
	test_still_open(&still, 2, 2);
	set_rate(0, 25000000);
	assert_int_equal(lw_path_slice_length(still.worker, still.path, still.lane[0], &task, 0), 4 * MIB);
}

/* Two lanes work off one request, each at its own rate; in virtual time. How long it takes, in seconds. */
static double work_off(uint64_t length, const uint64_t rate[2], uint64_t bytes[2])
{
	struct lw_task task = {.length = length};
	uint64_t queue[2][TEST_STILL_CREDITS] = {{0}}, cut = 0;
	uint32_t first[2] = {0}, last[2] = {0};
	double end[2] = {0}, now = 0;

	bytes[0] = bytes[1] = 0;
	hold(0, 0);
	hold(1, 0);
	still.path->waiting[0].bytes = length;
	while (cut < length || inflight(0) + inflight(1) > 0) {
		struct lw_lane *lane = cut < length ? choose(length - cut, LW_FOREGROUND) : NULL;
		uint32_t i = lane == still.lane[1];
		uint64_t here;

		if (lane != NULL) {
			here = lw_path_slice_length(still.worker, still.path, lane, &task, cut);
			assert_in_range(here, 1, 4 * MIB);
			if (first[i] == last[i])
				end[i] = now + (double)here / (double)rate[i];
			queue[i][last[i]++ % TEST_STILL_CREDITS] = here;
			assert_true(last[i] - first[i] < TEST_STILL_CREDITS);
			cut += here;
			still.path->waiting[0].bytes -= here;
			hold(i, inflight(i) + here);
			bytes[i] += here;
			continue;
		}
		/* The next slice ends. */
		i = first[0] == last[0] || (first[1] != last[1] && end[1] < end[0]);
		assert_true(first[i] != last[i]);
		now = end[i];
		hold(i, inflight(i) - queue[i][first[i]++ % TEST_STILL_CREDITS]);
		if (first[i] != last[i])
			end[i] = now + (double)queue[i][first[i] % TEST_STILL_CREDITS] / (double)rate[i];
	}
	return now;
}

static void test_request_over_lanes_of_1_to_4_takes_as_long_as_their_sum_needs(void **state)
{
	static const uint64_t rates[][2] = {{25000000, 100000000}, {100000000, 25000000}, {1000000000, 1000000000}};
	static const uint64_t lengths[] = {8 * MIB, 64 * MIB, 512 * MIB};
	uint64_t bytes[2];

	(void)state;
	test_still_open(&still, 2, 2);
	for (size_t i = 0; i < 3; i++) {
		for (size_t k = 0; k < 3; k++) {
			double sum = (double)(rates[i][0] + rates[i][1]), took;

			set_rate(0, rates[i][0]);
			set_rate(1, rates[i][1]);
			took = work_off(lengths[k], rates[i], bytes);
			print_message("%u MiB at %u and %u MB/s: %.1f ms, %.3f of the sum\n",
				      (unsigned)(lengths[k] / MIB), (unsigned)(rates[i][0] / 1000000),
				      (unsigned)(rates[i][1] / 1000000), took * 1e3, (double)lengths[k] / took / sum);
			/* A few ms at the end are one lane's alone. */
			assert_true(took < (double)lengths[k] / sum + 0.006);
		}
	}
}

/* The lane was thought to be as fast as the other one, and is not: it holds little, so that costs little. */
static void test_lane_slower_than_thought_holds_up_little(void **state)
{
	static const uint64_t rates[2] = {10000000, 100000000};
	uint64_t bytes[2];
	double took;

	(void)state;
	test_still_open(&still, 2, 2);
	set_rate(0, 100000000);
	set_rate(1, 100000000);
	took = work_off(256 * MIB, rates, bytes);
	assert_true(took < 256.0 * (double)MIB / 110e6 * 1.06);
	assert_true(bytes[0] < bytes[1] / 8);
}

static void test_bulk_leaves_room_that_the_foreground_takes(void **state)
{
	struct lw_lane *lane;

	(void)state;
	test_still_open(&still, 1, 1);
	lane = still.lane[0];
	lane->bulk_bytes = 2 * MIB;
	hold(0, 2 * MIB);
	assert_null(choose(MIB, LW_BULK));
	assert_ptr_equal(choose(MIB, LW_FOREGROUND), lane);
	lane->bulk_bytes = MIB;
	assert_ptr_equal(choose(MIB, LW_BULK), lane);
	/* More, where the way itself holds it. */
	lane->bulk_bytes = 2 * MIB;
	set_rate(0, 1000000000);
	lane->watch.min_rtt_us = 10000;
	assert_ptr_equal(choose(MIB, LW_BULK), lane);
	/* And not the last credits. */
	lane->credits = TEST_STILL_CREDITS / 16;
	assert_null(choose(1, LW_BULK));
	assert_ptr_equal(choose(1, LW_FOREGROUND), lane);
}

static void test_turns_of_classes_follow_the_weight(void **state)
{
	uint64_t bytes[2] = {0};

	(void)state;
	test_still_open(&still, 1, 1);
	still.engine->config.foreground_weight = 4;
	assert_int_equal(lw_path_turn(still.worker, still.path), LW_FOREGROUND);
	still.path->waiting[LW_BULK].head = 0;
	assert_int_equal(lw_path_turn(still.worker, still.path), LW_BULK);
	still.path->waiting[LW_FOREGROUND].head = 1;
	for (int i = 0; i < 100000; i++) {
		uint32_t turn = lw_path_turn(still.worker, still.path);
		uint64_t length = turn == LW_BULK ? 512 * KIB : 4 * KIB;

		bytes[turn] += length;
		lw_path_turn_done(still.worker, still.path, turn, length);
	}
	assert_in_range(bytes[LW_FOREGROUND], bytes[LW_BULK] * 39 / 10, bytes[LW_BULK] * 41 / 10);
}

static void test_rate_is_that_of_the_time_in_which_the_lane_was_busy(void **state)
{
	(void)state;
	test_still_open(&still, 2, 2);
	test_still_post(&still, 0, 0, LW_WRITE, 4 * MIB);
	/* 50 bytes a microsecond, for 500 ms. */
	for (int i = 0; i < 500; i++) {
		still.look[0].moved += 50000;
		test_still_pass(&still, 1);
	}
	assert_in_range(atomic_load(&still.lane[0]->rate), 48000000, 52000000);
	/* Then now and then one small request: that does not make it slow. */
	test_still_end(&still, &still.slices[0]);
	for (int i = 0; i < 50; i++) {
		test_still_post(&still, 0, 1, LW_WRITE, 4 * KIB);
		test_still_pass(&still, 1);
		test_still_end(&still, &still.slices[1]);
		test_still_pass(&still, 20);
	}
	assert_in_range(atomic_load(&still.lane[0]->rate), 48000000, 520000000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_lone_lane_takes_all_up_to_its_bound),
		TEST(test_small_request_goes_where_it_ends_first_and_stays_whole),
		TEST(test_what_the_peer_must_see_whole_stays_whole),
		TEST(test_request_over_lanes_of_1_to_4_takes_as_long_as_their_sum_needs),
		TEST(test_lane_slower_than_thought_holds_up_little),
		TEST(test_bulk_leaves_room_that_the_foreground_takes),
		TEST(test_turns_of_classes_follow_the_weight),
		TEST(test_rate_is_that_of_the_time_in_which_the_lane_was_busy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
