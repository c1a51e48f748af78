/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox with four pushers: each node once, in its pusher's order, and one wake-up a lot that is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#include "common/engines.h"
#include "lib/ring/inbox.h"

#define PUSHERS 4
#define NODES 256
#define BOUND_MS 1000
#define PUSHES 300000u

struct item {
	struct lw_inbox_node node;
	uint32_t pusher;
	uint64_t number;
	_Atomic uint32_t busy;
};

struct pusher {
	struct lw_inbox *inbox;
	struct item items[NODES];
	uint32_t index;
	uint64_t pushed, firsts;
};

static _Atomic int running;

static void *push_many(void *arg)
{
	struct pusher *pusher = arg;
	uint64_t end_ms = test_now_ms() + BOUND_MS;

	while (pusher->pushed < PUSHES && (pusher->pushed % 256 != 0 || test_now_ms() < end_ms)) {
		struct item *item = &pusher->items[pusher->pushed % NODES];

		while (atomic_load_explicit(&item->busy, memory_order_acquire) != 0)
			sched_yield();
		atomic_store_explicit(&item->busy, 1, memory_order_relaxed);
		item->pusher = pusher->index;
		item->number = pusher->pushed++;
		pusher->firsts += lw_inbox_push(pusher->inbox, &item->node);
	}
	atomic_fetch_sub_explicit(&running, 1, memory_order_release);
	return NULL;
}

static void test_inbox_four_pushers_lose_and_double_nothing(void **state)
{
	static struct pusher pushers[PUSHERS];
	uint64_t expected[PUSHERS] = {0}, lots = 0, firsts = 0;
	struct lw_inbox inbox;
	pthread_t threads[PUSHERS];

	(void)state;
	lw_inbox_init(&inbox);
	atomic_store(&running, PUSHERS);
	for (uint32_t i = 0; i < PUSHERS; i++) {
		pushers[i].inbox = &inbox;
		pushers[i].index = i;
		assert_int_equal(pthread_create(&threads[i], NULL, push_many, &pushers[i]), 0);
	}
	for (;;) {
		bool last = atomic_load_explicit(&running, memory_order_acquire) == 0;
		struct lw_inbox_node *node = lw_inbox_take_all(&inbox), *next;

		lots += node != NULL;
		for (; node != NULL; node = next) {
			struct item *item = (struct item *)(void *)node;

			next = node->next;
			if (item->number != expected[item->pusher]++)
				fail_msg("pusher %u: number %llu is out of order", item->pusher,
					 (unsigned long long)item->number);
			atomic_store_explicit(&item->busy, 0, memory_order_release);
		}
		if (last)
			break;
		sched_yield();
	}
	for (uint32_t i = 0; i < PUSHERS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(expected[i], pushers[i].pushed);
		assert_true(expected[i] > NODES);
		firsts += pushers[i].firsts;
	}
	assert_int_equal(firsts, lots);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_inbox_four_pushers_lose_and_double_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
