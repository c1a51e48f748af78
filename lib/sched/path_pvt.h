/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a path share: see path.h for what a path is. One worker's thread. */
#ifndef LW_SCHED_PATH_PVT_H
#define LW_SCHED_PATH_PVT_H

#include "lib/engine.h"
#include "lib/sched/path.h"

/* a is at or before b on a clock that wraps. */
static inline bool lw_before(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) <= 0;
}

static inline enum lw_state lw_state_of(enum lw_reason reason)
{
	switch (reason) {
	case LW_REASON_NONE:
		return LW_COMPLETED;
	case LW_REASON_TIMEOUT:
		return LW_TIMEOUT;
	case LW_REASON_CANCELED:
	case LW_REASON_SEGMENT_CLOSED:
		return LW_CANCELED;
	default:
		return LW_FAILED;
	}
}

/* A list of tasks, through their own links. */
static inline void lw_tasks_init(struct lw_task_list *list)
{
	*list = (struct lw_task_list){.head = LW_INDEX_NONE, .tail = LW_INDEX_NONE};
}

static inline void lw_tasks_append(struct lw_engine *engine, struct lw_task_list *list, struct lw_task *task)
{
	uint32_t index = (uint32_t)(task - engine->tasks);

	task->next = LW_INDEX_NONE;
	task->flags |= LW_TASK_QUEUED;
	list->bytes += task->length;
	if (list->tail == LW_INDEX_NONE)
		list->head = index;
	else
		engine->tasks[list->tail].next = index;
	list->tail = index;
}

/* Unlinks the task after previous (LW_INDEX_NONE: the head). */
static inline struct lw_task *lw_tasks_unlink(struct lw_engine *engine, struct lw_task_list *list, uint32_t previous)
{
	uint32_t index = previous == LW_INDEX_NONE ? list->head : engine->tasks[previous].next;
	struct lw_task *task = &engine->tasks[index];

	list->bytes -= task->length;
	if (previous == LW_INDEX_NONE) {
		list->head = task->next;
		list->bytes += list->cut;
		list->cut = 0;
	} else {
		engine->tasks[previous].next = task->next;
	}
	if (list->tail == index)
		list->tail = previous;
	task->flags &= (uint8_t)~LW_TASK_QUEUED;
	return task;
}

static inline void lw_path_finish(struct lw_worker *worker, struct lw_task *task, uint32_t lane, enum lw_reason reason)
{
	uint64_t bytes = atomic_load_explicit(&task->bytes, memory_order_relaxed);

	lw_worker_finish(worker, task, task->batch, bytes, lw_state_of(reason), reason, lane);
}

static inline void lw_task_fail(struct lw_task *task, enum lw_reason reason)
{
	if ((task->flags & LW_TASK_FAILED) != 0)
		return;
	task->flags |= LW_TASK_FAILED;
	task->reason = (uint8_t)reason;
}

/* Who asks the peer again what it offers; NULL: there is nobody to ask. */
static inline struct lw_refresh *lw_path_refresh(struct lw_worker *worker, const struct lw_path *path)
{
	return worker->engine->config.refresh ? worker->engine->segments[path->segment].refresh : NULL;
}

/* ranges.c: looks both ranges up, and keeps what answered for the rest of the pass if it is the host's. *pair tells the
 * kinds of memory; what was not found counts as the host's. */
enum lw_reason lw_path_look_up(struct lw_worker *worker, struct lw_path *path, uint32_t access, uint64_t local,
			       uint64_t remote, uint64_t length, uint32_t *pair);

/* Whether the range that answered last in this pass answers again. */
static inline bool lw_path_hinted(const struct lw_worker *worker, const struct lw_hint *hint, uint64_t addr,
				  uint64_t length, uint32_t access)
{
	return hint->pass == worker->passes && addr >= hint->addr && addr + length <= hint->end &&
	       (hint->access & access) == access;
}

/* Both ranges of a request, before a byte moves. The request may be another path's: that of *pair. */
static inline enum lw_reason lw_path_check(struct lw_worker *worker, struct lw_path *path, uint8_t op, uint64_t local,
					   uint64_t remote, uint64_t length, uint32_t *pair)
{
	uint32_t access = op == LW_READ ? LW_ACCESS_REMOTE_READ : LW_ACCESS_REMOTE_WRITE;

	*pair = LW_PAIR(LW_MEM_HOST, LW_MEM_HOST);
	if (lw_path_hinted(worker, &worker->local_hint, local, length, 0) &&
	    lw_path_hinted(worker, &path->hint, remote, length, access))
		return LW_REASON_NONE;
	return lw_path_look_up(worker, path, access, local, remote, length, pair);
}

/* path.c */

