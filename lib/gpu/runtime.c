/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/gpu/runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "lib/gpu/vendor.h"

#define FREE_TRIES 3 /* to enter a device for those who give something back */

struct lw_gpu {
	enum lw_gpu_vendor vendor;
	const struct lw_gpu_names *names;
	void *library;
	char file[256];
#define X(field, name, arguments) int(*field) arguments;
	LW_GPU_RUNTIME(X)
#undef X
#define X(field, arguments) int(*field) arguments;
	LW_GPU_RUNTIME_NAMED(X)
#undef X
	/* Looked for when the driver's library is in the process; NULL before, or where it has none. */
#define X(field, name, arguments) int(*_Atomic field) arguments;
	LW_GPU_DRIVER(X)
#undef X
	_Atomic(void *) context[LW_GPU_DEVICES]; /* held from the first guard on, as the runtime itself holds them */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lw_gpu runtimes[LW_GPU_VENDORS];
static _Atomic(const struct lw_gpu *) opened[LW_GPU_VENDORS];

const char *lw_gpu_vendor_name(enum lw_gpu_vendor vendor)
{
	return lw_gpu_names[vendor].name;
}

const struct lw_gpu *lw_gpu_opened(enum lw_gpu_vendor vendor)
{
	return atomic_load_explicit(&opened[vendor], memory_order_acquire);
}

enum lw_gpu_vendor lw_gpu_vendor_of(const struct lw_gpu *gpu)
{
	return gpu->vendor;
}

const char *lw_gpu_library(const struct lw_gpu *gpu)
{
	return gpu->file;
}

/* Opening -------------------------------------------------------------------------------------------------------------
 */

static void *find(void *library, const char *prefix, const char *name, const char *suffix)
{
	char symbol[80];

	snprintf(symbol, sizeof(symbol), "%s%s%s", prefix, name, suffix);
	return dlsym(library, symbol);
}

/* The runtime's functions. NULL, or the name of the first that is missing. */
static const char *find_runtime(struct lw_gpu *gpu)
{
	void *symbol;

#define X(field, name, arguments)                                                                                      \
	symbol = find(gpu->library, gpu->names->prefix, #name, "");                                                    \
	if (symbol == NULL)                                                                                            \
		return #name;                                                                                          \
	memcpy(&gpu->field, &symbol, sizeof(symbol));
	LW_GPU_RUNTIME(X)
#undef X
#define X(field, arguments)                                                                                            \
	symbol = dlsym(gpu->library, gpu->names->field);                                                               \
	if (symbol == NULL)                                                                                            \
		return gpu->names->field;                                                                              \
	memcpy(&gpu->field, &symbol, sizeof(symbol));
	LW_GPU_RUNTIME_NAMED(X)
#undef X
	return NULL;
}

/* The lower interface's functions, if its library is in the process by now. Any thread, several at once: they find the
 * same. */
static bool find_driver(const struct lw_gpu *seen)
{
	struct lw_gpu *gpu = &runtimes[seen->vendor];
	const char *prefix = gpu->names->driver_prefix;
	void *library = gpu->library, *symbol;

	if (atomic_load_explicit(&gpu->mem_get_address_range, memory_order_acquire) != NULL)
		return true;
	if (find(library, prefix, "MemGetAddressRange", "") == NULL && gpu->names->driver != NULL)
		library = dlopen(gpu->names->driver, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
	if (library == NULL)
		return false;
#define X(field, name, arguments)                                                                                      \
	{                                                                                                              \
		int(*function) arguments;                                                                              \
                                                                                                                       \
		symbol = find(library, prefix, #name, "_v2");                                                          \
		if (symbol == NULL)                                                                                    \
			symbol = find(library, prefix, #name, "");                                                     \
		memcpy(&function, &symbol, sizeof(symbol));                                                            \
		atomic_store_explicit(&gpu->field, function, memory_order_release);                                    \
	}
	LW_GPU_DRIVER(X) /* whoever finds the last one finds the others, too */
#undef X
	return symbol != NULL;
}

/* Loads the file, if that may be. NULL with the reason. */
static void *load(const struct lw_gpu_names *names, const char *library, const char **file, char *why, size_t why_size)
{
	void *handle = NULL;

	if (library != NULL && library[0] != '\0') {
		*file = library;
		handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
		if (handle == NULL)
			snprintf(why, why_size, "%s can't be loaded: %s; see the setting %s_library", library,
				 dlerror(), names->name);
		return handle;
	}
	for (int may_load = 0; handle == NULL && may_load <= (names->light ? 1 : 0); may_load++)
		for (const char *const *soname = names->libraries; handle == NULL && *soname != NULL; soname++) {
			*file = *soname;
			handle = dlopen(*soname, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE | (may_load ? 0 : RTLD_NOLOAD));
		}
	if (handle == NULL && names->light)
		snprintf(why, why_size, "there is no %s; install %s, or name the file in the setting %s_library",
			 names->libraries[0], names->package, names->name);
	else if (handle == NULL)
		snprintf(why, why_size, "the process has not loaded %s (%s); see the setting %s_library",
			 names->libraries[0], names->package, names->name);
	return handle;
}

/* Under the lock. */
static int open_runtime(struct lw_gpu *gpu, enum lw_gpu_vendor vendor, const char *library, char *why, size_t why_size)
{
	const char *file = NULL, *missing;

	gpu->vendor = vendor;
	gpu->names = &lw_gpu_names[vendor];
	gpu->library = load(gpu->names, library, &file, why, why_size);
	if (gpu->library == NULL)
		return -ENOENT;
	missing = find_runtime(gpu);
	if (missing != NULL) {
		snprintf(why, why_size, "%s has no %s: it is too old, or no runtime of %s", file, missing,
			 gpu->names->name);
		dlclose(gpu->library);
		gpu->library = NULL;
		return -ENOTSUP;
	}
	snprintf(gpu->file, sizeof(gpu->file), "%s", file);
	atomic_store_explicit(&opened[vendor], gpu, memory_order_release);
	return 0;
}

int lw_gpu_open(enum lw_gpu_vendor vendor, const char *library, const struct lw_gpu **out, char *why, size_t why_size)
{
	struct lw_gpu *gpu = &runtimes[vendor];
	int error = 0;

	pthread_mutex_lock(&lock);
	if (gpu->library == NULL) {
		error = open_runtime(gpu, vendor, library, why, why_size);
	} else if (library != NULL && library[0] != '\0' && strcmp(library, gpu->file) != 0) {
		snprintf(why, why_size, "the process uses %s already, and can't use %s beside it", gpu->file, library);
		error = -EBUSY;
	}
	pthread_mutex_unlock(&lock);
	if (error == 0)
		*out = gpu;
	return error;
}

/* Errors --------------------------------------------------------------------------------------------------------------
 */

static int errno_of(int code)
{
	switch (code) {
	case GPU_OK:
		return 0;
	case GPU_INVALID:
		return -EINVAL;
	case GPU_NO_MEMORY:
		return -ENOMEM;
	case GPU_NOT_STARTED:
	case GPU_UNLOADING:
	case GPU_OLD_DRIVER:
	case GPU_NO_DEVICE:
	case GPU_BAD_DEVICE:
		return -ENODEV;
	case GPU_NOT_SUPPORTED:
		return -ENOTSUP;
	case GPU_PINNED_ALREADY:
		return -EEXIST;
	default:
		return -EIO;
	}
}

/* What a call of the runtime's returned. It keeps a failure for the thread's next GetLastError, which is not meant for
 * the application: this takes it away. */
static int result(const struct lw_gpu *gpu, int code)
{
	if (code != GPU_OK)
		gpu->get_last_error();
	return errno_of(code);
}

/* What there is ------------------------------------------------------------------------------------------------------
 */

/* 1: the process has started it; 0: it has not; a negative errno: nobody can tell. */
static int is_started(const struct lw_gpu *gpu)
{
	int (*device_get_count)(int *count);
	int count, code;

	if (gpu->names->driver == NULL)
		return 1;
	if (!find_driver(gpu))
		return 0;
	device_get_count = atomic_load_explicit(&gpu->device_get_count, memory_order_relaxed);
	code = device_get_count != NULL ? device_get_count(&count) : GPU_NOT_STARTED;
	return code == GPU_OK ? 1 : code == GPU_NOT_STARTED || code == GPU_NO_DEVICE ? 0 : errno_of(code);
}

bool lw_gpu_in_use(const struct lw_gpu *gpu)
{
	return is_started(gpu) > 0;
}

int lw_gpu_used_device(const struct lw_gpu *gpu)
{
	int (*state)(int device, unsigned int *flags, int *active);
	int count = 0, active, device;
	unsigned int flags;

	if (!lw_gpu_in_use(gpu))
		return -1;
	if (gpu->names->driver == NULL) {
		if (result(gpu, gpu->get_device(&device)) != 0)
			return -1;
		return device >= 0 && device < LW_GPU_DEVICES ? device : -1;
	}
	state = atomic_load_explicit(&gpu->primary_state, memory_order_relaxed);
	if (state == NULL || atomic_load_explicit(&gpu->device_get_count, memory_order_relaxed)(&count) != GPU_OK)
		return -1;
	for (device = 0; device < count && device < LW_GPU_DEVICES; device++)
		if (state(device, &flags, &active) == GPU_OK && active != 0)
			return device;
	return -1;
}

bool lw_gpu_is_pinned(const struct lw_gpu *gpu, const void *addr)
{
	struct lw_gpu_attributes attributes = {.kind = GPU_KIND_UNREGISTERED};

	return result(gpu, gpu->pointer_get_attributes(&attributes, addr)) == 0 && attributes.kind == GPU_KIND_HOST;
}

int lw_gpu_devices(const struct lw_gpu *gpu, int *count)
{
	int found = 0, error = result(gpu, gpu->get_device_count(&found));

	if (error != 0 || found <= 0)
		return error != 0 ? error : -ENODEV;
	*count = found < LW_GPU_DEVICES ? found : LW_GPU_DEVICES;
	return 0;
}

/* The device that an address is on, asked of the lower interface, which starts nothing. -ENOENT: of none. */
static int device_by_driver(const struct lw_gpu *gpu, uint64_t addr, int *device)
{
	int (*get)(void *out, int attribute, uint64_t of) =
		atomic_load_explicit(&gpu->pointer_get_attribute, memory_order_relaxed);
	unsigned int kind = 0, managed = 0;
	int code = get != NULL ? get(&kind, GPU_ATTRIBUTE_KIND, addr) : GPU_NOT_SUPPORTED;

	/* What can't be told is no word for "the host's": the CPU would touch it. */
	if (code != GPU_OK && code != GPU_INVALID)
		return errno_of(code);
	if (code != GPU_OK || kind != GPU_KIND_DEVICE ||
	    (get(&managed, GPU_ATTRIBUTE_MANAGED, addr) == GPU_OK && managed != 0))
		return -ENOENT;
	return get(device, GPU_ATTRIBUTE_ORDINAL, addr) == GPU_OK ? 0 : -EIO;
}

/* The same of the runtime. */
static int device_by_runtime(const struct lw_gpu *gpu, const void *addr, int *device)
{
	struct lw_gpu_attributes attributes = {.kind = GPU_KIND_UNREGISTERED};
	int error = result(gpu, gpu->pointer_get_attributes(&attributes, addr));

	if (error == -EINVAL || error == -ENODEV || (error == 0 && attributes.kind != GPU_KIND_DEVICE))
		return -ENOENT;
	*device = attributes.device;
	return error;
}

/* What tells an allocation from later ones at the same place; 0: nobody can tell. */
static uint64_t id_of(const struct lw_gpu *gpu, uint64_t addr)
{
	int (*get)(void *out, int attribute, uint64_t of) =
		atomic_load_explicit(&gpu->pointer_get_attribute, memory_order_relaxed);
	unsigned long long id = 0;

	return get != NULL && get(&id, GPU_ATTRIBUTE_ID, addr) == GPU_OK ? id : 0;
}

static int find_in(const struct lw_gpu *gpu, const void *addr, struct lw_gpu_memory *out)
{
	struct lw_gpu_memory memory = {.gpu = gpu};
	uint64_t at = (uint64_t)(uintptr_t)addr;
	int (*range)(uint64_t * base, size_t * size, uint64_t of);
	struct lw_gpu_guard guard;
	size_t size = 0;
	int error = is_started(gpu);

	if (error <= 0)
		return error == 0 ? -ENOENT : error;
	error = gpu->names->driver != NULL ? device_by_driver(gpu, at, &memory.device)
					   : device_by_runtime(gpu, addr, &memory.device);
	if (error != 0)
		return error;
	if (memory.device < 0 || memory.device >= LW_GPU_DEVICES || !find_driver(gpu))
		return -ENOTSUP;
	error = lw_gpu_enter(gpu, memory.device, &guard);
	if (error != 0)
		return error;
	range = atomic_load_explicit(&gpu->mem_get_address_range, memory_order_relaxed);
	error = range(&memory.base, &size, at) == GPU_OK ? 0 : -ENOTSUP;
	lw_gpu_leave(&guard);
	memory.length = size;
	memory.id = id_of(gpu, at);
	if (error == 0 && (at < memory.base || at - memory.base >= size))
		error = -EIO;
	if (error == 0)
		*out = memory;
	return error;
}

int lw_gpu_find(const void *addr, struct lw_gpu_memory *out)
{
	int error = -ENOENT;

	for (int i = 0; i < LW_GPU_VENDORS && error == -ENOENT; i++) {
		const struct lw_gpu *gpu = lw_gpu_opened((enum lw_gpu_vendor)i);

		if (gpu != NULL)
			error = find_in(gpu, addr, out);
	}
	return error;
}

/* Guards -------------------------------------------------------------------------------------------------------------
 */

/* The device's context of which the runtime itself makes use, held once a process. */
static int context_of(const struct lw_gpu *seen, int device, void **out)
{
	struct lw_gpu *gpu = &runtimes[seen->vendor];
	int (*retain)(void **context, int device) = atomic_load_explicit(&gpu->primary_retain, memory_order_relaxed);
	void *context = atomic_load_explicit(&gpu->context[device], memory_order_acquire);
	int error;

	if (context == NULL) {
		pthread_mutex_lock(&lock);
		context = atomic_load_explicit(&gpu->context[device], memory_order_relaxed);
		error = context == NULL ? errno_of(retain(&context, device)) : 0;
		if (error == 0)
			atomic_store_explicit(&gpu->context[device], context, memory_order_release);
		pthread_mutex_unlock(&lock);
		if (error != 0)
			return error;
	}
	*out = context;
	return 0;
}

int lw_gpu_enter_to_free(const struct lw_gpu *gpu, int device, struct lw_gpu_guard *guard)
{
	int error = -EIO;

	for (int i = 0; i < FREE_TRIES && error != 0; i++)
		error = lw_gpu_enter(gpu, device, guard);
	return error;
}

int lw_gpu_enter(const struct lw_gpu *gpu, int device, struct lw_gpu_guard *guard)
{
	int (*push)(void *context);
	void *context;
	int before, error;

	*guard = (struct lw_gpu_guard){.gpu = gpu, .before = -1};
	if (device < 0 || device >= LW_GPU_DEVICES)
		return -ENODEV;
	if (gpu->names->driver != NULL && find_driver(gpu)) {
		push = atomic_load_explicit(&gpu->ctx_push, memory_order_relaxed);
		if (push == NULL || atomic_load_explicit(&gpu->primary_retain, memory_order_relaxed) == NULL ||
		    atomic_load_explicit(&gpu->ctx_pop, memory_order_relaxed) == NULL)
			return -ENOTSUP;
		error = context_of(gpu, device, &context);
		if (error == 0)
			error = errno_of(push(context));
		guard->pushed = error == 0;
		return error;
	}
	error = result(gpu, gpu->get_device(&before));
	if (error != 0 || before == device)
		return error;
	error = result(gpu, gpu->set_device(device));
	if (error == 0)
		guard->before = before;
	return error;
}

void lw_gpu_leave(const struct lw_gpu_guard *guard)
{
	const struct lw_gpu *gpu = guard->gpu;
	void *context;

	if (guard->pushed)
		atomic_load_explicit(&gpu->ctx_pop, memory_order_relaxed)(&context);
	else if (guard->before >= 0)
		result(gpu, gpu->set_device(guard->before));
}

/* Streams, events, memory ---------------------------------------------------------------------------------------------
 */

int lw_gpu_stream_create(const struct lw_gpu *gpu, int device, struct lw_gpu_stream *out)
{
	void *handle;
	int error = result(gpu, gpu->stream_create(&handle, GPU_STREAM_NON_BLOCKING));

	if (error == 0)
		*out = (struct lw_gpu_stream){.gpu = gpu, .device = device, .handle = handle};
	return error;
}

void lw_gpu_stream_destroy(struct lw_gpu_stream *stream)
{
	if (stream->gpu != NULL)
		result(stream->gpu, stream->gpu->stream_destroy(stream->handle));
	stream->gpu = NULL;
}

int lw_gpu_copy(const struct lw_gpu_stream *stream, void *to, const void *from, uint64_t length)
{
	return result(stream->gpu,
		      stream->gpu->memcpy_async(to, from, (size_t)length, GPU_COPY_DEFAULT, stream->handle));
}

int lw_gpu_event_create(const struct lw_gpu *gpu, struct lw_gpu_event *out)
{
	void *handle;
	int error = result(gpu, gpu->event_create(&handle, GPU_EVENT_NO_TIMING));

	if (error == 0)
		*out = (struct lw_gpu_event){.gpu = gpu, .handle = handle};
	return error;
}

void lw_gpu_event_destroy(struct lw_gpu_event *event)
{
	if (event->gpu != NULL)
		result(event->gpu, event->gpu->event_destroy(event->handle));
	event->gpu = NULL;
}

int lw_gpu_event_record(const struct lw_gpu_event *event, const struct lw_gpu_stream *stream)
{
	return result(event->gpu, event->gpu->event_record(event->handle, stream->handle));
}

int lw_gpu_event_query(const struct lw_gpu_event *event)
{
	int code = event->gpu->event_query(event->handle);

	if (code == GPU_OK)
		return 1;
	/* "Not ready" is no failure, but kept for GetLastError all the same by some. */
	return code == GPU_NOT_READY ? (event->gpu->get_last_error(), 0) : result(event->gpu, code);
}

int lw_gpu_host_alloc(const struct lw_gpu *gpu, size_t size, void **out)
{
	void *memory;
	int error = result(gpu, gpu->host_alloc(&memory, size, GPU_HOST_PORTABLE));

	if (error == 0)
		*out = memory;
	return error;
}

void lw_gpu_host_free(const struct lw_gpu *gpu, void *memory)
{
	if (memory != NULL)
		result(gpu, gpu->host_free(memory));
}

int lw_gpu_host_pin(const struct lw_gpu *gpu, void *memory, size_t size)
{
	return result(gpu, gpu->host_register(memory, size, GPU_HOST_PORTABLE));
}

void lw_gpu_host_unpin(const struct lw_gpu *gpu, void *memory)
{
	result(gpu, gpu->host_unregister(memory));
}

int lw_gpu_ipc_get(const struct lw_gpu *gpu, const void *base, struct lw_gpu_handle *out)
{
	struct lw_gpu_handle handle;
	void *at = (void *)(uintptr_t)base; /* the runtime's prototype has no const; it does not write there */
	int error = result(gpu, gpu->ipc_get(&handle, at));

	if (error == 0)
		*out = handle;
	return error == -EINVAL ? -ENOTSUP : error; /* what it says of memory from pools, or of the VMM interface */
}

int lw_gpu_ipc_open(const struct lw_gpu *gpu, const struct lw_gpu_handle *handle, void **out)
{
	void *base;
	int error = result(gpu, gpu->ipc_open(&base, *handle, GPU_IPC_LAZY_PEER));

	if (error == 0)
		*out = base;
	return error;
}

void lw_gpu_ipc_close(const struct lw_gpu *gpu, void *base)
{
	if (base != NULL)
		result(gpu, gpu->ipc_close(base));
}

int lw_gpu_peer_enable(const struct lw_gpu *gpu, int device, int peer)
{
	int can = 0, code, error;

	if (device == peer)
		return 0;
	error = result(gpu, gpu->can_access_peer(&can, device, peer));
	if (error != 0 || !can)
		return error != 0 ? error : -ENOTSUP;
	code = gpu->enable_peer(peer, 0);
	error = result(gpu, code);
	return code == GPU_PEER_ALREADY ? 0 : error;
}
