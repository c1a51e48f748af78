/* SPDX-License-Identifier: Apache-2.0 */
/* Which class is next, which lane takes a slice, and how long that is. */
#include "lib/sched/path_pvt.h"
#include "lib/sched/stage.h"

#define SMALL_BYTES ((uint64_t)64 << 10)  /* the next lane takes it, whatever it holds */
#define LEAST_BYTES ((uint64_t)128 << 10) /* no slice of several is cut shorter */
#define RATE_GUESS UINT64_C(125000000)    /* of a lane that was not measured yet */
#define SLICE_NS 4000000                  /* a lane moves a slice in so long */
#define HOLD_NS 12000000                  /* and what it holds, and two round trips */
#define LATE_MS 50                        /* a lane on which nothing moved for longer is that much later */
#define BULK_PARTS 8                      /* of slice_bytes: slices of bulk */
#define BULK_HELD 2                       /* of slice_bytes: what a lane holds of bulk */
#define TURN_BYTES ((int64_t)64 << 10)    /* of bulk: what the foreground's lead is counted in */

static uint64_t rate_of(const struct lw_lane *lane)
{
	uint64_t rate = atomic_load_explicit(&lane->rate, memory_order_relaxed);

	return rate != 0 ? rate : RATE_GUESS;
}

static uint64_t inflight_of(const struct lw_lane *lane)
{
	return atomic_load_explicit(&lane->stats.inflight_bytes, memory_order_relaxed);
}

static uint64_t bytes_in(uint64_t rate, uint64_t ns)
{
	return (uint64_t)((double)rate * (double)ns / 1e9);
}

/* The longest slice of this class for the lane. */
static uint64_t longest(const struct lw_worker *worker, const struct lw_path *path, const struct lw_lane *lane,
			uint32_t priority)
{
	uint64_t most = lw_path_slice_most(worker, path), timed;

	if (priority == LW_BULK)
		most = most / BULK_PARTS > LEAST_BYTES ? most / BULK_PARTS : most < LEAST_BYTES ? most : LEAST_BYTES;
	if (path->lanes < 2 || lane->ops->look == NULL)
		return most;
	timed = bytes_in(rate_of(lane), SLICE_NS);
	timed = timed > LEAST_BYTES ? timed : LEAST_BYTES;
	return timed < most ? timed : most;
}

/* Whether the lane may have so many bytes more of bulk: what the foreground would find before it is bounded. */
static bool bulk_fits(const struct lw_worker *worker, const struct lw_lane *lane, uint64_t length)
{
	uint64_t trip_ns = (uint64_t)lane->watch.min_rtt_us * 1000;
	uint64_t most = worker->engine->config.slice_bytes / BULK_HELD +
			bytes_in(atomic_load_explicit(&lane->rate, memory_order_relaxed), trip_ns);

	return lane->credits > lane->ops->credits / 16 && (lane->bulk_bytes == 0 || lane->bulk_bytes + length <= most);
}

static bool is_open(const struct lw_lane *lane)
{
	return lw_lane_state(lane) == LW_LANE_UP && !lane->watch.leaving;
}

/* When the lane would be done with so many bytes more, in nanoseconds from now. */
static double finish_of(const struct lw_worker *worker, const struct lw_lane *lane, uint64_t length)
{
	double ns = (double)(inflight_of(lane) + length) * 1e9 / (double)rate_of(lane);
	uint32_t still_ms = worker->now_ms - lane->watch.moved_ms;

	if (lane->credits != lane->ops->credits && still_ms > LATE_MS && (int32_t)still_ms > 0)
		ns += (double)still_ms * 1e6;
	return ns;
}

/* Whether the lane may take it: a slow one holds little that others would have to wait for, or to take over. */
static bool has_room(const struct lw_worker *worker, const struct lw_path *path, const struct lw_lane *lane,
		     uint64_t length, uint32_t priority, bool urgent)
{
	uint64_t held = inflight_of(lane), most;

	if (lane->credits == 0 || held >= worker->engine->config.lane_bytes)
		return false;
	if (priority == LW_BULK && !urgent && !bulk_fits(worker, lane, length))
		return false;
	if (path->lanes < 2 || lane->ops->look == NULL || urgent || length <= SMALL_BYTES)
		return true;
	most = bytes_in(rate_of(lane), HOLD_NS + 2 * (uint64_t)lane->watch.min_rtt_us * 1000);
	most = most > 2 * length ? most : 2 * length;
	return held + length <= most;
}

