/* SPDX-License-Identifier: Apache-2.0 */
/* The submission ring, one thread on both sides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/engines.h"
#include "lib/ring/spsc.h"

#define SIZE 16u

static struct lw_spsc ring;
static struct lw_spsc_entry entries[SIZE];

/* Entry number n, with every field telling it. */
static struct lw_run run_of(uint64_t n)
{
	return (struct lw_run){.batch = (uint32_t)n * 3,
			       .task = (uint32_t)n * 5 + 1,
			       .first = (uint32_t)(n * 7) & LW_RUN_MASK,
			       .count = (uint32_t)(n * 11 + 1) & LW_RUN_MASK,
			       .local = n * UINT64_C(0x9e3779b97f4a7c15),
			       .remote = ~n,
			       .length = n << 32,
			       .segment = n ^ UINT64_C(0x5555555555555555),
			       .op = (uint8_t)n};
}

static void assert_pops(uint64_t n)
{
	struct lw_run got, want = run_of(n);

	memset(&got, 0xff, sizeof(got));
	assert_true(lw_spsc_pop(&ring, &got));
	assert_int_equal(got.batch, want.batch);
	assert_int_equal(got.task, want.task);
	assert_int_equal(got.first, want.first);
	assert_int_equal(got.count, want.count);
	assert_int_equal(got.local, want.local);
	assert_int_equal(got.remote, want.remote);
	assert_int_equal(got.length, want.length);
	assert_int_equal(got.segment, want.segment);
	assert_int_equal(got.op, want.op);
}

static void push(uint64_t n)
{
	struct lw_run run = run_of(n);

	lw_spsc_push(&ring, &run);
}

static void test_pop_empty_ring_gives_nothing(void **state)
{
	struct lw_run run;

	(void)state;
	memset(entries, 0xff, sizeof(entries)); /* memory that was used before */
	lw_spsc_init(&ring, entries, SIZE);
	assert_true(lw_spsc_empty(&ring));
	assert_false(lw_spsc_pop(&ring, &run));
	assert_int_equal(lw_spsc_space(&ring, 1), SIZE);
}

static void test_push_full_ring_has_no_space(void **state)
{
	(void)state;
	lw_spsc_init(&ring, entries, SIZE);
	for (uint32_t i = 0; i < SIZE; i++) {
		assert_true(lw_spsc_space(&ring, 1) >= 1);
		push(i);
	}
	assert_int_equal(lw_spsc_space(&ring, 1), 0);
	assert_int_equal(lw_spsc_space(&ring, SIZE), 0);
	assert_pops(0);
	assert_int_equal(lw_spsc_space(&ring, 1), 1);
	push(SIZE);
	for (uint32_t i = 1; i <= SIZE; i++)
		assert_pops(i);
	assert_true(lw_spsc_empty(&ring));
}

/* From an index on, random pushes and pops against a count. */
static void against_model(uint32_t start)
{
	uint64_t sequence = test_seed(), pushed = 0, popped = 0;
	struct lw_run run;

	lw_spsc_init(&ring, entries, SIZE);
	ring.tail = start;
	ring.head_seen = start;
	atomic_store(&ring.head, start);
	for (int i = 0; i < 200000; i++) {
		uint32_t used = (uint32_t)(pushed - popped), want = 1 + (uint32_t)(test_random(&sequence) % SIZE);

		if (test_random(&sequence) % 2 == 0) {
			uint32_t space = lw_spsc_space(&ring, want);

			/* At least want, or all there is. */
			assert_true(space <= SIZE - used);
			assert_true(space >= want || space == SIZE - used);
			if (space >= want)
				for (; want > 0; want--)
					push(pushed++);
		} else if (used != 0) {
			assert_false(lw_spsc_empty(&ring));
			assert_pops(popped++);
		} else {
			assert_true(lw_spsc_empty(&ring));
			assert_false(lw_spsc_pop(&ring, &run));
		}
	}
	assert_true(pushed > 50000);
}

static void test_ring_random_use_keeps_order_and_contents(void **state)
{
	(void)state;
	against_model(0);
}

static void test_ring_goes_on_when_indices_wrap(void **state)
{
	(void)state;
	against_model(UINT32_MAX - 5000);
}

/* The lap has 24 bits: it begins anew before the index does. */
static void test_ring_goes_on_when_laps_wrap(void **state)
{
	(void)state;
	against_model((UINT32_C(1) << 28) - 5000);
}

static void test_lap_is_never_that_of_the_entry_before(void **state)
{
	static const uint32_t starts[] = {0, UINT32_C(1) << 28, UINT32_MAX - 1000};
	static struct lw_spsc_entry many[1024];

	(void)state;
	for (uint32_t size = 2; size <= 1024; size *= 2) {
		lw_spsc_init(&ring, many, size);
		for (size_t s = 0; s < 3; s++)
			for (uint32_t i = starts[s] - 3000; i != starts[s] + 3000; i++)
				assert_true(lw_spsc_lap(&ring, i) != lw_spsc_lap(&ring, i + size));
	}
}

static void test_push_largest_run_is_kept(void **state)
{
	struct lw_run got, run = {.first = LW_RUN_MASK, .count = LW_RUN_MASK, .batch = UINT32_MAX, .task = UINT32_MAX};

	(void)state;
	lw_spsc_init(&ring, entries, SIZE);
	for (uint32_t i = 0; i < 3 * SIZE; i++) {
		lw_spsc_push(&ring, &run);
		assert_true(lw_spsc_pop(&ring, &got));
		assert_int_equal(got.first, LW_RUN_MASK);
		assert_int_equal(got.count, LW_RUN_MASK);
		assert_int_equal(got.batch, UINT32_MAX);
		assert_int_equal(got.task, UINT32_MAX);
		assert_false(lw_spsc_pop(&ring, &got));
		assert_true(lw_spsc_space(&ring, 1) >= 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pop_empty_ring_gives_nothing),
		cmocka_unit_test(test_push_full_ring_has_no_space),
		cmocka_unit_test(test_ring_random_use_keeps_order_and_contents),
		cmocka_unit_test(test_ring_goes_on_when_indices_wrap),
		cmocka_unit_test(test_ring_goes_on_when_laps_wrap),
		cmocka_unit_test(test_lap_is_never_that_of_the_entry_before),
		cmocka_unit_test(test_push_largest_run_is_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
