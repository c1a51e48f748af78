/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points by their vendors' names; faults and counts; devices and contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/standin/inside.h"

#define EXPORT __attribute__((visibility("default")))
#define NEST 8

struct standin standin = {.lock = PTHREAD_MUTEX_INITIALIZER, .devices = 2};

static const char *const entries[] = {
	"GetDeviceCount",
	"GetDevice",
	"SetDevice",
	"PointerGetAttributes",
	"HostAlloc",
	"HostFree",
	"HostRegister",
	"HostUnregister",
	"StreamCreateWithFlags",
	"StreamDestroy",
	"EventCreateWithFlags",
	"EventDestroy",
	"EventRecord",
	"EventQuery",
	"MemcpyAsync",
	"IpcGetMemHandle",
	"IpcOpenMemHandle",
	"IpcCloseMemHandle",
	"DeviceCanAccessPeer",
	"DeviceEnablePeerAccess",
	"MemGetAddressRange",
	"DeviceGetCount",
	"PointerGetAttribute",
	"DevicePrimaryCtxGetState",
	"DevicePrimaryCtxRetain",
	"CtxPushCurrent",
	"CtxPopCurrent",
	"Copy",
};
#define ENTRIES (sizeof(entries) / sizeof(entries[0]))

static unsigned int calls[ENTRIES];
static struct {
	size_t entry;
	unsigned int nth; /* 0: every call */
	int code;         /* 0: none */
	bool met;
} fault;

/* The thread's device, and the contexts pushed over it, each as 1 + its device. */
static _Thread_local int current[LW_GPU_VENDORS];
static _Thread_local int pushed[LW_GPU_VENDORS][NEST], depth[LW_GPU_VENDORS];

static size_t number_of(const char *entry)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (strcmp(entries[i], entry) == 0)
			return i;
	fprintf(stderr, "stand-in: there is no entry point %s\n", entry);
	abort();
}

int standin_enter(const char *entry)
{
	size_t number = number_of(entry);

	calls[number]++;
	if (fault.code == 0 || fault.entry != number)
		return GPU_OK;
	if (fault.nth > 1) {
		fault.nth--;
		return GPU_OK;
	}
	fault.met = true;
	if (fault.nth == 1) {
		int code = fault.code;

		fault.code = 0;
		return code;
	}
	return fault.code;
}

EXPORT void standin_fail(const char *entry, unsigned int nth, int code)
{
	pthread_mutex_lock(&standin.lock);
	fault.entry = number_of(entry);
	fault.nth = nth;
	fault.code = code;
	fault.met = false;
	pthread_mutex_unlock(&standin.lock);
}

EXPORT bool standin_failed(void)
{
	bool met;

	pthread_mutex_lock(&standin.lock);
	met = fault.met;
	pthread_mutex_unlock(&standin.lock);
	return met;
}

EXPORT unsigned int standin_calls(const char *entry)
{
	unsigned int count;

	pthread_mutex_lock(&standin.lock);
	count = calls[number_of(entry)];
	pthread_mutex_unlock(&standin.lock);
	return count;
}

EXPORT const char *standin_entry(size_t number)
{
	return number < ENTRIES ? entries[number] : NULL;
}

EXPORT size_t standin_live(const char *kind)
{
	static const char *const kinds[] = {"memory", "import", "host", "pinned"};
	size_t count = 0;

	pthread_mutex_lock(&standin.lock);
	for (const struct range *range = standin.ranges; range != NULL; range = range->next)
		count += strcmp(kinds[range->kind], kind) == 0;
	if (strcmp(kind, "stream") == 0)
		count = standin.streams;
	if (strcmp(kind, "event") == 0)
		count = standin.events;
	for (int v = 0; v < LW_GPU_VENDORS && strcmp(kind, "context") == 0; v++)
		for (int device = 0; device < DEVICES_MAX; device++)
			count += standin.context[v][device];
	pthread_mutex_unlock(&standin.lock);
	return count;
}

