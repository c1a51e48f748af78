/* SPDX-License-Identifier: Apache-2.0 */
/* Sets: the files of one segment, open, with a queue for each worker.
 *
 * A set is held by the views that reach gave it to, and by the lanes that use it; the last one to let go frees it, a
 * worker through the control thread. A segment that is opened again while its files are the same has the same set.
 */
#ifndef LW_NVMEOF_SET_H
#define LW_NVMEOF_SET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "drivers/nvmeof/queue.h"
#include "meta/ctrl.h"
#include "meta/descriptor.h"

struct lw_engine;

/* The driver in one engine; sets outlive its closing. */
struct nvmeof {
	_Atomic uint32_t refs;
	struct lw_engine *engine;
	const struct nvmeof_backend *backend;
	atomic_bool closed; /* the engine ends: what takes a while is waited for */
	pthread_mutex_t lock;
	LIST_HEAD(, nvmeof_set) sets; /* under the lock */
};

struct nvmeof_file {
	char *path;               /* as this host has it; or a target's namespace, by its URL */
	char *node;               /* what is opened: path, or the namespace's device */
	struct lw_fabric *fabric; /* the hold on its connection; NULL: path is one */
	uint64_t begin;           /* in the segment */
	uint64_t end;
	uint64_t size;   /* when it was opened */
	uint32_t block;  /* direct: offsets and lengths are multiples of it; 0: the page cache carries everything */
	uint32_t memory; /* direct: addresses are multiples of it */
	uint32_t access; /* as described */
	bool writable;
	bool sync; /* others than this host may look at it: what went through the page cache has to go on at once */
	dev_t device, rdevice;
	ino_t inode;
};

struct nvmeof_set {
	_Atomic uint32_t refs;
	atomic_bool broken; /* a file's device is gone: the next open begins anew */
	struct nvmeof *context;
	LIST_ENTRY(nvmeof_set) link;
	struct lw_ctrl_job drop_job;
	char name[LW_NAME_MAX];
	uint32_t file_count;
	struct nvmeof_file *files;
	int *descriptors; /* two a file: past the page cache (-1: it can't), and through it */
	uint32_t queue_count;
	struct nvmeof_queue *queues[]; /* one a worker */
};

/* As in lw_driver_ops. */
int nvmeof_reach(void *arg, const struct lw_desc *desc, void **peer, char *why, size_t why_size);
void nvmeof_forget(void *peer);
void nvmeof_where(const void *peer, uint64_t offset, char *text, size_t size);

struct nvmeof_set *nvmeof_set_hold(struct nvmeof_set *set);
/* Any thread but a worker's. */
void nvmeof_set_drop(struct nvmeof_set *set);
/* A worker's thread; the control thread lives. */
void nvmeof_set_drop_later(struct nvmeof_set *set);

/* The file that has the segment's byte at offset, or NULL. */
const struct nvmeof_file *nvmeof_set_find(const struct nvmeof_set *set, uint64_t offset);

void nvmeof_context_drop(struct nvmeof *context);

#endif
