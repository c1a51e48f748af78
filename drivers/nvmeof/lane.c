/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/nvmeof/lane.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "lib/engine.h"

#define OP_MAX (UINT32_C(1) << 30) /* bytes of an operation; the kernel takes 2 GiB less a page */
#define TRIES 8                    /* of an operation that the kernel wants to be asked for again */
#define REAP 64u

/* The lane's notes in a slice. */
struct progress {
	uint64_t begun; /* bytes that operations were begun for */
	uint32_t busy;  /* operations under way */
	enum lw_reason reason;
	bool recalled; /* no more operations are begun */
};
static_assert(sizeof(struct progress) <= sizeof(((struct lw_slice *)NULL)->own), "fits into a slice");

static struct nvmeof_lane *own_of(struct lw_lane *lane)
{
	return (struct nvmeof_lane *)(void *)lane->own;
}

static struct progress *progress_of(struct lw_slice *slice)
{
	return (struct progress *)(void *)slice->own;
}

static void on_answers(struct lw_io *io, uint32_t events)
{
	struct nvmeof_queue *queue = (struct nvmeof_queue *)(void *)io;

	(void)events;
	lw_worker_want(queue->worker->worker, queue->worker->driver);
}

/* Queue and lane
 * -------------------------------------------------------------------------------------------------------
 */

static int attach(struct nvmeof_lane *own, struct nvmeof_set *set)
{
	struct nvmeof_worker *worker = own->lane->worker->driver_context[own->lane->driver];
	struct nvmeof_queue *queue = set->queues[own->lane->worker->index];
	int error;

	if (queue->lanes == 0) {
		error = queue->backend->attach(queue);
		queue->io.ready = on_answers;
		if (error == 0)
			error = lw_worker_io_add(worker->worker, &queue->io, EPOLLIN | EPOLLET);
		if (error != 0)
			return error;
		worker->driver = own->lane->driver;
		queue->worker = worker;
		TAILQ_INSERT_TAIL(&worker->queues, queue, link);
	}
	queue->lanes++;
	own->queue = queue;
	own->set = nvmeof_set_hold(set);
	return 0;
}

static void stop_waiting(struct nvmeof_lane *own)
{
	if (own->waiting)
		TAILQ_REMOVE(&own->queue->waiting, own, link);
	own->waiting = false;
}

static void detach(struct nvmeof_lane *own)
{
	struct nvmeof_queue *queue = own->queue;

	if (queue == NULL)
		return;
	stop_waiting(own);
	if (--queue->lanes == 0) {
		lw_worker_io_del(own->lane->worker, &queue->io);
		TAILQ_REMOVE(&queue->worker->queues, queue, link);
		queue->worker = NULL;
	}
	own->queue = NULL;
	nvmeof_set_drop_later(own->set);
	own->set = NULL;
}

int nvmeof_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct nvmeof_lane *own = own_of(lane);
	struct nvmeof_set *set = lw_view_peer(view, lane->driver);
	int error;

	*own = (struct nvmeof_lane){.lane = lane};
	if (set == NULL)
		return -ENOTSUP;
	error = attach(own, set);
	if (error == 0)
		lw_lane_up(lane);
	return error;
}

void nvmeof_lane_close(struct lw_lane *lane)
{
	struct nvmeof_lane *own = own_of(lane);

	/* By force: the answers that come late are for nobody. */
	for (uint32_t i = 0; own->busy != 0 && i < NVMEOF_DEPTH; i++)
		if (own->queue->ops[i].busy && own->queue->ops[i].lane == own)
			own->queue->ops[i].lane = NULL;
	own->busy = 0;
	own->next = NULL;
	detach(own);
}

/* The segment was opened again and its files are others: the lane takes them when nothing is under way with the old
 * ones. False: not yet. */
static bool follow(struct nvmeof_lane *own)
{
	struct nvmeof_set *set = lw_view_peer(lw_path_view(own->lane->worker, own->lane->path), own->lane->driver);

	if (set == NULL || set == own->set)
		return true;
	if (own->busy != 0)
		return false;
	detach(own);
	return attach(own, set) == 0;
}

/* Slices become operations
 * ---------------------------------------------------------------------------------------------
 */

