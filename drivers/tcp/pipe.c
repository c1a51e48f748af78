/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tcp/pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIPE_BYTES (1 << 20) /* the most that a user without privileges may have */
#define IDLE_MS 1000
#define PIPE_BYTES_MIN (256 << 10) /* below it two system calls a pipeful cost what the copy did */

void tcp_pipes_init(struct tcp_pipes *pipes)
{
	*pipes = (struct tcp_pipes){.refused = false};
	for (int i = 0; i < TCP_PIPES; i++)
		pipes->pipe[i].in = pipes->pipe[i].out = -1;
}

static void close_both(struct tcp_pipe *pipe)
{
	if (pipe->in >= 0) {
		close(pipe->in);
		close(pipe->out);
	}
	pipe->in = pipe->out = -1;
	pipe->held = 0;
}

void tcp_pipes_fini(struct tcp_pipes *pipes)
{
	for (int i = 0; i < TCP_PIPES; i++)
		close_both(&pipes->pipe[i]);
}

void tcp_pipes_forked(struct tcp_pipes *pipes)
{
	for (int i = 0; i < TCP_PIPES; i++) {
		if (pipes->pipe[i].in < 0)
			continue;
		close(pipes->pipe[i].in);
		close(pipes->pipe[i].out);
	}
}

static int make(struct tcp_pipe *pipe)
{
	int ends[2], error;

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
		return -errno;
	if (fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES) < 0 && fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES_MIN) < 0) {
		error = -errno;
		close(ends[0]);
		close(ends[1]);
		return error;
	}
	pipe->out = ends[0];
	pipe->in = ends[1];
	pipe->held = 0;
	return 0;
}

int tcp_pipes_probe(void)
{
	struct tcp_pipe pipe = {.in = -1, .out = -1};
	static const char page[4096];
	int sockets[2], error = make(&pipe);

	if (error != 0)
		return error;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0) {
		error = -errno;
	} else {
		ssize_t sent = tcp_pipe_send(&pipe, sockets[0], page, sizeof(page));

		error = sent > 0 ? 0 : (int)sent;
		close(sockets[0]);
		close(sockets[1]);
	}
	close_both(&pipe);
	return error;
}

struct tcp_pipe *tcp_pipe_take(struct tcp_pipes *pipes)
{
	for (int i = 0; i < TCP_PIPES && !pipes->refused; i++) {
		struct tcp_pipe *pipe = &pipes->pipe[i];

		if (pipe->taken)
			continue;
		if (pipe->in < 0 && make(pipe) != 0) {
			pipes->refused = true;
			break;
		}
		pipe->taken = true;
		return pipe;
	}
	return NULL;
}

void tcp_pipe_give(struct tcp_pipe *pipe, uint32_t now_ms)
{
	if (pipe->held != 0)
		close_both(pipe);
	pipe->taken = false;
	pipe->used_ms = now_ms;
}

void tcp_pipes_tick(struct tcp_pipes *pipes, uint32_t now_ms)
{
	for (int i = 0; i < TCP_PIPES; i++)
		if (!pipes->pipe[i].taken && pipes->pipe[i].in >= 0 && now_ms - pipes->pipe[i].used_ms > IDLE_MS)
			close_both(&pipes->pipe[i]);
}

ssize_t tcp_pipe_send(struct tcp_pipe *pipe, int fd, const void *memory, size_t length)
{
	ssize_t moved;

	if (length > pipe->held) {
		struct iovec rest = {.iov_base = (char *)(uintptr_t)memory + pipe->held,
				     .iov_len = length - pipe->held};

		do
			moved = vmsplice(pipe->in, &rest, 1, SPLICE_F_NONBLOCK);
		while (moved < 0 && errno == EINTR);
		if (moved > 0)
			pipe->held += (size_t)moved;
		else if (pipe->held == 0)
			return -EFAULT;
	}
	do
		moved = splice(pipe->out, NULL, fd, NULL, pipe->held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
	while (moved < 0 && errno == EINTR);
	if (moved < 0)
		return -errno;
	pipe->held -= (size_t)moved;
	return moved;
}
