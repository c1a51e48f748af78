/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/nvlink/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine.h"

#define LOST_NS UINT64_C(100000000) /* an error that stays for so long is believed */

/* Making ------------------------------------------------------------------------------------------------------------
 */

/* In a guard. */
static void free_device(struct nvlink_device *device)
{
	for (int i = 0; i < NVLINK_DIRECTIONS; i++) {
		struct nvlink_stream *stream = &device->stream[i];

		for (uint32_t k = 0; k < NVLINK_BATCHES; k++)
			lw_gpu_event_destroy(&stream->batch[k].event);
		lw_gpu_stream_destroy(&stream->stream);
	}
	free(device);
}

/* In a guard. */
static int make_device(const struct lw_gpu *gpu, int number, struct nvlink_device **out)
{
	struct nvlink_device *device = calloc(1, sizeof(*device));
	int error = device == NULL ? -ENOMEM : 0;

	for (int i = 0; error == 0 && i < NVLINK_DIRECTIONS; i++) {
		struct nvlink_stream *stream = &device->stream[i];

		error = lw_gpu_stream_create(gpu, number, &stream->stream);
		for (uint32_t k = 0; error == 0 && k < NVLINK_BATCHES; k++)
			error = lw_gpu_event_create(gpu, &stream->batch[k].event);
	}
	if (error != 0 && device != NULL)
		free_device(device);
	if (error != 0)
		return error;
	device->device = number;
	*out = device;
	return 0;
}

/* In a guard. */
static int equip_worker(struct nvlink_worker *own, int number)
{
	const struct lw_gpu *gpu = own->nvlink->gpu;
	struct nvlink_device *device;
	void *memory = NULL;
	int error = 0;

	if (atomic_load_explicit(&own->bounce_memory, memory_order_relaxed) == NULL) {
		error = lw_gpu_host_alloc(gpu, (size_t)NVLINK_BOUNCES * NVLINK_BOUNCE_BYTES, &memory);
		own->bounce_device = number;
		if (error == 0)
			atomic_store_explicit(&own->bounce_memory, memory, memory_order_release);
	}
	if (error == 0 && atomic_load_explicit(&own->devices[number], memory_order_relaxed) == NULL) {
		error = make_device(gpu, number, &device);
		if (error == 0)
			atomic_store_explicit(&own->devices[number], device, memory_order_release);
	}
	return error;
}

int nvlink_equip(struct nvlink_engine *nvlink, int device, char *why, size_t why_size)
{
	struct lw_gpu_guard guard;
	int error = 0;

	if (device < 0 || device >= LW_GPU_DEVICES)
		error = -ENODEV;
	pthread_mutex_lock(&nvlink->lock);
	if (error == 0)
		error = lw_gpu_enter(nvlink->gpu, device, &guard);
	if (error == 0) {
		for (uint32_t i = 0; i < nvlink->engine->worker_count && error == 0; i++)
			if (nvlink->workers[i] != NULL)
				error = equip_worker(nvlink->workers[i], device);
		lw_gpu_leave(&guard);
	}
	pthread_mutex_unlock(&nvlink->lock);
	if (error != 0)
		snprintf(why, why_size, "no streams on %s:%d: %s", lw_gpu_vendor_name(nvlink->vendor), device,
			 strerrordesc_np(-error));
	return error;
}

int nvlink_worker_open(void *context, struct lw_worker *worker, void **worker_context)
{
	struct nvlink_worker *own = calloc(1, sizeof(*own));
	struct nvlink_engine *nvlink = context;

	if (own == NULL)
		return -ENOMEM;
	own->nvlink = nvlink;
	own->worker = worker;
	own->entered = -1;
	TAILQ_INIT(&own->busy);
	TAILQ_INIT(&own->waiting);
	nvlink->workers[worker->index] = own;
	*worker_context = own;
	return 0;
}

