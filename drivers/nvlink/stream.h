/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's streams: one a device and direction, shared by its lanes. What a lane posts between two flushes goes into
 * a stream as one batch with an event behind it; a stream ends its batches in order, streams end them in any.
 *
 *   nvlink_equip, ..._free    threads that register memory or open segments; before and after the worker's thread
 *   everything else           the worker's thread; nothing blocks or allocates
 *
 * A copy can't be taken back. So a batch whose event can't be recorded, or not be asked, is tried again: only an error
 * that stays ends its slices, FAILED, since then the device's context is lost and nothing of it runs any more.
 */
#ifndef LW_NVLINK_STREAM_H
#define LW_NVLINK_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "drivers/nvlink/memory.h"
#include "lib/sched/worker.h"

#define NVLINK_BATCHES 64u /* with an event each, in one stream at once */
#define NVLINK_BOUNCES 4u
#define NVLINK_BOUNCE_BYTES (256u << 10)

struct nvlink_lane;

enum nvlink_direction { NVLINK_ACROSS, NVLINK_IN, NVLINK_OUT, NVLINK_DIRECTIONS }; /* devices; host to, device to */

/* Pinned memory through which the worker copies what is not pinned, piece by piece. */
struct nvlink_bounce {
	unsigned char *memory;
	struct lw_slice *slice; /* NULL: free */
	uint64_t offset, length;
	bool dropped; /* the lane was closed by force: the piece is nobody's */
};

struct nvlink_batch {
	struct lw_gpu_event event;
	struct lw_slice *first, *last; /* by their notes */
	struct nvlink_bounce *bounce;  /* instead of slices */
	bool recorded;
	uint64_t failing_ns; /* an error was first met; 0: none */
};

struct nvlink_stream {
	struct lw_gpu_stream stream;
	TAILQ_ENTRY(nvlink_stream) link; /* of the busy ones */
	uint32_t head, tail;             /* of the ring of batches; they count on for ever */
	bool open;                       /* the last batch takes more */
	struct nvlink_batch batch[NVLINK_BATCHES];
};

/* A device's, of one worker. */
struct nvlink_device {
	int device;
	bool lost; /* its context is: nothing is begun any more */
	struct nvlink_stream stream[NVLINK_DIRECTIONS];
};

struct nvlink_worker {
	struct nvlink_engine *nvlink;
	struct lw_worker *worker;
	_Atomic(struct nvlink_device *) devices[LW_GPU_DEVICES];
	_Atomic(unsigned char *) bounce_memory;
	int bounce_device; /* under which it was made */
	struct nvlink_bounce bounce[NVLINK_BOUNCES];
	struct lw_slice *slow_first, *slow_last; /* slices that wait for a bounce buffer, or have some */
	TAILQ_HEAD(, nvlink_stream) busy;
	TAILQ_HEAD(, nvlink_lane) waiting; /* lanes that have something to do */
	struct lw_gpu_guard guard;
	int entered; /* the device of the guard; -1: none */
};

/* The driver's notes in a slice. */
struct nvlink_note {
	struct nvlink_lane *lane;
	struct lw_slice *next; /* of the list that it is in */
	uint64_t device,
		host; /* the two ends of one that goes through bounce buffers; host is read and written by us */
	uint64_t begun, ended; /* bytes of it */
	int16_t number;        /* of the device that copies */
	uint8_t state;         /* enum nvlink_state */
	bool failed, to_device;
};
static_assert(sizeof(struct nvlink_note) <= sizeof(((struct lw_slice *)NULL)->own), "fits into a slice");

enum nvlink_state { NVLINK_WAITING, NVLINK_COPYING, NVLINK_SLOW };

static inline struct nvlink_note *nvlink_note(struct lw_slice *slice)
{
	return (struct nvlink_note *)(void *)slice->own;
}

/* Makes the streams of that device for every worker, if they are not there yet. May take its time. 0, or a negative
 * errno and why. */
int nvlink_equip(struct nvlink_engine *nvlink, int device, char *why, size_t why_size);

/* As worker_open and worker_close of lw_driver_ops. */
int nvlink_worker_open(void *context, struct lw_worker *worker, void **worker_context);
void nvlink_worker_close(void *worker_context);

/* The device's streams; NULL: there are none, or its context is lost. */
static inline struct nvlink_device *nvlink_device_of(const struct nvlink_worker *own, int device)
{
	struct nvlink_device *found = device >= 0 && device < LW_GPU_DEVICES
					      ? atomic_load_explicit(&own->devices[device], memory_order_acquire)
					      : NULL;

	return found != NULL && !found->lost ? found : NULL;
}

/* Puts a copy for the slice into the stream. 0; -EAGAIN: not now; another negative errno: it was not begun. */
int nvlink_copy(struct nvlink_worker *own, struct nvlink_device *device, enum nvlink_direction direction,
		struct lw_slice *slice, uint64_t to, uint64_t from);
/* The slice goes through bounce buffers, as its note says. */
void nvlink_copy_slow(struct nvlink_worker *own, struct lw_slice *slice);
/* Puts events behind what was begun. After one or several copies. */
void nvlink_close_batches(struct nvlink_worker *own);
/* Looks what has ended. True if something is under way still. */
bool nvlink_streams_poll(struct nvlink_worker *own);
/* A lane is closed by force: its slices are not to be ended any more. */
void nvlink_streams_forget(struct nvlink_worker *own, const struct nvlink_lane *lane);
/* A slice that waits for its first bounce buffer is taken back. False: it has some. */
bool nvlink_slow_take_back(struct nvlink_worker *own, struct lw_slice *slice);

/* lane.c: a slice that was in a stream has ended. */
void nvlink_ended(struct lw_slice *slice, enum lw_reason reason);

#endif
