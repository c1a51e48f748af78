/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/nvlink/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/nvlink/stream.h"
#include "lib/engine.h"
#include "lib/log.h"

#define PAGE UINT64_C(4096)

/* Asks for the handle. Memory that has none (of a pool, or made by the VMM interface) is for this process alone. */
static void export(struct nvlink_engine *nvlink, struct nvlink_allocation *allocation)
{
	struct lw_gpu_guard guard;
	int error = lw_gpu_enter(nvlink->gpu, allocation->memory.device, &guard);

	if (error == 0) {
		error = lw_gpu_ipc_get(nvlink->gpu, (const void *)(uintptr_t)allocation->memory.base,
				       &allocation->handle);
		lw_gpu_leave(&guard);
	}
	allocation->exported = error == 0;
	if (error != 0 && !nvlink->told)
		lw_log(LW_LOG_WARNING,
		       "memory of %s:%d at %p can't be exported (%s): other processes reach it through bounce buffers",
		       lw_gpu_vendor_name(nvlink->vendor), allocation->memory.device,
		       (void *)(uintptr_t)allocation->memory.base, strerrordesc_np(-error));
	nvlink->told |= error != 0;
}

/* The allocation, exported if peers are to reach it; held. NULL: no memory. */
static struct nvlink_allocation *take_allocation(struct nvlink_engine *nvlink, const struct lw_gpu_memory *memory,
						 bool offered)
{
	struct nvlink_allocation *allocation;

	pthread_mutex_lock(&nvlink->lock);
	for (allocation = nvlink->allocations; allocation != NULL; allocation = allocation->next)
		if (allocation->memory.base == memory->base && allocation->memory.length == memory->length &&
		    allocation->memory.id == memory->id)
			break;
	if (allocation == NULL) {
		allocation = calloc(1, sizeof(*allocation));
		if (allocation != NULL) {
			allocation->memory = *memory;
			allocation->next = nvlink->allocations;
			nvlink->allocations = allocation;
		}
	}
	if (allocation != NULL) {
		allocation->refs++;
		if (offered && !allocation->exported)
			export(nvlink, allocation);
	}
	pthread_mutex_unlock(&nvlink->lock);
	return allocation;
}

static void give_allocation(struct nvlink_engine *nvlink, struct nvlink_allocation *allocation)
{
	pthread_mutex_lock(&nvlink->lock);
	if (--allocation->refs == 0) {
		struct nvlink_allocation **link = &nvlink->allocations;

		while (*link != allocation)
			link = &(*link)->next;
		*link = allocation->next;
		free(allocation);
	}
	pthread_mutex_unlock(&nvlink->lock);
}

/* Whether a page of the range was pinned for another buffer of ours, whose end will unpin it. Under the lock. */
static bool shares_a_page(const struct nvlink_engine *nvlink, const struct nvlink_buffer *buffer)
{
	for (uint32_t i = 0; i < nvlink->slots; i++) {
		const struct nvlink_buffer *other = atomic_load_explicit(&nvlink->buffers[i], memory_order_relaxed);

		if (other != NULL && other->pinned &&
		    other->addr / PAGE <= (buffer->addr + buffer->length - 1) / PAGE &&
		    buffer->addr / PAGE <= (other->addr + other->length - 1) / PAGE)
			return true;
	}
	return false;
}

/* Pins memory of the host, unless it is already. What can't be pinned is copied through a bounce buffer of the
 * worker's. Under the lock. */
static void pin(struct nvlink_engine *nvlink, struct nvlink_buffer *buffer)
{
	void *memory = (void *)(uintptr_t)buffer->addr;
	int device = nvlink->engine->config.gpu_pin ? lw_gpu_used_device(nvlink->gpu) : -1, error;
	struct lw_gpu_guard guard;

	if (device < 0 || lw_gpu_enter(nvlink->gpu, device, &guard) != 0)
		return;
	error = lw_gpu_host_pin(nvlink->gpu, memory, buffer->length);
	buffer->pinned = error == 0;
	buffer->direct = buffer->pinned ||
			 (error == -EEXIST && !shares_a_page(nvlink, buffer) && lw_gpu_is_pinned(nvlink->gpu, memory) &&
			  lw_gpu_is_pinned(nvlink->gpu, (unsigned char *)memory + buffer->length - 1));
	lw_gpu_leave(&guard);
}

static void unpin(struct nvlink_engine *nvlink, const struct nvlink_buffer *buffer)
{
	int device = lw_gpu_used_device(nvlink->gpu);
	struct lw_gpu_guard guard;

	if (!buffer->pinned || device < 0 || lw_gpu_enter_to_free(nvlink->gpu, device, &guard) != 0)
		return;
	lw_gpu_host_unpin(nvlink->gpu, (void *)(uintptr_t)buffer->addr);
	lw_gpu_leave(&guard);
}

static void free_buffer(struct nvlink_engine *nvlink, struct nvlink_buffer *buffer)
{
	unpin(nvlink, buffer);
	if (buffer->allocation != NULL)
		give_allocation(nvlink, buffer->allocation);
	free(buffer);
}

