/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sched/path.h"

#include "lib/refresh.h"
#include "lib/sched/path_pvt.h"
#include "lib/sched/stage.h"

static bool has_work(const struct lw_path *path)
{
	return path->waiting[0].head != LW_INDEX_NONE || path->waiting[1].head != LW_INDEX_NONE ||
	       !TAILQ_EMPTY(&path->retry);
}

void lw_path_init(struct lw_worker *worker, struct lw_path *path, uint32_t segment, uint32_t pair, uint32_t gen)
{
	*path = (struct lw_path){.segment = segment, .pair = pair, .gen = gen, .ways = 1};
	for (int i = 0; i < LW_PATH_LISTS; i++)
		lw_tasks_init(&path->waiting[i]);
	TAILQ_INIT(&path->retry);
	TAILQ_INIT(&path->copying);
	TAILQ_INSERT_TAIL(&worker->live, path, live_link);
}

void lw_path_activate(struct lw_worker *worker, struct lw_path *path)
{
	if (path->active || !has_work(path))
		return;
	path->active = true;
	TAILQ_INSERT_TAIL(&worker->active, path, active_link);
}

const struct lw_view *lw_path_view(struct lw_worker *worker, const struct lw_path *path)
{
	return atomic_load_explicit(&worker->engine->segments[path->segment].view, memory_order_acquire);
}

/* Whether others that wait go first: all do but bulk, before the foreground. */
static bool must_queue(const struct lw_path *path, const struct lw_run *run)
{
	return run->priority != LW_FOREGROUND || path->waiting[LW_FOREGROUND].head != LW_INDEX_NONE ||
	       !TAILQ_EMPTY(&path->retry);
}

bool lw_path_now(struct lw_worker *worker, struct lw_path *path, const struct lw_run *run, struct lw_task *task)
{
	struct lw_lane *lane = path->quick;
	enum lw_reason reason;
	uint32_t pair;

	if (lane == NULL || (path->active && must_queue(path, run)))
		return false;
	reason = lw_path_check(worker, path, run->op, run->local, run->remote, run->length, &pair);
	if (pair != path->pair)
		return false;
	if (reason == LW_REASON_REMOTE_RANGE && lw_path_refresh(worker, path) != NULL)
		return false;
	if (reason != LW_REASON_NONE) {
		lw_worker_finish(worker, task, run->batch, 0, lw_state_of(reason), reason, LW_LANE_NONE);
		return true;
	}
	if (!lane->ops->now(lane, run->op, run->local, run->remote, run->length))
		return false;
	lw_count(&lane->stats.slices, 1);
	lw_count(run->op == LW_WRITE ? &lane->stats.tx_bytes : &lane->stats.rx_bytes, run->length);
	if (run->solo) {
		struct lw_batch *batch = &worker->engine->batches[run->batch];

		lw_worker_count(worker, run->batch, run->length, false);
		atomic_store_explicit(&batch->solo_lane, lw_lane_id(lane), memory_order_relaxed);
	} else {
		lw_worker_finish(worker, task, run->batch, run->length, LW_COMPLETED, LW_REASON_NONE, lw_lane_id(lane));
	}
	return true;
}

/* The path of the same segment for another pair. */
static struct lw_path *sibling(struct lw_worker *worker, const struct lw_path *path, uint32_t pair)
{
	struct lw_path *other = lw_worker_path(worker, path->segment, pair);

	if (other->gen == 0)
		lw_path_init(worker, other, path->segment, pair, path->gen);
	return other;
}

struct lw_path *lw_path_of(struct lw_worker *worker, struct lw_path *path, const struct lw_run *run)
{
	uint32_t pair;

	/* What is wrong with it is said when its turn comes. */
	(void)lw_path_check(worker, path, run->op, run->local, run->remote, run->length, &pair);
	return pair == path->pair ? path : sibling(worker, path, pair);
}

