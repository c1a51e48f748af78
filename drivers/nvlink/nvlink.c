/* SPDX-License-Identifier: Apache-2.0 */
/* The drivers' tables, and what an engine shows to its peers. */
#include "drivers/nvlink/nvlink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drivers/nvlink/lane.h"
#include "lib/engine.h"
#include "lib/log.h"
#include "lib/neighbour.h"

#define CREDITS 1024u
#define SHUT_MS 5000 /* how long the end of an engine waits for peers that are inside its memory */

/* What a driver's setting says: whether it may be used, and where its library is. */
static bool is_allowed(const struct lw_config *config, enum lw_gpu_vendor vendor)
{
	switch (vendor) {
	case LW_GPU_HIP:
		return config->hip;
	case LW_GPU_MUSA:
		return config->musa;
	case LW_GPU_MACA:
		return config->maca;
	default:
		return true;
	}
}

static const char *library_of(const struct lw_config *config, enum lw_gpu_vendor vendor)
{
	switch (vendor) {
	case LW_GPU_HIP:
		return config->hip_library;
	case LW_GPU_MUSA:
		return config->musa_library;
	case LW_GPU_MACA:
		return config->maca_library;
	default:
		return config->cuda_library;
	}
}

/* What other processes need. Without it they reach the memory through bounce buffers. */
static void open_door(struct nvlink_engine *nvlink, char *note, size_t note_size)
{
	char why[100] = "no memory";
	int error = lw_neighbour_host(nvlink->host, sizeof(nvlink->host));

	if (error != 0)
		snprintf(why, sizeof(why), "%s", strerrordesc_np(-error));
	else
		error = door_open((uint32_t)nvlink->engine->config.max_buffers, &nvlink->door, why, sizeof(why));
	if (error == 0)
		return;
	lw_log(LW_LOG_WARNING, "memory of %s devices is shown to no other process: %s",
	       lw_gpu_vendor_name(nvlink->vendor), why);
	snprintf(note, note_size, "inside the process alone: %s", why);
}

static int open_vendor(struct lw_engine *engine, enum lw_gpu_vendor vendor, void **context, char *note,
		       size_t note_size)
{
	struct nvlink_engine *nvlink;
	const struct lw_gpu *gpu;
	int error;

	if (!is_allowed(&engine->config, vendor)) {
		snprintf(note, note_size, "switched off by the setting %s", lw_gpu_vendor_name(vendor));
		return -ENODEV;
	}
	error = lw_gpu_open(vendor, library_of(&engine->config, vendor), &gpu, note, note_size);
	if (error != 0)
		return error;
	nvlink = calloc(1, sizeof(*nvlink));
	if (nvlink != NULL) {
		nvlink->buffers = calloc(engine->config.max_buffers, sizeof(*nvlink->buffers));
		nvlink->workers = calloc(engine->config.workers + 1, sizeof(*nvlink->workers));
	}
	if (nvlink == NULL || nvlink->buffers == NULL || nvlink->workers == NULL) {
		snprintf(note, note_size, "no memory");
		if (nvlink != NULL) {
			free(nvlink->buffers);
			free(nvlink->workers);
		}
		free(nvlink);
		return -ENOMEM;
	}
	atomic_init(&nvlink->refs, 1);
	pthread_mutex_init(&nvlink->lock, NULL);
	nvlink->engine = engine;
	nvlink->vendor = vendor;
	nvlink->gpu = gpu;
	open_door(nvlink, note, note_size);
	if (nvlink->door != NULL)
		snprintf(note, note_size, "%s", lw_gpu_library(gpu));
	*context = nvlink;
	return 0;
}

static void close_vendor(void *context)
{
	struct nvlink_engine *nvlink = context;

	nvlink_buffers_free(nvlink);
	free(nvlink->buffers);
	free(nvlink->workers);
	nvlink_engine_drop(nvlink);
}

/* The engine ends: as with unregistering, nobody is inside its memory afterwards. */
static void stop(void *context)
{
	struct nvlink_engine *nvlink = context;
	char why[80];

	if (nvlink->door == NULL)
		return;
	door_shut(nvlink->door);
	if (door_settle(nvlink->door, lw_now_ns() + (uint64_t)SHUT_MS * 1000000, why, sizeof(why)) != 0)
		lw_log(LW_LOG_WARNING, "engine %s closes although %s", nvlink->engine->name, why);
}

