/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of a path: taken, connected, given back when no way leads to the peer. */
#include <errno.h>

#include "lib/refresh.h"
#include "lib/sched/path_pvt.h"

#define BESIDE_MS 300 /* for a connect while another lane is up, if there is another way to try */
#define ALONE_MS 1000 /* the same, if no lane is */

bool lw_path_any_lane(const struct lw_path *path, enum lw_lane_state state)
{
	for (uint32_t i = 0; i < path->lanes; i++)
		if (lw_lane_state(path->lane[i]) == state)
			return true;
	return false;
}

/* The route that the lanes will be of. A view that replaced another one may have fewer. NULL: none is for this pair of
 * kinds of memory. */
static const struct lw_route *route_of(struct lw_path *path, const struct lw_view *view)
{
	const struct lw_route *route = lw_route_at(view, path->pair, path->route, &path->staged);

	while (route == NULL && path->route > 0)
		route = lw_route_at(view, path->pair, --path->route, &path->staged);
	return route;
}

/* The ways of the route; the path keeps their number. */
static struct lw_ways find_ways(struct lw_worker *worker, struct lw_path *path, const struct lw_view *view,
				uint32_t driver)
{
	const struct lw_driver_ops *ops = lw_drivers[driver];
	struct lw_ways ways = {.count = 1, .at_once = 1};

	if (ops->ways != NULL)
		ways = ops->ways(worker->engine->driver_context[driver], view);
	path->ways = ways.count;
	return ways;
}

static void take_lanes(struct lw_worker *worker, struct lw_path *path, const struct lw_view *view, uint32_t driver)
{
	const struct lw_driver_ops *ops = lw_drivers[driver];
	uint32_t want =
		ops->lanes_to != NULL ? ops->lanes_to(worker->engine->driver_context[driver], view) : ops->lanes;
	struct lw_ways ways = find_ways(worker, path, view, driver);

	if (want == 0)
		want = (uint32_t)worker->engine->config.tcp_lanes;
	if (want == 0)
		want = ways.at_once;
	while (path->lanes < want && path->lanes < LW_PATH_LANES) {
		struct lw_lane *lane = lw_worker_lane_take(worker, driver);

		if (lane == NULL)
			break;
		lane->path = path;
		lane->home = path->lanes % ways.at_once;
		lane->way = lane->home;
		lane->retry_at_ms = worker->now_ms;
		atomic_store_explicit(&lane->segment, path->segment, memory_order_relaxed);
		atomic_store_explicit(&lane->in_use, true, memory_order_release);
		path->lane[path->lanes++] = lane;
	}
}

/* What was aborted ends with the reason of that. */
static enum lw_reason reason_of(const struct lw_slice *slice, enum lw_reason reason)
{
	return (slice->task->flags & LW_TASK_ABORT) != 0 ? (enum lw_reason)slice->task->reason : reason;
}

/* Ends what only its own lane could have carried, or one of a driver that gets at a GPU's memory by itself. False: some
 * of that may still reach the peer. */
static bool end_bound(struct lw_worker *worker, struct lw_path *path, bool staged)
{
	struct lw_slice *slice, *next;
	bool ended = true;

	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		next = TAILQ_NEXT(slice, link);
		if (slice->only == NULL && (!staged || slice->bounce != NULL))
			continue;
		if (lw_path_fence(path, slice, LW_REASON_RESET)) {
			ended = false;
			continue;
		}
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, reason_of(slice, LW_REASON_RESET));
	}
	return ended;
}

/* What was left to the peer to check, in one piece, is for the next route to check and to cut. */
static void uncut_missed(struct lw_worker *worker, struct lw_path *path)
{
	struct lw_engine *engine = worker->engine;
	struct lw_slice *slice, *next;

	for (int i = 0; i < LW_PATH_MISSED; i++)
		for (uint32_t k = path->waiting[i].head; k != LW_INDEX_NONE; k = engine->tasks[k].next)
			if ((engine->tasks[k].flags & LW_TASK_MISSED) != 0)
				engine->tasks[k].flags &= (uint8_t) ~(LW_TASK_MISSED | LW_TASK_CHECKED);
	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		struct lw_task *task = slice->task;

		next = TAILQ_NEXT(slice, link);
		if ((task->flags & LW_TASK_MISSED) == 0 || lw_task_is_over(task))
			continue;
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_give(worker, path, slice);
		task->flags &= (uint8_t) ~(LW_TASK_MISSED | LW_TASK_CHECKED);
		lw_tasks_append(engine, &path->waiting[task->priority], task);
	}
}

