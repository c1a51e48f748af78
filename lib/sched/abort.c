/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that end before their end: deadlines, cancels, memory that is let go of, lanes that are cut for them. */
#include "lib/sched/path_pvt.h"
#include "lib/sched/stage.h"

#define GRACE_MS 500 /* an aborted task whose bytes are on the wire may still complete for so long */
#define FENCE_MS 400 /* with the grace of an abort before it less than the second that a cancel may take */
#define FENCE_TRIES 3

/* The other side of a transfer inside the engine's own segment is memory of this process, too. */
static bool touches(const struct lw_path *path, const struct lw_abort *abort, uint64_t local, uint64_t remote,
		    uint64_t length)
{
	return (local < abort->end && local + length > abort->addr) ||
	       (path->segment == 0 && remote < abort->end && remote + length > abort->addr);
}

static bool matches(const struct lw_worker *worker, const struct lw_path *path, const struct lw_abort *abort,
		    const struct lw_task *task, uint64_t local, uint64_t remote, uint64_t length)
{
	if (abort->expired && !lw_before(task->deadline_ms, worker->now_ms))
		return false;
	if (abort->batch != LW_INDEX_NONE && task->batch != abort->batch)
		return false;
	if (abort->task != NULL && task != abort->task)
		return false;
	return abort->end == 0 || touches(path, abort, local, remote, length);
}

static void abort_waiting(struct lw_worker *worker, struct lw_path *path, struct lw_task_list *list,
			  const struct lw_abort *abort)
{
	struct lw_engine *engine = worker->engine;
	uint32_t previous = LW_INDEX_NONE, index, next;

	for (index = list->head; index != LW_INDEX_NONE; index = next) {
		struct lw_task *task = &engine->tasks[index];

		next = task->next;
		if (!matches(worker, path, abort, task, task->local, task->remote, task->length)) {
			previous = index;
			continue;
		}
		lw_tasks_unlink(engine, list, previous);
		lw_task_fail(task, abort->reason);
		if (task->slices == 0)
			lw_path_finish(worker, task, LW_LANE_NONE, task->reason);
	}
}

void lw_lane_cut(struct lw_lane *lane)
{
	struct lw_slice *slice;

	TAILQ_FOREACH(slice, &lane->inflight, link)
	slice->attempts = 0;
	lw_lane_down(lane, LW_REASON_RESET);
}

/* What can't end at once ends with this reason, if nothing better comes of it. */
static void mark(struct lw_task *task, enum lw_reason reason)
{
	if ((task->flags & (LW_TASK_ABORT | LW_TASK_FAILED)) == 0)
		task->reason = (uint8_t)reason;
	task->flags |= LW_TASK_ABORT;
}

static void abort_lane(struct lw_worker *worker, struct lw_lane *lane, const struct lw_abort *abort)
{
	struct lw_slice *slice, *next;
	bool stuck = false;

	for (slice = TAILQ_FIRST(&lane->inflight); slice != NULL; slice = next) {
		struct lw_task *task = slice->task;

		next = TAILQ_NEXT(slice, link);
		if (!matches(worker, lane->path, abort, task, lw_slice_local(slice), slice->remote, slice->length))
			continue;
		if (lane->ops->unpost(lane, slice)) {
			lw_slice_give_up(lane, slice, abort->reason);
			continue;
		}
		mark(task, abort->reason);
		if (lane->ops->recall != NULL)
			lane->ops->recall(lane, slice);
		else
			stuck = true;
	}
	if (!stuck)
		return;
	if (abort->now) {
		lw_lane_cut(lane);
	} else if (!lane->kill) {
		lane->kill = true;
		lane->expire_at_ms = worker->now_ms + GRACE_MS;
	}
}

/* The earliest deadline of what is left, the aborted ones aside. */
static void find_deadline(struct lw_worker *worker, struct lw_path *path)
{
	struct lw_engine *engine = worker->engine;
	const struct lw_slice *slice;
	bool timed = false;
	uint32_t first = 0;

#define CONSIDER(task)                                                                                                 \
	do {                                                                                                           \
		if (((task)->flags & LW_TASK_ABORT) == 0 && (!timed || lw_before((task)->deadline_ms, first))) {       \
			first = (task)->deadline_ms;                                                                   \
			timed = true;                                                                                  \
		}                                                                                                      \
	} while (0)
	for (int i = 0; i < LW_PATH_LISTS; i++)
		for (uint32_t k = path->waiting[i].head; k != LW_INDEX_NONE; k = engine->tasks[k].next)
			CONSIDER(&engine->tasks[k]);
	TAILQ_FOREACH(slice, &path->retry, link)
	CONSIDER(slice->task);
	TAILQ_FOREACH(slice, &path->copying, link)
	CONSIDER(slice->task);
	for (uint32_t i = 0; i < path->lanes; i++)
		TAILQ_FOREACH(slice, &path->lane[i]->inflight, link)
	CONSIDER(slice->task);
#undef CONSIDER
	path->timed = timed;
	path->deadline_ms = first;
}

bool lw_path_fence(struct lw_path *path, struct lw_slice *slice, enum lw_reason reason)
{
	struct lw_lane *lane = slice->only;
	struct lw_task *task = slice->task;

	if (lane == NULL || !lane->fenced || lane->fence_up || !lw_path_may_fence(path))
		return false;
	lw_task_fail(task, lw_task_is_over(task) ? task->reason : reason);
	task->flags |= LW_TASK_ABORT;
	if (slice->waits)
		return true;
	slice->waits = true;
	slice->attempts = 0;
	slice->fence_ms = lane->worker->now_ms + FENCE_MS;
	lane->fencing = true;
	return true;
}

static bool fence_is_over(const struct lw_worker *worker, struct lw_slice *slice, enum lw_unfence how)
{
	if (how == LW_FENCE_BROKE)
		return ++slice->attempts == FENCE_TRIES;
	return how == LW_FENCE_IS_UP || lw_before(slice->fence_ms, worker->now_ms);
}

void lw_path_unfence(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, enum lw_unfence how)
{
	struct lw_slice *slice, *next;

	lane->fencing = false;
	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		next = TAILQ_NEXT(slice, link);
		if (slice->only != lane || !slice->waits)
			continue;
		if (!fence_is_over(worker, slice, how)) {
			lane->fencing = true;
			continue;
		}
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, slice->task->reason);
	}
}

void lw_path_abort(struct lw_worker *worker, struct lw_path *path, const struct lw_abort *abort)
{
	struct lw_slice *slice, *next;

	for (int i = 0; i < LW_PATH_LISTS; i++)
		abort_waiting(worker, path, &path->waiting[i], abort);
	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		next = TAILQ_NEXT(slice, link);
		if (!matches(worker, path, abort, slice->task, lw_slice_local(slice), slice->remote, slice->length))
			continue;
		if (lw_path_fence(path, slice, abort->reason))
			continue;
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, abort->reason);
	}
	for (uint32_t i = 0; i < path->lanes; i++)
		abort_lane(worker, path->lane[i], abort);
	/* A copy can't be taken back: these end with it. */
	TAILQ_FOREACH(slice, &path->copying, link)
	if (matches(worker, path, abort, slice->task, lw_slice_local(slice), slice->remote, slice->length))
		mark(slice->task, abort->reason);
	if (abort->expired)
		find_deadline(worker, path);
}

bool lw_lane_has_aborted(const struct lw_lane *lane)
{
	const struct lw_slice *slice;

	TAILQ_FOREACH(slice, &lane->inflight, link)
	if ((slice->task->flags & LW_TASK_ABORT) != 0)
		return true;
	return false;
}
