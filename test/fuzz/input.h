/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzzers share: taking an input apart, failing, and silence. A fuzzer is a file fuzz_NAME.c with the one function
 * LLVMFuzzerTestOneInput; libFuzzer or replay.c calls it.
 */
#ifndef LW_FUZZ_INPUT_H
#define LW_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is left of an input. Past the end there are zeroes. */
struct fuzz_input {
	const uint8_t *at;
	size_t left;
};

uint8_t fuzz_u8(struct fuzz_input *input);
uint16_t fuzz_u16(struct fuzz_input *input);
/* At most length bytes, less near the end: their number. *bytes points into the input. */
size_t fuzz_bytes(struct fuzz_input *input, size_t length, const uint8_t **bytes);

struct lw_worker;

/* What is allocated between the two stays until the program ends. The leak checker would not find it, since it looks
 * for no pointers in pages of mmap(2), where the engine's tables are. Log lines go nowhere from then on. */
void fuzz_setup_begin(void);
/* From now on CLOCK_MONOTONIC stands still, and goes on by fuzz_time_passes alone: no tick of a driver's comes to the
 * aid of an event that got lost. */
void fuzz_setup_end(void);

void fuzz_time_passes(uint32_t ms);
/* The time outside, for bounds of our own. */
uint64_t fuzz_real_ms(void);

/* The engine without threads that the worker belongs to asks its sockets in each pass, whatever the time. */
void fuzz_eager(struct lw_worker *worker);
/* It goes on until it has nothing to do, and has looked at the clock. */
void fuzz_drive(struct lw_worker *worker);

/* Ends the program with a sentence, so that libFuzzer keeps the input. */
_Noreturn void fuzz_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define FUZZ_CHECK(condition, ...)                                                                                     \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			fuzz_fail(__FILE__, __LINE__, __VA_ARGS__);                                                    \
	} while (0)

#endif