/* A task begins to wait, with a deadline on the worker's clock. */
static void enqueue(struct lw_worker *worker, struct lw_path *path, struct lw_task *task)
{
	if (!path->timed || lw_before(task->deadline_ms, path->deadline_ms))
		path->deadline_ms = task->deadline_ms;
	path->timed = true;
	lw_tasks_append(worker->engine, &path->waiting[task->priority], task);
	lw_path_activate(worker, path);
}

void lw_path_move(struct lw_worker *worker, struct lw_path *path, uint32_t pair, struct lw_task *task)
{
	struct lw_path *other = sibling(worker, path, pair);

	if (other->dead != LW_REASON_NONE)
		lw_path_finish(worker, task, LW_LANE_NONE, other->dead);
	else
		enqueue(worker, other, task);
}

void lw_path_take(struct lw_worker *worker, struct lw_path *path, struct lw_task *task)
{
	if (path->dead != LW_REASON_NONE) {
		lw_path_finish(worker, task, LW_LANE_NONE, path->dead);
		return;
	}
	lw_worker_clock(worker);
	task->deadline_ms += worker->now_ms;
	enqueue(worker, path, task);
}

void lw_path_slice_give(struct lw_worker *worker, struct lw_path *path, struct lw_slice *slice)
{
	if (slice->bounce != NULL)
		lw_stage_give(path, slice);
	TAILQ_INSERT_HEAD(&worker->free_slices, slice, link);
	worker->slices_held--;
	path->held--;
	slice->task->slices--;
}

void lw_path_slice_end(struct lw_worker *worker, struct lw_path *path, struct lw_slice *slice, uint32_t lane,
		       enum lw_reason reason)
{
	struct lw_task *task = slice->task;
	bool refused = reason == LW_REASON_REFUSED;

	/* It was the peer that looked: to the application it is the same. */
	if (refused && (task->flags & LW_TASK_MISSED) != 0)
		reason = LW_REASON_REMOTE_RANGE;
	if (reason == LW_REASON_NONE)
		lw_count(&task->bytes, slice->length);
	else
		lw_task_fail(task, reason);
	/* What it was thought to offer is not what it offers. */
	if (refused && lw_path_refresh(worker, path) != NULL)
		lw_refresh_want(lw_path_refresh(worker, path));
	lw_path_slice_give(worker, path, slice);
	if (task->slices == 0 && (task->flags & LW_TASK_QUEUED) == 0)
		lw_path_finish(worker, task, lane, (task->flags & LW_TASK_FAILED) != 0 ? task->reason : LW_REASON_NONE);
	lw_path_activate(worker, path);
}

/* A path may hold as many slices as are left for the others, and one in any case: peers that don't answer can't take
 * all of them. */
static struct lw_slice *take_slice(struct lw_worker *worker, struct lw_path *path)
{
	struct lw_slice *slice = TAILQ_FIRST(&worker->free_slices);

	if (path->held != 0 && path->held + (uint64_t)worker->slices_held >= worker->engine->config.max_slices)
		return NULL;
	path->held++;
	worker->slices_held++;
	if (slice == NULL)
		return &worker->slices[worker->slices_used++];
	TAILQ_REMOVE(&worker->free_slices, slice, link);
	return slice;
}

void lw_path_post(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, struct lw_slice *slice)
{
	if (TAILQ_EMPTY(&lane->inflight))
		lane->watch.moved_ms = worker->now_ms; /* it stands still from now on at the earliest */
	TAILQ_INSERT_TAIL(&lane->inflight, slice, link);
	if (slice->task->priority == LW_BULK) {
		lane->bulk_bytes += slice->length;
		path->bulk++;
	}
	lane->credits--;
	worker->hot++;
	path->inflight++;
	atomic_store_explicit(&lane->stats.inflight_slices, lane->ops->credits - lane->credits, memory_order_relaxed);
	lw_count(&lane->stats.inflight_bytes, slice->length);
	if (!lane->dirty) {
		lane->dirty = true;
		LIST_INSERT_HEAD(&worker->dirty, lane, dirty_link);
	}
	lane->ops->post(lane, slice);
}

