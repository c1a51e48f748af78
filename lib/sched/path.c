/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sched/path.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/engine.h"
#include "lib/refresh.h"

#define GRACE_MS 500 /* an aborted task whose bytes are on the wire may still complete for so long */

/* a is at or before b on a clock that wraps. */
static bool before(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) <= 0;
}

static enum lw_state state_of(enum lw_reason reason)
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

static void list_init(struct lw_task_list *list)
{
	*list = (struct lw_task_list){.head = LW_INDEX_NONE, .tail = LW_INDEX_NONE};
}

static void list_append(struct lw_engine *engine, struct lw_task_list *list, struct lw_task *task)
{
	uint32_t index = (uint32_t)(task - engine->tasks);

	task->next = LW_INDEX_NONE;
	task->flags |= LW_TASK_QUEUED;
	if (list->tail == LW_INDEX_NONE)
		list->head = index;
	else
		engine->tasks[list->tail].next = index;
	list->tail = index;
}

/* Unlinks the task after previous (LW_INDEX_NONE: the head). */
static struct lw_task *list_unlink(struct lw_engine *engine, struct lw_task_list *list, uint32_t previous)
{
	uint32_t index = previous == LW_INDEX_NONE ? list->head : engine->tasks[previous].next;
	struct lw_task *task = &engine->tasks[index];

	if (previous == LW_INDEX_NONE) {
		list->head = task->next;
		list->cut = 0;
	} else {
		engine->tasks[previous].next = task->next;
	}
	if (list->tail == index)
		list->tail = previous;
	task->flags &= (uint8_t)~LW_TASK_QUEUED;
	return task;
}

static bool has_work(const struct lw_path *path)
{
	return path->waiting[0].head != LW_INDEX_NONE || path->waiting[1].head != LW_INDEX_NONE ||
	       !TAILQ_EMPTY(&path->retry);
}

void lw_path_init(struct lw_worker *worker, struct lw_path *path, uint32_t segment, uint32_t gen)
{
	*path = (struct lw_path){.segment = segment, .gen = gen};
	for (int i = 0; i < LW_PATH_LISTS; i++)
		list_init(&path->waiting[i]);
	TAILQ_INIT(&path->retry);
	TAILQ_INSERT_TAIL(&worker->live, path, live_link);
}

void lw_path_activate(struct lw_worker *worker, struct lw_path *path)
{
	if (path->active || !has_work(path))
		return;
	path->active = true;
	TAILQ_INSERT_TAIL(&worker->active, path, active_link);
}

static void finish(struct lw_worker *worker, struct lw_task *task, uint32_t lane, enum lw_reason reason)
{
	uint64_t bytes = atomic_load_explicit(&task->bytes, memory_order_relaxed);

	lw_worker_finish(worker, task, task->batch, bytes, state_of(reason), reason, lane);
}

static void fail_task(struct lw_task *task, enum lw_reason reason)
{
	if ((task->flags & LW_TASK_FAILED) != 0)
		return;
	task->flags |= LW_TASK_FAILED;
	task->reason = (uint8_t)reason;
}

/* Who asks the peer again what it offers; NULL: there is nobody to ask. */
static struct lw_refresh *refresh_of(struct lw_worker *worker, const struct lw_path *path)
{
	return worker->engine->config.refresh ? worker->engine->segments[path->segment].refresh : NULL;
}

const struct lw_view *lw_path_view(struct lw_worker *worker, const struct lw_path *path)
{
	return atomic_load_explicit(&worker->engine->segments[path->segment].view, memory_order_acquire);
}

/* Whether the range that answered last in this pass answers again. */
static inline bool hinted(const struct lw_worker *worker, const struct lw_hint *hint, uint64_t addr, uint64_t length,
			  uint32_t access)
{
	return hint->pass == worker->passes && addr >= hint->addr && addr + length <= hint->end &&
	       (hint->access & access) == access;
}

