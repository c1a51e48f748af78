/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the control thread share: ctrl.c (loop, timers, jobs, watches), ctrl_server.c (the handshake port)
 * and ctrl_client.c (calls). Private to them. Everything here belongs to the control thread, but for the fields of
 * struct lw_ctrl that say otherwise.
 */
#ifndef LW_META_CTRL_PVT_H
#define LW_META_CTRL_PVT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "lib/ring/inbox.h"
#include "meta/ctrl.h"

#define LW_CTRL_SCRATCH_BYTES 65536
/* Bytes moved for one connection before the others have their turn. */
#define LW_CTRL_TURN_BYTES (1u << 20)
#define LW_CTRL_LOG_SOURCES 64

static inline void lw_link_init(struct lw_link *head)
{
	head->prev = head;
	head->next = head;
}

static inline bool lw_link_empty(const struct lw_link *head)
{
	return head->next == head;
}

static inline void lw_link_append(struct lw_link *head, struct lw_link *link)
{
	link->prev = head->prev;
	link->next = head;
	head->prev->next = link;
	head->prev = link;
}

static inline void lw_link_remove(struct lw_link *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
	lw_link_init(link);
}

/* What epoll points to: the first member of each thing with a descriptor, which is one allocation. */
struct lw_ctrl_io {
	/* NULL: dead. A round's later events may still point here, so it is freed when the round has ended. */
	void (*event)(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, uint32_t events);
	struct lw_ctrl_io *next_dead;
};

struct lw_ctrl_watch {
	struct lw_ctrl_io io;
	int fd;
	bool paused;
	void (*ready)(void *arg);
	void *arg;
	struct lw_ctrl_timer timer; /* ends a pause */
};

struct lw_ctrl {
	struct lw_ctrl_opts opts; /* constant */
	uint16_t port;            /* constant */
	int epoll_fd, wake_fd, listen_fd;
	pthread_t thread;

	/* Any thread. */
	struct lw_inbox jobs;
	atomic_uint
		asleep; /* 1: whoever exchanges it for 0 writes to wake_fd. Only ever exchanged, see sleep_or_not() */
	atomic_uint users;   /* threads inside post and call_async: the memory stays until they left */
	atomic_bool closing; /* no new calls */
	struct lw_ctrl_job refuse;

	/* The control thread. */
	bool stopping;
	struct lw_ctrl_io wake;
	struct lw_ctrl_watch *listener;
	struct lw_link timers;
	uint64_t next_ns; /* no timer is due before; UINT64_MAX: none is set */
	struct lw_ctrl_io *dead;
	struct lw_link clients; /* oldest first */
	uint32_t client_count;
	struct lw_link calls;
	struct lw_log_limit log_limit;
	uint64_t quiet_until_ns[LW_CTRL_LOG_SOURCES]; /* by hash of the source's address */
	char scratch[LW_CTRL_SCRATCH_BYTES];
};

/* ctrl.c */
/* 0, or a negative errno of epoll_ctl(2). */
int lw_ctrl_io_add(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, int fd, uint32_t events);
int lw_ctrl_io_change(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, int fd, uint32_t events);
/* Takes fd out of the set and closes it, if it is not negative. */
void lw_ctrl_io_close(struct lw_ctrl *ctrl, int fd);
/* The same, and frees io after this round. */
void lw_ctrl_io_kill(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, int fd);

/* Sends from *sent on, at most one turn's worth. 1 all is sent, 0 call again when writable, or a negative errno. */
int lw_ctrl_send(int fd, const char *bytes, size_t size, size_t *sent);

/* ctrl_server.c: accepts clients on listen_fd; ready function of the listener, arg is the struct lw_ctrl. */
void lw_ctrl_accept(void *arg);
void lw_ctrl_drop_clients(struct lw_ctrl *ctrl);

/* ctrl_client.c */
void lw_ctrl_end_calls(struct lw_ctrl *ctrl, int error);

#endif
