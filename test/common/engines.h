/* SPDX-License-Identifier: Apache-2.0 */
/* Engines for tests: small tables, a port range of their own, no huge pages; and clocks, seeds and counts. */
#ifndef LW_TEST_ENGINES_H
#define LW_TEST_ENGINES_H

#include <stdbool.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

/* An open engine on 127.0.0.1 with workers as plain threads, which reaches others over sockets unless extra says
 * shm_peers=on. extra holds "name=value" texts, separated by blanks; they
 * win. Ends the test if it can't be opened. */
struct lw_engine *test_engine(const char *extra);

/* The same call, for tests of its outcome. */
int test_engine_try(const char *extra, const char *name, struct lw_engine **out);

/* ThreadSanitizer can't see that a peer's answer orders what was done before it: two engines of one process look like
 * strangers to it, and several workers that serve one area like a race. */
#ifdef __SANITIZE_THREAD__
#define TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_TSAN 1
#endif
#endif
#ifndef TEST_TSAN
#define TEST_TSAN 0
#endif

/* AddressSanitizer keeps freed memory for a while: what the process holds says little then. */
#ifdef __SANITIZE_ADDRESS__
#define TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#endif
#ifndef TEST_ASAN
#define TEST_ASAN 0
#endif

/* Printed once a program; LW_TEST_SEED gives it back. */
uint64_t test_seed(void);
/* The next number of a sequence. */
uint64_t test_random(uint64_t *state);

uint64_t test_now_ms(void);
void test_sleep_ms(uint32_t ms);

/* Descriptors and threads of this process. */
int test_fds(void);
int test_threads(void);

/* Whether this build has a setting of that name. */
bool test_setting_known(const char *name);

/* Registers one buffer and returns its handle; ends the test on failure. */
lw_buffer_t test_register(struct lw_engine *engine, void *addr, size_t length, uint32_t access);

/* Opens the segment of another engine; ends the test on failure. */
lw_segment_t test_segment(struct lw_engine *engine, struct lw_engine *peer);

/* Waits for the batch, at most 20 s, and returns its state as a whole. */
struct lw_batch_status test_wait(struct lw_engine *engine, lw_batch_t batch);

/* One request in a batch of its own, waited for and freed. */
struct lw_task_status test_transfer(struct lw_engine *engine, struct lw_channel *channel, struct lw_request request);

/* Polls until the condition holds; the test fails after 10 s. */
#define TEST_EVENTUALLY(condition)                                                                                     \
	do {                                                                                                           \
		uint64_t begin_ms_ = test_now_ms();                                                                    \
		while (!(condition)) {                                                                                 \
			if (test_now_ms() - begin_ms_ > 10000)                                                         \
				fail_msg("never: %s", #condition);                                                     \
			test_sleep_ms(1);                                                                              \
		}                                                                                                      \
	} while (0)

#endif
