/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz/input.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <lanewise/engine.h>

#include "lib/sched/worker.h"

#define PASSES_MAX 100000 /* without rest: it spins */

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
}

void fuzz_eager(struct lw_worker *worker)
{
	worker->hot++;
}

void fuzz_drive(struct lw_worker *worker)
{
	bool worked = true;

	for (uint32_t passes = 0; worked; passes++) {
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
