/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA driver's insides: what its files share. README.md tells how the parts work together. */
#ifndef LW_DRIVERS_RDMA_H
#define LW_DRIVERS_RDMA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "drivers/rdma/verbs.h"
#include "lib/log.h"
#include "lib/ring/command.h"
#include "lib/sched/driver.h"
#include "lib/sched/worker.h"
#include "meta/ctrl.h"
#include "meta/descriptor.h"
#include "meta/handshake.h"
#include "meta/hostport.h"
#include "meta/matrix.h"

extern const struct lw_driver_ops lw_rdma_ops;

#define RDMA_DEVICES 16
#define RDMA_PAIRS 16
#define RDMA_QPS 8
#define RDMA_TOLD 64
#define RDMA_CREDITS 256 /* slices on one lane */

struct lw_memory;
struct rdma_engine;
struct rdma_endpoint;
struct rdma_worker;
LIST_HEAD(rdma_endpoint_list, rdma_endpoint);

/* A device of this host, opened on one port. Constant but for what says otherwise. */
struct rdma_device {
	struct rdma_engine *rdma;
	uint32_t index;
	char name[64];
	char path[LW_NIC_PATH]; /* "NAME@DEVICE", as peers call it; set when the engine has its name */
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint8_t port;
	enum ibv_mtu mtu;
	uint16_t lid;
	uint8_t gid[16];
	uint8_t gid_index;
	uint64_t max_message_bytes;
	uint64_t max_mr_bytes;
	uint32_t max_wr, max_sge, max_reads_out, max_reads_in;
	struct lw_ctrl_watch *watch; /* of asynchronous events */
	_Atomic bool up;             /* the port is active; written by the control thread */
};

/* A queue pair with its own completion queue, in a domain of its own where the provider has those. The control thread
 * makes and destroys it; between, one worker's lane uses it, or nobody. */
struct rdma_qp {
	struct rdma_device *device;
	struct ibv_td *td;     /* NULL: the provider has none */
	struct ibv_pd *domain; /* a parent domain of td; the device's pd without one */
	struct ibv_cq *cq;
	struct ibv_qp *qp;    /* NULL: it is destroyed */
	struct ibv_qp_ex *ex; /* the same, where requests can be built in the provider's queue; else NULL */
	uint32_t number;      /* as peers know it */
	uint32_t depth;       /* requests that a lane may have under way; one more is for a probe */
	uint32_t inline_bytes;
	_Atomic uint32_t broken; /* it is in the error state, or about to be: by the control thread, for the worker */
	void *user;              /* the worker's: the lane that has it */
};

/* What a view keeps of a peer: its devices, its keys, and which devices of both sides are paired. */
struct rdma_pair {
	uint32_t here, there; /* devices */
	char peer[LW_NIC_PATH];
	uint8_t gid[16]; /* the peer's */
	uint16_t lid;
};
struct rdma_reach {
	uint64_t incarnation;
	uint32_t device_count; /* the peer's */
	uint32_t pair_count;
	struct rdma_pair pair[RDMA_PAIRS];
	size_t buffer_count;
	uint64_t *near;   /* by buffer of the descriptor: the peer's devices near it, a bit each */
	uint32_t *rkeys;  /* behind first: of the buffers that have some, one a device; 0: it can't be reached so */
	uint32_t first[]; /* by buffer of the descriptor: 1 + the position of its first key; 0: it has none */
};

/* A registered buffer: memory regions on every device, in pieces of at most piece_bytes. Immutable once it is in the
 * table. */
struct rdma_buffer {
	uint64_t addr, length, piece_bytes;
	uint64_t near; /* devices, a bit each */
	uint32_t piece_count;
	struct ibv_mr *mr[]; /* by piece and device */
};

