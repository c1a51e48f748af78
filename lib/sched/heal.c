/* SPDX-License-Identifier: Apache-2.0 */
/* What lanes move, those that stand still while their peer is there, and the way back to where they belong. */
#include "lib/sched/path_pvt.h"

#define LOOK_MS 10        /* between two looks at the lanes of a path */
#define SAMPLE_NS 5000000 /* what is shorter tells no rate */
#define RATE_LEAST 65536  /* bytes a second */
#define PROBE_MIN_MS 20   /* between two probes of a way */
#define PROBE_MAX_MS 250
#define PROBE_WAIT_MS 250 /* for the answer */
#define OWN_PROBE_MAX_MS 2000
#define STRIKES_MAX 8          /* standstills in a row, each of which makes us wait longer before the next is one */
#define AWAY_MS 100            /* who did not look for longer knows nothing of the time before */
#define STEADY_MOST_MS 3600000 /* so that the clock's wrap does not count */
#define LEAVE_MS 250           /* a lane that goes home may still end what it has for so long */

static uint64_t rate_after(uint64_t rate, uint64_t sample, bool idle)
{
	sample = sample > RATE_LEAST ? sample : RATE_LEAST;
	if (idle)
		return rate != 0 && sample > rate ? sample : rate;
	if (rate == 0)
		return sample;
	return sample > rate ? rate + (sample - rate) / 4 : rate - (rate - sample) / 4;
}

static void forget_probe(struct lw_lane *lane)
{
	if (lane->watch.probe_way != LW_WAY_NONE)
		lane->ops->probe_end(lane);
	lane->watch.probe_way = LW_WAY_NONE;
}

void lw_lane_watch_begin(struct lw_lane *lane)
{
	uint32_t now_ms = lane->worker->now_ms;

	lane->watch = (struct lw_watch_state){.moved_ms = now_ms,
					      .ended_ms = now_ms,
					      .steady_ms = now_ms,
					      .min_rtt_us = lane->watch.min_rtt_us,
					      .ended = atomic_load_explicit(&lane->stats.slices, memory_order_relaxed),
					      .idle = true,
					      .probe_way = LW_WAY_NONE,
					      .pause_ms = PROBE_MIN_MS,
					      .probe_ms = now_ms + PROBE_MIN_MS};
}

void lw_lane_watch_end(struct lw_lane *lane)
{
	if (lane->ops->probe != NULL)
		forget_probe(lane);
	lane->watch.leaving = false;
}

/* Takes note of what the driver tells. was_away: we, or the lanes' work, paused. */
static void measure(struct lw_lane *lane, const struct lw_look *look, bool was_away)
{
	uint32_t pause_ms = (uint32_t)lane->worker->engine->config.lane_stall_ms / 2;
	uint64_t ended = atomic_load_explicit(&lane->stats.slices, memory_order_relaxed);
	struct lw_watch_state *watch = &lane->watch;
	struct lw_worker *worker = lane->worker;
	uint64_t elapsed_ns = worker->now_ns - watch->looked_ns;

	watch->min_rtt_us = look->min_rtt_us;
	if (ended != watch->ended) {
		if (was_away || worker->now_ms - watch->ended_ms > pause_ms)
			watch->steady_ms = worker->now_ms;
		else if (worker->now_ms - watch->steady_ms > STEADY_MOST_MS)
			watch->steady_ms = worker->now_ms - STEADY_MOST_MS;
		watch->ended_ms = worker->now_ms;
		lane->strikes = 0;
	}
	watch->ended = ended;
	if (look->moved == watch->moved)
		return;
	if (watch->looked_ns != 0 && elapsed_ns >= SAMPLE_NS) {
		double sample = (double)(look->moved - watch->moved) * 1e9 / (double)elapsed_ns;
		uint64_t rate = atomic_load_explicit(&lane->rate, memory_order_relaxed);

		atomic_store_explicit(&lane->rate, rate_after(rate, (uint64_t)sample, watch->idle),
				      memory_order_relaxed);
	}
	watch->moved = look->moved;
	watch->moved_ms = worker->now_ms;
	watch->looked_ns = worker->now_ns;
	watch->idle = TAILQ_EMPTY(&lane->inflight);
}

/* Whether all of its slices could be sent again. */
static bool may_repeat(const struct lw_lane *lane)
{
	const struct lw_slice *slice;

	if (lane->fenced)
		return true;
	TAILQ_FOREACH(slice, &lane->inflight, link)
	if (slice->op == LW_WRITE && slice->started)
		return false;
	return true;
}

static uint32_t still_ms(const struct lw_lane *lane)
{
	return lane->worker->now_ms - lane->watch.moved_ms;
}

uint32_t lw_path_good_way(const struct lw_path *path, const struct lw_lane *except)
{
	uint32_t stall_ms = (uint32_t)except->worker->engine->config.lane_stall_ms;
	const struct lw_lane *best = NULL;

	for (uint32_t i = 0; i < path->lanes; i++) {
		const struct lw_lane *lane = path->lane[i];

		if (lane == except || lw_lane_state(lane) != LW_LANE_UP ||
		    (!TAILQ_EMPTY(&lane->inflight) && still_ms(lane) >= stall_ms))
			continue;
		if (best == NULL || (int32_t)(lane->watch.ended_ms - best->watch.ended_ms) > 0)
			best = lane;
	}
	return best != NULL ? best->way : LW_WAY_NONE;
}

