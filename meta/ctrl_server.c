/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake port. A connection carries one request and one reply:
 *
 *   READING --a whole frame, answered--> WRITING --all sent, half-closed--> LINGERING --the client closed--> gone
 *
 * A bad frame, a request that is not answered, an error or the deadline ends it in any state, without a byte. LINGERING
 * reads and drops what comes, because closing with unread bytes would reset the connection and could take the reply
 * with it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meta/ctrl_pvt.h"
#include "meta/frame.h"

#define ACCEPTS_PER_TURN 64
#define SHORT_OF_DESCRIPTORS_MS 50
#define LINGER_BYTES (4u << 20) /* dropped before we lose patience */
#define QUIET_NS 60000000000u   /* a source is named in the log once in this time */

enum client_state { READING, WRITING, LINGERING, CLIENT_STATES };

struct client {
	struct lw_ctrl_io io;
	struct lw_link link;
	struct lw_ctrl_timer timer;
	enum client_state state;
	int fd;
	struct lw_frame_reader reader;
	char *reply;
	size_t reply_size, sent, dropped;
};

static void drop(struct lw_ctrl *ctrl, struct client *client)
{
	lw_link_remove(&client->link);
	ctrl->client_count--;
	lw_ctrl_timer_clear(&client->timer);
	lw_frame_reader_fini(&client->reader);
	free(client->reply);
	lw_ctrl_io_kill(ctrl, &client->io, client->fd);
}

void lw_ctrl_drop_clients(struct lw_ctrl *ctrl)
{
	while (!lw_link_empty(&ctrl->clients))
		drop(ctrl, lw_container(ctrl->clients.next, struct client, link));
}

static void on_deadline(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer)
{
	drop(ctrl, lw_container(timer, struct client, timer));
}

/* Scanners and strayed clients come by the thousand: a source is named once a minute. */
static void complain(struct lw_ctrl *ctrl, const struct client *client, const char *about)
{
	struct sockaddr_storage addr = {.ss_family = AF_UNSPEC};
	socklen_t size = sizeof(addr);
	uint64_t now = lw_now_ns(), *quiet_until;
	char text[LW_NAME_MAX + 8];
	uint32_t hash = 5381;
	size_t i;

	if (getpeername(client->fd, (struct sockaddr *)&addr, &size) < 0)
		return; /* gone already */
	lw_sockaddr_format(&addr, text, sizeof(text));
	lw_sockaddr_set_port(&addr, 0);
	for (i = 0; i < lw_sockaddr_length(&addr); i++)
		hash = hash * 33 + ((const unsigned char *)&addr)[i];
	quiet_until = &ctrl->quiet_until_ns[hash % LW_CTRL_LOG_SOURCES];
	if (now < *quiet_until)
		return;
	*quiet_until = now + QUIET_NS;
	lw_log_limited(&ctrl->log_limit, LW_LOG_WARNING,
		       "handshake port %u: %s from %s; the connection was closed (said once a minute)", ctrl->port,
		       about, text);
}

static void send_reply(struct lw_ctrl *ctrl, struct client *client)
{
	int ret = lw_ctrl_send(client->fd, client->reply, client->reply_size, &client->sent);

	if (ret == 0)
		ret = lw_ctrl_io_change(ctrl, &client->io, client->fd, EPOLLOUT);
	else if (ret == 1) {
		client->state = LINGERING;
		free(client->reply);
		client->reply = NULL;
		ret = shutdown(client->fd, SHUT_WR);
		if (ret == 0)
			ret = lw_ctrl_io_change(ctrl, &client->io, client->fd, EPOLLIN);
	}
	if (ret < 0)
		drop(ctrl, client);
}

static void answer(struct lw_ctrl *ctrl, struct client *client)
{
	char *reply = NULL;
	size_t reply_size = 0, body_size;
	const char *body;
	bool legacy;
	int type, ret;

	lw_frame_reader_get(&client->reader, &type, &body, &body_size, &legacy);
	ret = ctrl->opts.serve(ctrl->opts.arg, type, body, body_size, &reply, &reply_size);
	lw_frame_reader_fini(&client->reader);
	if (ret == 0 && reply_size > ctrl->opts.max_frame - 2) { /* with its type and newline */
		lw_log_limited(
			&ctrl->log_limit, LW_LOG_ERROR,
			"handshake port %u: a reply of %zu bytes is longer than handshake_max_bytes allows (%zu)",
			ctrl->port, reply_size, ctrl->opts.max_frame);
		ret = -EMSGSIZE;
	}
	if (ret == 0)
		ret = lw_frame_encode(type, legacy, reply, reply_size, &client->reply, &client->reply_size);
	free(reply);
	if (ret < 0) {
		drop(ctrl, client);
		return;
	}
	client->state = WRITING;
	send_reply(ctrl, client);
}