static enum lw_reason reason_of(int error)
{
	switch (error) {
	case -ENOSPC:
	case -EDQUOT:
	case -EFBIG:
		return LW_REASON_FILE_FULL;
	case -EROFS:
	case -EPERM:
	case -EBADF:
		return LW_REASON_FILE_READ_ONLY;
	case -EFAULT:
		return LW_REASON_FAULT;
	default:
		return LW_REASON_FILE_IO;
	}
}

/* What one operation is to do. */
struct plan {
	uint64_t offset; /* in the file */
	uint32_t length;
	uint32_t skip;   /* bytes of it before the slice's */
	uint32_t wanted; /* bytes of it that are the slice's */
	bool direct, sync, bounce;
};

static uint32_t at_most(uint64_t n, uint32_t limit)
{
	return n < limit ? (uint32_t)n : limit;
}

/* Whole blocks to aligned memory are read where they belong. The rest is read in whole blocks into a bounce buffer, and
 * the asked bytes are copied: past the page cache too, which may be older than what another host wrote. */
static struct plan plan_read(const struct nvmeof_file *file, uint64_t local, uint64_t offset, uint64_t left)
{
	uint32_t block = file->block, skip = (uint32_t)(offset % block), first = block - skip;

	if (skip == 0 && local % file->memory == 0 && left >= block) {
		uint32_t length = at_most(left - left % block, OP_MAX);

		return (struct plan){.offset = offset, .length = length, .wanted = length, .direct = true};
	}
	/* After the first block the memory may be aligned. */
	if (left > first && (local + first) % file->memory != 0)
		first = NVMEOF_BOUNCE_BYTES - skip;
	first = at_most(left, first);
	return (struct plan){.offset = offset - skip,
			     .length = (skip + first + block - 1) / block * block,
			     .skip = skip,
			     .wanted = first,
			     .direct = true,
			     .bounce = true};
}

/* Whole pages are written directly, from a bounce buffer if the memory is not aligned. Parts of a page go through the
 * page cache, which changes the bytes of the request and no others; where others than this host look at the device, on
 * to it before they are confirmed. A page is written one way or the other, since the two do not see each other inside a
 * page. */
static struct plan plan_write(const struct nvmeof_file *file, uint64_t local, uint64_t offset, uint64_t left)
{
	uint32_t page = file->block > NVMEOF_PAGE ? file->block : NVMEOF_PAGE, inside = (uint32_t)(offset % page);
	struct plan plan = {.offset = offset};

	if (inside == 0 && left >= page) {
		plan.direct = true;
		plan.bounce = local % file->memory != 0;
		plan.length = at_most(left - left % page, plan.bounce ? NVMEOF_BOUNCE_BYTES : OP_MAX);
	} else {
		plan.sync = file->sync;
		plan.length = at_most(left, page - inside);
	}
	plan.wanted = plan.length;
	return plan;
}

/* Begins one operation for the slice. 0; -EAGAIN there is none free; else a reason. */
static int begin(struct nvmeof_lane *own, struct lw_slice *slice)
{
	struct progress *progress = progress_of(slice);
	uint64_t local = slice->local + progress->begun, at = slice->remote + progress->begun;
	uint64_t left = slice->length - progress->begun;
	const struct nvmeof_file *file = nvmeof_set_find(own->set, at);
	struct nvmeof_op *op;
	struct plan plan;

	if (file == NULL)
		return LW_REASON_REMOTE_RANGE;
	if (left > file->end - at)
		left = file->end - at;
	if (at - file->begin + left > file->size)
		return LW_REASON_FILE_SHORT;
	if (slice->op == LW_WRITE && !file->writable)
		return LW_REASON_FILE_READ_ONLY;
	if (file->block == 0)
		plan = (struct plan){
			.offset = at - file->begin, .length = at_most(left, OP_MAX), .wanted = at_most(left, OP_MAX)};
	else if (slice->op == LW_READ)
		plan = plan_read(file, local, at - file->begin, left);
	else
		plan = plan_write(file, local, at - file->begin, left);
	op = nvmeof_queue_take(own->queue, plan.bounce);
	if (op == NULL)
		return -EAGAIN;
	op->memory = plan.bounce ? (void *)nvmeof_bounce(own->queue, op) : (void *)(uintptr_t)local;
	op->offset = plan.offset;
	op->length = plan.length;
	op->file = (uint32_t)(file - own->set->files);
	op->write = slice->op == LW_WRITE;
	op->direct = plan.direct;
	op->sync = plan.sync;
	op->lane = own;
	op->slice = slice;
	op->local = local;
	op->skip = plan.skip;
	op->wanted = plan.wanted;
	if (plan.bounce && op->write)
		memcpy(op->memory, (void *)(uintptr_t)local, plan.length);
	if (!own->queue->backend->push(own->queue, op)) {
		nvmeof_queue_give(own->queue, op);
		return -EAGAIN;
	}
	slice->started = true;
	progress->begun += plan.wanted;
	progress->busy++;
	own->busy++;
	return 0;
}

