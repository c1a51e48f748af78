/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's part: its seats, the lanes that have requests under way, and the channels that end its sleep when one of
 * those completes. The worker's thread, but for what says otherwise.
 */
#ifndef LW_RDMA_WORKER_H
#define LW_RDMA_WORKER_H

#include "drivers/rdma/endpoint.h"
#include "drivers/rdma/rdma.h"

struct rdma_channel {
	struct lw_io io;
	struct rdma_worker *worker;
	struct ibv_comp_channel *channel;
};

/* A lane's own part. */
struct rdma_lane {
	TAILQ_ENTRY(rdma_lane) link; /* busy */
	struct lw_lane *lane;
	struct rdma_worker *worker;
	struct rdma_seat *seat; /* NULL: none */
	struct rdma_qp *qp;     /* NULL: not yet */
	struct lw_slice *next;  /* first slice that is not posted completely */
	uint32_t there;         /* the peer's device */
	uint64_t posted;        /* requests ever */
	uint64_t done;          /* up to which they have completed */
	uint64_t signaled;      /* the last one that tells its completion */
	uint64_t moved_ns;      /* something last completed, or was posted when nothing was under way */
	bool busy;              /* in the worker's list */
	bool armed;             /* the next completion ends a sleep */
};

/* A slice's own part. */
struct rdma_slice {
	uint64_t posted; /* bytes */
	uint64_t last;   /* number of its last request, if all are posted */
};

struct rdma_worker {
	struct rdma_engine *rdma;
	struct lw_worker *worker;
	struct rdma_channel channel[RDMA_DEVICES];
	struct rdma_seat *seats;
	uint32_t seats_used, seats_room; /* ever used; those below are in use or in free */
	TAILQ_HEAD(, rdma_seat) free;
	TAILQ_HEAD(, rdma_seat) seated;
	TAILQ_HEAD(, rdma_lane) busy;
	_Atomic uint32_t alarms; /* any thread: queue pairs that were broken */
	uint32_t alarms_seen;
};

/* As in lw_driver_ops. */
int rdma_worker_open(void *context, struct lw_worker *worker, void **worker_context);
void rdma_worker_close(void *worker_context);
bool rdma_poll(void *worker_context);
uint32_t rdma_lanes_to(const void *context, const struct lw_view *view);
int rdma_lane_open(struct lw_lane *lane, const struct lw_view *view);
void rdma_lane_close(struct lw_lane *lane);
void rdma_post(struct lw_lane *lane, struct lw_slice *slice);
void rdma_flush(struct lw_lane *lane);
bool rdma_unpost(struct lw_lane *lane, struct lw_slice *slice);

/* Lets the worker look for broken queue pairs. Any thread. */
void rdma_worker_alarm(struct rdma_worker *worker);

/* Commands of seats. */
void rdma_seat_answered(struct lw_worker *worker, struct lw_command *command);
void rdma_seat_freed(struct lw_worker *worker, struct lw_command *command);

/* lane.c */
/* Takes up completions and posts what there is room for. False: the lane is down. */
bool rdma_lane_work(struct rdma_lane *own);
/* A completion after the queue pair was broken. */
void rdma_lane_drained(struct rdma_lane *own, const struct ibv_wc *wc);
/* The lane has requests under way, or not any more. */
void rdma_lane_busy(struct rdma_lane *own, bool busy);

static inline struct rdma_lane *rdma_own(struct lw_lane *lane)
{
	return (struct rdma_lane *)(void *)lane->own;
}

#endif
