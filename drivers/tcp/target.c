/* SPDX-License-Identifier: Apache-2.0 */
/* Served connections: a peer's requests, checked against what is registered and offered, and carried out in place.
 *
 * Bytes arrive in the connection's staging area, out of which headers and the beginnings of bodies are taken; the rest
 * of a body is received straight into its destination, with the staging area behind it for what follows. Answers wait
 * in a bounded queue; while it is full nothing more is read, so a peer that does not read its answers stalls only
 * itself. Requests take effect in their order: a WRITE over a range whose READ is not answered yet is held back.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "drivers/tcp/target.h"
#include "lib/engine.h"
#include "lib/log.h"

#define BIG_BODY (16u * 1024)
#define BEHIND_BIG_BODY 4096u
/* A peer that can't be told that its connection ends keeps it for so long after its last byte. */
#define SILENT_MS 1000u
#define RESET_REST_MS 10u

/* What the status CHALLENGE is followed by, with it. */
struct challenge {
	uint64_t status;
	unsigned char target[TCP_NONCE_BYTES], proof[TCP_PROOF_BYTES];
};

struct tcp_block {
	unsigned char staging[TCP_STAGING];
	struct challenge challenge;
	struct tcp_greeting about;
	struct tcp_answer ring[(TCP_BLOCK_BYTES - TCP_STAGING - TCP_GREETING) / sizeof(struct tcp_answer)];
};
_Static_assert(sizeof(struct tcp_block) <= TCP_BLOCK_BYTES, "a block holds staging and answers");

static struct lw_lane *lane_of(struct tcp_served *served)
{
	return served->lane;
}

void tcp_served_end(struct tcp_served *served, bool abort)
{
	struct tcp_worker *worker = served->sock.worker;

	tcp_staged_end(served);
	tcp_sock_close(&served->sock, abort);
	if (served->fence != NULL)
		served->fence->served = NULL;
	TAILQ_REMOVE(&worker->served, served, link);
	worker->free_blocks[worker->free_count++] = served->block_index;
	lw_lane_serve_end(served->lane);
}

/* Nothing more can be taken in before an answer is out. */
static bool stalled(const struct tcp_served *served)
{
	return tcp_answers_full(&served->answers) || served->held || served->fencing ||
	       tcp_staged_waits(&served->staged);
}

void tcp_served_refuse(struct tcp_served *served, enum tcp_status code, bool status)
{
	tcp_staged_refuse(served);
	served->closing = true;
	served->refused_at_ms = served->sock.worker->worker->now_ms;
	if (status)
		tcp_answers_end(&served->answers, code);
}

static bool offered(struct tcp_served *served, uint64_t addr, uint64_t size, uint32_t access,
		    const struct lw_range **first)
{
	struct lw_engine *engine = served->sock.worker->tcp->engine;
	const struct lw_rangemap *map = atomic_load_explicit(&engine->memory, memory_order_acquire);

	return lw_rangemap_covers(map, addr, size, access, first);
}

/* A range that wraps around is not offered, and needs no look. */
static bool must_wait(struct tcp_served *served, struct tcp_header header)
{
	return (header.op & (uint8_t)~TCP_OP_V2) == TCP_OP_WRITE &&
	       tcp_answers_read(&served->answers, header.addr, header.addr + header.size);
}

void tcp_serve_fenced(struct tcp_served *served, bool outrun)
{
	served->fencing = false;
	served->fence = NULL;
	if (outrun)
		tcp_served_refuse(served, TCP_STATUS_OK, false);
	else
		tcp_answers_add_ok(&served->answers);
	tcp_sock_wake(&served->sock);
}

static void begin_fence(struct tcp_served *served)
{
	served->fencing = true;
	tcp_fence_begin(served, served->sock.worker, served->token, &served->fence);
}

