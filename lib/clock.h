/* SPDX-License-Identifier: Apache-2.0 */
/* The one clock of the library: it does not step when the wall clock does. */
#ifndef LW_CLOCK_H
#define LW_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds on CLOCK_MONOTONIC. Any thread; no system call where the kernel has a vDSO clock. */
static inline uint64_t lw_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
