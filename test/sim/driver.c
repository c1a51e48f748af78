/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of drivers/drivers.c: the two kinds of drivers that there are, over connections that only exist here.
 *
 *   tcp   slices are sent, arrive piece by piece and are confirmed later; connections stall, break and are refused.
 * What was sent on a broken one may still arrive, a ghost, until the peer ends it for the lane's next connection shm
 * the worker copies, nothing is under way between two passes
 */
#include <errno.h>
#include <string.h>

#include "lib/sched/driver.h"
#include "lib/sched/lane.h"
#include "lib/sched/worker.h"
#include "meta/descriptor.h"
#include "sim/sim.h"

#define TCP 1u /* in lw_drivers */
#define LANES 64
#define GHOSTS 256

enum line { SHUT, DIALLING, CONNECTED };

struct hold {
	struct lw_slice *slice;
	const struct lw_task *task;
	struct sim_request *request;
	uint64_t local, remote, length;
	uint64_t moved;
	uint64_t confirm_ns; /* all moved: the peer says so then */
	uint8_t op;
	bool sent, judged;
};

struct sim_lane {
	struct lw_lane *lane;
	struct sim_peer *peer;
	uint64_t life;  /* of the peer that is meant */
	uint64_t token; /* of the lane since it was taken */
	uint64_t at_ns; /* DIALLING: it ends then */
	enum line line;
	bool refused;
	bool greeted;
	bool broken;
	uint32_t count;
	struct hold hold[SIM_CREDITS];
};

/* Bytes of a WRITE that may still arrive. */
struct ghost {
	struct sim_request *request; /* NULL: none */
	const struct sim_peer *peer;
	uint64_t token;
	uint64_t remote, length;
};

static struct sim_lane *lanes[LANES];
static uint32_t lane_count;
static struct ghost ghosts[GHOSTS];
static uint64_t tokens;
static int context; /* drivers have none: its address */

static struct sim_lane *own_of(struct lw_lane *lane)
{
	return (struct sim_lane *)(void *)lane->own;
}

static bool is_tcp(const struct sim_lane *own)
{
	return own->lane->driver == TCP;
}

static void drop_ghost(struct ghost *ghost)
{
	ghost->request->ghosts--;
	ghost->request = NULL;
}

static void make_ghost(const struct sim_lane *own, const struct hold *hold)
{
	for (uint32_t i = 0; i < GHOSTS; i++) {
		if (ghosts[i].request != NULL)
			continue;
		ghosts[i] = (struct ghost){.request = hold->request,
					   .peer = own->peer,
					   .token = own->token,
					   .remote = hold->remote,
					   .length = hold->length};
		hold->request->ghosts++;
		return;
	}
	SIM_CHECK(false, "raise GHOSTS");
}

/* The peer ends the lane's older connections: of what was on them nothing arrives any more. */
static void fence(const struct sim_lane *own)
{
	for (uint32_t i = 0; i < GHOSTS; i++)
		if (ghosts[i].request != NULL && ghosts[i].token == own->token)
			drop_ghost(&ghosts[i]);
}

void sim_driver_break(struct sim_peer *peer)
{
	for (uint32_t i = 0; i < lane_count; i++)
		if (lanes[i]->peer == peer)
			lanes[i]->broken = true;
	for (uint32_t i = 0; i < GHOSTS; i++)
		if (ghosts[i].request != NULL && ghosts[i].peer == peer && !peer->alive)
			drop_ghost(&ghosts[i]);
}

void sim_driver_forget(struct sim_request *request)
{
	for (uint32_t i = 0; i < GHOSTS && request->ghosts != 0; i++)
		if (ghosts[i].request == request)
			drop_ghost(&ghosts[i]);
}

