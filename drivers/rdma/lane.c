/* SPDX-License-Identifier: Apache-2.0 */
/* A lane at work: slices become work requests, completions end slices. Requests are numbered from 1; one that tells its
 * completion tells that of all before it, since a queue pair works in order. The worker's thread.
 */
#include <string.h>

#include "drivers/rdma/worker.h"
#include "lib/engine.h"

#define CHAIN 32          /* requests handed over together */
#define CHAIN_BYTES 65536 /* what has so many begins at once: a doorbell costs nothing beside it */
#define SGES 4            /* pieces of local memory in one request */
#define SIGNAL_EVERY 16
#define POLLED 16

_Static_assert(sizeof(struct rdma_slice) <= sizeof(((struct lw_slice *)NULL)->own),
	       "the driver's part fits into a slice");

struct chain {
	uint32_t count;
	bool lists; /* a request has several pieces of local memory */
	struct ibv_send_wr wr[CHAIN];
	struct ibv_sge sge[CHAIN][SGES];
};

static struct rdma_slice *part_of(struct lw_slice *slice)
{
	return (struct rdma_slice *)(void *)slice->own;
}

void rdma_lane_busy(struct rdma_lane *own, bool busy)
{
	if (busy != own->busy && busy) {
		own->moved_ns = own->worker->worker->now_ns;
		TAILQ_INSERT_TAIL(&own->worker->busy, own, link);
		lw_worker_want(own->worker->worker, own->worker->rdma->driver);
	} else if (busy != own->busy) {
		TAILQ_REMOVE(&own->worker->busy, own, link);
	}
	own->busy = busy;
}

/* Posting -------------------------------------------------------------------------------------------------------------
 */

/* The next request of a slice: as many bytes as one can carry. LW_REASON_NONE, or why the slice can't be carried. */
static enum lw_reason build(struct rdma_lane *own, struct lw_slice *slice, uint32_t rkey, struct ibv_send_wr *wr,
			    struct ibv_sge *sge)
{
	const struct rdma_qp *qp = own->qp;
	const struct rdma_engine *rdma = own->worker->rdma;
	const struct lw_rangemap *map = atomic_load_explicit(&own->lane->worker->engine->memory, memory_order_acquire);
	uint64_t from = slice->local + part_of(slice)->posted, length = 0;
	uint64_t most = slice->length - part_of(slice)->posted;
	int count = 0;

	if (most > qp->device->max_message_bytes)
		most = qp->device->max_message_bytes;
	do {
		const struct lw_range *range = lw_rangemap_find(map, from + length);
		const struct ibv_mr *mr = NULL;
		uint64_t left = 0;

		if (range != NULL)
			mr = rdma_region(rdma, range->tag, qp->device->index, from + length, &left);
		if (mr == NULL)
			return LW_REASON_LOCAL_RANGE;
		if (left > most - length)
			left = most - length;
		sge[count++] = (struct ibv_sge){.addr = from + length, .length = (uint32_t)left, .lkey = mr->lkey};
		length += left;
	} while (length < most && count < (int)qp->device->max_sge);
	*wr = (struct ibv_send_wr){
		.sg_list = sge,
		.num_sge = count,
		.opcode = slice->op == LW_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
		/* One piece: with a list of them rxe (rdma-core 44) sends no byte. */
		.send_flags = slice->op == LW_WRITE && count == 1 && length <= qp->inline_bytes ? IBV_SEND_INLINE : 0,
		.wr.rdma = {.remote_addr = slice->remote + part_of(slice)->posted, .rkey = rkey},
	};
	part_of(slice)->posted += length;
	return LW_REASON_NONE;
}

