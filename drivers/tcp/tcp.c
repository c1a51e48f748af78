/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's table, its listener, and what both kinds of connections need. */
#include "drivers/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "drivers/tcp/target_stage.h"
#include "lib/engine.h"
#include "lib/log.h"

#define BACKLOG 512
#define ACCEPTS 16        /* in a row, before other work of the control thread */
#define ACCEPT_REST_MS 50 /* pause when descriptors are short */
/* A host that vanished is found in half a minute; a process that stands still is not, its kernel answers. */
#define KEEPALIVE_IDLE_S 15
#define KEEPALIVE_INTERVAL_S 5
#define KEEPALIVE_PROBES 3

void tcp_sock_wake(struct tcp_sock *sock)
{
	if (sock->ready)
		return;
	sock->ready = true;
	sock->worker->ready_count++;
	lw_worker_want(sock->worker->worker, sock->worker->driver);
	TAILQ_INSERT_TAIL(&sock->worker->ready, sock, link);
}

static void sleep_sock(struct tcp_sock *sock)
{
	if (!sock->ready)
		return;
	sock->ready = false;
	sock->worker->ready_count--;
	TAILQ_REMOVE(&sock->worker->ready, sock, link);
}

static void on_events(struct lw_io *io, uint32_t events)
{
	struct tcp_sock *sock = (struct tcp_sock *)(void *)io;

	if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0)
		sock->readable = true;
	/* It may come together with the last bytes, and no event follows. */
	if ((events & EPOLLRDHUP) != 0)
		sock->ended = true;
	if ((events & EPOLLOUT) != 0)
		sock->writable = true;
	/* Not EPOLLHUP: it says that both directions were shut down in order, too, and then answers may still be on
	 * their way out. A reset comes with EPOLLERR. */
	if ((events & EPOLLERR) != 0)
		sock->broken = true;
	tcp_sock_wake(sock);
}

void tcp_sock_init(struct tcp_sock *sock, struct tcp_worker *worker, int fd, void (*work)(struct tcp_sock *sock))
{
	*sock = (struct tcp_sock){.io = {.fd = fd, .ready = on_events}, .worker = worker, .work = work};
	LIST_INSERT_HEAD(&worker->open, sock, open_link);
}

void tcp_sock_close(struct tcp_sock *sock, bool abort)
{
	sleep_sock(sock);
	if (sock->io.fd < 0)
		return;
	lw_worker_io_del(sock->worker->worker, &sock->io);
	LIST_REMOVE(sock, open_link);
	if (abort) {
		struct sockaddr none = {.sa_family = AF_UNSPEC};

		(void)connect(sock->io.fd, &none, sizeof(none));
	} else {
		shutdown(sock->io.fd, SHUT_RDWR);
	}
	close(sock->io.fd);
	sock->io.fd = -1;
}

void tcp_sock_options(int fd)
{
	int on = 1, idle_s = KEEPALIVE_IDLE_S, interval_s = KEEPALIVE_INTERVAL_S, probes = KEEPALIVE_PROBES;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

/* Whether both ends of a connection have the same address. */
static bool inside_one_host(int fd)
{
	struct sockaddr_storage own = {0}, peer = {0};
	socklen_t own_length = sizeof(own), peer_length = sizeof(peer);

	if (getsockname(fd, (struct sockaddr *)&own, &own_length) != 0 ||
	    getpeername(fd, (struct sockaddr *)&peer, &peer_length) != 0)
		return false;
	lw_sockaddr_set_port(&own, 0);
	lw_sockaddr_set_port(&peer, 0);
	return own_length == peer_length && memcmp(&own, &peer, own_length) == 0;
}

void tcp_sock_connected(const struct lw_engine *engine, int fd)
{
	const char *congestion = engine->config.tcp_congestion;

	/* Inside one host nothing is lost on the way, and what bbr does to find the way's speed costs a quarter of it.
	 */
	if (strcmp(congestion, "auto") == 0)
		congestion = inside_one_host(fd) ? "cubic" : "";
	if (congestion[0] != '\0')
		(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion));
}

bool tcp_sock_splices(int fd)
{
	char name[16] = "";
	socklen_t length = sizeof(name) - 1;

	return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && strncmp(name, "bbr", 3) != 0;
}

