/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "apps/common/host.h"

uint64_t app_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static double seconds(const struct timeval *time)
{
	return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

double app_cpu_seconds(double *user, double *system)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	if (user)
		*user = seconds(&usage.ru_utime);
	if (system)
		*system = seconds(&usage.ru_stime);
	return seconds(&usage.ru_utime) + seconds(&usage.ru_stime);
}

void *app_memory_map(size_t size)
{
	unsigned char *addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (addr == MAP_FAILED)
		return NULL;
	madvise(addr, size, MADV_HUGEPAGE);
	for (size_t at = 0; at < size; at += 4096)
		addr[at] = 1;
	return addr;
}

void app_memory_unmap(void *addr, size_t size)
{
	if (addr)
		munmap(addr, size);
}

uint64_t app_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

void app_pattern_fill(void *addr, size_t size, uint64_t seed)
{
	unsigned char *to = addr;

	for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
		uint64_t word = app_random(&seed);
		memcpy(to + at, &word, size - at < sizeof(word) ? size - at : sizeof(word));
	}
}

size_t app_pattern_check(const void *addr, size_t size, uint64_t seed)
{
	const unsigned char *from = addr;

	for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
		uint64_t word = app_random(&seed);
		size_t step = size - at < sizeof(word) ? size - at : sizeof(word);
		if (memcmp(from + at, &word, step) == 0)
			continue;
		const unsigned char *want = (const unsigned char *)&word;
		size_t byte = 0;
		while (from[at + byte] == want[byte])
			byte++;
		return at + byte;
	}
	return size;
}

/* CPUs of the thread that asked first, before anything was pinned. */
static cpu_set_t allowed;
static pthread_once_t allowed_once = PTHREAD_ONCE_INIT;

static void allowed_read(void)
{
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		CPU_SET(0, &allowed);
}

int app_pin(unsigned index)
{
	cpu_set_t one;
	unsigned skip = index % app_cpus();

	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed) || skip-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		return -pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
	}
	return -ENOENT;
}

unsigned app_cpus(void)
{
	pthread_once(&allowed_once, allowed_read);
	return (unsigned)CPU_COUNT(&allowed);
}

static void end_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
}

void app_signals_block(void)
{
	sigset_t set;

	end_signals(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool app_ended(unsigned wait_ms)
{
	const struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = (long)(wait_ms % 1000) * 1000000};
	sigset_t set;

	end_signals(&set);
	return sigtimedwait(&set, NULL, &wait) > 0;
}
