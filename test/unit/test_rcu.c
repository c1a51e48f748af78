/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "lib/rcu.h"

static int released[64], order;

static void release(void *memory)
{
	released[*(int *)memory] = ++order;
	free(memory);
}

static void retire(struct lw_rcu *rcu, int number)
{
	int *memory = malloc(sizeof(*memory));

	assert_non_null(memory);
	*memory = number;
	lw_rcu_retire(rcu, memory, release);
}

static int begin(void **state)
{
	(void)state;
	for (int i = 0; i < 64; i++)
		released[i] = 0;
	order = 0;
	return 0;
}

static void test_retire_without_readers_frees_at_once(void **state)
{
	struct lw_rcu rcu;

	(void)state;
	assert_int_equal(lw_rcu_init(&rcu, 3), 0);
	for (int i = 0; i < 10; i++) {
		retire(&rcu, i);
		assert_int_equal(released[i], i + 1);
	}
	lw_rcu_fini(&rcu);
}

static void test_retire_waits_for_each_reader_that_is_online(void **state)
{
	struct lw_rcu rcu;

	(void)state;
	assert_int_equal(lw_rcu_init(&rcu, 2), 0);
	lw_rcu_online(&rcu, 0);
	lw_rcu_online(&rcu, 1);
	retire(&rcu, 0);
	assert_int_equal(released[0], 0);
	lw_rcu_quiescent(&rcu, 0);
	retire(&rcu, 1);
	assert_int_equal(released[0], 0); /* reader 1 may hold it */
	lw_rcu_quiescent(&rcu, 1);
	retire(&rcu, 2);
	assert_int_equal(released[0], 1);
	assert_int_equal(released[1], 0); /* reader 0 has seen it since */
	lw_rcu_quiescent(&rcu, 0);
	lw_rcu_offline(&rcu, 1); /* who sleeps holds nothing */
	retire(&rcu, 3);
	assert_int_equal(released[1], 2);
	assert_int_equal(released[2], 3);
	assert_int_equal(released[3], 0);
	lw_rcu_offline(&rcu, 0);
	retire(&rcu, 4);
	assert_int_equal(released[3], 4);
	assert_int_equal(released[4], 5);
	/* Back again: it holds what is retired from now on, nothing before. */
	lw_rcu_online(&rcu, 0);
	retire(&rcu, 5);
	assert_int_equal(released[5], 0);
	lw_rcu_offline(&rcu, 0);
	lw_rcu_fini(&rcu);
	assert_int_equal(released[5], 6);
}

static void test_fini_frees_everything_in_order(void **state)
{
	struct lw_rcu rcu;

	(void)state;
	assert_int_equal(lw_rcu_init(&rcu, 1), 0);
	lw_rcu_online(&rcu, 0);
	for (int i = 0; i < 64; i++)
		retire(&rcu, i);
	assert_int_equal(order, 0);
	lw_rcu_fini(&rcu);
	for (int i = 0; i < 64; i++)
		assert_int_equal(released[i], i + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_retire_without_readers_frees_at_once, begin),
		cmocka_unit_test_setup(test_retire_waits_for_each_reader_that_is_online, begin),
		cmocka_unit_test_setup(test_fini_frees_everything_in_order, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
