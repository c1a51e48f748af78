/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: the slab's slots, their tasks, and what the application asks of them. Submission is in submit.c. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <rte_pause.h>

#include "lib/asym.h"
#include "lib/engine.h"
#include "lib/error.h"

#define SPIN_NS 20000 /* a waiter spins for so long before it sleeps: about what a wake-up costs */

const char lw_stale_batch[] =
	"the batch handle is stale, made up or another engine's; it was freed, or never allocated";

struct lw_task *lw_batch_task(struct lw_engine *engine, struct lw_batch *batch, uint32_t i)
{
	uint32_t chunk = i / LW_CHUNK_TASKS;

	if (atomic_load_explicit(&batch->capacity, memory_order_relaxed) > LW_DIR_DIRECT * LW_CHUNK_TASKS) {
		uint32_t directory =
			atomic_load_explicit(&batch->dir[chunk / LW_DIR_ENTRIES % LW_DIR_DIRECT], memory_order_relaxed);
		_Atomic uint32_t *entries =
			(_Atomic uint32_t *)(void *)&engine->tasks[(size_t)directory * LW_CHUNK_TASKS];

		chunk = atomic_load_explicit(&entries[chunk % LW_DIR_ENTRIES], memory_order_relaxed);
	} else {
		chunk = atomic_load_explicit(&batch->dir[chunk % LW_DIR_DIRECT], memory_order_relaxed);
	}
	/* Who only looks may do so while the batch is freed and its directory becomes something else. */
	if (chunk >= atomic_load_explicit(&engine->chunk_slab.count, memory_order_relaxed))
		chunk = 0;
	return &engine->tasks[(size_t)chunk * LW_CHUNK_TASKS + i % LW_CHUNK_TASKS];
}

static _Atomic uint32_t *directory_of(struct lw_engine *engine, uint32_t chunk)
{
	return (_Atomic uint32_t *)(void *)&engine->tasks[(size_t)chunk * LW_CHUNK_TASKS];
}

/* Gives back the first count chunks of a batch of that capacity, and its directories. */
static void give_chunks(struct lw_engine *engine, struct lw_batch *batch, uint32_t capacity, uint32_t count)
{
	bool direct = capacity <= LW_DIR_DIRECT * LW_CHUNK_TASKS;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t entry =
			atomic_load_explicit(&batch->dir[direct ? i : i / LW_DIR_ENTRIES], memory_order_relaxed);

		if (direct) {
			lw_slab_give(&engine->chunk_slab, entry);
			continue;
		}
		lw_slab_give(&engine->chunk_slab, atomic_load_explicit(&directory_of(engine, entry)[i % LW_DIR_ENTRIES],
								       memory_order_relaxed));
		if (i % LW_DIR_ENTRIES == LW_DIR_ENTRIES - 1 || i == count - 1)
			lw_slab_give(&engine->chunk_slab, entry);
	}
}

static int take_chunks(struct lw_engine *engine, struct lw_batch *batch, uint32_t capacity)
{
	uint32_t count = (capacity + LW_CHUNK_TASKS - 1) / LW_CHUNK_TASKS;
	bool direct = capacity <= LW_DIR_DIRECT * LW_CHUNK_TASKS;

	for (uint32_t i = 0; i < count; i++) {
		_Atomic uint32_t *entry = &batch->dir[i % LW_DIR_DIRECT];
		uint32_t chunk;

		if (!direct) {
			if (i % LW_DIR_ENTRIES == 0) {
				chunk = lw_slab_take(&engine->chunk_slab);
				if (chunk == LW_SLAB_NONE) {
					give_chunks(engine, batch, capacity, i);
					return -ENOBUFS;
				}
				atomic_store_explicit(&batch->dir[i / LW_DIR_ENTRIES], chunk, memory_order_relaxed);
			}
			entry = &directory_of(engine, atomic_load_explicit(&batch->dir[i / LW_DIR_ENTRIES],
									   memory_order_relaxed))[i % LW_DIR_ENTRIES];
		}
		chunk = lw_slab_take(&engine->chunk_slab);
		if (chunk == LW_SLAB_NONE) {
			if (!direct && i % LW_DIR_ENTRIES == 0)
				lw_slab_give(&engine->chunk_slab, atomic_load_explicit(&batch->dir[i / LW_DIR_ENTRIES],
										       memory_order_relaxed));
			give_chunks(engine, batch, capacity, i);
			return -ENOBUFS;
		}
		atomic_store_explicit(entry, chunk, memory_order_relaxed);
	}
	return 0;
}

