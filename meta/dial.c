/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/clock.h"

/* 0: ready, or an error that the next system call tells. -ETIMEDOUT. */
static int await(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd ready = {.fd = fd, .events = events};
	uint64_t now;
	int count;

	for (;;) {
		now = lw_now_ns();
		if (now >= deadline_ns)
			return -ETIMEDOUT;
		count = poll(&ready, 1, (int)((deadline_ns - now) / 1000000 + 1));
		if (count > 0)
			return 0;
		if (count < 0 && errno != EINTR)
			return -ECONNRESET;
	}
}

static int connect_to(const struct sockaddr_storage *addr, uint64_t deadline_ns, int *out)
{
	int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(int);
	const int on = 1;
	int error = 0, ret;

	if (fd < 0)
		return lw_socket_error(errno);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(fd, (const struct sockaddr *)addr, lw_sockaddr_length(addr)) < 0 && errno != EINPROGRESS &&
	    errno != EINTR) {
		ret = lw_socket_error(errno);
		goto close_fd;
	}
	ret = await(fd, POLLOUT, deadline_ns);
	if (ret < 0)
		goto close_fd;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		error = errno;
	if (error == 0 && lw_socket_met_itself(fd))
		error = ECONNREFUSED;
	if (error != 0) {
		ret = lw_socket_error(error);
		goto close_fd;
	}
	*out = fd;
	return 0;
close_fd:
	close(fd);
	return ret;
}

int lw_dial(const struct lw_hostport *hp, uint64_t deadline_ns, int *fd)
{
	uint64_t now = lw_now_ns();
	struct lw_addrs addrs;
	int ret, error;
	uint32_t i;

	if (now >= deadline_ns)
		return -ETIMEDOUT;
	error = lw_hostport_resolve(hp, (uint32_t)((deadline_ns - now) / 1000000), &addrs);
	if (error < 0)
		return error;
	error = -EHOSTUNREACH;
	for (i = 0; i < addrs.count; i++) {
		now = lw_now_ns();
		if (now >= deadline_ns)
			return -ETIMEDOUT;
		ret = connect_to(&addrs.addr[i], now + (deadline_ns - now) / (addrs.count - i), fd);
		if (ret == 0)
			return 0;
		/* "Unreachable" says least: often it is the other address family that this host lacks. */
		if (error == -EHOSTUNREACH)
			error = ret;
	}
	return error;
}

int lw_dial_send(int fd, const char *bytes, size_t size, uint64_t deadline_ns)
{
	ssize_t part;
	int ret;

	while (size > 0) {
		part = send(fd, bytes, size, MSG_NOSIGNAL);
		if (part >= 0) {
			bytes += part;
			size -= (size_t)part;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			return -ECONNRESET;
		ret = await(fd, POLLOUT, deadline_ns);
		if (ret < 0)
			return ret;
	}
	return 0;
}

ssize_t lw_dial_receive(int fd, char *bytes, size_t size, uint64_t deadline_ns)
{
	ssize_t part;
	int ret;

	for (;;) {
		ret = await(fd, POLLIN, deadline_ns);
		if (ret < 0)
			return ret;
		part = recv(fd, bytes, size, 0);
		if (part >= 0)
			return part;
		if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
			return -ECONNRESET;
	}
}
