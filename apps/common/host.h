/* SPDX-License-Identifier: Apache-2.0 */
/* What programs ask the host for: time, CPU time, CPUs, memory, and the end signals as ordinary events. */
#ifndef APPS_COMMON_HOST_H
#define APPS_COMMON_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Monotonic time. */
uint64_t app_clock_ns(void);

/* CPU seconds of this process so far. Outputs may be NULL. Returns the sum of both. */
double app_cpu_seconds(double *user, double *system);

/* Maps size bytes of private memory and touches each page. NULL when there is not enough. */
void *app_memory_map(size_t size);

/* Gives memory of app_memory_map back. NULL is allowed. */
void app_memory_unmap(void *addr, size_t size);

/* Fills memory with a pattern that depends on seed alone. */
void app_pattern_fill(void *addr, size_t size, uint64_t seed);

/* Compares memory with the pattern. The offset of the first byte that differs, or size. */
size_t app_pattern_check(const void *addr, size_t size, uint64_t seed);

/* The next number of a splitmix64 sequence. */
uint64_t app_random(uint64_t *state);

/* Binds the calling thread to CPU number index (modulo their count) of those of app_cpus. 0, -errno. */
int app_pin(unsigned index);

/* How many CPUs the thread that called this or app_pin first could use then. */
unsigned app_cpus(void);

/* Blocks SIGINT and SIGTERM in this thread and those it starts, so that app_ended can take them. Call it first in main.
 */
void app_signals_block(void);

/* Waits at most wait_ms for SIGINT or SIGTERM. true: one came. */
bool app_ended(unsigned wait_ms);

#endif
