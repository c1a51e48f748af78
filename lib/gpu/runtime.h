/* SPDX-License-Identifier: Apache-2.0 */
/* The runtimes of GPU vendors (CUDA, HIP, MUSA, MACA), opened at run time: one code over a table of entry points, whose
 * prototypes are our own. Nothing of a vendor is needed to build or to start.
 *
 * A guest in somebody's process. Opening a runtime starts nothing: no device is looked for, no context is made, and no
 * library is loaded that costs much (lw_gpu_open says which). Only memory of a device that the process itself has
 * allocated, or a peer's that this process can only reach through its own GPU, makes us call into it. A thread's
 * current device is never changed for longer than between lw_gpu_enter and lw_gpu_leave, and contexts come into being
 * on no other device than the one that was named.
 *
 * Thread rule: everything here may be called by any thread; a stream or an event by one at a time. "In a guard" means:
 * between lw_gpu_enter and lw_gpu_leave for that device. Errors are 0 or a negative errno:
 *   -ENOMEM the device's or host's memory; -EINVAL an argument it does not take; -ENODEV no such device, or the runtime
 *   does not start; -ENOTSUP this device or runtime can't; -EIO anything else, the device's own faults among them
 */
#ifndef LW_GPU_RUNTIME_H
#define LW_GPU_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lw_gpu_vendor { LW_GPU_CUDA, LW_GPU_HIP, LW_GPU_MUSA, LW_GPU_MACA, LW_GPU_VENDORS };

#define LW_GPU_DEVICES 64      /* more are not used */
#define LW_GPU_HANDLE_BYTES 64 /* an allocation's, for other processes */

struct lw_gpu;

/* Whose an address is. */
struct lw_gpu_memory {
	const struct lw_gpu *gpu;
	int device;
	uint64_t base, length; /* the whole allocation */
	uint64_t id;           /* no other allocation of the process had it; 0: nobody can tell */
};

struct lw_gpu_guard {
	const struct lw_gpu *gpu;
	int before;  /* the device to go back to; -1: nothing was changed */
	bool pushed; /* a context, which leave takes away again */
};

struct lw_gpu_stream {
	const struct lw_gpu *gpu; /* NULL: none */
	int device;
	void *handle;
};

struct lw_gpu_event {
	const struct lw_gpu *gpu; /* NULL: none */
	void *handle;
};

struct lw_gpu_handle {
	unsigned char bytes[LW_GPU_HANDLE_BYTES];
};

/* "cuda", "hip", ... as in settings, locations and messages. */
const char *lw_gpu_vendor_name(enum lw_gpu_vendor vendor);

/* The vendor's runtime; opened once a process and kept as long as that lives. library: a file or soname; NULL or "":
 * what the process has loaded already, and for CUDA (whose runtime library is small and loads nothing else) what the
 * system finds. The others bring their whole stack with them, so those are taken only if they are there already or
 * named. May load a file, starts nothing. 0; -ENOENT there is none; -ENOTSUP it lacks something; -EBUSY the process
 * uses another file of this vendor's. why gets the reason, and the remedy. */
int lw_gpu_open(enum lw_gpu_vendor vendor, const char *library, const struct lw_gpu **out, char *why, size_t why_size);
/* The one that is open, or NULL. */
const struct lw_gpu *lw_gpu_opened(enum lw_gpu_vendor vendor);

enum lw_gpu_vendor lw_gpu_vendor_of(const struct lw_gpu *gpu);
/* The file it came from, for people. */
const char *lw_gpu_library(const struct lw_gpu *gpu);
/* Whether the process has started it: if not, it holds no memory of a device. Starts nothing. */
bool lw_gpu_in_use(const struct lw_gpu *gpu);
/* A device that the process makes use of already, so that nothing has to be started on it; -1: there is none. Where
 * nobody can tell (HIP, MACA) the calling thread's. */
