/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of this folder share: the clock, the two CPUs, medians, and the way figures are printed. */
#ifndef LW_BENCH_MEASURE_H
#define LW_BENCH_MEASURE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The CPUs of the worker and of the submitting thread. */
static int first_cpu, last_cpu;
static bool measure_json;
static bool measure_began;

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Finds the CPUs. False, and said on standard error: there are not two. */
static inline bool measure_cpus(const char *program)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	if (CPU_COUNT(&set) < 2) {
		fprintf(stderr, "%s: skipped: the figures need two CPUs\n", program);
		return false;
	}
	for (first_cpu = 0; !CPU_ISSET((size_t)first_cpu, &set); first_cpu++)
		;
	for (last_cpu = CPU_SETSIZE - 1; !CPU_ISSET((size_t)last_cpu, &set); last_cpu--)
		;
	return true;
}

/* One figure, as a line of a table or an item of the array that measure_end closes. */
static inline void report(const char *name, double value, const char *unit, size_t n)
{
	if (measure_json)
		printf("%s{\"name\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"n\":%zu}", measure_began ? "," : "[", name,
		       value, unit, n);
	else
		printf("%-30s %12.2f %-4s n=%zu\n", name, value, unit, n);
	measure_began = true;
	fflush(stdout);
}

static inline void measure_end(void)
{
	if (measure_json)
		printf("]\n");
}

static inline int measure_compare(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return left < right ? -1 : left > right;
}

/* Sorts the values. */
static inline double percentile(double *values, size_t count, double part)
{
	qsort(values, count, sizeof(*values), measure_compare);
	return values[(size_t)((double)(count - 1) * part)];
}

static inline void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* Both CPUs again. */
static inline void unpin(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)first_cpu, &set);
	CPU_SET((size_t)last_cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

#endif
