/* SPDX-License-Identifier: Apache-2.0 */
/* Submission ring: one producer (the channel's owner), one consumer (the worker). Fixed 16-byte entries.
 *
 * Each side keeps a copy of the other side's index and looks again only when the copy says "full" or "empty", so that
 * an operation costs a cache-line transfer once per lap and not once per entry (rte_ring reads the other index each
 * time).
 *
 *   space, push   the producer   wait-free
 *   pop           the consumer   wait-free
 *
 * Linearisation points: the store of tail (P) and the store of head (C). The consumer's load of tail (acquire) pairs
 * with P, so it sees the entries, and the tasks they point to, as written. The producer's load of head (acquire) pairs
 * with C, so it overwrites no entry that is still being read.
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
	uint32_t first;
	uint32_t count;
	uint32_t reserved;
};
static_assert(sizeof(struct lw_run) == 16, "four entries a cache line");

struct lw_spsc {
	alignas(LW_CACHE_LINE) _Atomic uint32_t tail; /* written by the producer */
	uint32_t head_seen;
	alignas(LW_CACHE_LINE) _Atomic uint32_t head; /* written by the consumer */
	uint32_t tail_seen;
	alignas(LW_CACHE_LINE) uint32_t mask; /* constant */
	struct lw_run *slots;
};
static_assert(sizeof(struct lw_spsc) == 3 * LW_CACHE_LINE, "one line a side, one for constants");

/* slots has size entries; size is a power of two. Before the ring is shared. */
static inline void lw_spsc_init(struct lw_spsc *ring, struct lw_run *slots, uint32_t size)
{
	assert(size != 0 && (size & (size - 1)) == 0);
	atomic_init(&ring->tail, 0);
	atomic_init(&ring->head, 0);
	ring->head_seen = 0;
	ring->tail_seen = 0;
	ring->mask = size - 1;
	ring->slots = slots;
}

/* Entries that push would take now: at least want, or all there are. */
static inline uint32_t lw_spsc_space(struct lw_spsc *ring, uint32_t want)
{
	uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	uint32_t space = ring->mask + 1 - (tail - ring->head_seen);

	if (space < want) {
		ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire); /* pairs with C */
		space = ring->mask + 1 - (tail - ring->head_seen);
	}
	return space;
}

/* The caller made sure of space. */
static inline void lw_spsc_push(struct lw_spsc *ring, struct lw_run run)
{
	uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

	ring->slots[tail & ring->mask] = run;
	atomic_store_explicit(&ring->tail, tail + 1, memory_order_release); /* P */
}

static inline bool lw_spsc_pop(struct lw_spsc *ring, struct lw_run *run)
{
	uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

	if (head == ring->tail_seen) {
		ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire); /* pairs with P */
		if (head == ring->tail_seen)
			return false;
	}
	*run = ring->slots[head & ring->mask];
	atomic_store_explicit(&ring->head, head + 1, memory_order_release); /* C */
	return true;
}

#endif
