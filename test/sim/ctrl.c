/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of meta/ctrl.c: no thread, but lists of what is to be done, which the schedule works off when it likes.
 * Questions to peers are answered by the simulated ones.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/ctrl.h"
#include "meta/frame.h"
#include "sim/sim.h"

#define QUESTIONS 64

struct question {
	lw_ctrl_done done; /* NULL: free */
	void *arg;
	uint16_t port;
	int type;
	uint64_t at_ns, end_ns;
};

struct lw_ctrl {
	struct lw_inbox jobs;
	struct lw_link timers;
	struct question questions[QUESTIONS];
	bool refuses;
};

static struct lw_ctrl only;

static bool is_due(uint64_t at_ns)
{
	return at_ns <= sim.now_ns;
}

int lw_ctrl_open(const struct lw_ctrl_opts *opts, struct lw_ctrl **out)
{
	(void)opts;
	memset(&only, 0, sizeof(only));
	lw_inbox_init(&only.jobs);
	only.timers.prev = &only.timers;
	only.timers.next = &only.timers;
	*out = &only;
	return 0;
}

void lw_ctrl_forked(struct lw_ctrl *ctrl)
{
	(void)ctrl;
}

static void run_jobs(struct lw_ctrl *ctrl, uint64_t most)
{
	struct lw_inbox_node *node = lw_inbox_take_all(&ctrl->jobs), *next;

	for (; node != NULL && most > 0; node = next, most--) {
		struct lw_ctrl_job *job = lw_container(node, struct lw_ctrl_job, node);

		next = node->next;
		job->run(job);
	}
	for (; node != NULL; node = next) { /* later */
		next = node->next;
		lw_inbox_push(&ctrl->jobs, node);
	}
}

static void end_question(struct question *question, int error, const char *body, size_t size)
{
	lw_ctrl_done done = question->done;

	question->done = NULL;
	done(question->arg, error, body, size);
}

static void end_questions(struct lw_ctrl *ctrl)
{
	for (size_t i = 0; i < QUESTIONS; i++)
		if (ctrl->questions[i].done != NULL)
			end_question(&ctrl->questions[i], -ESHUTDOWN, NULL, 0);
}

void lw_ctrl_refuse(struct lw_ctrl *ctrl)
{
	if (ctrl == NULL)
		return;
	ctrl->refuses = true;
	end_questions(ctrl);
}

void lw_ctrl_close(struct lw_ctrl *ctrl)
{
	if (ctrl == NULL)
		return;
	end_questions(ctrl);
	while (!lw_inbox_empty(&ctrl->jobs))
		run_jobs(ctrl, UINT64_MAX);
}

uint16_t lw_ctrl_port(const struct lw_ctrl *ctrl)
{
	(void)ctrl;
	return 15000;
}

/* What the peer says to a question. */
static int answer(uint16_t port, int type, const char **reply, size_t *size)
{
	struct sim_peer *peer = sim_peer_at(port);

	if (peer == NULL || !peer->alive)
		return -ECONNREFUSED;
	if (!peer->answers)
		return -ETIMEDOUT;
	SIM_CHECK(type == LW_FRAME_METADATA, "a question of type %d", type);
	*reply = sim_peer_document(peer, size);
	return 0;
}

int lw_ctrl_call(struct lw_ctrl *ctrl, const struct lw_addrs *addrs, int type, const char *body, size_t size,
		 uint32_t timeout_ms, char **reply, size_t *reply_size)
{
	const char *said;
	int error;

	(void)body;
	(void)size;
	(void)timeout_ms;
	if (ctrl->refuses)
		return -ESHUTDOWN;
	error = answer(lw_sockaddr_port(&addrs->addr[0]), type, &said, reply_size);
	if (error != 0)
		return error;
	*reply = strdup(said);
	return *reply != NULL ? 0 : -ENOMEM;
}

int lw_ctrl_call_async(struct lw_ctrl *ctrl, const struct lw_addrs *addrs, int type, const char *body, size_t size,
		       uint32_t timeout_ms, lw_ctrl_done done, void *arg)
{
	struct question *question = NULL;

	(void)body;
	(void)size;
	if (ctrl->refuses)
		return -ESHUTDOWN;
	for (size_t i = 0; i < QUESTIONS && question == NULL; i++)
		if (ctrl->questions[i].done == NULL)
			question = &ctrl->questions[i];
	if (question == NULL)
		return -ENOMEM;
	*question = (struct question){.done = done,
				      .arg = arg,
				      .port = lw_sockaddr_port(&addrs->addr[0]),
				      .type = type,
				      .at_ns = sim.now_ns + sim_random(20) * SIM_MS,
				      .end_ns = sim.now_ns + timeout_ms * SIM_MS};
	return 0;
}

static void look_at_questions(struct lw_ctrl *ctrl)
{
	for (size_t i = 0; i < QUESTIONS; i++) {
		struct question *question = &ctrl->questions[i];
		const char *reply = NULL;
		size_t size = 0;
		int error;

		if (question->done == NULL || !is_due(question->at_ns))
			continue;
		error = answer(question->port, question->type, &reply, &size);
		if (error != -ETIMEDOUT || is_due(question->end_ns))
			end_question(question, error, reply, size);
	}
}

static void look_at_timers(struct lw_ctrl *ctrl)
{
	struct lw_link *link, *next;

	for (link = ctrl->timers.next; link != &ctrl->timers; link = next) {
		struct lw_ctrl_timer *timer = lw_container(link, struct lw_ctrl_timer, link);

		next = link->next;
		if (!is_due(timer->at_ns))
			continue;
		lw_ctrl_timer_clear(timer);
		timer->fire(ctrl, timer);
		next = ctrl->timers.next; /* it may have set others */
	}
}

void sim_ctrl_run(void)
{
	struct lw_ctrl *ctrl = &only;

	run_jobs(ctrl, sim.healing || sim_chance(500) ? UINT64_MAX : 1 + sim_random(3));
	look_at_questions(ctrl);
	look_at_timers(ctrl);
}

bool sim_ctrl_idle(void)
{
	return lw_inbox_empty(&only.jobs);
}

int lw_ctrl_watch(struct lw_ctrl *ctrl, int fd, void (*ready)(void *arg), void *arg, struct lw_ctrl_watch **watch)
{
	(void)ctrl;
	(void)fd;
	(void)ready;
	(void)arg;
	(void)watch;
	return -ENOMEM; /* nobody here has descriptors */
}

void lw_ctrl_watch_pause(struct lw_ctrl *ctrl, struct lw_ctrl_watch *watch, uint32_t ms)
{
	(void)ctrl;
	(void)watch;
	(void)ms;
}

void lw_ctrl_unwatch(struct lw_ctrl *ctrl, struct lw_ctrl_watch *watch)
{
	(void)ctrl;
	(void)watch;
}

void lw_ctrl_timer_set(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer, uint64_t at_ns)
{
	lw_ctrl_timer_clear(timer);
	timer->at_ns = at_ns != 0 ? at_ns : 1;
	timer->link.next = ctrl->timers.next;
	timer->link.prev = &ctrl->timers;
	timer->link.next->prev = &timer->link;
	ctrl->timers.next = &timer->link;
}

void lw_ctrl_timer_clear(struct lw_ctrl_timer *timer)
{
	if (timer->at_ns == 0)
		return;
	timer->link.prev->next = timer->link.next;
	timer->link.next->prev = timer->link.prev;
	timer->at_ns = 0;
}

void lw_ctrl_post(struct lw_ctrl *ctrl, struct lw_ctrl_job *job)
{
	lw_inbox_push(&ctrl->jobs, &job->node);
}
