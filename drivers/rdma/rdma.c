/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's table, and what an engine tells peers of its devices. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drivers/rdma/endpoint.h"
#include "drivers/rdma/rdma.h"
#include "drivers/rdma/worker.h"
#include "lib/engine.h"
#include "meta/topology.h"

static uint32_t driver_index(void)
{
	uint32_t i = 0;

	while (lw_drivers[i] != &lw_rdma_ops)
		i++;
	return i;
}

static void rdma_close(void *context)
{
	struct rdma_engine *rdma = context;

	rdma_buffers_free(rdma);
	rdma_devices_close(rdma);
	lw_matrix_free(rdma->matrix);
	free(rdma);
}

/* Which device is near which memory: as the settings say, or as sysfs shows. */
static int discover(struct rdma_engine *rdma)
{
	const struct lw_topology_opts opts = {.hcas = NULL};
	struct lw_topology *topology = NULL;
	int error;

	rdma->matrix = calloc(1, sizeof(*rdma->matrix));
	if (rdma->matrix == NULL)
		return -ENOMEM;
	error = lw_topology_discover(&opts, &topology);
	if (error == 0)
		error = lw_topology_matrix(topology, rdma->matrix);
	lw_topology_free(topology);
	return error;
}

static int rdma_open(struct lw_engine *engine, void **context, char *note, size_t note_size)
{
	struct rdma_engine *rdma = calloc(1, sizeof(*rdma));
	size_t used = 0;
	int error;

	if (rdma == NULL) {
		snprintf(note, note_size, "no memory");
		return -ENOMEM;
	}
	/* Whoever knows a key reaches the memory: there is no place for a proof. */
	if (engine->config.tcp_secret[0] != '\0') {
		snprintf(note, note_size, "tcp_secret is set, and RDMA can't ask for it");
		free(rdma);
		return -EPERM;
	}
	rdma->engine = engine;
	rdma->driver = driver_index();
	LIST_INIT(&rdma->endpoints);
	LIST_INIT(&rdma->over);
	error = rdma_verbs_open(&rdma->verbs, note, note_size);
	if (error == 0)
		error = rdma_devices_open(rdma, note, note_size);
	if (error != 0) {
		free(rdma);
		return error;
	}
	rdma->buffers = calloc(engine->config.max_buffers, sizeof(*rdma->buffers));
	if (rdma->buffers == NULL || discover(rdma) != 0) {
		snprintf(note, note_size, "no memory for its tables, or sysfs can't be read");
		rdma_close(rdma);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < rdma->device_count && used < note_size; i++)
		used += (size_t)snprintf(note + used, note_size - used, "%s%s port %u", i == 0 ? "over " : ", ",
					 rdma->device[i].name, rdma->device[i].port);
	*context = rdma;
	return 0;
}

static int rdma_start(void *context)
{
	struct rdma_engine *rdma = context;
	int error = 0;

	for (uint32_t i = 0; i < rdma->device_count && error == 0; i++) {
		struct rdma_device *device = &rdma->device[i];

		if (!lw_nic_path(device->path, rdma->engine->name, device->name, 0))
			return -ENAMETOOLONG;
		error = rdma_events_start(device);
	}
	if (error == 0)
		atomic_store(&rdma->serving, true);
	return error;
}

static void rdma_stop(void *context)
{
	struct rdma_engine *rdma = context;

	atomic_store(&rdma->serving, false);
	for (uint32_t i = 0; i < rdma->device_count; i++)
		rdma_events_stop(&rdma->device[i]);
}

/* A row as peers are told it: the devices that are up, the near ones first. */
static int add_row(const struct rdma_engine *rdma, const struct lw_matrix *from, const char *location,
		   struct lw_matrix *to)
{
	struct lw_matrix_row row;
	int error;

	lw_matrix_find(from, location, &row);
	error = lw_matrix_add(to, location, NULL, false);
	for (int near = 1; near >= 0; near--) {
		for (uint32_t i = 0; i < rdma->device_count && error == 0; i++) {
			const struct rdma_device *device = &rdma->device[i];
			bool preferred = false;

			for (uint16_t k = 0; k < row.preferred; k++)
				preferred |= strcmp(from->device[row.device[k]], device->name) == 0;
			if (preferred == (near == 1) && atomic_load(&device->up))
				error = lw_matrix_add(to, location, device->name, preferred);
		}
	}
	return error;
}

static struct lw_matrix *told_matrix(const struct rdma_engine *rdma)
{
	struct lw_matrix *to = calloc(1, sizeof(*to));
	const struct lw_matrix *from = rdma->matrix;
	int error = 0;

	if (to == NULL)
		return NULL;
	pthread_mutex_lock(&rdma->engine->lock);
	if (rdma->engine->matrix != NULL)
		from = rdma->engine->matrix;
	for (size_t i = 0; i < from->row_count && error == 0; i++)
		error = add_row(rdma, from, from->rows[i].location, to);
	pthread_mutex_unlock(&rdma->engine->lock);
	if (error == 0)
		return to;
	lw_matrix_free(to);
	return NULL;
}

static void rdma_describe(void *context, struct lw_desc *desc)
{
	struct rdma_engine *rdma = context;
	struct lw_desc_rdma *part = &desc->rdma;

	part->devices = calloc(rdma->device_count, sizeof(*part->devices));
	if (part->devices == NULL)
		return; /* peers reach us by the other drivers then */
	for (uint32_t i = 0; i < rdma->device_count; i++) {
		struct lw_desc_device *device = &part->devices[i];

		snprintf(device->name, sizeof(device->name), "%s", rdma->device[i].name);
		device->has_gid = true;
		memcpy(device->gid, rdma->device[i].gid, sizeof(device->gid));
		device->lid = rdma->device[i].lid;
	}
	part->device_count = rdma->device_count;
	part->matrix = told_matrix(rdma);
	snprintf(desc->protocol, sizeof(desc->protocol), "rdma");
}

static void rdma_forked(void *worker_context)
{
	const struct rdma_worker *worker = worker_context;
	const struct rdma_engine *rdma = worker->rdma;

	for (uint32_t i = 0; i < rdma->device_count; i++) {
		close(worker->channel[i].channel->fd);
		if (worker->worker->index != 0)
			continue;
		close(rdma->device[i].context->async_fd);
		close(rdma->device[i].context->cmd_fd);
	}
}

const struct lw_driver_ops lw_rdma_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "rdma",
	.lane_bytes = sizeof(struct rdma_lane),
	.credits = RDMA_CREDITS,
	.peer_cuts = 1,
	.lanes = 1,
	.lanes_to = rdma_lanes_to,
	.nearest = rdma_nearest,
	.open = rdma_open,
	.close = rdma_close,
	.start = rdma_start,
	.stop = rdma_stop,
	.describe = rdma_describe,
	.reach = rdma_reach_peer,
	.forget = rdma_forget,
	.attach = rdma_attach,
	.detach = rdma_detach,
	.piece = rdma_piece,
	.serve = rdma_serve,
	.worker_open = rdma_worker_open,
	.worker_close = rdma_worker_close,
	.forked = rdma_forked,
	.lane_open = rdma_lane_open,
	.lane_close = rdma_lane_close,
	.post = rdma_post,
	.flush = rdma_flush,
	.unpost = rdma_unpost,
	.poll = rdma_poll,
};
