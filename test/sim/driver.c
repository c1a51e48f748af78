/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of drivers/drivers.c: one driver of each kind that there is. */
#include <errno.h>
#include <string.h>

#include "meta/descriptor.h"
#include "sim/connection.h"

static int context; /* drivers have none: its address */

static int sim_open(struct lw_engine *engine, void **out, char *why, size_t why_size)
{
	(void)engine;
	(void)why;
	(void)why_size;
	*out = &context;
	return 0;
}

static void sim_close(void *unused)
{
	(void)unused;
}

static void sim_describe(void *unused, struct lw_desc *desc)
{
	(void)unused;
	desc->tcp_port = 30100;
	desc->tcp_version = 2;
}

static int sim_worker_open(void *unused, struct lw_worker *worker, void **out)
{
	(void)unused;
	(void)worker;
	*out = &context;
	return 0;
}

static void sim_worker_close(void *unused)
{
	(void)unused;
}

static bool sim_peer_checks(const void *unused, const struct lw_view *view)
{
	(void)unused;
	return view->incarnation != 0 && view->tcp_version >= 2;
}

static int reach(const struct lw_desc *desc, void **out, bool near)
{
	struct sim_peer *peer = sim_peer_at(desc->tcp_port);

	if (peer == NULL || (near && !peer->near))
		return -ENOTSUP;
	sim.reached++;
	*out = &peer->token;
	return 0;
}

static int tcp_reach(void *unused, const struct lw_desc *desc, void **out, char *why, size_t why_size)
{
	(void)unused;
	(void)why;
	(void)why_size;
	return reach(desc, out, false);
}

static int shm_reach(void *unused, const struct lw_desc *desc, void **out, char *why, size_t why_size)
{
	(void)unused;
	(void)why;
	(void)why_size;
	return reach(desc, out, true);
}

static void sim_forget(void *peer)
{
	(void)peer;
	sim.reached--;
}

static struct sim_peer *peer_of(const struct lw_view *view)
{
	return view->data.count == 0 ? &sim.peers[SIM_SELF] : sim_peer_at(lw_sockaddr_port(&view->data.addr[0]));
}

static struct lw_ways sim_ways(const void *unused, const struct lw_view *view)
{
	const struct sim_peer *peer = peer_of(view);

	(void)unused;
	if (peer == NULL)
		peer = &sim.peers[SIM_SELF];
	return (struct lw_ways){.count = peer->ways, .at_once = peer->at_once};
}

static bool sim_look(struct lw_lane *lane, struct lw_look *out)
{
	const struct sim_lane *own = sim_lane_of(lane);

	SIM_CHECK(own->line == SIM_CONNECTED, "a look at a lane that is not up");
	if (sim_chance(100))
		return false;
	*out = (struct lw_look){.moved = own->moved,
				.min_rtt_us = sim_chance(500) ? 0 : 100,
				.silent = own->count != 0 && sim_way_is_dead(own->peer, lane->way) && sim_chance(300)};
	return true;
}

static int sim_probe(struct lw_lane *lane, const struct lw_view *view, uint32_t way)
{
	struct sim_lane *own = sim_lane_of(lane);

	(void)view;
	SIM_CHECK(own->line == SIM_CONNECTED && !own->probing && way < SIM_WAYS, "a probe out of place");
	if (sim_chance(50))
		return -EMFILE;
	own->probing = true;
	own->probe_way = way % own->peer->ways; /* the peer may name fewer than when the lane was connected */
	own->probe_ns = sim.now_ns + sim_random(5) * SIM_MS;
	lw_worker_want(lane->worker, lane->driver);
	return 0;
}

static void sim_probe_end(struct lw_lane *lane)
{
	SIM_CHECK(sim_lane_of(lane)->probing, "a probe ends that is not there");
	sim_lane_of(lane)->probing = false;
}