/* Ends the slice if nothing of it is under way or to come. */
static void end_if_over(struct nvmeof_lane *own, struct lw_slice *slice)
{
	struct progress *progress = progress_of(slice);
	bool whole = progress->begun == slice->length;

	if (progress->busy != 0 || (!whole && !progress->recalled && progress->reason == LW_REASON_NONE))
		return;
	if (slice == own->next)
		own->next = TAILQ_NEXT(slice, link);
	if (!whole && progress->reason == LW_REASON_NONE)
		progress->reason = (slice->task->flags & LW_TASK_ABORT) != 0 ? slice->task->reason : LW_REASON_CANCELED;
	lw_slice_done(own->lane, slice, progress->reason);
}

/* Begins what can be begun. True: something was. */
static bool begin_all(struct nvmeof_lane *own)
{
	bool begun = false;
	int result = 0;

	while (own->next != NULL && result != -EAGAIN) {
		struct lw_slice *slice = own->next;
		struct progress *progress = progress_of(slice);

		result = follow(own) ? 0 : -EAGAIN;
		while (result == 0 && progress->begun < slice->length && !progress->recalled &&
		       progress->reason == LW_REASON_NONE) {
			result = begin(own, slice);
			begun |= result == 0;
		}
		if (result == -EAGAIN)
			break;
		if (result != 0)
			progress->reason = (enum lw_reason)result;
		own->next = TAILQ_NEXT(slice, link);
		end_if_over(own, slice);
	}
	if (own->queue == NULL || (own->next != NULL) == own->waiting)
		return begun;
	if (own->waiting) {
		stop_waiting(own);
	} else {
		own->waiting = true;
		TAILQ_INSERT_TAIL(&own->queue->waiting, own, link);
	}
	return begun;
}

/* Begins what can be begun, and hands it over. The lane may be down afterwards. */
static void go_on(struct nvmeof_lane *own)
{
	bool begun = begin_all(own);

	if (own->queue == NULL) {
		lw_lane_down(own->lane, LW_REASON_RESOURCES); /* its new files can't be used */
	} else if (begun) {
		lw_count(&own->lane->stats.calls, 1);
		own->queue->backend->kick(own->queue);
		lw_worker_want(own->lane->worker, own->lane->driver);
	}
}

void nvmeof_post(struct lw_lane *lane, struct lw_slice *slice)
{
	struct nvmeof_lane *own = own_of(lane);

	*progress_of(slice) = (struct progress){.reason = LW_REASON_NONE};
	if (own->next == NULL)
		own->next = slice;
}

void nvmeof_flush(struct lw_lane *lane)
{
	struct nvmeof_lane *own = own_of(lane);

	if (lw_lane_state(lane) == LW_LANE_UP)
		go_on(own);
}

bool nvmeof_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	struct nvmeof_lane *own = own_of(lane);

	if (progress_of(slice)->busy != 0)
		return false;
	if (slice == own->next)
		own->next = TAILQ_NEXT(slice, link);
	if (own->next == NULL)
		stop_waiting(own);
	return true;
}

void nvmeof_recall(struct lw_lane *lane, struct lw_slice *slice)
{
	struct nvmeof_lane *own = own_of(lane);
	struct progress *progress = progress_of(slice);

	if (progress->recalled)
		return;
	progress->recalled = true;
	for (uint32_t i = 0; i < NVMEOF_DEPTH; i++) {
		struct nvmeof_op *op = &own->queue->ops[i];

		if (!op->busy || op->slice != slice || op->recalled)
			continue;
		op->recalled = true;
		own->queue->backend->recall(own->queue, op);
	}
}