void nvlink_worker_close(void *worker_context)
{
	struct nvlink_worker *own = worker_context;
	struct nvlink_engine *nvlink = own->nvlink;
	unsigned char *memory = atomic_load(&own->bounce_memory);

	pthread_mutex_lock(&nvlink->lock);
	nvlink->workers[own->worker->index] = NULL;
	pthread_mutex_unlock(&nvlink->lock);
	/* A device that hangs, which the engine has waited for long enough, keeps what it works with. */
	if (!TAILQ_EMPTY(&own->busy))
		return;
	for (int i = 0; i < LW_GPU_DEVICES; i++) {
		struct nvlink_device *device = atomic_load(&own->devices[i]);
		unsigned char *pinned = i == own->bounce_device ? memory : NULL;
		struct lw_gpu_guard guard;
		int error;

		if (device == NULL && pinned == NULL)
			continue;
		/* Without it the runtime finds another device, which the process has not used so far maybe. */
		error = lw_gpu_enter_to_free(nvlink->gpu, i, &guard);
		lw_gpu_host_free(nvlink->gpu, pinned);
		if (device != NULL)
			free_device(device);
		if (error == 0)
			lw_gpu_leave(&guard);
	}
	free(own);
}

/* Copies ------------------------------------------------------------------------------------------------------------
 */

/* The device is the thread's until leave. */
static int enter(struct nvlink_worker *own, int device)
{
	int error;

	if (own->entered == device)
		return 0;
	if (own->entered >= 0)
		lw_gpu_leave(&own->guard);
	own->entered = -1;
	error = lw_gpu_enter(own->nvlink->gpu, device, &own->guard);
	if (error == 0)
		own->entered = device;
	return error;
}

static void leave(struct nvlink_worker *own)
{
	if (own->entered >= 0)
		lw_gpu_leave(&own->guard);
	own->entered = -1;
}

/* A batch that takes more; NULL: none is free. */
static struct nvlink_batch *open_batch(struct nvlink_worker *own, struct nvlink_stream *stream)
{
	struct nvlink_batch *batch;

	if (stream->open)
		return &stream->batch[(stream->tail - 1) % NVLINK_BATCHES];
	if (stream->tail - stream->head == NVLINK_BATCHES)
		return NULL;
	if (stream->tail == stream->head)
		TAILQ_INSERT_TAIL(&own->busy, stream, link);
	batch = &stream->batch[stream->tail++ % NVLINK_BATCHES];
	batch->first = batch->last = NULL;
	batch->bounce = NULL;
	batch->recorded = false;
	batch->failing_ns = 0;
	stream->open = true;
	return batch;
}

/* Nothing came into it. */
static void drop_batch(struct nvlink_worker *own, struct nvlink_stream *stream)
{
	stream->open = false;
	if (--stream->tail == stream->head)
		TAILQ_REMOVE(&own->busy, stream, link);
}

static void append(struct nvlink_batch *batch, struct lw_slice *slice)
{
	nvlink_note(slice)->next = NULL;
	if (batch->last != NULL)
		nvlink_note(batch->last)->next = slice;
	else
		batch->first = slice;
	batch->last = slice;
}

static void record(struct nvlink_stream *stream, struct nvlink_batch *batch)
{
	batch->recorded = lw_gpu_event_record(&batch->event, &stream->stream) == 0;
}

int nvlink_copy(struct nvlink_worker *own, struct nvlink_device *device, enum nvlink_direction direction,
		struct lw_slice *slice, uint64_t to, uint64_t from)
{
	struct nvlink_stream *stream = &device->stream[direction];
	struct nvlink_batch *batch = open_batch(own, stream);
	int error;

	if (batch == NULL)
		return -EAGAIN;
	error = enter(own, device->device);
	if (error == 0)
		error = lw_gpu_copy(&stream->stream, (void *)(uintptr_t)to, (const void *)(uintptr_t)from,
				    slice->length);
	if (error != 0) {
		if (batch->first == NULL)
			drop_batch(own, stream);
		return error == -EAGAIN ? -EIO : error;
	}
	nvlink_note(slice)->state = NVLINK_COPYING;
	append(batch, slice);
	return 0;
}

void nvlink_close_batches(struct nvlink_worker *own)
{
	struct nvlink_stream *stream;

	TAILQ_FOREACH(stream, &own->busy, link)
	{
		if (!stream->open)
			continue;
		stream->open = false;
		if (enter(own, stream->stream.device) == 0)
			record(stream, &stream->batch[(stream->tail - 1) % NVLINK_BATCHES]);
	}
	leave(own);
}

