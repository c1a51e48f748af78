/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that only exist here, and what the drivers of driver.c do with them.
 *
 *   tcp   slices are sent, arrive piece by piece and are confirmed later; connections stall, break and are refused.
 * What was sent on a broken one may still arrive, a ghost, until the peer ends it for the lane's next connection shm
 * the worker copies, nothing is under way between two passes
 */
#ifndef LW_SIM_CONNECTION_H
#define LW_SIM_CONNECTION_H

#include "lib/sched/driver.h"
#include "lib/sched/lane.h"
#include "lib/sched/worker.h"
#include "sim/sim.h"

#define SIM_TCP 1u /* in lw_drivers */
#define SIM_LANES 64

enum sim_line { SIM_SHUT, SIM_DIALLING, SIM_CONNECTED };

/* A slice that the driver has. */
struct sim_hold {
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
	uint64_t stalled_until;
	enum sim_line line;
	bool refused;
	bool greeted;
	bool broken;
	bool gone;      /* what the peer had of it */
	uint64_t moved; /* either direction, since it was opened */
	bool probing;
	uint32_t probe_way;
	uint64_t probe_ns; /* it is answered then */
	uint32_t count;
	struct sim_hold hold[SIM_CREDITS];
};

extern struct sim_lane *sim_lanes[SIM_LANES]; /* that are not shut */
extern uint32_t sim_lane_count;

static inline struct sim_lane *sim_lane_of(struct lw_lane *lane)
{
	return (struct sim_lane *)(void *)lane->own;
}

static inline bool sim_is_tcp(const struct sim_lane *own)
{
	return own->lane->driver == SIM_TCP;
}

/* A lane that is shut begins to connect. */
void sim_line_open(struct sim_lane *own, struct lw_lane *lane, uint64_t life);
/* It is shut; what it had is the scheduler's again. */
void sim_line_close(struct sim_lane *own);
/* Takes a slice; it must be one that this lane may carry. */
void sim_line_take(struct sim_lane *own, struct lw_slice *slice);
/* Sends what the socket takes. */
void sim_line_send(struct sim_lane *own);
/* Takes a slice back. False: it was sent. */
bool sim_line_give(struct sim_lane *own, const struct lw_slice *slice);
/* What happens to the connection in this pass. The lane may be another path's afterwards. */
void sim_line_look(struct sim_lane *own);
/* Whether nothing passes by the way. */
bool sim_way_is_dead(const struct sim_peer *peer, uint32_t way);
/* Before a schedule. */
void sim_lines_begin(void);

#endif
