/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes and slices: what a worker and a driver share. Everything here belongs to one worker; other threads read stats
 * alone.
 *
 * Life of a lane:  DOWN -> CONNECTING -> UP -> DOWN ...   (kept with its path until the segment is closed)
 * A slice is in lane->inflight from post to lw_slice_done, in the order in which the driver carries them.
 */
#ifndef LW_SCHED_LANE_H
#define LW_SCHED_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <lanewise/stats.h>

#include "lib/sched/driver.h"
#include "lib/sched/task.h"

struct lw_bounce_slot;
struct lw_path;

struct lw_slice {
	TAILQ_ENTRY(lw_slice) link; /* lane->inflight, path->retry or the worker's free list */
	struct lw_task *task;
	uint64_t local;
	uint64_t remote;
	uint64_t length;
	uint8_t op;
	uint8_t attempts;  /* lanes it was posted on before; if it waits: connections of its lane that broke since */
	bool started;      /* set by the driver: a byte of it may have reached the peer */
	bool waits;        /* its task is over, but ends when the fence is up, or was waited for long enough */
	uint32_t fence_ms; /* waits: until then at the latest */
	/* NULL: any lane may carry it. Else a WRITE that broke on that lane, and may be repeated behind its fence only
	 */
	struct lw_lane *only;
	/* Not NULL: local is that bounce buffer's memory; the application's is elsewhere (stage.h). */
	struct lw_bounce_slot *bounce;
	/* the driver's own: header, progress */
	alignas(8) unsigned char own[64];
};
TAILQ_HEAD(lw_slice_list, lw_slice);

struct lw_lane_counters {
#define X(name, unit, help) _Atomic uint64_t name;
	LW_LANE_COUNTERS(X)
#undef X
	_Atomic uint64_t inflight_slices;
	_Atomic uint64_t inflight_bytes;
};

#define LW_PEER_WORDS 12 /* of 8 bytes */

#define LW_WAY_NONE UINT32_MAX

/* What is measured of a lane, and its way home: heal.c. */
struct lw_watch_state {
	uint64_t moved;      /* as the driver last told */
	uint64_t looked_ns;  /* when; 0: not since it came up, or became busy */
	uint64_t ended;      /* stats.slices then */
	uint32_t moved_ms;   /* it moved last, or became busy */
	uint32_t ended_ms;   /* a slice last ended on it */
	uint32_t steady_ms;  /* slices have ended on it since then, without a long pause */
	uint32_t min_rtt_us; /* 0: not known */
	bool idle;           /* it had nothing to do since it was last looked at */
	bool leaving;        /* takes no slices: it goes home when it is empty, or at leave_ms */
	uint32_t leave_ms;
	uint32_t probe_way; /* that is being asked; LW_WAY_NONE: none is */
	uint32_t probe_ms;  /* the answer is awaited until then; none: the next probe is not before */
	uint32_t pause_ms;  /* between two probes */
};

struct lw_lane {
	struct lw_slice_list inflight;
	struct lw_worker *worker;
	struct lw_path *path; /* NULL: a served lane, the peer's */
	const struct lw_driver_ops *ops;
	uint32_t index;  /* in the worker */
	uint32_t driver; /* in lw_drivers */
	uint32_t credits;
	uint32_t backoff_ms;
	uint32_t failures;    /* connects in a row, one a way */
	uint32_t way, home;   /* how it is, or is to be, connected; where it belongs */
	uint32_t strikes;     /* standstills since a slice last ended on it */
	uint32_t last_way;    /* how it was last UP; LW_WAY_NONE: never */
	uint32_t retry_at_ms; /* DOWN: not before */
	uint64_t bulk_bytes;  /* in flight, of bulk */
	struct lw_watch_state watch;
	uint32_t expire_at_ms; /* CONNECTING: fails then; UP: is cut then if kill is set */
	bool kill;
	bool fenced;   /* set by the driver's lane_open: the peer ends this lane's older connections before it serves us
			*/
	bool fence_up; /* lw_lane_fence_up was called for this connection */
	bool fencing;  /* slices wait for that, in path->retry */
	bool dirty;    /* posted to since the last flush */
	LIST_ENTRY(lw_lane) dirty_link;
	/* From here to own: also read by other threads, which may find the lane's successor. No pointer among it. */
	_Atomic uint32_t state; /* enum lw_lane_state */
	_Atomic bool in_use;
	_Atomic bool served;
	_Atomic uint32_t shown_driver;        /* as driver */
	_Atomic uint32_t segment;             /* own lanes: index of the slot */
	_Atomic uint64_t rate;                /* bytes a second; 0: not measured yet */
	_Atomic uint64_t peer[LW_PEER_WORDS]; /* text: served lanes, the peer's address; own ones, the way */
	struct lw_lane_counters stats;
	alignas(64) unsigned char own[]; /* the driver's own */
};

/* The worker is the only writer of its counters: no read-modify-write is needed. */
static inline void lw_count(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by, memory_order_relaxed);
}

static inline uint32_t lw_lane_state(const struct lw_lane *lane)
{
	return atomic_load_explicit(&lane->state, memory_order_relaxed);
}

/* The lane's number in the engine, as tasks and statistics name it. */
uint32_t lw_lane_id(const struct lw_lane *lane);

/* For lib/sched: the lane came up, or goes down. */
void lw_lane_watch_begin(struct lw_lane *lane);
void lw_lane_watch_end(struct lw_lane *lane);

/* For drivers, on the worker's thread. */

/* The lane takes slices from now on. */
void lw_lane_up(struct lw_lane *lane);

/* The text that statistics show: the peer's address of a served lane, the way of an own one. It is cut at the end. */
void lw_lane_show(struct lw_lane *lane, const char *shown);

/* What ops->probe found out: something answered, or nothing does. */
void lw_lane_probed(struct lw_lane *lane, bool answered);

/* A lane that its driver's lane_open set fenced: the peer has said that it is done with the older connections, and what
 * was under way on them can't be stored any more. */
void lw_lane_fence_up(struct lw_lane *lane);

/* The lane is lost: calls ops->lane_close, then hands its slices on. Those of which no byte was sent and READs go to
 * another lane or connection. WRITEs that may have reached the peer wait for this lane's next connection, if that will
 * be fenced against this one, also those that are not to be repeated: a task is not over while they may be stored. Else
 * they end FAILED with reason, since repeating them could overtake what the application does next. */
void lw_lane_down(struct lw_lane *lane, enum lw_reason reason);

/* Nothing of what the lane carried before it went down can arrive any more: the WRITEs that wait for its next
 * connection may go elsewhere. */
void lw_lane_over(struct lw_lane *lane);

/* A slice of the lane ended, well (LW_REASON_NONE) or not. The slice is gone afterwards. */
void lw_slice_done(struct lw_lane *lane, struct lw_slice *slice, enum lw_reason reason);

/* A lane for a connection that a peer opened. NULL: none free. */
struct lw_lane *lw_lane_serve(struct lw_worker *worker, uint32_t driver, const char *peer);
void lw_lane_serve_end(struct lw_lane *lane);

#endif