/* A task that is in no list waits for the path of another pair of kinds from now on. */
void lw_path_move(struct lw_worker *worker, struct lw_path *path, uint32_t pair, struct lw_task *task);
/* Puts a slice on a lane that has credit. */
void lw_path_post(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, struct lw_slice *slice);

/* missed.c: requests outside of what the peer was seen to offer. */

/* Whether the peer itself will say that it does not offer the task's range, before a byte of it moves: then the task
 * has to go in one piece. */
bool lw_path_peer_checks(struct lw_worker *worker, const struct lw_path *path, const struct lw_task *task);
/* Whether what the view shows is all that the peer offers at this moment. Without a lane it may be gone, and another
 * one have its name. */
bool lw_path_offer_seen(struct lw_worker *worker, const struct lw_path *path);
/* The head of a list points outside of what the peer offered when it was last asked. It may offer more by now. False:
 * the head is the peer's to refuse. */
bool lw_path_miss(struct lw_worker *worker, struct lw_path *path, struct lw_task_list *list);

/* path.c: the slice is on no lane and in no list, and its task has it no more. */
void lw_path_slice_give(struct lw_worker *worker, struct lw_path *path, struct lw_slice *slice);

/* connect.c: the lanes of a path. */

bool lw_path_any_lane(const struct lw_path *path, enum lw_lane_state state);
/* Connects what is down and may be tried again. */
void lw_path_connect(struct lw_worker *worker, struct lw_path *path);

/* choice.c */

/* The lanes that are near the memory of a slice, a bit each; LW_LANES_ALL where that makes no difference. */
#define LW_LANES_ALL UINT32_MAX
uint32_t lw_path_near(const struct lw_path *path, uint64_t local, uint64_t remote);
/* The lane, of those in lanes, for a slice of a request of which so many bytes are left. urgent: it was on another lane
 * already, and bounds on what lanes hold don't count. NULL: it has to wait. */
struct lw_lane *lw_path_choose(struct lw_worker *worker, struct lw_path *path, uint32_t lanes, uint64_t length,
			       uint32_t priority, bool urgent);
/* The longest that a slice of the path can be. */
static inline uint64_t lw_path_slice_most(const struct lw_worker *worker, const struct lw_path *path)
{
	const struct lw_config *config = &worker->engine->config;

	return path->staged && config->stage_bytes < config->slice_bytes ? config->stage_bytes : config->slice_bytes;
}

/* The length of the task's next slice on that lane, of which cut bytes are cut already. */
uint64_t lw_path_slice_length(struct lw_worker *worker, const struct lw_path *path, const struct lw_lane *lane,
			      const struct lw_task *task, uint64_t cut);
/* The class (enum lw_priority) whose turn it is; and a slice of a class was cut. */
uint32_t lw_path_turn(const struct lw_worker *worker, const struct lw_path *path);
void lw_path_turn_done(const struct lw_worker *worker, struct lw_path *path, uint32_t priority, uint64_t bytes);

/* heal.c */

/* Looks at lanes that are busy, cuts those that stand still, and sends home those that can go there. */
void lw_path_watch(struct lw_worker *worker, struct lw_path *path);
/* The way of another lane that is up and well; LW_WAY_NONE: there is none. */
uint32_t lw_path_good_way(const struct lw_path *path, const struct lw_lane *except);

/* abort.c */

/* Cuts a lane because of what was aborted on it. The others are not to blame: it counts as no attempt of theirs. */
void lw_lane_cut(struct lw_lane *lane);
bool lw_lane_has_aborted(const struct lw_lane *lane);

enum lw_unfence {
	LW_FENCE_IS_UP,   /* what waited for it ends */
	LW_FENCE_BROKE,   /* the lane went down: what has seen that often enough ends */
	LW_FENCE_EXPIRED, /* what has waited for long enough ends */
};
void lw_path_unfence(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, enum lw_unfence how);

/* Whether lanes are still connected: of a segment that is closed, too, while WRITEs wait for their fence. */
static inline bool lw_path_may_fence(const struct lw_path *path)
{
	return path->dead == LW_REASON_NONE || path->dead == LW_REASON_SEGMENT_CLOSED;
}

/* A WRITE in path->retry is not to be repeated: its task ends with reason, if with no other, but not while the peer may
 * store it still. False: it can't. */
bool lw_path_fence(struct lw_path *path, struct lw_slice *slice, enum lw_reason reason);

/* lane.c: a slice of the lane, which the driver does not have any more, is not to be repeated: the same. */
void lw_slice_give_up(struct lw_lane *lane, struct lw_slice *slice, enum lw_reason reason);

static inline bool lw_task_is_over(const struct lw_task *task)
{
	return (task->flags & (LW_TASK_FAILED | LW_TASK_ABORT)) != 0;
}

#endif