bool tcp_serve_end_older(struct tcp_worker *worker, uint64_t token, const struct tcp_served *except)
{
	struct tcp_served *served, *next;
	bool outrun = false;

	for (served = TAILQ_FIRST(&worker->served); served != NULL; served = next) {
		next = TAILQ_NEXT(served, link);
		if (served == except || served->token == 0 || !tcp_token_same_lane(served->token, token))
			continue;
		if (tcp_token_newer(served->token, token))
			outrun = true;
		else
			tcp_served_end(served, true);
	}
	return outrun;
}

/* The greeting is over but for the fence. */
static void welcome(struct tcp_served *served)
{
	served->stage = SERVING;
	served->token = tcp_header_get(served->block->about.hello).size;
	if (served->token != 0)
		begin_fence(served);
	else
		tcp_answers_add_ok(&served->answers);
}

/* A HELLO is there, with its nonce if it has one. */
static void begin_greeting(struct tcp_served *served, const unsigned char *bytes)
{
	struct lw_engine *engine = served->sock.worker->tcp->engine;
	struct tcp_header header = tcp_header_get(bytes);
	struct tcp_greeting *about = &served->block->about;
	struct challenge *challenge = &served->block->challenge;

	memcpy(about->hello, bytes, TCP_HEADER_BYTES);
	if (header.addr != engine->incarnation) {
		tcp_served_refuse(served, TCP_STATUS_INCARNATION, true);
	} else if (header.options != tcp_options(engine)) {
		tcp_served_refuse(served, TCP_STATUS_OPTIONS, true);
	} else if ((header.options & LW_TCP_AUTH) == 0) {
		served->options = header.options;
		welcome(served);
	} else {
		served->options = header.options;
		served->stage = PROVING;
		memcpy(about->initiator, bytes + TCP_HEADER_BYTES, TCP_NONCE_BYTES);
		tcp_auth_nonce(about->target);
		challenge->status = tcp_status_word(TCP_STATUS_CHALLENGE);
		memcpy(challenge->target, about->target, TCP_NONCE_BYTES);
		tcp_auth_prove(engine->config.tcp_secret, TCP_TARGET, about, challenge->proof);
		tcp_answers_add(&served->answers, (struct tcp_answer){.addr = (uint64_t)(uintptr_t)challenge,
								      .length = sizeof(*challenge),
								      .greeting = true});
	}
}

/* The bytes of the greeting that begins or goes on here: 0 if there is none. */
static uint32_t greeting_bytes(const struct tcp_served *served, struct tcp_header header)
{
	if (served->stage == PROVING)
		return TCP_PROOF_BYTES;
	if (header.op != (TCP_OP_HELLO | TCP_OP_V2))
		return 0;
	return TCP_HEADER_BYTES + ((header.options & LW_TCP_AUTH) != 0 ? TCP_NONCE_BYTES : 0);
}

static void go_on_greeting(struct tcp_served *served, const unsigned char *bytes)
{
	const struct lw_engine *engine = served->sock.worker->tcp->engine;

	if (served->stage != PROVING)
		begin_greeting(served, bytes);
	else if (tcp_auth_check(engine->config.tcp_secret, TCP_INITIATOR, &served->block->about, bytes))
		welcome(served);
	else
		tcp_served_refuse(served, TCP_STATUS_UNAUTHORIZED, true);
}

/* Whether a header may be acted upon: greeted where that is asked for, and unchanged. */
static bool admit(struct tcp_served *served, const unsigned char *bytes)
{
	bool v2 = (bytes[16] & TCP_OP_V2) != 0;
	uint32_t sum;

	if (served->stage != SERVING && tcp_options(served->sock.worker->tcp->engine) != 0) {
		tcp_served_refuse(served, TCP_STATUS_OPTIONS, v2);
		return false;
	}
	if (!tcp_served_sums(served))
		return true;
	memcpy(&sum, bytes + TCP_HEADER_SUM, TCP_SUM_BYTES);
	if (v2 && sum == tcp_checksum_wire(tcp_checksum_add(TCP_SUM_START, bytes, TCP_HEADER_SUM)))
		return true;
	tcp_served_refuse(served, TCP_STATUS_CORRUPT, v2);
	return false;
}