/* Through bounce buffers ----------------------------------------------------------------------------------------------
 */

void nvlink_copy_slow(struct nvlink_worker *own, struct lw_slice *slice)
{
	struct nvlink_note *note = nvlink_note(slice);

	note->state = NVLINK_SLOW;
	note->begun = note->ended = 0;
	note->failed = false;
	note->next = NULL;
	if (own->slow_last != NULL)
		nvlink_note(own->slow_last)->next = slice;
	else
		own->slow_first = slice;
	own->slow_last = slice;
}

static void unlink_slow(struct nvlink_worker *own, struct lw_slice *slice)
{
	struct lw_slice *previous = NULL, *at = own->slow_first;

	while (at != slice) {
		previous = at;
		at = nvlink_note(at)->next;
	}
	if (previous != NULL)
		nvlink_note(previous)->next = nvlink_note(slice)->next;
	else
		own->slow_first = nvlink_note(slice)->next;
	if (own->slow_last == slice)
		own->slow_last = previous;
}

bool nvlink_slow_take_back(struct nvlink_worker *own, struct lw_slice *slice)
{
	if (nvlink_note(slice)->begun != nvlink_note(slice)->ended)
		return false;
	unlink_slow(own, slice);
	return true;
}

/* Begins the next piece of the slice. 0; -EAGAIN: not now; another negative errno. */
static int begin_piece(struct nvlink_worker *own, struct nvlink_bounce *bounce, struct lw_slice *slice)
{
	struct nvlink_note *note = nvlink_note(slice);
	struct nvlink_device *device = nvlink_device_of(own, note->number);
	struct nvlink_stream *stream =
		device != NULL ? &device->stream[note->to_device ? NVLINK_IN : NVLINK_OUT] : NULL;
	uint64_t length = slice->length - note->begun;
	struct nvlink_batch *batch;
	void *there = (void *)(uintptr_t)(note->device + note->begun);
	int error;

	if (stream == NULL)
		return -EIO;
	if (length > NVLINK_BOUNCE_BYTES)
		length = NVLINK_BOUNCE_BYTES;
	batch = open_batch(own, stream);
	if (batch == NULL)
		return -EAGAIN;
	error = enter(own, device->device);
	if (error == 0 && note->to_device)
		memcpy(bounce->memory, (const void *)(uintptr_t)(note->host + note->begun), length);
	if (error == 0)
		error = lw_gpu_copy(&stream->stream, note->to_device ? there : bounce->memory,
				    note->to_device ? bounce->memory : there, length);
	if (error != 0) {
		drop_batch(own, stream);
		return error == -EAGAIN ? -EIO : error;
	}
	*bounce = (struct nvlink_bounce){
		.memory = bounce->memory, .slice = slice, .offset = note->begun, .length = length};
	batch->bounce = bounce;
	stream->open = false;
	record(stream, batch);
	note->begun += length;
	return 0;
}

static void end_if_over(struct nvlink_worker *own, struct lw_slice *slice)
{
	const struct nvlink_note *note = nvlink_note(slice);
	bool failed = note->failed;

	if (note->ended != note->begun || (!failed && note->ended != slice->length))
		return;
	unlink_slow(own, slice);
	nvlink_ended(slice, failed ? LW_REASON_DEVICE : LW_REASON_NONE);
}

/* Begins what there are bounce buffers for. */
static void go_on_slow(struct nvlink_worker *own)
{
	unsigned char *memory = atomic_load_explicit(&own->bounce_memory, memory_order_acquire);
	struct lw_slice *slice = own->slow_first, *next;
	uint32_t i = 0;

	for (; slice != NULL; slice = next) {
		next = nvlink_note(slice)->next;
		while (nvlink_note(slice)->begun < slice->length && !nvlink_note(slice)->failed) {
			int error;

			while (i < NVLINK_BOUNCES && own->bounce[i].slice != NULL)
				i++;
			if (i == NVLINK_BOUNCES)
				return;
			own->bounce[i].memory = memory + (size_t)i * NVLINK_BOUNCE_BYTES;
			error = memory != NULL ? begin_piece(own, &own->bounce[i], slice) : -EIO;
			if (error == -EAGAIN)
				return;
			if (error != 0) {
				nvlink_note(slice)->failed = true;
				end_if_over(own, slice);
				break;
			}
		}
	}
}

