/* SPDX-License-Identifier: Apache-2.0 */
/* The submission ring between two threads: every entry once, in order, as it was written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/engines.h"
#include "lib/ring/spsc.h"

#define ENTRIES 1000000u
#define BOUND_MS 1000

struct run {
	struct lw_spsc ring;
	uint64_t sequence;
	uint64_t pushed;
	_Atomic int stop;
};

static uint64_t mix(uint64_t n)
{
	return test_random(&n);
}

static void *produce(void *arg)
{
	struct run *run = arg;
	uint64_t end_ms = test_now_ms() + BOUND_MS;
	uint32_t size = run->ring.mask + 1;

	while (run->pushed < ENTRIES && test_now_ms() < end_ms) {
		/* Bursts of random length, now and then a pause, so that the ring is full and empty in turns. */
		uint32_t burst = 1 + (uint32_t)(test_random(&run->sequence) % (2 * size));

		for (; burst > 0 && run->pushed < ENTRIES; burst--) {
			uint64_t n = run->pushed, hash = mix(n);
			struct lw_run entry = {.batch = (uint32_t)n,
					       .task = (uint32_t)hash,
					       .first = (uint32_t)hash & LW_RUN_MASK,
					       .count = (uint32_t)(hash >> 40) & LW_RUN_MASK,
					       .local = n,
					       .remote = hash,
					       .length = ~hash,
					       .segment = hash ^ n,
					       .op = (uint8_t)hash};

			while (lw_spsc_space(&run->ring, 1) == 0)
				sched_yield();
			lw_spsc_push(&run->ring, &entry);
			run->pushed++;
		}
		if (test_random(&run->sequence) % 8 == 0)
			sched_yield();
	}
	atomic_store_explicit(&run->stop, 1, memory_order_release);
	return NULL;
}

static void stress(uint32_t size)
{
	struct run *run = aligned_alloc(LW_CACHE_LINE, sizeof(*run) + LW_CACHE_LINE - sizeof(*run) % LW_CACHE_LINE);
	struct lw_spsc_entry *entries = aligned_alloc(LW_CACHE_LINE, size * sizeof(*entries));
	uint64_t popped = 0;
	struct lw_run entry;
	pthread_t thread;

	assert_true(run != NULL && entries != NULL);
	lw_spsc_init(&run->ring, entries, size);
	run->sequence = test_seed();
	run->pushed = 0;
	atomic_init(&run->stop, 0);
	assert_int_equal(pthread_create(&thread, NULL, produce, run), 0);
	for (;;) {
		bool last = atomic_load_explicit(&run->stop, memory_order_acquire) != 0;

		while (lw_spsc_pop(&run->ring, &entry)) {
			uint64_t hash = mix(popped);

			if (entry.batch != (uint32_t)popped || entry.local != popped || entry.remote != hash ||
			    entry.length != ~hash || entry.segment != (hash ^ popped) || entry.task != (uint32_t)hash ||
			    entry.first != ((uint32_t)hash & LW_RUN_MASK) ||
			    entry.count != ((uint32_t)(hash >> 40) & LW_RUN_MASK) || entry.op != (uint8_t)hash)
				fail_msg("entry %llu came as %u", (unsigned long long)popped, entry.batch);
			popped++;
		}
		if (last)
			break;
		sched_yield();
	}
	pthread_join(thread, NULL);
	assert_int_equal(popped, run->pushed);
	assert_true(popped > 10 * size);
	free(entries);
	free(run);
}

static void test_ring_of_2_loses_nothing(void **state)
{
	(void)state;
	stress(2);
}

static void test_ring_of_16_loses_nothing(void **state)
{
	(void)state;
	stress(16);
}

static void test_ring_of_1024_loses_nothing(void **state)
{
	(void)state;
	stress(1024);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ring_of_2_loses_nothing),
		cmocka_unit_test(test_ring_of_16_loses_nothing),
		cmocka_unit_test(test_ring_of_1024_loses_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
