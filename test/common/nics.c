/* SPDX-License-Identifier: Apache-2.0 */
#include "common/nics.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#include "drivers/rdma/verbs.h"

#define DEVICES 8
#define EVENTS 64
#define MAX_MR (UINT64_C(1) << 40)

struct nic {
	struct ibv_device device;
	bool down;
	uint64_t carried;
};

struct context {
	struct ibv_context base;
	struct nic *nic;
	struct ibv_async_event events[EVENTS];
	uint32_t event_count;
	LIST_ENTRY(context) link;
};

struct region {
	struct ibv_mr base;
	int access;
	LIST_ENTRY(region) link;
};

struct channel {
	struct ibv_comp_channel base;
	struct queue *told[EVENTS];
	uint32_t told_count;
};

struct request {
	struct ibv_send_wr wr;
	struct ibv_sge sge[4];
	unsigned char inline_data[1024];
};

struct queue {
	struct ibv_cq base;
	struct pair *pair;
	struct request *requests; /* those that wait, a ring of depth */
	uint32_t depth, head, count;
	uint32_t read; /* events that were read and not yet acknowledged */
	bool armed;
};

struct pair {
	struct ibv_qp base;
	struct queue *queue;
	uint32_t peer;
	uint8_t gid[16];
	unsigned int access;
	bool stuck;
	LIST_ENTRY(pair) link;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nic nics[DEVICES];
static uint32_t nic_count, next_number = 100, next_key = 1000, refuse_after = UINT32_MAX;
static uint64_t budget = UINT64_MAX;
static LIST_HEAD(, context) contexts = LIST_HEAD_INITIALIZER(contexts);
static LIST_HEAD(, region) regions = LIST_HEAD_INITIALIZER(regions);
static LIST_HEAD(, pair) pairs = LIST_HEAD_INITIALIZER(pairs);

static void gid_of(const struct nic *nic, uint8_t gid[16])
{
	const uint8_t raw[16] = {[10] = 0xff, [11] = 0xff, [12] = 192, [14] = 2, [15] = (uint8_t)(nic - nics + 1)};

	memcpy(gid, raw, sizeof(raw));
}

static struct nic *nic_of(const struct pair *pair)
{
	return ((struct context *)(void *)pair->base.context)->nic;
}

/* Devices -------------------------------------------------------------------------------------------------------------
 */

static int fork_init(void)
{
	return 0;
}

static struct ibv_device **get_device_list(int *count)
{
	struct ibv_device **list = calloc(nic_count + 1, sizeof(struct ibv_device *));

	for (uint32_t i = 0; list != NULL && i < nic_count; i++)
		list[i] = &nics[i].device;
	*count = list != NULL ? (int)nic_count : 0;
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
	return device->name;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = (struct ibv_device_attr){.max_mr_size = MAX_MR,
					 .max_qp_wr = 1024,
					 .max_cqe = 4096,
					 .max_sge = 4,
					 .max_qp_rd_atom = 16,
					 .max_qp_init_rd_atom = 16};
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr *out = (struct ibv_port_attr *)(void *)attr;
	struct nic *nic = ((struct context *)(void *)context)->nic;

	if (port != 1)
		return EINVAL;
	pthread_mutex_lock(&lock);
	out->state = nic->down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	pthread_mutex_unlock(&lock);
	out->active_mtu = IBV_MTU_4096;
	out->max_msg_sz = 1u << 20;
	return 0;
}

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
			       size_t entry_size)
{
	(void)flags;
	(void)entry_size;
	if (max == 0)
		return 0;
	entries[0] = (struct ibv_gid_entry){
		.gid_index = 3, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2, .ndev_ifindex = 1};
	gid_of(((struct context *)(void *)context)->nic, entries[0].gid.raw);
	return 1;
}