/* Hands requests of one piece over in place. 0, or a positive errno: none was taken. */
static int send_extended(struct ibv_qp_ex *ex, const struct chain *chain)
{
	ibv_wr_start(ex);
	for (uint32_t i = 0; i < chain->count; i++) {
		const struct ibv_send_wr *wr = &chain->wr[i];

		ex->wr_id = wr->wr_id;
		ex->wr_flags = wr->send_flags; /* INLINE, too: rxe looks for it here */
		if (wr->opcode == IBV_WR_RDMA_WRITE)
			ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		else
			ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		if ((wr->send_flags & IBV_SEND_INLINE) != 0)
			ibv_wr_set_inline_data(ex, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
		else if (wr->num_sge == 1)
			ibv_wr_set_sge(ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	}
	return ibv_wr_complete(ex);
}

/* Hands the chain over. False: the queue pair does not take it; what it took of it is counted. */
static bool send_chain(struct rdma_lane *own, struct chain *chain)
{
	struct ibv_send_wr *refused = NULL;
	int error;

	if (chain->count == 0)
		return true;
	/* Built in place a list has a wrong length with rxe (rdma-core 44): that of its first piece, times their
	 * number. */
	if (own->qp->ex != NULL && !chain->lists) {
		error = send_extended(own->qp->ex, chain);
		if (error == 0)
			own->posted += chain->count;
	} else {
		for (uint32_t i = 0; i + 1 < chain->count; i++)
			chain->wr[i].next = &chain->wr[i + 1];
		error = ibv_post_send(own->qp->qp, &chain->wr[0], &refused);
		if (error == 0)
			own->posted += chain->count;
		else if (refused != NULL)
			own->posted += (uint32_t)(refused - chain->wr);
	}
	lw_count(&own->lane->stats.calls, 1);
	if (own->posted != own->done)
		rdma_lane_busy(own, true);
	return error == 0;
}

/* The key for all of the slice's bytes at the peer. 0: it does not offer them. */
static uint32_t key_of(struct rdma_lane *own, const struct lw_slice *slice)
{
	const struct lw_view *view = lw_path_view(own->lane->worker, own->lane->path);
	const struct rdma_reach *reach = lw_view_peer(view, own->lane->driver);
	uint64_t left = 0;
	uint32_t key = reach != NULL ? rdma_reach_key(reach, view, own->there, slice->remote, &left) : 0;

	return left >= slice->length ? key : 0;
}

/* Posts as many slices as there is room for. False: the lane is down. */
static bool push(struct rdma_lane *own)
{
	struct chain chain;
	struct lw_slice *slice;

	while ((slice = own->next) != NULL) {
		uint64_t number = own->posted, room = own->qp->depth - (own->posted - own->done), bytes = 0;
		struct lw_slice *ended = NULL;
		enum lw_reason reason = LW_REASON_NONE;

		if (room == 0)
			return true;
		room = room < CHAIN ? room : CHAIN;
		chain.lists = false;
		for (chain.count = 0; slice != NULL && chain.count < room && bytes < CHAIN_BYTES;) {
			uint64_t from = part_of(slice)->posted;
			uint32_t key = key_of(own, slice);

			reason = key == 0 ? LW_REASON_REFUSED
					  : build(own, slice, key, &chain.wr[chain.count], chain.sge[chain.count]);
			if (reason != LW_REASON_NONE) {
				ended = slice;
				break;
			}
			bytes += part_of(slice)->posted - from;
			chain.lists |= chain.wr[chain.count].num_sge > 1;
			chain.wr[chain.count++].wr_id = ++number;
			slice->started = true;
			part_of(slice)->last = number;
			if (number - own->signaled >= SIGNAL_EVERY) {
				chain.wr[chain.count - 1].send_flags |= IBV_SEND_SIGNALED;
				own->signaled = number;
			}
			if (part_of(slice)->posted == slice->length)
				slice = TAILQ_NEXT(slice, link);
		}
		if (chain.count != 0 && own->signaled != number) {
			chain.wr[chain.count - 1].send_flags |= IBV_SEND_SIGNALED;
			own->signaled = number;
		}
		if (!send_chain(own, &chain)) {
			lw_lane_down(own->lane, LW_REASON_RESET);
			return false;
		}
		own->next = slice;
		if (ended == NULL)
			continue;
		/* In the middle of a slice that can't be: its ranges were whole when it began. */
		if (part_of(ended)->posted != 0) {
			lw_lane_down(own->lane, LW_REASON_RESET);
			return false;
		}
		own->next = TAILQ_NEXT(ended, link);
		lw_slice_done(own->lane, ended, reason);
	}
	return true;
}

void rdma_post(struct lw_lane *lane, struct lw_slice *slice)
{
	struct rdma_lane *own = rdma_own(lane);

	*part_of(slice) = (struct rdma_slice){.posted = 0};
	if (own->next == NULL)
		own->next = slice;
}

void rdma_flush(struct lw_lane *lane)
{
	if (lw_lane_state(lane) == LW_LANE_UP)
		push(rdma_own(lane));
}

bool rdma_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	struct rdma_lane *own = rdma_own(lane);

	if (slice->started)
		return false;
	if (own->next == slice)
		own->next = TAILQ_NEXT(slice, link);
	return true;
}

/* Completions ---------------------------------------------------------------------------------------------------------
 */

/* All requests up to this number have completed well. */
static void complete(struct rdma_lane *own, uint64_t number)
{
	struct lw_slice *slice;

	if (number > own->done)
		own->done = number;
	while ((slice = TAILQ_FIRST(&own->lane->inflight)) != NULL && slice != own->next && slice->started &&
	       part_of(slice)->last <= number)
		lw_slice_done(own->lane, slice, LW_REASON_NONE);
}

void rdma_lane_drained(struct rdma_lane *own, const struct ibv_wc *wc)
{
	if (wc->status == IBV_WC_SUCCESS)
		complete(own, wc->wr_id);
	else if (wc->wr_id > own->done)
		own->done = wc->wr_id;
}

static enum lw_reason reason_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_REM_ACCESS_ERR:
		return LW_REASON_REFUSED;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
	case IBV_WC_LOC_LEN_ERR:
		return LW_REASON_FAULT;
	default: /* REM_INV_REQ_ERR, too: soft-RoCE says it when packets were lost between READs and WRITEs */
		return LW_REASON_RESET;
	}
}

