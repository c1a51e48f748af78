/* SPDX-License-Identifier: Apache-2.0 */
/* The engines whose memory of GPUs we reach, and what is imported of them. Made by the thread of lw_segment_open;
 * workers read it.
 *
 *   nvlink_reach    what one view of a segment needs: the grants as its descriptor tells them, and the imports. Held by
 *                   the view, and by lanes as long as they have copies under way
 *   nvlink_peer     the process: its door, and a descriptor that tells its end. Shared by the reaches
 *   nvlink_import   an allocation, imported once a process (the runtime takes a handle once), as long as a reach has it
 */
#ifndef LW_NVLINK_PEER_H
#define LW_NVLINK_PEER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/nvlink/memory.h"
#include "meta/ctrl.h"

struct nvlink_import;

/* Where an allocation of the peer's is here. */
struct nvlink_mapping {
	uint64_t addr, length; /* in the peer */
	uint64_t here;
	int device;
	struct nvlink_import *import; /* NULL: the peer is in this process */
};

struct nvlink_peer {
	uint32_t refs; /* under the engine's lock */
	struct nvlink_engine *nvlink;
	struct door *door; /* NULL: an engine of another kind, which has none */
	bool inside;       /* another engine of this process: its addresses are ours */
	pid_t pid;
	uint64_t started;
	int pid_fd; /* readable when it has ended; -1: inside, or unknown */
	unsigned char nonce[DOOR_NONCE];
	struct nvlink_peer *next;
};

struct nvlink_reach {
	_Atomic uint32_t refs;
	struct nvlink_peer *peer;
	struct lw_ctrl_job drop_job;
	size_t count;
	struct nvlink_mapping *mappings; /* by address */
	bool *pinned;                    /* inside: whether a buffer of the host's is; by position in the descriptor */
	uint64_t changes;                /* of the offer, when it was as the view shows it */
	size_t grant_count;
	uint64_t grants[]; /* by position in the descriptor */
};

/* Tests set it: engines of this process are reached as if they lived in another one. */
extern bool nvlink_peers_outside;

/* As in lw_driver_ops. */
int nvlink_reach(void *context, const struct lw_desc *desc, void **out, char *why, size_t why_size);
void nvlink_forget(void *given);
bool nvlink_offer_seen(const void *given);

static inline struct nvlink_reach *nvlink_reach_hold(struct nvlink_reach *reach)
{
	atomic_fetch_add_explicit(&reach->refs, 1, memory_order_relaxed);
	return reach;
}

/* A worker's: what there is to close is closed by the control thread. */
void nvlink_reach_drop_later(struct nvlink_reach *reach);

/* Where these bytes of the peer are; NULL: they are not imported. */
static inline const struct nvlink_mapping *nvlink_reach_find(const struct nvlink_reach *reach, uint64_t addr,
							     uint64_t length)
{
	size_t low = 0, high = reach->count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct nvlink_mapping *mapping = &reach->mappings[middle];

		if (addr < mapping->addr)
			high = middle;
		else if (addr - mapping->addr >= mapping->length)
			low = middle + 1;
		else
			return mapping->length - (addr - mapping->addr) >= length ? mapping : NULL;
	}
	return NULL;
}

#endif
