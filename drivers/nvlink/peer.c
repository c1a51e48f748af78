/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/nvlink/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "drivers/nvlink/stream.h"
#include "lib/engine.h"
#include "lib/neighbour.h"

bool nvlink_peers_outside;

/* Imports -------------------------------------------------------------------------------------------------------------
 */

struct nvlink_import {
	uint32_t refs;
	const struct lw_gpu *gpu;
	pid_t pid; /* the peer's process; 0: unknown */
	uint64_t started;
	struct lw_desc_allocation allocation;
	int entered; /* the device under which it was opened */
	void *base;  /* here */
	int device;  /* where it is */
	struct nvlink_import *next;
};

static pthread_mutex_t imports_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvlink_import *imports; /* of all engines of the process */

/* The same allocation of the same process: its engines may come and go. */
static bool is_same(const struct nvlink_import *import, const struct lw_gpu *gpu, const struct nvlink_peer *peer,
		    const struct lw_desc_allocation *allocation)
{
	return import->gpu == gpu && import->pid == peer->pid && import->started == peer->started &&
	       import->allocation.addr == allocation->addr && import->allocation.length == allocation->length &&
	       import->allocation.id == allocation->id &&
	       memcmp(import->allocation.handle, allocation->handle, LW_DESC_HANDLE) == 0;
}

/* What was opened is at least as long as the peer says: nothing beyond it is ever touched. */
static int measure(struct nvlink_import *import)
{
	struct lw_gpu_memory memory;
	int error = lw_gpu_find(import->base, &memory);

	if (error != 0)
		return error == -ENOENT ? -EIO : error;
	if (memory.gpu != import->gpu || memory.base > (uint64_t)(uintptr_t)import->base ||
	    memory.base + memory.length - (uint64_t)(uintptr_t)import->base < import->allocation.length)
		return -EPROTO;
	import->device = memory.device;
	return 0;
}

static int open_import(struct nvlink_import *import)
{
	struct lw_gpu_handle handle;
	struct lw_gpu_guard guard;
	int error;

	memcpy(handle.bytes, import->allocation.handle, sizeof(handle.bytes));
	error = lw_gpu_enter(import->gpu, import->entered, &guard);
	if (error != 0)
		return error;
	error = lw_gpu_ipc_open(import->gpu, &handle, &import->base);
	if (error == 0) {
		error = measure(import);
		if (error != 0)
			lw_gpu_ipc_close(import->gpu, import->base);
	}
	/* Without the direct way the runtime copies by another. */
	if (error == 0)
		(void)lw_gpu_peer_enable(import->gpu, import->entered, import->device);
	lw_gpu_leave(&guard);
	return error;
}

/* The allocation as it is imported already, or is imported now. */
static int take_import(const struct lw_gpu *gpu, int device, const struct nvlink_peer *peer,
		       const struct lw_desc_allocation *allocation, struct nvlink_import **out)
{
	struct nvlink_import *import;
	int error = 0;

	pthread_mutex_lock(&imports_lock);
	for (import = imports; import != NULL; import = import->next)
		if (is_same(import, gpu, peer, allocation))
			break;
	if (import != NULL) {
		import->refs++;
	} else {
		import = calloc(1, sizeof(*import));
		error = import == NULL ? -ENOMEM : 0;
		if (error == 0) {
			*import = (struct nvlink_import){.refs = 1,
							 .gpu = gpu,
							 .pid = peer->pid,
							 .started = peer->started,
							 .allocation = *allocation,
							 .entered = device};
			error = open_import(import);
		}
		if (error == 0) {
			import->next = imports;
			imports = import;
		} else {
			free(import);
		}
	}
	if (error == 0)
		*out = import;
	pthread_mutex_unlock(&imports_lock);
	return error;
}

static void give_import(struct nvlink_import *import)
{
	struct lw_gpu_guard guard;

	pthread_mutex_lock(&imports_lock);
	if (--import->refs == 0) {
		struct nvlink_import **link = &imports;

		while (*link != import)
			link = &(*link)->next;
		*link = import->next;
		if (lw_gpu_enter_to_free(import->gpu, import->entered, &guard) == 0) {
			lw_gpu_ipc_close(import->gpu, import->base);
			lw_gpu_leave(&guard);
		}
		free(import);
	}
	pthread_mutex_unlock(&imports_lock);
}