/* Acts on one header. */
static void begin_request(struct tcp_served *served, struct tcp_header header)
{
	bool v2 = (header.op & TCP_OP_V2) != 0;
	uint8_t op = header.op & (uint8_t)~TCP_OP_V2;
	const struct lw_range *first;

	/* As the reference does, everything that is not WRITE is a READ. */
	if (!offered(served, header.addr, header.size,
		     op == TCP_OP_WRITE ? LW_ACCESS_REMOTE_WRITE : LW_ACCESS_REMOTE_READ, &first)) {
		tcp_served_refuse(served, TCP_STATUS_REFUSED, v2);
		return;
	}
	if ((first->access & LW_RANGE_DEVICE) != 0) {
		served->big = header.size >= BIG_BODY;
		if (op == TCP_OP_WRITE)
			tcp_staged_write(served, header.addr, header.size, v2);
		else
			tcp_staged_read(served, header.addr, header.size, v2);
	} else if (op == TCP_OP_WRITE) {
		served->dest = header.addr;
		served->left = header.size;
		served->big = header.size >= BIG_BODY;
		served->confirm = v2;
		served->sum = TCP_SUM_START;
	} else {
		tcp_answers_add(&served->answers, (struct tcp_answer){.addr = header.addr,
								      .length = header.size,
								      .sum = TCP_SUM_START,
								      .status = v2,
								      .summed = tcp_served_sums(served)});
	}
}

static void confirm_write(struct tcp_served *served)
{
	lw_count(&lane_of(served)->stats.slices, 1);
	if (served->staged.writing)
		tcp_staged_confirm(served);
	else if (served->confirm)
		tcp_answers_add_ok(&served->answers);
}

/* Where the next bytes of the WRITE go, and how many at most. NULL: nowhere now. */
static void *place_of(struct tcp_served *served, uint64_t *room)
{
	if (served->staged.writing)
		return tcp_staged_place(served, room);
	*room = served->left;
	return (void *)(uintptr_t)served->dest;
}

/* So many bytes of the WRITE are in their place. */
static void stored(struct tcp_served *served, uint64_t bytes)
{
	struct lw_lane *lane = lane_of(served);

	if (tcp_served_sums(served) && !served->staged.writing)
		served->sum = tcp_checksum_add(served->sum, (const void *)(uintptr_t)served->dest, bytes);
	served->dest += bytes;
	served->left -= bytes;
	if (served->staged.writing)
		tcp_staged_stored(served, bytes);
	lw_count(&lane->stats.rx_bytes, bytes);
	lw_count(&served->sock.worker->worker->served_bytes, bytes);
	if (served->left != 0)
		return;
	served->sum_to_come = tcp_served_sums(served);
	if (!served->sum_to_come)
		confirm_write(served);
}

/* The checksum behind a body. */
static void compare_sum(struct tcp_served *served, const unsigned char *bytes)
{
	uint32_t sum;

	memcpy(&sum, bytes, TCP_SUM_BYTES);
	served->sum_to_come = false;
	if (sum == tcp_checksum_wire(served->sum))
		confirm_write(served);
	else
		tcp_served_refuse(served, TCP_STATUS_CORRUPT, true);
}

