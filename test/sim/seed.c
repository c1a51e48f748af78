/* SPDX-License-Identifier: Apache-2.0 */
/* The random numbers of a schedule, its virtual clock, and what is said when it fails. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/engines.h"
#include "sim/sim.h"

struct sim sim;

/* The linker puts it in the place of the C library's: the engine's clock is the schedule's. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __real_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock != CLOCK_MONOTONIC || sim.now_ns == 0)
		return __real_clock_gettime(clock, now);
	*now = (struct timespec){.tv_sec = (time_t)(sim.now_ns / 1000000000),
				 .tv_nsec = (long)(sim.now_ns % 1000000000)};
	return 0;
}

uint64_t sim_random(uint64_t below)
{
	return test_random(&sim.random) % below;
}

bool sim_chance(uint32_t of_1000)
{
	return sim_random(1000) < of_1000;
}

void sim_say(const char *format, ...)
{
	va_list args;

	printf("%8.3f ms  ", (double)(sim.now_ns % (1000000 * SIM_MS)) / 1e6);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

void sim_fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "%s:%d: ", file, line);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\nschedule 0x%llx failed; again, with each step: %s --seed 0x%llx --trace\n",
		(unsigned long long)sim.seed, sim.program, (unsigned long long)sim.seed);
	exit(1);
}
