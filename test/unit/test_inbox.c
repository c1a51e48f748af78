/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox, one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/engines.h"
#include "lib/ring/inbox.h"

struct item {
	struct lw_inbox_node node;
	int number;
};

static void test_take_all_empty_inbox_gives_null(void **state)
{
	struct lw_inbox inbox;

	(void)state;
	lw_inbox_init(&inbox);
	assert_true(lw_inbox_empty(&inbox));
	assert_null(lw_inbox_take_all(&inbox));
}

static void test_push_first_one_says_that_it_was_empty(void **state)
{
	struct item items[3];
	struct lw_inbox inbox;

	(void)state;
	lw_inbox_init(&inbox);
	for (int round = 0; round < 3; round++) {
		assert_true(lw_inbox_push(&inbox, &items[0].node));
		assert_false(lw_inbox_push(&inbox, &items[1].node));
		assert_false(lw_inbox_push(&inbox, &items[2].node));
		assert_false(lw_inbox_empty(&inbox));
		assert_non_null(lw_inbox_take_all(&inbox));
		assert_true(lw_inbox_empty(&inbox));
		assert_null(lw_inbox_take_all(&inbox));
	}
}

static void test_take_all_gives_the_oldest_first(void **state)
{
	static struct item items[1000];
	uint64_t sequence = test_seed();
	struct lw_inbox inbox;
	int pushed = 0, taken = 0;

	(void)state;
	lw_inbox_init(&inbox);
	for (int round = 0; round < 200; round++) {
		struct lw_inbox_node *node;
		int count = (int)(test_random(&sequence) % 500);

		for (int i = 0; i < count; i++, pushed++) {
			items[pushed % 1000].number = pushed;
			lw_inbox_push(&inbox, &items[pushed % 1000].node);
		}
		for (node = lw_inbox_take_all(&inbox); node != NULL; node = node->next, taken++)
			assert_int_equal(((struct item *)(void *)node)->number, taken);
		assert_int_equal(taken, pushed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_take_all_empty_inbox_gives_null),
		cmocka_unit_test(test_push_first_one_says_that_it_was_empty),
		cmocka_unit_test(test_take_all_gives_the_oldest_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