static int get_async_event(struct ibv_context *given, struct ibv_async_event *event)
{
	struct context *context = (struct context *)(void *)given;
	uint64_t one;
	int ret = -1;

	pthread_mutex_lock(&lock);
	errno = EAGAIN;
	if (context->event_count != 0 && read(given->async_fd, &one, sizeof(one)) == sizeof(one)) {
		*event = context->events[0];
		memmove(context->events, context->events + 1, --context->event_count * sizeof(context->events[0]));
		ret = 0;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

static void ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

void test_nic_port(uint32_t device, bool up)
{
	struct ibv_async_event event = {.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR,
					.element.port_num = 1};
	const uint64_t one = 1;
	struct context *context;

	pthread_mutex_lock(&lock);
	nics[device].down = !up;
	LIST_FOREACH(context, &contexts, link)
	{
		if (context->nic != &nics[device] || context->event_count == EVENTS)
			continue;
		context->events[context->event_count++] = event;
		if (write(context->base.async_fd, &one, sizeof(one)) != sizeof(one))
			abort();
	}
	pthread_mutex_unlock(&lock);
}

/* Domains and regions -------------------------------------------------------------------------------------------------
 */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (pd != NULL)
		pd->context = context;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct region *region = calloc(1, sizeof(*region));

	pthread_mutex_lock(&lock);
	if (refuse_after != UINT32_MAX && refuse_after-- == 0) {
		free(region);
		region = NULL;
		errno = ENOMEM;
	}
	if (region != NULL) {
		region->base = (struct ibv_mr){.context = pd->context,
					       .pd = pd,
					       .addr = addr,
					       .length = length,
					       .lkey = next_key,
					       .rkey = next_key + 1};
		next_key += 2;
		region->access = access;
		LIST_INSERT_HEAD(&regions, region, link);
	}
	pthread_mutex_unlock(&lock);
	return region != NULL ? &region->base : NULL;
}

static int dereg_mr(struct ibv_mr *mr)
{
	pthread_mutex_lock(&lock);
	LIST_REMOVE((struct region *)(void *)mr, link);
	pthread_mutex_unlock(&lock);
	free(mr);
	return 0;
}

/* The bytes of a key, if it gives those rights in the domain. */
static unsigned char *bytes_of(const struct ibv_pd *pd, uint32_t key, bool remote, int access, uint64_t addr,
			       uint64_t length)
{
	struct region *region;

	LIST_FOREACH(region, &regions, link)
	if ((remote ? region->base.rkey : region->base.lkey) == key)
		break;
	if (region == NULL || region->base.pd != pd || (region->access & access) != access ||
	    addr < (uintptr_t)region->base.addr || addr + length > (uintptr_t)region->base.addr + region->base.length)
		return NULL;
	return (unsigned char *)(uintptr_t)addr;
}

/* Completion queues ---------------------------------------------------------------------------------------------------
 */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = calloc(1, sizeof(*channel));

	channel->base = (struct ibv_comp_channel){.context = context, .fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)};
	return &channel->base;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

