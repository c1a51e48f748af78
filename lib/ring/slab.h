/* SPDX-License-Identifier: Apache-2.0 */
/* Slab index: which of count equal objects are free. A stack of indices, so that what was used last is used next.
 *
 *   take, give   any thread   lock-free: a thread stopped inside either delays nobody
 *
 * The head holds a tag beside the index, and each take changes the tag, so a head that was taken and given back
 * meanwhile is not mistaken for an unchanged one. (A ring-backed rte_mempool stalls its users when one of them is
 * preempted inside it, and rte_stack needs the EAL's memory, which may be missing.) Linearisation points: the
 * successful compare-exchanges. take (acquire) pairs with give (release).
 */
#ifndef LW_RING_SLAB_H
#define LW_RING_SLAB_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#define LW_SLAB_NONE UINT32_MAX

struct lw_slab {
	alignas(64) _Atomic uint64_t head; /* tag << 32 | index */
	alignas(64) _Atomic uint32_t *next;
	_Atomic uint32_t count; /* changes while nobody takes or gives; handles are checked against it at any time */
};

/* next has room for count indices, which are all free then, in ascending order. Before the slab is shared. */
static inline void lw_slab_init(struct lw_slab *slab, _Atomic uint32_t *next, uint32_t count)
{
	slab->next = next;
	atomic_store_explicit(&slab->count, count, memory_order_relaxed);
	for (uint32_t i = 0; i < count; i++)
		atomic_init(&next[i], i + 1 < count ? i + 1 : LW_SLAB_NONE);
	atomic_init(&slab->head, count != 0 ? 0 : LW_SLAB_NONE);
}

/* A free index, or LW_SLAB_NONE. */
static inline uint32_t lw_slab_take(struct lw_slab *slab)
{
	uint64_t head = atomic_load_explicit(&slab->head, memory_order_acquire);
	uint64_t want;

	do {
		if ((uint32_t)head == LW_SLAB_NONE)
			return LW_SLAB_NONE;
		want = ((head >> 32) + 1) << 32 |
		       atomic_load_explicit(&slab->next[(uint32_t)head], memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(&slab->head, &head, want, memory_order_acquire,
							memory_order_acquire));
	return (uint32_t)head;
}

static inline void lw_slab_give(struct lw_slab *slab, uint32_t index)
{
	uint64_t head = atomic_load_explicit(&slab->head, memory_order_relaxed);

	do {
		atomic_store_explicit(&slab->next[index], (uint32_t)head, memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(&slab->head, &head, (head & ~(uint64_t)UINT32_MAX) | index,
							memory_order_release, memory_order_relaxed));
}

#endif
