/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/shm/shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "lib/engine.h"

#define CREDITS 1024u
#define AT_ONCE (16u * 1024)     /* a request up to this is copied at once, if none is before it */
#define PASS_BYTES (256u * 1024) /* copied in one pass, so that the worker's other lanes get their turn */

/* A worker's lanes with slices that wait for their copy. */
struct shm_worker {
	TAILQ_HEAD(, shm_lane) busy; /* whose turn is next comes first */
};

struct shm_lane {
	TAILQ_ENTRY(shm_lane) link;
	struct lw_lane *lane;
	struct lw_slice *next; /* first slice that is not copied completely; NULL: not in the busy list */
	uint64_t copied;       /* bytes of next */
};

static struct shm_lane *own_of(struct lw_lane *lane)
{
	return (struct shm_lane *)(void *)lane->own;
}

static int shm_open(struct lw_engine *engine, void **context, char *why, size_t why_size)
{
	(void)engine;
	(void)why;
	(void)why_size;
	*context = NULL;
	return 0;
}

static void shm_close(void *context)
{
	(void)context;
}

static int shm_worker_open(void *context, struct lw_worker *worker, void **worker_context)
{
	struct shm_worker *own = calloc(1, sizeof(*own));

	(void)context;
	(void)worker;
	if (own == NULL)
		return -ENOMEM;
	TAILQ_INIT(&own->busy);
	*worker_context = own;
	return 0;
}

static void shm_worker_close(void *worker_context)
{
	free(worker_context);
}

static int shm_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct shm_lane *own = own_of(lane);

	(void)view;
	own->lane = lane;
	own->next = NULL;
	lw_lane_up(lane);
	return 0;
}

static void shm_lane_close(struct lw_lane *lane)
{
	struct shm_lane *own = own_of(lane);

	struct shm_worker *worker = lane->worker->driver_context[lane->driver];

	if (own->next != NULL)
		TAILQ_REMOVE(&worker->busy, own, link);
	own->next = NULL;
}

static void copy(uint8_t op, uint64_t local, uint64_t remote, uint64_t length)
{
	/* Both may be the same memory. */
	if (op == LW_WRITE)
		memmove((void *)(uintptr_t)remote, (void *)(uintptr_t)local, length);
	else
		memmove((void *)(uintptr_t)local, (void *)(uintptr_t)remote, length);
}

static bool shm_now(struct lw_lane *lane, uint8_t op, uint64_t local, uint64_t remote, uint64_t length)
{
	if (length > AT_ONCE || own_of(lane)->next != NULL)
		return false;
	copy(op, local, remote, length);
	return true;
}

static void shm_post(struct lw_lane *lane, struct lw_slice *slice)
{
	struct shm_worker *worker = lane->worker->driver_context[lane->driver];
	struct shm_lane *own = own_of(lane);

	if (own->next != NULL)
		return;
	own->next = slice;
	own->copied = 0;
	lw_worker_want(lane->worker, lane->driver);
	TAILQ_INSERT_TAIL(&worker->busy, own, link);
}

static void shm_flush(struct lw_lane *lane)
{
	(void)lane;
}

static bool shm_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	const struct shm_lane *own = own_of(lane);

	return slice->started || slice == own->next ? false : true;
}

/* Copies for one lane; the bytes left of the budget. */
static uint64_t work(struct shm_worker *worker, struct shm_lane *own, uint64_t budget)
{
	while (own->next != NULL && budget > 0) {
		struct lw_slice *slice = own->next;
		uint64_t left = slice->length - own->copied;
		uint64_t here = left < budget ? left : budget;

		slice->started = true;
		copy(slice->op, slice->local + own->copied, slice->remote + own->copied, here);
		own->copied += here;
		budget -= here;
		if (here < left)
			break;
		own->next = TAILQ_NEXT(slice, link);
		own->copied = 0;
		if (own->next == NULL)
			TAILQ_REMOVE(&worker->busy, own, link);
		lw_slice_done(own->lane, slice, LW_REASON_NONE);
	}
	return budget;
}

static bool shm_poll(void *worker_context)
{
	struct shm_worker *worker = worker_context;
	uint64_t budget = PASS_BYTES;
	struct shm_lane *own;

	while (budget > 0 && (own = TAILQ_FIRST(&worker->busy)) != NULL) {
		budget = work(worker, own, budget);
		if (own->next == NULL)
			continue;
		/* The budget is used up: the others first in the next pass. */
		TAILQ_REMOVE(&worker->busy, own, link);
		TAILQ_INSERT_TAIL(&worker->busy, own, link);
	}
	return !TAILQ_EMPTY(&worker->busy);
}

const struct lw_driver_ops lw_shm_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "shm",
	.lane_bytes = sizeof(struct shm_lane),
	.credits = CREDITS,
	.open = shm_open,
	.close = shm_close,
	.worker_open = shm_worker_open,
	.worker_close = shm_worker_close,
	.lane_open = shm_lane_open,
	.lane_close = shm_lane_close,
	.now = shm_now,
	.post = shm_post,
	.flush = shm_flush,
	.unpost = shm_unpost,
	.poll = shm_poll,
};