static bool look_up(struct lw_worker *worker, struct lw_hint *hint, const struct lw_rangemap *map, uint64_t addr,
		    uint64_t length, uint32_t access)
{
	const struct lw_range *first;

	if (!lw_rangemap_covers(map, addr, length, access, &first))
		return false;
	*hint = (struct lw_hint){
		.addr = first->addr, .end = first->end, .access = first->access, .pass = worker->passes};
	return true;
}

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Local memory that nobody registered, where the setting allows it: may it be read, or written? With a kernel that
 * can't tell: is it there at all? */
static bool is_usable(uint64_t addr, uint64_t length, bool written)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), page = addr & ~(page_bytes - 1);
	void *memory = (void *)(uintptr_t)page;
	void *ours = (void *)((uintptr_t)&page_bytes & ~(uintptr_t)(page_bytes - 1)); /* of the stack */

	if (addr + length <= addr)
		return false;
	length += addr - page;
	if (madvise(memory, length, written ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
		return true;
	if (errno != EINVAL || madvise(ours, 1, MADV_POPULATE_READ) == 0)
		return false;
	return msync(memory, length, MS_ASYNC) == 0;
}

static enum lw_reason look_up_both(struct lw_worker *worker, struct lw_path *path, uint32_t access, uint64_t local,
				   uint64_t remote, uint64_t length)
{
	const struct lw_rangemap *own = atomic_load_explicit(&worker->engine->memory, memory_order_acquire);
	const struct lw_view *view = lw_path_view(worker, path);

	if (view == NULL)
		return LW_REASON_SEGMENT_CLOSED;
	if (!look_up(worker, &worker->local_hint, own, local, length, 0) &&
	    !(worker->engine->config.local_unregistered && is_usable(local, length, access == LW_ACCESS_REMOTE_READ)))
		return LW_REASON_LOCAL_RANGE;
	if (view->everything)
		path->hint = (struct lw_hint){.end = UINT64_MAX, .access = UINT32_MAX, .pass = worker->passes};
	else if (!look_up(worker, &path->hint, path->segment == 0 ? own : view->ranges, remote, length, access))
		return LW_REASON_REMOTE_RANGE;
	return LW_REASON_NONE;
}

/* Both ranges of a request, before a byte moves. */
static inline enum lw_reason check_ranges(struct lw_worker *worker, struct lw_path *path, uint8_t op, uint64_t local,
					  uint64_t remote, uint64_t length)
{
	uint32_t access = op == LW_READ ? LW_ACCESS_REMOTE_READ : LW_ACCESS_REMOTE_WRITE;

	if (hinted(worker, &worker->local_hint, local, length, 0) &&
	    hinted(worker, &path->hint, remote, length, access))
		return LW_REASON_NONE;
	return look_up_both(worker, path, access, local, remote, length);
}

bool lw_path_now(struct lw_worker *worker, struct lw_path *path, const struct lw_run *run, struct lw_task *task)
{
	struct lw_lane *lane = path->quick;
	enum lw_reason reason;

	if (lane == NULL || path->active)
		return false;
	reason = check_ranges(worker, path, run->op, run->local, run->remote, run->length);
	if (reason == LW_REASON_REMOTE_RANGE && refresh_of(worker, path) != NULL)
		return false;
	if (reason != LW_REASON_NONE) {
		lw_worker_finish(worker, task, run->batch, 0, state_of(reason), reason, LW_LANE_NONE);
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

void lw_path_take(struct lw_worker *worker, struct lw_path *path, struct lw_task *task)
{
	if (path->dead != LW_REASON_NONE) {
		finish(worker, task, LW_LANE_NONE, path->dead);
		return;
	}
	lw_worker_clock(worker);
	task->deadline_ms += worker->now_ms;
	if (!path->timed || before(task->deadline_ms, path->deadline_ms))
		path->deadline_ms = task->deadline_ms;
	path->timed = true;
	list_append(worker->engine, &path->waiting[task->priority], task);
	lw_path_activate(worker, path);
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
		fail_task(task, reason);
	/* What it was thought to offer is not what it offers. */
	if (refused && refresh_of(worker, path) != NULL)
		lw_refresh_want(refresh_of(worker, path));
	TAILQ_INSERT_HEAD(&worker->free_slices, slice, link);
	worker->slices_held--;
	path->held--;
	task->slices--;
	if (task->slices == 0 && (task->flags & LW_TASK_QUEUED) == 0)
		finish(worker, task, lane, (task->flags & LW_TASK_FAILED) != 0 ? task->reason : LW_REASON_NONE);
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

static void post(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, struct lw_slice *slice)
{
	TAILQ_INSERT_TAIL(&lane->inflight, slice, link);
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

/* The lane that has least to do among those that can take a slice. */
static struct lw_lane *pick_lane(struct lw_worker *worker, struct lw_path *path)
{
	struct lw_lane *best = NULL;
	uint64_t least = worker->engine->config.lane_bytes; /* who has more has enough to do */

	for (uint32_t i = 0; i < path->lanes; i++) {
		struct lw_lane *lane = path->lane[i];
		uint64_t bytes = atomic_load_explicit(&lane->stats.inflight_bytes, memory_order_relaxed);

		if (lw_lane_state(lane) == LW_LANE_UP && lane->credits != 0 && bytes < least) {
			best = lane;
			least = bytes;
		}
	}
	return best;
}

static bool any_lane_in(const struct lw_path *path, enum lw_lane_state state)
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

	if (view == NULL || path->dead != LW_REASON_NONE || path->lanes == 0 || any_lane_in(path, LW_LANE_UP) ||
	    any_lane_in(path, LW_LANE_CONNECTING))
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

/* Connects what is down and may be tried again. */
static void connect_lanes(struct lw_worker *worker, struct lw_path *path)
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

		if (lw_lane_state(lane) != LW_LANE_DOWN || !before(lane->retry_at_ms, worker->now_ms))
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

	if (path->dead == LW_REASON_NONE && (any_lane_in(path, LW_LANE_UP) || any_lane_in(path, LW_LANE_CONNECTING)))
		return;
	while ((slice = TAILQ_FIRST(&path->retry)) != NULL) {
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, reason);
	}
	if (reason == LW_REASON_UNREACHABLE && refresh_of(worker, path) != NULL)
		lw_refresh_want(refresh_of(worker, path)); /* it may be another one now */
	for (int i = 0; i < LW_PATH_LISTS; i++) {
		while (path->waiting[i].head != LW_INDEX_NONE) {
			struct lw_task *task = list_unlink(worker->engine, &path->waiting[i], LW_INDEX_NONE);

			fail_task(task, reason);
			if (task->slices == 0)
				finish(worker, task, LW_LANE_NONE, task->reason);
		}
	}
}

static uint64_t slice_length(struct lw_worker *worker, const struct lw_path *path, const struct lw_lane *lane,
			     const struct lw_task *task, uint64_t cut)
{
	uint64_t length = task->length - cut;
	const struct lw_rangemap *map;
	const struct lw_range *range;
	const struct lw_view *view;

	if (length > worker->engine->config.slice_bytes)
		length = worker->engine->config.slice_bytes;
	if (lane->ops->peer_cuts == 0 || (task->flags & LW_TASK_MISSED) != 0)
		return length;
	view = lw_path_view(worker, path);
	map = path->segment == 0 ? atomic_load_explicit(&worker->engine->memory, memory_order_acquire) : view->ranges;
	range = lw_rangemap_find(map, task->remote + cut);
	/* Gone since the check: the peer will refuse it. */
	if (range != NULL && range->end - (task->remote + cut) < length)
		length = range->end - (task->remote + cut);
	return length;
}

/* Whether the peer itself will say that it does not offer the task's range, before a byte of it moves: then the task
 * has to go in one piece. */
static bool peer_checks(struct lw_worker *worker, const struct lw_path *path, const struct lw_task *task)
{
	const struct lw_view *view = lw_path_view(worker, path);
	uint32_t driver;

	if (view == NULL || task->length > worker->engine->config.slice_bytes || path->lanes == 0)
		return false;
	driver = path->lane[0]->driver;
	return lw_drivers[driver]->peer_checks != NULL &&
	       lw_drivers[driver]->peer_checks(worker->engine->driver_context[driver], view);
}

/* Whether what the view shows is all that the peer offers at this moment. Without a lane it may be gone, and another
 * one have its name. */
static bool offer_seen(struct lw_worker *worker, const struct lw_path *path)
{
	const struct lw_view *view = lw_path_view(worker, path);
	const struct lw_route *route;

	for (uint32_t i = 0; view != NULL && i < view->route_count && any_lane_in(path, LW_LANE_UP); i++) {
		route = &view->routes[i];
		if (route->driver == path->lane[0]->driver && route->peer != NULL &&
		    lw_drivers[route->driver]->offer_seen != NULL)
			return lw_drivers[route->driver]->offer_seen(route->peer);
	}
	return false;
}

/* The head of a list points outside of what the peer offered when it was last asked. It may offer more by now. False:
 * the head is the peer's to refuse. */
static bool miss_head(struct lw_worker *worker, struct lw_path *path, struct lw_task_list *list)
{
	struct lw_task *task = &worker->engine->tasks[list->head];
	struct lw_refresh *refresh = refresh_of(worker, path);
	uint32_t round = lw_refresh_want(refresh);

	lw_worker_clock(worker);
	task->flags |= LW_TASK_MISSED;
	if (lw_refresh_rests(refresh, worker->now_ns) && peer_checks(worker, path, task))
		return false;
	list_unlink(worker->engine, list, LW_INDEX_NONE);
	task->reason = (uint8_t)round;
	list_append(worker->engine, &path->waiting[LW_PATH_MISSED], task);
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
	list_init(&path->waiting[LW_PATH_MISSED]);
	while (missed.head != LW_INDEX_NONE) {
		struct lw_task *task = list_unlink(worker->engine, &missed, LW_INDEX_NONE);
		enum lw_reason reason = check_ranges(worker, path, task->op, task->local, task->remote, task->length);
		bool decided = (int8_t)((uint8_t)round - task->reason) >= 0 || reason != LW_REASON_REMOTE_RANGE;
		bool theirs = !decided && peer_checks(worker, path, task);

		if (!decided && !theirs) {
			list_append(worker->engine, &path->waiting[LW_PATH_MISSED], task);
			continue;
		}
		task->reason = LW_REASON_NONE;
		if (!theirs && reason != LW_REASON_NONE) {
			finish(worker, task, LW_LANE_NONE, reason);
			continue;
		}
		if (!theirs)
			task->flags &= (uint8_t)~LW_TASK_MISSED;
		task->flags |= LW_TASK_CHECKED;
		list_append(worker->engine, &path->waiting[task->priority], task);
	}
	lw_path_activate(worker, path);
}

/* Cuts the head of a list once. False if there is no credit, lane or slice for it. */
static bool cut_head(struct lw_worker *worker, struct lw_path *path, struct lw_task_list *list)
{
	struct lw_task *task = &worker->engine->tasks[list->head];
	enum lw_reason reason;
	struct lw_slice *slice;
	struct lw_lane *lane;

	if ((task->flags & (LW_TASK_CHECKED | LW_TASK_FAILED)) == 0) {
		reason = check_ranges(worker, path, task->op, task->local, task->remote, task->length);
		if (reason == LW_REASON_REMOTE_RANGE && refresh_of(worker, path) != NULL && !offer_seen(worker, path)) {
			if (miss_head(worker, path, list))
				return true;
			reason = LW_REASON_NONE;
		}
		if (reason != LW_REASON_NONE)
			fail_task(task, reason);
		task->flags |= LW_TASK_CHECKED;
	}
	if ((task->flags & LW_TASK_FAILED) != 0) {
		list_unlink(worker->engine, list, LW_INDEX_NONE);
		if (task->slices == 0)
			finish(worker, task, LW_LANE_NONE, task->reason);
		return true;
	}
	lane = pick_lane(worker, path);
	if (lane == NULL)
		return false;
	slice = take_slice(worker, path);
	if (slice == NULL)
		return false;
	slice->task = task;
	slice->op = task->op;
	slice->attempts = 0;
	slice->started = false;
	slice->only = NULL;
	slice->local = task->local + list->cut;
	slice->remote = task->remote + list->cut;
	slice->length = slice_length(worker, path, lane, task, list->cut);
	task->slices++;
	list->cut += slice->length;
	if (list->cut == task->length)
		list_unlink(worker->engine, list, LW_INDEX_NONE);
	post(worker, path, lane, slice);
	return true;
}

bool lw_path_pump(struct lw_worker *worker, struct lw_path *path)
{
	struct lw_slice *slice, *next;
	struct lw_lane *lane;
	bool worked = false;

	if (path->lanes == 0 || any_lane_in(path, LW_LANE_DOWN))
		connect_lanes(worker, path);
	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		next = TAILQ_NEXT(slice, link);
		lane = slice->only != NULL ? slice->only : pick_lane(worker, path);
		if (lane == NULL)
			return worked;
		if (lw_lane_state(lane) != LW_LANE_UP || lane->credits == 0)
			continue; /* it waits for this one */
		TAILQ_REMOVE(&path->retry, slice, link);
		worked = true;
		if ((slice->task->flags & LW_TASK_FAILED) != 0)
			lw_path_slice_end(worker, path, slice, LW_LANE_NONE, slice->task->reason);
		else if (slice->only != NULL && !lane->fenced)
			lw_path_slice_end(worker, path, slice, LW_LANE_NONE, LW_REASON_RESET);
		else
			post(worker, path, lane, slice);
	}
	for (int i = 0; i < LW_PATH_PRIORITIES; i++) {
		while (path->waiting[i].head != LW_INDEX_NONE) {
			if (!cut_head(worker, path, &path->waiting[i]))
				return worked;
			worked = true;
		}
	}
	if (path->active && !has_work(path)) {
		path->active = false;
		TAILQ_REMOVE(&worker->active, path, active_link);
	}
	return worked;
}

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
	if (abort->expired && !before(task->deadline_ms, worker->now_ms))
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
		list_unlink(engine, list, previous);
		fail_task(task, abort->reason);
		if (task->slices == 0)
			finish(worker, task, LW_LANE_NONE, task->reason);
	}
}

