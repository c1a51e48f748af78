/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/nvmeof/set.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "drivers/nvmeof/align.h"
#include "lib/engine.h"
#include "lib/fabric.h"
#include "lib/filesize.h"
#include "lib/log.h"

#define CLOSE_MS 2000 /* how long the end of an engine waits for a target to be disconnected */

void nvmeof_context_drop(struct nvmeof *context)
{
	if (atomic_fetch_sub(&context->refs, 1) != 1)
		return;
	pthread_mutex_destroy(&context->lock);
	free(context);
}

struct nvmeof_set *nvmeof_set_hold(struct nvmeof_set *set)
{
	atomic_fetch_add_explicit(&set->refs, 1, memory_order_relaxed);
	return set;
}

static void free_set(struct nvmeof_set *set)
{
	struct nvmeof *context = set->context;

	for (uint32_t i = 0; i < set->queue_count; i++)
		if (set->queues[i] != NULL)
			nvmeof_queue_close(set->queues[i]);
	for (uint32_t i = 0; i < set->file_count; i++) {
		free(set->files[i].path);
		free(set->files[i].node);
		for (uint32_t k = 0; k < 2; k++)
			if (set->descriptors[2 * i + k] >= 0)
				close(set->descriptors[2 * i + k]);
	}
	for (uint32_t i = 0; i < set->file_count; i++)
		lw_fabric_drop(set->files[i].fabric, atomic_load(&context->closed) ? CLOSE_MS : 0);
	free(set->files);
	free(set->descriptors);
	free(set);
	nvmeof_context_drop(context);
}

/* Takes one hold off. True: it was the last one. A set that is in the list is found under the lock, so it can't come to
 * life again. */
static bool let_go(struct nvmeof_set *set)
{
	bool last;

	pthread_mutex_lock(&set->context->lock);
	last = atomic_fetch_sub(&set->refs, 1) == 1;
	if (last)
		LIST_REMOVE(set, link);
	pthread_mutex_unlock(&set->context->lock);
	return last;
}

void nvmeof_set_drop(struct nvmeof_set *set)
{
	if (let_go(set))
		free_set(set);
}

static void drop_run(struct lw_ctrl_job *job)
{
	nvmeof_set_drop(lw_container(job, struct nvmeof_set, drop_job));
}

void nvmeof_set_drop_later(struct nvmeof_set *set)
{
	uint32_t refs = atomic_load_explicit(&set->refs, memory_order_relaxed);

	/* Others hold it mostly: then there is nothing to free. */
	while (refs > 1)
		if (atomic_compare_exchange_weak(&set->refs, &refs, refs - 1))
			return;
	lw_ctrl_post(set->context->engine->ctrl, &set->drop_job);
}

const struct nvmeof_file *nvmeof_set_find(const struct nvmeof_set *set, uint64_t offset)
{
	uint32_t low = 0, high = set->file_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (set->files[middle].end <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < set->file_count ? &set->files[low] : NULL;
}

void nvmeof_where(const void *peer, uint64_t offset, char *text, size_t size)
{
	const struct nvmeof_file *file = nvmeof_set_find(peer, offset);

	if (file != NULL)
		snprintf(text, size, " (%s at %llu)", file->path, (unsigned long long)(offset - file->begin));
}

/* Where this host has a file. NULL: nowhere. */
static const char *path_here(const struct lw_engine *engine, const struct lw_desc *desc, uint32_t at)
{
	const struct lw_desc_file *file = &desc->files[at];

	if (desc->origin == LW_DESC_OWN)
		return file->path;
	for (size_t i = 0; i < file->mount_count; i++)
		if (strcmp(file->mounts[i].server, engine->name) == 0)
			return file->mounts[i].path;
	return NULL;
}

/* Opens for what the description allows, and this host: with a read-only mount only reading is left. */
static int open_one(const struct nvmeof_file *file, bool *writable, int more)
{
	bool write = (file->access & LW_ACCESS_REMOTE_WRITE) != 0;
	int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK | more;
	int fd = write ? open(file->node, O_RDWR | flags) : -1;

	*writable = fd >= 0;
	if (fd < 0 && (!write || errno == EROFS || errno == EACCES || errno == EPERM || errno == ETXTBSY)) {
		int error = errno;

		fd = open(file->node, O_RDONLY | flags);
		if (fd >= 0 && write && more == 0)
			lw_log(LW_LOG_WARNING, "%s can only be read here: %s", file->path, strerror(error));
	}
	return fd >= 0 ? fd : -errno;
}

/* Whether nobody but this host sees the file, so that all who look at it see its page cache, too. */
static bool is_private(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) != 0)
		return false;
	switch ((unsigned long)fs.f_type) {
	case EXT4_SUPER_MAGIC: /* ext2 and ext3, too */
	case XFS_SUPER_MAGIC:
	case BTRFS_SUPER_MAGIC:
	case F2FS_SUPER_MAGIC:
	case TMPFS_MAGIC:
		return true;
	default:
		return false;
	}
}

