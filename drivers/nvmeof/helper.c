/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for systems that allow no io_uring: a thread of the queue's own that makes the calls one by one, so that
 * the worker never waits. Two rings of one producer and one consumer, and nobody takes a lock:
 *
 *   asked    the worker -> the thread    kick (A) with release, the thread's acquire (A1)
 *   done     the thread -> the worker    finish (D) with release, reap's acquire (D1)
 *
 * The thread sleeps on the word "asked" itself. The worker is told by an eventfd.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "drivers/nvmeof/lane.h"

#define MASK (NVMEOF_DEPTH - 1)
_Static_assert((NVMEOF_DEPTH & MASK) == 0, "rings are powers of two");

struct nvmeof_helper_thread {
	pthread_t thread;
	int fd;
	struct nvmeof_queue *queue;
	uint32_t pushed; /* the worker's: put into ask so far; asked is what the thread may see */
	uint32_t taken;  /* the worker's: answers so far */
	atomic_bool stop;
	alignas(64) _Atomic uint32_t asked;
	_Atomic uint32_t asleep;
	alignas(64) _Atomic uint32_t done;
	struct nvmeof_op *ask[NVMEOF_DEPTH];
	struct nvmeof_op *answer[NVMEOF_DEPTH];
	_Atomic bool recalled[NVMEOF_DEPTH]; /* by the operation's number */
};

static void carry_out(struct nvmeof_helper_thread *helper, struct nvmeof_op *op)
{
	const struct nvmeof_set *set = helper->queue->set;
	int fd = set->descriptors[2 * op->file + (op->direct ? 0 : 1)];
	struct iovec piece = {op->memory, op->length};
	ssize_t moved;

	if (atomic_load_explicit(&helper->recalled[op - helper->queue->ops], memory_order_relaxed)) {
		op->error = -ECANCELED;
		return;
	}
	if (op->write)
		moved = pwritev2(fd, &piece, 1, (off_t)op->offset, op->sync ? RWF_DSYNC : 0);
	else
		moved = preadv2(fd, &piece, 1, (off_t)op->offset, 0);
	op->error = moved < 0 ? -errno : (int32_t)moved;
}

/* Sleeps while nothing but what was done is asked for. */
static void wait_for_more(struct nvmeof_helper_thread *helper, uint32_t done)
{
	atomic_store(&helper->asleep, 1); /* then look again; kick stores asked first and looks at asleep then */
	if (atomic_load(&helper->asked) == done && !atomic_load(&helper->stop))
		syscall(SYS_futex, &helper->asked, FUTEX_WAIT_PRIVATE, done, NULL, NULL, 0);
	atomic_store(&helper->asleep, 0);
}

static void *run(void *arg)
{
	struct nvmeof_helper_thread *helper = arg;
	const uint64_t one = 1;
	uint32_t done = 0;

	pthread_setname_np(pthread_self(), "lw-file");
	while (!atomic_load(&helper->stop)) {
		struct nvmeof_op *op;

		if (atomic_load_explicit(&helper->asked, memory_order_acquire) == done) { /* A1 */
			wait_for_more(helper, done);
			continue;
		}
		op = helper->ask[done & MASK];
		carry_out(helper, op);
		helper->answer[done & MASK] = op;
		atomic_store_explicit(&helper->done, ++done, memory_order_release); /* D */
		while (write(helper->fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
	return NULL;
}

static int helper_open(struct nvmeof_queue *queue, bool one_thread, char *why, size_t why_size)
{
	struct nvmeof_helper_thread *helper = aligned_alloc(64, (sizeof(*helper) + 63) / 64 * 64);
	sigset_t all, before;
	int error = ENOMEM;

	(void)one_thread;
	if (helper == NULL)
		goto fail;
	*helper = (struct nvmeof_helper_thread){.queue = queue};
	helper->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (helper->fd < 0) {
		error = errno;
		goto fail;
	}
	queue->helper = helper;
	queue->io.fd = helper->fd;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&helper->thread, NULL, run, helper);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error == 0)
		return 0;
	close(helper->fd);
fail:
	snprintf(why, why_size, "no helper thread: %s", strerror(error));
	free(helper);
	return -error;
}

static int helper_attach(struct nvmeof_queue *queue)
{
	queue->attached = true;
	return 0;
}

static bool helper_push(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	struct nvmeof_helper_thread *helper = queue->helper;

	atomic_store_explicit(&helper->recalled[op - queue->ops], op->recalled, memory_order_relaxed);
	helper->ask[helper->pushed++ & MASK] = op;
	return true;
}

static void helper_kick(struct nvmeof_queue *queue)
{
	struct nvmeof_helper_thread *helper = queue->helper;

	atomic_store(&helper->asked, helper->pushed); /* A */
	if (atomic_load(&helper->asleep) != 0)
		syscall(SYS_futex, &helper->asked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static uint32_t helper_reap(struct nvmeof_queue *queue, struct nvmeof_op **done, uint32_t max)
{
	struct nvmeof_helper_thread *helper = queue->helper;
	uint32_t count = 0, there;

	there = atomic_load_explicit(&helper->done, memory_order_acquire); /* D1 */
	while (helper->taken != there && count < max)
		done[count++] = helper->answer[helper->taken++ & MASK];
	return count;
}

static void helper_recall(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	atomic_store_explicit(&queue->helper->recalled[op - queue->ops], true, memory_order_relaxed);
}

static void helper_close(struct nvmeof_queue *queue)
{
	struct nvmeof_helper_thread *helper = queue->helper;

	atomic_store(&helper->stop, true);
	syscall(SYS_futex, &helper->asked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	if (queue->inflight != 0) { /* it hangs in a call: it ends with it, and what it uses stays */
		pthread_detach(helper->thread);
		return;
	}
	pthread_join(helper->thread, NULL);
	close(helper->fd);
	free(helper);
}

static void helper_forked(struct nvmeof_queue *queue)
{
	close(queue->io.fd);
}

const struct nvmeof_backend nvmeof_helper = {
	.name = "helper thread",
	.open = helper_open,
	.attach = helper_attach,
	.push = helper_push,
	.kick = helper_kick,
	.reap = helper_reap,
	.recall = helper_recall,
	.close = helper_close,
	.forked = helper_forked,
};