static void tell(struct queue *queue)
{
	struct channel *channel = (struct channel *)(void *)queue->base.channel;
	const uint64_t one = 1;

	queue->armed = false;
	if (channel == NULL || channel->told_count == EVENTS)
		return;
	channel->told[channel->told_count++] = queue;
	if (write(channel->base.fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *user, struct ibv_comp_channel *channel,
				int vector)
{
	struct queue *queue = calloc(1, sizeof(*queue));

	(void)vector;
	queue->base = (struct ibv_cq){.context = context, .channel = channel, .cq_context = user, .cqe = cqe};
	queue->depth = (uint32_t)cqe;
	queue->requests = calloc(queue->depth, sizeof(*queue->requests));
	return &queue->base;
}

static int destroy_cq(struct ibv_cq *cq)
{
	struct queue *queue = (struct queue *)(void *)cq;
	struct channel *channel = (struct channel *)(void *)cq->channel;
	uint32_t kept = 0;

	pthread_mutex_lock(&lock);
	while (queue->read != 0) {
		pthread_mutex_unlock(&lock);
		sched_yield();
		pthread_mutex_lock(&lock);
	}
	for (uint32_t i = 0; channel != NULL && i < channel->told_count; i++)
		if (channel->told[i] != queue)
			channel->told[kept++] = channel->told[i];
	if (channel != NULL)
		channel->told_count = kept;
	pthread_mutex_unlock(&lock);
	free(queue->requests);
	free(queue);
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *given, struct ibv_cq **cq, void **user)
{
	struct channel *channel = (struct channel *)(void *)given;
	uint64_t one;
	int ret = -1;

	pthread_mutex_lock(&lock);
	if (read(given->fd, &one, sizeof(one)) == sizeof(one) && channel->told_count != 0) {
		*cq = &channel->told[0]->base;
		*user = (*cq)->cq_context;
		channel->told[0]->read++;
		memmove(channel->told, channel->told + 1, --channel->told_count * sizeof(channel->told[0]));
		ret = 0;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	pthread_mutex_lock(&lock);
	((struct queue *)(void *)cq)->read -= count;
	pthread_mutex_unlock(&lock);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	struct queue *queue = (struct queue *)(void *)cq;

	(void)solicited;
	pthread_mutex_lock(&lock);
	queue->armed = true;
	if (queue->count != 0)
		tell(queue);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Queue pairs ---------------------------------------------------------------------------------------------------------
 */

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct pair *pair = calloc(1, sizeof(*pair));

	pthread_mutex_lock(&lock);
	pair->base = (struct ibv_qp){.context = pd->context,
				     .pd = pd,
				     .send_cq = attr->send_cq,
				     .recv_cq = attr->recv_cq,
				     .qp_num = next_number++,
				     .state = IBV_QPS_RESET,
				     .qp_type = attr->qp_type};
	pair->queue = (struct queue *)(void *)attr->send_cq;
	pair->queue->pair = pair;
	LIST_INSERT_HEAD(&pairs, pair, link);
	pthread_mutex_unlock(&lock);
	return &pair->base;
}

static int destroy_qp(struct ibv_qp *qp)
{
	struct pair *pair = (struct pair *)(void *)qp;

	pthread_mutex_lock(&lock);
	LIST_REMOVE(pair, link);
	pair->queue->pair = NULL;
	pair->queue->count = 0;
	pthread_mutex_unlock(&lock);
	free(pair);
	return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	static const enum ibv_qp_state before[] = {
		[IBV_QPS_INIT] = IBV_QPS_RESET, [IBV_QPS_RTR] = IBV_QPS_INIT, [IBV_QPS_RTS] = IBV_QPS_RTR};
	struct pair *pair = (struct pair *)(void *)qp;
	int error = 0;

	pthread_mutex_lock(&lock);
	if ((mask & IBV_QP_STATE) == 0 ||
	    (attr->qp_state != IBV_QPS_ERR && (attr->qp_state < IBV_QPS_INIT || attr->qp_state > IBV_QPS_RTS ||
					       pair->base.state != before[attr->qp_state])))
		error = EINVAL;
	if (error == 0 && attr->qp_state == IBV_QPS_INIT)
		pair->access = attr->qp_access_flags;
	if (error == 0 && attr->qp_state == IBV_QPS_RTR) {
		pair->peer = attr->dest_qp_num;
		memcpy(pair->gid, attr->ah_attr.grh.dgid.raw, sizeof(pair->gid));
		if (attr->ah_attr.grh.sgid_index != 3 || attr->path_mtu != IBV_MTU_4096)
			error = EINVAL;
	}
	if (error == 0)
		pair->base.state = attr->qp_state;
	if (error == 0 && attr->qp_state == IBV_QPS_ERR && pair->queue->armed && pair->queue->count != 0)
		tell(pair->queue);
	pthread_mutex_unlock(&lock);
	return error;
}

static int post_one(struct pair *pair, const struct ibv_send_wr *wr)
{
	struct queue *queue = pair->queue;
	struct request *request = &queue->requests[(queue->head + queue->count) % queue->depth];
	unsigned char *at = request->inline_data;

	if (queue->count == queue->depth)
		return ENOMEM;
	if (wr->num_sge > 4 || (pair->base.state != IBV_QPS_RTS && pair->base.state != IBV_QPS_ERR))
		return EINVAL;
	request->wr = *wr;
	for (int i = 0; i < wr->num_sge; i++) {
		request->sge[i] = wr->sg_list[i];
		if ((wr->send_flags & IBV_SEND_INLINE) == 0)
			continue;
		memcpy(at, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		at += wr->sg_list[i].length;
	}
	queue->count++;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct pair *pair = (struct pair *)(void *)qp;
	int error = 0;

	pthread_mutex_lock(&lock);
	for (; wr != NULL && error == 0; wr = error == 0 ? wr->next : wr) {
		error = post_one(pair, wr);
		if (error != 0)
			*bad = wr;
	}
	if (pair->queue->armed && pair->queue->count != 0)
		tell(pair->queue);
	pthread_mutex_unlock(&lock);
	return error;
}

static struct pair *find_pair(uint32_t number)
{
	struct pair *pair;

	LIST_FOREACH(pair, &pairs, link)
	if (pair->base.qp_num == number)
		return pair;
	return NULL;
}

/* What a device does with a request. */
static enum ibv_wc_status carry_out(struct pair *pair, struct request *request)
{
	bool writes = request->wr.opcode == IBV_WR_RDMA_WRITE,
	     inlined = (request->wr.send_flags & IBV_SEND_INLINE) != 0;
	int access = writes ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
	struct pair *peer = find_pair(pair->peer);
	unsigned char *here[4], *there;
	uint64_t length = 0;
	uint8_t gid[16] = {0};

	for (int i = 0; i < request->wr.num_sge; i++) {
		here[i] = inlined ? request->inline_data + length
				  : bytes_of(pair->base.pd, request->sge[i].lkey, false,
					     writes ? 0 : IBV_ACCESS_LOCAL_WRITE, request->sge[i].addr,
					     request->sge[i].length);
		if (here[i] == NULL)
			return IBV_WC_LOC_PROT_ERR;
		length += request->sge[i].length;
	}
	if (peer != NULL)
		gid_of(nic_of(peer), gid);
	if (peer == NULL || peer->peer != pair->base.qp_num || memcmp(gid, pair->gid, sizeof(gid)) != 0 ||
	    (peer->base.state != IBV_QPS_RTR && peer->base.state != IBV_QPS_RTS) || nic_of(peer)->down)
		return IBV_WC_RETRY_EXC_ERR;
	if (length == 0)
		return IBV_WC_SUCCESS;
	there = bytes_of(peer->base.pd, request->wr.wr.rdma.rkey, true, access, request->wr.wr.rdma.remote_addr,
			 length);
	if (there == NULL || (peer->access & (unsigned int)access) == 0) {
		peer->base.state = IBV_QPS_ERR;
		return IBV_WC_REM_ACCESS_ERR;
	}
	for (int i = 0; i < request->wr.num_sge; i++) {
		memcpy(writes ? there : here[i], writes ? here[i] : there, request->sge[i].length);
		there += request->sge[i].length;
	}
	nic_of(pair)->carried++;
	return IBV_WC_SUCCESS;
}

static int poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *wc)
{
	struct queue *queue = (struct queue *)(void *)cq;
	int count = 0;

	pthread_mutex_lock(&lock);
	while (count < max && queue->count != 0) {
		struct pair *pair = queue->pair;
		struct request *request = &queue->requests[queue->head];
		enum ibv_wc_status status = IBV_WC_WR_FLUSH_ERR;

		if (pair->base.state == IBV_QPS_RTS) {
			if (nic_of(pair)->down || pair->stuck || budget == 0)
				break;
			budget -= budget != UINT64_MAX;
			status = carry_out(pair, request);
			if (status != IBV_WC_SUCCESS)
				pair->base.state = IBV_QPS_ERR;
		}
		queue->head = (queue->head + 1) % queue->depth;
		queue->count--;
		if (status != IBV_WC_SUCCESS || (request->wr.send_flags & IBV_SEND_SIGNALED) != 0)
			wc[count++] = (struct ibv_wc){
				.wr_id = request->wr.wr_id, .status = status, .qp_num = pair->base.qp_num};
	}
	pthread_mutex_unlock(&lock);
	return count;
}

/* Contexts ------------------------------------------------------------------------------------------------------------
 */

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct context *context = calloc(1, sizeof(*context));

	context->base.device = device;
	context->base.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC | EFD_NONBLOCK);
	context->base.cmd_fd = eventfd(0, EFD_CLOEXEC);
	context->base.ops.poll_cq = poll_cq;
	context->base.ops.req_notify_cq = req_notify_cq;
	context->base.ops.post_send = post_send;
	context->nic = (struct nic *)(void *)device;
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&contexts, context, link);
	pthread_mutex_unlock(&lock);
	return &context->base;
}