static void describe(void *context, struct lw_desc *desc)
{
	static const char *const protocols[] = {"", "nvlink", "nvlink_intra", "hip", "musa", "maca"};
	const struct nvlink_engine *nvlink = context;
	struct lw_desc_gpu *gpu = &desc->gpu[nvlink->vendor];
	const char *protocol = protocols[nvlink->engine->config.gpu_protocol];

	if (nvlink->door == NULL || lw_gpu_used_device(nvlink->gpu) < 0)
		return;
	gpu->pid = (uint32_t)getpid();
	gpu->fd = nvlink->door->fd;
	gpu->changes = door_changes(nvlink->door); /* first: what is told after it may be newer, never older */
	memcpy(gpu->host, nvlink->host, sizeof(gpu->host));
	for (int i = 0; i < DOOR_NONCE; i++)
		snprintf(gpu->nonce + 2 * i, 3, "%02x", nvlink->door->witness[i]);
	if (lw_desc_gpu_of(protocol, strlen(protocol)) == (int)nvlink->vendor)
		snprintf(desc->protocol, sizeof(desc->protocol), "%s", protocol);
}

static void offer(void *context, uint32_t index, const struct lw_buffer_slot *buffer)
{
	const struct nvlink_engine *nvlink = context;

	if (nvlink->door != NULL)
		door_offer(nvlink->door, index, buffer->gen, buffer->access, buffer->addr, buffer->length);
}

static void withdraw(void *context, uint32_t index)
{
	const struct nvlink_engine *nvlink = context;

	if (nvlink->door != NULL)
		door_withdraw(nvlink->door, index);
}

static int settle(void *context, uint64_t end_ns, char *why, size_t why_size)
{
	const struct nvlink_engine *nvlink = context;

	return nvlink->door != NULL ? door_settle(nvlink->door, end_ns, why, why_size) : 0;
}

static void forked(void *worker_context)
{
	const struct nvlink_worker *own = worker_context;

	if (own->worker->index != 0)
		return;
	if (own->nvlink->door != NULL)
		close(own->nvlink->door->fd);
	for (const struct nvlink_peer *peer = own->nvlink->peers; peer != NULL; peer = peer->next)
		if (peer->pid_fd >= 0)
			close(peer->pid_fd);
}

#define TABLE(driver, vendor)                                                                                          \
	static int driver##_open(struct lw_engine *engine, void **context, char *note, size_t note_size)               \
	{                                                                                                              \
		return open_vendor(engine, vendor, context, note, note_size);                                          \
	}                                                                                                              \
	const struct lw_driver_ops lw_##driver##_ops = {                                                               \
		.size = sizeof(struct lw_driver_ops),                                                                  \
		.name = #driver,                                                                                       \
		.lane_bytes = sizeof(struct nvlink_lane),                                                              \
		.credits = CREDITS,                                                                                    \
		.peer_cuts = 1,                                                                                        \
		.lanes = 1,                                                                                            \
		.moves = LW_MOVES(LW_MEM_DEVICE, LW_MEM_DEVICE) | LW_MOVES(LW_MEM_HOST, LW_MEM_DEVICE) |               \
			 LW_MOVES(LW_MEM_DEVICE, LW_MEM_HOST),                                                         \
		.own = true,                                                                                           \
		.open = driver##_open,                                                                                 \
		.close = close_vendor,                                                                                 \
		.stop = stop,                                                                                          \
		.describe = describe,                                                                                  \
		.reach = nvlink_reach,                                                                                 \
		.offer_seen = nvlink_offer_seen,                                                                       \
		.forget = nvlink_forget,                                                                               \
		.offer = offer,                                                                                        \
		.withdraw = withdraw,                                                                                  \
		.attach = nvlink_attach,                                                                               \
		.detach = nvlink_detach,                                                                               \
		.piece = nvlink_piece,                                                                                 \
		.settle = settle,                                                                                      \
		.worker_open = nvlink_worker_open,                                                                     \
		.worker_close = nvlink_worker_close,                                                                   \
		.forked = forked,                                                                                      \
		.lane_open = nvlink_lane_open,                                                                         \
		.lane_close = nvlink_lane_close,                                                                       \
		.post = nvlink_post,                                                                                   \
		.flush = nvlink_flush,                                                                                 \
		.unpost = nvlink_unpost,                                                                               \
		.recall = nvlink_recall,                                                                               \
		.poll = nvlink_poll,                                                                                   \
	};

TABLE(nvlink, LW_GPU_CUDA)
TABLE(hip, LW_GPU_HIP)
TABLE(musa, LW_GPU_MUSA)
TABLE(maca, LW_GPU_MACA)
