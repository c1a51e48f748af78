/* SPDX-License-Identifier: Apache-2.0 */
/* Bounce buffers: pinned memory of the host, through which bytes of a GPU's memory move where no driver gets at it
 * directly. A pool is a worker's, for the GPUs of one vendor: slots of one size. A line is a stream of copies of one
 * GPU; they end in their order.
 *
 * There are two of each, so that neither waits for the other's slots: what we asked for, and what peers asked of us.
 * Two engines that write to each other would else wait for each other.
 *
 *   make, add, free         the threads that register memory, under the lock of lib/places.h; before and after the
 * thread everything else         the worker's thread; nothing blocks or allocates
 *
 * A copy that has begun can't be taken back: the memory at both of its ends is used until its event has come. A worker
 * that does not get it any more (its GPU hangs, and the engine is closed) leaves the pool as it is, for ever.
 */
#ifndef LW_SCHED_BOUNCE_H
#define LW_SCHED_BOUNCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "lib/gpu/runtime.h"
#include "lib/rangemap.h"

struct lw_worker;

enum lw_bounce_role {
	LW_BOUNCE_OURS,  /* for requests of this engine */
	LW_BOUNCE_PEERS, /* for those of peers */
	LW_BOUNCE_ROLES,
};

struct lw_bounce_slot {
	unsigned char *memory; /* pool->bytes of it */
	struct lw_bounce_pool *pool;
	uint32_t index;
	bool copying;    /* until done is called */
	int error;       /* that it ended with */
	uint64_t device; /* the other end */
	uint64_t length;
	/* the holder's */
	void (*done)(struct lw_worker *worker, struct lw_bounce_slot *slot, int error);
	void *owner;
	uint32_t tag, segment, pair;
	STAILQ_ENTRY(lw_bounce_slot) link; /* the pool's free ones, the line's that are being copied, or ended ones */
};
STAILQ_HEAD(lw_bounce_slots, lw_bounce_slot);

struct lw_bounce_pool {
	const struct lw_gpu *gpu;
	int device; /* in whose guard it was made */
	unsigned char *memory;
	uint64_t bytes; /* of a slot */
	uint32_t count;
	uint32_t held;
	bool entered; /* drivers know the memory; under the lock of lib/places.h */
	struct lw_bounce_slots free;
	struct lw_bounce_slot *slot;
	struct lw_bounce_line *lines;
	struct lw_bounce_pool *next; /* once it was left */
};

struct lw_bounce_line {
	struct lw_bounce_pool *pool;
	int device;
	struct lw_gpu_stream stream;
	struct lw_bounce_slots copying; /* in the order in which they end */
	TAILQ_ENTRY(lw_bounce_line) link;
	struct lw_bounce_line *next; /* of the pool */
	struct lw_gpu_event event[]; /* one a slot */
};

/* A worker's. */
struct lw_bounces {
	TAILQ_HEAD(, lw_bounce_line) busy; /* lines with copies */
	uint32_t copies;                   /* under way */
	bool given_up;                     /* the worker's end does not wait for them any more */
	uint64_t began_ns;                 /* when the last one began */
	_Atomic uint64_t bytes, errors;    /* copied; copies that failed */
	_Atomic(struct lw_bounce_line *) line[LW_BOUNCE_ROLES][LW_RANGE_PLACES];
	/* under the lock of lib/places.h */
	struct lw_bounce_pool *pool[LW_BOUNCE_ROLES][LW_GPU_VENDORS];
};

void lw_bounces_init(struct lw_bounces *bounces);

/* Makes the worker's pool of that vendor, if there is none, and the line of the place's device, if there is none. May
 * take its time. 0, or a negative errno of the runtime's. */
int lw_bounces_add(struct lw_bounces *bounces, enum lw_bounce_role role, uint32_t place, const struct lw_gpu *gpu,
		   int device, uint32_t slots, uint64_t bytes);

/* Gives everything back, but for pools of which something is in use. False: there were such. */
bool lw_bounces_free(struct lw_bounces *bounces);

/* The line of a range's memory: access as in lw_range. NULL: there is none. */
static inline struct lw_bounce_line *lw_bounce_line(struct lw_bounces *bounces, enum lw_bounce_role role,
						    uint32_t access)
{
	return atomic_load_explicit(&bounces->line[role][lw_range_place(access)], memory_order_acquire);
}

/* A slot, for one who holds so many already: as many as are left for the others, so that peers that don't answer can't
 * take all of them. NULL: not now. */
struct lw_bounce_slot *lw_bounce_take(struct lw_bounce_line *line, uint32_t holding);
bool lw_bounce_could_take(const struct lw_bounce_line *line, uint32_t holding);

/* Gives a slot back. One that is being copied goes back when that has ended, and done is not called. */
void lw_bounce_give(struct lw_bounce_slot *slot);

/* Begins to copy length bytes between the slot's memory and the device's; done is called later, by lw_bounces_poll,
 * with 0 or a negative errno. 0, or a negative errno: nothing was begun. */
int lw_bounce_copy(struct lw_worker *worker, struct lw_bounce_line *line, struct lw_bounce_slot *slot, uint64_t device,
		   uint64_t length, bool to_device);

/* Looks which copies have ended. True if one has. */
bool lw_bounces_poll(struct lw_worker *worker);

/* Whether a copy is under way from or to the device's memory [addr, end). */
bool lw_bounces_hold(const struct lw_bounces *bounces, uint64_t addr, uint64_t end);

/* Whether a copy is under way that nobody waits for any more: its holder gave the slot back. */
bool lw_bounces_orphaned(const struct lw_bounces *bounces);

#endif
