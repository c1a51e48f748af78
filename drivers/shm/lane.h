/* SPDX-License-Identifier: Apache-2.0 */
/* A lane: what one worker copies for one segment. The worker's thread only. */
#ifndef LW_SHM_LANE_H
#define LW_SHM_LANE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "drivers/shm/peer.h"
#include "lib/sched/worker.h"

#define SHM_IOVS 256u /* pieces of one system call */

struct shm_lane {
	struct lw_io io; /* the peer's end; first, since the worker gives it back */
	TAILQ_ENTRY(shm_lane) link;
	struct lw_lane *lane;
	struct shm_worker *worker;
	struct lw_slice *next; /* first slice that is not copied completely */
	uint64_t copied;       /* bytes of next */
	bool queued;           /* in the worker's busy list */
	bool ended;            /* the peer has */
	struct shm_peer *peer; /* NULL: the engine's own segment */
	struct door_place *place;
	uint64_t checked_ns; /* the peer last showed its nonce */
};

/* A worker's lanes that have something to do, and what their system calls are made of. */
struct shm_worker {
	struct shm_engine *shm;
	struct lw_worker *worker;
	uint64_t stream_bytes;       /* slices from this size are copied past the cache */
	TAILQ_HEAD(, shm_lane) busy; /* whose turn is next comes first */
	unsigned char nonce[DOOR_NONCE];
	struct iovec local[SHM_IOVS], remote[SHM_IOVS];
};

/* As in lw_driver_ops. */
int shm_lane_open(struct lw_lane *lane, const struct lw_view *view);
void shm_lane_close(struct lw_lane *lane);
bool shm_now(struct lw_lane *lane, uint8_t op, uint64_t local, uint64_t remote, uint64_t length);
void shm_post(struct lw_lane *lane, struct lw_slice *slice);
void shm_flush(struct lw_lane *lane);
bool shm_unpost(struct lw_lane *lane, struct lw_slice *slice);
bool shm_poll(void *worker_context);

#endif
