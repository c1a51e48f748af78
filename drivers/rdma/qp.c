/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: made, joined to the peer's, broken, destroyed. The numbers are the reference's, except that a send is
 * not repeated for ever. */
#include <errno.h>
#include <string.h>

#include "drivers/rdma/rdma.h"
#include "lib/engine.h"

#define HOP_LIMIT 16
#define MIN_RNR_TIMER 12 /* 0.64 ms; nobody receives here, so it never counts */
#define RNR_RETRIES 6
#define QPN_MASK 0xffffffu

static int errno_or(int error)
{
	return errno != 0 ? -errno : -error;
}

/* A domain that only one thread uses at a time: the provider then takes no lock. Where it has none, the device's. */
static void open_domain(struct rdma_qp *qp)
{
	struct ibv_td_init_attr td = {.comp_mask = 0};
	struct ibv_parent_domain_init_attr domain = {.pd = qp->device->pd};

	qp->domain = qp->device->pd;
	qp->td = ibv_alloc_td(qp->device->context, &td);
	if (qp->td == NULL)
		return;
	domain.td = qp->td;
	qp->domain = ibv_alloc_parent_domain(qp->device->context, &domain);
	if (qp->domain != NULL)
		return;
	qp->domain = qp->device->pd;
	ibv_dealloc_td(qp->td);
	qp->td = NULL;
}

static int open_cq(struct rdma_qp *qp, struct ibv_comp_channel *channel)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = qp->device->max_wr,
					   .cq_context = qp,
					   .channel = channel,
					   .wc_flags = IBV_WC_STANDARD_FLAGS,
					   .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					   .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
	struct ibv_cq_ex *cq = NULL;

	/* What one thread at a time polls needs no lock, either. */
	if (qp->td != NULL)
		cq = ibv_create_cq_ex(qp->device->context, &attr);
	qp->cq = cq != NULL ? ibv_cq_ex_to_cq(cq)
			    : qp->device->rdma->verbs->create_cq(qp->device->context, (int)qp->device->max_wr, qp,
								 channel, 0);
	return qp->cq != NULL ? 0 : errno_or(ENOMEM);
}

/* With functions that build requests in place, if the provider has them. */
static bool create_extended(struct rdma_qp *qp, const struct ibv_qp_cap *cap)
{
	struct verbs_context *provider = verbs_get_ctx_op(qp->device->context, create_qp_ex);
	struct ibv_qp_init_attr_ex attr = {.send_cq = qp->cq,
					   .recv_cq = qp->cq,
					   .cap = *cap,
					   .qp_type = IBV_QPT_RC,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					   .pd = qp->domain,
					   .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ};

	if (provider == NULL || qp->device->rdma->verbs->qp_to_qp_ex == NULL)
		return false;
	qp->qp = provider->create_qp_ex(qp->device->context, &attr);
	if (qp->qp == NULL)
		return false;
	qp->inline_bytes = attr.cap.max_inline_data;
	qp->ex = qp->device->rdma->verbs->qp_to_qp_ex(qp->qp);
	return true;
}

static bool create_plain(struct rdma_qp *qp, const struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr attr = {.send_cq = qp->cq, .recv_cq = qp->cq, .cap = *cap, .qp_type = IBV_QPT_RC};

	qp->qp = qp->device->rdma->verbs->create_qp(qp->domain, &attr);
	qp->inline_bytes = attr.cap.max_inline_data;
	return qp->qp != NULL;
}

static int create(struct rdma_qp *qp)
{
	uint64_t wanted = qp->device->rdma->engine->config.rdma_inline_bytes;
	struct ibv_qp_cap cap = {.max_send_wr = qp->device->max_wr,
				 .max_recv_wr = 1,
				 .max_send_sge = qp->device->max_sge,
				 .max_recv_sge = 1,
				 .max_inline_data = (uint32_t)wanted};

	if (!create_extended(qp, &cap) && !create_plain(qp, &cap)) {
		cap.max_inline_data = 0; /* some devices have no room for it */
		if (!create_extended(qp, &cap) && !create_plain(qp, &cap))
			return errno_or(ENOMEM);
	}
	if (qp->inline_bytes > wanted)
		qp->inline_bytes = (uint32_t)wanted;
	return 0;
}

static int modify(struct rdma_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return -qp->device->rdma->verbs->modify_qp(qp->qp, attr, mask);
}

static int to_init(struct rdma_qp *qp)
{
	const struct lw_config *config = &qp->device->rdma->engine->config;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = qp->device->port,
				   .pkey_index = (uint16_t)config->rdma_pkey_index,
				   .qp_access_flags =
					   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};

	return modify(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
}

int rdma_qp_open(struct rdma_qp *qp, struct rdma_device *device, struct ibv_comp_channel *channel)
{
	int error;

	*qp = (struct rdma_qp){.device = device, .depth = device->max_wr - 1};
	errno = 0;
	open_domain(qp);
	error = open_cq(qp, channel);
	if (error == 0)
		error = create(qp);
	if (error == 0)
		error = to_init(qp);
	if (error == 0)
		qp->number = qp->qp->qp_num;
	else
		rdma_qp_close(qp);
	return error;
}

int rdma_qp_join(struct rdma_qp *qp, const uint8_t gid[16], uint16_t lid, uint32_t number)
{
	const struct lw_config *config = &qp->device->rdma->engine->config;
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
				  .path_mtu = qp->device->mtu,
				  .dest_qp_num = number & QPN_MASK,
				  .rq_psn = 0,
				  .max_dest_rd_atomic = (uint8_t)qp->device->max_reads_in,
				  .min_rnr_timer = MIN_RNR_TIMER,
				  .ah_attr = {.dlid = lid,
					      .sl = (uint8_t)config->rdma_sl,
					      .is_global = 1,
					      .port_num = qp->device->port,
					      .grh = {.sgid_index = qp->device->gid_index,
						      .hop_limit = HOP_LIMIT,
						      .traffic_class = (uint8_t)config->rdma_traffic_class}}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .timeout = (uint8_t)config->rdma_timeout,
				  .retry_cnt = (uint8_t)config->rdma_retries,
				  .rnr_retry = RNR_RETRIES,
				  .sq_psn = 0,
				  .max_rd_atomic = (uint8_t)qp->device->max_reads_out};
	int error;

	memcpy(rtr.ah_attr.grh.dgid.raw, gid, 16);
	error = modify(qp, &rtr,
		       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error == 0)
		error = modify(qp, &rts,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC);
	return error;
}

bool rdma_qp_break(struct rdma_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	atomic_store_explicit(&qp->broken, 1, memory_order_release);
	return qp->qp == NULL || modify(qp, &attr, IBV_QP_STATE) == 0;
}

void rdma_qp_close(struct rdma_qp *qp)
{
	const struct rdma_verbs *verbs = qp->device->rdma->verbs;

	if (qp->qp != NULL)
		verbs->destroy_qp(qp->qp);
	if (qp->cq != NULL)
		verbs->destroy_cq(qp->cq);
	if (qp->td != NULL) {
		verbs->dealloc_pd(qp->domain);
		ibv_dealloc_td(qp->td);
	}
	qp->qp = NULL;
	qp->cq = NULL;
	qp->td = NULL;
}
