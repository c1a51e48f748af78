/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for slabs: zeroed, page-aligned, on huge pages when there are free ones. It stays mapped for good, so that
 * stale handles can be checked; lw_pages_drop gives its pages back and leaves zeroes.
 */
#ifndef LW_PAGES_H
#define LW_PAGES_H

#include <stdbool.h>
#include <stddef.h>

struct lw_pages {
	void *memory;
	size_t bytes;
	bool huge;
};

/* Makes *pages hold at least bytes zeroed bytes: what it has is used again if it suffices. 0, -ENOMEM. */
int lw_pages_get(struct lw_pages *pages, size_t bytes, bool huge);

/* Gives the pages back to the system; the range stays mapped and reads as zero. */
void lw_pages_drop(struct lw_pages *pages);

#endif