void lw_batch_recycle(struct lw_engine *engine, struct lw_batch *batch)
{
	uint32_t capacity = atomic_load_explicit(&batch->capacity, memory_order_relaxed);

	give_chunks(engine, batch, capacity, (capacity + LW_CHUNK_TASKS - 1) / LW_CHUNK_TASKS);
	atomic_fetch_sub_explicit(&engine->live_batches, 1, memory_order_relaxed);
	lw_slab_give(&engine->batch_slab, (uint32_t)(batch - engine->batches));
}

uint64_t lw_batch_unqueue(struct lw_engine *engine, struct lw_batch *batch)
{
	uint64_t word =
		atomic_fetch_and_explicit(&batch->word, ~LW_WORD_QUEUED, memory_order_acq_rel) & ~LW_WORD_QUEUED;

	if (lw_word_released(word))
		lw_batch_recycle(engine, batch);
	return word;
}

/* Sets QUEUED for who is to push the node. False if it is queued already, or was freed: nobody's news. */
static bool take_queued(struct lw_batch *batch)
{
	uint64_t word = atomic_load_explicit(&batch->word, memory_order_relaxed);

	do {
		if ((word & (LW_WORD_QUEUED | LW_WORD_FREE)) != 0)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&batch->word, &word, word | LW_WORD_QUEUED,
							memory_order_acq_rel, memory_order_relaxed));
	return true;
}

/* All tasks ended: sends the note and queues the event. The worker counts as a teller, so the slot stays. */
static void tell(struct lw_engine *engine, struct lw_batch *batch, uint64_t word, struct lw_pending_note *note)
{
	struct lw_channel *owner = &engine->channels[batch->channel];
	bool event = (atomic_load_explicit(&batch->flags, memory_order_relaxed) & LW_BATCH_EVENT) != 0 &&
		     atomic_load_explicit(&owner->gen, memory_order_acquire) == batch->channel_gen;

	if (note != NULL)
		lw_notify_batch_ended(engine, note, lw_word_failed(word) == 0);
	if (event && take_queued(batch))
		lw_inbox_push(&owner->ended, &batch->node);
	word = atomic_fetch_sub_explicit(&batch->word, LW_WORD_TELLER, memory_order_acq_rel) - LW_WORD_TELLER;
	if (lw_word_released(word))
		lw_batch_recycle(engine, batch);
	if (event)
		lw_channel_wake(owner);
}