/* Cuts the head of a class once. False if there is no credit, lane or slice for it. */
static bool cut_head(struct lw_worker *worker, struct lw_path *path, uint32_t priority)
{
	struct lw_task_list *list = &path->waiting[priority];
	struct lw_task *task = &worker->engine->tasks[list->head];
	enum lw_reason reason;
	struct lw_slice *slice;
	struct lw_lane *lane;
	uint32_t pair;

	if ((task->flags & (LW_TASK_CHECKED | LW_TASK_FAILED)) == 0) {
		reason = lw_path_check(worker, path, task->op, task->local, task->remote, task->length, &pair);
		if (pair != path->pair && (reason == LW_REASON_NONE || reason == LW_REASON_REMOTE_RANGE)) {
			lw_path_move(worker, path, pair, lw_tasks_unlink(worker->engine, list, LW_INDEX_NONE));
			return true;
		}
		if (reason == LW_REASON_REMOTE_RANGE && lw_path_refresh(worker, path) != NULL &&
		    !lw_path_offer_seen(worker, path)) {
			if (lw_path_miss(worker, path, list))
				return true;
			reason = LW_REASON_NONE;
		}
		if (reason != LW_REASON_NONE)
			lw_task_fail(task, reason);
		task->flags |= LW_TASK_CHECKED;
	}
	if ((task->flags & LW_TASK_FAILED) != 0) {
		lw_tasks_unlink(worker->engine, list, LW_INDEX_NONE);
		if (task->slices == 0)
			lw_path_finish(worker, task, LW_LANE_NONE, task->reason);
		return true;
	}
	lane = lw_path_choose(worker, path, lw_path_near(path, task->local + list->cut, task->remote + list->cut),
			      task->length - list->cut, priority, false);
	if (lane == NULL || (path->staged && !lw_stage_has_room(worker, path, task->local + list->cut)))
		return false;
	slice = take_slice(worker, path);
	if (slice == NULL)
		return false;
	slice->task = task;
	slice->op = task->op;
	slice->attempts = 0;
	slice->started = false;
	slice->waits = false;
	slice->only = NULL;
	slice->bounce = NULL;
	slice->local = task->local + list->cut;
	slice->remote = task->remote + list->cut;
	slice->length = lw_path_slice_length(worker, path, lane, task, list->cut);
	task->slices++;
	list->cut += slice->length;
	list->bytes -= slice->length;
	lw_path_turn_done(worker, path, priority, slice->length);
	if (list->cut == task->length)
		lw_tasks_unlink(worker->engine, list, LW_INDEX_NONE);
	if (path->staged)
		lw_stage_begin(worker, path, lane, slice);
	else
		lw_path_post(worker, path, lane, slice);
	return true;
}

bool lw_path_pump(struct lw_worker *worker, struct lw_path *path)
{
	struct lw_slice *slice, *next;
	struct lw_lane *lane;
	bool worked = false;

	if (path->lanes == 0 || lw_path_any_lane(path, LW_LANE_DOWN))
		lw_path_connect(worker, path);
	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		next = TAILQ_NEXT(slice, link);
		if (lw_task_is_over(slice->task) && lw_path_fence(path, slice, slice->task->reason))
			continue;
		lane = slice->only;
		if (lane == NULL)
			lane = lw_path_choose(worker, path, lw_path_near(path, lw_slice_local(slice), slice->remote),
					      slice->length, slice->task->priority, true);
		if (lane == NULL)
			return worked;
		if (lw_lane_state(lane) != LW_LANE_UP || lane->credits == 0)
			continue; /* it waits for this one */
		TAILQ_REMOVE(&path->retry, slice, link);
		worked = true;
		if (lw_task_is_over(slice->task))
			lw_path_slice_end(worker, path, slice, LW_LANE_NONE, slice->task->reason);
		else if (slice->only != NULL && !lane->fenced)
			lw_path_slice_end(worker, path, slice, LW_LANE_NONE, LW_REASON_RESET);
		else
			lw_path_post(worker, path, lane, slice);
	}
	while (path->waiting[LW_FOREGROUND].head != LW_INDEX_NONE || path->waiting[LW_BULK].head != LW_INDEX_NONE) {
		uint32_t turn = lw_path_turn(worker, path);

		if (cut_head(worker, path, turn)) {
			worked = true;
			continue;
		}
		/* Bulk that may not have more under way has had its turn; else it is the next one, when there is room.
		 */
		if (turn == LW_FOREGROUND || path->bulk == 0 || path->waiting[LW_FOREGROUND].head == LW_INDEX_NONE)
			return worked;
		path->lead = 0;
	}
	if (path->active && !has_work(path)) {
		path->active = false;
		TAILQ_REMOVE(&worker->active, path, active_link);
	}
	return worked;
}

