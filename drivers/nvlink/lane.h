/* SPDX-License-Identifier: Apache-2.0 */
/* A lane: what one worker has copied for one segment and pair of kinds of memory. The worker's thread only. */
#ifndef LW_NVLINK_LANE_H
#define LW_NVLINK_LANE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "drivers/nvlink/peer.h"
#include "drivers/nvlink/stream.h"

struct nvlink_lane {
	struct lw_io io; /* the peer's end; first, since the worker gives it back */
	TAILQ_ENTRY(nvlink_lane) link;
	struct lw_lane *lane;
	struct nvlink_worker *worker;
	struct nvlink_reach *reach;    /* NULL: the engine's own segment */
	struct door_place *place;      /* NULL: there is no door */
	struct lw_slice *first, *last; /* that no copy was begun for */
	uint32_t busy;                 /* slices in streams */
	uint64_t seen;                 /* changes of the offer, when we entered */
	bool inside;
	bool queued; /* in the worker's list */
	bool ended;  /* the peer has */
};

/* As in lw_driver_ops. */
int nvlink_lane_open(struct lw_lane *lane, const struct lw_view *view);
void nvlink_lane_close(struct lw_lane *lane);
void nvlink_post(struct lw_lane *lane, struct lw_slice *slice);
void nvlink_flush(struct lw_lane *lane);
bool nvlink_unpost(struct lw_lane *lane, struct lw_slice *slice);
void nvlink_recall(struct lw_lane *lane, struct lw_slice *slice);
bool nvlink_poll(void *worker_context);

#endif