/* The driver's part of an engine. */
struct rdma_engine {
	struct lw_engine *engine;
	const struct rdma_verbs *verbs;
	uint32_t driver;
	uint32_t device_count;
	struct rdma_device device[RDMA_DEVICES];
	struct lw_matrix *matrix;               /* of the devices, as peers are told */
	_Atomic(struct rdma_buffer *) *buffers; /* by slot */
	struct rdma_worker *workers[64];
	_Atomic bool serving; /* the handshake */
	/* the control thread's */
	struct rdma_endpoint_list endpoints; /* that may be found */
	struct rdma_endpoint_list over;      /* that are broken, until everybody has left them */
	uint32_t endpoint_count;
	struct lw_log_limit log_limit;
	uint32_t told[RDMA_TOLD]; /* marks of connections that were complained of since they last were there */
};

/* device.c */
/* Opens the devices that the settings allow. 0; -ENODEV and why there is none. */
int rdma_devices_open(struct rdma_engine *rdma, char *why, size_t why_size);
void rdma_devices_close(struct rdma_engine *rdma);
/* The port's state, address and limits as they are now. 0, or a negative errno and why. */
int rdma_device_query(struct rdma_device *device, char *why, size_t why_size);

/* memory.c; as in lw_driver_ops */
int rdma_attach(void *context, uint32_t index, const struct lw_memory *memory, char *why, size_t why_size);
void rdma_detach(void *context, uint32_t index);
int rdma_piece(void *context, uint32_t index, struct lw_desc *desc, struct lw_desc_buffer *out);
void rdma_buffers_free(struct rdma_engine *rdma);

/* The region with the byte at addr, *left of whose bytes begin there. NULL: the buffer is not registered. */
static inline const struct ibv_mr *rdma_region(const struct rdma_engine *rdma, uint32_t slot, uint32_t device,
					       uint64_t addr, uint64_t *left)
{
	const struct rdma_buffer *buffer = atomic_load_explicit(&rdma->buffers[slot], memory_order_acquire);
	uint64_t offset, piece, end;

	if (buffer == NULL || addr - buffer->addr >= buffer->length)
		return NULL;
	offset = addr - buffer->addr;
	piece = offset / buffer->piece_bytes;
	end = (piece + 1) * buffer->piece_bytes;
	*left = (end < buffer->length ? end : buffer->length) - offset;
	return buffer->mr[piece * rdma->device_count + device];
}

/* qp.c: the control thread, but for what says otherwise */
/* A queue pair in the state INIT. 0, or a negative errno; errno says no more. */
int rdma_qp_open(struct rdma_qp *qp, struct rdma_device *device, struct ibv_comp_channel *channel);
/* Joins it to the peer's: RTR, then RTS. 0, or a negative errno. May wait for the neighbour's address to be resolved.
 */
int rdma_qp_join(struct rdma_qp *qp, const uint8_t gid[16], uint16_t lid, uint32_t number);
/* Into the error state: no byte is sent or taken any more when it returns true. Any thread. */
bool rdma_qp_break(struct rdma_qp *qp);
/* Destroys what is left of it. Nobody uses it. */
void rdma_qp_close(struct rdma_qp *qp);

/* events.c */
/* Watches a device's asynchronous events; the control thread acts on them. 0, or a negative errno. */
int rdma_events_start(struct rdma_device *device);
void rdma_events_stop(struct rdma_device *device);

/* near.c */
/* Those of count devices that the matrix prefers for memory of this location, a bit each; all, if it is not told. name:
 * of device number i. */
uint64_t rdma_near(const struct lw_matrix *matrix, const char *location, const char *(*name)(const void *of, size_t i),
		   const void *of, size_t count);
/* As lw_driver_ops.nearest. */
uint32_t rdma_nearest(const struct lw_path *path, uint64_t local, uint64_t remote);

/* peer.c; as in lw_driver_ops */
/* The peer's devices near its memory at addr. */
uint64_t rdma_reach_near(const struct rdma_reach *reach, const struct lw_view *view, uint64_t addr);
/* The key of the peer's byte at addr for a device of its, *left of whose bytes begin there. 0: there is none. */
uint32_t rdma_reach_key(const struct rdma_reach *reach, const struct lw_view *view, uint32_t device, uint64_t addr,
			uint64_t *left);
int rdma_reach_peer(void *context, const struct lw_desc *desc, void **peer, char *why, size_t why_size);
void rdma_forget(void *peer);

#endif
