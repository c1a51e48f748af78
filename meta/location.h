/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory lies: "cpu:0", "cuda:3", "*" (unknown), "segments:4096:0,1" (equal parts on several NUMA nodes). */
#ifndef LW_META_LOCATION_H
#define LW_META_LOCATION_H

#include <stddef.h>
#include <stdint.h>

#define LW_LOCATION_TEXT 64 /* longest location of a buffer with its NUL */
#define LW_LOCATION_PARTS 64

enum lw_location_kind {
	LW_LOCATION_ANY,    /* "*" */
	LW_LOCATION_PLACE,  /* "<kind>:<number>" */
	LW_LOCATION_PARTED, /* "segments:<page bytes>:<node>,<node>,..." */
};

struct lw_location {
	enum lw_location_kind kind;
	char place[8];       /* PLACE: cpu, cuda, hip, musa, maca, mlu, npu or supa */
	uint32_t number;     /* PLACE: NUMA node, or ordinal of the device */
	uint64_t page_bytes; /* PARTED: said, not used */
	uint32_t parts;      /* PARTED: 1 .. LW_LOCATION_PARTS */
	uint32_t node[LW_LOCATION_PARTS];
};

/* 0; -EINVAL, and the rest of a sentence that begins with the text in why. Numbers are plain digits. Any thread. */
int lw_location_parse(const char *text, struct lw_location *out, char *why, size_t why_size);

/* The location of the byte at offset in a buffer of length bytes, as a key of the priority matrix: "*", "cuda:3", and
 * of parts that of the one it is in, "cpu:1". A buffer that is shorter than its parts has "*". */
void lw_location_at(const struct lw_location *location, uint64_t length, uint64_t offset, char *text, size_t size);

/* Tells one page's NUMA node into status, as move_pages(2) does with no target nodes. */
typedef long lw_location_query(size_t count, void **pages, int *status);

/* Where length bytes at addr lie now: "cpu:N", where all of the touched pages, or most, are; "segments:..." where they
 * lie in equal parts on several nodes. Looks at some pages, touches none and brings none in. Memory that nobody has
 * touched yet: the one node that its policy binds it to, else "*"; "*" too where the system doesn't tell (no NUMA, no
 * permission, device memory). query NULL: the system is asked. Any thread. Some system calls, waits for nobody.
 * 0; -EINVAL NULL, length 0 or wrap-around, size below LW_LOCATION_TEXT. */
int lw_location_of(const void *addr, size_t length, lw_location_query *query, char *text, size_t size);

#endif
