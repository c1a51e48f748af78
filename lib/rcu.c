/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/rcu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lw_retired {
	struct lw_retired *next;
	void *memory;
	void (*release)(void *memory);
	uint64_t token;
};

int lw_rcu_init(struct lw_rcu *rcu, uint32_t readers)
{
	size_t bytes = rte_rcu_qsbr_get_memsize(readers);

	bytes = (bytes + RTE_CACHE_LINE_SIZE - 1) / RTE_CACHE_LINE_SIZE * RTE_CACHE_LINE_SIZE;
	rcu->qsbr = aligned_alloc(RTE_CACHE_LINE_SIZE, bytes);
	if (rcu->qsbr == NULL)
		return -ENOMEM;
	memset(rcu->qsbr, 0, bytes);
	rte_rcu_qsbr_init(rcu->qsbr, readers);
	for (uint32_t i = 0; i < readers; i++)
		rte_rcu_qsbr_thread_register(rcu->qsbr, i);
	rcu->oldest = NULL;
	rcu->newest = &rcu->oldest;
	return 0;
}

static void release_oldest(struct lw_rcu *rcu)
{
	struct lw_retired *retired = rcu->oldest;

	rcu->oldest = retired->next;
	if (rcu->oldest == NULL)
		rcu->newest = &rcu->oldest;
	retired->release(retired->memory);
	free(retired);
}

void lw_rcu_fini(struct lw_rcu *rcu)
{
	while (rcu->oldest != NULL)
		release_oldest(rcu);
	free(rcu->qsbr);
	rcu->qsbr = NULL;
}

void lw_rcu_retire(struct lw_rcu *rcu, void *memory, void (*release)(void *memory))
{
	struct lw_retired *retired = malloc(sizeof(*retired));

	if (retired == NULL) {
		rte_rcu_qsbr_synchronize(rcu->qsbr, RTE_QSBR_THRID_INVALID);
		release(memory);
		return;
	}
	*retired = (struct lw_retired){.memory = memory, .release = release, .token = rte_rcu_qsbr_start(rcu->qsbr)};
	*rcu->newest = retired;
	rcu->newest = &retired->next;
	while (rcu->oldest != NULL && rte_rcu_qsbr_check(rcu->qsbr, rcu->oldest->token, false) == 1)
		release_oldest(rcu);
}

void lw_rcu_online(struct lw_rcu *rcu, uint32_t reader)
{
	rte_rcu_qsbr_thread_online(rcu->qsbr, reader);
}

void lw_rcu_offline(struct lw_rcu *rcu, uint32_t reader)
{
	rte_rcu_qsbr_thread_offline(rcu->qsbr, reader);
}