static int open_file(const struct nvmeof_set *set, struct nvmeof_file *file, int fds[2], char *why, size_t why_size)
{
	bool direct = set->context->engine->config.file_direct, writable;
	struct stat st;
	int error = 0;

	fds[1] = open_one(file, &file->writable, 0);
	if (fds[1] < 0)
		error = fds[1];
	else if (fstat(fds[1], &st) != 0)
		error = -errno;
	else
		error = lw_file_size(fds[1], &file->size);
	if (error != 0) {
		snprintf(why, why_size, "%s: %s", file->path,
			 error == -EINVAL ? "it is neither a file nor a block device" : strerror(-error));
		return error;
	}
	file->device = st.st_dev;
	file->rdevice = st.st_rdev;
	file->inode = st.st_ino;
	file->sync = S_ISBLK(st.st_mode) || !is_private(fds[1]);
	if (file->size < file->end - file->begin)
		lw_log(LW_LOG_WARNING, "%s has %llu bytes, its segment says %llu: requests beyond its end fail",
		       file->path, (unsigned long long)file->size, (unsigned long long)(file->end - file->begin));
	if (!direct)
		return 0;
	fds[0] = open_one(file, &writable, O_DIRECT);
	if (fds[0] >= 0 && nvmeof_alignment(fds[0], &file->block, &file->memory))
		return 0;
	if (fds[0] >= 0)
		close(fds[0]);
	fds[0] = -1;
	lw_log(LW_LOG_INFO, "%s goes through the page cache: its file system has no direct requests", file->path);
	return 0;
}

/* A target's namespace is connected to. */
static int find_node(const struct nvmeof_set *set, struct nvmeof_file *file, char *why, size_t why_size)
{
	uint32_t timeout_ms = (uint32_t)set->context->engine->config.handshake_timeout_ms;
	char device[64];
	int error = 0;

	if (lw_is_fabric_url(file->path))
		error = lw_fabric_hold(file->path, timeout_ms, &file->fabric, device, why, why_size);
	if (error != 0)
		return error;
	file->node = strdup(file->fabric != NULL ? device : file->path);
	return file->node != NULL ? 0 : -ENOMEM;
}

static struct nvmeof_set *new_set(struct nvmeof *context, const struct lw_desc *desc)
{
	uint32_t workers = context->engine->worker_count;
	struct nvmeof_set *set = calloc(1, sizeof(*set) + workers * sizeof(set->queues[0]));

	if (set == NULL)
		return NULL;
	set->files = calloc(desc->file_count, sizeof(*set->files));
	set->descriptors = malloc(2 * desc->file_count * sizeof(*set->descriptors));
	if (set->files == NULL || set->descriptors == NULL) {
		free(set->files);
		free(set->descriptors);
		free(set);
		return NULL;
	}
	for (uint32_t i = 0; i < 2 * desc->file_count; i++)
		set->descriptors[i] = -1;
	atomic_init(&set->refs, 1);
	atomic_init(&set->broken, false);
	atomic_fetch_add(&context->refs, 1);
	set->context = context;
	set->drop_job.run = drop_run;
	snprintf(set->name, sizeof(set->name), "%s", desc->name);
	return set;
}