/* Cuts a lane because of what was aborted on it. The others are not to blame: it counts as no attempt of theirs. */
static void cut_lane(struct lw_lane *lane)
{
	struct lw_slice *slice;

	TAILQ_FOREACH(slice, &lane->inflight, link)
	slice->attempts = 0;
	lw_lane_down(lane, LW_REASON_RESET);
}

static void abort_lane(struct lw_worker *worker, struct lw_lane *lane, const struct lw_abort *abort)
{
	struct lw_slice *slice, *next;
	bool stuck = false;

	for (slice = TAILQ_FIRST(&lane->inflight); slice != NULL; slice = next) {
		struct lw_task *task = slice->task;

		next = TAILQ_NEXT(slice, link);
		if (!matches(worker, lane->path, abort, task, slice->local, slice->remote, slice->length))
			continue;
		if (lane->ops->unpost(lane, slice)) {
			lw_slice_done(lane, slice, abort->reason);
			continue;
		}
		if ((task->flags & (LW_TASK_ABORT | LW_TASK_FAILED)) == 0)
			task->reason = (uint8_t)abort->reason;
		task->flags |= LW_TASK_ABORT;
		stuck = true;
	}
	if (!stuck)
		return;
	if (abort->now) {
		cut_lane(lane);
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
		if (((task)->flags & LW_TASK_ABORT) == 0 && (!timed || before((task)->deadline_ms, first))) {          \
			first = (task)->deadline_ms;                                                                   \
			timed = true;                                                                                  \
		}                                                                                                      \
	} while (0)
	for (int i = 0; i < LW_PATH_LISTS; i++)
		for (uint32_t k = path->waiting[i].head; k != LW_INDEX_NONE; k = engine->tasks[k].next)
			CONSIDER(&engine->tasks[k]);
	TAILQ_FOREACH(slice, &path->retry, link)
	CONSIDER(slice->task);
	for (uint32_t i = 0; i < path->lanes; i++)
		TAILQ_FOREACH(slice, &path->lane[i]->inflight, link)
	CONSIDER(slice->task);
#undef CONSIDER
	path->timed = timed;
	path->deadline_ms = first;
}

