/* SPDX-License-Identifier: Apache-2.0 */
/* Inbox: an intrusive list that many threads push to and one thread empties.
 *
 *   push      any thread   lock-free; never fails, since the node brings its own memory
 *   take_all  the owner    wait-free; oldest first
 *   empty     any thread   a hint
 *
 * A thread that is preempted inside push delays nobody: the node is either in the list or not. Linearisation points:
 * the successful compare-exchange of push (P) and the exchange of take_all (T). T (acquire) pairs with P (release), so
 * the owner sees what the pusher wrote before it pushed.
 */
#ifndef LW_RING_INBOX_H
#define LW_RING_INBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct lw_inbox_node {
	struct lw_inbox_node *next;
};

struct lw_inbox {
	_Atomic(struct lw_inbox_node *) head;
};

static inline void lw_inbox_init(struct lw_inbox *inbox)
{
	atomic_init(&inbox->head, NULL);
}

static inline bool lw_inbox_empty(struct lw_inbox *inbox)
{
	return atomic_load_explicit(&inbox->head, memory_order_relaxed) == NULL;
}

/* True if the inbox was empty before: the pusher that has to wake a sleeping owner. */
static inline bool lw_inbox_push(struct lw_inbox *inbox, struct lw_inbox_node *node)
{
	struct lw_inbox_node *head = atomic_load_explicit(&inbox->head, memory_order_relaxed);

	do {
		node->next = head;
	} while (!atomic_compare_exchange_weak_explicit(&inbox->head, &head, node, memory_order_release, /* P */
							memory_order_relaxed));
	return head == NULL;
}

/* The list of all nodes, oldest first; NULL when there are none. */
static inline struct lw_inbox_node *lw_inbox_take_all(struct lw_inbox *inbox)
{
	struct lw_inbox_node *node, *next, *list = NULL;

	if (lw_inbox_empty(inbox))
		return NULL;
	node = atomic_exchange_explicit(&inbox->head, NULL, memory_order_acquire); /* T pairs with P */
	for (; node != NULL; node = next) {
		next = node->next;
		node->next = list;
		list = node;
	}
	return list;
}

#endif
