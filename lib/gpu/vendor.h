/* SPDX-License-Identifier: Apache-2.0 */
/* What the vendors' libraries are called, and the entry points that all of them have. Constant; no thread rule.
 *
 * The four runtimes follow one model and differ in names: cudaMalloc, hipMalloc, musaMalloc, mcMalloc. The numbers that
 * are passed and returned (copy kinds, flags, error codes, kinds of memory) are the same in all four; what is known of
 * MUSA and MACA comes from their users' sources, and has been run over a stand-in alone.
 */
#ifndef LW_GPU_VENDOR_H
#define LW_GPU_VENDOR_H

#include <stddef.h>
#include <stdint.h>

#include "lib/gpu/runtime.h"

/* What ...PointerGetAttributes fills in begins like this in all of them; the rest differs, and has room here. */
struct lw_gpu_attributes {
	int kind; /* GPU_KIND_... */
	int device;
	unsigned char rest[248];
};

enum { GPU_KIND_UNREGISTERED = 0, GPU_KIND_HOST = 1, GPU_KIND_DEVICE = 2, GPU_KIND_MANAGED = 3 };

/* Error codes that we tell apart. */
enum {
	GPU_OK = 0,
	GPU_INVALID = 1,
	GPU_NO_MEMORY = 2,
	GPU_NOT_STARTED = 3,
	GPU_UNLOADING = 4,
	GPU_OLD_DRIVER = 35,
	GPU_NO_DEVICE = 100,
	GPU_BAD_DEVICE = 101,
	GPU_NOT_READY = 600,
	GPU_PEER_ALREADY = 704,
	GPU_PINNED_ALREADY = 712,
	GPU_NOT_SUPPORTED = 801,
};

enum {
	GPU_COPY_DEFAULT = 4,        /* the addresses say what is where */
	GPU_STREAM_NON_BLOCKING = 1, /* waits for no default stream */
	GPU_EVENT_NO_TIMING = 2,
	GPU_HOST_PORTABLE = 1, /* pinned for all devices */
	GPU_IPC_LAZY_PEER = 1,
};

/* X(field, name after the vendor's prefix, arguments): the runtime's. */
#define LW_GPU_RUNTIME(X)                                                                                              \
	X(get_device_count, GetDeviceCount, (int *count))                                                              \
	X(get_device, GetDevice, (int *device))                                                                        \
	X(set_device, SetDevice, (int device))                                                                         \
	X(get_last_error, GetLastError, (void))                                                                        \
	X(pointer_get_attributes, PointerGetAttributes, (struct lw_gpu_attributes * out, const void *addr))            \
	X(host_register, HostRegister, (void *memory, size_t size, unsigned int flags))                                \
	X(host_unregister, HostUnregister, (void *memory))                                                             \
	X(stream_create, StreamCreateWithFlags, (void **stream, unsigned int flags))                                   \
	X(stream_destroy, StreamDestroy, (void *stream))                                                               \
	X(event_create, EventCreateWithFlags, (void **event, unsigned int flags))                                      \
	X(event_destroy, EventDestroy, (void *event))                                                                  \
	X(event_record, EventRecord, (void *event, void *stream))                                                      \
	X(event_query, EventQuery, (void *event))                                                                      \
	X(memcpy_async, MemcpyAsync, (void *to, const void *from, size_t length, int kind, void *stream))              \
	X(ipc_get, IpcGetMemHandle, (struct lw_gpu_handle * out, void *base))                                          \
	X(ipc_open, IpcOpenMemHandle, (void **out, struct lw_gpu_handle handle, unsigned int flags))                   \
	X(ipc_close, IpcCloseMemHandle, (void *base))                                                                  \
	X(can_access_peer, DeviceCanAccessPeer, (int *can, int device, int peer))                                      \
	X(enable_peer, DeviceEnablePeerAccess, (int peer, unsigned int flags))

/* The two whose names don't follow the pattern. */
#define LW_GPU_RUNTIME_NAMED(X)                                                                                        \
	X(host_alloc, (void **out, size_t size, unsigned int flags))                                                   \
	X(host_free, (void *memory))

/* X(field, name after the prefix, arguments): the lower interface, which knows contexts; of a library of its own, or of
 * the runtime's. For CUDA and MUSA all of them are there; of the others' the last is all we need. A newer form of a
 * function has _v2 at the end of its name, and is taken where there is one. */
#define LW_GPU_DRIVER(X)                                                                                               \
	X(device_get_count, DeviceGetCount, (int *count))                                                              \
	X(pointer_get_attribute, PointerGetAttribute, (void *out, int attribute, uint64_t addr))                       \
	X(primary_state, DevicePrimaryCtxGetState, (int device, unsigned int *flags, int *active))                     \
	X(primary_retain, DevicePrimaryCtxRetain, (void **context, int device))                                        \
	X(ctx_push, CtxPushCurrent, (void *context))                                                                   \
	X(ctx_pop, CtxPopCurrent, (void **context))                                                                    \
	X(mem_get_address_range, MemGetAddressRange, (uint64_t * base, size_t * size, uint64_t addr))

enum {
	GPU_ATTRIBUTE_KIND = 2,
	GPU_ATTRIBUTE_ID = 7,
	GPU_ATTRIBUTE_MANAGED = 8,
	GPU_ATTRIBUTE_ORDINAL = 9
}; /* of PointerGetAttribute */

struct lw_gpu_names {
	const char *name;
	const char *prefix; /* of the runtime's functions */
	const char *host_alloc, *host_free;
	const char *libraries[5]; /* sonames, the newest first; NULL ends them */
	bool light;               /* it may be loaded into a process that has not done so itself */
	/* soname of the lower interface, whose contexts are entered without a change of the thread's device; NULL: the
	 * runtime has what there is, and to be loaded is to be in use */
	const char *driver;
	const char *driver_prefix;
	const char *package; /* what brings it */
};

extern const struct lw_gpu_names lw_gpu_names[LW_GPU_VENDORS];

#endif