/* A request has failed, and with it the queue pair: the first failure that is told is that of the first request that
 * failed. The count - 1 completions after it were polled, too. The lane is down afterwards. */
static void failed(struct rdma_lane *own, const struct ibv_wc *wc, int count)
{
	enum lw_reason reason = wc->wr_id != 0 ? reason_of(wc->status) : LW_REASON_RESET; /* 0: a probe's */
	struct lw_lane *lane = own->lane;
	struct lw_slice *slice, *behind;

	/* The queue pair was broken from here, for a sister's sake: that counts as no attempt. */
	if (wc->status == IBV_WC_WR_FLUSH_ERR || atomic_load_explicit(&own->qp->broken, memory_order_acquire) != 0) {
		TAILQ_FOREACH(slice, &lane->inflight, link)
		slice->attempts = 0;
	}
	if (wc->wr_id != 0)
		complete(own, wc->wr_id - 1);
	for (int i = 0; i < count; i++)
		rdma_lane_drained(own, &wc[i]);
	slice = TAILQ_FIRST(&lane->inflight);
	if (reason != LW_REASON_RESET && slice != NULL && slice->started) {
		/* The peer drops, and the device does not send, what stands behind a refused request. */
		for (behind = TAILQ_NEXT(slice, link); behind != NULL; behind = TAILQ_NEXT(behind, link)) {
			behind->started = false;
			behind->attempts = 0;
		}
		if (own->next == slice)
			own->next = TAILQ_NEXT(slice, link);
		lw_slice_done(lane, slice, reason);
	}
	atomic_store_explicit(&own->qp->broken, 1, memory_order_release);
	lw_lane_down(lane, LW_REASON_RESET);
}

bool rdma_lane_work(struct rdma_lane *own)
{
	struct ibv_wc wc[POLLED];
	int count;

	do {
		count = ibv_poll_cq(own->qp->cq, POLLED, wc);
		for (int i = 0; i < count; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				failed(own, &wc[i], count - i);
				return false;
			}
			complete(own, wc[i].wr_id);
			own->moved_ns = own->worker->worker->now_ns;
		}
	} while (count == POLLED);
	if (count < 0) {
		lw_lane_down(own->lane, LW_REASON_RESET);
		return false;
	}
	if (own->next != NULL && !push(own))
		return false;
	if (own->done == own->posted)
		rdma_lane_busy(own, false);
	return true;
}
