/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz/input.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <lanewise/engine.h>

#include "lib/sched/worker.h"

#define PASSES_MAX 100000 /* without rest: it spins */

/* The linker puts it in the place of the C library's. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __real_clock_gettime(clockid_t clock, struct timespec *now);

static _Atomic uint64_t frozen_ns; /* 0: the clock goes */

#ifdef __SANITIZE_ADDRESS__
#define LEAKS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEAKS 1
#endif
#endif
#ifdef LEAKS
#include <sanitizer/lsan_interface.h>
#endif

uint8_t fuzz_u8(struct fuzz_input *input)
{
	if (input->left == 0)
		return 0;
	input->left--;
	return *input->at++;
}

uint16_t fuzz_u16(struct fuzz_input *input)
{
	uint8_t low = fuzz_u8(input);

	return (uint16_t)(low | fuzz_u8(input) << 8);
}

size_t fuzz_bytes(struct fuzz_input *input, size_t length, const uint8_t **bytes)
{
	if (length > input->left)
		length = input->left;
	*bytes = input->at;
	input->at += length;
	input->left -= length;
	return length;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	uint64_t frozen = atomic_load(&frozen_ns);

	if (clock != CLOCK_MONOTONIC || frozen == 0)
		return __real_clock_gettime(clock, now);
	*now = (struct timespec){.tv_sec = (time_t)(frozen / 1000000000), .tv_nsec = (long)(frozen % 1000000000)};
	return 0;
}

static uint64_t real_ns(void)
{
	struct timespec now;

	__real_clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t fuzz_real_ms(void)
{
	return real_ns() / 1000000;
}

void fuzz_time_passes(uint32_t ms)
{
	atomic_fetch_add(&frozen_ns, (uint64_t)ms * 1000000);
}

static void swallow(int level, const char *line, void *arg)
{
	(void)level;
	(void)line;
	(void)arg;
}

void fuzz_setup_begin(void)
{
#ifdef LEAKS
	__lsan_disable();
#endif
	lw_log_set(swallow, NULL);
}

void fuzz_setup_end(void)
{
#ifdef LEAKS
	__lsan_enable();
#endif
	atomic_store(&frozen_ns, real_ns());
}

void fuzz_eager(struct lw_worker *worker)
{
	worker->hot++;
}

void fuzz_drive(struct lw_worker *worker)
{
	uint64_t now_ns = atomic_load(&frozen_ns);
	bool worked = true;

	for (uint32_t passes = 0; worked || worker->wanted != 0 || worker->now_ns != now_ns; passes++) {
		uint64_t before = worker->worked_ns;

		FUZZ_CHECK(passes < PASSES_MAX, "the engine finds no rest");
		worker->worked_ns = 0;
		FUZZ_CHECK(lw_worker_drive(worker), "somebody else drives the engine");
		worked = worker->worked_ns != 0;
		if (!worked)
			worker->worked_ns = before;
	}
}

void fuzz_fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	abort();
}
