/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: each owns lanes, paths, slices and the consumer side of its channels' rings, and runs them to completion.
 * Only the thread that drives the worker touches its insides; others send commands, push to rings, and read counters.
 */
#ifndef LW_SCHED_WORKER_H
#define LW_SCHED_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/ring/command.h"
#include "lib/ring/inbox.h"
#include "lib/ring/spsc.h"
#include "lib/sched/bounce.h"
#include "lib/sched/lane.h"
#include "lib/sched/path.h"

struct lw_engine;
struct lw_worker;
struct lw_rangemap;

/* A descriptor in the worker's epoll set. ready runs on the worker's thread and only takes note of the events; the
 * driver's poll acts on them. */
struct lw_io {
	int fd;
	void (*ready)(struct lw_io *io, uint32_t events);
};

struct lw_intake {
	struct lw_spsc *ring;
	struct lw_run run; /* being taken; run.count: tasks left of it */
};

/* Tasks of one batch that ended in this pass, counted before the shared words are touched. */
struct lw_tally {
	uint32_t batch; /* LW_INDEX_NONE: nothing counted */
	uint32_t done;
	uint32_t failed;
	uint64_t bytes;
};

struct lw_worker {
	struct lw_engine *engine;
	uint32_t index;
	int cpu;      /* -1: not pinned */
	int claim_fd; /* holds the claim on the CPU; -1: none */
	/* the driving thread's */
	uint32_t now_ms;
	uint64_t now_ns;
	uint64_t polled_ns; /* epoll_wait was last called */
	uint64_t worked_ns; /* something was last done */
	uint32_t ticked_ms;
	uint64_t io_ns; /* a socket last had something */
	uint32_t passes;
	uint32_t clocked; /* the pass in which the clock was read last */
	uint32_t hot;     /* slices on lanes: epoll is asked each pass */
	bool draining;    /* requests are queued, not carried out at once */
	/* Memory of a GPU was registered: set once, before it is on the map, by who does so. */
	_Atomic bool devices;
	uint32_t ios; /* drivers' descriptors in the epoll set */
	struct lw_tally tally;
	struct lw_hint local_hint;
	struct lw_slice *slices;
	uint32_t slices_used; /* ever; those below are in use or in free_slices */
	uint32_t slices_held; /* in use */
	struct lw_slice_list free_slices;
	struct lw_path *paths;      /* one a segment slot and pair of kinds of memory: lw_worker_path */
	uint32_t segments;          /* slots there are */
	struct lw_path_list active; /* with tasks or slices to post */
	struct lw_path_list live;   /* with a segment */
	LIST_HEAD(, lw_lane) dirty;
	unsigned char *lanes;
	size_t lane_stride;
	uint32_t *free_lanes;
	uint32_t free_lanes_count;
	_Atomic uint32_t lanes_used; /* one above the highest index ever used */
	struct lw_intake *intakes;   /* one a channel slot */
	uint32_t *intake_list;       /* channel slots that have a ring */
	uint32_t intake_count;
	void *driver_context[LW_MAX_DRIVERS];
	uint32_t looks;              /* at lanes, that are left in this millisecond */
	uint32_t wanted;             /* drivers that want to be polled, a bit each: lw_worker_want */
	struct lw_inbox_node *later; /* commands that wait for the next millisecond */
	struct lw_bounces bounces;
	/* shared */
	alignas(64) struct lw_inbox commands;
	alignas(64) _Atomic uint32_t sleeping; /* every submit looks at it: nothing that is written often beside it */
	_Atomic uint32_t driving;              /* caller mode: somebody is inside a pass */
	_Atomic uint32_t stop;
	alignas(64) _Atomic uint64_t requests, failed, bytes, served_bytes, sleeps;
	alignas(64) int epoll_fd;
	int wake_fd;
	struct lw_io wake_io;
	pthread_t thread;
	clockid_t cpu_clock; /* of the thread, once running */
	bool started;
	bool on_lcore;
	uint32_t lcore;
	_Atomic uint32_t running; /* thread is set, and inside lw_worker_run */
};

/* Memory for engine's settings; no thread yet. 0, -ENOMEM, -EMFILE. */
int lw_worker_init(struct lw_worker *worker, struct lw_engine *engine, uint32_t index);
/* Its thread has ended. */
void lw_worker_fini(struct lw_worker *worker);

/* In a forked child: closes its copies of the worker's descriptors. */
void lw_worker_forked(struct lw_worker *worker);

/* The thread's body: passes until stop. */
void lw_worker_run(struct lw_worker *worker);