/* A buffer of a device of ours. 0, or a negative errno and why. */
static int attach_device(struct nvlink_engine *nvlink, struct nvlink_buffer *buffer, const struct lw_gpu_memory *memory,
			 bool offered, char *why, size_t why_size)
{
	int error = nvlink_equip(nvlink, memory->device, why, why_size);

	if (error != 0)
		return error;
	buffer->device = memory->device;
	buffer->direct = true;
	buffer->allocation = take_allocation(nvlink, memory, offered);
	if (buffer->allocation != NULL)
		return 0;
	snprintf(why, why_size, "no memory");
	return -ENOMEM;
}

int nvlink_attach(void *context, uint32_t index, const struct lw_memory *memory, char *why, size_t why_size)
{
	struct nvlink_buffer *buffer = calloc(1, sizeof(*buffer));
	struct nvlink_engine *nvlink = context;
	struct lw_gpu_memory found;
	int error;

	if (buffer == NULL) {
		snprintf(why, why_size, "no memory");
		return -ENOMEM;
	}
	*buffer = (struct nvlink_buffer){
		.device = -1, .addr = (uint64_t)(uintptr_t)memory->addr, .length = memory->length};
	error = lw_gpu_find(memory->addr, &found);
	if (error == 0 && found.gpu != nvlink->gpu) {
		free(buffer); /* another vendor's */
		return 0;
	}
	if (error == 0)
		error = attach_device(nvlink, buffer, &found, memory->access != LW_ACCESS_LOCAL, why, why_size);
	else if (error == -ENOENT)
		error = 0;
	else
		snprintf(why, why_size, "nobody can tell whose memory it is: %s", strerrordesc_np(-error));
	if (error != 0) {
		free(buffer);
		return error;
	}
	pthread_mutex_lock(&nvlink->lock);
	if (buffer->device < 0)
		pin(nvlink, buffer);
	if (index >= nvlink->slots)
		nvlink->slots = index + 1;
	atomic_store_explicit(&nvlink->buffers[index], buffer, memory_order_release);
	pthread_mutex_unlock(&nvlink->lock);
	return 0;
}

void nvlink_detach(void *context, uint32_t index)
{
	struct nvlink_engine *nvlink = context;
	struct nvlink_buffer *buffer = atomic_exchange(&nvlink->buffers[index], NULL);

	if (buffer != NULL)
		free_buffer(nvlink, buffer);
}

int nvlink_piece(void *context, uint32_t index, struct lw_desc *desc, struct lw_desc_buffer *out)
{
	struct nvlink_engine *nvlink = context;
	const struct nvlink_buffer *buffer = atomic_load_explicit(&nvlink->buffers[index], memory_order_acquire);
	const struct nvlink_allocation *allocation = buffer != NULL ? buffer->allocation : NULL;
	struct lw_desc_gpu *part = &desc->gpu[nvlink->vendor];
	struct lw_desc_allocation *memory;

	(void)out;
	if (allocation == NULL || !allocation->exported || part->pid == 0)
		return 0;
	/* Buffers come by address: those of one allocation are neighbours. */
	if (part->count != 0 && part->memory[part->count - 1].addr == allocation->memory.base)
		return 0;
	if ((part->count & (part->count - 1)) == 0) { /* room doubles at powers of two */
		memory = realloc(part->memory, (part->count != 0 ? part->count * 2 : 1) * sizeof(*memory));
		if (memory == NULL)
			return -ENOMEM;
		part->memory = memory;
	}
	memory = &part->memory[part->count++];
	*memory = (struct lw_desc_allocation){.addr = allocation->memory.base,
					      .length = allocation->memory.length,
					      .id = allocation->memory.id & ((UINT64_C(1) << 53) - 1),
					      .device = (uint32_t)allocation->memory.device};
	memcpy(memory->handle, allocation->handle.bytes, sizeof(memory->handle));
	return 0;
}

void nvlink_buffers_free(struct nvlink_engine *nvlink)
{
	for (uint32_t i = 0; i < nvlink->slots; i++)
		nvlink_detach(nvlink, i);
}

void nvlink_local(const struct nvlink_engine *nvlink, uint64_t addr, uint64_t length, int *device, bool *direct)
{
	const struct lw_rangemap *map = atomic_load_explicit(&nvlink->engine->memory, memory_order_acquire);
	uint64_t end = addr + length;

	*device = -1;
	*direct = true;
	while (addr < end) {
		const struct lw_range *range = lw_rangemap_find(map, addr);
		const struct nvlink_buffer *buffer =
			range != NULL ? atomic_load_explicit(&nvlink->buffers[range->tag], memory_order_acquire) : NULL;

		if (buffer == NULL || !buffer->direct)
			*direct = false;
		if (buffer == NULL)
			return; /* not registered: the setting local_unregistered allows it */
		*device = buffer->device;
		addr = range->end;
	}
}
