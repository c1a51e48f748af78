/* SPDX-License-Identifier: Apache-2.0 */
/* Range map: non-overlapping address ranges, in order. Readers see immutable snapshots; a writer makes the next one.
 *
 * A map is a sorted array of leaves of at most 128 ranges. A change copies one leaf and the array of leaves, so adding
 * the 20,000th buffer costs about as much as the 100th. What the change replaced is handed to a retire function, which
 * frees it once no reader can hold it.
 */
#ifndef LW_RANGEMAP_H
#define LW_RANGEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What lw_range.access tells beside enum lw_access: which kind of memory it is. A request stays inside one kind. */
#define LW_RANGE_DEVICE (UINT32_C(1) << 31) /* of a GPU: the CPU must not touch it */
#define LW_RANGE_OWN (UINT32_C(1) << 30)    /* the engine's bounce buffers, which drivers know as other memory */
#define LW_RANGE_PLACE_SHIFT 24             /* our own of a GPU: which one's, see lib/places.h */
#define LW_RANGE_PLACES 64u
#define LW_RANGE_KIND (UINT32_MAX << LW_RANGE_PLACE_SHIFT)

static inline uint32_t lw_range_place(uint32_t access)
{
	return access >> LW_RANGE_PLACE_SHIFT & (LW_RANGE_PLACES - 1);
}

struct lw_range {
	uint64_t addr;
	uint64_t end;    /* one past the last byte */
	uint32_t access; /* enum lw_access, and the kind */
	uint32_t tag;    /* the owner's */
};

struct lw_rangemap;

/* Called for each of the at most two pieces of memory that the new snapshot no longer uses. Readers of the old one use
 * them until the new one is published, and for a while after that. */
typedef void (*lw_retire)(void *arg, void *memory);

/* A map of ranges in any order. 0; -EEXIST two of them overlap; -ENOMEM. The caller frees it with lw_rangemap_free. */
int lw_rangemap_build(const struct lw_range *ranges, size_t count, struct lw_rangemap **out);

/* The snapshot after map (NULL: empty) with range added, or with the range that begins at addr removed. retire gets the
 * replaced parts, map itself among them. On failure nothing changed and nothing is retired. 0; -EEXIST overlap;
 * -ENOENT; -ENOMEM. */
int lw_rangemap_add(struct lw_rangemap *map, const struct lw_range *range, lw_retire retire, void *arg,
		    struct lw_rangemap **out);
int lw_rangemap_remove(struct lw_rangemap *map, uint64_t addr, lw_retire retire, void *arg, struct lw_rangemap **out);

/* Frees a whole snapshot that nobody shares parts of. */
void lw_rangemap_free(struct lw_rangemap *map);

size_t lw_rangemap_count(const struct lw_rangemap *map);

/* Readers. The range that contains addr, or NULL. */
const struct lw_range *lw_rangemap_find(const struct lw_rangemap *map, uint64_t addr);

/* Whether every byte of [addr, addr + length) lies in ranges of one kind that have all bits of access, without a gap.
 * length > 0, no wrap-around (false if it wraps). *first receives the range of the first byte if the answer is true. */
bool lw_rangemap_covers(const struct lw_rangemap *map, uint64_t addr, uint64_t length, uint32_t access,
			const struct lw_range **first);

/* Whether any byte of [addr, end) lies in a range. */
bool lw_rangemap_overlaps(const struct lw_rangemap *map, uint64_t addr, uint64_t end);

/* Copies at most max ranges, in order; the number there are. */
size_t lw_rangemap_list(const struct lw_rangemap *map, struct lw_range *out, size_t max);

#endif