/* One pass. The number of tasks that ended in it; *worked: whether anything was done. */
uint32_t lw_worker_pass(struct lw_worker *worker, bool *worked);

/* Caller mode: one pass by the calling thread, unless another is inside one. False if there was none. */
bool lw_worker_drive(struct lw_worker *worker);

/* Sleeps until there is input, at most timeout_ms (-1: as long as timers allow). False if only the time was over. The
 * driving thread. */
bool lw_worker_sleep(struct lw_worker *worker, int timeout_ms);

/* Takes everything that is in a ring. The worker's thread. */
void lw_worker_intake_drain(struct lw_worker *worker, struct lw_intake *intake);

/* Ends everything with SHUTDOWN: the worker's thread, or when there is none any more. */
void lw_worker_abandon(struct lw_worker *worker);

/* Wakes the worker if it sleeps; after the caller's seq_cst store that the worker is to see. Any thread. */
void lw_worker_wake(struct lw_worker *worker);

/* Sends a command. Any thread; never blocks. */
void lw_worker_send(struct lw_worker *worker, struct lw_command *command);

/* Runs the command again in about a millisecond. The worker's thread, from inside the command. */
void lw_worker_later(struct lw_worker *worker, struct lw_command *command);

/* Runs fn(worker, arg) on the worker's thread and waits for it. Any thread but a worker's. 0, or -ETIMEDOUT: then fn
 * may run still, and release(arg) is called after it; else the caller keeps arg. */
int lw_worker_call(struct lw_worker *worker, void (*fn)(struct lw_worker *worker, void *arg), void *arg,
		   void (*release)(void *arg), uint32_t timeout_ms);

/* Adds and removes a descriptor of a driver's. The worker's thread, or before it starts. 0 or a negative errno.
 */
int lw_worker_io_add(struct lw_worker *worker, struct lw_io *io, uint32_t events);
void lw_worker_io_del(struct lw_worker *worker, struct lw_io *io);

/* The same for a descriptor that only ends the worker's sleep: awake it is not asked. Before the thread starts, and
 * after it ended. */
int lw_worker_waker_add(struct lw_worker *worker, struct lw_io *io);
void lw_worker_waker_del(struct lw_worker *worker, struct lw_io *io);

/* Internal to lib/sched: publishes what was counted. */
void lw_worker_tally_flush(struct lw_worker *worker);

/* Internal to lib/sched: now_ms and now_ns are of this pass. Elsewhere they may be some passes old, or as old as the
 * thread did not run: a time to come must not be counted from then. */
void lw_worker_clock(struct lw_worker *worker);

/* Internal to lib/sched: counts a task of that batch as ended. */
static inline void lw_worker_count(struct lw_worker *worker, uint32_t batch, uint64_t bytes, bool failed)
{
	struct lw_tally *tally = &worker->tally;

	if (tally->batch != batch) {
		lw_worker_tally_flush(worker);
		*tally = (struct lw_tally){.batch = batch};
	}
	tally->done++;
	tally->failed += failed;
	tally->bytes += bytes;
}

/* Internal to lib/sched: the end of a task of that batch, counted for it. */
static inline void lw_worker_finish(struct lw_worker *worker, struct lw_task *task, uint32_t batch, uint64_t bytes,
				    enum lw_state state, enum lw_reason reason, uint32_t lane)
{
	lw_worker_count(worker, batch, bytes, state != LW_COMPLETED);
	atomic_store_explicit(&task->bytes, bytes, memory_order_relaxed);
	/* The task is the reader's from here on. */
	atomic_store_explicit(&task->outcome, lw_outcome(state, reason, lane), memory_order_release);
}

/* The driver's poll is called in the next pass, and in each one after that until it returns false. The worker's thread.
 */
static inline void lw_worker_want(struct lw_worker *worker, uint32_t driver)
{
	worker->wanted |= UINT32_C(1) << driver;
}

static inline struct lw_path *lw_worker_path(const struct lw_worker *worker, uint32_t segment, uint32_t pair)
{
	return &worker->paths[(size_t)pair * worker->segments + segment];
}

static inline struct lw_lane *lw_worker_lane(const struct lw_worker *worker, uint32_t index)
{
	return (struct lw_lane *)(void *)(worker->lanes + (size_t)index * worker->lane_stride);
}

/* A fresh lane of the driver, or NULL. */
struct lw_lane *lw_worker_lane_take(struct lw_worker *worker, uint32_t driver);
void lw_worker_lane_give(struct lw_worker *worker, struct lw_lane *lane);

#endif
