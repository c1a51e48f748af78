/* SPDX-License-Identifier: Apache-2.0 */
/* What one engine has for one vendor: its buffers, the allocations that they are in, what peers are told of them.
 *
 *   attach, detach          the threads that register and unregister
 *   piece                   any, under the engine's lock
 *   nvlink_local            a worker's
 */
#ifndef LW_NVLINK_MEMORY_H
#define LW_NVLINK_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/door.h"
#include "lib/gpu/runtime.h"
#include "lib/sched/driver.h"
#include "meta/descriptor.h"

struct nvlink_peer;
struct nvlink_worker;

/* An allocation of a device, in which some of our buffers are; exported once. Under the lock of nvlink_engine. */
struct nvlink_allocation {
	uint32_t refs;
	bool exported; /* handle is one */
	struct lw_gpu_memory memory;
	struct lw_gpu_handle handle;
	struct nvlink_allocation *next;
};

struct nvlink_buffer {
	int device;                           /* -1: memory of the host */
	bool pinned;                          /* by us */
	bool direct;                          /* memory of the host: it is pinned, by whomever */
	struct nvlink_allocation *allocation; /* NULL: memory of the host */
	uint64_t addr, length;
};

/* The driver's own of an engine; kept as long as a peer is. */
struct nvlink_engine {
	_Atomic uint32_t refs;
	struct lw_engine *engine;
	enum lw_gpu_vendor vendor;
	const struct lw_gpu *gpu;
	struct door *door; /* NULL: no other processes */
	char host[sizeof(((struct lw_desc_gpu *)0)->host)];
	_Atomic(struct nvlink_buffer *) *buffers; /* by slot */
	struct nvlink_worker **workers;           /* by index; constant while the engine is open */
	pthread_mutex_t lock;                     /* of what follows, of buffers' memory, and of equipping workers */
	struct nvlink_allocation *allocations;
	struct nvlink_peer *peers;
	uint32_t slots; /* one above the highest ever used */
	bool told;      /* it was logged that an allocation can't be exported */
};

int nvlink_attach(void *context, uint32_t index, const struct lw_memory *memory, char *why, size_t why_size);
void nvlink_detach(void *context, uint32_t index);
int nvlink_piece(void *context, uint32_t index, struct lw_desc *desc, struct lw_desc_buffer *out);
/* All buffers that were not detached. */
void nvlink_buffers_free(struct nvlink_engine *nvlink);

/* A worker's: the buffers that hold [addr, addr + length) of this process: *device is the one whose memory it is, -1:
 * the host's; *direct: a copy from or to it won't be waited for. */
void nvlink_local(const struct nvlink_engine *nvlink, uint64_t addr, uint64_t length, int *device, bool *direct);

void nvlink_engine_drop(struct nvlink_engine *nvlink);

#endif