void lw_path_tick(struct lw_worker *worker, struct lw_path *path)
{
	static const struct lw_abort expiry = {.reason = LW_REASON_TIMEOUT, .expired = true, .batch = LW_INDEX_NONE};

	for (uint32_t i = 0; i < path->lanes; i++) {
		struct lw_lane *lane = path->lane[i];
		uint32_t state = lw_lane_state(lane);

		if (state == LW_LANE_CONNECTING && lw_before(lane->expire_at_ms, worker->now_ms))
			lw_lane_down(lane, LW_REASON_UNREACHABLE);
		else if (state == LW_LANE_UP && lane->kill && !lw_lane_has_aborted(lane))
			lane->kill = false;
		else if (state == LW_LANE_UP && lane->kill && lw_before(lane->expire_at_ms, worker->now_ms))
			lw_lane_cut(lane);
		else if (state == LW_LANE_DOWN && lw_before(lane->retry_at_ms, worker->now_ms))
			lane->retry_at_ms = worker->now_ms; /* it must not become the future when the clock wraps */
		if (lane->fencing)
			lw_path_unfence(worker, path, lane, LW_FENCE_EXPIRED);
	}
	lw_path_watch(worker, path);
	if (path->timed && lw_before(path->deadline_ms, worker->now_ms))
		lw_path_abort(worker, path, &expiry);
}

bool lw_path_holds(const struct lw_path *path, uint64_t addr, uint64_t end)
{
	const struct lw_slice *slice;

	for (uint32_t i = 0; i < path->lanes; i++) {
		if (path->lane[i]->ops->recall == NULL)
			continue;
		TAILQ_FOREACH(slice, &path->lane[i]->inflight, link)
		if ((slice->local < end && slice->local + slice->length > addr) ||
		    (path->segment == 0 && slice->remote < end && slice->remote + slice->length > addr))
			return true;
	}
	return false;
}

bool lw_path_reset(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason, enum lw_reset how)
{
	struct lw_abort everything = {.reason = reason, .batch = LW_INDEX_NONE, .now = how != LW_RESET_GENTLY};

	if (path->gen == 0)
		return true;
	path->dead = reason;
	lw_path_abort(worker, path, &everything);
	if ((how == LW_RESET_GENTLY && path->held != 0) ||
	    (how != LW_RESET_FORCE && (path->copies != 0 || lw_path_holds(path, 0, UINT64_MAX))))
		return false;
	lw_stage_forget(worker, path, reason);
	for (uint32_t i = 0; i < path->lanes; i++) {
		lw_lane_down(path->lane[i], reason);
		lw_worker_lane_give(worker, path->lane[i]);
	}
	if (path->active)
		TAILQ_REMOVE(&worker->active, path, active_link);
	TAILQ_REMOVE(&worker->live, path, live_link);
	path->gen = 0;
	return true;
}

bool lw_paths_reset(struct lw_worker *worker, uint32_t segment, enum lw_reason reason)
{
	bool all = true;

	for (uint32_t pair = 0; pair < LW_PAIRS; pair++)
		all &= lw_path_reset(worker, lw_worker_path(worker, segment, pair), reason, LW_RESET_GENTLY);
	return all;
}