int lw_gpu_used_device(const struct lw_gpu *gpu);
/* How many devices there are; starts the runtime. 0 devices is -ENODEV. */
int lw_gpu_devices(const struct lw_gpu *gpu, int *count);

/* Which open runtime and device an address belongs to. 0; -ENOENT: memory of the host, also pinned or managed, which
 * the CPU may touch; -ENOTSUP: a device's, but nobody can tell the bounds of its allocation; another one: nobody can
 * tell. Costs a call or two of the runtime; starts nothing. */
int lw_gpu_find(const void *addr, struct lw_gpu_memory *out);

/* Whether copies from and to that memory of the host go on without the runtime's waiting for them: it is pinned. In a
 * guard. */
bool lw_gpu_is_pinned(const struct lw_gpu *gpu, const void *addr);

/* Makes the device the calling thread's until leave. Guards nest. The first one on a device makes its context if the
 * process has none yet, which takes its time: whoever must not wait calls it before from a thread that may. Later ones
 * take well under a microsecond. */
int lw_gpu_enter(const struct lw_gpu *gpu, int device, struct lw_gpu_guard *guard);
/* The same, for whoever gives something back and has no later occasion to: an error that passes leaves nothing behind.
 */
int lw_gpu_enter_to_free(const struct lw_gpu *gpu, int device, struct lw_gpu_guard *guard);
void lw_gpu_leave(const struct lw_gpu_guard *guard);

/* A stream that waits for no other one. In a guard; may take its time, as destroy. Destroy drops nothing that is in it:
 * the runtime ends that first. */
int lw_gpu_stream_create(const struct lw_gpu *gpu, int device, struct lw_gpu_stream *out);
void lw_gpu_stream_destroy(struct lw_gpu_stream *stream);
/* Puts a copy into the stream: from or to this process' memory of a device, an imported allocation, or pinned memory of
 * the host. In a guard for the stream's device. Does not wait for the copy; what the runtime itself allocates or
 * locks is out of our hands. (With memory of the host that is not pinned the runtime does wait: don't.) */
int lw_gpu_copy(const struct lw_gpu_stream *stream, void *to, const void *from, uint64_t length);

/* Events tell how far a stream is. All in a guard for the stream's device; record and query don't wait. */
int lw_gpu_event_create(const struct lw_gpu *gpu, struct lw_gpu_event *out);
void lw_gpu_event_destroy(struct lw_gpu_event *event);
int lw_gpu_event_record(const struct lw_gpu_event *event, const struct lw_gpu_stream *stream);
/* 1: all that was in the stream when the event was recorded has ended; 0: not yet; a negative errno: it failed. */
int lw_gpu_event_query(const struct lw_gpu_event *event);

/* Pinned memory of the host, for all devices. In a guard; may take its time. */
int lw_gpu_host_alloc(const struct lw_gpu *gpu, size_t size, void **out);
void lw_gpu_host_free(const struct lw_gpu *gpu, void *memory);
/* Pins memory that is there. -EEXIST: it is pinned already (somebody else unpins it). In a guard; may take its time. */
int lw_gpu_host_pin(const struct lw_gpu *gpu, void *memory, size_t size);
void lw_gpu_host_unpin(const struct lw_gpu *gpu, void *memory);

/* For other processes of the host: the handle of a whole allocation, by its first byte. -ENOTSUP: this kind of memory
 * has none. open gives the address here; the same allocation once at a time. A handle of this very process can't be
 * opened. In a guard; may take their time. */
int lw_gpu_ipc_get(const struct lw_gpu *gpu, const void *base, struct lw_gpu_handle *out);
int lw_gpu_ipc_open(const struct lw_gpu *gpu, const struct lw_gpu_handle *handle, void **out);
void lw_gpu_ipc_close(const struct lw_gpu *gpu, void *base);

/* Lets copies between the two devices take the direct way, if there is one; else the runtime finds another. Once a pair
 * and process. In a guard for device; may take its time. */
int lw_gpu_peer_enable(const struct lw_gpu *gpu, int device, int peer);

#endif
