/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of a path: taken, connected, given back when no way leads to the peer. */
#include <errno.h>

#include "lib/refresh.h"
#include "lib/sched/path_pvt.h"

bool lw_path_any_lane(const struct lw_path *path, enum lw_lane_state state)
{
	for (uint32_t i = 0; i < path->lanes; i++)
		if (lw_lane_state(path->lane[i]) == state)
			return true;
	return false;
}

uint32_t lw_path_addresses(struct lw_worker *worker, const struct lw_path *path)
{
	const struct lw_view *view = lw_path_view(worker, path);

	return view != NULL && view->data.count > 1 ? view->data.count : 1;
}

/* The route that the lanes are, or will be, of. A view that replaced another one may have fewer. */
static const struct lw_route *route_of(struct lw_path *path, const struct lw_view *view)
{
	if (path->route >= view->route_count)
		path->route = view->route_count - 1;
	return &view->routes[path->route];
}

static void take_lanes(struct lw_worker *worker, struct lw_path *path, const struct lw_view *view)
{
	uint32_t driver = route_of(path, view)->driver;
	uint32_t want =
		lw_drivers[driver]->lanes != 0 ? lw_drivers[driver]->lanes : (uint32_t)worker->engine->config.tcp_lanes;

	if (want == 0)
		want = 1;

	while (path->lanes < want) {
		struct lw_lane *lane = lw_worker_lane_take(worker, driver);

		if (lane == NULL)
			break;
		lane->path = path;
		lane->retry_at_ms = worker->now_ms;
		atomic_store_explicit(&lane->segment, path->segment, memory_order_relaxed);
		atomic_store_explicit(&lane->in_use, true, memory_order_release);
		path->lane[path->lanes++] = lane;
	}
}

bool lw_path_fall_back(struct lw_worker *worker, struct lw_path *path)
{
	const struct lw_view *view = lw_path_view(worker, path);
	uint32_t next = 0;

	if (view == NULL || path->dead != LW_REASON_NONE || path->lanes == 0 || lw_path_any_lane(path, LW_LANE_UP) ||
	    lw_path_any_lane(path, LW_LANE_CONNECTING))
		return false;
	/* The one after ours; the first, if a new view does not have ours any more. */
	for (uint32_t i = 0; i < view->route_count; i++)
		if (view->routes[i].driver == path->lane[0]->driver)
			next = i + 1;
	if (next >= view->route_count)
		return false;
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

void lw_path_connect(struct lw_worker *worker, struct lw_path *path)
{
	const struct lw_view *view = lw_path_view(worker, path);
	int error;

	if (view == NULL) {
		lw_path_lane_lost(worker, path, LW_REASON_NO_DRIVER);
		return;
	}
	if (path->lanes == 0)
		take_lanes(worker, path, view);
	if (path->lanes == 0)
		lw_path_lane_lost(worker, path, LW_REASON_RESOURCES);
	for (uint32_t i = 0; i < path->lanes; i++) {
		struct lw_lane *lane = path->lane[i];

		if (lw_lane_state(lane) != LW_LANE_DOWN || !lw_before(lane->retry_at_ms, worker->now_ms))
			continue;
		atomic_store_explicit(&lane->state, LW_LANE_CONNECTING, memory_order_relaxed);
		lane->expire_at_ms = worker->now_ms + (uint32_t)worker->engine->config.connect_timeout_ms;
		error = lane->ops->lane_open(lane, view);
		if (error != 0)
			lw_lane_down(lane, is_shortage(error)          ? LW_REASON_RESOURCES
					   : error == -EPROTONOSUPPORT ? LW_REASON_OPTIONS
								       : LW_REASON_UNREACHABLE);
	}
}

void lw_path_lane_lost(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason)
{
	struct lw_slice *slice;

	if (path->dead == LW_REASON_NONE &&
	    (lw_path_any_lane(path, LW_LANE_UP) || lw_path_any_lane(path, LW_LANE_CONNECTING)))
		return;
	while ((slice = TAILQ_FIRST(&path->retry)) != NULL) {
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, reason);
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
