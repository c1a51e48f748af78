/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs whose memory is registered with an engine, by number (LW_RANGE_PLACE), and the bounce buffers that workers
 * get for them: with the first buffer of a GPU, by the thread that registers it. They stay until the engine is closed.
 */
#ifndef LW_PLACES_H
#define LW_PLACES_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/gpu/runtime.h"
#include "lib/rangemap.h"

struct lw_engine;
struct lw_memory;

struct lw_place {
	const struct lw_gpu *gpu;
	int device;
};

struct lw_places {
	pthread_mutex_t lock; /* of all of it, and of making bounce buffers; never under the engine's lock */
	uint32_t count;
	struct lw_place place[LW_RANGE_PLACES];
};

/* Before the first buffer; after the last one. */
void lw_places_init(struct lw_places *places);
void lw_places_fini(struct lw_places *places);

/* Which kind of memory a buffer is, and where, if that is for us to say: *kind gets the bits of LW_RANGE_KIND (0: the
 * host's), location what is known ("cuda:0"), "" if nothing. Workers can stage its bytes after that. number is the
 * buffer's in its list, for messages. The threads of lw_memory_register; may take its time. 0; -EINVAL it reaches
 * beyond its allocation; -ENOSPC too many GPUs; -ENOMEM, -EIO and others of the runtime; said in lw_last_error. */
int lw_place_of(struct lw_engine *engine, const struct lw_memory *memory, size_t number, uint32_t *kind,
		char location[64]);

#endif
