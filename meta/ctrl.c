/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread's loop, its timers, jobs and watches. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "meta/ctrl_pvt.h"

#define EVENTS_PER_ROUND 64
#define BACKLOG 1024 /* the kernel cuts it to net.core.somaxconn */
#define RETRY_NS 50000000u

/* Timers --------------------------------------------------------------------------------------------------------------
 */

/* An unsorted list and the earliest time in it, which may be too early after a timer was cleared. The list is walked
 * only when that time has come: nearly all timers are cleared long before they are due. */
void lw_ctrl_timer_set(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer, uint64_t at_ns)
{
	lw_ctrl_timer_clear(timer);
	timer->at_ns = at_ns;
	lw_link_append(&ctrl->timers, &timer->link);
	if (at_ns < ctrl->next_ns)
		ctrl->next_ns = at_ns;
}

void lw_ctrl_timer_clear(struct lw_ctrl_timer *timer)
{
	if (timer->at_ns == 0)
		return;
	timer->at_ns = 0;
	lw_link_remove(&timer->link);
}

static void fire_timers(struct lw_ctrl *ctrl)
{
	struct lw_link due, *link, *next;
	uint64_t now = lw_now_ns();

	if (now < ctrl->next_ns)
		return;
	/* Those that are due move to a list of their own first, since a timer that fires may set and clear others. */
	lw_link_init(&due);
	ctrl->next_ns = UINT64_MAX;
	for (link = ctrl->timers.next; link != &ctrl->timers; link = next) {
		struct lw_ctrl_timer *timer = lw_container(link, struct lw_ctrl_timer, link);

		next = link->next;
		if (timer->at_ns <= now) {
			lw_link_remove(link);
			lw_link_append(&due, link);
		} else if (timer->at_ns < ctrl->next_ns) {
			ctrl->next_ns = timer->at_ns;
		}
	}
	while (!lw_link_empty(&due)) {
		struct lw_ctrl_timer *timer = lw_container(due.next, struct lw_ctrl_timer, link);

		lw_ctrl_timer_clear(timer);
		timer->fire(ctrl, timer);
	}
}

static int ms_until(uint64_t at_ns)
{
	uint64_t now = lw_now_ns(), ms;

	if (at_ns == UINT64_MAX)
		return -1;
	if (at_ns <= now)
		return 0;
	ms = (at_ns - now + 999999) / 1000000; /* up: not to spin through the last millisecond */
	return ms > 60000 ? 60000 : (int)ms;
}

/* Descriptors ---------------------------------------------------------------------------------------------------------
 */

static int io_ctl(struct lw_ctrl *ctrl, int op, struct lw_ctrl_io *io, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = io};

	return epoll_ctl(ctrl->epoll_fd, op, fd, &event) < 0 ? -errno : 0;
}

int lw_ctrl_io_add(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, int fd, uint32_t events)
{
	return io_ctl(ctrl, EPOLL_CTL_ADD, io, fd, events);
}

int lw_ctrl_io_change(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, int fd, uint32_t events)
{
	return io_ctl(ctrl, EPOLL_CTL_MOD, io, fd, events);
}

void lw_ctrl_io_close(struct lw_ctrl *ctrl, int fd)
{
	if (fd < 0)
		return;
	/* close(2) alone leaves the descriptor in the set while a forked child holds a copy. */
	io_ctl(ctrl, EPOLL_CTL_DEL, NULL, fd, 0);
	close(fd);
}

void lw_ctrl_io_kill(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, int fd)
{
	lw_ctrl_io_close(ctrl, fd);
	io->event = NULL;
	io->next_dead = ctrl->dead;
	ctrl->dead = io;
}

static void reap(struct lw_ctrl *ctrl)
{
	struct lw_ctrl_io *io;

	while ((io = ctrl->dead) != NULL) {
		ctrl->dead = io->next_dead;
		free(io);
	}
}

