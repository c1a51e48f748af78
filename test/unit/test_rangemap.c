/* SPDX-License-Identifier: Apache-2.0 */
/* The range map against a naive one that holds a byte for each address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/engines.h"
#include "lib/rangemap.h"

#define SPACE 8192u /* addresses of the naive map */

/* What snapshots retired; freed when the test is over, so that old snapshots can be read until then. */
static void *retired[200000];
static size_t retired_count;

static void keep(void *arg, void *memory)
{
	(void)arg;
	assert_true(retired_count < sizeof(retired) / sizeof(retired[0]));
	retired[retired_count++] = memory;
}

static void free_now(void *arg, void *memory)
{
	(void)arg;
	free(memory);
}

static void free_retired(void)
{
	while (retired_count > 0)
		free(retired[--retired_count]);
}

static uint64_t base; /* of the naive map in the address space */
static struct {
	uint32_t owner; /* 0: none; else the address where its range begins, plus 1 */
	uint32_t access;
} naive[SPACE + 1];

static struct lw_range range_of(uint32_t begin, uint32_t end, uint32_t access)
{
	return (struct lw_range){.addr = base + begin, .end = base + end, .access = access, .tag = begin + 1};
}

static bool naive_free(uint32_t begin, uint32_t end)
{
	for (uint32_t i = begin; i < end; i++)
		if (naive[i].owner != 0)
			return false;
	return true;
}

static void assert_reads_as_naive(const struct lw_rangemap *map, uint64_t *sequence)
{
	const struct lw_range *first;
	size_t count = 0;

	for (uint32_t i = 0; i < SPACE; i++) {
		const struct lw_range *range = lw_rangemap_find(map, base + i);

		count += naive[i].owner == i + 1;
		if ((range != NULL ? range->tag : 0) != naive[i].owner)
			fail_msg("address %u: found %u, want %u", i, range != NULL ? range->tag : 0, naive[i].owner);
	}
	assert_int_equal(lw_rangemap_count(map), count);
	for (int i = 0; i < 500; i++) {
		uint32_t begin = (uint32_t)(test_random(sequence) % SPACE);
		uint32_t length = 1 + (uint32_t)(test_random(sequence) % (i % 2 == 0 ? 20 : SPACE - begin));
		uint32_t access = (uint32_t)(test_random(sequence) % 4), k;
		bool covered = true;

		length = begin + length <= SPACE ? length : SPACE - begin;
		for (k = begin; k < begin + length; k++)
			covered = covered && naive[k].owner != 0 && (naive[k].access & access) == access;
		first = NULL;
		assert_int_equal(lw_rangemap_covers(map, base + begin, length, access, &first), covered);
		if (covered)
			assert_int_equal(first->tag, naive[begin].owner);
		assert_int_equal(lw_rangemap_overlaps(map, base + begin, base + begin + length),
				 !naive_free(begin, begin + length));
	}
}

static void assert_lists(const struct lw_rangemap *map)
{
	size_t count = lw_rangemap_count(map);
	struct lw_range *list = calloc(count + 1, sizeof(*list));

	assert_non_null(list);
	assert_int_equal(lw_rangemap_list(map, list, count / 2), count);
	assert_int_equal(list[count / 2].end, 0);
	assert_int_equal(lw_rangemap_list(map, list, count + 1), count);
	for (size_t i = 0; i < count; i++) {
		assert_true(list[i].addr < list[i].end);
		assert_true(i == 0 || list[i - 1].end <= list[i].addr);
		assert_int_equal(naive[list[i].addr - base].owner, list[i].tag);
	}
	free(list);
}

static void random_operations(uint64_t at)
{
	uint64_t sequence = test_seed();
	struct lw_rangemap *map = NULL;
	uint32_t added = 0, refused = 0, removed = 0;

	base = at;
	memset(naive, 0, sizeof(naive));
	for (int i = 0; i < 6000; i++) {
		uint32_t begin = (uint32_t)(test_random(&sequence) % SPACE);
		struct lw_rangemap *next = map;
		int error;

		/* First mostly additions, then mostly removals. */
		if (test_random(&sequence) % 8 < (i < 3500 ? 7 : 2)) {
			uint32_t end = begin + 1 + (uint32_t)(test_random(&sequence) % 12);
			uint32_t access = (uint32_t)(test_random(&sequence) % 4);
			struct lw_range range;

			end = end < SPACE ? end : SPACE;
			range = range_of(begin, end, access);
			error = lw_rangemap_add(map, &range, free_now, NULL, &next);
			assert_int_equal(error, naive_free(begin, end) ? 0 : -EEXIST);
			for (uint32_t k = begin; error == 0 && k < end; k++) {
				naive[k].owner = begin + 1;
				naive[k].access = access;
			}
			added += error == 0;
			refused += error != 0;
		} else {
			error = lw_rangemap_remove(map, base + begin, free_now, NULL, &next);
			assert_int_equal(error, naive[begin].owner == begin + 1 ? 0 : -ENOENT);
			for (uint32_t k = begin; error == 0 && naive[k].owner == begin + 1; k++)
				naive[k].owner = 0;
			removed += error == 0;
		}
		assert_true(error == 0 || next == map);
		map = next;
		if (i % 300 == 0) {
			assert_reads_as_naive(map, &sequence);
			assert_lists(map);
		}
	}
	assert_true(added > 500 && refused > 100 && removed > 50);
	assert_reads_as_naive(map, &sequence);
	lw_rangemap_free(map);
}

