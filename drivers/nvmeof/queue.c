/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/nvmeof/queue.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BOUNCE_AREA ((size_t)NVMEOF_BOUNCES * NVMEOF_BOUNCE_BYTES)

const struct nvmeof_backend *nvmeof_backend_forced;
static _Atomic(struct nvmeof_queue *) kept; /* for the rest of the process */

int nvmeof_queue_open(struct nvmeof_set *set, const struct nvmeof_backend *backend, bool one_thread,
		      struct nvmeof_queue **out, char *why, size_t why_size)
{
	struct nvmeof_queue *queue = calloc(1, sizeof(*queue));
	int error = -ENOMEM;

	snprintf(why, why_size, "no memory");
	if (queue == NULL)
		return error;
	queue->set = set;
	queue->backend = backend;
	queue->io.fd = -1;
	TAILQ_INIT(&queue->waiting);
	queue->ops = calloc(NVMEOF_DEPTH, sizeof(*queue->ops));
	/* Pages come when they are used: aligned requests need none. */
	queue->bounces =
		mmap(NULL, BOUNCE_AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (queue->ops == NULL || queue->bounces == MAP_FAILED)
		goto fail;
	for (uint32_t i = NVMEOF_DEPTH; i-- > 0;)
		queue->free_ops[queue->free_ops_count++] = (uint16_t)i;
	for (uint32_t i = NVMEOF_BOUNCES; i-- > 0;)
		queue->free_bounces[queue->free_bounces_count++] = (uint8_t)i;
	error = backend->open(queue, one_thread, why, why_size);
	if (error != 0)
		goto fail;
	*out = queue;
	return 0;
fail:
	if (queue->bounces != MAP_FAILED && queue->bounces != NULL)
		munmap(queue->bounces, BOUNCE_AREA);
	free(queue->ops);
	free(queue);
	return error;
}

void nvmeof_queue_close(struct nvmeof_queue *queue)
{
	queue->backend->close(queue);
	/* The kernel may come back to what it could not be made to end: that memory stays where it is. */
	if (queue->inflight != 0) {
		queue->next_kept = atomic_load(&kept);
		while (!atomic_compare_exchange_weak(&kept, &queue->next_kept, queue))
			;
		return;
	}
	munmap(queue->bounces, BOUNCE_AREA);
	free(queue->ops);
	free(queue);
}

struct nvmeof_op *nvmeof_queue_take(struct nvmeof_queue *queue, bool bounce)
{
	struct nvmeof_op *op;

	if (queue->free_ops_count == 0 || (bounce && queue->free_bounces_count == 0))
		return NULL;
	op = &queue->ops[queue->free_ops[--queue->free_ops_count]];
	*op = (struct nvmeof_op){.busy = true, .bounce = NVMEOF_NO_BOUNCE};
	if (bounce)
		op->bounce = queue->free_bounces[--queue->free_bounces_count];
	queue->inflight++;
	return op;
}

void nvmeof_queue_give(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	if (op->bounce != NVMEOF_NO_BOUNCE)
		queue->free_bounces[queue->free_bounces_count++] = op->bounce;
	op->busy = false;
	queue->free_ops[queue->free_ops_count++] = (uint16_t)(op - queue->ops);
	queue->inflight--;
}