/* Peers ---------------------------------------------------------------------------------------------------------------
 */

void nvlink_engine_drop(struct nvlink_engine *nvlink)
{
	if (atomic_fetch_sub_explicit(&nvlink->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (nvlink->door != NULL)
		door_drop(nvlink->door);
	pthread_mutex_destroy(&nvlink->lock);
	free(nvlink);
}

static void free_peer(struct nvlink_peer *peer)
{
	if (peer->pid_fd >= 0)
		close(peer->pid_fd);
	if (peer->door != NULL)
		door_drop(peer->door);
	free(peer);
}

static void drop_peer(struct nvlink_peer *peer)
{
	struct nvlink_engine *nvlink = peer->nvlink;
	bool last;

	pthread_mutex_lock(&nvlink->lock);
	last = --peer->refs == 0;
	for (struct nvlink_peer **link = &nvlink->peers; last && *link != NULL; link = &(*link)->next) {
		if (*link == peer) {
			*link = peer->next;
			break;
		}
	}
	pthread_mutex_unlock(&nvlink->lock);
	if (!last)
		return;
	free_peer(peer);
	nvlink_engine_drop(nvlink);
}

/* A peer of ours that is held already, or NULL. Under the lock. */
static struct nvlink_peer *find_peer(const struct nvlink_engine *nvlink, pid_t pid, const unsigned char *nonce)
{
	struct nvlink_peer *peer;

	for (peer = nvlink->peers; peer != NULL; peer = peer->next)
		if (peer->door != NULL && peer->pid == pid && memcmp(peer->nonce, nonce, DOOR_NONCE) == 0)
			return peer;
	return NULL;
}

static int meet(struct nvlink_peer *peer, int32_t fd, char *why, size_t why_size)
{
	peer->inside = peer->pid == getpid() && !nvlink_peers_outside;
	peer->started = door_started(peer->pid); /* before it is met: then it is that process' */
	if (!peer->inside)
		return lw_neighbour_meet(peer->pid, fd, peer->nonce, &peer->door, &peer->pid_fd, why, why_size);
	peer->door = door_find_own(peer->nonce);
	if (peer->door != NULL)
		return 0;
	snprintf(why, why_size, "no engine of this process has that nonce");
	return -ESRCH;
}

/* The process that the descriptor is of: as it is known already, or met now. */
static int take_peer(struct nvlink_engine *nvlink, const struct lw_desc_gpu *desc, struct nvlink_peer **out, char *why,
		     size_t why_size)
{
	struct nvlink_peer *peer = calloc(1, sizeof(*peer)), *other = NULL;
	int error = 0;

	if (peer == NULL) {
		snprintf(why, why_size, "no memory");
		return -ENOMEM;
	}
	*peer = (struct nvlink_peer){.refs = 1, .nvlink = nvlink, .pid = (pid_t)desc->pid, .pid_fd = -1};
	if (desc->pid != 0) {
		lw_neighbour_nonce(desc->nonce, peer->nonce, sizeof(peer->nonce));
		pthread_mutex_lock(&nvlink->lock);
		other = find_peer(nvlink, peer->pid, peer->nonce);
		if (other != NULL)
			other->refs++;
		pthread_mutex_unlock(&nvlink->lock);
		if (other == NULL)
			error = meet(peer, desc->fd, why, why_size);
	}
	if (error != 0 || other != NULL) {
		free_peer(peer);
		*out = other;
		return error;
	}
	pthread_mutex_lock(&nvlink->lock);
	peer->next = nvlink->peers; /* another thread may have been faster: then there are two, to nobody's harm */
	nvlink->peers = peer;
	atomic_fetch_add_explicit(&nvlink->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&nvlink->lock);
	*out = peer;
	return 0;
}

/* Reaches -------------------------------------------------------------------------------------------------------------
 */

static void free_reach(struct nvlink_reach *reach)
{
	for (size_t i = 0; i < reach->count; i++)
		if (reach->mappings[i].import != NULL)
			give_import(reach->mappings[i].import);
	drop_peer(reach->peer);
	free(reach->mappings);
	free(reach->pinned);
	free(reach);
}

void nvlink_forget(void *given)
{
	struct nvlink_reach *reach = given;

	if (atomic_fetch_sub_explicit(&reach->refs, 1, memory_order_acq_rel) == 1)
		free_reach(reach);
}

static void drop_run(struct lw_ctrl_job *job)
{
	nvlink_forget(lw_container(job, struct nvlink_reach, drop_job));
}

void nvlink_reach_drop_later(struct nvlink_reach *reach)
{
	uint32_t refs = atomic_load_explicit(&reach->refs, memory_order_relaxed);

	/* Others hold it mostly: then there is nothing to free. */
	while (refs > 1)
		if (atomic_compare_exchange_weak(&reach->refs, &refs, refs - 1))
			return;
	lw_ctrl_post(reach->peer->nvlink->engine->ctrl, &reach->drop_job);
}

bool nvlink_offer_seen(const void *given)
{
	const struct nvlink_reach *reach = given;
	struct door *door = reach->peer->door;

	return door != NULL && atomic_load_explicit(&door->page->closed, memory_order_acquire) == 0 &&
	       door_changes(door) == reach->changes;
}

/* Memory of another engine of this process: it is where it says. */
static int add_inside(struct nvlink_engine *nvlink, struct nvlink_reach *reach, const struct lw_desc *desc, char *why,
		      size_t why_size)
{
	int used = lw_gpu_used_device(nvlink->gpu);

	for (size_t i = 0; i < desc->buffer_count; i++) {
		const struct lw_desc_buffer *buffer = &desc->buffers[i];
		const void *addr = (const void *)(uintptr_t)buffer->addr;
		struct lw_gpu_guard guard;
		struct lw_gpu_memory memory;
		int error = 0;

		if (buffer->device && (lw_gpu_find(addr, &memory) != 0 || memory.gpu != nvlink->gpu))
			continue; /* freed meanwhile, or another vendor's: its grant or its absence here tells */
		if (buffer->device) {
			error = nvlink_equip(nvlink, memory.device, why, why_size);
			reach->mappings[reach->count++] = (struct nvlink_mapping){.addr = buffer->addr,
										  .length = buffer->length,
										  .here = buffer->addr,
										  .device = memory.device};
		} else if (used >= 0 && lw_gpu_enter(nvlink->gpu, used, &guard) == 0) {
			reach->pinned[i] = lw_gpu_is_pinned(nvlink->gpu, addr) &&
					   lw_gpu_is_pinned(nvlink->gpu, (const char *)addr + buffer->length - 1);
			lw_gpu_leave(&guard);
		}
		if (error != 0)
			return error;
	}
	return 0;
}

static int add_imports(struct nvlink_engine *nvlink, struct nvlink_reach *reach, const struct lw_desc_gpu *gpu,
		       int device, char *why, size_t why_size)
{
	int error = nvlink_equip(nvlink, device, why, why_size);

	for (size_t i = 0; i < gpu->count && error == 0; i++) {
		struct nvlink_mapping *mapping = &reach->mappings[reach->count];
		struct nvlink_import *import = NULL;

		error = take_import(nvlink->gpu, device, reach->peer, &gpu->memory[i], &import);
		if (error != 0) {
			snprintf(why, why_size, "its allocation of %llu bytes at 0x%llx can't be imported: %s",
				 (unsigned long long)gpu->memory[i].length, (unsigned long long)gpu->memory[i].addr,
				 strerrordesc_np(-error));
			return error == -ENOTSUP ? -EIO : error;
		}
		*mapping = (struct nvlink_mapping){.addr = gpu->memory[i].addr,
						   .length = gpu->memory[i].length,
						   .here = (uint64_t)(uintptr_t)import->base,
						   .device = import->device,
						   .import = import};
		reach->count++;
		error = nvlink_equip(nvlink, import->device, why, why_size);
	}
	return error;
}

/* A route serves all that the peer offers of its GPUs, or is none: requests choose it by the kind of memory alone. */
static int check_complete(const struct nvlink_reach *reach, const struct lw_desc *desc, char *why, size_t why_size)
{
	size_t missing = 0;

	for (size_t i = 0; i < desc->buffer_count; i++)
		missing += desc->buffers[i].device &&
			   nvlink_reach_find(reach, desc->buffers[i].addr, desc->buffers[i].length) == NULL;
	if (missing == 0)
		return 0;
	snprintf(why, why_size, "%zu of its buffers of GPUs have no handle to import them by", missing);
	return -EXDEV;
}

static int compare(const void *a, const void *b)
{
	const struct nvlink_mapping *left = a, *right = b;

	return left->addr < right->addr ? -1 : left->addr > right->addr;
}

static struct nvlink_reach *new_reach(const struct lw_desc *desc, const struct lw_desc_gpu *gpu)
{
	struct nvlink_reach *reach = calloc(1, sizeof(*reach) + desc->buffer_count * sizeof(reach->grants[0]));

	if (reach == NULL)
		return NULL;
	atomic_init(&reach->refs, 1);
	reach->drop_job.run = drop_run;
	reach->mappings = calloc(gpu->count + desc->buffer_count + 1, sizeof(*reach->mappings));
	reach->pinned = calloc(desc->buffer_count + 1, sizeof(*reach->pinned));
	if (reach->mappings == NULL || reach->pinned == NULL) {
		free(reach->mappings);
		free(reach->pinned);
		free(reach);
		return NULL;
	}
	reach->changes = gpu->changes;
	reach->grant_count = desc->buffer_count;
	for (size_t i = 0; i < desc->buffer_count; i++)
		reach->grants[i] = desc->buffers[i].grant;
	return reach;
}

/* The part of a name that is its host: without the port. */
static size_t host_part(const char *name, const char **begin)
{
	const char *colon = strchr(name, ':'), *bracket = name[0] == '[' ? strchr(name, ']') : NULL;

	*begin = bracket != NULL ? name + 1 : name;
	if (bracket != NULL)
		return (size_t)(bracket - name - 1);
	return colon != NULL && strchr(colon + 1, ':') == NULL ? (size_t)(colon - name) : strlen(name);
}

/* Engines that say nothing else of their host are taken by their name's, as they take each other. */
static bool same_name(const char *a, const char *b)
{
	const char *left, *right;
	size_t length = host_part(a, &left);

	return length == host_part(b, &right) && strncasecmp(left, right, length) == 0;
}

int nvlink_reach(void *context, const struct lw_desc *desc, void **out, char *why, size_t why_size)
{
	struct nvlink_engine *nvlink = context;
	const struct lw_desc_gpu *gpu = &desc->gpu[nvlink->vendor];
	struct nvlink_reach *reach;
	int error, device;

	if (gpu->pid == 0 && (gpu->count == 0 || !same_name(desc->name, nvlink->engine->name)))
		return -ENOTSUP;
	if (gpu->fabric || (gpu->pid != 0 && nvlink->door == NULL))
		return -ENOTSUP;
	error = gpu->pid != 0 ? lw_neighbour_is(nvlink->host, gpu->host, why, why_size) : 0;
	if (error != 0)
		return error;
	/* A process that uses no GPU is not made to. */
	device = lw_gpu_used_device(nvlink->gpu);
	if (device < 0)
		return -ENOTSUP;
	reach = new_reach(desc, gpu);
	if (reach == NULL) {
		snprintf(why, why_size, "no memory");
		return -ENOMEM;
	}
	error = take_peer(nvlink, gpu, &reach->peer, why, why_size);
	if (error != 0) {
		free(reach->mappings);
		free(reach->pinned);
		free(reach);
		return error == -ENOTSUP ? -EIO : error;
	}
	if (reach->peer->inside)
		error = add_inside(nvlink, reach, desc, why, why_size);
	else
		error = add_imports(nvlink, reach, gpu, device, why, why_size);
	if (error == 0) {
		qsort(reach->mappings, reach->count, sizeof(reach->mappings[0]), compare);
		error = check_complete(reach, desc, why, why_size);
	}
	if (error != 0) {
		free_reach(reach);
		return error;
	}
	*out = reach;
	return 0;
}
