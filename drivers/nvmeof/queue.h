/* SPDX-License-Identifier: Apache-2.0 */
/* A queue: how one worker reads and writes the files of one set. Made by the thread that opens the segment, used by the
 * worker's thread alone, freed by neither (set.h).
 *
 * A backend carries the operations out: io_uring (uring.c), or a helper thread where io_uring is not allowed
 * (helper.c). Operations end in any order, each exactly once.
 */
#ifndef LW_NVMEOF_QUEUE_H
#define LW_NVMEOF_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <liburing.h>

#include "lib/sched/worker.h"

#define NVMEOF_DEPTH 256u                /* operations under way */
#define NVMEOF_BOUNCES 32u               /* of them, through memory of ours */
#define NVMEOF_BOUNCE_BYTES (128u << 10) /* each */
#define NVMEOF_NO_BOUNCE UINT8_MAX

struct nvmeof_lane;
struct nvmeof_queue;
struct nvmeof_set;
struct nvmeof_worker;

/* One read or write of one file. */
struct nvmeof_op {
	/* what the backend is to do */
	void *memory;
	uint64_t offset; /* in the file */
	uint32_t length;
	uint32_t file; /* in the set */
	bool write;
	bool direct;   /* past the page cache; else through it */
	bool sync;     /* a write has reached the device when it ends */
	int32_t error; /* the backend's answer: bytes, or a negative errno */
	/* the lane's */
	struct nvmeof_lane *lane; /* NULL: it was closed by force; the answer is for nobody */
	struct lw_slice *slice;
	uint64_t local;  /* READ through a bounce buffer: where the bytes go */
	uint32_t skip;   /* the same: bytes of the block before the asked ones */
	uint32_t wanted; /* bytes of the slice that this operation is about */
	uint32_t got;    /* bytes that moved in earlier tries */
	uint8_t bounce;  /* number of the bounce buffer, or NVMEOF_NO_BOUNCE */
	uint8_t tries;
	bool busy;
	bool recalled;
};

struct nvmeof_backend {
	const char *name;
	/* The opener's thread; may block. 0, or a negative errno and the reason in why. */
	int (*open)(struct nvmeof_queue *queue, bool one_thread, char *why, size_t why_size);
	/* From here on the worker's thread; none blocks or allocates. attach comes first: queue->io.fd is an eventfd
	 * that counts on when there is an answer, and need not be read. 0, or a negative errno. */
	int (*attach)(struct nvmeof_queue *queue);
	/* Takes an operation; it may begin now or in kick. At most NVMEOF_DEPTH are under way. False: not now, try
	 * again after an answer or a millisecond. */
	bool (*push)(struct nvmeof_queue *queue, struct nvmeof_op *op);
	void (*kick)(struct nvmeof_queue *queue);
	/* Takes at most max answers; their number. Cheap when there is none. */
	uint32_t (*reap)(struct nvmeof_queue *queue, struct nvmeof_op **done, uint32_t max);
	/* Asks for the early end of an operation, with -ECANCELED; it may be too late. */
	void (*recall)(struct nvmeof_queue *queue, struct nvmeof_op *op);
	/* Any thread; nothing is pushed any more. May block for a moment. */
	void (*close)(struct nvmeof_queue *queue);
	/* In a forked child: closes its copies of descriptors, and does nothing else. */
	void (*forked)(struct nvmeof_queue *queue);
};

extern const struct nvmeof_backend nvmeof_uring;
extern const struct nvmeof_backend nvmeof_helper;
/* For tests, before an engine is opened: not NULL, this one is used. */
extern const struct nvmeof_backend *nvmeof_backend_forced;

struct nvmeof_queue {
	struct lw_io io; /* first: the worker gives it back */
	const struct nvmeof_backend *backend;
	struct nvmeof_set *set;
	struct nvmeof_worker *worker;   /* NULL: no lane uses it */
	TAILQ_ENTRY(nvmeof_queue) link; /* among the worker's, while lanes use it */
	uint32_t lanes;
	TAILQ_HEAD(, nvmeof_lane) waiting; /* for operations that end */
	uint32_t inflight;
	struct nvmeof_op *ops;
	uint16_t free_ops[NVMEOF_DEPTH];
	uint32_t free_ops_count;
	unsigned char *bounces;
	uint8_t free_bounces[NVMEOF_BOUNCES];
	uint32_t free_bounces_count;
	struct nvmeof_queue *next_kept;
	/* the backend's */
	bool attached;
	union {
		struct {
			struct io_uring ring;
			bool fixed; /* the set's files are registered */
			bool deferred;
		};
		struct nvmeof_helper_thread *helper;
		void *other;
	};
};

/* The queue of one worker. one_thread: it is always the same one. 0; -ENOMEM, and what the backend says; why. */
int nvmeof_queue_open(struct nvmeof_set *set, const struct nvmeof_backend *backend, bool one_thread,
		      struct nvmeof_queue **out, char *why, size_t why_size);
void nvmeof_queue_close(struct nvmeof_queue *queue);

/* An operation that is free, and maybe a bounce buffer. NULL: there is none. The worker. */
struct nvmeof_op *nvmeof_queue_take(struct nvmeof_queue *queue, bool bounce);
void nvmeof_queue_give(struct nvmeof_queue *queue, struct nvmeof_op *op);

static inline unsigned char *nvmeof_bounce(const struct nvmeof_queue *queue, const struct nvmeof_op *op)
{
	return queue->bounces + (size_t)op->bounce * NVMEOF_BOUNCE_BYTES;
}

#endif
