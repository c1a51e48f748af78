/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/location.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/mempolicy.h>

#define SAMPLES 256 /* pages that are looked at; divided by 2 to 16 parts with little rest */
#define PARTS_GUESSED 8
#define NODES_MAX 1024 /* bits of a policy's node mask */

static const char *const places[] = {"cpu", "cuda", "hip", "musa", "maca", "mlu", "npu", "supa"};

/* Digits up to the end or one of stop, below 2^32 if not wide. NULL: none, or too large. */
static const char *parse_digits(const char *text, const char *stop, bool wide, uint64_t *out)
{
	uint64_t value = 0, max = wide ? UINT64_MAX : UINT32_MAX;
	const char *at = text;

	for (; *at >= '0' && *at <= '9'; at++) {
		uint64_t digit = (uint64_t)(*at - '0');

		if (value > (max - digit) / 10)
			return NULL;
		value = value * 10 + digit;
	}
	if (at == text || (*at != '\0' && strchr(stop, *at) == NULL))
		return NULL;
	*out = value;
	return at;
}

static int parse_parts(const char *text, struct lw_location *out, char *why, size_t why_size)
{
	uint64_t number;

	text = parse_digits(text, ":", true, &out->page_bytes);
	if (text == NULL || *text != ':' || out->page_bytes == 0) {
		snprintf(why, why_size, "has no page size in bytes after \"segments:\"");
		return -EINVAL;
	}
	do {
		if (out->parts == LW_LOCATION_PARTS) {
			snprintf(why, why_size, "has more than %d parts", LW_LOCATION_PARTS);
			return -EINVAL;
		}
		text = parse_digits(text + 1, ",", false, &number);
		if (text == NULL) {
			snprintf(why, why_size, "has no NUMA node as part %u", out->parts + 1);
			return -EINVAL;
		}
		out->node[out->parts++] = (uint32_t)number;
	} while (*text == ',');
	out->kind = LW_LOCATION_PARTED;
	return 0;
}

int lw_location_parse(const char *text, struct lw_location *out, char *why, size_t why_size)
{
	struct lw_location made;
	const char *colon = strchr(text, ':');
	uint64_t number;
	int ret;

	memset(&made, 0, sizeof(made));
	if (strcmp(text, "*") == 0) {
		*out = made;
		return 0;
	}
	if (strncmp(text, "segments:", 9) == 0) {
		ret = parse_parts(text + 9, &made, why, why_size);
		if (ret == 0)
			*out = made;
		return ret;
	}
	for (size_t i = 0; colon != NULL && i < sizeof(places) / sizeof(places[0]); i++) {
		if (strlen(places[i]) != (size_t)(colon - text) || strncmp(text, places[i], strlen(places[i])) != 0)
			continue;
		if (parse_digits(colon + 1, "", false, &number) == NULL) {
			snprintf(why, why_size, "has no number after \"%s:\"", places[i]);
			return -EINVAL;
		}
		made.kind = LW_LOCATION_PLACE;
		memcpy(made.place, places[i], strlen(places[i]));
		made.number = (uint32_t)number;
		*out = made;
		return 0;
	}
	snprintf(why, why_size, "is no location such as *, cpu:0, cuda:0 or segments:4096:0,1");
	return -EINVAL;
}

void lw_location_at(const struct lw_location *location, uint64_t length, uint64_t offset, char *text, size_t size)
{
	uint64_t region, part;

	switch (location->kind) {
	case LW_LOCATION_PLACE:
		snprintf(text, size, "%s:%" PRIu32, location->place, location->number);
		return;
	case LW_LOCATION_PARTED:
		region = location->parts != 0 ? length / location->parts : 0;
		if (region == 0)
			break;
		part = offset / region;
		if (part >= location->parts) /* the rest of the division belongs to the last one */
			part = location->parts - 1;
		snprintf(text, size, "cpu:%" PRIu32, location->node[part]);
		return;
	case LW_LOCATION_ANY:
		break;
	}
	snprintf(text, size, "*");
}

static long ask_system(size_t count, void **pages, int *status)
{
	return syscall(SYS_move_pages, 0, count, pages, NULL, status, 0);
}