static void test_map_random_operations_are_as_naive(void **state)
{
	(void)state;
	random_operations(4096);
}

static void test_map_at_the_end_of_the_address_space_is_as_naive(void **state)
{
	(void)state;
	random_operations(UINT64_MAX - SPACE);
}

static void test_map_of_nothing_answers(void **state)
{
	struct lw_rangemap *none = NULL, *empty, *next = NULL;
	struct lw_range range = {.addr = 10, .end = 20};
	const struct lw_range *first = NULL;

	(void)state;
	assert_int_equal(lw_rangemap_build(NULL, 0, &empty), 0);
	for (int i = 0; i < 2; i++) {
		const struct lw_rangemap *map = i == 0 ? none : empty;

		assert_int_equal(lw_rangemap_count(map), 0);
		assert_null(lw_rangemap_find(map, 0));
		assert_null(lw_rangemap_find(map, UINT64_MAX));
		assert_false(lw_rangemap_covers(map, 10, 1, 0, &first));
		assert_false(lw_rangemap_overlaps(map, 0, UINT64_MAX));
		assert_int_equal(lw_rangemap_list(map, &range, 1), 0);
	}
	assert_null(first);
	assert_int_equal(lw_rangemap_remove(none, 10, free_now, NULL, &next), -ENOENT);
	assert_int_equal(lw_rangemap_remove(empty, 10, free_now, NULL, &next), -ENOENT);
	assert_null(next);
	assert_int_equal(lw_rangemap_add(empty, &range, free_now, NULL, &next), 0);
	assert_int_equal(lw_rangemap_remove(next, 10, free_now, NULL, &next), 0);
	assert_int_equal(lw_rangemap_count(next), 0);
	lw_rangemap_free(next);
	lw_rangemap_free(NULL);
}

static void test_covers_wraps_and_edges(void **state)
{
	const struct lw_range list[] = {{.addr = 100, .end = 200, .access = 3},
					{.addr = 200, .end = 300, .access = 1},
					{.addr = 301, .end = 400, .access = 3},
					{.addr = UINT64_MAX - 10, .end = UINT64_MAX, .access = 3}};
	const struct lw_range *first = NULL;
	struct lw_rangemap *map;

	(void)state;
	assert_int_equal(lw_rangemap_build(list, 4, &map), 0);
	assert_true(lw_rangemap_covers(map, 100, 200, 0, &first));
	assert_int_equal(first->addr, 100);
	assert_true(lw_rangemap_covers(map, 199, 2, 1, &first));
	assert_int_equal(first->addr, 100);
	assert_true(lw_rangemap_covers(map, 200, 1, 1, &first));
	assert_int_equal(first->addr, 200);
	first = NULL;
	assert_false(lw_rangemap_covers(map, 199, 2, 2, &first)); /* the second does not allow it */
	assert_false(lw_rangemap_covers(map, 299, 3, 0, &first)); /* the gap of a byte */
	assert_false(lw_rangemap_covers(map, 99, 2, 0, &first));
	assert_false(lw_rangemap_covers(map, 399, 2, 0, &first));
	assert_false(lw_rangemap_covers(map, 150, 0, 0, &first));
	assert_true(lw_rangemap_covers(map, UINT64_MAX - 10, 10, 0, &first));
	assert_false(lw_rangemap_covers(map, UINT64_MAX - 10, 11, 0, &first));
	assert_false(lw_rangemap_covers(map, UINT64_MAX - 10, 12, 0, &first));
	assert_false(lw_rangemap_covers(map, 150, UINT64_MAX, 0, &first));
	assert_false(lw_rangemap_covers(map, 150, UINT64_MAX - 149, 0, &first));
	assert_false(lw_rangemap_overlaps(map, 300, 301));
	assert_true(lw_rangemap_overlaps(map, 300, 302));
	assert_false(lw_rangemap_overlaps(map, 0, 100));
	assert_true(lw_rangemap_overlaps(map, 0, 101));
	assert_true(lw_rangemap_overlaps(map, 120, 130));
	assert_false(lw_rangemap_overlaps(map, 150, 150));
	assert_false(lw_rangemap_overlaps(map, 150, 140));
	assert_false(lw_rangemap_overlaps(map, 400, UINT64_MAX - 10));
	lw_rangemap_free(map);
}

