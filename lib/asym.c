/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/asym.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

bool lw_fence_asymmetric;

void lw_fence_init(void)
{
	long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);

	if (commands < 0 || (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
		return;
	lw_fence_asymmetric = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void lw_fence_heavy(void)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (lw_fence_asymmetric)
		syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}
