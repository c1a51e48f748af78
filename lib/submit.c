/* SPDX-License-Identifier: Apache-2.0 */
/* Submission: requests become tasks of a batch, and a run of them goes to the channel's worker. */
#include <errno.h>

#include "lib/asym.h"
#include "lib/engine.h"
#include "lib/error.h"

#define TIMEOUT_MAX_MS 86400000u

/* 0, or what is wrong with one request. */
static int check_request(struct lw_engine *engine, const struct lw_request *request)
{
	if (request->op > LW_WRITE || request->priority > LW_BULK || request->reserved != 0)
		return lw_fail_static(-EINVAL, "a request's op or priority is unknown, or reserved is not 0");
	if (request->timeout_ms > TIMEOUT_MAX_MS)
		return lw_fail_static(-EINVAL, "a request's timeout_ms is above 86,400,000");
	if (request->local == NULL && request->length != 0)
		return lw_fail_static(-EINVAL, "a request's local address is NULL");
	if ((uint64_t)(uintptr_t)request->local + request->length < request->length ||
	    request->offset + request->length < request->length)
		return lw_fail_static(-EINVAL, "a request's range wraps around the end of the address space");
	if (lw_segment_of(engine, request->segment) == NULL)
		return lw_fail_static(-EBADF, "a request's segment handle is stale, made up or another engine's");
	return 0;
}

static void fill_task(struct lw_engine *engine, struct lw_task *task, uint32_t batch, const struct lw_request *request)
{
	task->local = (uint64_t)(uintptr_t)request->local;
	task->remote = request->offset;
	task->length = request->length;
	task->segment = request->segment;
	task->batch = batch;
	task->slices = 0;
	task->deadline_ms = request->timeout_ms != 0 ? request->timeout_ms : (uint32_t)engine->config.timeout_ms;
	task->op = request->op;
	task->priority = request->priority;
	task->flags = 0;
	task->reason = LW_REASON_NONE;
	atomic_store_explicit(&task->bytes, 0, memory_order_relaxed);
	atomic_store_explicit(&task->outcome, lw_outcome(LW_PENDING, LW_REASON_NONE, LW_LANE_NONE),
			      memory_order_relaxed);
}

/* Tells the batch's word of tasks that are about to be pushed. */
static void expect_end(struct lw_batch *batch, uint32_t before, uint32_t count, struct lw_pending_note *note)
{
	bool event = (atomic_load_explicit(&batch->flags, memory_order_relaxed) & LW_BATCH_EVENT) != 0;
	uint64_t tell = (event || note != NULL ? LW_WORD_TELL : 0) | (note != NULL ? LW_WORD_NOTE : 0);

	/* The first tasks: no worker knows the batch yet, so nothing has to be atomic. The push publishes it. */
	if (before == 0) {
		atomic_store_explicit(&batch->note, note, memory_order_relaxed);
		atomic_store_explicit(&batch->word, count | tell, memory_order_relaxed);
		return;
	}
	atomic_fetch_add_explicit(&batch->word, count, memory_order_release);
	/* Not sooner: the end of earlier tasks would tell it. */
	if (note != NULL)
		atomic_store_explicit(&batch->note, note, memory_order_release);
	if (tell != 0)
		atomic_fetch_or_explicit(&batch->word, tell, memory_order_release);
}

/* The batch, if it takes count more tasks now. 0; -EBADF, -ENOSPC, -EAGAIN. */
static int find_room(struct lw_channel *channel, lw_batch_t id, size_t count, struct lw_batch **batch)
{
	struct lw_batch *found = lw_batch_of(channel->engine, id);

	if (found == NULL)
		return lw_fail_static(-EBADF, lw_stale_batch);
	if (count > atomic_load_explicit(&found->capacity, memory_order_relaxed) -
			    atomic_load_explicit(&found->submitted, memory_order_relaxed))
		return lw_fail_static(-ENOSPC,
				      "more requests than the batch has room for; allocate it with a larger capacity");
	if (count != 0 && lw_spsc_space(channel->ring, 1) == 0)
		return lw_fail_static(-EAGAIN, "the ring to the worker is full; poll and submit again");
	*batch = found;
	return 0;
}

/* Pushes count tasks that are filled in; first asks what the first of them asks. Can't fail. */
static void push(struct lw_channel *channel, struct lw_batch *batch, struct lw_task *task,
		 const struct lw_request *first, uint32_t count, uint64_t bytes, struct lw_pending_note *note)
{
	struct lw_engine *engine = channel->engine;
	uint32_t submitted = atomic_load_explicit(&batch->submitted, memory_order_relaxed);

	bytes += atomic_load_explicit(&batch->bytes, memory_order_relaxed);
	atomic_store_explicit(&batch->bytes, bytes, memory_order_relaxed);
	batch->reserved = 0;
	/* The word first: who sees more submitted sees them pending. */
	expect_end(batch, submitted, count, note);
	atomic_store_explicit(&batch->submitted, submitted + count, memory_order_release);
	lw_spsc_push(channel->ring, &(struct lw_run){.batch = (uint32_t)(batch - engine->batches),
						     .task = (uint32_t)(task - engine->tasks),
						     .first = submitted,
						     .count = count,
						     .local = (uint64_t)(uintptr_t)first->local,
						     .remote = first->offset,
						     .length = first->length,
						     .segment = first->segment,
						     .op = first->op,
						     .priority = first->priority,
						     .solo = lw_batch_is_solo(batch)});
	lw_fence_light(); /* with the heavy one of the worker going to sleep */
	lw_worker_wake(&engine->workers[channel->home]);
}

