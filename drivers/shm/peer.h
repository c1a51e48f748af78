/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of this host that we reach, and what we have mapped of them. Made by the thread of lw_segment_open;
 * workers read it.
 *
 *   shm_reach   what one view of a segment needs: the grants as its descriptor tells them, and the areas. Ends with the
 * view shm_peer    the process: its door, and a descriptor that tells its end. Shared by the reaches and the lanes
 *   shm_map     an area of it, mapped once, as long as a reach has it
 */
#ifndef LW_SHM_PEER_H
#define LW_SHM_PEER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/door.h"
#include "meta/descriptor.h"

struct lw_engine;

/* The driver's own of an engine; kept as long as a peer is. */
struct shm_engine {
	_Atomic uint32_t refs;
	struct lw_engine *engine;
	struct door *door; /* NULL: no peers */
	char host[sizeof(((struct lw_desc_shm *)0)->host)];
	pthread_mutex_t lock;
	struct shm_peer *peers;
};

struct shm_map {
	uint32_t refs; /* under the engine's lock */
	uint64_t inode;
	uint64_t addr, length; /* in the peer */
	unsigned char *memory; /* here */
	struct shm_map *next;
};

struct shm_peer {
	uint32_t refs; /* under the engine's lock */
	struct shm_engine *shm;
	struct door *door;
	bool inside; /* another engine of this process: its addresses are ours */
	pid_t pid;
	int pid_fd; /* readable when it has ended; -1: inside */
	unsigned char nonce[DOOR_NONCE];
	uint64_t witness;
	struct shm_map *maps;
	struct shm_peer *next;
};

struct shm_reach {
	struct shm_peer *peer;
	struct shm_map **maps; /* by address */
	size_t map_count;
	uint64_t changes; /* of the offer, when it was as the view shows it */
	size_t grant_count;
	uint64_t grants[]; /* by position in the descriptor */
};

/* Tests set it: engines of this process are reached as if they lived in another one. */
extern bool shm_peers_outside;

/* As in lw_driver_ops. */
int shm_reach(void *context, const struct lw_desc *desc, void **out, char *why, size_t why_size);
void shm_forget(void *given);
bool shm_offer_seen(const void *given);

struct shm_peer *shm_peer_hold(struct shm_peer *peer);
void shm_peer_drop(struct shm_peer *peer);
/* Whether the process lives, is the one that was meant, and lets us in: 0, or a negative errno. One system call that
 * does not wait; any thread. */
int shm_peer_check(const struct shm_peer *peer);

void shm_engine_drop(struct shm_engine *shm);

/* Where these bytes of the peer are mapped here; NULL: nowhere. */
static inline unsigned char *shm_reach_find(const struct shm_reach *reach, uint64_t addr, uint64_t length)
{
	size_t low = 0, high = reach->map_count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct shm_map *map = reach->maps[middle];

		if (addr < map->addr)
			high = middle;
		else if (addr - map->addr >= map->length)
			low = middle + 1;
		else
			return map->length - (addr - map->addr) >= length ? map->memory + (addr - map->addr) : NULL;
	}
	return NULL;
}

#endif
