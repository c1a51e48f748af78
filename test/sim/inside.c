/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's insides: what it lent out is in one place, and comes back. */
#include "lib/sched/lane.h"
#include "lib/sched/path.h"
#include "sim/sim.h"

static uint32_t count_slices(const struct lw_slice_list *list)
{
	const struct lw_slice *slice;
	uint32_t count = 0;

	TAILQ_FOREACH(slice, list, link)
	count++;
	return count;
}

static uint32_t look_at_lane(const struct lw_path *path, const struct lw_lane *lane)
{
	const struct lw_slice *slice;
	uint32_t count = 0;
	uint64_t bytes = 0, free_bytes = 0, bulk_bytes = 0;

	SIM_CHECK(lane->path == path && atomic_load(&lane->in_use), "a path has a lane that is not its own");
	TAILQ_FOREACH(slice, &lane->inflight, link)
	{
		count++;
		bytes += slice->length;
		free_bytes += slice->only == NULL ? slice->length : 0;
		bulk_bytes += slice->task->priority == LW_BULK ? slice->length : 0;
	}
	SIM_CHECK(count == 0 || lw_lane_state(lane) == LW_LANE_UP, "slices are on a lane that is not up");
	SIM_CHECK(lane->credits + count == lane->ops->credits, "%u credits and %u slices on a lane with %u in all",
		  lane->credits, count, lane->ops->credits);
	SIM_CHECK(atomic_load(&lane->stats.inflight_slices) == count &&
			  atomic_load(&lane->stats.inflight_bytes) == bytes,
		  "a lane's figures: %llu slices of %u, %llu bytes of %llu",
		  (unsigned long long)atomic_load(&lane->stats.inflight_slices), count,
		  (unsigned long long)atomic_load(&lane->stats.inflight_bytes), (unsigned long long)bytes);
	SIM_CHECK(lane->bulk_bytes == bulk_bytes, "%llu bytes of bulk are on a lane, %llu counted",
		  (unsigned long long)bulk_bytes, (unsigned long long)lane->bulk_bytes);
	/* The last one may go beyond, and those that have to wait for this lane. */
	SIM_CHECK(free_bytes < sim.engine->config.lane_bytes + sim.engine->config.slice_bytes,
		  "%llu bytes are on a lane", (unsigned long long)free_bytes);
	sim_driver_compare(lane);
	return count;
}

void sim_inside_look(void)
{
	const struct lw_worker *worker = sim.worker;
	uint32_t held = 0, hot = 0, lanes = 0;
	const struct lw_path *path;

	TAILQ_FOREACH(path, &worker->live, live_link)
	{
		uint32_t inflight = 0, waiting = count_slices(&path->retry);

		for (uint32_t i = 0; i < path->lanes; i++)
			inflight += look_at_lane(path, path->lane[i]);
		SIM_CHECK(path->inflight == inflight, "%u slices on a path's lanes, %u counted", inflight,
			  path->inflight);
		SIM_CHECK(path->held == inflight + waiting, "a path holds %u slices, %u are on its lanes, %u wait",
			  path->held, inflight, waiting);
		held += path->held;
		hot += inflight;
		lanes += path->lanes;
	}
	SIM_CHECK(worker->slices_held == held, "the worker lent %u slices, the paths hold %u", worker->slices_held,
		  held);
	SIM_CHECK(worker->hot == hot, "%u slices on lanes, %u counted", hot, worker->hot);
	SIM_CHECK(worker->free_lanes_count + lanes == sim.engine->config.max_lanes,
		  "%u lanes are free, %u in use of %u", worker->free_lanes_count, lanes,
		  (uint32_t)sim.engine->config.max_lanes);
}

void sim_inside_rest(void)
{
	const struct lw_worker *worker = sim.worker;
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	SIM_CHECK(worker->slices_held == 0 && count_slices(&worker->free_slices) == worker->slices_used,
		  "%u of %u slices came back", count_slices(&worker->free_slices), worker->slices_used);
	SIM_CHECK(TAILQ_EMPTY(&worker->active), "a path has work when there is none");
	SIM_CHECK(lw_stats_engine(sim.engine, &stats) == 0, "no figures");
	SIM_CHECK(stats.requests == sim.accepted, "%llu requests were taken, %llu are counted",
		  (unsigned long long)sim.accepted, (unsigned long long)stats.requests);
	SIM_CHECK(stats.live_batches == 0 && stats.live_buffers == 0 && stats.live_segments == 0,
		  "%u batches, %u buffers, %u segments are left", stats.live_batches, stats.live_buffers,
		  stats.live_segments);
	SIM_CHECK(worker->free_lanes_count == sim.engine->config.max_lanes || !TAILQ_EMPTY(&worker->live),
		  "lanes are missing");
	/* Each task and batch can be taken again. */
	for (uint32_t i = 0, taken = 0; i <= sim.engine->chunk_slab.count; i++, taken++)
		if (lw_slab_take(&sim.engine->chunk_slab) == LW_SLAB_NONE) {
			SIM_CHECK(taken == sim.engine->chunk_slab.count, "%u of %u chunks of tasks came back", taken,
				  sim.engine->chunk_slab.count);
			break;
		}
	for (uint32_t i = 0, taken = 0; i <= sim.engine->batch_slab.count; i++, taken++)
		if (lw_slab_take(&sim.engine->batch_slab) == LW_SLAB_NONE) {
			SIM_CHECK(taken == sim.engine->batch_slab.count, "%u of %u batches came back", taken,
				  sim.engine->batch_slab.count);
			break;
		}
}
