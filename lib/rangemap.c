/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/rangemap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEAF_MAX 128u

struct leaf {
	uint32_t count;
	struct lw_range ranges[];
};

struct lw_rangemap {
	size_t total;
	uint32_t leaves;
	struct leaf *leaf[];
};

static struct leaf *leaf_new(uint32_t count)
{
	struct leaf *leaf = malloc(sizeof(*leaf) + count * sizeof(leaf->ranges[0]));

	if (leaf != NULL)
		leaf->count = count;
	return leaf;
}

static struct lw_rangemap *map_new(uint32_t leaves)
{
	struct lw_rangemap *map = malloc(sizeof(*map) + leaves * sizeof(map->leaf[0]));

	if (map != NULL) {
		map->total = 0;
		map->leaves = leaves;
	}
	return map;
}

/* Index of the last leaf that begins at or below addr; 0 if none does. */
static uint32_t leaf_index(const struct lw_rangemap *map, uint64_t addr)
{
	uint32_t low = 0, high = map->leaves;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (map->leaf[middle]->ranges[0].addr <= addr)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Number of ranges in the leaf that begin at or below addr. */
static uint32_t rank_of(const struct leaf *leaf, uint64_t addr)
{
	uint32_t low = 0, high = leaf->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (leaf->ranges[middle].addr <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int compare_addr(const void *a, const void *b)
{
	const struct lw_range *left = a, *right = b;

	return left->addr < right->addr ? -1 : left->addr > right->addr;
}

int lw_rangemap_build(const struct lw_range *ranges, size_t count, struct lw_rangemap **out)
{
	uint32_t leaves = (uint32_t)((count + LEAF_MAX - 1) / LEAF_MAX);
	struct lw_rangemap *map = map_new(leaves);
	struct lw_range *sorted = malloc((count != 0 ? count : 1) * sizeof(*sorted));
	int error = -ENOMEM;

	if (map != NULL)
		map->leaves = 0; /* so far */
	if (map == NULL || sorted == NULL)
		goto fail;
	if (count != 0)
		memcpy(sorted, ranges, count * sizeof(*sorted));
	qsort(sorted, count, sizeof(*sorted), compare_addr);
	for (size_t at = 0; at < count; at += LEAF_MAX) {
		uint32_t here = (uint32_t)(count - at < LEAF_MAX ? count - at : LEAF_MAX);
		struct leaf *leaf = leaf_new(here);

		if (leaf == NULL)
			goto fail;
		memcpy(leaf->ranges, &sorted[at], here * sizeof(sorted[0]));
		map->leaf[map->leaves++] = leaf;
	}
	for (size_t i = 1; i < count; i++) {
		error = -EEXIST;
		if (sorted[i].addr < sorted[i - 1].end)
			goto fail;
	}
	map->total = count;
	free(sorted);
	*out = map;
	return 0;
fail:
	free(sorted);
	lw_rangemap_free(map);
	return error;
}

void lw_rangemap_free(struct lw_rangemap *map)
{
	if (map == NULL)
		return;
	for (uint32_t i = 0; i < map->leaves; i++)
		free(map->leaf[i]);
	free(map);
}

size_t lw_rangemap_count(const struct lw_rangemap *map)
{
	return map != NULL ? map->total : 0;
}

/* A copy of map in which new_leaves stand in for leaf number at. Retires what it replaces. */
static int replace_leaf(struct lw_rangemap *map, uint32_t at, struct leaf *const *new_leaves, uint32_t count,
			size_t total, lw_retire retire, void *arg, struct lw_rangemap **out)
{
	struct lw_rangemap *next = map_new(map->leaves - 1 + count);

	if (next == NULL)
		return -ENOMEM;
	next->total = total;
	memcpy(next->leaf, map->leaf, at * sizeof(map->leaf[0]));
	memcpy(&next->leaf[at], new_leaves, count * sizeof(map->leaf[0]));
	memcpy(&next->leaf[at + count], &map->leaf[at + 1], (map->leaves - at - 1) * sizeof(map->leaf[0]));
	retire(arg, map->leaf[at]);
	retire(arg, map);
	*out = next;
	return 0;
}

int lw_rangemap_add(struct lw_rangemap *map, const struct lw_range *range, lw_retire retire, void *arg,
		    struct lw_rangemap **out)
{
	struct leaf *old, *fresh[2] = {NULL, NULL};
	uint32_t at, rank, pieces, first_count;
	int error;

	if (map == NULL || map->leaves == 0) {
		error = lw_rangemap_build(range, 1, out);
		if (error == 0 && map != NULL)
			retire(arg, map);
		return error;
	}
	if (lw_rangemap_overlaps(map, range->addr, range->end))
		return -EEXIST;
	at = leaf_index(map, range->addr);
	old = map->leaf[at];
	rank = rank_of(old, range->addr);
	pieces = old->count < LEAF_MAX ? 1 : 2;
	/* A leaf that fills up from below, the usual way, is left full and not halved. */
	first_count = pieces == 1 ? old->count + 1 : rank == old->count ? old->count : old->count / 2;
	fresh[0] = leaf_new(first_count);
	if (pieces == 2)
		fresh[1] = leaf_new(old->count + 1 - first_count);
	error = -ENOMEM;
	if (fresh[0] == NULL || (pieces == 2 && fresh[1] == NULL))
		goto fail;
	for (uint32_t i = 0; i <= old->count; i++) {
		const struct lw_range *source = i < rank ? &old->ranges[i] : i == rank ? range : &old->ranges[i - 1];

		if (i < first_count)
			fresh[0]->ranges[i] = *source;
		else
			fresh[1]->ranges[i - first_count] = *source;
	}
	error = replace_leaf(map, at, fresh, pieces, map->total + 1, retire, arg, out);
	if (error == 0)
		return 0;
fail:
	free(fresh[0]);
	free(fresh[1]);
	return error;
}

int lw_rangemap_remove(struct lw_rangemap *map, uint64_t addr, lw_retire retire, void *arg, struct lw_rangemap **out)
{
	struct leaf *old, *fresh = NULL;
	uint32_t at, rank;
	int error;

	if (map == NULL || map->leaves == 0)
		return -ENOENT;
	at = leaf_index(map, addr);
	old = map->leaf[at];
	rank = rank_of(old, addr);
	if (rank == 0 || old->ranges[rank - 1].addr != addr)
		return -ENOENT;
	if (old->count > 1) {
		fresh = leaf_new(old->count - 1);
		if (fresh == NULL)
			return -ENOMEM;
		memcpy(fresh->ranges, old->ranges, (rank - 1) * sizeof(old->ranges[0]));
		memcpy(&fresh->ranges[rank - 1], &old->ranges[rank], (old->count - rank) * sizeof(old->ranges[0]));
	}
	error = replace_leaf(map, at, &fresh, fresh != NULL, map->total - 1, retire, arg, out);
	if (error != 0)
		free(fresh);
	return error;
}

const struct lw_range *lw_rangemap_find(const struct lw_rangemap *map, uint64_t addr)
{
	const struct leaf *leaf;
	uint32_t rank;

	if (map == NULL || map->leaves == 0)
		return NULL;
	leaf = map->leaf[leaf_index(map, addr)];
	rank = rank_of(leaf, addr);
	if (rank == 0 || leaf->ranges[rank - 1].end <= addr)
		return NULL;
	return &leaf->ranges[rank - 1];
}

bool lw_rangemap_covers(const struct lw_rangemap *map, uint64_t addr, uint64_t length, uint32_t access,
			const struct lw_range **first)
{
	uint64_t end = addr + length;
	const struct lw_range *range;

	if (length == 0 || end < addr)
		return false;
	range = lw_rangemap_find(map, addr);
	if (range == NULL || (range->access & access) != access)
		return false;
	*first = range;
	while (range->end < end) {
		uint64_t seam = range->end;

		range = lw_rangemap_find(map, seam);
		if (range == NULL || (range->access & access) != access ||
		    ((range->access ^ (*first)->access) & LW_RANGE_KIND) != 0)
			return false;
	}
	return true;
}

bool lw_rangemap_overlaps(const struct lw_rangemap *map, uint64_t addr, uint64_t end)
{
	uint32_t at, rank;

	if (map == NULL || map->leaves == 0 || addr >= end)
		return false;
	/* The last range that begins before end is the only one that can reach into [addr, end) from below. */
	at = leaf_index(map, end - 1);
	rank = rank_of(map->leaf[at], end - 1);
	return rank != 0 && map->leaf[at]->ranges[rank - 1].end > addr;
}

size_t lw_rangemap_list(const struct lw_rangemap *map, struct lw_range *out, size_t max)
{
	size_t copied = 0;

	for (uint32_t i = 0; map != NULL && i < map->leaves; i++)
		for (uint32_t k = 0; k < map->leaf[i]->count && copied < max; k++)
			out[copied++] = map->leaf[i]->ranges[k];
	return lw_rangemap_count(map);
}