/* Answers
 * --------------------------------------------------------------------------------------------------------------
 */

/* An answer that does not end its operation: the rest is asked for, or all of it again. True: it was. */
static bool ask_again(struct nvmeof_queue *queue, struct nvmeof_op *op, uint32_t moved)
{
	if (op->recalled || op->tries++ == TRIES)
		return false;
	op->memory = (unsigned char *)op->memory + moved;
	op->offset += moved;
	op->length -= moved;
	op->got += moved;
	return queue->backend->push(queue, op);
}

/* What the answer means. True: the operation goes on. */
static bool judge(struct nvmeof_queue *queue, struct nvmeof_op *op, enum lw_reason *reason)
{
	const struct nvmeof_file *file = &queue->set->files[op->file];
	int error = op->error;
	uint32_t moved = error > 0 ? (uint32_t)error : 0;

	*reason = LW_REASON_NONE;
	if (error < 0) {
		if ((error == -EAGAIN || error == -EINTR || error == -ECANCELED) && ask_again(queue, op, 0))
			return true;
		*reason = op->recalled && error == -ECANCELED ? op->slice->task->reason : reason_of(error);
		if (error == -ENODEV || error == -ENXIO || error == -EIO)
			atomic_store_explicit(&queue->set->broken, true, memory_order_relaxed);
		return false;
	}
	if (op->got + moved >= op->skip + op->wanted)
		return false;
	/* The end of the file; a direct request that ends inside a block met it, too. */
	if (!op->write && (moved == 0 || (op->direct && moved % file->block != 0))) {
		*reason = LW_REASON_FILE_SHORT;
		return false;
	}
	if (moved != 0 && (!op->direct || moved % file->block == 0) && ask_again(queue, op, moved))
		return true;
	*reason = op->recalled ? op->slice->task->reason : LW_REASON_FILE_IO;
	return false;
}

/* True: the operation goes on. */
static bool answered(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	struct nvmeof_lane *own = op->lane;
	struct lw_slice *slice = op->slice;
	struct progress *progress;
	enum lw_reason reason;

	if (own == NULL) {
		nvmeof_queue_give(queue, op);
		return false;
	}
	if (judge(queue, op, &reason))
		return true;
	progress = progress_of(slice);
	if (reason == LW_REASON_NONE && op->bounce != NVMEOF_NO_BOUNCE && !op->write)
		memcpy((void *)(uintptr_t)op->local, nvmeof_bounce(queue, op) + op->skip, op->wanted);
	if (progress->reason == LW_REASON_NONE)
		progress->reason = reason;
	progress->busy--;
	own->busy--;
	nvmeof_queue_give(queue, op);
	end_if_over(own, slice);
	return false;
}

static bool poll_queue(struct nvmeof_queue *queue)
{
	struct nvmeof_op *done[REAP];
	struct nvmeof_lane *own, *next;
	uint32_t count = 0;
	bool again = false;

	if (queue->inflight != 0)
		count = queue->backend->reap(queue, done, REAP);
	for (uint32_t i = 0; i < count; i++)
		again |= answered(queue, done[i]);
	if (again)
		queue->backend->kick(queue);
	/* A worker that is awake looks in each pass; one that sleeps is woken. */
	if (queue->inflight != 0)
		lw_worker_want(queue->worker->worker, queue->worker->driver);
	/* The queue is another set's, and may be gone, for a lane that leaves it here. */
	for (own = TAILQ_FIRST(&queue->waiting); own != NULL; own = next) {
		next = TAILQ_NEXT(own, link);
		go_on(own);
	}
	return count != 0;
}

bool nvmeof_poll(void *worker_context)
{
	struct nvmeof_worker *worker = worker_context;
	struct nvmeof_queue *queue, *next;
	bool more = false;

	for (queue = TAILQ_FIRST(&worker->queues); queue != NULL; queue = next) {
		next = TAILQ_NEXT(queue, link);
		more |= poll_queue(queue);
	}
	return more;
}
