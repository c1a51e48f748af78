/* SPDX-License-Identifier: Apache-2.0 */
/* Initiator lanes: one connection each, requests pipelined on it.
 *
 * lane->inflight is the order of the stream in both directions. unsent points at the first slice whose request is not
 * sent completely; what is before it waits for answers, which come in the same order. One sendmsg gathers headers and
 * bodies of many slices, one recvmsg scatters statuses and bodies straight into their destinations.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "drivers/tcp/tcp.h"
#include "lib/engine.h"

_Static_assert(sizeof(struct tcp_lane) <= TCP_LANE_BYTES, "the driver's part fits into a lane");
_Static_assert(sizeof(struct tcp_slice) <= sizeof(((struct lw_slice *)NULL)->own),
	       "the driver's part fits into a slice");

static struct tcp_lane *own_of(struct lw_lane *lane)
{
	return (struct tcp_lane *)(void *)lane->own;
}

static struct lw_lane *lane_of(struct tcp_sock *sock)
{
	return (struct lw_lane *)(void *)((char *)sock - offsetof(struct lw_lane, own));
}

static struct tcp_slice *part_of(struct lw_slice *slice)
{
	return (struct tcp_slice *)(void *)slice->own;
}

static bool has_sums(const struct tcp_lane *own)
{
	return (own->options & LW_TCP_CHECKSUM) != 0;
}

/* A body with its checksum. */
static uint64_t body_bytes(const struct tcp_lane *own, const struct lw_slice *slice)
{
	return slice->length + (has_sums(own) ? TCP_SUM_BYTES : 0);
}

static uint64_t request_bytes(const struct tcp_lane *own, const struct lw_slice *slice)
{
	return TCP_HEADER_BYTES + (slice->op == LW_WRITE ? body_bytes(own, slice) : 0);
}

static uint64_t status_bytes(const struct tcp_lane *own)
{
	return own->version >= 2 ? TCP_STATUS_BYTES : 0;
}

static uint64_t answer_bytes(const struct tcp_lane *own, const struct lw_slice *slice)
{
	return status_bytes(own) + (slice->op == LW_READ ? body_bytes(own, slice) : 0);
}

static enum lw_reason reason_of(int error)
{
	switch (error) {
	case EFAULT:
		return LW_REASON_FAULT;
	case ENOBUFS:
	case ENOMEM:
		return LW_REASON_RESOURCES;
	default:
		return LW_REASON_RESET;
	}
}

/* Counts sent bytes for the slices from unsent on. */
static void note_sent(struct lw_lane *lane, uint64_t bytes)
{
	struct tcp_lane *own = own_of(lane);

	if (own->out_sent < own->out_length && bytes > 0) {
		uint64_t here = tcp_minus(own->out_length, own->out_sent);

		here = here < bytes ? here : bytes;
		own->out_sent = (uint8_t)(own->out_sent + here);
		bytes -= here;
	}
	while (bytes > 0) {
		struct lw_slice *slice = own->unsent;
		struct tcp_slice *part = part_of(slice);
		uint64_t left = request_bytes(own, slice) - part->sent;
		uint64_t here = left < bytes ? left : bytes;

		slice->started = true;
		part->sent += here;
		bytes -= here;
		if (here < left)
			return;
		own->unsent = TAILQ_NEXT(slice, link);
		/* v1 has no answer to a WRITE: sent is all that can be known. */
		if (own->version < 2 && slice->op == LW_WRITE)
			lw_slice_done(lane, slice, LW_REASON_NONE);
	}
}

static bool may_splice(const struct tcp_lane *own, const struct lw_slice *slice)
{
	return own->splices && slice->op == LW_WRITE && slice->length >= own->sock.worker->tcp->splice_bytes;
}

/* Whether the slice's body goes through a pipe. */
static bool is_spliced(const struct tcp_lane *own, struct lw_slice *slice)
{
	return may_splice(own, slice) && !part_of(slice)->copied;
}

/* Whether a body that may go through a pipe was sent a moment ago, too: then it is in the cache and cheap to copy,
 * while the two ends' processors would take the same pages' counters from each other. */