EXPORT unsigned int standin_blocked(void)
{
	unsigned int count;

	pthread_mutex_lock(&standin.lock);
	count = standin.blocked;
	pthread_mutex_unlock(&standin.lock);
	return count;
}

EXPORT void standin_delay(unsigned int us)
{
	pthread_mutex_lock(&standin.lock);
	standin.delay_us = us;
	pthread_mutex_unlock(&standin.lock);
}

EXPORT void standin_slow(unsigned int us)
{
	pthread_mutex_lock(&standin.lock);
	standin.slow_us = us;
	pthread_mutex_unlock(&standin.lock);
}

__attribute__((constructor)) static void read_environment(void)
{
	const char *at = getenv("STANDIN_GPU");
	char entry[40];
	unsigned int nth;
	int code;

	for (; at != NULL && *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
		if (strncmp(at, "devices=", 8) == 0 && atoi(at + 8) > 0 && atoi(at + 8) <= DEVICES_MAX)
			standin.devices = atoi(at + 8);
		else if (strncmp(at, "delay=", 6) == 0)
			standin.delay_us = (unsigned int)atoi(at + 6);
		else if (strncmp(at, "slow=", 5) == 0)
			standin.slow_us = (unsigned int)atoi(at + 5);
		else if (sscanf(at, "fail=%39[A-Za-z]:%u:%d", entry, &nth, &code) == 3)
			standin_fail(entry, nth, code);
		else
			fprintf(stderr, "stand-in: STANDIN_GPU has \"%s\", which is nothing\n", at);
	}
}

/* Devices and contexts ------------------------------------------------------------------------------------------------
 */

int standin_current(enum lw_gpu_vendor vendor)
{
	int device = depth[vendor] > 0 ? pushed[vendor][depth[vendor] - 1] - 1 : current[vendor];

	standin.started[vendor] = true;
	standin.context[vendor][device] = true;
	return device;
}

