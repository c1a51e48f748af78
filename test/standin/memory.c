/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices, imports, pinned memory of the host. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/standin/inside.h"

#define EXPORT __attribute__((visibility("default")))
#define GRANULE (64u << 10) /* allocations of a device begin and end at multiples of it */
#define MAGIC 0x6e69646e617473u

/* What a handle is made of. */
struct handle {
	uint64_t magic;
	uint32_t vendor, pid;
	int32_t fd, device;
	uint64_t inode, size;
};
_Static_assert(sizeof(struct handle) <= LW_GPU_HANDLE_BYTES, "room in a handle");

struct range *range_find(const void *addr)
{
	const unsigned char *at = addr;

	for (struct range *range = standin.ranges; range != NULL; range = range->next)
		if (at >= range->base && at < range->base + range->size)
			return range;
	return NULL;
}

unsigned char *range_bytes(enum lw_gpu_vendor vendor, const void *addr, size_t length, bool *pinned)
{
	const unsigned char *at = addr;
	const struct range *range = range_find(addr);

	*pinned = range != NULL && range->vendor == vendor;
	if (range == NULL || range->kind == RANGE_HOST || range->kind == RANGE_PINNED) {
		*pinned &= range != NULL && length <= (size_t)(range->base + range->size - at);
		return (unsigned char *)(uintptr_t)addr;
	}
	if (range->vendor != vendor || length > (size_t)(range->base + range->size - at))
		return NULL;
	return range->shadow + (at - range->base);
}

EXPORT void *standin_peek(const void *addr)
{
	const struct range *range;
	void *bytes = NULL;

	pthread_mutex_lock(&standin.lock);
	range = range_find(addr);
	if (range != NULL && (range->kind == RANGE_MEMORY || range->kind == RANGE_IMPORT))
		bytes = range->shadow + ((const unsigned char *)addr - range->base);
	pthread_mutex_unlock(&standin.lock);
	return bytes;
}

static size_t rounded(size_t size)
{
	return (size + GRANULE - 1) / GRANULE * GRANULE;
}

/* A range of device memory over the descriptor, which becomes its own. NULL: it can't be mapped. */
static struct range *map(int fd, size_t size)
{
	struct range *range = calloc(1, sizeof(*range));
	struct stat status;

	if (range == NULL || fstat(fd, &status) != 0) {
		free(range);
		return NULL;
	}
	range->fd = fd;
	range->inode = status.st_ino;
	range->size = size;
	range->base = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
	range->shadow = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (range->base != MAP_FAILED && range->shadow != MAP_FAILED)
		return range;
	if (range->base != MAP_FAILED)
		munmap(range->base, size);
	if (range->shadow != MAP_FAILED)
		munmap(range->shadow, size);
	free(range);
	return NULL;
}

static void add(struct range *range, enum range_kind kind, enum lw_gpu_vendor vendor, int device)
{
	static uint64_t ids;

	range->id = ++ids;
	range->kind = kind;
	range->vendor = vendor;
	range->device = device;
	range->next = standin.ranges;
	standin.ranges = range;
}

/* Takes the range of that kind that begins there out. Under the lock. GPU_OK, or a code. */
static int take(enum lw_gpu_vendor vendor, enum range_kind kind, const void *base)
{
	struct range **link = &standin.ranges, *range;

	while (*link != NULL && ((*link)->kind != kind || (*link)->vendor != vendor || (*link)->base != base))
		link = &(*link)->next;
	range = *link;
	if (range == NULL)
		return kind == RANGE_PINNED ? CODE_NOT_PINNED : GPU_INVALID;
	if (stream_touches(range)) {
		fprintf(stderr, "stand-in: memory at %p goes while a copy of it is under way\n", base);
		abort();
	}
	*link = range->next;
	if (kind != RANGE_PINNED)
		munmap(range->base, range->size);
	if (kind == RANGE_MEMORY || kind == RANGE_IMPORT) {
		munmap(range->shadow, range->size);
		close(range->fd);
	}
	free(range);
	return GPU_OK;
}

