/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of requests: allocate, submit, watch, cancel, free.
 *
 * What may run beside what, on one batch:
 *                lw_submit  status/wait  cancel  lw_batch_free
 *   lw_submit    no         yes          yes     no
 *   status/wait  yes        yes          yes     yes (-EBADF afterwards)
 *   cancel       yes        yes          yes     yes (-EBADF afterwards)
 *   batch_free   no         yes          yes     yes (one wins, the others get -EBADF)
 * Different batches do not touch each other.
 *
 * Until a WRITE has ended its bytes may be stored more than once: when a connection breaks, the engine repeats it where
 * it can be sure that nothing of the first try arrives later. So whoever owns the range may use it when the WRITE has
 * COMPLETED and he was told (a note, a message of his own), not when he sees the bytes change.
 */
#ifndef LANEWISE_TRANSFER_H
#define LANEWISE_TRANSFER_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LW_BATCH_MAX_TASKS 524288u

enum lw_batch_flags {
	LW_BATCH_EVENT = 1, /* queue a completion on the channel each time all tasks submitted so far have ended; it
			       follows at once on what lw_batch_status shows */
};

enum lw_priority {
	LW_FOREGROUND = 0,
	LW_BULK = 1,
};

/* One request. Copied by lw_submit: the array may be reused at once; the memory it points to stays in use. */
struct lw_request {
	void *local;          /* local memory, registered */
	lw_segment_t segment; /* where the other side is */
	uint64_t offset;      /* memory segments: the peer's virtual address; file segments: an offset */
	uint64_t length;      /* bytes; 0 completes at once */
	uint32_t timeout_ms;  /* from the worker's receipt to the end; 0: the setting timeout_ms; at most 86,400,000 */
	uint8_t op;           /* enum lw_op */
	uint8_t priority;     /* enum lw_priority */
	uint16_t reserved;    /* 0 */
};

/* A task's place, filled in by the application: see lw_submit_reserve. One cache line. */
struct lw_slot {
	struct lw_request request;
	uint64_t reserved[3]; /* the engine's */
} __attribute__((aligned(64)));

struct lw_task_status {
	uint32_t state;  /* enum lw_state */
	int32_t error;   /* 0 or a negative errno value */
	uint32_t reason; /* enum lw_reason */
	uint32_t lane;   /* lane that carried the last slice: index for lw_stats_lanes; UINT32_MAX: none */
	uint64_t bytes;  /* confirmed by the peer */
};

struct lw_batch_status {
	uint32_t state;  /* PENDING while a task is; COMPLETED if all are; else FAILED */
	uint32_t tasks;  /* submitted */
	uint32_t done;   /* ended in any state */
	uint32_t failed; /* ended in another state than COMPLETED */
	uint64_t bytes;  /* confirmed by the peers; 0 while PENDING, when lw_task_status tells it task by task */
};

/* Takes a batch for up to capacity tasks (0 .. LW_BATCH_MAX_TASKS) from the engine's slab; all tasks are reserved at
 * once, so a later submit can't run short. user is handed back in completions. The channel's owner. Never blocks, never
 * allocates. 0; -EINVAL; -ENOBUFS slab empty (settings max_batches, max_tasks), free batches and call again;
 * -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_batch_alloc(struct lw_channel *channel, uint32_t capacity, uint32_t flags, void *user, lw_batch_t *out);

/* Adds count requests as tasks (numbered on from those already there) and hands them to a worker, all or none.
 * The batch may come from another channel; its completions go to that one. The channel's owner. Never blocks, never
 * allocates, makes no system call unless a worker sleeps. Whether addresses are registered is found by the worker and
 * is the task's outcome, not the call's. 0; -EAGAIN the ring is full, nothing was taken, call again after a poll;
 * -EBADF batch or a segment stale or foreign; -ENOSPC more than the batch's capacity; -EINVAL NULL, unknown op or
 * priority, wrap-around, timeout too long, reserved not 0; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_submit(struct lw_channel *channel, lw_batch_t batch, const struct lw_request *requests, size_t count);

/* Submission in place, without a copy of the requests: reserve, fill, commit.
 *
 * lw_submit_reserve gives the places of the batch's next tasks, as many of count as lie side by side (up to 64). Fewer
 * than count is normal: fill what there is, commit, and reserve again. Fill in every member of the requests. Nothing is
 * held: to reserve again gives the same places, and lw_submit takes them, too; after either submit reserve anew.
 * lw_submit_commit hands the first count of them to a worker, all or none, as lw_submit does.
 * Both: the channel's owner; never block, never allocate.
 * reserve: the number of places, at least 1; commit: 0; errors as lw_submit, and -EINVAL for a count of 0, or for one
 * that is more than was reserved. After an error of commit the places may be mended and committed again. */
LW_API int lw_submit_reserve(struct lw_channel *channel, lw_batch_t batch, uint32_t count, struct lw_slot **out);
LW_API int lw_submit_commit(struct lw_channel *channel, lw_batch_t batch, uint32_t count);

/* State of all tasks of a batch. Any thread. Never blocks. 0; -EBADF; -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_batch_status(struct lw_engine *engine, lw_batch_t batch, struct lw_batch_status *out);

/* State of one task. Any thread. Never blocks. 0; -EBADF; -ERANGE no such task; -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_task_status(struct lw_engine *engine, lw_batch_t batch, uint32_t task, struct lw_task_status *out);

/* A sentence on how a task ended that names the peer, the range and the cause. Written to text, at most size bytes with
 * its NUL. Any thread. Never blocks beyond a short table lock. The length of the whole sentence; errors as
 * lw_task_status. */
LW_API int lw_task_reason(struct lw_engine *engine, lw_batch_t batch, uint32_t task, char *text, size_t size);

/* Waits until all tasks have ended: spins briefly, then sleeps. In caller mode it drives the engine. Any thread but a
 * worker. Blocks for at most timeout_ms (0: returns at once; UINT32_MAX: without limit). out may be NULL.
 * 0; -ETIMEDOUT tasks are pending still; -EBADF; -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_batch_wait(struct lw_engine *engine, lw_batch_t batch, uint32_t timeout_ms, struct lw_batch_status *out);

/* Asks for the end of one task, or of all tasks submitted so far; what is submitted before the worker has seen the
 * cancel may be canceled with them. What no byte was sent for ends CANCELED soon; what is on the wire either completes
 * or ends CANCELED within 1 s; what a disk carries out ends when the disk has done it, and the deadline of a request is
 * no different there. Any thread. Never blocks. 0 asked (also when all had ended); -EAGAIN too many cancels at once,
 * call again; -ERANGE no such task; -EBADF; -EINVAL; -ESHUTDOWN; -EOWNERDEAD.
 */
LW_API int lw_task_cancel(struct lw_engine *engine, lw_batch_t batch, uint32_t task);
LW_API int lw_batch_cancel(struct lw_engine *engine, lw_batch_t batch);

/* Gives the batch back; the handle is stale from then on. Any thread. Never blocks.
 * 0; -EBUSY a task is pending; -EBADF; -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_batch_free(struct lw_engine *engine, lw_batch_t batch);

#ifdef __cplusplus
}
#endif
#endif