/* Which method sends WRITEs: the least size that goes through pipes, and words for it. */
static uint64_t choose_splice(const struct lw_engine *engine, char *note, size_t note_size)
{
	const char *why = NULL;
	int error;

	/* A broken connection would send SIGPIPE to the thread, and with poll = caller that is the application's; the
	 * workers' own threads block all signals. */
	if (engine->config.poll == LW_POLL_CALLER)
		why = "poll is caller";
	else if (engine->config.tcp_splice_bytes == 0)
		why = "tcp_splice_bytes is 0";
	else if ((error = tcp_pipes_probe()) != 0)
		why = strerror(-error);
	if (why != NULL) {
		snprintf(note, note_size, "sendmsg (no splice: %s)", why);
		return UINT64_MAX;
	}
	snprintf(note, note_size, "sendmsg; splice for WRITEs from %llu bytes",
		 (unsigned long long)engine->config.tcp_splice_bytes);
	return engine->config.tcp_splice_bytes;
}

/* A congestion control that was asked for by name has to be there. */
static int check_congestion(const struct lw_engine *engine, int fd, char *why, size_t why_size)
{
	const char *congestion = engine->config.tcp_congestion;

	if (congestion[0] == '\0' || strcmp(congestion, "auto") == 0)
		return 0;
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) == 0)
		return 0;
	snprintf(why, why_size, "setting tcp_congestion: the kernel has no \"%s\", or does not allow it: %s",
		 congestion, strerror(errno));
	return -EINVAL;
}

/* A child of fork may have them, too, and peers must not wait for it. */
static void close_listeners(struct tcp_engine *tcp)
{
	while (tcp->listeners > 0) {
		struct tcp_listener *listener = &tcp->listener[--tcp->listeners];

		shutdown(listener->fd, SHUT_RDWR);
		close(listener->fd);
	}
}

static int open_listener(struct tcp_engine *tcp, const struct sockaddr_storage *addr)
{
	struct tcp_listener *listener = &tcp->listener[tcp->listeners];
	int error = lw_listen_random(addr, (uint16_t)tcp->engine->config.port_min,
				     (uint16_t)tcp->engine->config.port_max, BACKLOG, &listener->fd, &listener->port);

	if (error != 0)
		return error;
	listener->tcp = tcp;
	tcp->listeners++;
	return 0;
}

/* At the engine's own address, and at those of the rails. */
static int open_listeners(struct tcp_engine *tcp)
{
	const struct sockaddr_storage *own = &tcp->engine->address.addr[0];
	int error = open_listener(tcp, own);

	for (uint32_t i = 0; error == 0 && i < tcp->rails.count; i++) {
		if (lw_sockaddr_same_host(&tcp->rails.rail[i].addr, own))
			continue;
		tcp->rail_listener[i] = tcp->listeners;
		error = open_listener(tcp, &tcp->rails.rail[i].addr);
	}
	if (error != 0)
		close_listeners(tcp);
	return error;
}

static int tcp_open(struct lw_engine *engine, void **context, char *why, size_t why_size)
{
	struct tcp_engine *tcp = calloc(1, sizeof(*tcp));
	int error = -ENOMEM;

	if (tcp == NULL)
		goto fail;
	tcp->engine = engine;
	tcp->workers = calloc(engine->worker_count, sizeof(tcp->workers[0]));
	if (tcp->workers == NULL)
		goto fail;
	error = engine->config.tcp_checksum ? tcp_checksum_open(why, why_size) : 0;
	if (error == 0 && engine->config.tcp_secret[0] != '\0')
		error = tcp_auth_open(why, why_size);
	if (error != 0)
		goto out;
	error = tcp_rails_read(engine->config.tcp_bind, engine->address.addr[0].ss_family, &tcp->rails, why, why_size);
	if (error != 0)
		goto out;
	error = open_listeners(tcp);
	if (error != 0)
		goto fail;
	error = check_congestion(engine, tcp->listener[0].fd, why, why_size);
	if (error != 0) {
		close_listeners(tcp);
		goto out;
	}
	tcp->splice_bytes = choose_splice(engine, why, why_size);
	*context = tcp;
	return 0;
fail:
	snprintf(why, why_size, "no port for data connections: %s", strerror(-error));
out:
	if (tcp != NULL)
		free(tcp->workers);
	free(tcp);
	return error;
}

static void tcp_close(void *context)
{
	struct tcp_engine *tcp = context;

	close_listeners(tcp);
	free(tcp->workers);
	free(tcp);
}

uint8_t tcp_options(const struct lw_engine *engine)
{
	return (uint8_t)((engine->config.tcp_checksum ? LW_TCP_CHECKSUM : 0) |
			 (engine->config.tcp_secret[0] != '\0' ? LW_TCP_AUTH : 0));
}

static const char *options_text(uint8_t options)
{
	static const char *const texts[] = {"neither checksums nor a secret", "checksums and no secret",
					    "a secret and no checksums", "checksums and a secret"};

	return texts[options & (LW_TCP_CHECKSUM | LW_TCP_AUTH)];
}

