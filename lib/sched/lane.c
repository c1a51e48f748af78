/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sched/lane.h"

#include <stdio.h>
#include <string.h>

#include "lib/engine.h"
#include "lib/sched/path_pvt.h"
#include "lib/sched/stage.h"

#define ATTEMPTS_MAX 3
#define BACKOFF_MIN_MS 10
#define BACKOFF_MAX_MS 1000

uint32_t lw_lane_id(const struct lw_lane *lane)
{
	uint32_t id = lane->index * lane->worker->engine->worker_count + lane->worker->index;

	return id < LW_LANE_NONE ? id : LW_LANE_NONE;
}

static void set_state(struct lw_lane *lane, enum lw_lane_state state)
{
	atomic_store_explicit(&lane->state, state, memory_order_relaxed);
}

void lw_lane_up(struct lw_lane *lane)
{
	lw_worker_clock(lane->worker);
	set_state(lane, LW_LANE_UP);
	if (lane->last_way != LW_WAY_NONE && lane->last_way != lane->way) {
		lw_count(&lane->stats.moves, 1);
		atomic_store_explicit(&lane->rate, 0, memory_order_relaxed);
		lane->watch.min_rtt_us = 0;
	}
	lane->last_way = lane->way;
	lw_lane_watch_begin(lane);
	lane->backoff_ms = 0;
	lane->failures = 0;
	lane->kill = false;
	if (!lane->fenced)
		lw_lane_fence_up(lane);
	if (lane->ops->now != NULL)
		lane->path->quick = lane;
	lw_count(&lane->stats.connects, 1);
	lw_path_activate(lane->worker, lane->path);
}

static void take_off(struct lw_lane *lane, struct lw_slice *slice)
{
	TAILQ_REMOVE(&lane->inflight, slice, link);
	lane->credits++;
	lane->worker->hot--;
	lane->path->inflight--;
	atomic_store_explicit(&lane->stats.inflight_slices, lane->ops->credits - lane->credits, memory_order_relaxed);
	lw_count(&lane->stats.inflight_bytes, -slice->length);
	if (slice->task->priority == LW_BULK) {
		lane->bulk_bytes -= slice->length;
		lane->path->bulk--;
	}
	lane->watch.idle |= TAILQ_EMPTY(&lane->inflight);
}

void lw_slice_done(struct lw_lane *lane, struct lw_slice *slice, enum lw_reason reason)
{
	take_off(lane, slice);
	if (reason == LW_REASON_NONE) {
		lw_count(&lane->stats.slices, 1);
		lw_count(slice->op == LW_WRITE ? &lane->stats.tx_bytes : &lane->stats.rx_bytes, slice->length);
	} else {
		lw_count(&lane->stats.errors, 1);
	}
	if (slice->bounce != NULL && slice->op == LW_READ && reason == LW_REASON_NONE)
		lw_stage_unload(lane->worker, lane->path, slice, lw_lane_id(lane));
	else
		lw_path_slice_end(lane->worker, lane->path, slice, lw_lane_id(lane), reason);
}

void lw_lane_fence_up(struct lw_lane *lane)
{
	lane->fence_up = true;
	if (lane->fencing)
		lw_path_unfence(lane->worker, lane->path, lane, LW_FENCE_IS_UP);
}

/* Whether the peer may store bytes of it that it got on this connection, or on one before. */
static bool may_arrive(const struct lw_lane *lane, const struct lw_slice *slice)
{
	return slice->op == LW_WRITE && (slice->started || (slice->only != NULL && !lane->fence_up));
}

static void to_retry(struct lw_lane *lane, struct lw_slice *slice)
{
	slice->only = may_arrive(lane, slice) ? lane : NULL;
	slice->started = false;
	take_off(lane, slice);
	TAILQ_INSERT_TAIL(&lane->path->retry, slice, link);
}

void lw_slice_give_up(struct lw_lane *lane, struct lw_slice *slice, enum lw_reason reason)
{
	if (!lane->fenced || !lw_path_may_fence(lane->path) || !may_arrive(lane, slice)) {
		lw_slice_done(lane, slice, reason);
		return;
	}
	lw_count(&lane->stats.errors, 1);
	to_retry(lane, slice);
	lw_path_fence(lane->path, slice, reason);
}