/* The owner, inside. */
static int submit_inside(struct lw_channel *channel, lw_batch_t id, const struct lw_request *requests, size_t count,
			 struct lw_pending_note *note)
{
	struct lw_engine *engine = channel->engine;
	struct lw_task *first = NULL, *task = NULL;
	struct lw_batch *batch;
	uint64_t bytes = 0;
	uint32_t submitted;
	int error = find_room(channel, id, count, &batch);

	for (size_t i = 0; i < count && error == 0; i++)
		error = check_request(engine, &requests[i]);
	if (error != 0 || count == 0)
		return error;
	if (note != NULL && (atomic_load_explicit(&batch->word, memory_order_acquire) & LW_WORD_NOTE) != 0)
		return lw_fail_static(-EALREADY, "the batch has a note waiting already");
	submitted = atomic_load_explicit(&batch->submitted, memory_order_relaxed);
	for (uint32_t i = 0; i < count; i++) {
		task = task == NULL || (submitted + i) % LW_CHUNK_TASKS == 0
			       ? lw_batch_task(engine, batch, submitted + i)
			       : task + 1;
		first = first == NULL ? task : first;
		bytes += requests[i].length;
		fill_task(engine, task, (uint32_t)(batch - engine->batches), &requests[i]);
	}
	push(channel, batch, first, &requests[0], (uint32_t)count, bytes, note);
	return 0;
}

int lw_submit_noted(struct lw_channel *channel, lw_batch_t id, const struct lw_request *requests, size_t count,
		    struct lw_pending_note *note)
{
	int error = lw_channel_enter(channel);

	if (error != 0)
		return error;
	error = submit_inside(channel, id, requests, count, note);
	lw_channel_leave(channel);
	return error;
}

int lw_submit(struct lw_channel *channel, lw_batch_t id, const struct lw_request *requests, size_t count)
{
	if (channel == NULL || (requests == NULL && count != 0))
		return lw_fail_static(-EINVAL, "channel and requests must not be NULL");
	return lw_submit_noted(channel, id, requests, count, NULL);
}

static_assert(sizeof(struct lw_slot) == sizeof(struct lw_task), "a slot is a task that is not filled in yet");

/* Tasks from number on that lie side by side. */
static uint32_t side_by_side(uint32_t number)
{
	return LW_CHUNK_TASKS - number % LW_CHUNK_TASKS;
}

int lw_submit_reserve(struct lw_channel *channel, lw_batch_t id, uint32_t count, struct lw_slot **out)
{
	struct lw_batch *batch;
	uint32_t submitted;
	int error;

	if (channel == NULL || out == NULL || count == 0)
		return lw_fail_static(-EINVAL, "channel and out must not be NULL, count not 0");
	error = lw_channel_enter(channel);
	if (error != 0)
		return error;
	error = find_room(channel, id, 1, &batch);
	if (error == 0) {
		uint32_t room = atomic_load_explicit(&batch->capacity, memory_order_relaxed);

		submitted = atomic_load_explicit(&batch->submitted, memory_order_relaxed);
		room -= submitted;
		room = room < side_by_side(submitted) ? room : side_by_side(submitted);
		*out = (struct lw_slot *)(void *)lw_batch_task(channel->engine, batch, submitted);
		error = (int)(count < room ? count : room);
		batch->reserved = submitted + (uint32_t)error;
	}
	lw_channel_leave(channel);
	return error;
}

/* The owner, inside. */
static int commit_inside(struct lw_channel *channel, lw_batch_t id, uint32_t count)
{
	struct lw_engine *engine = channel->engine;
	struct lw_request first = {0};
	struct lw_batch *batch;
	struct lw_task *task;
	uint64_t bytes = 0;
	uint32_t submitted;
	int error = find_room(channel, id, count, &batch);

	if (error != 0)
		return error;
	submitted = atomic_load_explicit(&batch->submitted, memory_order_relaxed);
	if (count == 0 || submitted + count > batch->reserved)
		return lw_fail_static(-EINVAL,
				      "count is 0, or more than lw_submit_reserve returned since the last submit");
	task = lw_batch_task(engine, batch, submitted);
	for (uint32_t i = 0; i < count && error == 0; i++)
		error = check_request(engine, &((const struct lw_slot *)(const void *)&task[i])->request);
	for (uint32_t i = 0; i < count && error == 0; i++) {
		/* The same memory: read as the application wrote it, then written as the worker reads it. */
		struct lw_request request = ((const struct lw_slot *)(const void *)&task[i])->request;

		if (i == 0)
			first = request;
		bytes += request.length;
		fill_task(engine, &task[i], (uint32_t)(batch - engine->batches), &request);
	}
	if (error == 0)
		push(channel, batch, task, &first, count, bytes, NULL);
	return error;
}

int lw_submit_commit(struct lw_channel *channel, lw_batch_t id, uint32_t count)
{
	int error;

	if (channel == NULL)
		return lw_fail_static(-EINVAL, "channel must not be NULL");
	error = lw_channel_enter(channel);
	if (error != 0)
		return error;
	error = commit_inside(channel, id, count);
	lw_channel_leave(channel);
	return error;
}
