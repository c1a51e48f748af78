/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/places.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/engine.h"
#include "lib/error.h"

void lw_places_init(struct lw_places *places)
{
	*places = (struct lw_places){.count = 0};
	pthread_mutex_init(&places->lock, NULL);
}

void lw_places_fini(struct lw_places *places)
{
	pthread_mutex_destroy(&places->lock);
}

/* The number of a device; -1: there is no room for it. Under the lock. */
static int number_of(struct lw_places *places, const struct lw_gpu *gpu, int device)
{
	uint32_t i = 0;

	while (i < places->count && (places->place[i].gpu != gpu || places->place[i].device != device))
		i++;
	if (i == LW_RANGE_PLACES)
		return -1;
	if (i == places->count)
		places->place[places->count++] = (struct lw_place){.gpu = gpu, .device = device};
	return (int)i;
}

/* Bounce buffers for all workers. Under the lock. */
static int equip(struct lw_engine *engine, enum lw_bounce_role role, uint32_t place, const struct lw_gpu *gpu,
		 int device)
{
	const struct lw_config *config = &engine->config;
	int error = 0;

	for (uint32_t i = 0; i < engine->worker_count && error == 0; i++) {
		struct lw_bounces *bounces = &engine->workers[i].bounces;
		struct lw_bounce_pool *pool;

		error = lw_bounces_add(bounces, role, place, gpu, device, (uint32_t)config->stage_slots,
				       config->stage_bytes);
		pool = bounces->pool[role][lw_gpu_vendor_of(gpu)];
		/* Drivers that have to know memory before it moves have to know this. */
		if (error != 0 || role != LW_BOUNCE_OURS || pool->entered)
			continue;
		error = lw_memory_enter_own(engine, pool->memory, pool->count * pool->bytes);
		pool->entered = error == 0;
	}
	return error;
}

/* A runtime that the process has loaded since the engine was opened, if the buffer is said to be of one. */
static void open_late(const char *location)
{
	const struct lw_gpu *gpu;
	char why[200];

	for (int i = 0; location != NULL && i < LW_GPU_VENDORS; i++) {
		const char *name = lw_gpu_vendor_name((enum lw_gpu_vendor)i);

		if (strncmp(location, name, strlen(name)) == 0 && location[strlen(name)] == ':' &&
		    lw_gpu_opened((enum lw_gpu_vendor)i) == NULL)
			(void)lw_gpu_open((enum lw_gpu_vendor)i, NULL, &gpu, why, sizeof(why));
	}
}

static int enter_device(struct lw_engine *engine, const struct lw_memory *memory, size_t number,
			const struct lw_gpu *gpu, int device, uint32_t *kind)
{
	struct lw_places *places = &engine->places;
	int place, error = 0;

	pthread_mutex_lock(&places->lock);
	place = number_of(places, gpu, device);
	if (place >= 0)
		error = equip(engine, LW_BOUNCE_OURS, (uint32_t)place, gpu, device);
	if (place >= 0 && error == 0 && memory->access != LW_ACCESS_LOCAL)
		error = equip(engine, LW_BOUNCE_PEERS, (uint32_t)place, gpu, device);
	pthread_mutex_unlock(&places->lock);
	if (place < 0)
		return lw_fail(-ENOSPC, "buffer %zu: it is of one more than %u GPUs", number, LW_RANGE_PLACES);
	if (error != 0)
		return lw_fail(
			error,
			"buffer %zu: no bounce buffers for %s:%d: %s; lower the settings stage_slots or stage_bytes",
			number, lw_gpu_vendor_name(lw_gpu_vendor_of(gpu)), device, lw_strerror(error));
	*kind = LW_RANGE_DEVICE | (uint32_t)place << LW_RANGE_PLACE_SHIFT;
	/* Before it is on the map, which tells it, too: workers look at this first. */
	for (uint32_t i = 0; i < engine->worker_count; i++)
		atomic_store_explicit(&engine->workers[i].devices, true, memory_order_release);
	return 0;
}

int lw_place_of(struct lw_engine *engine, const struct lw_memory *memory, size_t number, uint32_t *kind,
		char location[64])
{
	uint64_t addr = (uint64_t)(uintptr_t)memory->addr;
	struct lw_gpu_memory found;
	int error;

	*kind = 0;
	location[0] = '\0';
	open_late(memory->location);
	error = lw_gpu_find(memory->addr, &found);
	if (error == -ENOENT)
		return 0;
	if (error != 0)
		return lw_fail(error, "buffer %zu: nobody can tell which memory of a GPU is at %p: %s", number,
			       memory->addr, lw_strerror(error));
	if (addr - found.base >= found.length || memory->length > found.length - (addr - found.base))
		return lw_fail(-EINVAL,
			       "buffer %zu: %zu bytes at %p reach beyond the GPU's allocation of %llu bytes at %p",
			       number, memory->length, memory->addr, (unsigned long long)found.length,
			       (void *)(uintptr_t)found.base);
	snprintf(location, 64, "%s:%d", lw_gpu_vendor_name(lw_gpu_vendor_of(found.gpu)), found.device);
	return enter_device(engine, memory, number, found.gpu, found.device, kind);
}
