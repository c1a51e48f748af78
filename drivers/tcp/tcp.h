/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP driver's insides: what its files share. Initiator lanes and served connections of one worker hang on a ready
 * list that the epoll callbacks fill and the driver's poll works off.
 */
#ifndef LW_DRIVERS_TCP_H
#define LW_DRIVERS_TCP_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "drivers/tcp/auth.h"
#include "drivers/tcp/checksum.h"
#include "drivers/tcp/piece.h"
#include "drivers/tcp/pipe.h"
#include "drivers/tcp/rails.h"
#include "drivers/tcp/ways.h"
#include "drivers/tcp/wire.h"
#include "lib/sched/driver.h"
#include "lib/sched/worker.h"
#include "meta/ctrl.h"
#include "meta/hostport.h"

extern const struct lw_driver_ops lw_tcp_ops;

#define TCP_CREDITS 256
#define TCP_IOVS 128                        /* entries of one sendmsg or recvmsg */
#define TCP_CALLS 8                         /* system calls for one connection in one pass: the others get their turn */
#define TCP_LANE_BYTES 512                  /* either kind of connection */
#define TCP_BLOCK_BYTES ((size_t)64 * 1024) /* staging area and answers of a served connection */
#define TCP_GREETING 256                    /* of the block: what a greeting needs */
#define TCP_STAGING (60 * 1024 - TCP_GREETING)
#define TCP_LINGER_MS                                                                                                  \
	2000u /* after a refusal the peer's other bytes are read away for so long, that the status reaches it */

#define TCP_FENCES 64 /* of one worker: connections that are being greeted at once; more of them wait */

struct tcp_served;
struct tcp_worker;

/* On its way through the workers, see fence.c. Belongs to home's thread, except for command. */
struct tcp_fence {
	struct lw_command command;
	SLIST_ENTRY(tcp_fence) link; /* home->fences */
	struct tcp_worker *home;
	struct tcp_served *served; /* that waits for it; NULL: it is gone */
	uint64_t token;
	bool outrun; /* a newer connection of the lane was found */
};

struct tcp_listener {
	struct tcp_engine *tcp;
	int fd;
	uint16_t port;
	struct lw_ctrl_watch *watch;
};

/* An engine's part. */
struct tcp_engine {
	struct lw_engine *engine;
	struct tcp_rails rails;
	struct tcp_listener listener[1 + TCP_RAILS]; /* at the engine's address, then at the rails elsewhere */
	uint32_t listeners;
	uint32_t rail_listener[TCP_RAILS]; /* which of them is a rail's */
	uint32_t worker_count;
	uint32_t next;         /* worker that gets the next connection; the control thread's */
	uint64_t splice_bytes; /* WRITEs from this size go through a pipe; UINT64_MAX: none do */
	struct tcp_worker **workers;
};

/* A connection of either kind, as the ready list and epoll see it. First member of both. */
struct tcp_sock {
	struct lw_io io;
	struct tcp_worker *worker;
	void (*work)(struct tcp_sock *sock);
	TAILQ_ENTRY(tcp_sock) link;
	LIST_ENTRY(tcp_sock) open_link;
	bool ready; /* in the ready list */
	bool readable, writable, broken;
	bool ended; /* the peer sends no more: a read that comes short is not the last one */
};
TAILQ_HEAD(tcp_sock_list, tcp_sock);

/* A worker's part. */
struct tcp_worker {
	struct tcp_engine *tcp;
	struct lw_worker *worker;
	uint32_t driver;
	struct tcp_sock_list ready;
	LIST_HEAD(, tcp_sock) open; /* all that have a descriptor */
	uint32_t ready_count;
	struct tcp_pipes pipes;
	uint32_t ticked_ms;
	TAILQ_HEAD(, tcp_served) served;   /* the one that was used longest ago first */
	TAILQ_HEAD(, tcp_served) starving; /* those that wait for a bounce buffer */
	bool no_reset;                     /* at no_reset_ms none of them had been reset */
	uint32_t no_reset_ms;
	unsigned char *blocks; /* one a served connection: staging and replies */
	size_t blocks_bytes;
	uint32_t *free_blocks;
	uint32_t free_count;
	SLIST_HEAD(, tcp_fence) fences; /* unused ones */
	struct tcp_fence fence[TCP_FENCES];
};

enum tcp_greeting_state {
	TCP_GREETED,     /* or there is nothing to greet */
	TCP_HELLO_SENT,  /* its status is to come; without AUTH requests follow at once */
	TCP_CHALLENGED,  /* the status was CHALLENGE, the challenge is to come */
	TCP_PROOF_GIVEN, /* the last status is to come; requests follow at once */
};

