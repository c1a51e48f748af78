/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies without a copy of ours: their pages go into a pipe (vmsplice), and from the pipe into a socket (splice). The
 * sender's copy is saved, for two system calls a MiB; see the README for the commands that weigh them.
 *
 * What it means: the peer's kernel reads the memory itself, perhaps late, and would see a later change of it. So it may
 * carry only what ends by the peer's answer after its own copy (WRITE in version 2), never answers to a READ, whose
 * memory may be unregistered as soon as they are in the socket. When a lane is cut, the pipe and the connection are
 * gone before a request of it ends.
 *
 * A worker has a few pipes; a connection holds one as long as bytes are in it. All functions are the worker's, none
 * blocks.
 */
#ifndef LW_TCP_PIPE_H
#define LW_TCP_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TCP_PIPES 8 /* of one worker: connections that can be in the middle of a body at once */

struct tcp_pipe {
	int in, out; /* -1: not made yet */
	bool taken;
	uint32_t used_ms; /* it was given back then */
	size_t held;      /* bytes in it */
};

struct tcp_pipes {
	struct tcp_pipe pipe[TCP_PIPES];
	bool refused; /* the system gave us no pipe of a useful size: it is not asked again */
};

void tcp_pipes_init(struct tcp_pipes *pipes);
void tcp_pipes_fini(struct tcp_pipes *pipes);
/* In a forked child: closes its copies. */
void tcp_pipes_forked(struct tcp_pipes *pipes);

/* Whether this system lets us: 0, or a negative errno. Not on the hot path. */
int tcp_pipes_probe(void);

/* An empty pipe, or NULL: all are taken, or there are none. */
struct tcp_pipe *tcp_pipe_take(struct tcp_pipes *pipes);
/* Gives it back; what is still in it is dropped, and with it the hold on the memory. */
void tcp_pipe_give(struct tcp_pipe *pipe, uint32_t now_ms);
/* Closes those that nobody used for a second. Now and then. */
void tcp_pipes_tick(struct tcp_pipes *pipes, uint32_t now_ms);

/* Sends from memory through the pipe, whose content is the beginning of it. The number of bytes that are in the socket
 * now; -EAGAIN, the socket is full; -EFAULT, this memory can't go this way (nothing is in the pipe then); another
 * negative errno of the socket. */
ssize_t tcp_pipe_send(struct tcp_pipe *pipe, int fd, const void *memory, size_t length);

#endif
