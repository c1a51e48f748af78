/* SPDX-License-Identifier: Apache-2.0 */
/* The slab index, one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include "common/engines.h"
#include "lib/ring/slab.h"

#define COUNT 100u

static struct lw_slab slab;
static _Atomic uint32_t next[COUNT];

static void test_take_fresh_slab_ascends_until_none(void **state)
{
	(void)state;
	lw_slab_init(&slab, next, COUNT);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_int_equal(lw_slab_take(&slab), i);
	for (int i = 0; i < 3; i++)
		assert_int_equal(lw_slab_take(&slab), LW_SLAB_NONE);
}

static void test_take_slab_of_nothing_gives_none(void **state)
{
	(void)state;
	lw_slab_init(&slab, next, 0);
	assert_int_equal(lw_slab_take(&slab), LW_SLAB_NONE);
	lw_slab_init(&slab, next, 1);
	assert_int_equal(lw_slab_take(&slab), 0);
	assert_int_equal(lw_slab_take(&slab), LW_SLAB_NONE);
	lw_slab_give(&slab, 0);
	assert_int_equal(lw_slab_take(&slab), 0);
}

static void test_give_is_taken_next(void **state)
{
	(void)state;
	lw_slab_init(&slab, next, COUNT);
	for (uint32_t i = 0; i < COUNT; i++)
		lw_slab_take(&slab);
	lw_slab_give(&slab, 7);
	lw_slab_give(&slab, 99);
	lw_slab_give(&slab, 0);
	assert_int_equal(lw_slab_take(&slab), 0);
	assert_int_equal(lw_slab_take(&slab), 99);
	assert_int_equal(lw_slab_take(&slab), 7);
	assert_int_equal(lw_slab_take(&slab), LW_SLAB_NONE);
}

/* A head that was taken and given back is another one: what a slow thread compares with must not fit. */
static void test_take_and_give_back_changes_the_head(void **state)
{
	uint64_t before;

	(void)state;
	lw_slab_init(&slab, next, COUNT);
	for (int i = 0; i < 1000; i++) {
		before = atomic_load(&slab.head);
		lw_slab_give(&slab, lw_slab_take(&slab));
		assert_true(atomic_load(&slab.head) != before);
	}
	/* With a tag about to wrap, too; and a slab that ran empty. */
	atomic_store(&slab.head, (uint64_t)UINT32_MAX << 32 | (uint32_t)atomic_load(&slab.head));
	before = atomic_load(&slab.head);
	lw_slab_give(&slab, lw_slab_take(&slab));
	assert_true(atomic_load(&slab.head) != before);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_true(lw_slab_take(&slab) < COUNT);
	assert_int_equal(lw_slab_take(&slab), LW_SLAB_NONE);
}

static void test_slab_random_use_gives_each_index_to_one(void **state)
{
	uint64_t sequence = test_seed();
	bool taken[COUNT] = {false};
	uint32_t held[COUNT], count = 0;

	(void)state;
	lw_slab_init(&slab, next, COUNT);
	for (int i = 0; i < 200000; i++) {
		if (test_random(&sequence) % 2 == 0) {
			uint32_t index = lw_slab_take(&slab);

			if (count == COUNT) {
				assert_int_equal(index, LW_SLAB_NONE);
				continue;
			}
			assert_true(index < COUNT);
			assert_false(taken[index]);
			taken[index] = true;
			held[count++] = index;
		} else if (count > 0) {
			uint32_t which = (uint32_t)(test_random(&sequence) % count);

			taken[held[which]] = false;
			lw_slab_give(&slab, held[which]);
			held[which] = held[--count];
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_take_fresh_slab_ascends_until_none),
		cmocka_unit_test(test_take_slab_of_nothing_gives_none),
		cmocka_unit_test(test_give_is_taken_next),
		cmocka_unit_test(test_take_and_give_back_changes_the_head),
		cmocka_unit_test(test_slab_random_use_gives_each_index_to_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