/* Takes requests out of the staging area as far as it and the queue of answers go. */
static void parse(struct tcp_served *served)
{
	unsigned char *staging = served->block->staging;
	struct tcp_header header;
	uint32_t greeting;

	served->held = false;
	if (!served->closing && served->staged.left != 0)
		tcp_staged_go_on(served);
	while (!served->closing && !stalled(served) && served->begin < served->end) {
		uint32_t have = served->end - served->begin;

		if (served->left != 0) {
			uint64_t room;
			void *to = place_of(served, &room);
			uint32_t here = to == NULL ? 0 : room < have ? (uint32_t)room : have;

			if (to == NULL)
				break;
			memcpy(to, staging + served->begin, here);
			served->begin += here;
			stored(served, here);
			continue;
		}
		if (served->sum_to_come) {
			if (have < TCP_SUM_BYTES)
				break;
			served->begin += TCP_SUM_BYTES;
			compare_sum(served, staging + served->begin - TCP_SUM_BYTES);
			continue;
		}
		if (have < TCP_HEADER_BYTES)
			break;
		header = tcp_header_get(staging + served->begin);
		greeting = greeting_bytes(served, header);
		if (greeting != 0) {
			if (have < greeting)
				break;
			served->begin += greeting;
			go_on_greeting(served, staging + served->begin - greeting);
			continue;
		}
		if (!admit(served, staging + served->begin))
			break;
		served->held = must_wait(served, header);
		if (served->held)
			break;
		served->begin += TCP_HEADER_BYTES;
		begin_request(served, header);
	}
	if (served->begin == served->end) {
		served->begin = 0;
		served->end = 0;
	} else if (served->begin > 0 && served->end - served->begin < TCP_HEADER_BYTES + TCP_NONCE_BYTES) {
		memmove(staging, staging + served->begin, served->end - served->begin);
		served->end -= served->begin;
		served->begin = 0;
	}
}

/* How much of what follows a body is taken with it. What lands in the staging area is copied once more, so behind a big
 * body it is little more than the next header. */
static uint64_t staging_room(const struct tcp_served *served, uint64_t direct)
{
	uint64_t room = TCP_STAGING - served->end;

	if (direct < served->left)
		return 0; /* the body goes on elsewhere */
	return served->left != 0 && served->big && room > BEHIND_BIG_BODY ? BEHIND_BIG_BODY : room;
}

/* Reads and carries out requests. False: the connection is gone. */
static bool receive_some(struct tcp_served *served)
{
	struct lw_lane *lane = lane_of(served);

	for (int calls = 0; served->sock.readable && !served->closing && !stalled(served); calls++) {
		struct iovec iov[2];
		struct msghdr message = {.msg_iov = iov};
		uint64_t direct = 0, room;
		void *to = NULL;
		int count = 0;
		ssize_t got;

		if (calls == TCP_CALLS) {
			tcp_sock_wake(&served->sock);
			return true;
		}
		/* left is not 0 only when the staging area is used up. */
		if (served->left != 0) {
			to = place_of(served, &direct);
			if (to == NULL)
				return true;
			iov[count++] = (struct iovec){to, direct};
		}
		room = staging_room(served, direct);
		if (room != 0)
			iov[count++] = (struct iovec){served->block->staging + served->end, room};
		message.msg_iovlen = (size_t)count;
		got = recvmsg(served->sock.io.fd, &message, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			served->sock.readable = false;
			return true;
		}
		if (got == 0 && served->answers.count > 0) {
			served->finished = true;
			served->sock.readable = false;
			return true;
		}
		if (got <= 0) {
			tcp_served_end(served, false);
			return false;
		}
		lw_count(&lane->stats.calls, 1);
		if ((uint64_t)got < direct + room && !served->sock.ended)
			served->sock.readable = false;
		if (direct != 0) {
			uint64_t here = (uint64_t)got < direct ? (uint64_t)got : direct;

			stored(served, here);
			got -= (ssize_t)here;
		}
		served->end += (uint32_t)got;
		parse(served);
	}
	return true;
}

/* Sends answers. False: the connection is gone. */
static bool send_some(struct tcp_served *served)
{
	struct lw_lane *lane = lane_of(served);

	for (int calls = 0; served->sock.writable; calls++) {
		struct iovec iov[TCP_IOVS];
		struct msghdr message = {.msg_iov = iov};
		int count = tcp_answers_pieces(&served->answers, iov, TCP_IOVS);
		struct tcp_sent done;
		ssize_t sent;

		if (count == 0)
			return true;
		if (calls == TCP_CALLS) {
			tcp_sock_wake(&served->sock);
			return true;
		}
		message.msg_iovlen = (size_t)count;
		sent = sendmsg(served->sock.io.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			served->sock.writable = false;
			return true;
		}
		if (sent < 0) {
			tcp_served_end(served, true);
			return false;
		}
		lw_count(&lane->stats.calls, 1);
		if ((uint64_t)sent < tcp_pieces_bytes(iov, count))
			served->sock.writable = false;
		done = tcp_answers_sent(&served->answers, (uint64_t)sent);
		lw_count(&lane->stats.slices, done.bodies);
		lw_count(&lane->stats.tx_bytes, done.bytes);
		lw_count(&served->sock.worker->worker->served_bytes, done.bytes);
		tcp_staged_gave(served, done.bounces);
	}
	return true;
}