/* Cuts a lane that stands still. It connects again at once, where another lane is well. */
static void cut_still(struct lw_path *path, struct lw_lane *lane)
{
	uint32_t way = lw_path_good_way(path, lane);

	if (!may_repeat(lane))
		return;
	lw_count(&lane->stats.stalls, 1);
	lane->strikes += lane->strikes < STRIKES_MAX;
	lane->way = way != LW_WAY_NONE ? way : (lane->way + 1) % path->ways;
	lw_lane_cut(lane);
}

/* Whether another lane ended slices all the time that this one stood still: the peer is there. A peer that was stopped
 * serves one lane before the other when it goes on: only what both could have been served in counts. */
static bool others_go_on(const struct lw_path *path, const struct lw_lane *lane, uint32_t stall_ms)
{
	for (uint32_t i = 0; i < path->lanes; i++) {
		const struct lw_lane *other = path->lane[i];
		uint32_t since_ms = lw_before(other->watch.steady_ms, lane->watch.moved_ms) ? lane->watch.moved_ms
											    : other->watch.steady_ms;

		if (other != lane && lw_lane_state(other) == LW_LANE_UP &&
		    (int32_t)(other->watch.ended_ms - since_ms) >= (int32_t)stall_ms)
			return true;
	}
	return false;
}

/* Asks by a way. */
static void begin_probe(struct lw_worker *worker, const struct lw_path *path, struct lw_lane *lane, uint32_t way,
			uint32_t wait_ms)
{
	const struct lw_view *view = lw_path_view(worker, path);

	lane->watch.probe_ms = worker->now_ms + wait_ms;
	if (view != NULL && lane->ops->probe(lane, view, way) == 0)
		lane->watch.probe_way = way;
}

/* A busy lane was looked at. */
static void judge(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, bool silent)
{
	uint32_t stall_ms = (uint32_t)worker->engine->config.lane_stall_ms * (lane->strikes + 1);

	if (stall_ms == 0 || still_ms(lane) < stall_ms || (int32_t)still_ms(lane) < 0)
		return;
	if (others_go_on(path, lane, stall_ms) || (silent && path->ways > 1)) {
		cut_still(path, lane);
		return;
	}
	/* Is it the way, or the peer? Its kernel answers as long as there is a way. */
	if (path->ways > 1 && lane->ops->probe != NULL && lane->watch.probe_way == LW_WAY_NONE &&
	    lw_before(lane->watch.probe_ms, worker->now_ms))
		begin_probe(worker, path, lane, lane->way, stall_ms);
}

static void pause_probes(struct lw_lane *lane, uint32_t most_ms)
{
	lane->watch.probe_ms = lane->worker->now_ms + lane->watch.pause_ms;
	lane->watch.pause_ms = lane->watch.pause_ms * 2 < most_ms ? lane->watch.pause_ms * 2 : most_ms;
}

void lw_lane_probed(struct lw_lane *lane, bool answered)
{
	uint32_t way = lane->watch.probe_way, stall_ms = (uint32_t)lane->worker->engine->config.lane_stall_ms;

	lane->watch.probe_way = LW_WAY_NONE;
	if (lw_lane_state(lane) != LW_LANE_UP)
		return;
	if (answered && way == lane->home && lane->way != lane->home) {
		lane->watch.leaving = true;
		lane->watch.leave_ms = lane->worker->now_ms + LEAVE_MS;
	} else if (!answered && way == lane->way && !TAILQ_EMPTY(&lane->inflight) && still_ms(lane) >= stall_ms) {
		cut_still(lane->path, lane);
	} else {
		pause_probes(lane, way == lane->way ? OWN_PROBE_MAX_MS : PROBE_MAX_MS);
	}
}

/* The way home of a lane that is elsewhere. */
static void go_home(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane)
{
	struct lw_watch_state *watch = &lane->watch;

	if (watch->leaving) {
		if (TAILQ_EMPTY(&lane->inflight) || (lw_before(watch->leave_ms, worker->now_ms) && may_repeat(lane))) {
			lane->way = lane->home;
			lw_lane_cut(lane);
		}
		return;
	}
	if (!lw_before(watch->probe_ms, worker->now_ms))
		return;
	if (watch->probe_way != LW_WAY_NONE) {
		/* No answer. That took its time: it is asked again now. */
		lane->ops->probe_end(lane);
		lw_lane_probed(lane, false);
		if (lw_lane_state(lane) != LW_LANE_UP)
			return;
		watch->probe_ms = worker->now_ms;
	}
	if (lane->way == lane->home || lane->ops->probe == NULL)
		return;
	begin_probe(worker, path, lane, lane->home, PROBE_WAIT_MS);
	if (watch->probe_way == LW_WAY_NONE)
		pause_probes(lane, PROBE_MAX_MS);
}

void lw_path_watch(struct lw_worker *worker, struct lw_path *path)
{
	bool looks = path->inflight != 0 && worker->now_ms - path->looked_ms >= LOOK_MS && worker->looks != 0;
	bool was_away = worker->now_ms - path->looked_ms >= AWAY_MS;

	for (uint32_t i = 0; i < path->lanes; i++) {
		struct lw_lane *lane = path->lane[i];
		struct lw_look look;

		if (lw_lane_state(lane) != LW_LANE_UP)
			continue;
		if (looks && !TAILQ_EMPTY(&lane->inflight) && lane->ops->look != NULL && lane->ops->look(lane, &look)) {
			worker->looks -= worker->looks != 0;
			measure(lane, &look, was_away);
			if (was_away)
				lane->watch.moved_ms = worker->now_ms;
			judge(worker, path, lane, look.silent);
		}
		if (path->ways > 1 && lw_lane_state(lane) == LW_LANE_UP)
			go_home(worker, path, lane);
	}
	if (looks)
		path->looked_ms = worker->now_ms;
}
