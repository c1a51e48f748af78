/* SPDX-License-Identifier: Apache-2.0 */
/* Reclamation: workers report quiescent states, writers retire what they replaced. One QSBR variable (rte_rcu) an
 * engine, so that engines, and a host with an RCU of its own, do not wait for each other; the reader is the worker and
 * not the thread, so that any thread may drive an engine in caller mode.
 */
#ifndef LW_RCU_H
#define LW_RCU_H

#include <stdint.h>

#include <rte_rcu_qsbr.h>

struct lw_retired;

struct lw_rcu {
	struct rte_rcu_qsbr *qsbr;
	struct lw_retired *oldest, **newest;
};

/* 0, -ENOMEM. */
int lw_rcu_init(struct lw_rcu *rcu, uint32_t readers);
/* All readers are gone: frees everything retired. */
void lw_rcu_fini(struct lw_rcu *rcu);

/* Writers, one at a time (the engine's lock). Frees memory with release once no reader can hold it; never blocks. If
 * there is no memory to remember it, it waits for the readers instead, which takes microseconds. */
void lw_rcu_retire(struct lw_rcu *rcu, void *memory, void (*release)(void *memory));

/* Readers, by worker. online before the first read, offline before a sleep, quiescent once a pass. */
void lw_rcu_online(struct lw_rcu *rcu, uint32_t reader);
void lw_rcu_offline(struct lw_rcu *rcu, uint32_t reader);
static inline void lw_rcu_quiescent(struct lw_rcu *rcu, uint32_t reader)
{
	rte_rcu_qsbr_quiescent(rcu->qsbr, reader);
}

#endif
