/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/still.h"

static struct test_still *open_one; /* the driver's functions are given lanes alone */

static uint32_t number_of(const struct lw_lane *lane)
{
	return lane->index;
}

static bool look(struct lw_lane *lane, struct lw_look *out)
{
	*out = open_one->look[number_of(lane)];
	return true;
}

static int probe(struct lw_lane *lane, const struct lw_view *view, uint32_t way)
{
	(void)view;
	assert_int_equal(open_one->probed_way[number_of(lane)], LW_WAY_NONE);
	open_one->probed_way[number_of(lane)] = way;
	open_one->probes[number_of(lane)]++;
	return 0;
}

static void probe_end(struct lw_lane *lane)
{
	open_one->probed_way[number_of(lane)] = LW_WAY_NONE;
}

static void lane_close(struct lw_lane *lane)
{
	open_one->closes[number_of(lane)]++;
}

static const struct lw_driver_ops ops = {.size = sizeof(ops),
					 .name = "still",
					 .credits = TEST_STILL_CREDITS,
					 .lane_close = lane_close,
					 .look = look,
					 .probe = probe,
					 .probe_end = probe_end};

static void *zeroed(size_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	assert_non_null(memory);
	memset(memory, 0, size);
	return memory;
}

void test_still_open(struct test_still *still, uint32_t lanes, uint32_t ways)
{
	static struct lw_view view;

	memset(still, 0, sizeof(*still));
	open_one = still;
	still->engine = zeroed(sizeof(*still->engine));
	still->worker = zeroed(sizeof(*still->worker));
	still->path = zeroed(sizeof(*still->path));
	still->engine->config.slice_bytes = 4 << 20;
	still->engine->config.lane_bytes = 32 << 20;
	still->engine->config.lane_stall_ms = 300;
	still->engine->config.foreground_weight = 16;
	still->engine->worker_count = 1;
	still->engine->segments = zeroed(sizeof(*still->engine->segments));
	still->engine->tasks = zeroed(TEST_STILL_TASKS * sizeof(*still->engine->tasks));
	atomic_store(&still->engine->segments->view, &view);
	still->worker->engine = still->engine;
	still->worker->now_ms = 1000;
	still->worker->now_ns = UINT64_C(1000000000);
	still->worker->tally.batch = LW_INDEX_NONE;
	TAILQ_INIT(&still->worker->active);
	TAILQ_INIT(&still->worker->live);
	TAILQ_INIT(&still->worker->free_slices);
	LIST_INIT(&still->worker->dirty);
	lw_path_init(still->worker, still->path, 0, 0, 1);
	still->path->ways = ways;
	for (uint32_t i = 0; i < lanes; i++) {
		struct lw_lane *lane = zeroed(sizeof(*lane));

		TAILQ_INIT(&lane->inflight);
		lane->worker = still->worker;
		lane->path = still->path;
		lane->ops = &ops;
		lane->index = i;
		lane->credits = ops.credits;
		lane->fenced = true;
		lane->home = lane->way = i % ways;
		lane->last_way = LW_WAY_NONE;
		lane->watch.probe_way = LW_WAY_NONE;
		still->probed_way[i] = LW_WAY_NONE;
		still->lane[i] = lane;
		still->path->lane[still->path->lanes++] = lane;
		lw_lane_up(lane);
	}
}

void test_still_close(struct test_still *still)
{
	for (uint32_t i = 0; i < still->path->lanes; i++)
		free(still->lane[i]);
	free(still->engine->tasks);
	free(still->engine->segments);
	free(still->engine);
	free(still->worker);
	free(still->path);
}

void test_still_pass(struct test_still *still, uint32_t ms)
{
	while (ms-- > 0) {
		still->worker->now_ms++;
		still->worker->now_ns += 1000000;
		still->worker->looks = 32;
		lw_path_watch(still->worker, still->path);
	}
}

struct lw_slice *test_still_post(struct test_still *still, uint32_t number, uint32_t i, enum lw_op op, uint64_t length)
{
	struct lw_lane *lane = still->lane[number];
	struct lw_slice *slice = &still->slices[i];

	*slice = (struct lw_slice){
		.task = &still->engine->tasks[i], .length = length, .op = (uint8_t)op, .started = true};
	*slice->task = (struct lw_task){.length = length, .op = (uint8_t)op, .slices = 1};
	if (TAILQ_EMPTY(&lane->inflight))
		lane->watch.moved_ms = still->worker->now_ms;
	TAILQ_INSERT_TAIL(&lane->inflight, slice, link);
	lane->credits--;
	lane->path->inflight++;
	still->worker->hot++;
	lw_count(&lane->stats.inflight_bytes, length);
	return slice;
}

void test_still_end(struct test_still *still, struct lw_slice *slice)
{
	for (uint32_t i = 0; i < still->path->lanes; i++) {
		struct lw_lane *lane = still->lane[i];
		struct lw_slice *at;

		TAILQ_FOREACH(at, &lane->inflight, link)
		if (at == slice)
			break;
		if (at == NULL)
			continue;
		still->look[i].moved += slice->length;
		slice->task->slices++; /* the task goes on: it is none of a batch */
		still->path->held++;
		still->worker->slices_held++;
		lw_slice_done(lane, slice, LW_REASON_NONE);
		TAILQ_REMOVE(&still->worker->free_slices, slice, link); /* it is ours */
		return;
	}
	fail_msg("the slice is on no lane");
}