/* A lane's own part: a connection that we opened. */
#define TCP_LATELY 4

struct tcp_lane {
	struct tcp_sock sock;
	struct lw_slice *unsent;     /* first slice that is not sent completely */
	struct tcp_pipe *pipe;       /* has bytes of unsent; NULL: none */
	bool splices;                /* what the other end is like allows it */
	uint64_t lately[TCP_LATELY]; /* where the last bodies that were long enough for a pipe began */
	uint32_t lately_count;       /* of them all */
	uint64_t calls;              /* of the lane, when it was last found in use: tcp_lanes_tick */
	uint32_t used_ms;
	bool connected;
	uint8_t version;
	uint64_t token; /* names the lane to the peer, over all its connections */
	uint8_t options;
	enum tcp_greeting_state greeting;
	/* the greeting on its way: HELLO, then the proof; what is to come: a status, the challenge, a status */
	uint8_t out_length, out_sent, in_have;
	struct tcp_greeting about;
	unsigned char proof[TCP_PROOF_BYTES];
	struct {
		uint64_t status;
		unsigned char target[TCP_NONCE_BYTES], proof[TCP_PROOF_BYTES];
	} in;
	struct tcp_sock probe; /* a connect that tells whether a way leads to the peer; worker NULL: none so far */
};

/* A slice's own part. */
struct tcp_slice {
	unsigned char header[TCP_HEADER_BYTES];
	uint64_t status;
	uint64_t sent;     /* of header and, for WRITE, payload */
	uint64_t received; /* of status and, for READ, payload */
	bool copied;       /* its memory can't go through a pipe, or had better not */
	uint32_t sum;      /* WRITE: the body's, as it goes out; READ: of what came so far */
	uint32_t peer_sum; /* READ: the body's, as it came */
};

/* tcp.c */
/* What our data port asks of every connection: LW_TCP_CHECKSUM, LW_TCP_AUTH. */
uint8_t tcp_options(const struct lw_engine *engine);
void tcp_sock_init(struct tcp_sock *sock, struct tcp_worker *worker, int fd, void (*work)(struct tcp_sock *sock));
void tcp_sock_wake(struct tcp_sock *sock);
/* Closes it; abort: with a reset, and nothing of what the kernel holds is sent any more, even if a forked child has the
 * socket, too. */
void tcp_sock_close(struct tcp_sock *sock, bool abort);
void tcp_sock_options(int fd);
/* What depends on who is at the other end. */
void tcp_sock_connected(const struct lw_engine *engine, int fd);
/* Whether the connection's congestion control is at its best with splice: bbr is not. */
bool tcp_sock_splices(int fd);

/* initiator.c */
int tcp_lane_open(struct lw_lane *lane, const struct lw_view *view);
void tcp_lane_close(struct lw_lane *lane);
void tcp_post(struct lw_lane *lane, struct lw_slice *slice);
void tcp_flush(struct lw_lane *lane);
bool tcp_unpost(struct lw_lane *lane, struct lw_slice *slice);
/* Closes lanes that have been idle too long. Now and then. */
void tcp_lanes_tick(struct tcp_worker *worker);

/* health.c */
/* A nonblocking socket whose connect by this way is under way. The descriptor, or -1 and a negative errno in *error. */
int tcp_way_dial(const struct tcp_way *way, int *error);
bool tcp_look(struct lw_lane *lane, struct lw_look *out);
int tcp_probe(struct lw_lane *lane, const struct lw_view *view, uint32_t way_number);
void tcp_probe_end(struct lw_lane *lane);

/* fence.c */
/* Ends the lane's older connections and then calls tcp_serve_fenced: at once, or later with *out the fence that is on
 * its way, unless its served is set to NULL before. False: no fence is free, try again. */
bool tcp_fence_begin(struct tcp_served *served, struct tcp_worker *home, uint64_t token, struct tcp_fence **out);

/* target.c */
/* The fence is up; outrun: the connection is an old one itself. */
void tcp_serve_fenced(struct tcp_served *served, bool outrun);
/* Ends the worker's served connections of the token's lane that are older. True: there is a newer one. */
bool tcp_serve_end_older(struct tcp_worker *worker, uint64_t token, const struct tcp_served *except);
/* Takes a connection that was accepted. If there is no room, the one that has been idle the longest ends; if all are
 * busy, the new one does. The worker's thread. */
void tcp_serve(struct tcp_worker *worker, int fd, const char *peer);
void tcp_serve_end_all(struct tcp_worker *worker);
void tcp_revoke(void *worker_context, uint64_t addr, uint64_t end);
/* Looks after connections that are ending. Now and then. */
void tcp_serve_tick(struct tcp_worker *worker);

#endif