int lw_ctrl_send(int fd, const char *bytes, size_t size, size_t *sent)
{
	size_t turn = 0;

	while (*sent < size && turn < LW_CTRL_TURN_BYTES) {
		ssize_t part = send(fd, bytes + *sent, size - *sent, MSG_NOSIGNAL);

		if (part < 0 && errno == EINTR)
			continue;
		if (part < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
		*sent += (size_t)part;
		turn += (size_t)part;
	}
	return *sent == size;
}

/* Jobs ----------------------------------------------------------------------------------------------------------------
 */

void lw_ctrl_post(struct lw_ctrl *ctrl, struct lw_ctrl_job *job)
{
	/* The job may run, and lw_ctrl_close be called on its account, before we have looked at asleep. */
	atomic_fetch_add(&ctrl->users, 1);
	lw_inbox_push(&ctrl->jobs, &job->node);
	if (atomic_exchange(&ctrl->asleep, 0) == 1) { /* S1 */
		const uint64_t one = 1;

		while (write(ctrl->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
	atomic_fetch_sub(&ctrl->users, 1);
}

static void run_jobs(struct lw_ctrl *ctrl)
{
	struct lw_inbox_node *node = lw_inbox_take_all(&ctrl->jobs), *next;

	for (; node != NULL; node = next) {
		struct lw_ctrl_job *job = lw_container(node, struct lw_ctrl_job, node);

		next = node->next; /* the job's memory is its owner's again once it runs */
		job->run(job);
	}
}

/* Asleep is only ever exchanged, so its modifications form one chain in which each pusher's exchange S1, after its
 * push, comes either before S0, which then sees the push, or after it, and then reads 1 and writes to wake_fd. */
static int sleep_or_not(struct lw_ctrl *ctrl, struct epoll_event *events)
{
	int count, ms;

	atomic_exchange(&ctrl->asleep, 1); /* S0 */
	ms = lw_inbox_empty(&ctrl->jobs) ? ms_until(ctrl->next_ns) : 0;
	count = epoll_wait(ctrl->epoll_fd, events, EVENTS_PER_ROUND, ms);
	atomic_exchange(&ctrl->asleep, 0);
	return count;
}

static void on_wake(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, uint32_t events)
{
	uint64_t count;

	(void)io;
	(void)events;
	while (read(ctrl->wake_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

/* Nobody may be left inside when the memory goes: waits for threads that were in post or call_async when close was
 * called, and runs what they brought. */
static void finish(struct lw_ctrl *ctrl)
{
	bool last;

	do {
		last = atomic_load(&ctrl->users) == 0;
		run_jobs(ctrl);
		lw_ctrl_end_calls(ctrl, -ESHUTDOWN);
		reap(ctrl);
		if (!last)
			sched_yield();
	} while (!last || !lw_inbox_empty(&ctrl->jobs));
	lw_ctrl_drop_clients(ctrl);
	reap(ctrl);
}

static void *loop(void *arg)
{
	struct epoll_event events[EVENTS_PER_ROUND];
	struct lw_ctrl *ctrl = arg;
	int count, i;

	pthread_setname_np(pthread_self(), "lw-ctrl");
	while (!ctrl->stopping) {
		count = sleep_or_not(ctrl, events);
		for (i = 0; i < count; i++) {
			struct lw_ctrl_io *io = events[i].data.ptr;

			if (io->event != NULL)
				io->event(ctrl, io, events[i].events);
		}
		run_jobs(ctrl);
		fire_timers(ctrl);
		reap(ctrl);
	}
	finish(ctrl);
	return NULL;
}

/* Watches -------------------------------------------------------------------------------------------------------------
 */

static void on_watched(struct lw_ctrl *ctrl, struct lw_ctrl_io *io, uint32_t events)
{
	struct lw_ctrl_watch *watch = lw_container(io, struct lw_ctrl_watch, io);

	(void)ctrl;
	(void)events;
	if (!watch->paused)
		watch->ready(watch->arg);
}

static void on_pause_over(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer)
{
	struct lw_ctrl_watch *watch = lw_container(timer, struct lw_ctrl_watch, timer);

	if (lw_ctrl_io_add(ctrl, &watch->io, watch->fd, EPOLLIN) == 0)
		watch->paused = false;
	else /* short of memory or watches: try again */
		lw_ctrl_timer_set(ctrl, timer, lw_now_ns() + RETRY_NS);
}

int lw_ctrl_watch(struct lw_ctrl *ctrl, int fd, void (*ready)(void *arg), void *arg, struct lw_ctrl_watch **watch)
{
	struct lw_ctrl_watch *fresh = calloc(1, sizeof(*fresh));
	int ret;

	if (fresh == NULL)
		return -ENOMEM;
	fresh->io.event = on_watched;
	fresh->fd = fd;
	fresh->ready = ready;
	fresh->arg = arg;
	fresh->timer.fire = on_pause_over;
	*watch = fresh; /* before the first event: ready may look for it */
	ret = lw_ctrl_io_add(ctrl, &fresh->io, fd, EPOLLIN);
	if (ret < 0) {
		*watch = NULL;
		free(fresh);
	}
	return ret;
}

void lw_ctrl_watch_pause(struct lw_ctrl *ctrl, struct lw_ctrl_watch *watch, uint32_t ms)
{
	/* Out of the set, since errors and hang-ups are reported whatever one asks for. */
	if (!watch->paused)
		io_ctl(ctrl, EPOLL_CTL_DEL, &watch->io, watch->fd, 0);
	watch->paused = true;
	lw_ctrl_timer_set(ctrl, &watch->timer, lw_now_ns() + (uint64_t)ms * 1000000u);
}

static void unwatch(struct lw_ctrl *ctrl, struct lw_ctrl_watch *watch)
{
	if (!watch->paused)
		io_ctl(ctrl, EPOLL_CTL_DEL, &watch->io, watch->fd, 0);
	lw_ctrl_timer_clear(&watch->timer);
	lw_ctrl_io_kill(ctrl, &watch->io, -1);
}

struct unwatch_job {
	struct lw_ctrl_job job;
	struct lw_ctrl *ctrl;
	struct lw_ctrl_watch *watch;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done;
};

static void run_unwatch(struct lw_ctrl_job *job)
{
	struct unwatch_job *ask = lw_container(job, struct unwatch_job, job);

	unwatch(ask->ctrl, ask->watch);
	pthread_mutex_lock(&ask->lock);
	ask->done = true;
	pthread_cond_signal(&ask->ended); /* under the lock: the waiter's stack goes when it has the lock */
	pthread_mutex_unlock(&ask->lock);
}

void lw_ctrl_unwatch(struct lw_ctrl *ctrl, struct lw_ctrl_watch *watch)
{
	struct unwatch_job ask = {.job.run = run_unwatch, .ctrl = ctrl, .watch = watch};

	if (pthread_equal(pthread_self(), ctrl->thread)) {
		unwatch(ctrl, watch);
		return;
	}
	pthread_mutex_init(&ask.lock, NULL);
	pthread_cond_init(&ask.ended, NULL);
	lw_ctrl_post(ctrl, &ask.job);
	pthread_mutex_lock(&ask.lock);
	while (!ask.done)
		pthread_cond_wait(&ask.ended, &ask.lock);
	pthread_mutex_unlock(&ask.lock);
	pthread_cond_destroy(&ask.ended);
	pthread_mutex_destroy(&ask.lock);
}

/* Life ----------------------------------------------------------------------------------------------------------------
 */

static int start_thread(struct lw_ctrl *ctrl)
{
	sigset_t all, before;
	int ret;

	/* The thread inherits the mask: no signal of the host's ever runs in it. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = pthread_create(&ctrl->thread, NULL, loop, ctrl);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -ret;
}

int lw_ctrl_open(const struct lw_ctrl_opts *opts, struct lw_ctrl **out)
{
	struct lw_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	int ret;

	if (ctrl == NULL)
		return -ENOMEM;
	ctrl->opts = *opts;
	lw_inbox_init(&ctrl->jobs);
	lw_link_init(&ctrl->timers);
	lw_link_init(&ctrl->clients);
	lw_link_init(&ctrl->calls);
	ctrl->next_ns = UINT64_MAX;
	ctrl->wake.event = on_wake;

	ctrl->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (ctrl->epoll_fd < 0) {
		ret = -errno;
		goto free_ctrl;
	}
	ctrl->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (ctrl->wake_fd < 0) {
		ret = -errno;
		goto close_epoll;
	}
	ret = lw_ctrl_io_add(ctrl, &ctrl->wake, ctrl->wake_fd, EPOLLIN);
	if (ret < 0)
		goto close_wake;
	ret = lw_listen_random(&opts->bind, opts->port_min, opts->port_max, BACKLOG, &ctrl->listen_fd, &ctrl->port);
	if (ret < 0)
		goto close_wake;
	ret = lw_ctrl_watch(ctrl, ctrl->listen_fd, lw_ctrl_accept, ctrl, &ctrl->listener);
	if (ret < 0)
		goto close_listen;
	ret = start_thread(ctrl);
	if (ret < 0)
		goto free_listener;
	*out = ctrl;
	return 0;

free_listener:
	free(ctrl->listener);
close_listen:
	close(ctrl->listen_fd);
close_wake:
	close(ctrl->wake_fd);
close_epoll:
	close(ctrl->epoll_fd);
free_ctrl:
	free(ctrl);
	return ret;
}

struct stop_job {
	struct lw_ctrl_job job;
	struct lw_ctrl *ctrl;
};

static void run_stop(struct lw_ctrl_job *job)
{
	lw_container(job, struct stop_job, job)->ctrl->stopping = true;
}

static void run_refuse(struct lw_ctrl_job *job)
{
	lw_ctrl_end_calls(lw_container(job, struct lw_ctrl, refuse), -ESHUTDOWN);
}

void lw_ctrl_forked(struct lw_ctrl *ctrl)
{
	close(ctrl->listen_fd);
	close(ctrl->wake_fd);
	close(ctrl->epoll_fd);
}

void lw_ctrl_refuse(struct lw_ctrl *ctrl)
{
	atomic_store(&ctrl->closing, true);
	ctrl->refuse.run = run_refuse;
	lw_ctrl_post(ctrl, &ctrl->refuse);
}

void lw_ctrl_close(struct lw_ctrl *ctrl)
{
	struct stop_job stop = {.job.run = run_stop, .ctrl = ctrl};

	if (ctrl == NULL)
		return;
	atomic_store(&ctrl->closing, true);
	lw_ctrl_post(ctrl, &stop.job);
	pthread_join(ctrl->thread, NULL);
	free(ctrl->listener);
	shutdown(ctrl->listen_fd, SHUT_RDWR); /* a forked child may have it, too, and peers must not wait for it */
	close(ctrl->listen_fd);
	close(ctrl->wake_fd);
	close(ctrl->epoll_fd);
	free(ctrl);
}

uint16_t lw_ctrl_port(const struct lw_ctrl *ctrl)
{
	return ctrl->port;
}
