/* SPDX-License-Identifier: Apache-2.0 */
/* An asymmetric fence: the frequent side (lw_fence_light) costs a compiler barrier, the rare side (lw_fence_heavy) a
 * system call that makes every running thread of the process pass a full barrier (membarrier(2)). Where the kernel has
 * none, both are full fences. Used as in Dekker's algorithm: "store mine; fence; load theirs" on both sides, at least
 * one sees the other.
 */
#ifndef LW_ASYM_H
#define LW_ASYM_H

#include <stdatomic.h>
#include <stdbool.h>

extern bool lw_fence_asymmetric; /* constant after lw_fence_init */

/* Once a process, before threads use the fences. */
void lw_fence_init(void);
void lw_fence_heavy(void);

static inline void lw_fence_light(void)
{
	if (lw_fence_asymmetric)
		atomic_signal_fence(memory_order_seq_cst);
	else
		atomic_thread_fence(memory_order_seq_cst);
}

#endif
