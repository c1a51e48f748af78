/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sched/bounce.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/sched/worker.h"

void lw_bounces_init(struct lw_bounces *bounces)
{
	*bounces = (struct lw_bounces){.copies = 0};
	TAILQ_INIT(&bounces->busy);
}

/* Pools of workers that ended, which a GPU or a disk may still use. */
static _Atomic(struct lw_bounce_pool *) left;

static void leave_pool(struct lw_bounce_pool *pool)
{
	pool->next = atomic_load(&left);
	while (!atomic_compare_exchange_weak(&left, &pool->next, pool)) {
	}
}

/* In a guard for its device. */
static void line_free(struct lw_bounce_line *line)
{
	for (uint32_t i = 0; i < line->pool->count; i++)
		if (line->event[i].gpu != NULL)
			lw_gpu_event_destroy(&line->event[i]);
	if (line->stream.gpu != NULL)
		lw_gpu_stream_destroy(&line->stream);
	free(line);
}

/* Once nothing of it is in use. */
static void pool_free(struct lw_bounce_pool *pool)
{
	struct lw_bounce_line *line, *next;
	struct lw_gpu_guard guard;

	for (line = pool->lines; line != NULL; line = next) {
		next = line->next;
		if (lw_gpu_enter_to_free(pool->gpu, line->device, &guard) != 0)
			continue; /* the runtime is gone */
		line_free(line);
		lw_gpu_leave(&guard);
	}
	if (pool->memory != NULL && lw_gpu_enter_to_free(pool->gpu, pool->device, &guard) == 0) {
		lw_gpu_host_free(pool->gpu, pool->memory);
		lw_gpu_leave(&guard);
	}
	free(pool->slot);
	free(pool);
}

/* In a guard for the device. */
static int pool_make(const struct lw_gpu *gpu, int device, uint32_t slots, uint64_t bytes, struct lw_bounce_pool **out)
{
	struct lw_bounce_pool *pool = calloc(1, sizeof(*pool));
	void *memory;
	int error = -ENOMEM;

	if (pool == NULL)
		return error;
	pool->gpu = gpu;
	pool->device = device;
	pool->bytes = bytes;
	pool->count = slots;
	STAILQ_INIT(&pool->free);
	pool->slot = calloc(slots, sizeof(*pool->slot));
	if (pool->slot != NULL)
		error = lw_gpu_host_alloc(gpu, slots * bytes, &memory);
	if (error != 0) {
		pool_free(pool);
		return error;
	}
	pool->memory = memory;
	for (uint32_t i = 0; i < slots; i++) {
		pool->slot[i] = (struct lw_bounce_slot){.memory = pool->memory + i * bytes, .pool = pool, .index = i};
		STAILQ_INSERT_TAIL(&pool->free, &pool->slot[i], link);
	}
	*out = pool;
	return 0;
}

/* In a guard for the device. */
static int line_make(struct lw_bounce_pool *pool, int device, struct lw_bounce_line **out)
{
	struct lw_bounce_line *line = calloc(1, sizeof(*line) + pool->count * sizeof(line->event[0]));
	int error;

	if (line == NULL)
		return -ENOMEM;
	line->pool = pool;
	line->device = device;
	STAILQ_INIT(&line->copying);
	error = lw_gpu_stream_create(pool->gpu, device, &line->stream);
	for (uint32_t i = 0; i < pool->count && error == 0; i++)
		error = lw_gpu_event_create(pool->gpu, &line->event[i]);
	if (error != 0) {
		line_free(line);
		return error;
	}
	*out = line;
	return 0;
}

int lw_bounces_add(struct lw_bounces *bounces, enum lw_bounce_role role, uint32_t place, const struct lw_gpu *gpu,
		   int device, uint32_t slots, uint64_t bytes)
{
	struct lw_bounce_pool **pool = &bounces->pool[role][lw_gpu_vendor_of(gpu)];
	struct lw_bounce_line *line = NULL;
	struct lw_gpu_guard guard;
	int error;

	if (atomic_load_explicit(&bounces->line[role][place], memory_order_relaxed) != NULL)
		return 0;
	error = lw_gpu_enter(gpu, device, &guard);
	if (error != 0)
		return error;
	if (*pool == NULL)
		error = pool_make(gpu, device, slots, bytes, pool);
	if (error == 0)
		error = line_make(*pool, device, &line);
	lw_gpu_leave(&guard);
	if (error != 0)
		return error;
	line->next = (*pool)->lines;
	(*pool)->lines = line;
	atomic_store_explicit(&bounces->line[role][place], line, memory_order_release);
	return 0;
}

bool lw_bounces_free(struct lw_bounces *bounces)
{
	bool all = true;

	for (int role = 0; role < LW_BOUNCE_ROLES; role++) {
		for (uint32_t i = 0; i < LW_RANGE_PLACES; i++)
			atomic_store_explicit(&bounces->line[role][i], NULL, memory_order_relaxed);
		for (int vendor = 0; vendor < LW_GPU_VENDORS; vendor++) {
			struct lw_bounce_pool *pool = bounces->pool[role][vendor];

			bounces->pool[role][vendor] = NULL;
			if (pool == NULL)
				continue;
			all &= pool->held == 0;
			if (pool->held == 0)
				pool_free(pool);
			else
				leave_pool(pool);
		}
	}
	return all;
}