/* Only engines of ours serve a range over several buffers; only version 2 says of a WRITE that it was refused. */
static bool tcp_peer_checks(const void *context, const struct lw_view *view)
{
	const struct tcp_engine *tcp = context;

	return view->incarnation != 0 && view->tcp_version >= 2 && tcp->engine->config.tcp_proto >= 2;
}

static struct lw_ways tcp_ways(const void *context, const struct lw_view *view)
{
	const struct tcp_engine *tcp = context;

	return tcp_ways_count(&tcp->rails, view);
}

static bool speaks_tcp(const char *protocols)
{
	while (*protocols != '\0') {
		size_t length = strcspn(protocols, ",");

		if (length == 3 && memcmp(protocols, "tcp", 3) == 0)
			return true;
		protocols += length + (protocols[length] == ',');
	}
	return false;
}

static int tcp_reach(void *context, const struct lw_desc *desc, void **peer, char *why, size_t why_size)
{
	const struct tcp_engine *tcp = context;
	uint8_t ours = tcp_options(tcp->engine);

	*peer = NULL;
	/* One of ours that calls itself "rdma", for the reference's sake, has a data port besides. */
	if (!speaks_tcp(desc->protocol) && (desc->incarnation == 0 || desc->tcp_port == 0)) {
		snprintf(why, why_size, "does not speak tcp");
		return -ENOTSUP;
	}
	if (desc->tcp_options == ours)
		return 0;
	snprintf(why, why_size, "uses %s, this engine %s; set tcp_checksum and tcp_secret alike",
		 options_text(desc->tcp_options), options_text(ours));
	return -EPROTONOSUPPORT;
}

static void tcp_describe(void *context, struct lw_desc *desc)
{
	const struct tcp_engine *tcp = context;

	desc->tcp_port = tcp->listener[0].port;
	desc->tcp_version = 2;
	desc->tcp_options = tcp_options(tcp->engine);
	for (uint32_t i = 0; i < tcp->rails.count; i++) {
		desc->data.addr[i] = tcp->rails.rail[i].addr;
		lw_sockaddr_set_port(&desc->data.addr[i], tcp->listener[tcp->rail_listener[i]].port);
	}
	desc->data.count = tcp->rails.count;
}

/* A connection on its way from the control thread to a worker; the control thread frees it afterwards. */
struct handover {
	struct lw_command command;
	struct lw_ctrl_job job;
	struct tcp_worker *worker;
	int fd;
	char peer[80];
};

static void handover_free(struct lw_ctrl_job *job)
{
	free((char *)job - offsetof(struct handover, job));
}

static void handover_run(struct lw_worker *worker, struct lw_command *command)
{
	struct handover *handover = (struct handover *)(void *)command;

	tcp_serve(handover->worker, handover->fd, handover->peer);
	handover->job.run = handover_free;
	lw_ctrl_post(worker->engine->ctrl, &handover->job);
}

static void accept_some(void *arg)
{
	static struct lw_log_limit limit;
	struct tcp_listener *listener = arg;
	struct tcp_engine *tcp = listener->tcp;

	for (int i = 0; i < ACCEPTS; i++) {
		struct sockaddr_storage addr;
		socklen_t length = sizeof(addr);
		struct handover *handover;
		int fd = accept4(listener->fd, (struct sockaddr *)&addr, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
				lw_log_limited(&limit, LW_LOG_WARNING, "connections wait to be accepted: %s",
					       strerror(errno));
				lw_ctrl_watch_pause(tcp->engine->ctrl, listener->watch, ACCEPT_REST_MS);
			}
			if (errno != EINTR && errno != ECONNABORTED)
				return;
			continue;
		}
		handover = calloc(1, sizeof(*handover));
		if (handover == NULL) {
			close(fd);
			return;
		}
		handover->command.run = handover_run;
		handover->worker = tcp->workers[tcp->next++ % tcp->worker_count];
		handover->fd = fd;
		lw_sockaddr_format(&addr, handover->peer, sizeof(handover->peer));
		lw_worker_send(handover->worker->worker, &handover->command);
	}
}

static void tcp_stop(void *context)
{
	struct tcp_engine *tcp = context;

	for (uint32_t i = 0; i < tcp->listeners; i++) {
		if (tcp->listener[i].watch != NULL)
			lw_ctrl_unwatch(tcp->engine->ctrl, tcp->listener[i].watch);
		tcp->listener[i].watch = NULL;
	}
}

static int tcp_start(void *context)
{
	struct tcp_engine *tcp = context;
	int error = 0;

	for (uint32_t i = 0; i < tcp->listeners && error == 0; i++) {
		struct tcp_listener *listener = &tcp->listener[i];

		error = lw_ctrl_watch(tcp->engine->ctrl, listener->fd, accept_some, listener, &listener->watch);
	}
	if (error != 0)
		tcp_stop(context);
	return error;
}