static bool sent_lately(struct tcp_lane *own, const struct lw_slice *slice)
{
	bool found = false;

	for (uint32_t i = 0; i < TCP_LATELY; i++)
		found |= own->lately[i] == slice->local;
	if (!found)
		own->lately[own->lately_count++ % TCP_LATELY] = slice->local;
	return found;
}

/* Whether requests have to wait until the proof is given. */
static bool must_prove(const struct tcp_lane *own)
{
	return (own->options & LW_TCP_AUTH) != 0 &&
	       (own->greeting == TCP_HELLO_SENT || own->greeting == TCP_CHALLENGED);
}

/* What is to be sent next, up to the next body that goes through a pipe; *more: it follows at once. */
static int unsent_pieces(struct tcp_lane *own, struct iovec *iov, bool *more)
{
	struct lw_slice *slice;
	int count = 0;

	*more = false;
	/* HELLO and nonce lie side by side. */
	tcp_add_piece(iov, &count, own->greeting == TCP_PROOF_GIVEN ? own->proof : own->about.hello, own->out_length,
		      own->out_sent);
	if (must_prove(own))
		return count;
	for (slice = own->unsent; slice != NULL && count <= TCP_IOVS - 3; slice = TAILQ_NEXT(slice, link)) {
		struct tcp_slice *part = part_of(slice);

		tcp_add_piece(iov, &count, part->header, TCP_HEADER_BYTES, part->sent);
		if (slice->op != LW_WRITE)
			continue;
		*more = is_spliced(own, slice) && part->sent < TCP_HEADER_BYTES + slice->length;
		if (*more)
			break;
		tcp_add_piece(iov, &count, (const void *)(uintptr_t)slice->local, slice->length,
			      tcp_minus(part->sent, TCP_HEADER_BYTES));
		if (has_sums(own))
			tcp_add_piece(iov, &count, &part->sum, TCP_SUM_BYTES,
				      tcp_minus(part->sent, TCP_HEADER_BYTES + slice->length));
	}
	return count;
}

