/* SPDX-License-Identifier: Apache-2.0 */
/* The backend that most systems have: one io_uring. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "drivers/nvmeof/set.h"

#define COMPLETIONS (2 * NVMEOF_DEPTH) /* each operation's, and that of its recall */

/* The worker's thread alone submits and takes answers, so the kernel need not interrupt it: it finishes its part when
 * the worker asks. Older kernels, and engines that any thread may drive, do without. */
static int set_up(struct nvmeof_queue *queue, bool one_thread)
{
	struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE | IORING_SETUP_R_DISABLED |
						  IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
						  IORING_SETUP_TASKRUN_FLAG,
					 .cq_entries = COMPLETIONS};
	int error = -EINVAL;

	queue->deferred = one_thread;
	if (one_thread)
		error = io_uring_queue_init_params(NVMEOF_DEPTH, &queue->ring, &params);
	if (error != -EINVAL)
		return error;
	queue->deferred = false;
	params = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .cq_entries = COMPLETIONS};
	return io_uring_queue_init_params(NVMEOF_DEPTH, &queue->ring, &params);
}

static void uring_close(struct nvmeof_queue *queue)
{
	io_uring_queue_exit(&queue->ring);
	if (queue->io.fd >= 0)
		close(queue->io.fd);
}

static int uring_open(struct nvmeof_queue *queue, bool one_thread, char *why, size_t why_size)
{
	const struct nvmeof_set *set = queue->set;
	int error = set_up(queue, one_thread);

	if (error != 0) {
		snprintf(why, why_size, "no io_uring: %s", strerror(-error));
		return error;
	}
	/* Without it, too: the kernel looks the descriptor up each time then. */
	queue->fixed = io_uring_register_files(&queue->ring, set->descriptors, 2 * set->file_count) == 0;
	/* A ring whose work is finished by the asking thread does not itself become readable in all kernels. */
	queue->io.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	error = queue->io.fd < 0 ? -errno : io_uring_register_eventfd(&queue->ring, queue->io.fd);
	if (error == 0)
		return 0;
	snprintf(why, why_size, "no eventfd: %s", strerror(-error));
	uring_close(queue);
	return error;
}

static int uring_attach(struct nvmeof_queue *queue)
{
	int error = 0;

	if (queue->deferred && !queue->attached)
		/* io_uring_enable_rings is not in the symbol map of liburing 2.3. */
		error = io_uring_register((unsigned)queue->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	if (error < 0)
		return error;
	queue->attached = true;
	return 0;
}

static struct io_uring_sqe *next_entry(struct nvmeof_queue *queue)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);

	if (sqe == NULL) {
		io_uring_submit(&queue->ring);
		sqe = io_uring_get_sqe(&queue->ring);
	}
	return sqe;
}

static bool uring_push(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	const struct nvmeof_set *set = queue->set;
	struct io_uring_sqe *sqe = next_entry(queue);
	uint32_t place = 2 * op->file + (op->direct ? 0 : 1);
	int fd = queue->fixed ? (int)place : set->descriptors[place];

	if (sqe == NULL)
		return false;
	if (op->write)
		io_uring_prep_write(sqe, fd, op->memory, op->length, op->offset);
	else
		io_uring_prep_read(sqe, fd, op->memory, op->length, op->offset);
	if (queue->fixed)
		sqe->flags |= IOSQE_FIXED_FILE;
	if (op->sync)
		sqe->rw_flags = RWF_DSYNC;
	io_uring_sqe_set_data(sqe, op);
	return true;
}

static void uring_kick(struct nvmeof_queue *queue)
{
	/* What the kernel does not take now stays in the ring, and goes with the next call. */
	io_uring_submit(&queue->ring);
}

static uint32_t uring_reap(struct nvmeof_queue *queue, struct nvmeof_op **done, uint32_t max)
{
	struct io_uring_cqe *cqes[64];
	uint32_t count = 0;
	unsigned got;

	/* Memory of ours and the kernel's tells whether there is anything; a look costs no call. */
	if (io_uring_sq_ready(&queue->ring) != 0) /* the kernel did not take them before */
		io_uring_submit(&queue->ring);
	got = io_uring_peek_batch_cqe(&queue->ring, cqes, max < 64 ? max : 64);
	for (unsigned i = 0; i < got; i++) {
		struct nvmeof_op *op = io_uring_cqe_get_data(cqes[i]);

		if (op == NULL) /* a recall's own */
			continue;
		op->error = cqes[i]->res;
		done[count++] = op;
	}
	io_uring_cq_advance(&queue->ring, got);
	return count;
}

static void uring_recall(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	struct io_uring_sqe *sqe = next_entry(queue);

	if (sqe == NULL)
		return;
	io_uring_prep_cancel(sqe, op, 0);
	io_uring_sqe_set_data(sqe, NULL);
	io_uring_submit(&queue->ring);
}

static void uring_forked(struct nvmeof_queue *queue)
{
	close(queue->ring.ring_fd);
	close(queue->io.fd);
}

const struct nvmeof_backend nvmeof_uring = {
	.name = "io_uring",
	.open = uring_open,
	.attach = uring_attach,
	.push = uring_push,
	.kick = uring_kick,
	.reap = uring_reap,
	.recall = uring_recall,
	.close = uring_close,
	.forked = uring_forked,
};