static void end_piece(struct nvlink_worker *own, struct nvlink_bounce *bounce, bool failed)
{
	struct lw_slice *slice = bounce->slice;
	struct nvlink_note *note;

	bounce->slice = NULL;
	if (bounce->dropped)
		return;
	note = nvlink_note(slice);
	note->ended += bounce->length;
	note->failed |= failed;
	if (!failed && !note->to_device)
		memcpy((void *)(uintptr_t)(note->host + bounce->offset), bounce->memory, bounce->length);
	end_if_over(own, slice);
}

/* Ends --------------------------------------------------------------------------------------------------------------
 */

static void end_batch(struct nvlink_worker *own, struct nvlink_batch *batch, bool failed)
{
	struct lw_slice *slice = batch->first, *next;

	batch->first = batch->last = NULL;
	if (batch->bounce != NULL)
		end_piece(own, batch->bounce, failed);
	batch->bounce = NULL;
	for (; slice != NULL; slice = next) {
		next = nvlink_note(slice)->next;
		nvlink_ended(slice, failed ? LW_REASON_DEVICE : LW_REASON_NONE);
	}
}

/* 1: the batch has ended; 0: not yet; -EIO: its device's context is lost. */
static int look(struct nvlink_worker *own, struct nvlink_stream *stream, struct nvlink_batch *batch, uint64_t now_ns)
{
	int done = enter(own, stream->stream.device);

	if (done == 0 && !batch->recorded)
		record(stream, batch);
	if (done == 0)
		done = batch->recorded ? lw_gpu_event_query(&batch->event) : -EIO;
	if (done >= 0) {
		batch->failing_ns = 0;
		return done;
	}
	if (batch->failing_ns == 0)
		batch->failing_ns = now_ns;
	return now_ns - batch->failing_ns >= LOST_NS ? -EIO : 0;
}

static void lose(struct nvlink_worker *own, const struct nvlink_stream *stream)
{
	struct nvlink_device *device = nvlink_device_of(own, stream->stream.device);

	if (device != NULL)
		device->lost = true;
}

bool nvlink_streams_poll(struct nvlink_worker *own)
{
	struct nvlink_stream *stream, *next;
	uint64_t now_ns = lw_now_ns();

	for (stream = TAILQ_FIRST(&own->busy); stream != NULL; stream = next) {
		next = TAILQ_NEXT(stream, link);
		while (stream->head != stream->tail) {
			struct nvlink_batch *batch = &stream->batch[stream->head % NVLINK_BATCHES];
			int done = look(own, stream, batch, now_ns);

			if (done == 0)
				break;
			if (done < 0)
				lose(own, stream);
			end_batch(own, batch, done < 0);
			stream->head++;
		}
		if (stream->head == stream->tail)
			TAILQ_REMOVE(&own->busy, stream, link);
	}
	if (own->slow_first != NULL)
		go_on_slow(own);
	leave(own);
	return !TAILQ_EMPTY(&own->busy) || own->slow_first != NULL;
}

void nvlink_streams_forget(struct nvlink_worker *own, const struct nvlink_lane *lane)
{
	struct nvlink_stream *stream;
	struct lw_slice *slice, *after;

	TAILQ_FOREACH(stream, &own->busy, link)
	{
		for (uint32_t i = stream->head; i != stream->tail; i++) {
			struct nvlink_batch *batch = &stream->batch[i % NVLINK_BATCHES];

			slice = batch->first;
			batch->first = batch->last = NULL;
			for (; slice != NULL; slice = after) {
				after = nvlink_note(slice)->next;
				if (nvlink_note(slice)->lane == lane)
					continue;
				append(batch, slice);
			}
		}
	}
	for (uint32_t i = 0; i < NVLINK_BOUNCES; i++)
		if (own->bounce[i].slice != NULL && !own->bounce[i].dropped &&
		    nvlink_note(own->bounce[i].slice)->lane == lane)
			own->bounce[i].dropped = true;
	for (slice = own->slow_first; slice != NULL; slice = after) {
		after = nvlink_note(slice)->next;
		if (nvlink_note(slice)->lane == lane)
			unlink_slow(own, slice);
	}
}
