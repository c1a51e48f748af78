/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/pages.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_BYTES ((size_t)2 << 20)

static size_t round_up(size_t bytes, size_t to)
{
	return (bytes + to - 1) / to * to;
}

/* Huge pages are reserved by mmap, but a control group may refuse them when they are touched, which would be a SIGBUS.
 * Populating by madvise reports that as an error instead. */
static void *map_huge(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	if (madvise(memory, bytes, MADV_POPULATE_WRITE) != 0) {
		munmap(memory, bytes);
		return NULL;
	}
	return memory;
}

int lw_pages_get(struct lw_pages *pages, size_t bytes, bool huge)
{
	void *memory = NULL;

	bytes = round_up(bytes != 0 ? bytes : 1, 4096);
	if (pages->memory != NULL && pages->bytes >= bytes)
		return 0;
	if (huge && bytes >= HUGE_BYTES) {
		memory = map_huge(round_up(bytes, HUGE_BYTES));
		if (memory != NULL)
			bytes = round_up(bytes, HUGE_BYTES);
	}
	pages->huge = memory != NULL;
	if (memory == NULL) {
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (memory == MAP_FAILED)
			return -ENOMEM;
	}
	/* A smaller mapping of an earlier engine stays where it is: somebody may hold a stale handle into it. */
	pages->memory = memory;
	pages->bytes = bytes;
	return 0;
}

void lw_pages_drop(struct lw_pages *pages)
{
	void *memory;

	if (pages->memory == NULL)
		return;
	if (!pages->huge) {
		madvise(pages->memory, pages->bytes, MADV_DONTNEED);
		return;
	}
	/* Huge pages are scarce: hand them back and put plain, untouched ones in their place. */
	memory = mmap(pages->memory, pages->bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	if (memory != MAP_FAILED)
		pages->huge = false;
}