/* A slice of a lane that goes down is repeated, or ends. */
static void hand_on(struct lw_lane *lane, struct lw_slice *slice, enum lw_reason reason)
{
	const struct lw_task *task = slice->task;

	if (lw_task_is_over(task)) {
		lw_slice_give_up(lane, slice, task->reason);
	} else if (lane->path->dead == LW_REASON_NONE && slice->attempts < ATTEMPTS_MAX &&
		   (lane->fenced || !may_arrive(lane, slice))) {
		slice->attempts++;
		lw_count(&lane->stats.retries, 1);
		to_retry(lane, slice);
	} else {
		lw_slice_give_up(lane, slice, reason);
	}
}

void lw_lane_down(struct lw_lane *lane, enum lw_reason reason)
{
	struct lw_worker *worker = lane->worker;
	struct lw_path *path = lane->path;
	bool was_up = lw_lane_state(lane) == LW_LANE_UP;
	struct lw_slice *slice;

	if (lw_lane_state(lane) == LW_LANE_DOWN)
		return;
	set_state(lane, LW_LANE_DOWN);
	lane->kill = false;
	lw_lane_watch_end(lane);
	lane->ops->lane_close(lane);
	if (path->quick == lane)
		path->quick = NULL;
	if (reason == LW_REASON_RESTARTED && path->ways > 1 && lw_path_good_way(path, lane) != LW_WAY_NONE) {
		/* An address that the peer names is somebody else's here. */
		lane->home = lane->way = lw_path_good_way(path, lane);
		reason = LW_REASON_RESET;
	}
	if (reason == LW_REASON_RESTARTED)
		path->dead = reason;
	lane->fence_up = false;
	if (lane->fencing)
		lw_path_unfence(worker, path, lane, LW_FENCE_BROKE);
	while ((slice = TAILQ_FIRST(&lane->inflight)) != NULL)
		hand_on(lane, slice, reason);
	/* There may be several ways to a peer: it is unreachable when there is no answer by any. */
	if (!was_up && path->dead == LW_REASON_NONE && ++lane->failures < path->ways) {
		lane->way = (lane->way + 1) % path->ways;
		lane->retry_at_ms = worker->now_ms;
		lw_path_activate(worker, path);
		return;
	}
	lane->failures = 0;
	if (!was_up)
		lane->way = lane->home;
	/* A connection that served is made again at once; one that could not be made waits, longer each time. */
	if (!was_up)
		lane->backoff_ms = lane->backoff_ms == 0                   ? BACKOFF_MIN_MS
				   : lane->backoff_ms * 2 < BACKOFF_MAX_MS ? lane->backoff_ms * 2
									   : BACKOFF_MAX_MS;
	lane->retry_at_ms = worker->now_ms + lane->backoff_ms;
	if (!was_up && lw_path_fall_back(worker, path))
		return;
	if (!was_up || !lw_path_may_fence(path))
		lw_path_lane_lost(worker, path, reason);
	lw_path_activate(worker, path);
}

void lw_lane_show(struct lw_lane *lane, const char *shown)
{
	char text[LW_PEER_WORDS * sizeof(uint64_t)] = "";
	uint64_t word;

	snprintf(text, sizeof(text), "%s", shown);
	for (size_t i = 0; i < LW_PEER_WORDS; i++) {
		memcpy(&word, text + i * sizeof(word), sizeof(word));
		atomic_store_explicit(&lane->peer[i], word, memory_order_relaxed);
	}
}

void lw_lane_over(struct lw_lane *lane)
{
	struct lw_slice *slice;

	lw_lane_fence_up(lane);
	TAILQ_FOREACH(slice, &lane->path->retry, link)
	if (slice->only == lane)
		slice->only = NULL;
	lw_path_activate(lane->worker, lane->path);
}

struct lw_lane *lw_lane_serve(struct lw_worker *worker, uint32_t driver, const char *peer)
{
	struct lw_lane *lane = lw_worker_lane_take(worker, driver);

	if (lane == NULL)
		return NULL;
	lw_lane_show(lane, peer);
	atomic_store_explicit(&lane->served, true, memory_order_relaxed);
	set_state(lane, LW_LANE_UP);
	lw_count(&lane->stats.connects, 1);
	atomic_store_explicit(&lane->in_use, true, memory_order_release);
	return lane;
}

void lw_lane_serve_end(struct lw_lane *lane)
{
	lw_worker_lane_give(lane->worker, lane);
}
