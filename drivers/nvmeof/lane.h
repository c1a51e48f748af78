/* SPDX-License-Identifier: Apache-2.0 */
/* A lane: what one worker reads and writes for one segment. The worker's thread only.
 *
 * A slice becomes one operation or several: whole blocks go straight between the file and the application's memory;
 * what does not begin or end with a block, or whose memory is not aligned, goes another way (lane.c).
 */
#ifndef LW_NVMEOF_LANE_H
#define LW_NVMEOF_LANE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "drivers/nvmeof/set.h"

#define NVMEOF_PAGE 4096u /* what the page cache reads and writes at once */

struct nvmeof_lane {
	struct lw_lane *lane;
	struct nvmeof_queue *queue;
	struct nvmeof_set *set;
	struct lw_slice *next; /* first slice with bytes that no operation was begun for */
	TAILQ_ENTRY(nvmeof_lane) link;
	bool waiting;  /* in the queue's list */
	uint32_t busy; /* operations under way */
};

struct nvmeof_worker {
	struct nvmeof *context;
	struct lw_worker *worker;
	TAILQ_HEAD(, nvmeof_queue) queues;
	uint32_t driver; /* in lw_drivers; set with the first lane */
};

/* As in lw_driver_ops. */
int nvmeof_lane_open(struct lw_lane *lane, const struct lw_view *view);
void nvmeof_lane_close(struct lw_lane *lane);
void nvmeof_post(struct lw_lane *lane, struct lw_slice *slice);
void nvmeof_flush(struct lw_lane *lane);
bool nvmeof_unpost(struct lw_lane *lane, struct lw_slice *slice);
void nvmeof_recall(struct lw_lane *lane, struct lw_slice *slice);
bool nvmeof_poll(void *worker_context);

#endif
