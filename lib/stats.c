/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/engine.h"
#include "lib/error.h"

/* The worker may end the lane meanwhile and begin another in its place: what is read here may be of either, or zero,
 * and no pointer of the lane's is followed. */
static void copy_lane(struct lw_engine *engine, const struct lw_worker *worker, uint32_t index,
		      const struct lw_lane *lane, struct lw_lane_stats *out)
{
	char text[LW_PEER_WORDS * sizeof(uint64_t) + 1] = "";
	uint32_t driver;

	static_assert(sizeof(text) <= sizeof(out->peer) && sizeof(text) <= sizeof(out->way),
		      "there is room for either");
	memset(out, 0, sizeof(*out));
	out->lane = index * engine->worker_count + worker->index;
	out->worker = worker->index;
	out->state = lw_lane_state(lane);
	out->target = atomic_load_explicit(&lane->served, memory_order_relaxed);
	driver = atomic_load_explicit(&lane->shown_driver, memory_order_relaxed);
	snprintf(out->driver, sizeof(out->driver), "%s", lw_drivers[driver]->name);
	for (size_t i = 0; i < LW_PEER_WORDS; i++) {
		uint64_t word = atomic_load_explicit(&lane->peer[i], memory_order_relaxed);

		memcpy(text + i * sizeof(word), &word, sizeof(word));
	}
	if (out->target) {
		memcpy(out->peer, text, sizeof(text));
	} else {
		const struct lw_segment_slot *slot =
			&engine->segments[atomic_load_explicit(&lane->segment, memory_order_relaxed)];

		snprintf(out->peer, sizeof(out->peer), "%.*s", (int)sizeof(out->peer) - 1, slot->name);
		memcpy(out->way, text, sizeof(text));
		out->rate = atomic_load_explicit(&lane->rate, memory_order_relaxed);
	}
	out->inflight_slices = atomic_load_explicit(&lane->stats.inflight_slices, memory_order_relaxed);
	out->inflight_bytes = atomic_load_explicit(&lane->stats.inflight_bytes, memory_order_relaxed);
#define X(name, unit, help) out->name = atomic_load_explicit(&lane->stats.name, memory_order_relaxed);
	LW_LANE_COUNTERS(X)
#undef X
}

int lw_stats_lanes(struct lw_engine *engine, struct lw_lane_stats *out, size_t max)
{
	size_t count = 0;
	int error;

	if (out == NULL && max != 0)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < engine->worker_count; i++) {
		struct lw_worker *worker = &engine->workers[i];
		uint32_t used = atomic_load_explicit(&worker->lanes_used, memory_order_acquire);

		for (uint32_t k = 0; k < used; k++) {
			struct lw_lane *lane = lw_worker_lane(worker, k);

			if (!atomic_load_explicit(&lane->in_use, memory_order_acquire))
				continue;
			if (count < max)
				copy_lane(engine, worker, k, lane, &out[count]);
			count++;
		}
	}
	pthread_mutex_unlock(&engine->lock);
	lw_engine_leave(engine);
	return (int)count;
}

int lw_stats_engine(struct lw_engine *engine, struct lw_engine_stats *out)
{
	struct lw_engine_stats stats = {0};
	int error;

	if (out == NULL || out->size < sizeof(out->size))
		return lw_fail(-EINVAL, "out must not be NULL, and out->size must be set");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	stats.size = out->size < sizeof(stats) ? out->size : sizeof(stats);
	for (uint32_t i = 0; i < engine->worker_count; i++) {
		struct lw_worker *worker = &engine->workers[i];
		struct timespec cpu;

		stats.requests += atomic_load_explicit(&worker->requests, memory_order_relaxed);
		stats.failed += atomic_load_explicit(&worker->failed, memory_order_relaxed);
		stats.bytes += atomic_load_explicit(&worker->bytes, memory_order_relaxed);
		stats.served_bytes += atomic_load_explicit(&worker->served_bytes, memory_order_relaxed);
		stats.staged_bytes += atomic_load_explicit(&worker->bounces.bytes, memory_order_relaxed);
		stats.copy_errors += atomic_load_explicit(&worker->bounces.errors, memory_order_relaxed);
		stats.worker_sleeps += atomic_load_explicit(&worker->sleeps, memory_order_relaxed);
		if (atomic_load_explicit(&worker->running, memory_order_acquire) != 0 &&
		    clock_gettime(worker->cpu_clock, &cpu) == 0)
			stats.worker_cpu_ns += (uint64_t)cpu.tv_sec * 1000000000 + (uint64_t)cpu.tv_nsec;
	}
	stats.live_batches = atomic_load_explicit(&engine->live_batches, memory_order_relaxed);
	pthread_mutex_lock(&engine->lock);
	stats.live_buffers = engine->live_buffers - engine->own_buffers;
	stats.live_segments = engine->live_segments;
	stats.live_channels = engine->live_channels;
	pthread_mutex_unlock(&engine->lock);
	lw_engine_leave(engine);
	memcpy(out, &stats, stats.size);
	return 0;
}