void lw_batch_ended(struct lw_engine *engine, struct lw_batch *batch, uint32_t done, uint32_t failed)
{
	uint64_t seen = atomic_load_explicit(&batch->word, memory_order_acquire), word;
	struct lw_pending_note *note;

	do {
		note = NULL;
		word = seen - done + ((uint64_t)failed << LW_WORD_FAILED_SHIFT);
		if (lw_word_pending(word) == 0 && (word & LW_WORD_TELL) != 0) {
			/* Ours with the step that clears NOTE: from then on the next submit may leave another. */
			if ((word & LW_WORD_NOTE) != 0)
				note = atomic_load_explicit(&batch->note, memory_order_relaxed);
			word = (word & ~(LW_WORD_TELL | LW_WORD_NOTE)) + LW_WORD_TELLER;
		}
	} while (!atomic_compare_exchange_weak_explicit(&batch->word, &seen, word, memory_order_seq_cst,
							memory_order_acquire));
	/* From here on the slot may be somebody else's, unless we tell. Its memory stays, so a look at waiters is
	 * harmless. */
	if (atomic_load_explicit(&batch->waiters, memory_order_seq_cst) != 0)
		syscall(SYS_futex, &batch->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	if (lw_word_pending(word) == 0 && (seen & LW_WORD_TELL) != 0)
		tell(engine, batch, word, note);
	else if (lw_word_released(word))
		lw_batch_recycle(engine, batch);
}

/* The owner, inside. */
static int alloc_inside(struct lw_channel *channel, uint32_t capacity, uint32_t flags, void *user, lw_batch_t *out)
{
	struct lw_engine *engine = channel->engine;
	struct lw_batch *batch;
	uint32_t index, gen;
	int error;

	if (capacity > LW_BATCH_MAX_TASKS || (flags & ~(uint32_t)LW_BATCH_EVENT) != 0)
		return lw_fail_static(-EINVAL, "capacity is above LW_BATCH_MAX_TASKS, or a flag is unknown");
	index = lw_slab_take(&engine->batch_slab);
	if (index == LW_SLAB_NONE) {
		lw_channel_reap(channel);
		index = lw_slab_take(&engine->batch_slab);
	}
	if (index == LW_SLAB_NONE)
		return lw_fail_static(-ENOBUFS, "all batches are in use; free some, or raise the setting max_batches");
	batch = &engine->batches[index];
	error = take_chunks(engine, batch, capacity);
	if (error != 0) {
		lw_channel_reap(channel);
		error = take_chunks(engine, batch, capacity);
	}
	if (error != 0) {
		lw_slab_give(&engine->batch_slab, index);
		return lw_fail_static(error, "all tasks are in use; free batches, or raise the setting max_tasks");
	}
	atomic_fetch_add_explicit(&engine->live_batches, 1, memory_order_relaxed);
	atomic_store_explicit(&batch->submitted, 0, memory_order_relaxed);
	batch->reserved = 0;
	atomic_store_explicit(&batch->capacity, capacity, memory_order_relaxed);
	if (capacity != 0)
		__builtin_prefetch(lw_batch_task(engine, batch, 0), 1); /* a worker wrote it last */
	atomic_store_explicit(&batch->flags, flags, memory_order_relaxed);
	batch->user = user;
	batch->channel = channel->index;
	batch->channel_gen = atomic_load_explicit(&channel->gen, memory_order_relaxed);
	atomic_store_explicit(&batch->note, NULL, memory_order_relaxed);
	atomic_store_explicit(&batch->word, 0, memory_order_relaxed);
	atomic_store_explicit(&batch->solo_lane, LW_LANE_NONE, memory_order_relaxed);
	atomic_store_explicit(&batch->bytes, 0, memory_order_relaxed);
	gen = atomic_load_explicit(&batch->gen, memory_order_relaxed) + 1;
	atomic_store_explicit(&batch->gen, gen, memory_order_release);
	*out = lw_handle(gen, engine->tag, index);
	return 0;
}

int lw_batch_alloc(struct lw_channel *channel, uint32_t capacity, uint32_t flags, void *user, lw_batch_t *out)
{
	int error;

	if (channel == NULL || out == NULL)
		return lw_fail_static(-EINVAL, "channel and out must not be NULL");
	error = lw_channel_enter(channel);
	if (error != 0)
		return error;
	error = alloc_inside(channel, capacity, flags, user, out);
	lw_channel_leave(channel);
	return error;
}

static uint32_t batch_state(uint32_t pending, uint32_t failed)
{
	if (pending != 0)
		return LW_PENDING;
	return failed == 0 ? LW_COMPLETED : LW_FAILED;
}

/* Known without looking at the tasks, unless some failed. */
static uint64_t batch_bytes(struct lw_engine *engine, struct lw_batch *batch, const struct lw_batch_status *status)
{
	uint64_t bytes = 0;

	if (status->state == LW_PENDING)
		return 0;
	if (status->failed == 0)
		return atomic_load_explicit(&batch->bytes, memory_order_relaxed);
	for (uint32_t i = 0; i < status->tasks; i++)
		bytes += atomic_load_explicit(&lw_batch_task(engine, batch, i)->bytes, memory_order_relaxed);
	return bytes;
}

/* Reads a batch that may be freed meanwhile: -EBADF if its generation changed while it was read. */
static int read_status(struct lw_engine *engine, lw_batch_t id, struct lw_batch_status *status, uint32_t *pending)
{
	struct lw_batch *batch = lw_batch_of(engine, id);
	uint64_t word;

	if (batch == NULL)
		return lw_fail_static(-EBADF, lw_stale_batch);
	/* pending grows before submitted does, and both are read while none was submitted. */
	do {
		status->tasks = atomic_load_explicit(&batch->submitted, memory_order_acquire);
		word = atomic_load_explicit(&batch->word, memory_order_seq_cst);
	} while (atomic_load_explicit(&batch->submitted, memory_order_relaxed) != status->tasks);
	status->done = lw_word_pending(word) < status->tasks ? status->tasks - lw_word_pending(word) : 0;
	status->failed = lw_word_failed(word);
	*pending = lw_word_pending(word);
	status->state = batch_state(*pending, status->failed);
	status->bytes = batch_bytes(engine, batch, status);
	atomic_thread_fence(memory_order_acquire);
	if (atomic_load_explicit(&batch->gen, memory_order_relaxed) != (uint32_t)(id >> 32))
		return lw_fail_static(-EBADF, lw_stale_batch);
	return 0;
}

int lw_batch_status(struct lw_engine *engine, lw_batch_t id, struct lw_batch_status *out)
{
	struct lw_batch_status status;
	uint32_t pending;
	int error;

	if (engine == NULL || out == NULL)
		return lw_fail_static(-EINVAL, "engine and out must not be NULL");
	error = lw_engine_check(engine);
	if (error == 0)
		error = read_status(engine, id, &status, &pending);
	if (error == 0)
		*out = status;
	return error;
}

/* What a task was asked and how it ended, read beside its possible end and reuse. */
struct task_copy {
	struct lw_task_status status;
	uint64_t local, remote, length;
	lw_segment_t segment;
	uint8_t op;
};

/* How the task ended; of one that is alone in its batch the word may be all that tells. */
static uint32_t outcome_of(struct lw_batch *batch, struct lw_task *task)
{
	uint32_t outcome = atomic_load_explicit(&task->outcome, memory_order_acquire);
	uint64_t word;

	if (!lw_batch_is_solo(batch) || (outcome & 0xff) != LW_PENDING)
		return outcome;
	word = atomic_load_explicit(&batch->word, memory_order_acquire);
	if (lw_word_pending(word) != 0)
		return outcome;
	if (lw_word_failed(word) != 0)
		return atomic_load_explicit(&task->outcome, memory_order_acquire);
	return lw_outcome(LW_COMPLETED, LW_REASON_NONE, atomic_load_explicit(&batch->solo_lane, memory_order_relaxed));
}

static int copy_task(struct lw_engine *engine, lw_batch_t id, uint32_t number, struct task_copy *copy)
{
	struct lw_batch *batch = lw_batch_of(engine, id);
	struct lw_task *task;
	uint32_t outcome;

	if (batch == NULL)
		return lw_fail_static(-EBADF, lw_stale_batch);
	if (number >= atomic_load_explicit(&batch->submitted, memory_order_acquire)) {
		if (lw_batch_of(engine, id) == NULL)
			return lw_fail_static(-EBADF, lw_stale_batch);
		return lw_fail_static(-ERANGE, "the batch has no task of that number");
	}
	task = lw_batch_task(engine, batch, number);
	outcome = outcome_of(batch, task);
	copy->status.state = outcome & 0xff;
	copy->status.reason = outcome >> 8 & 0xff;
	copy->status.lane = outcome >> 16 == LW_LANE_NONE ? UINT32_MAX : outcome >> 16;
	/* Of a task alone in its batch the worker may have written nothing. */
	copy->status.bytes = lw_batch_is_solo(batch) && copy->status.state == LW_COMPLETED
				     ? atomic_load_explicit(&batch->bytes, memory_order_relaxed)
				     : atomic_load_explicit(&task->bytes, memory_order_relaxed);
	copy->status.error = lw_reason_errno((int)copy->status.reason);
	atomic_thread_fence(memory_order_acquire);
	if (atomic_load_explicit(&batch->gen, memory_order_relaxed) != (uint32_t)(id >> 32))
		return lw_fail_static(-EBADF, lw_stale_batch);
	return 0;
}

int lw_task_status(struct lw_engine *engine, lw_batch_t id, uint32_t number, struct lw_task_status *out)
{
	struct task_copy copy;
	int error;

	if (engine == NULL || out == NULL)
		return lw_fail_static(-EINVAL, "engine and out must not be NULL");
	error = lw_engine_check(engine);
	if (error == 0)
		error = copy_task(engine, id, number, &copy);
	if (error == 0)
		*out = copy.status;
	return error;
}

int lw_task_reason(struct lw_engine *engine, lw_batch_t id, uint32_t number, char *text, size_t size)
{
	static const char *const states[] = {"pending", "completed", "failed", "canceled", "timed out"};
	char peer[LW_NAME_MAX], where[LW_NAME_MAX];
	struct lw_batch *batch;
	struct lw_task *task;
	struct task_copy copy;
	int error, length;

	if (engine == NULL || (text == NULL && size != 0))
		return lw_fail_static(-EINVAL, "engine and text must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	error = copy_task(engine, id, number, &copy);
	if (error != 0)
		goto out;
	batch = lw_batch_of(engine, id);
	if (batch == NULL) {
		error = lw_fail_static(-EBADF, lw_stale_batch);
		goto out;
	}
	/* The request's fields do not change until the batch is freed, which the caller must not do meanwhile. */
	task = lw_batch_task(engine, batch, number);
	lw_segment_name(engine, task->segment, peer, sizeof(peer));
	lw_segment_where(engine, task->segment, task->remote, where, sizeof(where));
	length = snprintf(text, size, "%s of %llu bytes %s %s at 0x%llx%s, local 0x%llx, %s: %s",
			  task->op == LW_READ ? "READ" : "WRITE", (unsigned long long)task->length,
			  task->op == LW_READ ? "from" : "to", peer, (unsigned long long)task->remote, where,
			  (unsigned long long)task->local, states[copy.status.state],
			  lw_reason_string((int)copy.status.reason));
	error = length;
out:
	lw_engine_leave(engine);
	return error;
}

static int wait_asleep(struct lw_batch *batch, uint32_t pending, uint64_t left_ns)
{
	struct timespec pause = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000)};

	/* The low half of the word, which is the first on this byte order. */
	static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the futex is the number of pending tasks");
	syscall(SYS_futex, &batch->word, FUTEX_WAIT_PRIVATE, pending, &pause, NULL, 0);
	return 0;
}

