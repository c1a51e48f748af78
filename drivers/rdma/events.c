/* SPDX-License-Identifier: Apache-2.0 */
/* What devices tell without being asked: ports and queue pairs that break, addresses that change. The control thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "drivers/rdma/endpoint.h"
#include "drivers/rdma/rdma.h"
#include "lib/engine.h"
#include "lib/log.h"
#include "meta/directory.h"

/* What peers are told has changed. */
static void publish(const struct rdma_engine *rdma)
{
	if (rdma->engine->directory != NULL)
		lw_directory_touch(rdma->engine->directory);
}

/* A queue pair over a port that is down may never complete anything by itself: all of them are broken. */
static void go_down(struct rdma_device *device, const char *what)
{
	if (atomic_exchange(&device->up, false))
		lw_log(LW_LOG_WARNING, "driver rdma: %s port %u: %s; its connections end", device->name, device->port,
		       what);
	rdma_endpoints_break(device->rdma, device, NULL);
	publish(device->rdma);
}

/* The port is active, or its address is another one. */
static void look_again(struct rdma_device *device)
{
	uint8_t gid[16];
	uint16_t lid = device->lid;
	char why[160];
	bool was_up = atomic_load(&device->up);

	memcpy(gid, device->gid, sizeof(gid));
	if (rdma_device_query(device, why, sizeof(why)) != 0) {
		go_down(device, why);
		return;
	}
	if (memcmp(gid, device->gid, sizeof(gid)) != 0 || lid != device->lid)
		rdma_endpoints_break(device->rdma, device, NULL);
	else if (was_up)
		return;
	atomic_store(&device->up, true);
	if (!was_up)
		lw_log(LW_LOG_INFO, "driver rdma: %s port %u is active again", device->name, device->port);
	publish(device->rdma);
}

static void act(struct rdma_device *device, const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_DEVICE_FATAL:
		go_down(device, "the device has failed");
		break;
	case IBV_EVENT_PORT_ERR:
		if (event->element.port_num == device->port)
			go_down(device, "the link is down");
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_GID_CHANGE:
		if (event->element.port_num == device->port)
			look_again(device);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		rdma_endpoints_break(device->rdma, device, event->element.qp);
		break;
	default:
		break;
	}
}

static void on_event(void *arg)
{
	struct rdma_device *device = arg;
	const struct rdma_verbs *verbs = device->rdma->verbs;
	struct ibv_async_event event;

	while (verbs->get_async_event(device->context, &event) == 0) {
		struct ibv_async_event copy = event;

		/* First: a queue pair is not destroyed before its events were acknowledged. */
		verbs->ack_async_event(&event);
		act(device, &copy);
	}
}

int rdma_events_start(struct rdma_device *device)
{
	int fd = device->context->async_fd, flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	return lw_ctrl_watch(device->rdma->engine->ctrl, fd, on_event, device, &device->watch);
}

void rdma_events_stop(struct rdma_device *device)
{
	if (device->watch != NULL)
		lw_ctrl_unwatch(device->rdma->engine->ctrl, device->watch);
	device->watch = NULL;
}