static int open_set(struct nvmeof_set *set, const struct lw_desc *desc, char *why, size_t why_size)
{
	struct lw_engine *engine = set->context->engine;
	uint64_t at = 0;
	int error = 0;

	for (uint32_t i = 0; i < desc->file_count && error == 0; i++) {
		struct nvmeof_file *file = &set->files[i];
		const char *path = path_here(engine, desc, i);

		file->begin = at;
		file->end = at + desc->files[i].length;
		file->access = desc->files[i].access;
		at = file->end;
		set->file_count = i + 1;
		if (path == NULL) {
			snprintf(why, why_size,
				 "its local_path_map does not say where \"%s\" has %s; `lwfile mount` adds that",
				 engine->name, desc->files[i].path);
			return -ENOENT;
		}
		file->path = strdup(path);
		error = file->path != NULL ? find_node(set, file, why, why_size) : -ENOMEM;
		if (error == 0)
			error = open_file(set, file, &set->descriptors[2 * i], why, why_size);
	}
	for (uint32_t i = 0; i < engine->worker_count && error == 0; i++) {
		error = nvmeof_queue_open(set, set->context->backend, !lw_engine_caller_driven(engine), &set->queues[i],
					  why, why_size);
		set->queue_count = i + (error == 0);
	}
	return error;
}

/* Whether the set's files are those of the description, and those that its paths lead to now. */
static bool is_same(const struct nvmeof_set *set, const struct lw_desc *desc)
{
	if (set->file_count != desc->file_count || atomic_load(&set->broken))
		return false;
	for (uint32_t i = 0; i < set->file_count; i++) {
		const struct nvmeof_file *file = &set->files[i];
		const char *path = path_here(set->context->engine, desc, i);
		uint64_t size;
		struct stat st;

		if (path == NULL || strcmp(path, file->path) != 0 || stat(file->node, &st) != 0 ||
		    file->device != st.st_dev || file->inode != st.st_ino || file->rdevice != st.st_rdev ||
		    file->access != desc->files[i].access || file->end - file->begin != desc->files[i].length)
			return false;
		if (lw_file_size(set->descriptors[2 * i + 1], &size) != 0 || size != file->size)
			return false;
	}
	return true;
}

static struct nvmeof_set *find_same(struct nvmeof *context, const struct lw_desc *desc)
{
	struct nvmeof_set *set;

	pthread_mutex_lock(&context->lock);
	LIST_FOREACH(set, &context->sets, link) /* the newest of the name comes first */
	if (strcmp(set->name, desc->name) == 0)
		break;
	if (set != NULL)
		nvmeof_set_hold(set);
	pthread_mutex_unlock(&context->lock);
	if (set == NULL || is_same(set, desc)) /* not under the lock: it asks the file system */
		return set;
	nvmeof_set_drop(set);
	return NULL;
}

int nvmeof_reach(void *arg, const struct lw_desc *desc, void **peer, char *why, size_t why_size)
{
	struct nvmeof *context = arg;
	struct nvmeof_set *set;
	int error;

	if (desc->file_count == 0)
		return -ENOTSUP;
	if (desc->origin == LW_DESC_PEER) {
		snprintf(why, why_size,
			 "it is a peer's answer, and files are opened for those of a metadata store alone");
		return -EACCES;
	}
	set = find_same(context, desc);
	if (set != NULL) {
		*peer = set;
		return 0;
	}
	snprintf(why, why_size, "no memory");
	set = new_set(context, desc);
	if (set == NULL)
		return -ENOMEM;
	error = open_set(set, desc, why, why_size);
	if (error != 0) {
		free_set(set);
		return error;
	}
	pthread_mutex_lock(&context->lock);
	LIST_INSERT_HEAD(&context->sets, set, link);
	pthread_mutex_unlock(&context->lock);
	*peer = set;
	return 0;
}

void nvmeof_forget(void *peer)
{
	nvmeof_set_drop(peer);
}
