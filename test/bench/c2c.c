/* SPDX-License-Identifier: Apache-2.0 */
/* c2c [CPU CPU]: two pinned threads hand a cache line back and forth for 50 ms. Prints the nanoseconds of one round
 * trip, by which figures of different machines can be set beside each other. 77: there are no two CPUs. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RUN_NS 50000000u
#define STOP UINT64_MAX

static _Alignas(128) _Atomic uint64_t ball; /* odd: the echo's turn; even: ours */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *echo(void *arg)
{
	uint64_t seen;

	(void)arg;
	for (;;) {
		while (!((seen = atomic_load_explicit(&ball, memory_order_acquire)) & 1))
			; /* the other CPU writes */
		if (seen == STOP)
			return NULL;
		atomic_store_explicit(&ball, seen + 1, memory_order_release);
	}
}

/* Binds the calling thread to one CPU and starts the echo on the other. 0; an errno value. */
static int start(int cpu, int echo_cpu, pthread_t *thread)
{
	pthread_attr_t attr;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	int rc = pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
	if (rc)
		return rc;
	CPU_ZERO(&one);
	CPU_SET((size_t)echo_cpu, &one);
	pthread_attr_init(&attr);
	pthread_attr_setaffinity_np(&attr, sizeof(one), &one);
	rc = pthread_create(thread, &attr, echo, NULL);
	pthread_attr_destroy(&attr);
	return rc;
}

/* Rounds until the time is over; the clock is read every 1,000. */
static double measure(void)
{
	uint64_t rounds = 0, begin = now_ns(), end;

	do {
		for (int i = 0; i < 1000; i++, rounds++) {
			uint64_t value = 2 * rounds + 1;

			atomic_store_explicit(&ball, value, memory_order_release);
			while (atomic_load_explicit(&ball, memory_order_acquire) == value)
				; /* the echo writes */
		}
		end = now_ns();
	} while (end - begin < RUN_NS);
	return (double)(end - begin) / (double)rounds;
}

int main(int argc, char **argv)
{
	int cpus[2] = {-1, -1};
	cpu_set_t allowed;
	pthread_t thread;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return EXIT_FAILURE;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET((size_t)cpu, &allowed))
			continue;
		if (cpus[0] < 0)
			cpus[0] = cpu;
		cpus[1] = cpu;
	}
	if (argc == 3) {
		cpus[0] = atoi(argv[1]);
		cpus[1] = atoi(argv[2]);
	}
	if (cpus[0] == cpus[1]) {
		fprintf(stderr, "c2c: skipped: two CPUs are needed\n");
		return 77;
	}
	if (start(cpus[1], cpus[0], &thread)) {
		fprintf(stderr, "c2c: can't run on CPUs %d and %d\n", cpus[0], cpus[1]);
		return EXIT_FAILURE;
	}
	double ns = measure();
	atomic_store_explicit(&ball, STOP, memory_order_release);
	pthread_join(thread, NULL);
	printf("%.1f\n", ns);
	return 0;
}