/* After a refusal: all answers are sent; the peer's end is awaited while its bytes are read away. A close at once could
 * reset the connection before the status was read. */
static void linger(struct tcp_served *served)
{
	uint32_t now_ms = served->sock.worker->worker->now_ms;
	ssize_t got = -1;

	if (!tcp_answers_over(&served->answers)) {
		if (now_ms - served->refused_at_ms > TCP_LINGER_MS)
			tcp_served_end(served, true);
		return;
	}
	if (!served->shut)
		shutdown(served->sock.io.fd, SHUT_WR);
	served->shut = true;
	for (int calls = 0; calls < TCP_CALLS; calls++) {
		/* MSG_TRUNC on a TCP socket throws bytes away without a copy. */
		got = recv(served->sock.io.fd, served->block->staging, TCP_STAGING, MSG_DONTWAIT | MSG_TRUNC);
		if (got <= 0)
			break;
	}
	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) ||
	    now_ms - served->refused_at_ms > TCP_LINGER_MS)
		tcp_served_end(served, false);
	else if (got > 0)
		tcp_sock_wake(&served->sock);
}

static void work(struct tcp_sock *sock)
{
	struct tcp_served *served = (struct tcp_served *)(void *)sock;
	uint32_t waits;

	served->used_ms = sock->worker->worker->now_ms;
	TAILQ_REMOVE(&sock->worker->served, served, link);
	TAILQ_INSERT_TAIL(&sock->worker->served, served, link);
	/* A reset: what is in the socket's buffer belongs to requests that their initiator has given up. */
	if (sock->broken) {
		tcp_served_end(served, true);
		return;
	}
	if (!tcp_staged_check(served))
		return;
	do {
		parse(served);
		if (!receive_some(served))
			return;
		waits = stalled(served) ? served->answers.count : 0;
		if (!send_some(served))
			return;
		/* Answers are out: go on with what waits in the staging area and the socket. */
	} while (served->answers.count < waits);
	if (served->closing)
		linger(served);
	else if (served->finished && served->answers.count == 0 && served->staged.left == 0)
		tcp_served_end(served, false);
}

/* Nothing is under way on it: no request, not even in the socket, and no answer that waits there for the peer to read.
 */
static bool idle(struct tcp_served *served)
{
	int fd = served->sock.io.fd, unread = 0, unsent = 0;

	if (served->sock.ready || served->left != 0 || served->begin != served->end || served->answers.count != 0 ||
	    served->closing || served->finished || served->sum_to_come || served->fencing ||
	    served->staged.holding != 0 || tcp_staged_waits(&served->staged))
		return false;
	return ioctl(fd, SIOCINQ, &unread) == 0 && unread == 0 && ioctl(fd, SIOCOUTQNSD, &unsent) == 0 && unsent == 0;
}

