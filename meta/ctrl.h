/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread "lw-ctrl": one event loop (epoll) that serves the handshake port, makes calls to peers' handshake
 * ports, watches descriptors for others and runs jobs. It never waits for one peer: each connection is a state machine
 * with an absolute deadline on CLOCK_MONOTONIC, so a silent or slow one delays nobody.
 */
#ifndef LW_META_CTRL_H
#define LW_META_CTRL_H

#include <stddef.h>
#include <stdint.h>

#include "lib/ring/inbox.h"
#include "meta/hostport.h"

struct lw_ctrl;

struct lw_ctrl_opts {
	struct sockaddr_storage bind; /* where to listen; its port is ignored */
	uint16_t port_min, port_max;
	size_t max_frame;     /* longest payload taken or sent, bytes */
	uint32_t max_clients; /* served at once; the oldest silent one makes room for a new one */
	uint32_t timeout_ms;  /* a served connection lives at most this long */
	/* Answers one request, on the control thread; must not block. *reply is malloc'ed JSON that the control thread
	 * frees. 0, or a negative errno: the connection is closed without an answer. */
	int (*serve)(void *arg, int type, const char *body, size_t size, char **reply, size_t *reply_size);
	void *arg;
};

/* Binds the port and starts the thread (all signals blocked in it). The caller owns *out. Blocks briefly.
 * 0; -EADDRINUSE, -EADDRNOTAVAIL, -EMFILE, -ENOMEM, -EAGAIN no thread. */
int lw_ctrl_open(const struct lw_ctrl_opts *opts, struct lw_ctrl **out);

/* In a forked child: closes its copies of the descriptors, and does nothing else. */
void lw_ctrl_forked(struct lw_ctrl *ctrl);

/* Ends calls with -ESHUTDOWN and refuses new ones; everything else goes on until lw_ctrl_close, which has to follow.
 * Once. Any thread; never blocks. */
void lw_ctrl_refuse(struct lw_ctrl *ctrl);

/* Ends calls with -ESHUTDOWN, runs jobs that were posted, stops and joins the thread, closes the sockets. Not on the
 * control thread. */
void lw_ctrl_close(struct lw_ctrl *ctrl);

uint16_t lw_ctrl_port(const struct lw_ctrl *ctrl);

/* One request to a peer's handshake port: tries the addresses in turn, sends, reads the answer, closes. done runs on
 * the control thread exactly once with 0 and the body of the answer (valid during the call), or a negative errno:
 * -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -EPROTO (bad frame, other type), -ECONNRESET, -EMFILE, -ENOMEM, -ESHUTDOWN,
 * -EMSGSIZE. Any thread; never blocks; copies body. 0, or -ENOMEM, -EMSGSIZE, -ESHUTDOWN (then done does not run). */
typedef void (*lw_ctrl_done)(void *arg, int result, const char *body, size_t size);
int lw_ctrl_call_async(struct lw_ctrl *ctrl, const struct lw_addrs *addrs, int type, const char *body, size_t size,
		       uint32_t timeout_ms, lw_ctrl_done done, void *arg);

/* The same, waiting for the end. *reply is the caller's to free. Any thread but the control thread (there: -EDEADLK).
 * Blocks for at most timeout_ms. */
int lw_ctrl_call(struct lw_ctrl *ctrl, const struct lw_addrs *addrs, int type, const char *body, size_t size,
		 uint32_t timeout_ms, char **reply, size_t *reply_size);

/* Runs ready(arg) on the control thread whenever fd is readable (level-triggered); ready must not block. Any thread.
 * Never blocks. *watch is a handle, written before ready first runs and ended by lw_ctrl_unwatch before lw_ctrl_close.
 * 0, -ENOMEM, a negative errno of epoll_ctl(2). */
struct lw_ctrl_watch;
int lw_ctrl_watch(struct lw_ctrl *ctrl, int fd, void (*ready)(void *arg), void *arg, struct lw_ctrl_watch **watch);

/* Pauses a watch for ms milliseconds (for accept when descriptors are short). Control thread only. */
void lw_ctrl_watch_pause(struct lw_ctrl *ctrl, struct lw_ctrl_watch *watch, uint32_t ms);

/* Ends a watch; when it returns, ready does not run and will not run. Any thread but the control thread, blocking
 * briefly; on the control thread at once. */
void lw_ctrl_unwatch(struct lw_ctrl *ctrl, struct lw_ctrl_watch *watch);

/* The structure that has *ptr as its member. */
#define lw_container(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* A ring with a head: an element can leave it without knowing which list it is in. */
struct lw_link {
	struct lw_link *prev, *next;
};

/* Calls fire(ctrl, timer) at a time of CLOCK_MONOTONIC, once. The memory is the caller's, all zero but for fire before
 * the first use; it must stay until the timer has fired or was cleared. The control thread alone. Never blocks. */
struct lw_ctrl_timer {
	struct lw_link link;
	uint64_t at_ns; /* 0: not set */
	void (*fire)(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer);
};
void lw_ctrl_timer_set(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer, uint64_t at_ns);
void lw_ctrl_timer_clear(struct lw_ctrl_timer *timer);

/* Runs job->run(job) on the control thread. The job is the caller's memory until it runs. Any thread, workers too:
 * lock-free, no allocation, and a system call only if the control thread sleeps. */
struct lw_ctrl_job {
	struct lw_inbox_node node;
	void (*run)(struct lw_ctrl_job *job);
};
void lw_ctrl_post(struct lw_ctrl *ctrl, struct lw_ctrl_job *job);

#endif