int gpu_malloc(enum lw_gpu_vendor v, void **out, size_t size)
{
	int fd = memfd_create("stand-in-gpu", MFD_CLOEXEC), code = GPU_NO_MEMORY;
	struct range *range = NULL;

	pthread_mutex_lock(&standin.lock);
	if (fd >= 0 && size > 0 && ftruncate(fd, (off_t)rounded(size)) == 0)
		range = map(fd, rounded(size));
	if (range != NULL) {
		add(range, RANGE_MEMORY, v, standin_current(v));
		*out = range->base;
		code = GPU_OK;
	} else if (fd >= 0) {
		close(fd);
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

static int release(enum lw_gpu_vendor v, enum range_kind kind, const char *entry, void *base)
{
	int code = GPU_OK;

	pthread_mutex_lock(&standin.lock);
	if (entry != NULL)
		code = standin_enter(entry);
	standin_current(v);
	if (code == GPU_OK)
		code = take(v, kind, base);
	else
		take(v, kind, base); /* as a real one that finds an earlier fault: what was asked for is done */
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_free(enum lw_gpu_vendor v, void *memory)
{
	return release(v, RANGE_MEMORY, NULL, memory);
}

int gpu_host_free(enum lw_gpu_vendor v, void *memory)
{
	return release(v, RANGE_HOST, "HostFree", memory);
}

int gpu_host_unregister(enum lw_gpu_vendor v, void *memory)
{
	return release(v, RANGE_PINNED, "HostUnregister", memory);
}

int gpu_ipc_close(enum lw_gpu_vendor v, void *base)
{
	return release(v, RANGE_IMPORT, "IpcCloseMemHandle", base);
}

int gpu_host_alloc(enum lw_gpu_vendor v, void **out, size_t size, unsigned int flags)
{
	struct range *range = calloc(1, sizeof(*range));
	int code;

	(void)flags;
	pthread_mutex_lock(&standin.lock);
	code = standin_enter("HostAlloc");
	if (code == GPU_OK && (range == NULL || size == 0))
		code = GPU_NO_MEMORY;
	if (code == GPU_OK) {
		range->size = rounded(size);
		range->base = mmap(NULL, range->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (range->base == MAP_FAILED)
			code = GPU_NO_MEMORY;
	}
	if (code == GPU_OK) {
		add(range, RANGE_HOST, v, standin_current(v));
		*out = range->base;
	} else {
		free(range);
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_host_register(enum lw_gpu_vendor v, void *memory, size_t size, unsigned int flags)
{
	struct range *range = calloc(1, sizeof(*range));
	unsigned char *base = memory;
	int code;

	(void)flags;
	pthread_mutex_lock(&standin.lock);
	code = standin_enter("HostRegister");
	if (code == GPU_OK && (range == NULL || size == 0 || base == NULL))
		code = GPU_INVALID;
	for (const struct range *other = standin.ranges; code == GPU_OK && other != NULL; other = other->next)
		if (base < other->base + other->size && other->base < base + size)
			code = GPU_PINNED_ALREADY;
	if (code == GPU_OK) {
		range->base = base;
		range->size = size;
		add(range, RANGE_PINNED, v, standin_current(v));
	} else {
		free(range);
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_pointer_get_attributes(enum lw_gpu_vendor v, struct lw_gpu_attributes *out, const void *addr)
{
	const struct range *range;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("PointerGetAttributes");
	standin_current(v);
	range = range_find(addr);
	if (code == GPU_OK) {
		*out = (struct lw_gpu_attributes){.kind = GPU_KIND_UNREGISTERED, .device = -1};
		if (range != NULL && range->vendor == v) {
			out->kind = range->kind == RANGE_HOST || range->kind == RANGE_PINNED ? GPU_KIND_HOST
											     : GPU_KIND_DEVICE;
			out->device = range->device;
		}
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_pointer_get_attribute(enum lw_gpu_vendor v, void *out, int attribute, uint64_t addr)
{
	const struct range *range;
	uint64_t id;
	int code, value = 0;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("PointerGetAttribute");
	range = range_find((const void *)(uintptr_t)addr);
	if (code == GPU_OK && !standin.started[v])
		code = GPU_NOT_STARTED;
	if (code == GPU_OK && (range == NULL || range->vendor != v))
		code = GPU_INVALID;
	if (code == GPU_OK && attribute == GPU_ATTRIBUTE_KIND)
		value = range->kind == RANGE_HOST || range->kind == RANGE_PINNED ? GPU_KIND_HOST : GPU_KIND_DEVICE;
	if (code == GPU_OK && attribute == GPU_ATTRIBUTE_ORDINAL)
		value = range->device;
	if (code == GPU_OK && attribute == GPU_ATTRIBUTE_ID) {
		id = range->id;
		memcpy(out, &id, sizeof(id));
	} else if (code == GPU_OK) {
		memcpy(out, &value, sizeof(value));
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_mem_get_address_range(enum lw_gpu_vendor v, uint64_t *base, size_t *size, uint64_t addr)
{
	const struct range *range;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("MemGetAddressRange");
	range = range_find((const void *)(uintptr_t)addr);
	if (code == GPU_OK && (range == NULL || range->vendor != v))
		code = GPU_INVALID;
	if (code == GPU_OK) {
		*base = (uint64_t)(uintptr_t)range->base;
		*size = range->size;
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

/* Handles ------------------------------------------------------------------------------------------------------------
 */

int gpu_ipc_get(enum lw_gpu_vendor v, struct lw_gpu_handle *out, void *base)
{
	const struct range *range;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("IpcGetMemHandle");
	standin_current(v);
	range = range_find(base);
	if (code == GPU_OK && (range == NULL || range->kind != RANGE_MEMORY || range->vendor != v))
		code = GPU_INVALID;
	if (code == GPU_OK) {
		struct handle handle = {.magic = MAGIC,
					.vendor = (uint32_t)v,
					.pid = (uint32_t)getpid(),
					.fd = range->fd,
					.device = range->device,
					.inode = range->inode,
					.size = range->size};

		memset(out, 0x5a, sizeof(*out));
		memcpy(out->bytes, &handle, sizeof(handle));
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

/* The memory that a handle means, opened; -1: it is there no more. */
static int open_handle(const struct handle *handle)
{
	char path[64];
	struct stat status;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/fd/%d", handle->pid, handle->fd);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0 &&
	    (fstat(fd, &status) != 0 || status.st_ino != handle->inode || (uint64_t)status.st_size != handle->size)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

EXPORT void standin_own_imports(bool allowed)
{
	pthread_mutex_lock(&standin.lock);
	standin.own_imports = allowed;
	pthread_mutex_unlock(&standin.lock);
}

int gpu_ipc_open(enum lw_gpu_vendor v, void **out, struct lw_gpu_handle given, unsigned int flags)
{
	struct range *range = NULL;
	struct handle handle;
	int code, fd = -1;

	memcpy(&handle, given.bytes, sizeof(handle));
	pthread_mutex_lock(&standin.lock);
	code = standin_enter("IpcOpenMemHandle");
	standin_current(v);
	if (code == GPU_OK && (handle.magic != MAGIC || handle.vendor != (uint32_t)v || handle.device < 0 ||
			       handle.device >= standin.devices || flags != GPU_IPC_LAZY_PEER))
		code = CODE_BAD_HANDLE;
	if (code == GPU_OK && handle.pid == (uint32_t)getpid() && !standin.own_imports)
		code = CODE_NO_CONTEXT;
	for (const struct range *other = standin.ranges; code == GPU_OK && other != NULL; other = other->next)
		if (other->kind == RANGE_IMPORT && other->inode == handle.inode)
			code = CODE_ALREADY_MAPPED;
	if (code == GPU_OK) {
		fd = open_handle(&handle);
		range = fd >= 0 ? map(fd, handle.size) : NULL;
		if (range == NULL)
			code = CODE_BAD_HANDLE;
	}
	if (code == GPU_OK) {
		add(range, RANGE_IMPORT, v, handle.device);
		*out = range->base;
	} else if (fd >= 0) {
		close(fd);
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}
