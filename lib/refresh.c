/* SPDX-License-Identifier: Apache-2.0 */
/* A state machine on the control thread:
 *
 *   IDLE --wanted--> PAUSED (until the pace allows it) --> ASKING --answer--> TELLING (each worker) --the last--> IDLE
 */
#include "lib/refresh.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/engine.h"
#include "lib/peer.h"
#include "meta/ctrl.h"

#define PACE_NS UINT64_C(1000000000)

enum state { IDLE, PAUSED, ASKING, TELLING };

struct lw_refresh {
	struct lw_engine *engine;
	struct lw_segment_slot *slot;
	/* any thread */
	atomic_bool wanted; /* its job is posted, and did not run yet */
	_Atomic uint32_t begun;
	_Atomic uint32_t telling; /* workers that are to be told still */
	struct lw_ctrl_job want_job, answer_job, told_job;
	/* from the answer to the answer's job */
	struct lw_view *view; /* NULL: there was no usable answer */
	/* the control thread's; workers read gen and restarted while TELLING */
	enum state state;
	bool again; /* wanted during a round */
	struct lw_ctrl_timer timer;
	_Atomic uint64_t next_ns; /* no round before; workers read it */
	uint32_t gen;             /* of the segment that is asked for */
	struct lw_addrs rpc;
	int via; /* as the slot's */
	bool restarted;
	struct tell_command {
		struct lw_command command;
		struct lw_refresh *refresh;
	} tell[];
};

static void wanted(struct lw_refresh *refresh);

static void told(struct lw_ctrl_job *job)
{
	struct lw_refresh *refresh = lw_container(job, struct lw_refresh, told_job);

	refresh->state = IDLE;
	if (refresh->again)
		wanted(refresh);
}

static void tell_run(struct lw_worker *worker, struct lw_command *command)
{
	struct lw_refresh *refresh = ((struct tell_command *)(void *)command)->refresh;
	uint32_t segment = (uint32_t)(refresh->slot - refresh->engine->segments);

	for (uint32_t pair = 0; pair < LW_PAIRS; pair++) {
		struct lw_path *path = lw_worker_path(worker, segment, pair);

		if (path->gen == refresh->gen)
			lw_path_refreshed(worker, path, atomic_load_explicit(&refresh->begun, memory_order_relaxed),
					  refresh->restarted);
	}
	if (atomic_fetch_sub_explicit(&refresh->telling, 1, memory_order_acq_rel) == 1)
		lw_ctrl_post(refresh->engine->ctrl, &refresh->told_job);
}

static void answered(struct lw_refresh *refresh)
{
	struct lw_engine *engine = refresh->engine;

	refresh->restarted = refresh->view != NULL &&
			     lw_segment_renew(engine, refresh->slot, refresh->gen, refresh->view) == -ESTALE;
	refresh->view = NULL;
	refresh->state = TELLING;
	atomic_store_explicit(&refresh->telling, engine->worker_count, memory_order_relaxed);
	for (uint32_t i = 0; i < engine->worker_count; i++)
		lw_worker_send(&engine->workers[i], &refresh->tell[i].command);
}

static void answer_run(struct lw_ctrl_job *job)
{
	answered(lw_container(job, struct lw_refresh, answer_job));
}

/* On lw-ctrl or lw-store. */
static void on_answer(void *arg, int result, const char *text, size_t length)
{
	struct lw_refresh *refresh = arg;
	struct lw_desc *desc;
	char why[160];

	refresh->view = NULL;
	if (result == 0 && lw_desc_decode(text, length, &desc, why, sizeof(why)) == 0) {
		if (refresh->engine->directory == NULL)
			desc->origin = LW_DESC_PEER;
		if (lw_segment_view(refresh->engine, desc, &refresh->rpc, refresh->via, &refresh->view) != 0)
			refresh->view = NULL;
		lw_desc_free(desc);
	}
	lw_ctrl_post(refresh->engine->ctrl, &refresh->answer_job);
}

static void begin(struct lw_refresh *refresh)
{
	struct lw_engine *engine = refresh->engine;
	char name[LW_NAME_MAX];
	int error = -EBADF;

	refresh->state = ASKING;
	atomic_store_explicit(&refresh->next_ns, lw_now_ns() + PACE_NS, memory_order_relaxed);
	pthread_mutex_lock(&engine->lock);
	refresh->gen = atomic_load(&refresh->slot->gen);
	if ((refresh->gen & 1) != 0) {
		refresh->rpc = refresh->slot->rpc;
		refresh->via = refresh->slot->via;
		memcpy(name, refresh->slot->name, sizeof(name));
		error = 0;
	}
	pthread_mutex_unlock(&engine->lock);
	/* From here on the answer can't be older than this. */
	atomic_fetch_add_explicit(&refresh->begun, 1, memory_order_release);
	if (error == 0)
		error = lw_peer_ask(engine, name, &refresh->rpc, (uint32_t)engine->config.handshake_timeout_ms,
				    on_answer, refresh);
	if (error != 0)
		answered(refresh);
}

static void on_pause_over(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer)
{
	(void)ctrl;
	begin(lw_container(timer, struct lw_refresh, timer));
}

/* On the control thread. */
static void wanted(struct lw_refresh *refresh)
{
	refresh->again = refresh->state == ASKING || refresh->state == TELLING;
	if (refresh->state != IDLE)
		return;
	if (!lw_refresh_rests(refresh, lw_now_ns())) {
		begin(refresh);
		return;
	}
	refresh->state = PAUSED;
	lw_ctrl_timer_set(refresh->engine->ctrl, &refresh->timer,
			  atomic_load_explicit(&refresh->next_ns, memory_order_relaxed));
}

static void want_run(struct lw_ctrl_job *job)
{
	struct lw_refresh *refresh = lw_container(job, struct lw_refresh, want_job);

	atomic_store(&refresh->wanted, false);
	wanted(refresh);
}

bool lw_refresh_rests(const struct lw_refresh *refresh, uint64_t now_ns)
{
	return now_ns < atomic_load_explicit(&refresh->next_ns, memory_order_relaxed);
}

uint32_t lw_refresh_want(struct lw_refresh *refresh)
{
	uint32_t round = atomic_load_explicit(&refresh->begun, memory_order_acquire) + 1;

	if (!atomic_exchange(&refresh->wanted, true))
		lw_ctrl_post(refresh->engine->ctrl, &refresh->want_job);
	return round;
}

struct lw_refresh *lw_refresh_new(struct lw_engine *engine, struct lw_segment_slot *slot)
{
	struct lw_refresh *refresh = calloc(1, sizeof(*refresh) + engine->worker_count * sizeof(refresh->tell[0]));

	if (refresh == NULL)
		return NULL;
	refresh->engine = engine;
	refresh->slot = slot;
	refresh->want_job.run = want_run;
	refresh->answer_job.run = answer_run;
	refresh->told_job.run = told;
	refresh->timer.fire = on_pause_over;
	for (uint32_t i = 0; i < engine->worker_count; i++) {
		refresh->tell[i].refresh = refresh;
		refresh->tell[i].command.run = tell_run;
	}
	return refresh;
}

void lw_refresh_free(struct lw_refresh *refresh)
{
	if (refresh != NULL && refresh->view != NULL)
		lw_segment_view_free(refresh->view);
	free(refresh);
}
