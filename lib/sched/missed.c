/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that point outside of what the peer was seen to offer: they wait for a refresh, or the peer decides. */
#include "lib/refresh.h"
#include "lib/sched/path_pvt.h"

bool lw_path_peer_checks(struct lw_worker *worker, const struct lw_path *path, const struct lw_task *task)
{
	const struct lw_view *view = lw_path_view(worker, path);
	uint32_t driver;

	if (view == NULL || task->length > lw_path_slice_most(worker, path) || path->lanes == 0)
		return false;
	driver = path->lane[0]->driver;
	return lw_drivers[driver]->peer_checks != NULL &&
	       lw_drivers[driver]->peer_checks(worker->engine->driver_context[driver], view);
}

bool lw_path_offer_seen(struct lw_worker *worker, const struct lw_path *path)
{
	const struct lw_view *view = lw_path_view(worker, path);
	const struct lw_route *route;

	for (uint32_t i = 0; view != NULL && i < view->route_count && lw_path_any_lane(path, LW_LANE_UP); i++) {
		route = &view->routes[i];
		if (route->driver == path->lane[0]->driver && route->peer != NULL &&
		    lw_drivers[route->driver]->offer_seen != NULL)
			return lw_drivers[route->driver]->offer_seen(route->peer);
	}
	return false;
}

bool lw_path_miss(struct lw_worker *worker, struct lw_path *path, struct lw_task_list *list)
{
	struct lw_task *task = &worker->engine->tasks[list->head];
	struct lw_refresh *refresh = lw_path_refresh(worker, path);
	uint32_t round = lw_refresh_want(refresh);

	lw_worker_clock(worker);
	task->flags |= LW_TASK_MISSED;
	if (lw_refresh_rests(refresh, worker->now_ns) && lw_path_peer_checks(worker, path, task))
		return false;
	lw_tasks_unlink(worker->engine, list, LW_INDEX_NONE);
	task->reason = (uint8_t)round;
	lw_tasks_append(worker->engine, &path->waiting[LW_PATH_MISSED], task);
	return true;
}

void lw_path_refreshed(struct lw_worker *worker, struct lw_path *path, uint32_t round, bool restarted)
{
	struct lw_task_list missed = path->waiting[LW_PATH_MISSED];

	if (restarted) {
		path->dead = LW_REASON_RESTARTED;
		lw_path_lane_lost(worker, path, path->dead);
		return;
	}
	lw_tasks_init(&path->waiting[LW_PATH_MISSED]);
	while (missed.head != LW_INDEX_NONE) {
		struct lw_task *task = lw_tasks_unlink(worker->engine, &missed, LW_INDEX_NONE);
		uint32_t pair;
		enum lw_reason reason =
			lw_path_check(worker, path, task->op, task->local, task->remote, task->length, &pair);
		bool decided = (int8_t)((uint8_t)round - task->reason) >= 0 || reason != LW_REASON_REMOTE_RANGE;
		bool theirs = !decided && lw_path_peer_checks(worker, path, task);

		if (!decided && !theirs) {
			lw_tasks_append(worker->engine, &path->waiting[LW_PATH_MISSED], task);
			continue;
		}
		task->reason = LW_REASON_NONE;
		if (!theirs && reason != LW_REASON_NONE) {
			lw_path_finish(worker, task, LW_LANE_NONE, reason);
			continue;
		}
		if (!theirs)
			task->flags &= (uint8_t)~LW_TASK_MISSED;
		if (pair != path->pair) {
			lw_path_move(worker, path, pair, task);
			continue;
		}
		task->flags |= LW_TASK_CHECKED;
		lw_tasks_append(worker->engine, &path->waiting[task->priority], task);
	}
	lw_path_activate(worker, path);
}