/* Sends pieces: their number of bytes, or a negative errno. */
static ssize_t send_pieces(struct tcp_lane *own, struct iovec *iov, int count, bool more)
{
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
	ssize_t sent;

	do
		sent = sendmsg(own->sock.io.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : sent;
}

/* Sends what is left of the body of unsent, whose header is sent: the number of bytes, or a negative errno; -EFAULT: it
 * has to be copied. */
static ssize_t send_spliced(struct tcp_lane *own, uint64_t *asked)
{
	struct lw_slice *slice = own->unsent;
	uint64_t done = part_of(slice)->sent - TCP_HEADER_BYTES;
	ssize_t sent;

	if (own->pipe == NULL)
		own->pipe = tcp_pipe_take(&own->sock.worker->pipes);
	if (own->pipe == NULL)
		return -EFAULT;
	sent = tcp_pipe_send(own->pipe, own->sock.io.fd, (const void *)(uintptr_t)(slice->local + done),
			     slice->length - done);
	*asked = own->pipe->held + (uint64_t)(sent > 0 ? sent : 0);
	if (own->pipe->held == 0) {
		tcp_pipe_give(own->pipe, own->sock.worker->worker->now_ms);
		own->pipe = NULL;
	}
	return sent;
}
static bool receive_some(struct lw_lane *lane);

/* Sends as much as the kernel takes. False: the lane is down. */
static bool send_some(struct lw_lane *lane)
{
	struct tcp_lane *own = own_of(lane);

	for (int calls = 0; own->sock.writable; calls++) {
		struct iovec iov[TCP_IOVS];
		uint64_t asked = 0;
		bool more;
		int count = unsent_pieces(own, iov, &more);
		ssize_t sent;

		if (count == 0 && !more)
			return true;
		if (calls == TCP_CALLS) {
			tcp_sock_wake(&own->sock);
			return true;
		}
		if (count != 0) {
			asked = tcp_pieces_bytes(iov, count);
			sent = send_pieces(own, iov, count, more);
		} else {
			sent = send_spliced(own, &asked);
			if (sent == -EFAULT) {
				part_of(own->unsent)->copied = true;
				continue;
			}
		}
		if (sent == -EAGAIN) {
			own->sock.writable = false;
			return true;
		}
		if (sent < 0) {
			enum lw_reason reason = reason_of((int)-sent);

			/* What the peer said before is in the socket still: it may tell what need not fail. */
			own->sock.readable = true;
			if (receive_some(lane))
				lw_lane_down(lane, reason);
			return false;
		}
		lw_count(&lane->stats.calls, 1);
		if ((uint64_t)sent < asked)
			own->sock.writable = false;
		note_sent(lane, (uint64_t)sent);
	}
	return true;
}

/* The server has looked at nothing from this slice on and closes: all of it may be sent again on another connection. */
static void untouched(struct lw_slice *slice)
{
	for (; slice != NULL; slice = TAILQ_NEXT(slice, link)) {
		slice->started = false;
		slice->attempts = 0;
	}
}

/* A slice was refused. */
static void refused(struct lw_lane *lane, struct lw_slice *slice, enum lw_reason reason)
{
	untouched(TAILQ_NEXT(slice, link));
	lw_slice_done(lane, slice, reason);
	lw_lane_down(lane, LW_REASON_RESET);
}

/* Looks at a whole status. LW_REASON_NONE if it is OK. */
static enum lw_reason read_status(uint64_t word)
{
	if (word == tcp_status_word(TCP_STATUS_OK))
		return LW_REASON_NONE;
	if (word == tcp_status_word(TCP_STATUS_REFUSED))
		return LW_REASON_REFUSED;
	if (word == tcp_status_word(TCP_STATUS_INCARNATION))
		return LW_REASON_RESTARTED;
	if (word == tcp_status_word(TCP_STATUS_OPTIONS))
		return LW_REASON_OPTIONS;
	if (word == tcp_status_word(TCP_STATUS_UNAUTHORIZED))
		return LW_REASON_UNAUTHORIZED;
	if (word == tcp_status_word(TCP_STATUS_CORRUPT))
		return LW_REASON_CORRUPT;
	if (word == tcp_status_word(TCP_STATUS_DEVICE))
		return LW_REASON_DEVICE;
	return LW_REASON_PROTOCOL;
}

/* How many bytes of the greeting are to come before we go on with it. */
static uint64_t greeting_bytes(const struct tcp_lane *own)
{
	return own->greeting == TCP_CHALLENGED ? sizeof(own->in) : TCP_STATUS_BYTES;
}

/* A part of the greeting is there. LW_REASON_NONE if it is as it should be. */
static enum lw_reason greet(struct lw_lane *lane)
{
	struct tcp_lane *own = own_of(lane);
	const char *secret = lane->worker->engine->config.tcp_secret;
	enum lw_reason reason;

	/* An answer to what is not sent yet can't be: the peer does not speak the protocol. */
	if (own->out_sent < own->out_length)
		return LW_REASON_PROTOCOL;
	if (own->greeting == TCP_HELLO_SENT && (own->options & LW_TCP_AUTH) != 0) {
		own->greeting = TCP_CHALLENGED;
		if (own->in.status == tcp_status_word(TCP_STATUS_CHALLENGE))
			return LW_REASON_NONE;
		reason = read_status(own->in.status);
		return reason == LW_REASON_NONE ? LW_REASON_UNAUTHORIZED : reason;
	}
	if (own->greeting == TCP_CHALLENGED) {
		memcpy(own->about.target, own->in.target, TCP_NONCE_BYTES);
		if (!tcp_auth_check(secret, TCP_TARGET, &own->about, own->in.proof))
			return LW_REASON_UNAUTHORIZED;
		tcp_auth_prove(secret, TCP_INITIATOR, &own->about, own->proof);
		own->greeting = TCP_PROOF_GIVEN;
		own->in_have = 0;
		own->out_sent = 0;
		own->out_length = TCP_PROOF_BYTES;
		return LW_REASON_NONE;
	}
	own->greeting = TCP_GREETED;
	reason = read_status(own->in.status);
	if (reason == LW_REASON_NONE)
		lw_lane_fence_up(lane);
	return reason;
}

/* Goes on with the sum of a READ's body, of which bytes more came. */
static void add_received(const struct tcp_lane *own, struct lw_slice *slice, uint64_t bytes)
{
	struct tcp_slice *part = part_of(slice);
	uint64_t from = tcp_minus(part->received, status_bytes(own));
	uint64_t to = tcp_minus(part->received + bytes, status_bytes(own));

	to = to < slice->length ? to : slice->length;
	if (from < to)
		part->sum = tcp_checksum_add(part->sum, (const void *)(uintptr_t)(slice->local + from), to - from);
}

/* Hands received bytes to the slices in order. False: the lane is down. */
static bool note_received(struct lw_lane *lane, uint64_t bytes)
{
	struct tcp_lane *own = own_of(lane);
	enum lw_reason reason;

	while (own->greeting != TCP_GREETED && bytes > 0) {
		uint64_t here = tcp_minus(greeting_bytes(own), own->in_have);

		here = here < bytes ? here : bytes;
		own->in_have = (uint8_t)(own->in_have + here);
		bytes -= here;
		if (own->in_have < greeting_bytes(own))
			return true;
		reason = greet(lane);
		if (reason != LW_REASON_NONE) {
			lw_lane_down(lane, reason);
			return false;
		}
	}
	while (bytes > 0) {
		struct lw_slice *slice = TAILQ_FIRST(&lane->inflight);
		struct tcp_slice *part = part_of(slice);
		uint64_t left = answer_bytes(own, slice) - part->received;
		uint64_t here = left < bytes ? left : bytes;
		bool judged = part->received >= status_bytes(own);

		if (slice->op == LW_READ && has_sums(own))
			add_received(own, slice, here);
		part->received += here;
		bytes -= here;
		if (!judged && part->received >= TCP_STATUS_BYTES) {
			if (part->status == tcp_status_word(TCP_STATUS_LEAVING)) {
				untouched(slice);
				lw_lane_down(lane, LW_REASON_RESET);
				return false;
			}
			reason = read_status(part->status);
			if (reason == LW_REASON_REFUSED || reason == LW_REASON_CORRUPT || reason == LW_REASON_DEVICE) {
				refused(lane, slice, reason);
				return false;
			}
			if (reason != LW_REASON_NONE) {
				lw_lane_down(lane, reason);
				return false;
			}
			/* OK before the last byte was stored can't be: the peer does not speak the protocol. */
			if (slice == own->unsent) {
				lw_lane_down(lane, LW_REASON_PROTOCOL);
				return false;
			}
		}
		if (here < left)
			return true;
		reason = LW_REASON_NONE;
		if (slice->op == LW_READ && has_sums(own) && tcp_checksum_wire(part->sum) != part->peer_sum)
			reason = LW_REASON_CORRUPT;
		lw_slice_done(lane, slice, reason);
	}
	return true;
}

/* What the answers to the requests that were sent, even in part, will fill. */
static int expected(struct lw_lane *lane, struct iovec *iov)
{
	struct tcp_lane *own = own_of(lane);
	struct lw_slice *slice;
	int count = 0;

	if (own->greeting != TCP_GREETED)
		tcp_add_piece(iov, &count, &own->in, greeting_bytes(own), own->in_have);
	if (must_prove(own))
		return count;
	TAILQ_FOREACH(slice, &lane->inflight, link)
	{
		struct tcp_slice *part = part_of(slice);

		if (!slice->started || count > TCP_IOVS - 3)
			break;
		tcp_add_piece(iov, &count, &part->status, status_bytes(own), part->received);
		/* A refusal is all that may come to a READ that is sent in part only; its body is not asked for yet. */
		if (slice == own->unsent)
			break;
		if (slice->op == LW_READ)
			tcp_add_piece(iov, &count, (const void *)(uintptr_t)slice->local, slice->length,
				      tcp_minus(part->received, status_bytes(own)));
		if (slice->op == LW_READ && has_sums(own))
			tcp_add_piece(iov, &count, &part->peer_sum, TCP_SUM_BYTES,
				      tcp_minus(part->received, status_bytes(own) + slice->length));
	}
	return count;
}

/* Receives what is there. False: the lane is down. */
static bool receive_some(struct lw_lane *lane)
{
	struct tcp_lane *own = own_of(lane);

	for (int calls = 0; own->sock.readable; calls++) {
		struct iovec iov[TCP_IOVS];
		struct msghdr message = {.msg_iov = iov};
		int count = expected(lane, iov);
		char unasked;
		ssize_t got;

		if (calls == TCP_CALLS) {
			tcp_sock_wake(&own->sock);
			return true;
		}
		/* Nothing is due: an end of the stream is all that can be read. */
		if (count == 0)
			got = recv(own->sock.io.fd, &unasked, 1, MSG_DONTWAIT);
		else
			message.msg_iovlen = (size_t)count, got = recvmsg(own->sock.io.fd, &message, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			own->sock.readable = false;
			return true;
		}
		if (got <= 0 || count == 0) {
			lw_lane_down(lane, got > 0    ? LW_REASON_PROTOCOL
					   : got == 0 ? LW_REASON_RESET
						      : reason_of(errno));
			return false;
		}
		lw_count(&lane->stats.calls, 1);
		/* Less than asked for: the socket is empty, and epoll tells when that changes. */
		if ((uint64_t)got < tcp_pieces_bytes(iov, count) && !own->sock.ended)
			own->sock.readable = false;
		if (!note_received(lane, (uint64_t)got))
			return false;
	}
	return true;
}

static bool finish_connect(struct lw_lane *lane)
{
	struct tcp_lane *own = own_of(lane);
	socklen_t length = sizeof(int);
	int error = 0;

	if (!own->sock.writable && !own->sock.broken)
		return false;
	if (getsockopt(own->sock.io.fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
		lw_lane_down(lane, LW_REASON_UNREACHABLE);
		return false;
	}
	own->sock.broken = false;
	own->connected = true;
	tcp_sock_connected(lane->worker->engine, own->sock.io.fd);
	/* Only where the end of a WRITE is the peer's answer. */
	own->splices = own->version >= 2 && own->sock.worker->tcp->splice_bytes != UINT64_MAX &&
		       tcp_sock_splices(own->sock.io.fd);
	lw_lane_up(lane);
	return true;
}

static void work(struct tcp_sock *sock)
{
	struct lw_lane *lane = lane_of(sock);
	struct tcp_lane *own = own_of(lane);

	if (!own->connected && !finish_connect(lane))
		return;
	/* Answers first: they may tell why the connection broke, and what need not be sent any more. */
	if (sock->broken)
		sock->readable = true;
	if (!receive_some(lane))
		return;
	send_some(lane);
}

static uint64_t draw_token(void)
{
	uint64_t token = 0;

	/* Without one there is no fence, and a WRITE that breaks is not repeated. */
	if (getrandom(&token, sizeof(token), GRND_NONBLOCK) != sizeof(token))
		return 0;
	return token >> 8 == 0 ? 0 : token;
}

static void say_hello(struct tcp_lane *own, const struct lw_view *view)
{
	own->options = view->tcp_options;
	own->greeting = TCP_HELLO_SENT;
	own->out_length = TCP_HEADER_BYTES;
	tcp_header_put(own->about.hello, (struct tcp_header){.size = own->token,
							     .addr = view->incarnation,
							     .op = TCP_OP_V2 | TCP_OP_HELLO,
							     .options = own->options});
	if ((own->options & LW_TCP_AUTH) == 0)
		return;
	tcp_auth_nonce(own->about.initiator);
	own->out_length = TCP_HEADER_BYTES + TCP_NONCE_BYTES;
}

static void show_way(struct lw_lane *lane, const struct tcp_way *way)
{
	char from[48] = "", to[80], text[sizeof(from) + sizeof(to) + 4];

	lw_sockaddr_format(way->addr, to, sizeof(to));
	if (way->rail != NULL) {
		lw_sockaddr_format(&way->rail->addr, from, sizeof(from));
		*strrchr(from, ':') = '\0';
	}
	snprintf(text, sizeof(text), "%s%s%s", from, way->rail != NULL ? " > " : "", to);
	lw_lane_show(lane, text);
}

int tcp_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct tcp_lane *own = own_of(lane);
	uint64_t token = own->token;
	struct lw_engine *engine = lane->worker->engine;
	struct tcp_worker *worker = lane->worker->driver_context[lane->driver];
	struct tcp_way way;
	int fd, error;

	memset(own, 0, sizeof(*own));
	own->token = token != 0 ? tcp_token_next(token) : draw_token();
	own->sock.io.fd = -1;
	if (!tcp_ways_get(&worker->tcp->rails, view, lane->way, &way))
		return -EHOSTUNREACH;
	show_way(lane, &way);
	own->version =
		view->tcp_version < engine->config.tcp_proto ? view->tcp_version : (uint8_t)engine->config.tcp_proto;
	if (view->incarnation != 0 && own->version >= 2)
		say_hello(own, view);
	/* lw_segment_open refuses such peers; this is for tcp_proto = 1 and for descriptors that lie. */
	if (own->options != tcp_options(engine))
		return -EPROTONOSUPPORT;
	lane->fenced = own->greeting != TCP_GREETED && own->token != 0;
	fd = tcp_way_dial(&way, &error);
	if (fd < 0)
		return error;
	tcp_sock_init(&own->sock, worker, fd, work);
	own->used_ms = worker->worker->now_ms;
	error = lw_worker_io_add(lane->worker, &own->sock.io, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	if (error != 0)
		tcp_sock_close(&own->sock, false);
	return error;
}

void tcp_lane_close(struct lw_lane *lane)
{
	struct tcp_lane *own = own_of(lane);

	/* What the kernel still holds of unconfirmed requests must not arrive after they ended. Without any, where all
	 * are confirmed, a reset spares us the state that would keep the port from other connections for a minute. */
	tcp_sock_close(&own->sock, own->version >= 2 || !TAILQ_EMPTY(&lane->inflight));
	if (own->pipe != NULL)
		tcp_pipe_give(own->pipe, lane->worker->now_ms);
	own->pipe = NULL;
	own->unsent = NULL;
	own->connected = false;
}

void tcp_post(struct lw_lane *lane, struct lw_slice *slice)
{
	struct tcp_lane *own = own_of(lane);
	struct tcp_slice *part = part_of(slice);
	uint8_t op =
		(uint8_t)((slice->op == LW_WRITE ? TCP_OP_WRITE : TCP_OP_READ) | (own->version >= 2 ? TCP_OP_V2 : 0));

	tcp_header_put(part->header, (struct tcp_header){.size = slice->length, .addr = slice->remote, .op = op});
	part->sent = 0;
	part->received = 0;
	part->copied = may_splice(own, slice) && sent_lately(own, slice);
	part->sum = TCP_SUM_START;
	if (has_sums(own)) {
		uint32_t sum = tcp_checksum_wire(tcp_checksum_add(TCP_SUM_START, part->header, TCP_HEADER_SUM));

		memcpy(part->header + TCP_HEADER_SUM, &sum, TCP_SUM_BYTES);
		if (slice->op == LW_WRITE)
			part->sum = tcp_checksum_wire(
				tcp_checksum_add(TCP_SUM_START, (const void *)(uintptr_t)slice->local, slice->length));
	}
	if (own->unsent == NULL)
		own->unsent = slice;
}

void tcp_flush(struct lw_lane *lane)
{
	if (lw_lane_state(lane) == LW_LANE_UP)
		send_some(lane);
}

bool tcp_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	struct tcp_lane *own = own_of(lane);

	if (slice->started)
		return false;
	if (own->unsent == slice)
		own->unsent = TAILQ_NEXT(slice, link);
	return true;
}

/* Middleboxes forget connections without traffic, and the next request would be lost on one. */
void tcp_lanes_tick(struct tcp_worker *worker)
{
	uint64_t idle_ms = worker->tcp->engine->config.tcp_idle_s * 1000;
	uint32_t now_ms = worker->worker->now_ms;
	struct tcp_sock *sock, *next;

	for (sock = LIST_FIRST(&worker->open); idle_ms != 0 && sock != NULL; sock = next) {
		struct lw_lane *lane;
		struct tcp_lane *own;
		uint64_t calls;

		next = LIST_NEXT(sock, open_link);
		if (sock->work != work) /* a served connection's, or a probe's */
			continue;
		lane = lane_of(sock);
		own = own_of(lane);
		if (lw_lane_state(lane) != LW_LANE_UP)
			continue;
		calls = atomic_load_explicit(&lane->stats.calls, memory_order_relaxed);
		if (calls != own->calls || !TAILQ_EMPTY(&lane->inflight)) {
			own->calls = calls;
			own->used_ms = now_ms;
		} else if (now_ms - own->used_ms >= idle_ms) {
			lw_lane_down(lane, LW_REASON_NONE);
		}
	}
}