void sim_driver_compare(const struct lw_lane *lane)
{
	const struct sim_lane *own = (const struct sim_lane *)(const void *)lane->own;
	const struct lw_slice *slice;
	uint32_t i = 0;

	TAILQ_FOREACH(slice, &lane->inflight, link)
	{
		const struct hold *hold = &own->hold[i++];

		SIM_CHECK(i <= own->count && hold->slice == slice, "a slice on a lane that the driver was not given");
		SIM_CHECK(slice->task == hold->task && slice->local == hold->local && slice->remote == hold->remote &&
				  slice->length == hold->length && slice->op == hold->op,
			  "a slice changed on its lane");
	}
	SIM_CHECK(i == own->count, "the driver holds %u slices, the lane %u", own->count, i);
}

uint32_t sim_driver_open_lanes(void)
{
	return lane_count;
}

static void remove_hold(struct sim_lane *own, uint32_t index)
{
	own->hold[index].request->held--;
	memmove(&own->hold[index], &own->hold[index + 1], (--own->count - index) * sizeof(own->hold[0]));
}

static void done(struct sim_lane *own, uint32_t index, enum lw_reason reason)
{
	struct hold hold = own->hold[index];

	remove_hold(own, index);
	if (reason == LW_REASON_NONE)
		sim_request_confirm(hold.request, hold.length);
	lw_slice_done(own->lane, hold.slice, reason);
}

/* As a peer of the driver tcp does it: it refuses one, and what stood behind that goes to another connection. It counts
 * as no attempt of the others. */
static void refuse(struct sim_lane *own, uint32_t index, enum lw_reason reason)
{
	for (uint32_t i = 0; i < own->count; i++)
		own->hold[i].slice->attempts = 0;
	for (uint32_t i = index + 1; i < own->count; i++) {
		own->hold[i].slice->started = false;
		own->hold[i].sent = false;
	}
	done(own, index, reason);
	lw_lane_down(own->lane, LW_REASON_RESET);
}

/* False: the lane is down. */
static bool judge(struct sim_lane *own, uint32_t index)
{
	struct hold *hold = &own->hold[index];

	if (hold->judged)
		return true;
	hold->judged = true;
	/* shm's copies are checked by the door alone, which only shows where another driver was to check (README.md).
	 */
	if ((is_tcp(own) || hold->slice->attempts != 0) &&
	    !sim_peer_offers(own->peer, hold->op, hold->remote, hold->length)) {
		refuse(own, index, LW_REASON_REFUSED);
		return false;
	}
	if (is_tcp(own) && sim_chance(own->peer->corrupts)) {
		refuse(own, index, LW_REASON_CORRUPT);
		return false;
	}
	return true;
}

/* The peer has the connection's first bytes. False: the lane is down. */
static bool greet(struct sim_lane *own)
{
	if (own->greeted)
		return true;
	if (own->life != own->peer->life && own->peer->index != SIM_SELF && own->life != 0) {
		for (uint32_t i = 1; i < SIM_SEGMENTS; i++)
			if (sim.segments[i].peer == own->peer->index && sim.segments[i].life == own->life)
				sim.segments[i].dead = true;
		lw_lane_down(own->lane, LW_REASON_RESTARTED);
		return false;
	}
	if (own->lane->fenced)
		fence(own);
	own->greeted = true;
	return true;
}

/* Moves bytes of one lane. */
static void move(struct sim_lane *own)
{
	uint64_t budget = own->peer->pass_bytes;
	uint32_t index = sim.unordered && own->count > 1 ? (uint32_t)sim_random(own->count) : 0;

	if (sim.now_ns < own->peer->stalled_until || !greet(own))
		return;
	while (index < own->count && budget > 0) {
		struct hold *hold = &own->hold[index];
		uint64_t left, here;

		if (!hold->sent)
			return;
		if (!judge(own, index))
			return;
		left = hold->length - hold->moved;
		here = left < budget ? left : budget;
		if (here != 0) {
			sim_request_touch(hold->request, hold->local + hold->moved, hold->remote + hold->moved, here);
			hold->moved += here;
			budget -= here;
			if (hold->moved == hold->length)
				hold->confirm_ns =
					sim.now_ns +
					(own->peer->late_ms != 0 ? sim_random(own->peer->late_ms) : 0) * SIM_MS;
		}
		if (hold->moved < hold->length)
			return;
		if (hold->confirm_ns <= sim.now_ns)
			done(own, index, LW_REASON_NONE);
		else if (!sim.unordered)
			return;
		else
			index++;
	}
}