static void read_request(struct lw_ctrl *ctrl, struct client *client)
{
	size_t turn = 0, used;
	ssize_t part;
	int ret = 0;

	while (ret == 0 && turn < LW_CTRL_TURN_BYTES) {
		part = recv(client->fd, ctrl->scratch, sizeof(ctrl->scratch), 0);
		if (part < 0 && errno == EINTR)
			continue;
		if (part < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (part <= 0) {
			drop(ctrl, client);
			return;
		}
		ret = lw_frame_reader_feed(&client->reader, ctrl->scratch, (size_t)part, &used);
		turn += (size_t)part;
	}
	if (ret == 1) {
		answer(ctrl, client);
	} else if (ret < 0) {
		if (ret == -EPROTO)
			complain(ctrl, client, "bytes that are not the protocol");
		drop(ctrl, client);
	}
}

static void linger(struct lw_ctrl *ctrl, struct client *client)
{
	size_t turn = 0;
	ssize_t part;

	while (turn < LW_CTRL_TURN_BYTES && client->dropped < LINGER_BYTES) {
		part = recv(client->fd, ctrl->scratch, sizeof(ctrl->scratch), 0);
		if (part < 0 && errno == EINTR)
			continue;
		if (part < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (part <= 0)
			break;
		turn += (size_t)part;
		client->dropped += (size_t)part;
	}
	if (turn < LW_CTRL_TURN_BYTES || client->dropped >= LINGER_BYTES)
		drop(ctrl, client);
}

static void on_client(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, uint32_t events)
{
	struct client *client = lw_container(io, struct client, io);

	(void)events; /* errors and hang-ups show in the system call */
	switch (client->state) {
	case READING:
		read_request(ctrl, client);
		break;
	case WRITING:
		send_reply(ctrl, client);
		break;
	default:
		linger(ctrl, client);
		break;
	}
}

/* The place of the client that loses least: one that has its reply, else one that has not asked yet, the oldest first.
 */
static void make_room(struct lw_ctrl *ctrl)
{
	struct lw_link *oldest[CLIENT_STATES] = {NULL}, *link;

	for (link = ctrl->clients.next; link != &ctrl->clients && oldest[LINGERING] == NULL; link = link->next) {
		struct client *client = lw_container(link, struct client, link);

		if (oldest[client->state] == NULL)
			oldest[client->state] = link;
	}
	link = oldest[LINGERING] != NULL ? oldest[LINGERING]
	       : oldest[READING] != NULL ? oldest[READING]
					 : oldest[WRITING];
	if (link != NULL)
		drop(ctrl, lw_container(link, struct client, link));
}

static void admit(struct lw_ctrl *ctrl, int fd)
{
	struct client *client;

	if (ctrl->client_count >= ctrl->opts.max_clients)
		make_room(ctrl);
	client = calloc(1, sizeof(*client));
	if (client == NULL || lw_ctrl_io_add(ctrl, &client->io, fd, EPOLLIN) < 0) {
		free(client);
		close(fd);
		return;
	}
	lw_accepted_reuse(fd);
	client->io.event = on_client;
	client->fd = fd;
	client->timer.fire = on_deadline;
	lw_frame_reader_init(&client->reader, ctrl->opts.max_frame);
	lw_link_append(&ctrl->clients, &client->link);
	ctrl->client_count++;
	lw_ctrl_timer_set(ctrl, &client->timer, lw_now_ns() + (uint64_t)ctrl->opts.timeout_ms * 1000000u);
}

void lw_ctrl_accept(void *arg)
{
	struct lw_ctrl *ctrl = arg;
	int turn, fd;

	for (turn = 0; turn < ACCEPTS_PER_TURN; turn++) {
		fd = accept4(ctrl->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			admit(ctrl, fd);
			continue;
		}
		switch (errno) {
		case EAGAIN:
			return;
		case EMFILE:
		case ENFILE:
		case ENOBUFS:
		case ENOMEM:
			/* The client stays in the backlog, and the listener readable: without a pause we would spin. */
			lw_log_limited(
				&ctrl->log_limit, LW_LOG_WARNING,
				"handshake port %u: no descriptor or memory for a client: %s; raise RLIMIT_NOFILE",
				ctrl->port, strerror(errno));
			lw_ctrl_watch_pause(ctrl, ctrl->listener, SHORT_OF_DESCRIPTORS_MS);
			return;
		default: /* this connection failed before it was accepted, or a signal: the next one */
			break;
		}
	}
}