bool lw_bounce_could_take(const struct lw_bounce_line *line, uint32_t holding)
{
	const struct lw_bounce_pool *pool = line->pool;

	return pool->held < pool->count && (holding == 0 || holding + pool->held < pool->count);
}

struct lw_bounce_slot *lw_bounce_take(struct lw_bounce_line *line, uint32_t holding)
{
	struct lw_bounce_pool *pool = line->pool;
	struct lw_bounce_slot *slot;

	if (!lw_bounce_could_take(line, holding))
		return NULL;
	slot = STAILQ_FIRST(&pool->free);
	STAILQ_REMOVE_HEAD(&pool->free, link);
	pool->held++;
	slot->done = NULL;
	slot->owner = NULL;
	return slot;
}

void lw_bounce_give(struct lw_bounce_slot *slot)
{
	struct lw_bounce_pool *pool = slot->pool;

	slot->done = NULL;
	slot->owner = NULL;
	if (slot->copying)
		return;
	STAILQ_INSERT_HEAD(&pool->free, slot, link);
	pool->held--;
}

int lw_bounce_copy(struct lw_worker *worker, struct lw_bounce_line *line, struct lw_bounce_slot *slot, uint64_t device,
		   uint64_t length, bool to_device)
{
	struct lw_bounces *bounces = &worker->bounces;
	void *there = (void *)(uintptr_t)device;
	struct lw_gpu_guard guard;
	int error = lw_gpu_enter(line->pool->gpu, line->device, &guard);

	if (error == 0) {
		error = lw_gpu_copy(&line->stream, to_device ? there : slot->memory, to_device ? slot->memory : there,
				    length);
		slot->copying = error == 0; /* what nobody will tell the end of is never used again */
		if (error == 0)
			error = lw_gpu_event_record(&line->event[slot->index], &line->stream);
		lw_gpu_leave(&guard);
	}
	if (error != 0) {
		lw_count(&bounces->errors, 1);
		return error;
	}
	slot->device = device;
	slot->length = length;
	if (STAILQ_EMPTY(&line->copying))
		TAILQ_INSERT_TAIL(&bounces->busy, line, link);
	STAILQ_INSERT_TAIL(&line->copying, slot, link);
	bounces->copies++;
	bounces->began_ns = worker->now_ns;
	return 0;
}

/* Takes the copies of a line that have ended off it, into ended. */
static void collect(struct lw_bounces *bounces, struct lw_bounce_line *line, struct lw_bounce_slots *ended)
{
	struct lw_bounce_slot *slot;
	struct lw_gpu_guard guard;
	int error = lw_gpu_enter(line->pool->gpu, line->device, &guard), state;

	while ((slot = STAILQ_FIRST(&line->copying)) != NULL) {
		state = error != 0 ? error : lw_gpu_event_query(&line->event[slot->index]);
		if (state == 0)
			break;
		STAILQ_REMOVE_HEAD(&line->copying, link);
		bounces->copies--;
		if (state > 0)
			lw_count(&bounces->bytes, slot->length);
		else
			lw_count(&bounces->errors, 1);
		slot->error = state < 0 ? state : 0;
		STAILQ_INSERT_TAIL(ended, slot, link);
	}
	if (error == 0)
		lw_gpu_leave(&guard);
	if (STAILQ_EMPTY(&line->copying))
		TAILQ_REMOVE(&bounces->busy, line, link);
}

bool lw_bounces_poll(struct lw_worker *worker)
{
	struct lw_bounces *bounces = &worker->bounces;
	struct lw_bounce_slots ended = STAILQ_HEAD_INITIALIZER(ended);
	struct lw_bounce_line *line, *next;
	struct lw_bounce_slot *slot;
	bool worked = false;

	for (line = TAILQ_FIRST(&bounces->busy); line != NULL; line = next) {
		next = TAILQ_NEXT(line, link);
		collect(bounces, line, &ended);
	}
	while ((slot = STAILQ_FIRST(&ended)) != NULL) {
		STAILQ_REMOVE_HEAD(&ended, link);
		slot->copying = false; /* not sooner: done of one may give others of the list back */
		worked = true;
		if (slot->done != NULL)
			slot->done(worker, slot, slot->error);
		else
			lw_bounce_give(slot);
	}
	return worked;
}

bool lw_bounces_hold(const struct lw_bounces *bounces, uint64_t addr, uint64_t end)
{
	const struct lw_bounce_line *line;
	const struct lw_bounce_slot *slot;

	TAILQ_FOREACH(line, &bounces->busy, link)
	STAILQ_FOREACH(slot, &line->copying, link)
	if (slot->device < end && slot->device + slot->length > addr)
		return true;
	return false;
}

bool lw_bounces_orphaned(const struct lw_bounces *bounces)
{
	const struct lw_bounce_line *line;
	const struct lw_bounce_slot *slot;

	TAILQ_FOREACH(line, &bounces->busy, link)
	STAILQ_FOREACH(slot, &line->copying, link)
	if (slot->done == NULL)
		return true;
	return false;
}