static int sim_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct sim_lane *own = sim_lane_of(lane);

	sim_line_open(own, lane, view->incarnation);
	own->peer =
		lane->path->segment == 0 ? &sim.peers[SIM_SELF] : sim_peer_at(lw_sockaddr_port(&view->data.addr[0]));
	SIM_CHECK(own->peer != NULL, "a lane to nobody");
	SIM_CHECK(!sim_is_tcp(own) || lane->way < own->peer->ways, "a lane by way %u of %u", lane->way,
		  own->peer->ways);
	lw_worker_want(lane->worker, lane->driver);
	lane->fenced = sim_is_tcp(own) && view->tcp_version >= 2 && view->incarnation != 0;
	if (!sim.calm && !sim.healing && sim_chance(10)) {
		own->peer->causes |= SIM_SHORT;
		return -EMFILE;
	}
	if (!sim.calm && !sim.healing && sim_chance(3)) {
		own->peer->causes |= SIM_OPTIONS;
		return -EPROTONOSUPPORT;
	}
	if (!sim_is_tcp(own)) {
		if (!own->peer->alive || (own->peer->index != SIM_SELF && own->life != own->peer->life)) {
			own->peer->causes |= SIM_NO_CONNECT;
			return -ESRCH;
		}
		own->line = SIM_CONNECTED;
		own->greeted = true;
		lw_lane_up(lane);
		return 0;
	}
	if (sim_random(100) < own->peer->black_holes)
		own->at_ns = UINT64_MAX;
	else
		own->at_ns = sim.now_ns + (sim.calm ? 0 : sim_random(3)) * SIM_MS;
	own->refused = sim_random(100) < own->peer->refuses;
	return 0;
}

static void sim_lane_close(struct lw_lane *lane)
{
	sim_line_close(sim_lane_of(lane));
}

static bool shm_now(struct lw_lane *lane, uint8_t op, uint64_t local, uint64_t remote, uint64_t length)
{
	const struct sim_lane *own = sim_lane_of(lane);

	if (length > 4096 || own->broken || sim_chance(200))
		return false;
	for (uint32_t i = 0; i < sim.live_count; i++) {
		struct sim_request *request = &sim_requests[sim_live[i]];

		if (request->op != op || request->local != local || request->remote != remote ||
		    request->length != length || request->parts != 0 || request->ended ||
		    own->peer->index != request->peer)
			continue;
		sim_request_touch(request, local, remote, length);
		sim_request_confirm(request, length);
		return true;
	}
	SIM_CHECK(false, "bytes move that nobody asked for");
	return false;
}

static void sim_post(struct lw_lane *lane, struct lw_slice *slice)
{
	sim_line_take(sim_lane_of(lane), slice);
	lw_worker_want(lane->worker, lane->driver);
}

static void sim_flush(struct lw_lane *lane)
{
	sim_line_send(sim_lane_of(lane));
}

static bool sim_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	return sim_line_give(sim_lane_of(lane), slice);
}

static bool sim_poll(void *unused)
{
	struct sim_lane *all[SIM_LANES];
	uint64_t token[SIM_LANES];
	uint32_t count = sim_lane_count;
	bool busy = false;

	(void)unused;
	/* A lane that goes down may be another path's when the next one is looked at. */
	memcpy(all, sim_lanes, count * sizeof(all[0]));
	for (uint32_t i = 0; i < count; i++)
		token[i] = all[i]->token;
	for (uint32_t i = 0; i < count; i++)
		if (all[i]->line != SIM_SHUT && all[i]->token == token[i])
			sim_line_look(all[i]);
	for (uint32_t i = 0; i < sim_lane_count; i++)
		busy |= sim_lanes[i]->count != 0 || sim_lanes[i]->line == SIM_DIALLING;
	return busy;
}

static struct lw_driver_ops shm_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "shm",
	.lane_bytes = sizeof(struct sim_lane),
	.lanes = 1,
	.peer_cuts = 1,
	.open = sim_open,
	.close = sim_close,
	.reach = shm_reach,
	.forget = sim_forget,
	.worker_open = sim_worker_open,
	.worker_close = sim_worker_close,
	.lane_open = sim_lane_open,
	.lane_close = sim_lane_close,
	.now = shm_now,
	.post = sim_post,
	.flush = sim_flush,
	.unpost = sim_unpost,
	.poll = sim_poll,
};

static struct lw_driver_ops tcp_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "tcp",
	.ways = sim_ways,
	.look = sim_look,
	.probe = sim_probe,
	.probe_end = sim_probe_end,
	.lane_bytes = sizeof(struct sim_lane),
	.peer_cuts = 1,
	.peer_checks = sim_peer_checks,
	.open = sim_open,
	.close = sim_close,
	.describe = sim_describe,
	.reach = tcp_reach,
	.forget = sim_forget,
	.worker_open = sim_worker_open,
	.worker_close = sim_worker_close,
	.lane_open = sim_lane_open,
	.lane_close = sim_lane_close,
	.post = sim_post,
	.flush = sim_flush,
	.unpost = sim_unpost,
	.poll = sim_poll,
};

const struct lw_driver_ops *const lw_drivers[] = {&shm_ops, &tcp_ops};
const size_t lw_drivers_count = 2;

void sim_driver_begin(void)
{
	sim_lines_begin();
	shm_ops.credits = 1 + (uint32_t)sim_random(SIM_CREDITS);
	tcp_ops.credits = 1 + (uint32_t)sim_random(SIM_CREDITS);
}