static int tcp_worker_open(void *context, struct lw_worker *worker, void **worker_context)
{
	struct tcp_engine *tcp = context;
	uint32_t served = (uint32_t)tcp->engine->config.tcp_max_served;
	struct tcp_worker *own = calloc(1, sizeof(*own));

	if (own == NULL)
		return -ENOMEM;
	own->tcp = tcp;
	own->worker = worker;
	for (uint32_t i = 0; i < lw_drivers_count; i++)
		if (lw_drivers[i] == &lw_tcp_ops)
			own->driver = i;
	TAILQ_INIT(&own->ready);
	LIST_INIT(&own->open);
	TAILQ_INIT(&own->served);
	TAILQ_INIT(&own->starving);
	tcp_pipes_init(&own->pipes);
	SLIST_INIT(&own->fences);
	for (uint32_t i = 0; i < TCP_FENCES; i++)
		SLIST_INSERT_HEAD(&own->fences, &own->fence[i], link);
	own->blocks_bytes = served * TCP_BLOCK_BYTES;
	own->free_blocks = calloc(served, sizeof(own->free_blocks[0]));
	own->blocks = mmap(NULL, own->blocks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			   -1, 0);
	if (own->blocks == MAP_FAILED || own->free_blocks == NULL) {
		if (own->blocks != MAP_FAILED)
			munmap(own->blocks, own->blocks_bytes);
		free(own->free_blocks);
		free(own);
		return -ENOMEM;
	}
	for (uint32_t i = served; i-- > 0;)
		own->free_blocks[own->free_count++] = i;
	tcp->workers[worker->index] = own;
	tcp->worker_count = worker->index + 1;
	*worker_context = own;
	return 0;
}

static void tcp_worker_close(void *worker_context)
{
	struct tcp_worker *own = worker_context;

	tcp_serve_end_all(own);
	tcp_pipes_fini(&own->pipes);
	munmap(own->blocks, own->blocks_bytes);
	free(own->free_blocks);
	free(own);
}

static void tcp_forked(void *worker_context)
{
	struct tcp_worker *own = worker_context;
	struct tcp_sock *sock;

	/* The parent's worker may have been inside a change of the list: forward it is whole at any moment. */
	LIST_FOREACH(sock, &own->open, open_link)
	close(sock->io.fd);
	tcp_pipes_forked(&own->pipes);
	for (uint32_t i = 0; own->worker->index == 0 && i < own->tcp->listeners; i++)
		close(own->tcp->listener[i].fd);
}

static bool tcp_poll(void *worker_context)
{
	struct tcp_worker *own = worker_context;
	struct tcp_sock *sock;
	uint32_t budget;

	if (own->worker->now_ms - own->ticked_ms > TCP_LINGER_MS / 4) {
		own->ticked_ms = own->worker->now_ms;
		tcp_serve_tick(own);
		tcp_staged_tick(own);
		tcp_pipes_tick(&own->pipes, own->worker->now_ms);
		tcp_lanes_tick(own);
	}
	tcp_staged_poll(own);
	budget = own->ready_count;

	if (budget == 0)
		return false;
	/* Those that are woken while we work are for the next pass. */
	while (budget-- > 0 && (sock = TAILQ_FIRST(&own->ready)) != NULL) {
		sleep_sock(sock);
		sock->work(sock);
	}
	return own->ready_count != 0;
}

const struct lw_driver_ops lw_tcp_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "tcp",
	.lane_bytes = TCP_LANE_BYTES,
	.credits = TCP_CREDITS,
	.peer_cuts = 1,
	.moves = LW_MOVES(LW_MEM_HOST, LW_MEM_HOST) | LW_MOVES(LW_MEM_HOST, LW_MEM_DEVICE),
	.open = tcp_open,
	.close = tcp_close,
	.start = tcp_start,
	.stop = tcp_stop,
	.describe = tcp_describe,
	.peer_checks = tcp_peer_checks,
	.ways = tcp_ways,
	.reach = tcp_reach,
	.worker_open = tcp_worker_open,
	.worker_close = tcp_worker_close,
	.forked = tcp_forked,
	.lane_open = tcp_lane_open,
	.lane_close = tcp_lane_close,
	.post = tcp_post,
	.flush = tcp_flush,
	.unpost = tcp_unpost,
	.look = tcp_look,
	.probe = tcp_probe,
	.probe_end = tcp_probe_end,
	.revoke = tcp_revoke,
	.poll = tcp_poll,
};
