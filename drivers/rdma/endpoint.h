/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: the queue pairs between a device of ours and one of a peer's, joined by one handshake. They belong to the
 * control thread; a worker's lane uses one queue pair of one, for which it takes a seat.
 *
 *   NEW --our request--> ASKING --reply--> WAITS --the reply to "ready"--> JOINED --anything breaks--> OVER
 *    '------the peer's request------------^  '------the peer's "ready"-------^
 *
 * One endpoint serves both directions: the peer's lanes use the same queue pairs. It is found by the two NIC paths. The
 * second and later worker, and a second segment of the same peer, add a mark to our path, so that theirs are others.
 */
#ifndef LW_RDMA_ENDPOINT_H
#define LW_RDMA_ENDPOINT_H

#include "drivers/rdma/rdma.h"
#include <lanewise/error.h>

enum rdma_endpoint_state { RDMA_NEW, RDMA_ASKING, RDMA_WAITS, RDMA_JOINED, RDMA_OVER };

struct rdma_endpoint {
	LIST_ENTRY(rdma_endpoint) link;
	struct rdma_engine *rdma;
	struct rdma_device *device;
	char here[LW_NIC_PATH], there[LW_NIC_PATH];
	enum rdma_endpoint_state state;
	uint32_t count;
	struct rdma_qp qp[RDMA_QPS];
	struct rdma_seat *seat[RDMA_QPS]; /* that has it, or waits for it */
	uint32_t peer_qp[RDMA_QPS];
	uint64_t peer_incarnation;  /* 0: unknown, or not a Lanewise engine */
	uint32_t calls;             /* to the peer's handshake port, under way */
	struct lw_ctrl_timer timer; /* until the peer says that it is ready; then, to the next probe */
	uint32_t probed;            /* steps since the probe was posted; 0: none is under way */
	/* what our request was made of */
	struct lw_addrs rpc;
	uint64_t meant;
	uint8_t gid[16]; /* of the peer's device, as its descriptor has it */
	uint16_t lid;
};

/* A lane's claim to a queue pair. It goes to the control thread and back through job and command, one way at a time:
 *
 *   FREE --ask--> ASKED --answer--> SEATED --leave--> LEAVING --answer--> FREE
 */
enum rdma_seat_state { RDMA_FREE, RDMA_ASKED, RDMA_SEATED, RDMA_LEAVING };

struct rdma_seat {
	struct lw_command command; /* first: on its way to the worker */
	struct lw_ctrl_job job;    /* on its way to the control thread */
	struct rdma_worker *worker;
	enum rdma_seat_state state; /* the worker's */
	struct lw_lane *lane;       /* the worker's; NULL: it has given up */
	struct lw_path *path;       /* the worker's: whose lane it was, and of which life */
	uint32_t path_gen;
	TAILQ_ENTRY(rdma_seat) link; /* the worker's: free, or seated */
	/* the question */
	uint32_t device, number; /* which queue pair of the endpoint */
	char there[LW_NIC_PATH];
	struct lw_addrs rpc;
	uint64_t meant;
	uint8_t gid[16];
	uint16_t lid;
	/* the answer */
	struct rdma_qp *qp; /* NULL: none, because of reason */
	enum lw_reason reason;
	/* when it leaves */
	bool hurt; /* the queue pair is broken, or holds requests */
	bool owed; /* WRITEs wait until none of them can arrive any more */
	bool over; /* the answer: none can */
	/* the control thread's */
	struct rdma_endpoint *endpoint;
	bool answered;
};

/* How often the peer of an endpoint that nobody here uses is asked whether it is there, milliseconds. Tests set it. */
extern uint32_t rdma_probe_ms;

/* On the control thread, as jobs of seats. */
void rdma_seat_asked(struct lw_ctrl_job *job);
void rdma_seat_left(struct lw_ctrl_job *job);

/* For endpoint.c and serve.c, on the control thread. */
struct rdma_endpoint *rdma_endpoint_find(struct rdma_engine *rdma, const char *here, const char *there);
/* With queue pairs in the state INIT. NULL: there are none, or no memory; the log has the reason. */
struct rdma_endpoint *rdma_endpoint_make(struct rdma_engine *rdma, struct rdma_device *device, const char *here,
					 const char *there, struct ibv_comp_channel *channel);
/* Joins all queue pairs to those that the peer has told. 0, or a negative errno. */
int rdma_endpoint_join(struct rdma_endpoint *endpoint, const struct lw_handshake *said);
/* Both sides are ready: whoever waits for a queue pair gets it. */
void rdma_endpoint_joined(struct rdma_endpoint *endpoint);
/* Whether the peer speaks of the queue pairs that these are joined to. */
bool rdma_endpoint_is(const struct rdma_endpoint *endpoint, const struct lw_handshake *said);
/* What we say of an endpoint. */
struct lw_handshake rdma_endpoint_words(const struct rdma_endpoint *endpoint);
/* Breaks the queue pairs, tells the workers, and lets the endpoint be found no more. False: a queue pair could not be
 * broken. The endpoint may be gone afterwards. */
bool rdma_endpoint_end(struct rdma_endpoint *endpoint, enum lw_reason reason);

/* serve.c: as lw_driver_ops.serve. */
int rdma_serve(void *context, const char *body, size_t size, char **text, size_t *text_size);

/* Breaks all endpoints of a device (of any, NULL), or the one with this queue pair (any, NULL). The control thread. */
void rdma_endpoints_break(struct rdma_engine *rdma, const struct rdma_device *device, const struct ibv_qp *qp);

/* Frees all of them: there is no control thread and no worker any more. */
void rdma_endpoints_free(struct rdma_engine *rdma);

#endif
