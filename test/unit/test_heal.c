/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes that stand still, with a driver and a clock that do what the test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/still.h"

#define KIB ((uint64_t)1 << 10)
#define STALL_MS 300

static struct test_still still;

static int tear_down(void **state)
{
	(void)state;
	test_still_close(&still);
	return 0;
}

static unsigned stalls_of(uint32_t lane)
{
	return (unsigned)atomic_load(&still.lane[lane]->stats.stalls);
}

/* Slices end on a lane, one each 10 ms, for so long. */
static void go_on(uint32_t lane, uint32_t ms)
{
	for (uint32_t past = 0; past < ms; past += 10) {
		struct lw_slice *slice = test_still_post(&still, lane, 20 + lane, LW_READ, 100 * KIB);

		test_still_pass(&still, 5);
		test_still_end(&still, slice);
		test_still_post(&still, lane, 30 + lane, LW_READ, 1);
		test_still_pass(&still, 5);
		test_still_end(&still, &still.slices[30 + lane]);
	}
}

/* One lane of two has a slice and moves nothing, the other one works. */
static void test_lane_that_stands_still_beside_another_is_cut_and_moves(void **state)
{
	struct lw_slice *slice;

	(void)state;
	test_still_open(&still, 2, 2);
	slice = test_still_post(&still, 0, 0, LW_WRITE, 64 * KIB);
	go_on(1, STALL_MS - 50);
	assert_int_equal(still.closes[0], 0);
	go_on(1, 100);
	assert_int_equal(still.closes[0], 1);
	assert_int_equal(stalls_of(0), 1);
	assert_int_equal(lw_lane_state(still.lane[0]), LW_LANE_DOWN);
	/* At once, by the other lane's way. */
	assert_int_equal(still.lane[0]->way, 1);
	assert_int_equal(still.lane[0]->home, 0);
	assert_true(lw_before(still.lane[0]->retry_at_ms, still.worker->now_ms));
	/* Its WRITE waits for the fence of this lane's next connection, and has attempts left. */
	assert_ptr_equal(TAILQ_FIRST(&still.path->retry), slice);
	assert_ptr_equal(slice->only, still.lane[0]);
	assert_in_range(slice->attempts, 0, 1);
	assert_true(still.path->active);
	assert_int_equal(still.closes[1], 0);
}

static void test_slices_that_can_go_elsewhere_are_free_to(void **state)
{
	struct lw_slice *slice;

	(void)state;
	test_still_open(&still, 2, 2);
	slice = test_still_post(&still, 0, 0, LW_READ, 64 * KIB);
	test_still_post(&still, 0, 1, LW_WRITE, 64 * KIB)->started = false;
	go_on(1, STALL_MS + 50);
	assert_int_equal(still.closes[0], 1);
	assert_null(slice->only);
	assert_null(still.slices[1].only);
	assert_ptr_equal(lw_path_choose(still.worker, still.path, LW_LANES_ALL, slice->length, LW_FOREGROUND, true),
			 still.lane[1]);
}

/* The peer is stopped: its kernel answers, nothing moves anywhere. */
static void test_peer_that_stands_still_on_all_lanes_loses_none(void **state)
{
	(void)state;
	test_still_open(&still, 2, 2);
	test_still_post(&still, 0, 0, LW_WRITE, 64 * KIB);
	test_still_post(&still, 1, 1, LW_READ, 64 * KIB);
	for (int i = 0; i < 100; i++) {
		test_still_pass(&still, 100);
		for (uint32_t k = 0; k < 2; k++) {
			if (still.probed_way[k] == LW_WAY_NONE)
				continue;
			assert_int_equal(still.probed_way[k], still.lane[k]->way);
			still.probed_way[k] = LW_WAY_NONE;
			lw_lane_probed(still.lane[k], true);
		}
	}
	assert_int_equal(still.closes[0] + still.closes[1], 0);
	/* It was asked, less and less often. */
	assert_in_range(still.probes[0], 2, 20);
}

