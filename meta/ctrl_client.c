/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to peers' handshake ports. Each is a state machine on the control thread:
 *
 *   CONNECTING (address after address) --connected--> SENDING --all sent--> RECEIVING --a whole frame--> done
 *
 * An address that can't be reached hands over to the next one. Once connected there is no second try: the peer may have
 * acted on the request already, and a note must not arrive twice.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "meta/ctrl_pvt.h"
#include "meta/frame.h"

struct call {
	struct lw_ctrl_io io;
	struct lw_ctrl *ctrl;
	struct lw_ctrl_job job;
	struct lw_link link;
	struct lw_ctrl_timer timer;
	uint64_t deadline_ns;
	enum { CONNECTING, SENDING, RECEIVING } state;
	int fd;    /* -1: none */
	int error; /* why the addresses tried so far failed */
	int type;
	uint32_t next; /* address to try */
	struct lw_addrs addrs;
	char *frame;
	size_t frame_size, sent;
	struct lw_frame_reader reader;
	lw_ctrl_done done;
	void *arg;
};

static void end(struct lw_ctrl *ctrl, struct call *call, int result, const char *body, size_t size)
{
	const struct linger reset = {.l_onoff = 1};

	/* The reply is here, nothing is under way any more: a reset spares us the state that would keep the port from
	 * other connections for a minute. */
	if (result == 0)
		setsockopt(call->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	lw_link_remove(&call->link);
	lw_ctrl_timer_clear(&call->timer);
	lw_ctrl_io_kill(ctrl, &call->io, call->fd); /* at once: the peer waits for our close */
	call->done(call->arg, result, body, size);
	lw_frame_reader_fini(&call->reader); /* body points into it */
	free(call->frame);
}

void lw_ctrl_end_calls(struct lw_ctrl *ctrl, int error)
{
	while (!lw_link_empty(&ctrl->calls))
		end(ctrl, lw_container(ctrl->calls.next, struct call, link), error, NULL, 0);
}

/* Of several addresses' errors "unreachable" says least: often it is the other address family that this host lacks. */
static void address_failed(struct lw_ctrl *ctrl, struct call *call, int error)
{
	if (call->error == 0 || call->error == -EHOSTUNREACH)
		call->error = lw_socket_error(error);
	lw_ctrl_io_close(ctrl, call->fd);
	call->fd = -1;
}

/* 0 under way, or a positive errno. */
static int connect_to(struct lw_ctrl *ctrl, struct call *call, const struct sockaddr_storage *addr)
{
	const int on = 1;
	int ret;

	call->fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (call->fd < 0)
		return errno;
	/* Else the end of a long request waits for the peer's delayed acknowledgement. */
	setsockopt(call->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	/* Also when it connects at once, which shows as writable. EINTR: goes on by itself. */
	if (connect(call->fd, (const struct sockaddr *)addr, lw_sockaddr_length(addr)) < 0 && errno != EINPROGRESS &&
	    errno != EINTR)
		return errno;
	ret = lw_ctrl_io_add(ctrl, &call->io, call->fd, EPOLLOUT);
	return -ret;
}

/* Starts on the next address, or ends the call when none is left. The time left is shared evenly, so that a black hole
 * does not use up what the others need. */
static void next_address(struct lw_ctrl *ctrl, struct call *call)
{
	uint64_t now = lw_now_ns();
	uint32_t left;
	int error;

	while (call->next < call->addrs.count && now < call->deadline_ns) {
		left = call->addrs.count - call->next;
		error = connect_to(ctrl, call, &call->addrs.addr[call->next++]);
		if (error == 0) {
			lw_ctrl_timer_set(ctrl, &call->timer, now + (call->deadline_ns - now) / left);
			return;
		}
		address_failed(ctrl, call, error);
	}
	if (now >= call->deadline_ns)
		call->error = -ETIMEDOUT;
	end(ctrl, call, call->error != 0 ? call->error : -EHOSTUNREACH, NULL, 0);
}

static void on_timer(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer)
{
	struct call *call = lw_container(timer, struct call, timer);

	if (call->state == CONNECTING && call->next < call->addrs.count) {
		address_failed(ctrl, call, ETIMEDOUT);
		next_address(ctrl, call);
	} else {
		end(ctrl, call, -ETIMEDOUT, NULL, 0);
	}
}

static void send_request(struct lw_ctrl *ctrl, struct call *call)
{
	int ret = lw_ctrl_send(call->fd, call->frame, call->frame_size, &call->sent);

	if (ret == 1) {
		call->state = RECEIVING;
		ret = lw_ctrl_io_change(ctrl, &call->io, call->fd, EPOLLIN);
	}
	if (ret < 0)
		end(ctrl, call, lw_socket_error(-ret), NULL, 0);
}

static void connected(struct lw_ctrl *ctrl, struct call *call)
{
	socklen_t size = sizeof(int);
	int error = 0;

	if (getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		error = errno;
	if (error == 0 && lw_socket_met_itself(call->fd))
		error = ECONNREFUSED;
	if (error != 0) {
		address_failed(ctrl, call, error);
		next_address(ctrl, call);
		return;
	}
	lw_ctrl_timer_set(ctrl, &call->timer, call->deadline_ns);
	call->state = SENDING;
	send_request(ctrl, call);
}

static void got_reply(struct lw_ctrl *ctrl, struct call *call)
{
	const char *body;
	size_t size;
	bool legacy;
	int type;

	lw_frame_reader_get(&call->reader, &type, &body, &size, &legacy);
	if (type == call->type)
		end(ctrl, call, 0, body, size);
	else
		end(ctrl, call, -EPROTO, NULL, 0);
}

static void receive(struct lw_ctrl *ctrl, struct call *call)
{
	size_t turn = 0, used;
	ssize_t part;
	int ret = 0;

	while (ret == 0 && turn < LW_CTRL_TURN_BYTES) {
		part = recv(call->fd, ctrl->scratch, sizeof(ctrl->scratch), 0);
		if (part < 0 && errno == EINTR)
			continue;
		if (part < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (part < 0)
			ret = lw_socket_error(errno);
		else if (part == 0)
			ret = -ECONNRESET; /* closed before the reply was whole */
		else
			ret = lw_frame_reader_feed(&call->reader, ctrl->scratch, (size_t)part, &used);
		turn += part > 0 ? (size_t)part : 0;
	}
	if (ret == 1)
		got_reply(ctrl, call);
	else if (ret < 0)
		end(ctrl, call, ret, NULL, 0);
}

static void on_call(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, uint32_t events)
{
	struct call *call = lw_container(io, struct call, io);

	(void)events; /* errors and hang-ups show in the system call */
	switch (call->state) {
	case CONNECTING:
		connected(ctrl, call);
		break;
	case SENDING:
		send_request(ctrl, call);
		break;
	default:
		receive(ctrl, call);
		break;
	}
}

static void run_start(struct lw_ctrl_job *job)
{
	struct call *call = lw_container(job, struct call, job);
	struct lw_ctrl *ctrl = call->ctrl;

	lw_link_append(&ctrl->calls, &call->link);
	if (atomic_load(&ctrl->closing))
		end(ctrl, call, -ESHUTDOWN, NULL, 0);
	else
		next_address(ctrl, call);
}

int lw_ctrl_call_async(struct lw_ctrl *ctrl, const struct lw_addrs *addrs, int type, const char *body, size_t size,
		       uint32_t timeout_ms, lw_ctrl_done done, void *arg)
{
	struct call *call;
	int ret = -ESHUTDOWN;

	if (size > ctrl->opts.max_frame - 2) /* with its type and newline */
		return -EMSGSIZE;
	/* Counted before closing is looked at: either we see it, or the thread waits for us (finish in ctrl.c). */
	atomic_fetch_add(&ctrl->users, 1);
	if (atomic_load(&ctrl->closing))
		goto leave;
	ret = -ENOMEM;
	call = calloc(1, sizeof(*call));
	if (call == NULL)
		goto leave;
	ret = lw_frame_encode(type, false, body, size, &call->frame, &call->frame_size);
	if (ret < 0) {
		free(call);
		goto leave;
	}
	call->io.event = on_call;
	call->ctrl = ctrl;
	call->job.run = run_start;
	call->timer.fire = on_timer;
	call->deadline_ns = lw_now_ns() + (uint64_t)timeout_ms * 1000000u;
	call->fd = -1;
	call->type = type;
	call->addrs = *addrs;
	call->done = done;
	call->arg = arg;
	lw_frame_reader_init(&call->reader, ctrl->opts.max_frame);
	lw_ctrl_post(ctrl, &call->job);
	ret = 0;
leave:
	atomic_fetch_sub(&ctrl->users, 1);
	return ret;
}

/* Waiting -------------------------------------------------------------------------------------------------------------
 */

/* Shared by a waiting thread and the control thread; whoever leaves last frees it, so neither has to outlast the other.
 */
struct wait {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	int holders;
	bool done;
	int result;
	char *reply;
	size_t reply_size;
};

static struct wait *wait_new(void)
{
	struct wait *wait = calloc(1, sizeof(*wait));
	pthread_condattr_t attr;

	if (wait == NULL)
		return NULL;
	pthread_mutex_init(&wait->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* steps of the wall clock don't count */
	pthread_cond_init(&wait->ended, &attr);
	pthread_condattr_destroy(&attr);
	wait->holders = 2;
	return wait;
}

static void wait_free(struct wait *wait)
{
	pthread_cond_destroy(&wait->ended);
	pthread_mutex_destroy(&wait->lock);
	free(wait->reply);
	free(wait);
}

/* Takes the lock's release along. */
static void wait_leave(struct wait *wait)
{
	bool last = --wait->holders == 0;

	pthread_mutex_unlock(&wait->lock);
	if (last)
		wait_free(wait);
}

static void on_done(void *arg, int result, const char *body, size_t size)
{
	struct wait *wait = arg;
	char *copy = NULL;

	if (result == 0) {
		copy = malloc(size + 1);
		if (copy == NULL) {
			result = -ENOMEM;
		} else {
			memcpy(copy, body, size);
			copy[size] = '\0';
		}
	}
	pthread_mutex_lock(&wait->lock);
	wait->result = result;
	wait->reply = copy;
	wait->reply_size = size;
	wait->done = true;
	pthread_cond_signal(&wait->ended);
	wait_leave(wait);
}

int lw_ctrl_call(struct lw_ctrl *ctrl, const struct lw_addrs *addrs, int type, const char *body, size_t size,
		 uint32_t timeout_ms, char **reply, size_t *reply_size)
{
	uint64_t until_ns = lw_now_ns() + (uint64_t)timeout_ms * 1000000u;
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
				       .tv_nsec = (long)(until_ns % 1000000000u)};
	struct wait *wait;
	int ret;

	if (pthread_equal(pthread_self(), ctrl->thread))
		return -EDEADLK;
	wait = wait_new();
	if (wait == NULL)
		return -ENOMEM;
	ret = lw_ctrl_call_async(ctrl, addrs, type, body, size, timeout_ms, on_done, wait);
	if (ret < 0) {
		wait_free(wait);
		return ret;
	}
	pthread_mutex_lock(&wait->lock);
	while (!wait->done && ret == 0)
		ret = pthread_cond_timedwait(&wait->ended, &wait->lock, &until);
	ret = wait->done ? wait->result : -ETIMEDOUT;
	if (ret == 0) {
		*reply = wait->reply;
		*reply_size = wait->reply_size;
		wait->reply = NULL;
	}
	wait_leave(wait);
	return ret;
}
