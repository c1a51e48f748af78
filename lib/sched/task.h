/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks and batches as they lie in the engine's slabs. Type-stable: the memory stays mapped as long as the process
 * lives, so a stale handle reads an old generation and never an unmapped page.
 */
#ifndef LW_SCHED_TASK_H
#define LW_SCHED_TASK_H

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <lanewise/error.h>
#include <lanewise/transfer.h>

#include "lib/ring/inbox.h"

#define LW_CHUNK_TASKS 64u  /* tasks of one batch come in chunks that lie side by side */
#define LW_CHUNK_BYTES 4096 /* a chunk is also 1,024 chunk numbers, the directory of a big batch */
#define LW_DIR_DIRECT 8u
#define LW_DIR_ENTRIES 1024u

#define LW_INDEX_NONE UINT32_MAX
#define LW_LANE_NONE UINT16_MAX

/* Worker's notes in a task. */
enum lw_task_flags {
	LW_TASK_QUEUED = 1,  /* in its path's list: not yet cut completely */
	LW_TASK_CHECKED = 2, /* both ranges were checked */
	LW_TASK_FAILED = 4,  /* a slice failed; reason holds why */
	LW_TASK_MISSED = 16, /* points outside of what the peer was seen to offer: it waits for a refresh, whose
				number's last 8 bits are in reason, or the peer is to decide */
	LW_TASK_ABORT = 8,   /* deadline or cancel: its slices on the wire get a grace, then the lane goes */
};

/* One request, one cache line. The application fills it in lw_submit; from the push of its run until the store of a
 * terminal state it is the worker's; then anybody may read outcome and bytes. */
struct lw_task {
	uint64_t local;
	uint64_t remote; /* lw_request.offset */
	uint64_t length;
	lw_segment_t segment;
	_Atomic uint64_t bytes;   /* confirmed */
	_Atomic uint32_t outcome; /* state | reason << 8 | lane << 16 */
	uint32_t batch;           /* index of its slot */
	uint32_t next;            /* list link: index of a task */
	uint32_t slices;          /* on lanes now */
	uint32_t deadline_ms;     /* submitted: the time allowed; at the worker: on the worker's clock */
	uint8_t op;
	uint8_t priority;
	uint8_t flags;  /* enum lw_task_flags */
	uint8_t reason; /* first failure */
};
static_assert(sizeof(struct lw_task) == 64, "one cache line a task");
static_assert(LW_CHUNK_TASKS * sizeof(struct lw_task) == LW_CHUNK_BYTES, "a chunk is a page");

static inline uint32_t lw_outcome(uint32_t state, uint32_t reason, uint32_t lane)
{
	return state | reason << 8 | lane << 16;
}

/* What workers and the application share of a batch is one word: how many tasks are pending, how many ended in another
 * state than COMPLETED, and who holds the slot. It lies in a line of its own, which the application polls.
 *
 *   submit   adds the pending tasks, then sets TELL if the end is to be told (event, note),
 *            and NOTE if the batch's note is meant; then it pushes the run
 *   worker   takes its ended tasks off; who takes the last one off a batch with TELL clears TELL
 *            and NOTE (the note is its own then) and counts itself as a teller in the same step,
 *            tells, and counts itself off
 *   owner    clears QUEUED when it pops the batch's node
 *   free     sets FREE
 *
 * The step that leaves nothing but FREE (and failures) gives the slot back: no later step can be, so it is exactly one.
 */
#define LW_WORD_PENDING UINT64_C(0x00000000ffffffff)
#define LW_WORD_FAILED_SHIFT 32
#define LW_WORD_FAILED (UINT64_C(0xfffff) << LW_WORD_FAILED_SHIFT)
#define LW_WORD_TELLER (UINT64_C(1) << 52) /* one worker that tells; up to 127 */
#define LW_WORD_TELL (UINT64_C(1) << 60)
#define LW_WORD_NOTE (UINT64_C(1) << 61)   /* note is to be sent then; only together with TELL */
#define LW_WORD_QUEUED (UINT64_C(1) << 62) /* its node is in the channel's inbox or ready list */
#define LW_WORD_FREE (UINT64_C(1) << 63)

static inline uint32_t lw_word_pending(uint64_t word)
{
	return (uint32_t)(word & LW_WORD_PENDING);
}

static inline uint32_t lw_word_failed(uint64_t word)
{
	return (uint32_t)((word & LW_WORD_FAILED) >> LW_WORD_FAILED_SHIFT);
}

static inline bool lw_word_released(uint64_t word)
{
	return (word & ~LW_WORD_FAILED) == LW_WORD_FREE;
}

struct lw_pending_note;

struct lw_batch {
	/* the application's; workers look at them only to tell */
	alignas(64) _Atomic uint32_t gen; /* odd: alive */
	_Atomic uint32_t submitted;
	_Atomic uint32_t capacity;
	_Atomic uint32_t flags;
	void *user;
	uint32_t channel; /* index of the owner */
	uint32_t channel_gen;
	_Atomic(struct lw_pending_note *) note;
	_Atomic uint64_t bytes; /* of all tasks submitted */
	uint32_t reserved;      /* tasks below it were given out by lw_submit_reserve; at or below submitted: none */
	/* shared */
	alignas(64) _Atomic uint64_t word;
	_Atomic uint32_t waiters; /* threads asleep on word's low half */
	/* A batch for one task alone: when its task completes at once, the word tells all but the lane, and the worker
	 * does not write to the task, whose line would have to travel first. */
	_Atomic uint32_t solo_lane;
	/* chunk numbers of the tasks, or of directories when there are more than 512 */
	alignas(64) _Atomic uint32_t dir[LW_DIR_DIRECT];
	struct lw_inbox_node node;
};
static_assert(LW_BATCH_MAX_TASKS < (1u << 20), "all tasks of a batch may fail");

#endif
