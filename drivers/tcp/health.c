/* SPDX-License-Identifier: Apache-2.0 */
/* What a lane's connection lets know of itself and of the network, and probes of ways. */
#include <errno.h>
#include <linux/tcp.h> /* netinet/tcp.h knows the beginning of struct tcp_info alone, and excludes this one */
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "drivers/tcp/tcp.h"
#include "lib/engine.h"

/* What the kernel says of a connection must be so old that a delayed acknowledgement is none of the reasons. */
#define SILENT_MS 200u

static struct tcp_lane *own_of(struct lw_lane *lane)
{
	return (struct tcp_lane *)(void *)lane->own;
}

int tcp_way_dial(const struct tcp_way *way, int *error)
{
	int fd = socket(way->addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	*error = fd < 0 ? -errno : 0;
	if (fd < 0)
		return -1;
	tcp_sock_options(fd);
	if (way->rail != NULL)
		*error = tcp_rail_bind(way->rail, fd);
	if (*error == 0 && connect(fd, (const struct sockaddr *)way->addr, lw_sockaddr_length(way->addr)) != 0 &&
	    errno != EINPROGRESS && errno != EINTR)
		*error = -errno;
	if (*error == 0)
		return fd;
	close(fd);
	return -1;
}

bool tcp_look(struct lw_lane *lane, struct lw_look *out)
{
	struct tcp_info info;
	socklen_t length = sizeof(info);

	/* An older kernel fills in less. */
	memset(&info, 0, sizeof(info));
	if (getsockopt(own_of(lane)->sock.io.fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
	    length < offsetof(struct tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt))
		return false;
	*out = (struct lw_look){.moved = info.tcpi_bytes_acked + info.tcpi_bytes_received,
				.min_rtt_us = info.tcpi_min_rtt != UINT32_MAX ? info.tcpi_min_rtt : 0};
	/* A peer that stands still has its kernel answer: to what was sent, and to probes of its full window. One of
	 * those may be on its way. */
	out->silent = info.tcpi_last_ack_recv >= SILENT_MS &&
		      ((info.tcpi_unacked != 0 && info.tcpi_retransmits != 0) || info.tcpi_probes > 1);
	return true;
}

void tcp_probe_end(struct lw_lane *lane)
{
	struct tcp_lane *own = own_of(lane);

	if (own->probe.worker != NULL)
		tcp_sock_close(&own->probe, true);
}

static void probe_work(struct tcp_sock *sock)
{
	struct tcp_lane *own = lw_container(sock, struct tcp_lane, probe);
	struct lw_lane *lane = lw_container((unsigned char *)own, struct lw_lane, own);
	socklen_t length = sizeof(int);
	int error = 0;

	if (!sock->writable && !sock->broken)
		return;
	if (getsockopt(sock->io.fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
		error = errno;
	tcp_probe_end(lane);
	lw_lane_probed(lane, error == 0);
}

int tcp_probe(struct lw_lane *lane, const struct lw_view *view, uint32_t way_number)
{
	struct tcp_worker *worker = lane->worker->driver_context[lane->driver];
	struct tcp_lane *own = own_of(lane);
	struct tcp_way way;
	int fd, error;

	if (!tcp_ways_get(&worker->tcp->rails, view, way_number, &way))
		return -EHOSTUNREACH;
	fd = tcp_way_dial(&way, &error);
	if (fd < 0)
		return error;
	tcp_sock_init(&own->probe, worker, fd, probe_work);
	error = lw_worker_io_add(lane->worker, &own->probe.io, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	if (error != 0)
		tcp_probe_end(lane);
	return error;
}