bool lw_path_fall_back(struct lw_worker *worker, struct lw_path *path)
{
	const struct lw_view *view = lw_path_view(worker, path);
	const struct lw_route *route;
	uint32_t next = 0;
	bool staged;

	if (view == NULL || path->dead != LW_REASON_NONE || path->lanes == 0 || lw_path_any_lane(path, LW_LANE_UP) ||
	    lw_path_any_lane(path, LW_LANE_CONNECTING))
		return false;
	/* The one after ours; the first, if a new view does not have ours any more. */
	for (uint32_t i = 0; (route = lw_route_at(view, path->pair, i, &staged)) != NULL; i++)
		if (route->driver == path->lane[0]->driver)
			next = i + 1;
	if (lw_route_at(view, path->pair, next, &staged) == NULL)
		return false;
	lw_path_activate(worker, path);
	if (!end_bound(worker, path, staged))
		return true;
	uncut_missed(worker, path);
	path->route = next;
	while (path->lanes > 0)
		lw_worker_lane_give(worker, path->lane[--path->lanes]);
	lw_path_activate(worker, path);
	return true;
}

static bool is_shortage(int error)
{
	return error == -EMFILE || error == -ENFILE || error == -ENOBUFS || error == -ENOMEM || error == -EADDRNOTAVAIL;
}

/* How long a connect may take. A way that does not answer must not hold up what another one could carry. */
static uint32_t connect_ms(const struct lw_worker *worker, const struct lw_path *path, const struct lw_lane *lane)
{
	uint32_t most = (uint32_t)worker->engine->config.connect_timeout_ms;
	uint32_t quick = lw_path_any_lane(path, LW_LANE_UP) ? BESIDE_MS : ALONE_MS;

	return lane->failures + 1 < path->ways && quick < most ? quick : most;
}

/* Another view may have fewer ways, or others. */
static void adapt_ways(struct lw_worker *worker, struct lw_path *path, const struct lw_view *view)
{
	struct lw_ways ways = find_ways(worker, path, view, path->lane[0]->driver);

	for (uint32_t i = 0; i < path->lanes; i++) {
		path->lane[i]->home %= ways.count;
		path->lane[i]->way %= ways.count;
	}
}

void lw_path_connect(struct lw_worker *worker, struct lw_path *path)
{
	const struct lw_view *view = lw_path_view(worker, path);
	bool adapted = false;
	int error;

	if (view == NULL) {
		lw_path_lane_lost(worker, path, LW_REASON_NO_DRIVER);
		return;
	}
	if (path->lanes == 0) {
		const struct lw_route *route = route_of(path, view);

		if (route != NULL)
			take_lanes(worker, path, view, route->driver);
		if (path->lanes == 0)
			lw_path_lane_lost(worker, path, route != NULL ? LW_REASON_RESOURCES : LW_REASON_NO_DRIVER);
	}
	for (uint32_t i = 0; i < path->lanes; i++) {
		struct lw_lane *lane = path->lane[i];

		if (lw_lane_state(lane) != LW_LANE_DOWN || !lw_before(lane->retry_at_ms, worker->now_ms))
			continue;
		if (!adapted)
			adapt_ways(worker, path, view);
		adapted = true;
		atomic_store_explicit(&lane->state, LW_LANE_CONNECTING, memory_order_relaxed);
		lane->expire_at_ms = worker->now_ms + connect_ms(worker, path, lane);
		error = lane->ops->lane_open(lane, view);
		if (error != 0)
			lw_lane_down(lane, is_shortage(error)          ? LW_REASON_RESOURCES
					   : error == -EPROTONOSUPPORT ? LW_REASON_OPTIONS
								       : LW_REASON_UNREACHABLE);
	}
}

void lw_path_lane_lost(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason)
{
	struct lw_slice *slice, *next;

	if (lw_path_may_fence(path) &&
	    (lw_path_any_lane(path, LW_LANE_UP) || lw_path_any_lane(path, LW_LANE_CONNECTING)))
		return;
	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		next = TAILQ_NEXT(slice, link);
		if (lw_path_fence(path, slice, reason))
			continue;
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, reason_of(slice, reason));
	}
	if (reason == LW_REASON_UNREACHABLE && lw_path_refresh(worker, path) != NULL)
		lw_refresh_want(lw_path_refresh(worker, path)); /* it may be another one now */
	for (int i = 0; i < LW_PATH_LISTS; i++) {
		while (path->waiting[i].head != LW_INDEX_NONE) {
			struct lw_task *task = lw_tasks_unlink(worker->engine, &path->waiting[i], LW_INDEX_NONE);

			lw_task_fail(task, reason);
			if (task->slices == 0)
				lw_path_finish(worker, task, LW_LANE_NONE, task->reason);
		}
	}
}