/* Whether the peer has reset the connection, and the event that says so is still to come. */
static bool reset(const struct tcp_served *served)
{
	struct tcp_info info = {.tcpi_state = 0};
	socklen_t length = sizeof(info);

	return getsockopt(served->sock.io.fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
	       info.tcpi_state == TCP_CLOSE;
}

/* Ends a connection that its peer has reset. To ask for all of them takes its time, so that it is not done for each of
 * a flood of new ones: not again for a moment when there was none. */
static bool end_reset(struct tcp_worker *worker)
{
	uint32_t now_ms = worker->worker->now_ms;
	struct tcp_served *served;

	if (worker->no_reset && now_ms - worker->no_reset_ms < RESET_REST_MS)
		return false;
	TAILQ_FOREACH(served, &worker->served, link)
	{
		if (reset(served)) {
			tcp_served_end(served, true);
			return true;
		}
	}
	worker->no_reset = true;
	worker->no_reset_ms = now_ms;
	return false;
}

/* Ends the connection that has been idle the longest, else one that is of no use any more. False: all are busy. */
static bool make_room(struct tcp_worker *worker)
{
	uint64_t leaving = tcp_status_word(TCP_STATUS_LEAVING);
	struct tcp_served *served;

	TAILQ_FOREACH(served, &worker->served, link)
	{
		if ((served->stage != SERVING && worker->worker->now_ms - served->used_ms < SILENT_MS) || !idle(served))
			continue;
		/* A request that is on its way finds a closed socket, and its peer this status first. */
		if (served->stage == SERVING && send(served->sock.io.fd, &leaving, sizeof(leaving),
						     MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(leaving))
			continue; /* what it was sent last fills the buffer still */
		tcp_served_end(served, false);
		return true;
	}
	return end_reset(worker);
}

void tcp_serve(struct tcp_worker *worker, int fd, const char *peer)
{
	static struct lw_log_limit limit;
	struct tcp_served *served;
	struct lw_lane *lane = NULL;

	do {
		if (worker->free_count > 0)
			lane = lw_lane_serve(worker->worker, worker->driver, peer);
	} while (lane == NULL && make_room(worker));
	if (lane == NULL) {
		lw_log_limited(
			&limit, LW_LOG_WARNING,
			"a connection of %s was refused: all are busy, see the settings tcp_max_served and max_lanes",
			peer);
		shutdown(fd, SHUT_RDWR); /* a forked child may have it, too */
		close(fd);
		return;
	}
	served = (struct tcp_served *)(void *)lane->own;
	memset(served, 0, sizeof(*served));
	served->lane = lane;
	served->block_index = worker->free_blocks[--worker->free_count];
	served->block = (struct tcp_block *)(void *)(worker->blocks + served->block_index * TCP_BLOCK_BYTES);
	tcp_answers_init(&served->answers, served->block->ring,
			 sizeof(served->block->ring) / sizeof(served->block->ring[0]));
	served->used_ms = worker->worker->now_ms;
	tcp_sock_init(&served->sock, worker, fd, work);
	tcp_sock_options(fd);
	tcp_sock_connected(worker->tcp->engine, fd);
	lw_accepted_reuse(fd);
	TAILQ_INSERT_TAIL(&worker->served, served, link);
	if (lw_worker_io_add(worker->worker, &served->sock.io, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) != 0)
		tcp_served_end(served, true);
}

void tcp_serve_tick(struct tcp_worker *worker)
{
	struct tcp_served *served;

	TAILQ_FOREACH(served, &worker->served, link)
	{
		if (served->closing)
			tcp_sock_wake(&served->sock);
		if (served->fencing && served->fence == NULL) {
			begin_fence(served); /* may end others of the list: the rest has its turn next time */
			return;
		}
	}
}

void tcp_serve_end_all(struct tcp_worker *worker)
{
	struct tcp_served *served;

	while ((served = TAILQ_FIRST(&worker->served)) != NULL)
		tcp_served_end(served, true);
}

void tcp_revoke(void *worker_context, uint64_t addr, uint64_t end)
{
	struct tcp_worker *worker = worker_context;
	struct tcp_served *served, *next;

	for (served = TAILQ_FIRST(&worker->served); served != NULL; served = next) {
		bool inside = tcp_overlaps(served->dest, served->left, addr, end) ||
			      tcp_answers_read(&served->answers, addr, end) || tcp_staged_inside(served, addr, end);

		next = TAILQ_NEXT(served, link);
		if (inside)
			tcp_served_end(served, true);
	}
}