int lw_batch_wait(struct lw_engine *engine, lw_batch_t id, uint32_t timeout_ms, struct lw_batch_status *out)
{
	struct lw_batch_status status;
	uint32_t pending;
	uint64_t start_ns = 0, now_ns = 0, limit_ns = (uint64_t)timeout_ms * 1000000;
	struct lw_batch *batch;
	uint32_t spins = 0;
	int error;

	if (engine == NULL)
		return lw_fail_static(-EINVAL, "engine must not be NULL");
	for (;;) {
		error = lw_engine_check(engine);
		if (error == 0)
			error = read_status(engine, id, &status, &pending);
		if (error != 0)
			return error;
		if (status.state != LW_PENDING)
			break;
		if (!lw_engine_caller_driven(engine)) {
			rte_pause();
		} else if (lw_engine_enter(engine) == 0) {
			lw_worker_drive(&engine->workers[0]);
			lw_engine_leave(engine);
		}
		if (spins++ % 16 != 0 && timeout_ms != 0)
			continue;
		now_ns = lw_now_ns();
		if (start_ns == 0)
			start_ns = now_ns;
		if (timeout_ms != UINT32_MAX && now_ns - start_ns >= limit_ns)
			return lw_fail_static(-ETIMEDOUT, "tasks of the batch are still pending");
		if (now_ns - start_ns < SPIN_NS || lw_engine_caller_driven(engine))
			continue;
		batch = lw_batch_of(engine, id);
		if (batch == NULL)
			continue;
		atomic_fetch_add_explicit(&batch->waiters, 1, memory_order_seq_cst);
		if (lw_word_pending(atomic_load_explicit(&batch->word, memory_order_seq_cst)) == pending) {
			uint64_t left_ns =
				timeout_ms == UINT32_MAX ? UINT64_C(100000000) : limit_ns - (now_ns - start_ns);

			/* Looks up now and then, to see the engine closed or the batch freed by another thread. */
			wait_asleep(batch, pending, left_ns < 100000000 ? left_ns : 100000000);
		}
		atomic_fetch_sub_explicit(&batch->waiters, 1, memory_order_seq_cst);
	}
	if (out != NULL)
		*out = status;
	return 0;
}

