/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's table, and what an engine shows to its peers. */
#include "drivers/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "drivers/shm/lane.h"
#include "lib/engine.h"
#include "lib/log.h"
#include "lib/neighbour.h"

#define CREDITS 1024u
#define SHUT_MS 5000 /* how long the end of an engine waits for peers that are inside its memory */

/* What other processes need: a kernel that lets processes reach each other at all, and a door. */
static int open_door(struct shm_engine *shm, char *note, size_t note_size)
{
	char why[100] = "no memory";
	int error;

	if (!shm->engine->config.shm_peers) {
		snprintf(note, note_size, "inside the engine alone: shm_peers is off");
		return 0;
	}
	error = lw_neighbour_host(shm->host, sizeof(shm->host));
	if (error == 0 && process_vm_readv(getpid(), NULL, 0, NULL, 0, 0) != 0)
		error = -errno;
	if (error != 0)
		snprintf(why, sizeof(why), "%s",
			 error == -EPERM || error == -ENOSYS ? "process_vm_readv is not allowed here"
							     : strerror(-error));
	else
		error = door_open((uint32_t)shm->engine->config.max_buffers, &shm->door, why, sizeof(why));
	if (error != 0) {
		lw_log(LW_LOG_WARNING, "driver shm reaches no other process: %s", why);
		snprintf(note, note_size, "inside the engine alone: %s", why);
	}
	return error == -ENOMEM ? error : 0;
}

static int shm_open(struct lw_engine *engine, void **context, char *note, size_t note_size)
{
	struct shm_engine *shm = calloc(1, sizeof(*shm));
	int error;

	if (shm == NULL) {
		snprintf(note, note_size, "no memory");
		return -ENOMEM;
	}
	atomic_init(&shm->refs, 1);
	shm->engine = engine;
	pthread_mutex_init(&shm->lock, NULL);
	error = open_door(shm, note, note_size);
	if (error != 0) {
		shm_engine_drop(shm);
		return error;
	}
	*context = shm;
	return 0;
}

static void shm_close(void *context)
{
	shm_engine_drop(context);
}

/* The engine ends: as with unregistering, nobody is inside its memory afterwards. */
static void shm_stop(void *context)
{
	struct shm_engine *shm = context;
	char why[80];

	if (shm->door == NULL)
		return;
	door_shut(shm->door);
	if (door_settle(shm->door, lw_now_ns() + (uint64_t)SHUT_MS * 1000000, why, sizeof(why)) != 0)
		lw_log(LW_LOG_WARNING, "engine %s closes although %s", shm->engine->name, why);
}

static void shm_describe(void *context, struct lw_desc *desc)
{
	const struct shm_engine *shm = context;

	if (shm->door == NULL)
		return;
	desc->shm.pid = (uint32_t)getpid();
	desc->shm.fd = shm->door->fd;
	desc->shm.changes = door_changes(shm->door); /* first: what is told after it may be newer, never older */
	memcpy(desc->shm.host, shm->host, sizeof(desc->shm.host));
	for (int i = 0; i < DOOR_NONCE; i++)
		snprintf(desc->shm.nonce + 2 * i, 3, "%02x", shm->door->witness[i]);
}

static void shm_offer(void *context, uint32_t index, const struct lw_buffer_slot *buffer)
{
	const struct shm_engine *shm = context;

	if (shm->door != NULL)
		door_offer(shm->door, index, buffer->gen, buffer->access, buffer->addr, buffer->length);
}

static void shm_withdraw(void *context, uint32_t index)
{
	const struct shm_engine *shm = context;

	if (shm->door != NULL)
		door_withdraw(shm->door, index);
}

static void shm_areas(void *context)
{
	const struct shm_engine *shm = context;

	if (shm->door == NULL)
		return;
	door_areas_begin(shm->door);
	for (const struct lw_area *area = shm->engine->areas; area != NULL; area = area->next) {
		struct door_area_copy copy = {
			.addr = area->addr, .length = area->length, .inode = area->inode, .fd = area->fd};

		door_areas_add(shm->door, &copy);
	}
	door_areas_end(shm->door);
}

static int shm_settle(void *context, uint64_t end_ns, char *why, size_t why_size)
{
	const struct shm_engine *shm = context;

	return shm->door != NULL ? door_settle(shm->door, end_ns, why, why_size) : 0;
}

static int shm_worker_open(void *context, struct lw_worker *worker, void **worker_context)
{
	struct shm_worker *own = calloc(1, sizeof(*own));
	struct shm_engine *shm = context;

	if (own == NULL)
		return -ENOMEM;
	own->shm = shm;
	own->worker = worker;
	own->stream_bytes = shm->engine->config.shm_stream_bytes;
	if (own->stream_bytes == 0)
		own->stream_bytes = UINT64_MAX;
	TAILQ_INIT(&own->busy);
	*worker_context = own;
	return 0;
}

static void shm_worker_close(void *worker_context)
{
	free(worker_context);
}

static void shm_forked(void *worker_context)
{
	const struct shm_worker *own = worker_context;

	if (own->worker->index != 0)
		return;
	if (own->shm->door != NULL)
		close(own->shm->door->fd);
	for (const struct shm_peer *peer = own->shm->peers; peer != NULL; peer = peer->next)
		if (peer->pid_fd >= 0)
			close(peer->pid_fd);
}

const struct lw_driver_ops lw_shm_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "shm",
	.lane_bytes = sizeof(struct shm_lane),
	.credits = CREDITS,
	.peer_cuts = 1,
	.lanes = 1,
	.open = shm_open,
	.close = shm_close,
	.stop = shm_stop,
	.describe = shm_describe,
	.reach = shm_reach,
	.offer_seen = shm_offer_seen,
	.forget = shm_forget,
	.offer = shm_offer,
	.withdraw = shm_withdraw,
	.areas = shm_areas,
	.settle = shm_settle,
	.worker_open = shm_worker_open,
	.worker_close = shm_worker_close,
	.forked = shm_forked,
	.lane_open = shm_lane_open,
	.lane_close = shm_lane_close,
	.now = shm_now,
	.post = shm_post,
	.flush = shm_flush,
	.unpost = shm_unpost,
	.poll = shm_poll,
};