static int close_device(struct ibv_context *given)
{
	struct context *context = (struct context *)(void *)given;

	pthread_mutex_lock(&lock);
	LIST_REMOVE(context, link);
	pthread_mutex_unlock(&lock);
	close(given->async_fd);
	close(given->cmd_fd);
	free(context);
	return 0;
}

/* For tests -----------------------------------------------------------------------------------------------------------
 */

void test_nics(uint32_t count)
{
	static const struct rdma_verbs verbs = {
#define X(result, name, arguments) .name = name,
		RDMA_VERBS(X)
#undef X
			.query_gid_table = query_gid_table,
	};

	nic_count = count < DEVICES ? count : DEVICES;
	for (uint32_t i = 0; i < nic_count; i++) {
		nics[i] = (struct nic){.down = false};
		snprintf(nics[i].device.name, sizeof(nics[i].device.name), "nic%u", i);
	}
	budget = UINT64_MAX;
	refuse_after = UINT32_MAX;
	rdma_verbs_instead = count != 0 ? &verbs : NULL;
}

void test_nics_budget(uint64_t requests)
{
	pthread_mutex_lock(&lock);
	budget = requests;
	pthread_mutex_unlock(&lock);
}

void test_nics_stuck(void)
{
	struct pair *pair;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(pair, &pairs, link)
	pair->stuck |= pair->queue->count != 0;
	pthread_mutex_unlock(&lock);
}

void test_nics_refuse(uint32_t skip)
{
	pthread_mutex_lock(&lock);
	refuse_after = skip;
	pthread_mutex_unlock(&lock);
}

uint64_t test_nic_carried(uint32_t device)
{
	uint64_t carried;

	pthread_mutex_lock(&lock);
	carried = nics[device].carried;
	pthread_mutex_unlock(&lock);
	return carried;
}

uint32_t test_nics_qps(void)
{
	struct pair *pair;
	uint32_t count = 0;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(pair, &pairs, link)
	count++;
	pthread_mutex_unlock(&lock);
	return count;
}

uint32_t test_nics_regions(void)
{
	struct region *region;
	uint32_t count = 0;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(region, &regions, link)
	count++;
	pthread_mutex_unlock(&lock);
	return count;
}

int test_nics_rights(const void *addr)
{
	struct region *region;
	int rights = -1;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(region, &regions, link)
	if (region->base.addr == addr)
		rights = region->access;
	pthread_mutex_unlock(&lock);
	return rights;
}