void lw_path_abort(struct lw_worker *worker, struct lw_path *path, const struct lw_abort *abort)
{
	struct lw_slice *slice, *next;

	for (int i = 0; i < LW_PATH_LISTS; i++)
		abort_waiting(worker, path, &path->waiting[i], abort);
	for (slice = TAILQ_FIRST(&path->retry); slice != NULL; slice = next) {
		next = TAILQ_NEXT(slice, link);
		if (!matches(worker, path, abort, slice->task, slice->local, slice->remote, slice->length))
			continue;
		TAILQ_REMOVE(&path->retry, slice, link);
		lw_path_slice_end(worker, path, slice, LW_LANE_NONE, abort->reason);
	}
	for (uint32_t i = 0; i < path->lanes; i++)
		abort_lane(worker, path->lane[i], abort);
	if (abort->expired)
		find_deadline(worker, path);
}

static bool has_aborted(const struct lw_lane *lane)
{
	const struct lw_slice *slice;

	TAILQ_FOREACH(slice, &lane->inflight, link)
	if ((slice->task->flags & LW_TASK_ABORT) != 0)
		return true;
	return false;
}

void lw_path_tick(struct lw_worker *worker, struct lw_path *path)
{
	static const struct lw_abort expiry = {.reason = LW_REASON_TIMEOUT, .expired = true, .batch = LW_INDEX_NONE};

	for (uint32_t i = 0; i < path->lanes; i++) {
		struct lw_lane *lane = path->lane[i];
		uint32_t state = lw_lane_state(lane);

		if (state == LW_LANE_CONNECTING && before(lane->expire_at_ms, worker->now_ms))
			lw_lane_down(lane, LW_REASON_UNREACHABLE);
		else if (state == LW_LANE_UP && lane->kill && !has_aborted(lane))
			lane->kill = false;
		else if (state == LW_LANE_UP && lane->kill && before(lane->expire_at_ms, worker->now_ms))
			cut_lane(lane);
		else if (state == LW_LANE_DOWN && before(lane->retry_at_ms, worker->now_ms))
			lane->retry_at_ms = worker->now_ms; /* it must not become the future when the clock wraps */
	}
	if (path->timed && before(path->deadline_ms, worker->now_ms))
		lw_path_abort(worker, path, &expiry);
}

void lw_path_reset(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason)
{
	struct lw_abort everything = {.reason = reason, .batch = LW_INDEX_NONE, .now = true};

	if (path->gen == 0)
		return;
	path->dead = reason;
	lw_path_abort(worker, path, &everything);
	for (uint32_t i = 0; i < path->lanes; i++) {
		lw_lane_down(path->lane[i], reason);
		lw_worker_lane_give(worker, path->lane[i]);
	}
	if (path->active)
		TAILQ_REMOVE(&worker->active, path, active_link);
	TAILQ_REMOVE(&worker->live, path, live_link);
	path->gen = 0;
}
