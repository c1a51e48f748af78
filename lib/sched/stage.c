/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sched/stage.h"

#include <errno.h>

#include "lib/sched/path_pvt.h"

/* The bounce line of the GPU whose memory this is. NULL: it is not registered any more. */
static struct lw_bounce_line *line_of(struct lw_worker *worker, uint64_t local)
{
	const struct lw_rangemap *map = atomic_load_explicit(&worker->engine->memory, memory_order_acquire);
	const struct lw_range *range = lw_rangemap_find(map, local);

	if (range == NULL || (range->access & LW_RANGE_DEVICE) == 0)
		return NULL;
	return lw_bounce_line(&worker->bounces, LW_BOUNCE_OURS, range->access);
}

bool lw_stage_has_room(struct lw_worker *worker, const struct lw_path *path, uint64_t local)
{
	const struct lw_bounce_line *line = line_of(worker, local);

	return line == NULL || lw_bounce_could_take(line, path->bounces);
}

uint64_t lw_stage_length(const struct lw_worker *worker, uint64_t local, uint64_t length)
{
	const struct lw_rangemap *map = atomic_load_explicit(&worker->engine->memory, memory_order_acquire);
	const struct lw_range *range = lw_rangemap_find(map, local);

	return range != NULL && range->end - local < length ? range->end - local : length;
}

void lw_stage_give(struct lw_path *path, struct lw_slice *slice)
{
	lw_bounce_give(slice->bounce);
	slice->bounce = NULL;
	path->bounces--;
}

/* A copy has ended, and with it the slice, or it is to be posted now. */
static void copied(struct lw_worker *worker, struct lw_bounce_slot *slot, int error)
{
	struct lw_slice *slice = slot->owner;
	struct lw_path *path = lw_worker_path(worker, slot->segment, slot->pair);
	struct lw_task *task = slice->task;
	enum lw_reason reason = error != 0 ? LW_REASON_DEVICE : LW_REASON_NONE;

	TAILQ_REMOVE(&path->copying, slice, link);
	path->copies--;
	if (slice->op == LW_WRITE && lw_task_is_over(task))
		reason = (enum lw_reason)task->reason;
	else if (slice->op == LW_WRITE && path->dead != LW_REASON_NONE)
		reason = path->dead;
	if (slice->op == LW_READ || reason != LW_REASON_NONE) {
		lw_path_slice_end(worker, path, slice, slot->tag, reason);
		return;
	}
	TAILQ_INSERT_TAIL(&path->retry, slice, link);
	lw_path_activate(worker, path);
}

/* 0, or a negative errno: the slice is in no list then. */
static int begin_copy(struct lw_worker *worker, struct lw_path *path, struct lw_slice *slice, uint32_t lane)
{
	struct lw_bounce_slot *slot = slice->bounce;
	struct lw_bounce_line *line = line_of(worker, slot->device);
	int error = line != NULL ? lw_bounce_copy(worker, line, slot, slot->device, slice->length, slice->op == LW_READ)
				 : -EFAULT;

	if (error != 0)
		return error;
	slot->owner = slice;
	slot->done = copied;
	slot->tag = lane;
	TAILQ_INSERT_TAIL(&path->copying, slice, link);
	path->copies++;
	return 0;
}

void lw_stage_begin(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, struct lw_slice *slice)
{
	struct lw_bounce_line *line = line_of(worker, slice->local);
	struct lw_bounce_slot *slot = line != NULL ? lw_bounce_take(line, path->bounces) : NULL;

	if (slot == NULL) {
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, LW_REASON_UNREGISTERED);
		return;
	}
	slot->device = slice->local;
	slot->segment = path->segment;
	slot->pair = path->pair;
	slice->bounce = slot;
	slice->local = (uint64_t)(uintptr_t)slot->memory;
	path->bounces++;
	if (slice->op == LW_READ)
		lw_path_post(worker, path, lane, slice);
	else if (begin_copy(worker, path, slice, LW_LANE_NONE) != 0)
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, LW_REASON_DEVICE);
}

void lw_stage_unload(struct lw_worker *worker, struct lw_path *path, struct lw_slice *slice, uint32_t lane)
{
	struct lw_task *task = slice->task;

	if (lw_task_is_over(task)) {
		lw_path_slice_end(worker, path, slice, lane, (enum lw_reason)task->reason);
		return;
	}
	if (begin_copy(worker, path, slice, lane) != 0)
		lw_path_slice_end(worker, path, slice, lane, LW_REASON_DEVICE);
}

void lw_stage_forget(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason)
{
	struct lw_slice *slice;

	while ((slice = TAILQ_FIRST(&path->copying)) != NULL) {
		TAILQ_REMOVE(&path->copying, slice, link);
		path->copies--;
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, reason);
	}
}