_Static_assert(LW_PATH_LANES <= 32, "lw_path_near has a bit for each lane");

uint32_t lw_path_near(const struct lw_path *path, uint64_t local, uint64_t remote)
{
	if (path->lanes < 2 || path->lane[0]->ops->nearest == NULL)
		return LW_LANES_ALL;
	return path->lane[0]->ops->nearest(path, local, remote);
}

struct lw_lane *lw_path_choose(struct lw_worker *worker, struct lw_path *path, uint32_t lanes, uint64_t length,
			       uint32_t priority, bool urgent)
{
	struct lw_lane *best = NULL, *first = NULL;
	double best_ns = 0, first_ns = 0;
	uint64_t backlog;

	if (path->lanes == 1)
		return is_open(path->lane[0]) && has_room(worker, path, path->lane[0], length, priority, urgent)
			       ? path->lane[0]
			       : NULL;
	for (uint32_t i = 0; i < path->lanes; i++) {
		struct lw_lane *lane = path->lane[i];
		uint64_t most = longest(worker, path, lane, priority), here = length < most ? length : most;
		double ns;

		if ((lanes >> i & 1) == 0 || !is_open(lane))
			continue;
		ns = finish_of(worker, lane, here);
		if (first == NULL || ns < first_ns) {
			first = lane;
			first_ns = ns;
		}
		if (has_room(worker, path, lane, here, priority, urgent) && (best == NULL || ns < best_ns)) {
			best = lane;
			best_ns = ns;
		}
	}
	if (best == NULL || best == first || urgent)
		return best;
	/* Another lane would be done sooner, with all that waits: this one waits for it. */
	backlog = path->waiting[0].bytes + path->waiting[1].bytes;
	return best_ns > first_ns + (double)backlog * 1e9 / (double)rate_of(first) ? NULL : best;
}

uint64_t lw_path_slice_length(struct lw_worker *worker, const struct lw_path *path, const struct lw_lane *lane,
			      const struct lw_task *task, uint64_t cut)
{
	uint64_t length = task->length - cut, most = longest(worker, path, lane, task->priority), over;
	uint64_t limit = lw_path_slice_most(worker, path);
	const struct lw_rangemap *map;
	const struct lw_range *range;
	const struct lw_view *view;

	if ((task->flags & LW_TASK_MISSED) != 0)
		return length < limit ? length : limit;
	/* No crumbs. */
	if (length > most && (length - most >= LEAST_BYTES / 2 || length > limit))
		length = most;
	if (path->staged)
		length = lw_stage_length(worker, task->local + cut, length);
	over = lane->ops->align != 0 && length < task->length - cut ? (task->remote + cut + length) % lane->ops->align
								    : 0;
	if (over < length)
		length -= over;
	if (lane->ops->peer_cuts == 0)
		return length;
	view = lw_path_view(worker, path);
	map = path->segment == 0 ? atomic_load_explicit(&worker->engine->memory, memory_order_acquire) : view->ranges;
	range = lw_rangemap_find(map, task->remote + cut);
	/* Gone since the check: the peer will refuse it. */
	if (range != NULL && range->end - (task->remote + cut) < length)
		length = range->end - (task->remote + cut);
	return length;
}

uint32_t lw_path_turn(const struct lw_worker *worker, const struct lw_path *path)
{
	int64_t turn = (int64_t)worker->engine->config.foreground_weight * TURN_BYTES;

	if (path->waiting[LW_BULK].head == LW_INDEX_NONE)
		return LW_FOREGROUND;
	return path->waiting[LW_FOREGROUND].head == LW_INDEX_NONE || path->lead >= turn ? LW_BULK : LW_FOREGROUND;
}

void lw_path_turn_done(const struct lw_worker *worker, struct lw_path *path, uint32_t priority, uint64_t bytes)
{
	if (path->waiting[LW_FOREGROUND].head == LW_INDEX_NONE || path->waiting[LW_BULK].head == LW_INDEX_NONE)
		return;
	if (priority == LW_FOREGROUND)
		path->lead += (int64_t)bytes;
	else
		path->lead -= (int64_t)(bytes * worker->engine->config.foreground_weight);
}
