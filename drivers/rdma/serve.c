/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake as the peer begins it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "drivers/rdma/endpoint.h"
#include "drivers/rdma/worker.h"
#include "lib/engine.h"

#define READY_MS 10000 /* how long a peer may take to say that it is ready */

static struct rdma_device *device_of(struct rdma_engine *rdma, const char *path)
{
	for (uint32_t i = 0; i < rdma->device_count; i++)
		if (strcmp(rdma->device[i].path, path) == 0)
			return &rdma->device[i];
	return NULL;
}

static void refuse(struct lw_handshake *reply, const char *why)
{
	snprintf(reply->reply, sizeof(reply->reply), "%s", why);
}

/* The peer wants what it wrote to us on an older connection to be over. */
static void serve_over(struct rdma_engine *rdma, const struct rdma_device *device, const struct lw_handshake *said,
		       struct lw_handshake *reply)
{
	struct rdma_endpoint *endpoint = rdma_endpoint_find(rdma, device->path, said->local_path);

	reply->over = true;
	if (endpoint != NULL && endpoint->state != RDMA_ASKING && rdma_endpoint_is(endpoint, said))
		reply->over = rdma_endpoint_end(endpoint, LW_REASON_RESET);
}

static void serve_ready(struct rdma_engine *rdma, const struct rdma_device *device, const struct lw_handshake *said,
			struct lw_handshake *reply)
{
	struct rdma_endpoint *endpoint = rdma_endpoint_find(rdma, device->path, said->local_path);

	if (endpoint == NULL || (endpoint->state != RDMA_WAITS && endpoint->state != RDMA_JOINED) ||
	    !rdma_endpoint_is(endpoint, said))
		refuse(reply, "there is no such connection");
	else
		rdma_endpoint_joined(endpoint);
}

static void serve_request(struct rdma_engine *rdma, struct rdma_device *device, const struct lw_handshake *said,
			  struct lw_handshake *reply)
{
	struct rdma_endpoint *endpoint = rdma_endpoint_find(rdma, device->path, said->local_path);

	/* Other queue pairs than before: the peer, or its connection, is a new one. What was is over before we answer.
	 */
	if (endpoint != NULL && (endpoint->state == RDMA_WAITS || endpoint->state == RDMA_JOINED) &&
	    !rdma_endpoint_is(endpoint, said)) {
		rdma_endpoint_end(endpoint, said->incarnation == endpoint->peer_incarnation ? LW_REASON_RESET
											    : LW_REASON_RESTARTED);
		endpoint = NULL;
	}
	if (endpoint == NULL)
		endpoint = rdma_endpoint_make(rdma, device, device->path, said->local_path,
					      rdma->workers[0]->channel[device->index].channel);
	if (endpoint == NULL) {
		refuse(reply, "no queue pairs are left");
		return;
	}
	if (endpoint->state == RDMA_NEW || endpoint->state == RDMA_ASKING) {
		if (rdma_endpoint_join(endpoint, said) != 0) {
			rdma_endpoint_end(endpoint, LW_REASON_UNREACHABLE);
			refuse(reply, "the queue pairs can't be joined");
			return;
		}
		endpoint->state = RDMA_WAITS;
		if (said->has_ready)
			lw_ctrl_timer_set(rdma->engine->ctrl, &endpoint->timer,
					  lw_now_ns() + (uint64_t)READY_MS * 1000000);
		else
			rdma_endpoint_joined(endpoint);
	}
	*reply = rdma_endpoint_words(endpoint);
	reply->has_ready = said->has_ready;
}

int rdma_serve(void *context, const char *body, size_t size, char **text, size_t *text_size)
{
	struct rdma_engine *rdma = context;
	struct lw_handshake said, reply = {.incarnation = rdma->engine->incarnation};
	struct rdma_device *device;
	char why[160];
	int error = lw_handshake_decode(body, size, &said, why, sizeof(why));

	if (error != 0)
		return error;
	device = rdma->serving ? device_of(rdma, said.peer_path) : NULL;
	if (said.meant != 0 && said.meant != rdma->engine->incarnation)
		refuse(&reply, "this engine was started after you looked");
	else if (device == NULL)
		refuse(&reply, "this engine has no such NIC path");
	else if (said.over)
		serve_over(rdma, device, &said, &reply);
	else if (said.has_ready && said.ready)
		serve_ready(rdma, device, &said, &reply);
	else if (!atomic_load(&device->up))
		refuse(&reply, "the port of this device is down");
	else if (said.local_path[0] == '\0' || !said.has_gid)
		refuse(&reply, "local_nic_path or local_gid is missing");
	else if (said.qp_count != rdma->engine->config.rdma_qps)
		refuse(&reply, "the numbers of queue pairs differ; set MC_NUM_QP_PER_EP or rdma_qps alike");
	else
		serve_request(rdma, device, &said, &reply);
	error = lw_handshake_encode(&reply, text);
	*text_size = error == 0 ? strlen(*text) : 0;
	return error;
}