/* The one node that the policy of an address binds or prefers, or -1. */
static int policy_node(const void *addr)
{
	unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
	int mode = 0, node = -1;

	if (syscall(SYS_get_mempolicy, &mode, mask, (unsigned long)NODES_MAX, addr, MPOL_F_ADDR) != 0)
		return -1;
	mode &= ~MPOL_MODE_FLAGS;
	if (mode != MPOL_BIND && mode != MPOL_PREFERRED)
		return -1;
	for (int i = 0; i < NODES_MAX; i++) {
		if ((mask[(size_t)i / (8 * sizeof(mask[0]))] >> ((size_t)i % (8 * sizeof(mask[0]))) & 1) == 0)
			continue;
		if (node >= 0)
			return -1;
		node = i;
	}
	return node;
}

/* Nodes of count samples, each -1 where nothing is known; spread evenly, the first and the last page among them. */
static size_t sample(const void *addr, size_t length, uintptr_t page, lw_location_query *query, int *node)
{
	uintptr_t first = (uintptr_t)addr / page, last = ((uintptr_t)addr + length - 1) / page;
	size_t count = last - first >= SAMPLES ? SAMPLES : last - first + 1;
	void *pages[SAMPLES];

	for (size_t i = 0; i < count; i++) {
		uintptr_t step = count == 1 ? 0 : (uintptr_t)((unsigned __int128)(last - first) * i / (count - 1));

		pages[i] = (void *)((first + step) * page);
		node[i] = -1;
	}
	if (query(count, pages, node) < 0)
		return 0;
	return count;
}

/* The node where most samples are, or -1; *all: no other has any. */
static int most_common(const int *node, size_t count, bool *all)
{
	size_t best = 0, here, known = 0;
	int found = -1;

	for (size_t i = 0; i < count; i++) {
		known += node[i] >= 0;
		if (node[i] < 0 || node[i] == found)
			continue;
		here = 0;
		for (size_t k = 0; k < count; k++)
			here += node[k] == node[i];
		if (here > best) {
			best = here;
			found = node[i];
		}
	}
	*all = best == known;
	return found;
}

/* Whether the samples lie in so many equal parts, each on one node; then nodes has them. A sample whose page is on the
 * seam of two parts may be on either side. */
static bool lies_in_parts(const int *node, size_t count, size_t parts, int *nodes)
{
	for (size_t part = 0; part < parts; part++) {
		/* Pages of one part, those on a seam left out. */
		size_t begin = (part * count + parts - 1) / parts + (part != 0 && count >= 8 * parts);
		size_t end = (part + 1) * count / parts - (part + 1 != parts && count >= 8 * parts);

		nodes[part] = -1;
		for (size_t i = begin; i < end; i++) {
			if (node[i] < 0)
				continue;
			if (nodes[part] >= 0 && nodes[part] != node[i])
				return false;
			nodes[part] = node[i];
		}
		if (nodes[part] < 0)
			return false;
	}
	return true;
}

static bool write_parts(const int *node, size_t count, uintptr_t page, char *text, size_t size)
{
	int nodes[PARTS_GUESSED];

	for (size_t parts = 2; parts <= PARTS_GUESSED && parts <= count; parts++) {
		size_t used;

		if (!lies_in_parts(node, count, parts, nodes))
			continue;
		used = (size_t)snprintf(text, size, "segments:%zu:", (size_t)page);
		for (size_t i = 0; i < parts && used < size; i++)
			used += (size_t)snprintf(text + used, size - used, "%s%d", i == 0 ? "" : ",", nodes[i]);
		return used < size;
	}
	return false;
}

int lw_location_of(const void *addr, size_t length, lw_location_query *query, char *text, size_t size)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	int node[SAMPLES], most;
	size_t count;
	bool all;

	if (addr == NULL || length == 0 || (uintptr_t)addr + (length - 1) < (uintptr_t)addr || text == NULL ||
	    size < LW_LOCATION_TEXT)
		return -EINVAL;
	count = sample(addr, length, page, query != NULL ? query : ask_system, node);
	most = most_common(node, count, &all);
	if (most < 0)
		most = policy_node(addr);
	else if (!all && write_parts(node, count, page, text, size))
		return 0;
	if (most >= 0)
		snprintf(text, size, "cpu:%d", most);
	else
		snprintf(text, size, "*");
	return 0;
}
