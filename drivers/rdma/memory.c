/* SPDX-License-Identifier: Apache-2.0 */
/* Memory regions: a buffer is registered on every device, in pieces where a device takes no more at once. What a buffer
 * does not offer to peers, its regions don't allow them: the hardware refuses. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/rdma/rdma.h"
#include "lib/engine.h"

static uint64_t piece_bytes(const struct rdma_engine *rdma)
{
	uint64_t bytes = UINT64_MAX;

	for (uint32_t i = 0; i < rdma->device_count; i++)
		if (rdma->device[i].max_mr_bytes < bytes)
			bytes = rdma->device[i].max_mr_bytes;
	return bytes & ~UINT64_C(4095); /* pieces that begin with a page */
}

static struct ibv_mr *register_region(const struct rdma_device *device, uint64_t addr, uint64_t length, uint32_t access)
{
	const struct rdma_verbs *verbs = device->rdma->verbs;
	void *memory = (void *)(uintptr_t)addr;
	int rights = IBV_ACCESS_LOCAL_WRITE;
	struct ibv_mr *mr = NULL;

	if ((access & LW_ACCESS_REMOTE_READ) != 0)
		rights |= IBV_ACCESS_REMOTE_READ;
	if ((access & LW_ACCESS_REMOTE_WRITE) != 0)
		rights |= IBV_ACCESS_REMOTE_WRITE;
	for (;;) {
		if (device->rdma->engine->config.rdma_relaxed_ordering && verbs->reg_mr_iova2 != NULL)
			mr = verbs->reg_mr_iova2(device->pd, memory, length, addr,
						 (unsigned int)rights | IBV_ACCESS_RELAXED_ORDERING);
		if (mr == NULL)
			mr = verbs->reg_mr(device->pd, memory, length, rights);
		/* Memory that can only be read serves as the source of WRITEs, and to peers that read. */
		if (mr != NULL || (errno != EFAULT && errno != EACCES && errno != EPERM) ||
		    (rights & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE)) != IBV_ACCESS_LOCAL_WRITE)
			return mr;
		rights &= ~IBV_ACCESS_LOCAL_WRITE;
	}
}

static void free_buffer(struct rdma_engine *rdma, struct rdma_buffer *buffer)
{
	for (size_t i = 0; i < (size_t)buffer->piece_count * rdma->device_count; i++)
		if (buffer->mr[i] != NULL)
			rdma->verbs->dereg_mr(buffer->mr[i]);
	free(buffer);
}

static const char *name_of(const void *rdma, size_t i)
{
	return ((const struct rdma_engine *)rdma)->device[i].name;
}

/* As the matrix is now: what the settings say, else what sysfs shows. */
static uint64_t near_memory(const struct rdma_engine *rdma, const char *location)
{
	uint64_t near;

	pthread_mutex_lock(&rdma->engine->lock);
	near = rdma_near(rdma->engine->matrix != NULL ? rdma->engine->matrix : rdma->matrix, location, name_of, rdma,
			 rdma->device_count);
	pthread_mutex_unlock(&rdma->engine->lock);
	return near;
}

int rdma_attach(void *context, uint32_t index, const struct lw_memory *memory, char *why, size_t why_size)
{
	struct rdma_engine *rdma = context;
	uint64_t step = piece_bytes(rdma), addr = (uint64_t)(uintptr_t)memory->addr;
	size_t pieces = (size_t)((memory->length + step - 1) / step);
	struct rdma_buffer *buffer = calloc(1, sizeof(*buffer) + pieces * rdma->device_count * sizeof(buffer->mr[0]));
	int error;

	if (buffer == NULL) {
		snprintf(why, why_size, "no memory for its regions");
		return -ENOMEM;
	}
	*buffer = (struct rdma_buffer){.addr = addr,
				       .length = memory->length,
				       .piece_bytes = step,
				       .piece_count = (uint32_t)pieces,
				       .near = near_memory(rdma, memory->location)};
	for (size_t i = 0; i < pieces; i++) {
		uint64_t offset = i * step, left = memory->length - offset;

		for (uint32_t k = 0; k < rdma->device_count; k++) {
			struct ibv_mr *mr = register_region(&rdma->device[k], addr + offset, left < step ? left : step,
							    memory->access);

			if (mr == NULL) {
				error = errno != 0 ? -errno : -EIO;
				snprintf(why, why_size, "%s can't register it: %s%s", rdma->device[k].name,
					 strerrordesc_np(-error),
					 error == -ENOMEM || error == -EPERM
						 ? "; raise the limit of locked memory (ulimit -l)"
						 : "");
				free_buffer(rdma, buffer);
				return error;
			}
			buffer->mr[i * rdma->device_count + k] = mr;
		}
	}
	atomic_store_explicit(&rdma->buffers[index], buffer, memory_order_release);
	return 0;
}

void rdma_detach(void *context, uint32_t index)
{
	struct rdma_engine *rdma = context;
	struct rdma_buffer *buffer = atomic_exchange(&rdma->buffers[index], NULL);

	if (buffer != NULL)
		free_buffer(rdma, buffer);
}

int rdma_piece(void *context, uint32_t index, struct lw_desc *desc, struct lw_desc_buffer *out)
{
	struct rdma_engine *rdma = context;
	const struct rdma_buffer *buffer = atomic_load_explicit(&rdma->buffers[index], memory_order_acquire);
	const char *location = rdma->engine->buffers[index].location;
	struct lw_desc_rdma *part = &desc->rdma;
	struct lw_desc_key *keys;
	uint64_t piece, end;

	if (buffer == NULL || part->device_count != rdma->device_count)
		return 0;
	/* Room doubles when the number of buffers with keys is a power of two. */
	if ((part->key_count / part->device_count & (part->key_count / part->device_count - 1)) == 0) {
		keys = realloc(part->keys,
			       (part->key_count != 0 ? part->key_count * 2 : part->device_count) * sizeof(*keys));
		if (keys == NULL)
			return -ENOMEM;
		part->keys = keys;
	}
	memset(out->name, 0, sizeof(out->name));
	memcpy(out->name, location[0] != '\0' ? location : "*", location[0] != '\0' ? strlen(location) : 1);
	piece = (out->addr - buffer->addr) / buffer->piece_bytes;
	end = buffer->addr + (piece + 1) * buffer->piece_bytes;
	if (end - out->addr < out->length)
		out->length = end - out->addr;
	out->key = (uint32_t)part->key_count + 1;
	for (uint32_t i = 0; i < rdma->device_count; i++) {
		const struct ibv_mr *mr = buffer->mr[piece * rdma->device_count + i];

		part->keys[part->key_count++] = (struct lw_desc_key){.lkey = mr->lkey, .rkey = mr->rkey};
	}
	return 0;
}

void rdma_buffers_free(struct rdma_engine *rdma)
{
	for (uint64_t i = 0; rdma->buffers != NULL && i < rdma->engine->config.max_buffers; i++) {
		struct rdma_buffer *buffer = atomic_load(&rdma->buffers[i]);

		if (buffer != NULL)
			free_buffer(rdma, buffer);
	}
	free(rdma->buffers);
	rdma->buffers = NULL;
}
