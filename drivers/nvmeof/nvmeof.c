/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's table, and how it works here. */
#include "drivers/nvmeof/nvmeof.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drivers/nvmeof/lane.h"
#include "lib/engine.h"

#define CREDITS 128u

/* Whether this process may have an io_uring: seccomp, a sysctl or the kernel may say no. */
static int probe(void)
{
	struct io_uring ring;
	int error = io_uring_queue_init(1, &ring, 0);

	if (error == 0)
		io_uring_queue_exit(&ring);
	return error;
}

static int nvmeof_open(struct lw_engine *engine, void **out, char *note, size_t note_size)
{
	struct nvmeof *context = calloc(1, sizeof(*context));
	int error;

	if (context == NULL) {
		snprintf(note, note_size, "no memory");
		return -ENOMEM;
	}
	atomic_init(&context->refs, 1);
	context->engine = engine;
	LIST_INIT(&context->sets);
	pthread_mutex_init(&context->lock, NULL);
	context->backend = nvmeof_backend_forced != NULL ? nvmeof_backend_forced : &nvmeof_uring;
	error = context->backend == &nvmeof_uring ? probe() : 0;
	if (error != 0) {
		context->backend = &nvmeof_helper;
		snprintf(note, note_size, "files are read and written by helper threads: no io_uring here (%s)",
			 strerror(-error));
	}
	*out = context;
	return 0;
}

static void nvmeof_close(void *arg)
{
	struct nvmeof *context = arg;

	atomic_store(&context->closed, true);
	nvmeof_context_drop(context);
}

static int nvmeof_worker_open(void *context, struct lw_worker *worker, void **worker_context)
{
	struct nvmeof_worker *own = calloc(1, sizeof(*own));

	if (own == NULL)
		return -ENOMEM;
	own->context = context;
	own->worker = worker;
	TAILQ_INIT(&own->queues);
	*worker_context = own;
	return 0;
}

static void nvmeof_worker_close(void *worker_context)
{
	free(worker_context);
}

static void nvmeof_forked(void *worker_context)
{
	const struct nvmeof_worker *own = worker_context;
	const struct nvmeof_set *set;

	if (own->worker->index != 0)
		return;
	LIST_FOREACH(set, &own->context->sets, link)
	{
		for (uint32_t i = 0; i < 2 * set->file_count; i++)
			if (set->descriptors[i] >= 0)
				close(set->descriptors[i]);
		for (uint32_t i = 0; i < set->queue_count; i++)
			set->queues[i]->backend->forked(set->queues[i]);
	}
}

const struct lw_driver_ops lw_nvmeof_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "nvmeof",
	.lane_bytes = sizeof(struct nvmeof_lane),
	.credits = CREDITS,
	.peer_cuts = 1,
	.align = NVMEOF_PAGE,
	.lanes = 1,
	.open = nvmeof_open,
	.close = nvmeof_close,
	.reach = nvmeof_reach,
	.forget = nvmeof_forget,
	.where = nvmeof_where,
	.worker_open = nvmeof_worker_open,
	.worker_close = nvmeof_worker_close,
	.forked = nvmeof_forked,
	.lane_open = nvmeof_lane_open,
	.lane_close = nvmeof_lane_close,
	.post = nvmeof_post,
	.flush = nvmeof_flush,
	.unpost = nvmeof_unpost,
	.recall = nvmeof_recall,
	.poll = nvmeof_poll,
};