/* The peer was stopped, and serves one lane before the other when it goes on: that is no time in which it could have
 * served both. */
static void test_first_slice_after_the_peer_stood_still_is_no_proof(void **state)
{
	struct lw_slice *slice;

	(void)state;
	test_still_open(&still, 2, 2);
	test_still_post(&still, 0, 0, LW_WRITE, 64 * KIB);
	slice = test_still_post(&still, 1, 1, LW_READ, 64 * KIB);
	for (int i = 0; i < 20; i++) {
		test_still_pass(&still, STALL_MS / 3);
		for (uint32_t k = 0; k < 2; k++) {
			if (still.probed_way[k] == LW_WAY_NONE)
				continue;
			still.probed_way[k] = LW_WAY_NONE;
			lw_lane_probed(still.lane[k], true);
		}
	}
	test_still_end(&still, slice);
	go_on(1, STALL_MS - 50);
	assert_int_equal(still.closes[0], 0);
	/* But if it goes on and on beside it, it is. */
	go_on(1, 150);
	assert_int_equal(still.closes[0], 1);
}

static void test_lone_lane_of_a_dead_way_moves_to_the_next(void **state)
{
	(void)state;
	test_still_open(&still, 1, 2);
	test_still_post(&still, 0, 0, LW_WRITE, 64 * KIB);
	still.look[0].silent = true;
	test_still_pass(&still, STALL_MS - 20);
	assert_int_equal(still.closes[0], 0);
	test_still_pass(&still, 50);
	assert_int_equal(still.closes[0], 1);
	assert_int_equal(still.lane[0]->way, 1);
}

/* What is awaited is the peer's answer: nothing of ours is unconfirmed. */
static void test_lone_lane_whose_own_way_gives_no_answer_moves_on(void **state)
{
	(void)state;
	test_still_open(&still, 1, 2);
	test_still_post(&still, 0, 0, LW_READ, 64 * KIB);
	test_still_pass(&still, STALL_MS + 50);
	assert_int_equal(still.probed_way[0], 0);
	assert_int_equal(still.closes[0], 0);
	test_still_pass(&still, STALL_MS + 50);
	assert_int_equal(still.closes[0], 1);
	assert_int_equal(still.lane[0]->way, 1);
	assert_int_equal(still.probed_way[0], LW_WAY_NONE);
}

static void test_lone_lane_with_one_way_keeps_it(void **state)
{
	(void)state;
	test_still_open(&still, 1, 1);
	test_still_post(&still, 0, 0, LW_WRITE, 64 * KIB);
	still.look[0].silent = true;
	test_still_pass(&still, 20 * STALL_MS);
	assert_int_equal(still.closes[0] + still.probes[0], 0);
}

/* Nobody would end the old connection before the new one serves: the WRITE could arrive twice. */
static void test_lane_without_a_fence_keeps_a_write_that_was_begun(void **state)
{
	(void)state;
	test_still_open(&still, 2, 2);
	still.lane[0]->fenced = false;
	test_still_post(&still, 0, 0, LW_WRITE, 64 * KIB);
	go_on(1, 5 * STALL_MS);
	assert_int_equal(still.closes[0], 0);
	test_still_end(&still, &still.slices[0]);
	test_still_post(&still, 0, 0, LW_READ, 64 * KIB);
	go_on(1, STALL_MS + 50);
	assert_int_equal(still.closes[0], 1);
}

static void test_lane_with_the_setting_off_is_never_cut(void **state)
{
	(void)state;
	test_still_open(&still, 2, 2);
	still.engine->config.lane_stall_ms = 0;
	test_still_post(&still, 0, 0, LW_READ, 64 * KIB);
	still.look[0].silent = true;
	go_on(1, 10 * STALL_MS);
	assert_int_equal(still.closes[0], 0);
}

