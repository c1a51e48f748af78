/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's view of one segment and of one pair of kinds of memory (LW_PAIR): the tasks that wait for it, and the
 * lanes to it. One worker's own.
 *
 * Tasks wait in a list of their own links, so a peer that does not answer takes no memory that others need.
 */
#ifndef LW_SCHED_PATH_H
#define LW_SCHED_PATH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "lib/ring/spsc.h"
#include "lib/sched/lane.h"

#define LW_PATH_LANES 16
#define LW_PATH_MISSED 2 /* the list of those that wait for a refresh of the peer's ranges */
#define LW_PATH_LISTS 3

struct lw_task_list {
	uint32_t head, tail; /* task indices; LW_INDEX_NONE when empty */
	uint64_t cut;        /* bytes of the head task that were cut into slices */
	uint64_t bytes;      /* of all of its tasks, but for cut */
};

/* The range that answered last: mostly it answers the next request of the same pass, too. */
struct lw_hint {
	uint64_t addr, end;
	uint32_t access;
	uint32_t pass; /* of the worker; ranges may be gone after a pass */
};

struct lw_path {
	uint32_t segment;      /* index of the slot */
	uint32_t gen;          /* of the segment that it serves; 0: idle */
	struct lw_lane *quick; /* up, and its driver may move small requests at once; NULL: none */
	struct lw_hint hint;   /* of the peer's ranges */
	uint32_t pair;
	bool active; /* in the worker's list of paths with work */
	bool staged; /* the route takes bounce buffers in the place of our memory */
	uint32_t lanes;
	uint32_t route;       /* number of the one that the lanes are of, as lw_route_at counts */
	uint32_t ways;        /* of the route, when lanes were last connected; at least 1 */
	uint32_t inflight;    /* slices on its lanes */
	uint32_t bulk;        /* of those, slices of bulk */
	uint32_t looked_ms;   /* its lanes were last looked at */
	int64_t lead;         /* bytes of the foreground that were cut while bulk waited, less what bulk got for it */
	uint32_t held;        /* slices in use */
	uint32_t bounces;     /* bounce buffers that slices of it hold */
	uint32_t copies;      /* slices in copying */
	uint32_t deadline_ms; /* no task's deadline is before; valid if timed */
	bool timed;
	enum lw_reason dead; /* not NONE: every request ends with it until the segment is opened again */
	struct lw_task_list waiting[LW_PATH_LISTS]; /* by priority; LW_PATH_MISSED */
	struct lw_slice_list retry;
	struct lw_slice_list copying; /* on no lane: a copy between their memory and their bounce buffer is under way */
	struct lw_lane *lane[LW_PATH_LANES];
	TAILQ_ENTRY(lw_path) active_link;
	TAILQ_ENTRY(lw_path) live_link;
};
TAILQ_HEAD(lw_path_list, lw_path);

/* Which tasks an abort means. */
struct lw_abort {
	enum lw_reason reason;
	bool expired;               /* those whose deadline has passed */
	uint32_t batch;             /* those of this batch; LW_INDEX_NONE: any */
	const struct lw_task *task; /* this one; NULL: any */
	uint64_t addr, end;         /* those with bytes of this process in [addr, end); 0, 0: any */
	bool now;                   /* cut lanes at once rather than after the grace */
};

/* Makes an idle path serve the segment's generation. */
void lw_path_init(struct lw_worker *worker, struct lw_path *path, uint32_t segment, uint32_t pair, uint32_t gen);

/* The path of the kinds of memory that a run's first request is about; path is the one of host memory. */
struct lw_path *lw_path_of(struct lw_worker *worker, struct lw_path *path, const struct lw_run *run);

/* Ends the request that run copies, and task is, at once if the driver can. False: it was not touched. */
bool lw_path_now(struct lw_worker *worker, struct lw_path *path, const struct lw_run *run, struct lw_task *task);

/* Takes a task that was just popped from a ring and can't be ended at once. */
void lw_path_take(struct lw_worker *worker, struct lw_path *path, struct lw_task *task);

/* Cuts and posts what the lanes have credit for. False if nothing is left to do until a lane changes. */
bool lw_path_pump(struct lw_worker *worker, struct lw_path *path);

/* What the peer offers was asked for: the tasks that waited for a round up to this one go on, or end. restarted: it
 * is another life of the peer, and all end. */
void lw_path_refreshed(struct lw_worker *worker, struct lw_path *path, uint32_t round, bool restarted);

/* Ends the tasks that abort means: those without a byte on the wire now, the others when they complete or after the
 * grace. */
void lw_path_abort(struct lw_worker *worker, struct lw_path *path, const struct lw_abort *abort);

/* Deadlines, connects that take too long, lanes whose grace is over or that stand still, reconnects. About once a
 * millisecond. */
void lw_path_tick(struct lw_worker *worker, struct lw_path *path);

/* No lane of this route could be made: the lanes are given back, and the next route's are taken when the path is
 * pumped. If WRITEs have to wait for a fence of this route that is put off: its lanes are tried once more. False: there
 * is no other route, or a lane is left. */
bool lw_path_fall_back(struct lw_worker *worker, struct lw_path *path);
/* What the worker knows of the segment now, for drivers: valid in this pass. NULL: it is closed. */
const struct lw_view *lw_path_view(struct lw_worker *worker, const struct lw_path *path);
/* A lane came up, went down, or has credit again: for lib/sched. */
void lw_path_activate(struct lw_worker *worker, struct lw_path *path);
/* No lane is left or coming: every task that waits ends with reason. */
void lw_path_lane_lost(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason);
/* A slice of the path ended; it is not on a lane any more. */
void lw_path_slice_end(struct lw_worker *worker, struct lw_path *path, struct lw_slice *slice, uint32_t lane,
		       enum lw_reason reason);

/* Whether a driver with recall has slices under way whose memory has a byte in [addr, end). */
bool lw_path_holds(const struct lw_path *path, uint64_t addr, uint64_t end);

enum lw_reset {
	LW_RESET_GENTLY, /* what is on the wire may complete until the grace of an abort is over */
	LW_RESET_NOW,    /* lanes are cut */
	LW_RESET_FORCE,  /* without regard to what a driver with recall has under way */
};

/* Ends everything with reason and drops the lanes; the path is idle then. False: something is under way still; no new
 * work comes, and the call is to be made again later.
 *
 * A lane that is cut drops what the peer did not take yet, but not what it was just about to store; only its next
 * connection's fence tells that this is over. So whoever can wait resets gently. */
bool lw_path_reset(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason, enum lw_reset how);

/* The same, gently, for all paths of a segment. */
bool lw_paths_reset(struct lw_worker *worker, uint32_t segment, enum lw_reason reason);

#endif