/* Whether every task has ended. Tasks are seen to end a moment before they are counted: who polls task by task may free
 * as soon as he saw the last. */
static bool all_ended(struct lw_engine *engine, struct lw_batch *batch)
{
	uint32_t submitted = atomic_load_explicit(&batch->submitted, memory_order_acquire);

	if (lw_word_pending(atomic_load_explicit(&batch->word, memory_order_acquire)) == 0)
		return true;
	for (uint32_t i = 0; i < submitted; i++) {
		uint32_t outcome =
			atomic_load_explicit(&lw_batch_task(engine, batch, i)->outcome, memory_order_acquire);

		if ((outcome & 0xff) == LW_PENDING)
			return false;
	}
	return true;
}

int lw_batch_free(struct lw_engine *engine, lw_batch_t id)
{
	uint32_t gen = (uint32_t)(id >> 32);
	struct lw_batch *batch;
	uint64_t word;
	int error;

	if (engine == NULL)
		return lw_fail_static(-EINVAL, "engine must not be NULL");
	error = lw_engine_check(engine);
	if (error != 0)
		return error;
	batch = lw_batch_of(engine, id);
	if (batch == NULL)
		return lw_fail_static(-EBADF, lw_stale_batch);
	if (!all_ended(engine, batch))
		return lw_fail_static(-EBUSY, "tasks of the batch are still pending; wait for them or cancel them");
	if (!atomic_compare_exchange_strong_explicit(&batch->gen, &gen, gen + 1, memory_order_acq_rel,
						     memory_order_relaxed))
		return lw_fail_static(-EBADF, lw_stale_batch);
	/* Workers that still count or tell hold the slot; the last of them gives it back. */
	word = atomic_fetch_or_explicit(&batch->word, LW_WORD_FREE, memory_order_acq_rel) | LW_WORD_FREE;
	if (lw_word_released(word))
		lw_batch_recycle(engine, batch);
	return 0;
}
