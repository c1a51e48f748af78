/* SPDX-License-Identifier: Apache-2.0 */
/* Cancel: a command to every worker, from a slab sized at start. The worker looks among its own tasks, so a handle that
 * went stale on the way matches nothing, and a batch whose tasks are under way can't have been freed.
 */
#include <errno.h>
#include <stdlib.h>

#include "lib/engine.h"
#include "lib/error.h"

#define CANCELS 1024u

struct lw_cancel {
	struct lw_command command; /* first: the worker gets its address */
	lw_batch_t batch;          /* 0: by segment */
	uint32_t task;             /* UINT32_MAX: all */
	lw_segment_t segment;
};

int lw_cancel_init(struct lw_engine *engine)
{
	engine->cancels = calloc(CANCELS, sizeof(*engine->cancels));
	engine->cancels_next = calloc(CANCELS, sizeof(*engine->cancels_next));
	if (engine->cancels == NULL || engine->cancels_next == NULL)
		return lw_fail(-ENOMEM, "no memory for the engine's tables");
	lw_slab_init(&engine->cancel_slab, engine->cancels_next, CANCELS);
	return 0;
}

void lw_cancel_fini(struct lw_engine *engine)
{
	free(engine->cancels);
	free(engine->cancels_next);
	engine->cancels = NULL;
	engine->cancels_next = NULL;
}

static void cancel_run(struct lw_worker *worker, struct lw_command *command)
{
	struct lw_cancel *cancel = (struct lw_cancel *)(void *)command;
	struct lw_engine *engine = worker->engine;
	struct lw_abort abort = {.reason = LW_REASON_CANCELED, .batch = LW_INDEX_NONE};
	struct lw_path *path;

	/* What was submitted before the cancel is in the rings still, maybe. */
	for (uint32_t i = 0; i < worker->intake_count; i++)
		lw_worker_intake_drain(worker, &worker->intakes[worker->intake_list[i]]);
	if (cancel->batch == 0) {
		struct lw_segment_slot *slot = lw_segment_of(engine, cancel->segment);

		for (uint32_t pair = 0; slot != NULL && pair < LW_PAIRS; pair++) {
			path = lw_worker_path(worker, (uint32_t)(slot - engine->segments), pair);
			if (path->gen != 0)
				lw_path_abort(worker, path, &abort);
		}
	} else {
		struct lw_batch *batch = lw_batch_of(engine, cancel->batch);

		abort.batch = (uint32_t)cancel->batch & LW_HANDLE_INDEX_MASK;
		if (batch != NULL && cancel->task != UINT32_MAX)
			abort.task = lw_batch_task(engine, batch, cancel->task);
		for (path = batch != NULL ? TAILQ_FIRST(&worker->live) : NULL; path != NULL;
		     path = TAILQ_NEXT(path, live_link))
			lw_path_abort(worker, path, &abort);
	}
	lw_slab_give(&engine->cancel_slab, (uint32_t)(cancel - engine->cancels));
}

static int send_all(struct lw_engine *engine, lw_batch_t batch, uint32_t task, lw_segment_t segment)
{
	uint32_t taken[64] = {0}; /* the most workers there can be */
	uint32_t count = 0;

	for (; count < engine->worker_count; count++) {
		taken[count] = lw_slab_take(&engine->cancel_slab);
		if (taken[count] == LW_SLAB_NONE)
			break;
	}
	if (count < engine->worker_count) {
		while (count > 0)
			lw_slab_give(&engine->cancel_slab, taken[--count]);
		return lw_fail_static(-EAGAIN, "too many cancels are under way; call again");
	}
	for (uint32_t i = 0; i < count; i++) {
		struct lw_cancel *cancel = &engine->cancels[taken[i]];

		*cancel =
			(struct lw_cancel){.command.run = cancel_run, .batch = batch, .task = task, .segment = segment};
		lw_worker_send(&engine->workers[i], &cancel->command);
	}
	return 0;
}

int lw_batch_cancel(struct lw_engine *engine, lw_batch_t batch)
{
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	if (lw_batch_of(engine, batch) == NULL)
		error = lw_fail_static(-EBADF, "the batch handle is stale, made up or another engine's");
	else
		error = send_all(engine, batch, UINT32_MAX, 0);
	lw_engine_leave(engine);
	return error;
}

int lw_task_cancel(struct lw_engine *engine, lw_batch_t id, uint32_t task)
{
	struct lw_batch *batch;
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	batch = lw_batch_of(engine, id);
	if (batch == NULL)
		error = lw_fail_static(-EBADF, "the batch handle is stale, made up or another engine's");
	else if (task >= atomic_load_explicit(&batch->submitted, memory_order_acquire))
		error = lw_fail_static(-ERANGE, "the batch has no task of that number");
	else
		error = send_all(engine, id, task, 0);
	lw_engine_leave(engine);
	return error;
}

int lw_segment_cancel(struct lw_engine *engine, lw_segment_t segment)
{
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	if (lw_segment_of(engine, segment) == NULL)
		error = lw_fail_static(-EBADF, "the segment handle is stale, made up or another engine's");
	else
		error = send_all(engine, 0, UINT32_MAX, segment);
	lw_engine_leave(engine);
	return error;
}