static void send_some(struct sim_lane *own)
{
	if (own->line != CONNECTED)
		return;
	for (uint32_t i = 0; i < own->count; i++) {
		struct hold *hold = &own->hold[i];

		if (hold->sent)
			continue;
		if (!sim.calm && sim_chance(150)) /* the socket is full */
			return;
		hold->sent = true;
		if (is_tcp(own))
			hold->slice->started = true;
	}
}

static void look(struct sim_lane *own)
{
	if (own->line == DIALLING) {
		if (sim.now_ns < own->at_ns)
			return;
		if (own->refused || !own->peer->alive) {
			lw_lane_down(own->lane, LW_REASON_UNREACHABLE);
			return;
		}
		own->line = CONNECTED;
		lw_lane_up(own->lane);
		return;
	}
	if (own->broken || sim_chance(own->peer->cuts)) {
		own->peer->causes |= SIM_CUT;
		SIM_SAY("a lane to peer %u breaks with %u slices", own->peer->index, own->count);
		lw_lane_down(own->lane, LW_REASON_RESET);
		return;
	}
	send_some(own);
	move(own);
}

/* The driver's functions ------------------------------------------------------------------------------------------ */

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

static int sim_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct sim_lane *own = own_of(lane);
	uint64_t token = own->token != 0 ? own->token : ++tokens;

	SIM_CHECK(own->line == SHUT && own->count == 0, "a lane is opened that is open");
	*own = (struct sim_lane){.lane = lane, .token = token, .life = view->incarnation, .line = DIALLING};
	own->peer =
		lane->path->segment == 0 ? &sim.peers[SIM_SELF] : sim_peer_at(lw_sockaddr_port(&view->data.addr[0]));
	SIM_CHECK(own->peer != NULL, "a lane to nobody");
	SIM_CHECK(lane_count < LANES, "raise LANES");
	lanes[lane_count++] = own;
	lw_worker_want(lane->worker, lane->driver);
	lane->fenced = is_tcp(own) && view->tcp_version >= 2 && view->incarnation != 0;
	if (!sim.calm && !sim.healing && sim_chance(10)) {
		own->peer->causes |= SIM_SHORT;
		return -EMFILE;
	}
	if (!sim.calm && !sim.healing && sim_chance(3)) {
		own->peer->causes |= SIM_OPTIONS;
		return -EPROTONOSUPPORT;
	}
	if (!is_tcp(own)) {
		if (!own->peer->alive || (own->peer->index != SIM_SELF && own->life != own->peer->life)) {
			own->peer->causes |= SIM_NO_CONNECT;
			return -ESRCH;
		}
		own->line = CONNECTED;
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
	struct sim_lane *own = own_of(lane);

	for (uint32_t i = 0; i < own->count; i++) {
		struct hold *hold = &own->hold[i];

		hold->request->cuts++;
		hold->request->held--;
		if (hold->op != LW_WRITE || !hold->sent || !is_tcp(own))
			continue;
		if (!lane->fenced)
			hold->request->unfenced = true;
		if (own->peer->alive)
			make_ghost(own, hold);
	}
	own->count = 0;
	own->line = SHUT;
	for (uint32_t i = 0; i < lane_count; i++)
		if (lanes[i] == own)
			lanes[i--] = lanes[--lane_count];
}