int gpu_get_device_count(enum lw_gpu_vendor v, int *count)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("GetDeviceCount");
	standin.started[v] = true;
	if (code == GPU_OK)
		*count = standin.devices;
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_get_device(enum lw_gpu_vendor v, int *device)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("GetDevice");
	if (code == GPU_OK)
		*device = depth[v] > 0 ? pushed[v][depth[v] - 1] - 1 : current[v];
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_set_device(enum lw_gpu_vendor v, int device)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("SetDevice");
	if (code == GPU_OK && (device < 0 || device >= standin.devices))
		code = GPU_BAD_DEVICE;
	if (code == GPU_OK) {
		current[v] = device;
		standin.started[v] = true;
		standin.context[v][device] = true;
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_get_last_error(enum lw_gpu_vendor v)
{
	(void)v;
	return GPU_OK;
}

int gpu_can_access_peer(enum lw_gpu_vendor v, int *can, int device, int peer)
{
	int code;

	(void)v;
	pthread_mutex_lock(&standin.lock);
	code = standin_enter("DeviceCanAccessPeer");
	if (code == GPU_OK && (device < 0 || device >= standin.devices || peer < 0 || peer >= standin.devices))
		code = GPU_BAD_DEVICE;
	if (code == GPU_OK)
		*can = device != peer;
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_enable_peer(enum lw_gpu_vendor v, int peer, unsigned int flags)
{
	int code, device;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("DeviceEnablePeerAccess");
	device = standin_current(v);
	if (code == GPU_OK && (peer < 0 || peer >= standin.devices || peer == device || flags != 0))
		code = GPU_BAD_DEVICE;
	else if (code == GPU_OK && standin.peers[v][device][peer])
		code = GPU_PEER_ALREADY;
	if (code == GPU_OK)
		standin.peers[v][device][peer] = true;
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_device_get_count(enum lw_gpu_vendor v, int *count)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("DeviceGetCount");
	if (code == GPU_OK && !standin.started[v])
		code = GPU_NOT_STARTED;
	if (code == GPU_OK)
		*count = standin.devices;
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_primary_state(enum lw_gpu_vendor v, int device, unsigned int *flags, int *active)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("DevicePrimaryCtxGetState");
	if (code == GPU_OK && !standin.started[v])
		code = GPU_NOT_STARTED;
	if (code == GPU_OK && (device < 0 || device >= standin.devices))
		code = GPU_BAD_DEVICE;
	if (code == GPU_OK) {
		*flags = 0;
		*active = standin.context[v][device];
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_primary_retain(enum lw_gpu_vendor v, void **context, int device)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("DevicePrimaryCtxRetain");
	if (code == GPU_OK && !standin.started[v])
		code = GPU_NOT_STARTED;
	if (code == GPU_OK && (device < 0 || device >= standin.devices))
		code = GPU_BAD_DEVICE;
	if (code == GPU_OK) {
		standin.context[v][device] = true;
		*context = (void *)(uintptr_t)(device + 1);
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_ctx_push(enum lw_gpu_vendor v, void *context)
{
	uintptr_t number = (uintptr_t)context;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("CtxPushCurrent");
	if (code == GPU_OK && (number == 0 || number > (uintptr_t)standin.devices || depth[v] == NEST))
		code = CODE_NO_CONTEXT;
	if (code == GPU_OK)
		pushed[v][depth[v]++] = (int)number;
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_ctx_pop(enum lw_gpu_vendor v, void **context)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("CtxPopCurrent");
	if (depth[v] == 0)
		code = CODE_NO_CONTEXT;
	else
		*context = (void *)(uintptr_t)
			pushed[v][--depth[v]]; /* also when it is to fail: nothing else could be done */
	pthread_mutex_unlock(&standin.lock);
	return code;
}

/* The names ----------------------------------------------------------------------------------------------------------
 */

#define NAME1(prefix, vendor, field, name, type, arg)                                                                  \
	EXPORT int prefix##name(type arg);                                                                             \
	EXPORT int prefix##name(type arg)                                                                              \
	{                                                                                                              \
		return gpu_##field(vendor, arg);                                                                       \
	}
#define NAME2(prefix, vendor, field, name, type1, arg1, type2, arg2)                                                   \
	EXPORT int prefix##name(type1 arg1, type2 arg2);                                                               \
	EXPORT int prefix##name(type1 arg1, type2 arg2)                                                                \
	{                                                                                                              \
		return gpu_##field(vendor, arg1, arg2);                                                                \
	}
#define NAME3(prefix, vendor, field, name, type1, arg1, type2, arg2, type3, arg3)                                      \
	EXPORT int prefix##name(type1 arg1, type2 arg2, type3 arg3);                                                   \
	EXPORT int prefix##name(type1 arg1, type2 arg2, type3 arg3)                                                    \
	{                                                                                                              \
		return gpu_##field(vendor, arg1, arg2, arg3);                                                          \
	}

#define RUNTIME(prefix, vendor)                                                                                        \
	NAME1(prefix, vendor, get_device_count, GetDeviceCount, int *, count)                                          \
	NAME1(prefix, vendor, get_device, GetDevice, int *, device)                                                    \
	NAME1(prefix, vendor, set_device, SetDevice, int, device)                                                      \
	NAME2(prefix, vendor, pointer_get_attributes, PointerGetAttributes, struct lw_gpu_attributes *, out,           \
	      const void *, addr)                                                                                      \
	NAME2(prefix, vendor, malloc, Malloc, void **, out, size_t, size)                                              \
	NAME1(prefix, vendor, free, Free, void *, memory)                                                              \
	NAME3(prefix, vendor, host_register, HostRegister, void *, memory, size_t, size, unsigned int, flags)          \
	NAME1(prefix, vendor, host_unregister, HostUnregister, void *, memory)                                         \
	NAME2(prefix, vendor, stream_create, StreamCreateWithFlags, void **, stream, unsigned int, flags)              \
	NAME1(prefix, vendor, stream_destroy, StreamDestroy, void *, stream)                                           \
	NAME2(prefix, vendor, event_create, EventCreateWithFlags, void **, event, unsigned int, flags)                 \
	NAME1(prefix, vendor, event_destroy, EventDestroy, void *, event)                                              \
	NAME2(prefix, vendor, event_record, EventRecord, void *, event, void *, stream)                                \
	NAME1(prefix, vendor, event_query, EventQuery, void *, event)                                                  \
	NAME2(prefix, vendor, ipc_get, IpcGetMemHandle, struct lw_gpu_handle *, out, void *, base)                     \
	NAME3(prefix, vendor, ipc_open, IpcOpenMemHandle, void **, out, struct lw_gpu_handle, handle, unsigned int,    \
	      flags)                                                                                                   \
	NAME1(prefix, vendor, ipc_close, IpcCloseMemHandle, void *, base)                                              \
	NAME3(prefix, vendor, can_access_peer, DeviceCanAccessPeer, int *, can, int, device, int, peer)                \
	NAME2(prefix, vendor, enable_peer, DeviceEnablePeerAccess, int, peer, unsigned int, flags)                     \
	EXPORT int prefix##GetLastError(void);                                                                         \
	EXPORT int prefix##GetLastError(void)                                                                          \
	{                                                                                                              \
		return gpu_get_last_error(vendor);                                                                     \
	}                                                                                                              \
	EXPORT int prefix##MemcpyAsync(void *to, const void *from, size_t length, int kind, void *stream);             \
	EXPORT int prefix##MemcpyAsync(void *to, const void *from, size_t length, int kind, void *stream)              \
	{                                                                                                              \
		return gpu_memcpy_async(vendor, to, from, length, kind, stream);                                       \
	}                                                                                                              \
	EXPORT int prefix##Memcpy(void *to, const void *from, size_t length, int kind);                                \
	EXPORT int prefix##Memcpy(void *to, const void *from, size_t length, int kind)                                 \
	{                                                                                                              \
		return gpu_memcpy(vendor, to, from, length, kind);                                                     \
	}

#define HOST(prefix, vendor, alloc, free)                                                                              \
	NAME3(prefix, vendor, host_alloc, alloc, void **, out, size_t, size, unsigned int, flags)                      \
	NAME1(prefix, vendor, host_free, free, void *, memory)

#define RANGE(prefix, vendor, name)                                                                                    \
	NAME3(prefix, vendor, mem_get_address_range, name, uint64_t *, base, size_t *, size, uint64_t, addr)

#define DRIVER(prefix, vendor)                                                                                         \
	RANGE(prefix, vendor, MemGetAddressRange_v2)                                                                   \
	RANGE(prefix, vendor, MemGetAddressRange)                                                                      \
	NAME1(prefix, vendor, device_get_count, DeviceGetCount, int *, count)                                          \
	NAME3(prefix, vendor, pointer_get_attribute, PointerGetAttribute, void *, out, int, attribute, uint64_t, addr) \
	NAME3(prefix, vendor, primary_state, DevicePrimaryCtxGetState, int, device, unsigned int *, flags, int *,      \
	      active)                                                                                                  \
	NAME2(prefix, vendor, primary_retain, DevicePrimaryCtxRetain, void **, context, int, device)                   \
	NAME1(prefix, vendor, ctx_push, CtxPushCurrent_v2, void *, context)                                            \
	NAME1(prefix, vendor, ctx_pop, CtxPopCurrent_v2, void **, context)

RUNTIME(cuda, LW_GPU_CUDA)
HOST(cuda, LW_GPU_CUDA, HostAlloc, FreeHost)
DRIVER(cu, LW_GPU_CUDA)
RUNTIME(hip, LW_GPU_HIP)
HOST(hip, LW_GPU_HIP, HostMalloc, HostFree)
RANGE(hip, LW_GPU_HIP, MemGetAddressRange)
RUNTIME(musa, LW_GPU_MUSA)
HOST(musa, LW_GPU_MUSA, HostAlloc, FreeHost)
DRIVER(mu, LW_GPU_MUSA)
RUNTIME(mc, LW_GPU_MACA)
HOST(mc, LW_GPU_MACA, MallocHost, FreeHost)
RANGE(mc, LW_GPU_MACA, MemGetAddressRange)