static void test_build_overlapping_ranges_is_refused(void **state)
{
	uint64_t sequence = test_seed();
	struct lw_range list[600];
	struct lw_rangemap *map = NULL;

	(void)state;
	for (size_t count = 2; count <= 600; count += 149) {
		for (size_t i = 0; i < count; i++)
			list[i] = (struct lw_range){.addr = 1000 * i + 1, .end = 1000 * i + 1001, .tag = (uint32_t)i};
		for (size_t i = count - 1; i > 0; i--) { /* in any order */
			size_t k = (size_t)(test_random(&sequence) % (i + 1));
			struct lw_range swap = list[i];

			list[i] = list[k];
			list[k] = swap;
		}
		assert_int_equal(lw_rangemap_build(list, count, &map), 0);
		assert_int_equal(lw_rangemap_count(map), count);
		for (size_t i = 0; i < count; i++)
			assert_int_equal(lw_rangemap_find(map, list[i].end - 1)->tag, list[i].tag);
		lw_rangemap_free(map);
		map = NULL;
		for (size_t i = 0; i < count; i++) {
			if (list[i].tag == count - 1)
				continue;
			list[i].end++; /* one byte into the next */
			assert_int_equal(lw_rangemap_build(list, count, &map), -EEXIST);
			assert_null(map);
			list[i].end--;
		}
	}
}

/* A snapshot that a reader holds does not change while the writer makes others. */
static void test_old_snapshots_stay_as_they_were(void **state)
{
	struct lw_rangemap *maps[300] = {NULL};
	const struct lw_range *first;

	(void)state;
	for (uint64_t i = 1; i < 300; i++) {
		struct lw_range range = {.addr = i * 10, .end = i * 10 + 10, .tag = (uint32_t)i};

		assert_int_equal(lw_rangemap_add(maps[i - 1], &range, keep, NULL, &maps[i]), 0);
	}
	for (uint64_t i = 1; i < 300; i++) {
		assert_int_equal(lw_rangemap_count(maps[i]), i);
		assert_true(lw_rangemap_covers(maps[i], 10, i * 10, 0, &first));
		assert_false(lw_rangemap_covers(maps[i], 10, i * 10 + 1, 0, &first));
	}
	lw_rangemap_free(maps[299]);
	free_retired();
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Adds ranges up to 20,000; the time of those from 100 to 1,100, and of the last 1,000. */
static void time_adds(int order, uint64_t *early_ns, uint64_t *late_ns)
{
	enum { COUNT = 20000 };
	struct lw_rangemap *map = NULL;
	uint64_t start_ns = 0;

	for (uint64_t i = 0; i < COUNT; i++) {
		/* Ascending, descending, or scattered (7919 has no divisor in common with the count). */
		uint64_t n = order == 0 ? i : order == 1 ? COUNT - 1 - i : i * 7919 % COUNT;
		struct lw_range range = {.addr = 4096 + n * 4096, .end = 8192 + n * 4096};

		if (i == 100 || i == COUNT - 1000)
			start_ns = now_ns();
		assert_int_equal(lw_rangemap_add(map, &range, free_now, NULL, &map), 0);
		if (i == 1099)
			*early_ns = now_ns() - start_ns;
	}
	*late_ns = now_ns() - start_ns;
	assert_int_equal(lw_rangemap_count(map), COUNT);
	lw_rangemap_free(map);
}

static void test_add_costs_about_the_same_at_20000(void **state)
{
	(void)state;
	for (int order = 0; order < 3; order++) {
		double best = 1e9;

		for (int tries = 0; tries < 10 && best > 3; tries++) {
			uint64_t early_ns = 1, late_ns = 0;

			time_adds(order, &early_ns, &late_ns);
			if ((double)late_ns / (double)early_ns < best)
				best = (double)late_ns / (double)early_ns;
		}
		if (best > 4)
			fail_msg("order %d: the 20,000th range costs %.1f times what the first ones do", order, best);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_map_random_operations_are_as_naive),
		cmocka_unit_test(test_map_at_the_end_of_the_address_space_is_as_naive),
		cmocka_unit_test(test_map_of_nothing_answers),
		cmocka_unit_test(test_covers_wraps_and_edges),
		cmocka_unit_test(test_build_overlapping_ranges_is_refused),
		cmocka_unit_test(test_old_snapshots_stay_as_they_were),
		cmocka_unit_test(test_add_costs_about_the_same_at_20000),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