static void test_slow_lane_on_which_bytes_move_is_not_cut(void **state)
{
	(void)state;
	test_still_open(&still, 2, 2);
	test_still_post(&still, 0, 0, LW_WRITE, 4096 * KIB);
	for (int i = 0; i < 20; i++) {
		go_on(1, STALL_MS / 2);
		still.look[0].moved += 100;
	}
	assert_int_equal(still.closes[0], 0);
}

/* We did not run for seconds: that says nothing of the lanes. */
static void test_pause_of_our_own_is_no_standstill(void **state)
{
	(void)state;
	test_still_open(&still, 2, 2);
	test_still_post(&still, 0, 0, LW_READ, 64 * KIB);
	test_still_post(&still, 1, 1, LW_READ, 64 * KIB);
	test_still_pass(&still, 20);
	still.worker->now_ms += 5000;
	still.worker->now_ns += UINT64_C(5000000000);
	test_still_end(&still, &still.slices[1]);
	test_still_post(&still, 1, 1, LW_READ, 64 * KIB);
	test_still_pass(&still, 50);
	assert_int_equal(still.closes[0] + still.closes[1], 0);
}

static void test_lane_that_is_away_asks_for_home_and_goes_when_it_is_empty(void **state)
{
	struct lw_slice *slice;

	(void)state;
	test_still_open(&still, 2, 2);
	still.lane[0]->way = 1;
	slice = test_still_post(&still, 0, 0, LW_READ, 64 * KIB);
	test_still_pass(&still, 40);
	assert_int_equal(still.probed_way[0], 0);
	/* No answer: asked again, all the time. */
	for (int i = 0; i < 8; i++) {
		test_still_pass(&still, 250);
		still.look[0].moved++;
	}
	assert_in_range(still.probes[0], 8, 20);
	assert_int_equal(still.closes[0], 0);
	still.probed_way[0] = LW_WAY_NONE;
	lw_lane_probed(still.lane[0], true);
	assert_ptr_equal(lw_path_choose(still.worker, still.path, LW_LANES_ALL, 1000, LW_FOREGROUND, false),
			 still.lane[1]);
	test_still_pass(&still, 100);
	assert_int_equal(still.closes[0], 0);
	test_still_end(&still, slice);
	test_still_pass(&still, 2);
	assert_int_equal(still.closes[0], 1);
	assert_int_equal(still.lane[0]->way, 0);
	assert_int_equal(stalls_of(0), 0);
}

static void test_lane_that_goes_home_takes_what_does_not_end_along(void **state)
{
	(void)state;
	test_still_open(&still, 2, 2);
	still.lane[0]->way = 1;
	test_still_post(&still, 0, 0, LW_WRITE, 64 * KIB);
	test_still_pass(&still, 40);
	still.probed_way[0] = LW_WAY_NONE;
	lw_lane_probed(still.lane[0], true);
	test_still_pass(&still, 200);
	assert_int_equal(still.closes[0], 0);
	test_still_pass(&still, 100);
	assert_int_equal(still.closes[0], 1);
	assert_int_equal(still.lane[0]->way, 0);
	assert_ptr_equal(TAILQ_FIRST(&still.path->retry), &still.slices[0]);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_lane_that_stands_still_beside_another_is_cut_and_moves),
		TEST(test_slices_that_can_go_elsewhere_are_free_to),
		TEST(test_peer_that_stands_still_on_all_lanes_loses_none),
		TEST(test_first_slice_after_the_peer_stood_still_is_no_proof),
		TEST(test_lone_lane_of_a_dead_way_moves_to_the_next),
		TEST(test_lone_lane_whose_own_way_gives_no_answer_moves_on),
		TEST(test_lone_lane_with_one_way_keeps_it),
		TEST(test_lane_without_a_fence_keeps_a_write_that_was_begun),
		TEST(test_lane_with_the_setting_off_is_never_cut),
		TEST(test_slow_lane_on_which_bytes_move_is_not_cut),
		TEST(test_pause_of_our_own_is_no_standstill),
		TEST(test_lane_that_is_away_asks_for_home_and_goes_when_it_is_empty),
		TEST(test_lane_that_goes_home_takes_what_does_not_end_along),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
