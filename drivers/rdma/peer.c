/* SPDX-License-Identifier: Apache-2.0 */
/* What a view keeps of a peer. Made by the thread of lw_segment_open; workers read it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/rdma/rdma.h"
#include "lib/engine.h"

/* The peer's device for pair number i: the one with our device's name if there is one, as in hosts that are built
 * alike; else both lists go round side by side. */
static uint32_t counterpart(const struct rdma_engine *rdma, const struct lw_desc_rdma *part, uint32_t i)
{
	const char *name = rdma->device[i % rdma->device_count].name;

	for (size_t k = 0; k < part->device_count && i < rdma->device_count; k++)
		if (strcmp(part->devices[k].name, name) == 0)
			return (uint32_t)k;
	return i % (uint32_t)part->device_count;
}

static int add_pairs(const struct rdma_engine *rdma, const struct lw_desc *desc, struct rdma_reach *reach)
{
	const struct lw_desc_rdma *part = &desc->rdma;
	const char *name = part->name[0] != '\0' ? part->name : desc->name;
	uint32_t most = rdma->device_count > reach->device_count ? rdma->device_count : reach->device_count;

	for (uint32_t i = 0; i < most && reach->pair_count < RDMA_PAIRS; i++) {
		struct rdma_pair *pair = &reach->pair[reach->pair_count];

		pair->here = i % rdma->device_count;
		pair->there = counterpart(rdma, part, i);
		pair->lid = part->devices[pair->there].lid;
		memcpy(pair->gid, part->devices[pair->there].gid, sizeof(pair->gid));
		if (part->devices[pair->there].has_gid &&
		    lw_nic_path(pair->peer, name, part->devices[pair->there].name, 0))
			reach->pair_count++;
	}
	return reach->pair_count != 0 ? 0 : -EPROTO;
}

static const char *name_of(const void *part, size_t i)
{
	return ((const struct lw_desc_rdma *)part)->devices[i].name;
}

int rdma_reach_peer(void *context, const struct lw_desc *desc, void **peer, char *why, size_t why_size)
{
	const struct rdma_engine *rdma = context;
	const struct lw_desc_rdma *part = &desc->rdma;
	struct rdma_reach *reach;

	if (part->device_count == 0) {
		snprintf(why, why_size, "%s", part->why[0] != '\0' ? part->why : "it has no RDMA device");
		return part->why[0] != '\0' ? -EPROTO : -ENOTSUP;
	}
	reach = calloc(1, sizeof(*reach) + (desc->buffer_count + part->key_count) * sizeof(reach->first[0]));
	if (reach != NULL)
		reach->near = calloc(desc->buffer_count != 0 ? desc->buffer_count : 1, sizeof(reach->near[0]));
	if (reach == NULL || reach->near == NULL) {
		free(reach);
		snprintf(why, why_size, "no memory for its keys");
		return -ENOMEM;
	}
	reach->incarnation = desc->incarnation;
	reach->device_count = (uint32_t)part->device_count;
	reach->buffer_count = desc->buffer_count;
	reach->rkeys = reach->first + desc->buffer_count;
	for (size_t i = 0; i < desc->buffer_count; i++) {
		reach->first[i] = desc->buffers[i].key;
		reach->near[i] = rdma_near(part->matrix, desc->buffers[i].name, name_of, part, part->device_count);
	}
	for (size_t i = 0; i < part->key_count; i++)
		reach->rkeys[i] = part->keys[i].rkey;
	if (add_pairs(rdma, desc, reach) != 0) {
		snprintf(why, why_size, "none of its RDMA devices has an address");
		rdma_forget(reach);
		return -EPROTO;
	}
	*peer = reach;
	return 0;
}

uint32_t rdma_reach_key(const struct rdma_reach *reach, const struct lw_view *view, uint32_t device, uint64_t addr,
			uint64_t *left)
{
	const struct lw_range *range = lw_rangemap_find(view->ranges, addr);

	if (range == NULL || range->tag >= reach->buffer_count || reach->first[range->tag] == 0)
		return 0;
	*left = range->end - addr;
	return reach->rkeys[reach->first[range->tag] - 1 + device];
}

uint64_t rdma_reach_near(const struct rdma_reach *reach, const struct lw_view *view, uint64_t addr)
{
	const struct lw_range *range = lw_rangemap_find(view->ranges, addr);

	return range != NULL && range->tag < reach->buffer_count ? reach->near[range->tag] : UINT64_MAX;
}

void rdma_forget(void *peer)
{
	struct rdma_reach *reach = peer;

	if (reach != NULL)
		free(reach->near);
	free(reach);
}