static bool shm_now(struct lw_lane *lane, uint8_t op, uint64_t local, uint64_t remote, uint64_t length)
{
	const struct sim_lane *own = own_of(lane);

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

/* What was sent of the request's bytes on a connection that is gone must not come after these. */
static void check_ghosts(const struct sim_lane *own, const struct hold *hold)
{
	for (uint32_t i = 0; i < GHOSTS && hold->request->ghosts != 0; i++) {
		const struct ghost *ghost = &ghosts[i];

		if (ghost->request != hold->request || ghost->remote >= hold->remote + hold->length ||
		    hold->remote >= ghost->remote + ghost->length)
			continue;
		SIM_CHECK(ghost->token == own->token && own->lane->fenced,
			  "a WRITE is repeated where nothing ends its first try");
	}
}

static void sim_post(struct lw_lane *lane, struct lw_slice *slice)
{
	struct sim_lane *own = own_of(lane);
	struct hold hold = {.slice = slice,
			    .task = slice->task,
			    .request = sim_request_of(slice->task),
			    .local = slice->local,
			    .remote = slice->remote,
			    .length = slice->length,
			    .op = slice->op};

	SIM_CHECK(own->line == CONNECTED, "a slice for a lane that is not up");
	SIM_CHECK(own->count < lane->ops->credits, "more slices than credits");
	SIM_CHECK(hold.request != NULL, "a slice of nobody's request, or of one that has ended");
	SIM_CHECK(hold.op == hold.request->op && hold.length > 0, "a slice of another operation, or of nothing");
	SIM_CHECK(!slice->started, "a slice comes that is said to have been started");
	SIM_CHECK(own->peer->index == hold.request->peer, "a request for peer %u goes to peer %u", hold.request->peer,
		  own->peer->index);
	/* Not those that another driver had first: they stay as they were cut for that one (README.md). */
	if (lane->ops->peer_cuts != 0 && slice->attempts == 0 && own->peer->index != SIM_SELF &&
	    (own->peer->causes & SIM_OFFER_LESS) == 0)
		SIM_CHECK((slice->remote - SIM_REMOTE) / SIM_PIECE_BYTES ==
				  (slice->remote + slice->length - 1 - SIM_REMOTE) / SIM_PIECE_BYTES,
			  "a slice crosses a seam of the peer's");
	check_ghosts(own, &hold);
	hold.request->held++;
	own->hold[own->count++] = hold;
	lw_worker_want(lane->worker, lane->driver);
}

static void sim_flush(struct lw_lane *lane)
{
	send_some(own_of(lane));
}

static bool sim_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	struct sim_lane *own = own_of(lane);

	for (uint32_t i = 0; i < own->count; i++) {
		if (own->hold[i].slice != slice)
			continue;
		if (is_tcp(own) && own->hold[i].sent)
			return false;
		remove_hold(own, i);
		return true;
	}
	SIM_CHECK(false, "a slice is taken back that is not here");
	return false;
}

static bool sim_poll(void *unused)
{
	struct sim_lane *all[LANES];
	uint64_t token[LANES];
	uint32_t count = lane_count;
	bool busy = false;

	(void)unused;
	/* A lane that goes down may be another path's when the next one is looked at. */
	memcpy(all, lanes, count * sizeof(all[0]));
	for (uint32_t i = 0; i < count; i++)
		token[i] = all[i]->token;
	for (uint32_t i = 0; i < count; i++)
		if (all[i]->line != SHUT && all[i]->token == token[i])
			look(all[i]);
	for (uint32_t i = 0; i < lane_count; i++)
		busy |= lanes[i]->count != 0 || lanes[i]->line == DIALLING;
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
	.lane_bytes = sizeof(struct sim_lane),
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
	memset(ghosts, 0, sizeof(ghosts));
	lane_count = 0;
	shm_ops.credits = 1 + (uint32_t)sim_random(SIM_CREDITS);
	tcp_ops.credits = 1 + (uint32_t)sim_random(SIM_CREDITS);
}
