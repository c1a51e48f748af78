/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in's files share. Everything is under one lock, standin.lock, which work under way holds, too. */
#ifndef STANDIN_INSIDE_H
#define STANDIN_INSIDE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/gpu/vendor.h"
#include "test/standin/standin.h"

#define DEVICES_MAX 8

/* Codes beside those of vendor.h. */
enum {
	CODE_NO_CONTEXT = 201,
	CODE_ALREADY_MAPPED = 208,
	CODE_BAD_HANDLE = 400,
	CODE_ILLEGAL_ADDRESS = 700,
	CODE_NOT_PINNED = 713,
};

/* A range of addresses: memory of a device, an import of it, or pinned memory of the host. */
enum range_kind { RANGE_MEMORY, RANGE_IMPORT, RANGE_HOST, RANGE_PINNED };

struct range {
	struct range *next;
	enum range_kind kind;
	enum lw_gpu_vendor vendor;
	int device;
	unsigned char *base;   /* what is given out */
	unsigned char *shadow; /* where the bytes are */
	size_t size;
	int fd;
	uint64_t inode;
	uint64_t id;
};

struct standin {
	pthread_mutex_t lock;
	int devices;
	unsigned int delay_us, slow_us;
	bool hold;
	bool own_imports;
	struct range *ranges;
	bool started[LW_GPU_VENDORS];
	bool context[LW_GPU_VENDORS][DEVICES_MAX];
	bool peers[LW_GPU_VENDORS][DEVICES_MAX][DEVICES_MAX];
	unsigned int blocked;
	size_t streams, events;
};
extern struct standin standin;

/* entry.c: counts a call; not 0: the fault that it is to return. Under the lock. */
int standin_enter(const char *entry);
/* The current device of this thread, whose context comes into being. Under the lock. */
int standin_current(enum lw_gpu_vendor vendor);

/* memory.c; under the lock. */
struct range *range_find(const void *addr);
/* Where the bytes are; *device whose memory it is, -1: the host's, which sets *pinned. NULL: they reach beyond it. */
unsigned char *range_bytes(enum lw_gpu_vendor vendor, const void *addr, size_t length, bool *pinned);

/* stream.c */
/* Whether work under way touches the range. Under the lock. */
bool stream_touches(const struct range *range);

/* The entry points without their vendor. Each takes the lock. */
int gpu_get_device_count(enum lw_gpu_vendor v, int *count);
int gpu_get_device(enum lw_gpu_vendor v, int *device);
int gpu_set_device(enum lw_gpu_vendor v, int device);
int gpu_get_last_error(enum lw_gpu_vendor v);
int gpu_pointer_get_attributes(enum lw_gpu_vendor v, struct lw_gpu_attributes *out, const void *addr);
int gpu_malloc(enum lw_gpu_vendor v, void **out, size_t size);
int gpu_free(enum lw_gpu_vendor v, void *memory);
int gpu_memcpy(enum lw_gpu_vendor v, void *to, const void *from, size_t length, int kind);
int gpu_host_alloc(enum lw_gpu_vendor v, void **out, size_t size, unsigned int flags);
int gpu_host_free(enum lw_gpu_vendor v, void *memory);
int gpu_host_register(enum lw_gpu_vendor v, void *memory, size_t size, unsigned int flags);
int gpu_host_unregister(enum lw_gpu_vendor v, void *memory);
int gpu_stream_create(enum lw_gpu_vendor v, void **out, unsigned int flags);
int gpu_stream_destroy(enum lw_gpu_vendor v, void *handle);
int gpu_event_create(enum lw_gpu_vendor v, void **out, unsigned int flags);
int gpu_event_destroy(enum lw_gpu_vendor v, void *handle);
int gpu_event_record(enum lw_gpu_vendor v, void *handle, void *stream);
int gpu_event_query(enum lw_gpu_vendor v, void *handle);
int gpu_memcpy_async(enum lw_gpu_vendor v, void *to, const void *from, size_t length, int kind, void *handle);
int gpu_ipc_get(enum lw_gpu_vendor v, struct lw_gpu_handle *out, void *base);
int gpu_ipc_open(enum lw_gpu_vendor v, void **out, struct lw_gpu_handle given, unsigned int flags);
int gpu_ipc_close(enum lw_gpu_vendor v, void *base);
int gpu_can_access_peer(enum lw_gpu_vendor v, int *can, int device, int peer);
int gpu_enable_peer(enum lw_gpu_vendor v, int peer, unsigned int flags);
int gpu_mem_get_address_range(enum lw_gpu_vendor v, uint64_t *base, size_t *size, uint64_t addr);
int gpu_device_get_count(enum lw_gpu_vendor v, int *count);
int gpu_pointer_get_attribute(enum lw_gpu_vendor v, void *out, int attribute, uint64_t addr);
int gpu_primary_state(enum lw_gpu_vendor v, int device, unsigned int *flags, int *active);
int gpu_primary_retain(enum lw_gpu_vendor v, void **context, int device);
int gpu_ctx_push(enum lw_gpu_vendor v, void *context);
int gpu_ctx_pop(enum lw_gpu_vendor v, void **context);

#endif
