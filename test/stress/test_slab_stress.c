/* SPDX-License-Identifier: Apache-2.0 */
/* The slab index among four threads: an index has one holder, and none is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "common/engines.h"
#include "lib/ring/slab.h"

#define THREADS 4
#define BOUND_MS 600
#define ROUNDS 500000

struct shared {
	struct lw_slab slab;
	_Atomic uint32_t next[64];
	uint64_t plain[64]; /* written by the holder alone: the sanitizer sees whether give and take pair */
	_Atomic uint32_t holder[64];
	uint32_t count;
	_Atomic uint64_t takes, empties, doubles;
};

struct member {
	struct shared *shared;
	uint64_t sequence;
	uint32_t number;
};

static void *churn(void *arg)
{
	struct member *member = arg;
	struct shared *shared = member->shared;
	uint64_t end_ms = test_now_ms() + BOUND_MS, takes = 0;
	uint32_t held[4], count = 0;

	for (int i = 0; i < ROUNDS && (i % 256 != 0 || test_now_ms() < end_ms); i++) {
		uint64_t dice = test_random(&member->sequence);

		if (count < 4 && dice % 2 == 0) {
			uint32_t index = lw_slab_take(&shared->slab);

			if (index == LW_SLAB_NONE) {
				atomic_fetch_add(&shared->empties, 1);
				continue;
			}
			if (atomic_exchange(&shared->holder[index], member->number) != 0)
				atomic_fetch_add(&shared->doubles, 1);
			shared->plain[index]++;
			held[count++] = index;
			takes++;
		} else if (count > 0) {
			uint32_t index = held[--count];

			if (atomic_exchange(&shared->holder[index], 0) != member->number)
				atomic_fetch_add(&shared->doubles, 1);
			lw_slab_give(&shared->slab, index);
		}
		if (dice % 1024 == 0)
			sched_yield();
	}
	while (count > 0) {
		uint32_t index = held[--count];

		atomic_exchange(&shared->holder[index], 0);
		lw_slab_give(&shared->slab, index);
	}
	atomic_fetch_add(&shared->takes, takes);
	return NULL;
}

static void stress(uint32_t count)
{
	static struct shared shared;
	struct member members[THREADS];
	pthread_t threads[THREADS];
	uint64_t sequence = test_seed(), plain = 0;
	uint32_t seen[64] = {0};

	lw_slab_init(&shared.slab, shared.next, count);
	for (uint32_t i = 0; i < 64; i++) {
		shared.plain[i] = 0;
		atomic_store(&shared.holder[i], 0);
	}
	atomic_store(&shared.takes, 0);
	atomic_store(&shared.empties, 0);
	atomic_store(&shared.doubles, 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		members[i] = (struct member){.shared = &shared, .sequence = test_random(&sequence), .number = i + 1};
		assert_int_equal(pthread_create(&threads[i], NULL, churn, &members[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&shared.doubles), 0);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t index = lw_slab_take(&shared.slab);

		assert_true(index < count);
		assert_int_equal(seen[index]++, 0);
		plain += shared.plain[index];
	}
	assert_int_equal(lw_slab_take(&shared.slab), LW_SLAB_NONE);
	assert_int_equal(plain, atomic_load(&shared.takes));
	assert_true(plain > 1000);
}

static void test_slab_short_of_indices_gives_each_to_one(void **state)
{
	(void)state;
	stress(3);
}

static void test_slab_with_enough_gives_each_to_one(void **state)
{
	(void)state;
	stress(64);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slab_short_of_indices_gives_each_to_one),
		cmocka_unit_test(test_slab_with_enough_gives_each_to_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
