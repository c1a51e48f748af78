/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/connection.h"

#include <string.h>

#define GHOSTS 256
#define FENCE_MS 400 /* so long, or until three connections more broke, an end waits for its lane's fence */
#define FENCE_TRIES 3

/* Bytes of a WRITE that may still arrive. */
struct ghost {
	struct sim_request *request; /* NULL: none */
	const struct sim_peer *peer;
	uint64_t token;
	uint64_t remote, length;
	uint64_t cut_ns;
	uint32_t tries; /* connections of its lane that ended since */
	bool fenced;    /* the next one would end it */
};

struct sim_lane *sim_lanes[SIM_LANES];
uint32_t sim_lane_count;
static struct ghost ghosts[GHOSTS];
static uint64_t tokens;

static void drop_ghost(struct ghost *ghost)
{
	ghost->request->ghosts--;
	ghost->request = NULL;
}

static void make_ghost(const struct sim_lane *own, const struct sim_hold *hold)
{
	for (uint32_t i = 0; i < GHOSTS; i++) {
		if (ghosts[i].request != NULL)
			continue;
		ghosts[i] = (struct ghost){.request = hold->request,
					   .peer = own->peer,
					   .token = own->token,
					   .remote = hold->remote,
					   .length = hold->length,
					   .cut_ns = sim.now_ns,
					   .fenced = own->lane->fenced};
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
	for (uint32_t i = 0; i < sim_lane_count; i++)
		if (sim_lanes[i]->peer == peer)
			sim_lanes[i]->broken = true;
}

void sim_driver_gone(const struct sim_peer *peer)
{
	for (uint32_t i = 0; i < sim_lane_count; i++)
		if (sim_lanes[i]->peer == peer)
			sim_lanes[i]->gone = true;
	for (uint32_t i = 0; i < GHOSTS; i++)
		if (ghosts[i].request != NULL && ghosts[i].peer == peer)
			drop_ghost(&ghosts[i]);
}

void sim_driver_stall(struct sim_peer *peer, uint64_t until_ns)
{
	for (uint32_t i = 0; i < sim_lane_count; i++)
		if (sim_lanes[i]->peer == peer && sim_chance(500))
			sim_lanes[i]->stalled_until = until_ns;
}

uint32_t sim_driver_forget(struct sim_request *request, uint64_t asked_ns)
{
	uint32_t early = 0;

	for (uint32_t i = 0; i < GHOSTS && request->ghosts != 0; i++) {
		struct ghost *ghost = &ghosts[i];
		uint64_t from_ns = ghost->cut_ns > asked_ns ? ghost->cut_ns : asked_ns;

		if (ghost->request != request)
			continue;
		early += ghost->fenced && ghost->tries < FENCE_TRIES &&
			 sim.now_ns / SIM_MS < from_ns / SIM_MS + FENCE_MS;
		drop_ghost(ghost);
	}
	return early;
}

void sim_driver_compare(const struct lw_lane *lane)
{
	const struct sim_lane *own = (const struct sim_lane *)(const void *)lane->own;
	const struct lw_slice *slice;
	uint32_t i = 0;

	TAILQ_FOREACH(slice, &lane->inflight, link)
	{
		const struct sim_hold *hold = &own->hold[i++];

		SIM_CHECK(i <= own->count && hold->slice == slice, "a slice on a lane that the driver was not given");
		SIM_CHECK(slice->task == hold->task && slice->local == hold->local && slice->remote == hold->remote &&
				  slice->length == hold->length && slice->op == hold->op,
			  "a slice changed on its lane");
	}
	SIM_CHECK(i == own->count, "the driver holds %u slices, the lane %u", own->count, i);
}

uint32_t sim_driver_open_lanes(void)
{
	return sim_lane_count;
}

static void remove_hold(struct sim_lane *own, uint32_t index)
{
	own->hold[index].request->held--;
	memmove(&own->hold[index], &own->hold[index + 1], (--own->count - index) * sizeof(own->hold[0]));
}

static void done(struct sim_lane *own, uint32_t index, enum lw_reason reason)
{
	struct sim_hold hold = own->hold[index];

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
	struct sim_hold *hold = &own->hold[index];

	if (hold->judged)
		return true;
	hold->judged = true;
	if (!sim_peer_offers(own->peer, hold->op, hold->remote, hold->length)) {
		refuse(own, index, LW_REASON_REFUSED);
		return false;
	}
	if (sim_is_tcp(own) && sim_chance(own->peer->corrupts)) {
		refuse(own, index, LW_REASON_CORRUPT);
		return false;
	}
	return true;
}

/* The lane's path learns that the peer lives another life. One that was closed and still waits for a fence knows
 * nothing that the one after it would. */
static void tell_restart(const struct sim_lane *own)
{
	for (uint32_t i = 1; i < SIM_SEGMENTS; i++) {
		const struct lw_segment_slot *slot = lw_segment_of(sim.engine, sim.segments[i].id);

		if (slot != NULL && slot == &sim.engine->segments[own->lane->path->segment] &&
		    sim.segments[i].life == own->life)
			sim.segments[i].dead = true;
	}
}

/* The peer has the connection's first bytes. False: the lane is down. */
static bool greet(struct sim_lane *own)
{
	if (own->greeted)
		return true;
	if (own->life != own->peer->life && own->peer->index != SIM_SELF && own->life != 0) {
		/* Of several ways one may lead to somebody else. */
		if (own->lane->path->ways == 1)
			tell_restart(own);
		lw_lane_down(own->lane, LW_REASON_RESTARTED);
		return false;
	}
	own->greeted = true;
	if (own->lane->fenced) {
		fence(own);
		lw_lane_fence_up(own->lane);
	}
	return true;
}

bool sim_way_is_dead(const struct sim_peer *peer, uint32_t way)
{
	return (peer->dead_ways >> way & 1) != 0;
}

static bool is_stalled(const struct sim_lane *own)
{
	if (sim_is_tcp(own) && sim_way_is_dead(own->peer, own->lane->way))
		return true;
	return sim.now_ns < own->peer->stalled_until || (sim.now_ns < own->stalled_until && !sim.healing);
}

/* Moves bytes of one lane. */
static void move(struct sim_lane *own)
{
	uint64_t budget = own->peer->pass_bytes;
	uint32_t index = sim.unordered && own->count > 1 ? (uint32_t)sim_random(own->count) : 0;

	if (is_stalled(own) || !greet(own))
		return;
	while (index < own->count && budget > 0) {
		struct sim_hold *hold = &own->hold[index];
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
			own->moved += here;
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

void sim_line_send(struct sim_lane *own)
{
	if (own->line != SIM_CONNECTED)
		return;
	for (uint32_t i = 0; i < own->count; i++) {
		struct sim_hold *hold = &own->hold[i];

		if (hold->sent)
			continue;
		if (!sim.calm && sim_chance(150)) /* the socket is full */
			return;
		hold->sent = true;
		if (sim_is_tcp(own))
			hold->slice->started = true;
	}
}

/* False: the lane is another one now. */
static bool answer_probe(struct sim_lane *own)
{
	uint64_t token = own->token;
	bool dead = sim_way_is_dead(own->peer, own->probe_way);

	if (!own->probing || sim.now_ns < own->probe_ns || (dead && own->peer->alive))
		return true;
	own->probing = false;
	lw_lane_probed(own->lane, own->peer->alive);
	return own->token == token && own->line == SIM_CONNECTED;
}

void sim_line_look(struct sim_lane *own)
{
	if (!answer_probe(own))
		return;
	if (own->line == SIM_DIALLING) {
		if (sim.now_ns < own->at_ns || sim_way_is_dead(own->peer, own->lane->way))
			return;
		if (own->refused || !own->peer->alive) {
			lw_lane_down(own->lane, LW_REASON_UNREACHABLE);
			return;
		}
		own->line = SIM_CONNECTED;
		lw_lane_up(own->lane);
		return;
	}
	if (own->broken || sim_chance(own->peer->cuts)) {
		own->peer->causes |= SIM_CUT;
		SIM_SAY("a lane to peer %u breaks with %u slices", own->peer->index, own->count);
		lw_lane_down(own->lane, LW_REASON_RESET);
		return;
	}
	sim_line_send(own);
	move(own);
}

void sim_line_open(struct sim_lane *own, struct lw_lane *lane, uint64_t life)
{
	uint64_t token = own->token != 0 ? own->token : ++tokens;

	SIM_CHECK(own->line == SIM_SHUT && own->count == 0, "a lane is opened that is open");
	SIM_CHECK(sim_lane_count < SIM_LANES, "raise SIM_LANES");
	*own = (struct sim_lane){.lane = lane, .token = token, .life = life, .line = SIM_DIALLING};
	sim_lanes[sim_lane_count++] = own;
}

/* What was sent of the request's bytes on a connection that is gone must not come after these. */
static void check_ghosts(const struct sim_lane *own, const struct sim_hold *hold)
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

void sim_line_take(struct sim_lane *own, struct lw_slice *slice)
{
	const struct lw_lane *lane = own->lane;
	struct sim_hold hold = {.slice = slice,
				.task = slice->task,
				.request = sim_request_of(slice->task),
				.local = slice->local,
				.remote = slice->remote,
				.length = slice->length,
				.op = slice->op};

	SIM_CHECK(own->line == SIM_CONNECTED, "a slice for a lane that is not up");
	SIM_CHECK(own->count < lane->ops->credits, "more slices than credits");
	SIM_CHECK(hold.request != NULL, "a slice of nobody's request, or of one that has ended");
	SIM_CHECK(hold.op == hold.request->op && hold.length > 0, "a slice of another operation, or of nothing");
	SIM_CHECK(!slice->started, "a slice comes that is said to have been started");
	SIM_CHECK(own->peer->index == hold.request->peer, "a request for peer %u goes to peer %u", hold.request->peer,
		  own->peer->index);
	SIM_CHECK(sim_is_tcp(own) || (slice->task->flags & LW_TASK_MISSED) == 0,
		  "what the peer is to check goes where it does not");
	/* What the peer is to check it takes in one piece. */
	if ((slice->task->flags & LW_TASK_MISSED) == 0 && own->peer->index != SIM_SELF &&
	    (own->peer->causes & SIM_OFFER_LESS) == 0)
		SIM_CHECK((slice->remote - SIM_REMOTE) / SIM_PIECE_BYTES ==
				  (slice->remote + slice->length - 1 - SIM_REMOTE) / SIM_PIECE_BYTES,
			  "a slice crosses a seam of the peer's");
	check_ghosts(own, &hold);
	hold.request->held++;
	own->hold[own->count++] = hold;
}

bool sim_line_give(struct sim_lane *own, const struct lw_slice *slice)
{
	for (uint32_t i = 0; i < own->count; i++) {
		if (own->hold[i].slice != slice)
			continue;
		if (sim_is_tcp(own) && own->hold[i].sent)
			return false;
		remove_hold(own, i);
		return true;
	}
	SIM_CHECK(false, "a slice is taken back that is not here");
	return false;
}

void sim_line_close(struct sim_lane *own)
{
	for (uint32_t i = 0; i < GHOSTS; i++)
		ghosts[i].tries += ghosts[i].request != NULL && ghosts[i].token == own->token;
	for (uint32_t i = 0; i < own->count; i++) {
		struct sim_hold *hold = &own->hold[i];

		hold->request->cuts++;
		hold->request->held--;
		if (hold->op != LW_WRITE || !hold->sent || !sim_is_tcp(own))
			continue;
		if (!own->lane->fenced)
			hold->request->unfenced = true;
		/* Another life takes nothing that is not meant for it. */
		if (!own->gone && (own->peer->index == SIM_SELF || own->life == own->peer->life))
			make_ghost(own, hold);
	}
	SIM_CHECK(!own->probing, "a lane is closed and its probe goes on");
	own->count = 0;
	own->line = SIM_SHUT;
	for (uint32_t i = 0; i < sim_lane_count; i++)
		if (sim_lanes[i] == own)
			sim_lanes[i--] = sim_lanes[--sim_lane_count];
}

void sim_lines_begin(void)
{
	memset(ghosts, 0, sizeof(ghosts));
	sim_lane_count = 0;
}
