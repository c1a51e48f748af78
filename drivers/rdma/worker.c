/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/rdma/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "lib/asym.h"
#include "lib/engine.h"

#define DRAIN_NS 200000000 /* what a device takes to flush a broken queue pair is a few ms */
#define SLOW_NS_A_BYTE 100 /* the slowest a lane may be, on top of patience */
#define SPIN_NS 300000     /* a lane without a completion for so long lets the worker sleep */

/* Channels ------------------------------------------------------------------------------------------------------------
 */

static void on_completion(struct lw_io *io, uint32_t events)
{
	struct rdma_channel *channel = lw_container(io, struct rdma_channel, io);
	const struct rdma_verbs *verbs = channel->worker->rdma->verbs;
	struct rdma_worker *worker = channel->worker;
	struct ibv_cq *cq;
	void *user;

	(void)events;
	while (verbs->get_cq_event(channel->channel, &cq, &user) == 0) {
		struct rdma_qp *qp = user;
		struct rdma_lane *own = qp->user;

		verbs->ack_cq_events(cq, 1);
		if (own != NULL)
			own->armed = false;
	}
	lw_worker_want(worker->worker, worker->rdma->driver);
}

static int open_channel(struct rdma_worker *worker, const struct rdma_device *device)
{
	struct rdma_channel *channel = &worker->channel[device->index];
	int flags;

	channel->worker = worker;
	channel->channel = worker->rdma->verbs->create_comp_channel(device->context);
	if (channel->channel == NULL)
		return errno != 0 ? -errno : -ENOMEM;
	flags = fcntl(channel->channel->fd, F_GETFL);
	if (flags < 0 || fcntl(channel->channel->fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	channel->io = (struct lw_io){.fd = channel->channel->fd, .ready = on_completion};
	return lw_worker_waker_add(worker->worker, &channel->io);
}

int rdma_worker_open(void *context, struct lw_worker *worker, void **worker_context)
{
	struct rdma_engine *rdma = context;
	struct rdma_worker *own = calloc(1, sizeof(*own));
	int error = 0;

	if (own == NULL)
		return -ENOMEM;
	own->rdma = rdma;
	own->worker = worker;
	TAILQ_INIT(&own->free);
	TAILQ_INIT(&own->seated);
	TAILQ_INIT(&own->busy);
	/* A lane has one, and those that it had before may be on their way back. Untouched ones cost no memory. */
	own->seats_room = 2 * (uint32_t)rdma->engine->config.max_lanes;
	own->seats = calloc(own->seats_room, sizeof(*own->seats));
	if (own->seats == NULL)
		error = -ENOMEM;
	for (uint32_t i = 0; i < rdma->device_count && error == 0; i++)
		error = open_channel(own, &rdma->device[i]);
	if (error != 0) {
		rdma_worker_close(own);
		return error;
	}
	rdma->workers[worker->index] = own;
	*worker_context = own;
	return 0;
}

void rdma_worker_close(void *worker_context)
{
	struct rdma_worker *own = worker_context;

	/* Before their channels and seats go. */
	if (own->worker->index == 0 && own->rdma->workers[0] == own)
		rdma_endpoints_free(own->rdma);
	for (uint32_t i = 0; i < own->rdma->device_count; i++) {
		struct rdma_channel *channel = &own->channel[i];

		if (channel->channel == NULL)
			continue;
		if (channel->io.ready != NULL)
			lw_worker_waker_del(own->worker, &channel->io);
		own->rdma->verbs->destroy_comp_channel(channel->channel);
	}
	own->rdma->workers[own->worker->index] = NULL;
	free(own->seats);
	free(own);
}

void rdma_worker_alarm(struct rdma_worker *worker)
{
	atomic_fetch_add(&worker->alarms, 1);
	lw_fence_light();
	lw_worker_wake(worker->worker);
}

/* Seats ---------------------------------------------------------------------------------------------------------------
 */

static struct rdma_seat *take_seat(struct rdma_worker *worker)
{
	struct rdma_seat *seat = TAILQ_FIRST(&worker->free);

	if (seat != NULL)
		TAILQ_REMOVE(&worker->free, seat, link);
	else if (worker->seats_used < worker->seats_room)
		seat = &worker->seats[worker->seats_used++];
	return seat;
}

static void give_seat(struct rdma_seat *seat)
{
	seat->state = RDMA_FREE;
	seat->lane = NULL;
	TAILQ_INSERT_HEAD(&seat->worker->free, seat, link);
}

static void leave(struct rdma_seat *seat, bool hurt, bool owed)
{
	seat->state = RDMA_LEAVING;
	seat->hurt = hurt;
	seat->owed = owed;
	seat->qp->user = NULL;
	seat->job.run = rdma_seat_left;
	lw_ctrl_post(seat->worker->worker->engine->ctrl, &seat->job);
}

void rdma_seat_answered(struct lw_worker *worker, struct lw_command *command)
{
	struct rdma_seat *seat = lw_container(command, struct rdma_seat, command);
	struct lw_lane *lane = seat->lane;
	struct rdma_lane *own;

	(void)worker;
	if (lane == NULL) {
		if (seat->qp != NULL)
			leave(seat, false, false);
		else
			give_seat(seat);
		return;
	}
	own = rdma_own(lane);
	if (seat->qp == NULL) {
		own->seat = NULL;
		give_seat(seat);
		lw_lane_down(lane, seat->reason);
		return;
	}
	seat->state = RDMA_SEATED;
	TAILQ_INSERT_TAIL(&seat->worker->seated, seat, link);
	own->qp = seat->qp;
	own->qp->user = own;
	lw_lane_up(lane);
}

void rdma_seat_freed(struct lw_worker *worker, struct lw_command *command)
{
	struct rdma_seat *seat = lw_container(command, struct rdma_seat, command);

	(void)worker;
	/* The lane may be another path's by now. */
	if (seat->over && seat->path_gen != 0 && seat->path->gen == seat->path_gen && seat->lane->path == seat->path)
		lw_lane_over(seat->lane);
	give_seat(seat);
}

uint32_t rdma_lanes_to(const void *context, const struct lw_view *view)
{
	const struct rdma_engine *rdma = context;
	const struct rdma_reach *reach = lw_view_peer(view, rdma->driver);

	return reach != NULL ? reach->pair_count * (uint32_t)rdma->engine->config.rdma_qps : 1;
}

static uint32_t position_of(const struct lw_lane *lane)
{
	for (uint32_t i = 0; i < lane->path->lanes; i++)
		if (lane->path->lane[i] == lane)
			return i;
	return 0;
}

int rdma_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct rdma_worker *worker = lane->worker->driver_context[lane->driver];
	const struct rdma_reach *reach = lw_view_peer(view, lane->driver);
	uint32_t qps = (uint32_t)lane->worker->engine->config.rdma_qps, at = position_of(lane);
	const struct rdma_pair *pair;
	struct rdma_seat *seat;

	*rdma_own(lane) = (struct rdma_lane){.lane = lane, .worker = worker};
	if (reach == NULL)
		return -ENOTSUP;
	seat = take_seat(worker);
	if (seat == NULL)
		return -ENOBUFS;
	/* The first lanes are one a pair: few of them still use every device. */
	pair = &reach->pair[at % reach->pair_count];
	rdma_own(lane)->there = pair->there;
	rdma_own(lane)->seat = seat;
	lane->fenced = view->incarnation != 0;
	seat->worker = worker;
	seat->state = RDMA_ASKED;
	seat->lane = lane;
	seat->path = lane->path;
	seat->path_gen = lane->path->gen;
	seat->device = pair->here;
	seat->number = at / reach->pair_count % qps;
	memcpy(seat->there, pair->peer, sizeof(seat->there));
	seat->rpc = view->rpc;
	seat->meant = view->incarnation;
	memcpy(seat->gid, pair->gid, sizeof(seat->gid));
	seat->lid = pair->lid;
	seat->qp = NULL;
	seat->job.run = rdma_seat_asked;
	lw_ctrl_post(lane->worker->engine->ctrl, &seat->job);
	return 0;
}

/* What the queue pair still has, comes to its end: afterwards the device touches no memory for it. */
static void drain(struct rdma_lane *own)
{
	uint64_t end_ns = lw_now_ns() + DRAIN_NS;
	struct ibv_wc wc[16];

	while (own->done != own->posted) {
		int count = ibv_poll_cq(own->qp->cq, 16, wc);

		for (int i = 0; i < count; i++)
			rdma_lane_drained(own, &wc[i]);
		if (count < 0 || (count == 0 && lw_now_ns() >= end_ns)) {
			/* A device that does not flush: without the queue pair it has nothing to go on with. */
			own->qp->device->rdma->verbs->destroy_qp(own->qp->qp);
			own->qp->qp = NULL;
			return;
		}
	}
}

/* Whether a WRITE was posted of which nobody knows whether it has arrived. */
static bool owes(const struct lw_lane *lane)
{
	const struct lw_slice *slice;

	TAILQ_FOREACH(slice, &lane->inflight, link)
	if (slice->op == LW_WRITE && slice->started)
		return true;
	return false;
}

void rdma_lane_close(struct lw_lane *lane)
{
	struct rdma_lane *own = rdma_own(lane);
	struct rdma_seat *seat = own->seat;
	bool hurt;

	own->seat = NULL;
	if (seat == NULL)
		return;
	if (seat->state == RDMA_ASKED) {
		seat->lane = NULL; /* the answer will find nobody */
		return;
	}
	rdma_lane_busy(own, false);
	TAILQ_REMOVE(&seat->worker->seated, seat, link);
	/* Without anything under way the queue pair stays as it is: the peer may use it, or the next lane. */
	hurt = own->done != own->posted || atomic_load_explicit(&own->qp->broken, memory_order_acquire) != 0;
	if (hurt) {
		rdma_qp_break(own->qp);
		drain(own);
	}
	leave(seat, hurt, owes(lane));
	own->qp = NULL;
	own->next = NULL;
}

/* Passes --------------------------------------------------------------------------------------------------------------
 */

/* Lanes whose queue pair was broken by the control thread: the peer is a new one, or the port is down. */
static void look_for_broken(struct rdma_worker *worker)
{
	uint32_t alarms = atomic_load_explicit(&worker->alarms, memory_order_acquire);
	struct rdma_seat *seat, *next;
	struct lw_slice *slice;

	if (alarms == worker->alarms_seen)
		return;
	worker->alarms_seen = alarms;
	for (seat = TAILQ_FIRST(&worker->seated); seat != NULL; seat = next) {
		next = TAILQ_NEXT(seat, link);
		if (atomic_load_explicit(&seat->qp->broken, memory_order_acquire) == 0)
			continue;
		/* Not for what is on this lane: that counts as no attempt. */
		TAILQ_FOREACH(slice, &seat->lane->inflight, link)
		slice->attempts = 0;
		lw_lane_down(seat->lane, LW_REASON_RESET);
	}
}

/* How long a device may take to tell that a peer does not answer: four times the time-out of a packet, as often as it
 * is sent (InfiniBand Architecture 9.7.6.1.3), and as long again. */
static uint64_t patience_ns(const struct lw_config *config)
{
	return 2 * 4 * (UINT64_C(4096) << config->rdma_timeout) * (config->rdma_retries + 1);
}

/* Whether the device has told nothing of what is under way for longer than it may: soft-RoCE has queue pairs that
 * neither go on nor give up. */
static bool stands_still(const struct rdma_lane *own)
{
	const struct lw_worker *worker = own->worker->worker;
	uint64_t bytes = atomic_load_explicit(&own->lane->stats.inflight_bytes, memory_order_relaxed);

	return own->busy && worker->now_ns > own->moved_ns &&
	       worker->now_ns - own->moved_ns > patience_ns(&worker->engine->config) + bytes * SLOW_NS_A_BYTE;
}

/* Nothing has completed for a while: let the worker sleep until something does, if it ever sleeps. True: it has to look
 * again. */
static bool arm(struct rdma_lane *own)
{
	if (own->worker->worker->engine->config.poll == LW_POLL_BUSY)
		return true;
	if (own->armed || own->worker->worker->now_ns - own->moved_ns < SPIN_NS)
		return !own->armed;
	own->armed = ibv_req_notify_cq(own->qp->cq, 0) == 0;
	return true; /* once more: what came before it was armed tells nobody */
}

bool rdma_poll(void *worker_context)
{
	struct rdma_worker *worker = worker_context;
	struct rdma_lane *own, *next;
	bool more = false;

	look_for_broken(worker);
	for (own = TAILQ_FIRST(&worker->busy); own != NULL; own = next) {
		next = TAILQ_NEXT(own, link);
		if (!rdma_lane_work(own))
			continue;
		if (stands_still(own))
			lw_lane_down(own->lane, LW_REASON_RESET);
		else if (own->busy)
			more |= arm(own);
	}
	return more;
}
