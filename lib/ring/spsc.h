/* SPDX-License-Identifier: Apache-2.0 */
/* Submission ring: one producer (the channel's owner), one consumer (the worker). An entry is a cache line: a run of
 * tasks of one batch, and a copy of what the first one asks, so that a single request reaches the worker with one line.
 *
 * An entry carries the number of its lap, so the consumer looks at the entry itself and not at an index that the
 * producer writes. The producer keeps a copy of the consumer's index and looks again only when the copy says "full".
 * (rte_ring reads the other side's index on each call.)
 *
 *   space, push   the producer   wait-free
 *   pop, empty    the consumer   wait-free
 *
 * Linearisation points: the store of an entry's first word (P) and the store of head (C). The consumer's load of that
 * word (acquire) pairs with P, so it sees the rest of the entry, and the tasks it points to, as written. The producer's
 * load of head (acquire) pairs with C, so it overwrites no entry that is still being read.
 */
#ifndef LW_RING_SPSC_H
#define LW_RING_SPSC_H

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LW_CACHE_LINE 64

/* Tasks [first, first + count) of one batch. */
struct lw_run {
	uint32_t batch; /* index of the batch's slot */
	uint32_t task;  /* index of the first task in the slab */
	uint32_t first; /* its number in the batch, below 2^20 */
	uint32_t count; /* 1 .. 2^20 - 1 */
	/* what the first task asks */
	uint64_t local, remote, length;
	uint64_t segment;
	uint8_t op;
	uint8_t priority;
	bool solo; /* the batch can have no other task */
};

#define LW_RUN_BITS 20u /* of first and of count, in an entry's first word; the lap has the rest */
#define LW_RUN_MASK ((UINT32_C(1) << LW_RUN_BITS) - 1)

struct lw_spsc_entry {
	alignas(LW_CACHE_LINE) _Atomic uint64_t what; /* first | count << 20 | lap << 40 */
	uint32_t batch, task;
	uint64_t local, remote, length, segment;
	uint8_t op;
	uint8_t priority;
	bool solo;
};
static_assert(sizeof(struct lw_spsc_entry) == LW_CACHE_LINE, "an entry is a cache line");

struct lw_spsc {
	alignas(LW_CACHE_LINE) uint32_t tail; /* the producer's own */
	uint32_t head_seen;
	alignas(LW_CACHE_LINE) _Atomic uint32_t head; /* written by the consumer */
	alignas(LW_CACHE_LINE) uint32_t mask;         /* constant */
	uint32_t shift;
	struct lw_spsc_entry *entries;
};
static_assert(sizeof(struct lw_spsc) == 3 * LW_CACHE_LINE, "one line a side, one for constants");

/* The lap of an index: never that of the entry it replaces. */
static inline uint64_t lw_spsc_lap(const struct lw_spsc *ring, uint32_t index)
{
	return ((uint64_t)(index >> ring->shift) + 1) & ((UINT64_C(1) << 24) - 1);
}

/* entries has room for size, a power of two. Before the ring is shared. */
static inline void lw_spsc_init(struct lw_spsc *ring, struct lw_spsc_entry *entries, uint32_t size)
{
	assert(size != 0 && (size & (size - 1)) == 0);
	ring->tail = 0;
	ring->head_seen = 0;
	atomic_init(&ring->head, 0);
	ring->mask = size - 1;
	ring->shift = (uint32_t)__builtin_ctz(size);
	ring->entries = entries;
	for (uint32_t i = 0; i < size; i++)
		atomic_init(&entries[i].what, 0);
}

/* Entries that push would take now: at least want, or all there are. */
static inline uint32_t lw_spsc_space(struct lw_spsc *ring, uint32_t want)
{
	uint32_t space = ring->mask + 1 - (ring->tail - ring->head_seen);

	if (space < want) {
		ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire); /* pairs with C */
		space = ring->mask + 1 - (ring->tail - ring->head_seen);
	}
	return space;
}

/* The caller made sure of space. */
static inline void lw_spsc_push(struct lw_spsc *ring, const struct lw_run *run)
{
	struct lw_spsc_entry *entry = &ring->entries[ring->tail & ring->mask];
	uint64_t lap = lw_spsc_lap(ring, ring->tail);

	entry->batch = run->batch;
	entry->task = run->task;
	entry->local = run->local;
	entry->remote = run->remote;
	entry->length = run->length;
	entry->segment = run->segment;
	entry->op = run->op;
	entry->priority = run->priority;
	entry->solo = run->solo;
	atomic_store_explicit(&entry->what, run->first | (uint64_t)run->count << LW_RUN_BITS | lap << (2 * LW_RUN_BITS),
			      memory_order_release); /* P */
	ring->tail++;
}

static inline bool lw_spsc_empty(struct lw_spsc *ring)
{
	uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	uint64_t what = atomic_load_explicit(&ring->entries[head & ring->mask].what, memory_order_acquire);

	return what >> (2 * LW_RUN_BITS) != lw_spsc_lap(ring, head);
}

static inline bool lw_spsc_pop(struct lw_spsc *ring, struct lw_run *run)
{
	uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	const struct lw_spsc_entry *entry = &ring->entries[head & ring->mask];
	uint64_t what = atomic_load_explicit(&entry->what, memory_order_acquire); /* pairs with P */

	if (what >> (2 * LW_RUN_BITS) != lw_spsc_lap(ring, head))
		return false;
	*run = (struct lw_run){.batch = entry->batch,
			       .task = entry->task,
			       .first = (uint32_t)what & LW_RUN_MASK,
			       .count = (uint32_t)(what >> LW_RUN_BITS) & LW_RUN_MASK,
			       .local = entry->local,
			       .remote = entry->remote,
			       .length = entry->length,
			       .segment = entry->segment,
			       .op = entry->op,
			       .priority = entry->priority,
			       .solo = entry->solo};
	atomic_store_explicit(&ring->head, head + 1, memory_order_release); /* C */
	return true;
}

#endif
