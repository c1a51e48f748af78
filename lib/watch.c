/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/event.h"
#include "meta/ctrl.h"
#include "meta/frame.h"
#include "meta/json.h"

#define GONE_MIN_MS 100
#define GONE_MAX_MS 86400000
#define PROBES 4 /* in the time after which a peer is gone */

/* Belongs to its slot for the engine's life; it is idle when gone_after_ms is 0. */
struct lw_watch {
	struct lw_ctrl_job job;
	struct lw_engine *engine;
	struct lw_segment_slot *slot;
	/* under the engine's lock: what is wanted */
	bool posted; /* the job, which did not run yet */
	uint32_t want_ms, want_gen;
	/* the control thread's */
	struct lw_ctrl_timer timer;
	bool probing; /* a probe is under way, which comes back to next() */
	uint32_t gone_after_ms, gen;
	uint64_t alive_ns; /* when the peer was last known to live: a probe that it answered began then */
	uint64_t probe_ns;
	uint64_t incarnation; /* of the peer; 0: it tells none */
	int error;            /* of the last probe */
};

static void tell_gone(struct lw_watch *watch, int error)
{
	struct lw_engine *engine = watch->engine;
	struct lw_event event = {.kind = LW_EVENT_PEER_GONE, .error = error};
	uint32_t index = (uint32_t)(watch->slot - engine->segments);
	bool there;

	watch->gone_after_ms = 0;
	pthread_mutex_lock(&engine->lock);
	there = atomic_load(&watch->slot->gen) == watch->gen;
	event.segment = lw_handle(watch->gen, engine->tag, index);
	memcpy(event.name, watch->slot->name, sizeof(event.name));
	pthread_mutex_unlock(&engine->lock);
	if (there)
		lw_event_push(engine, &event);
}

/* What an answer says of the peer's life; 0: nothing. */
static uint64_t life_of(const char *body, size_t size)
{
	const struct lw_why nobody = {.size = 0};
	uint64_t incarnation = 0;
	cJSON *root;

	if (lw_json_read(body, size, &root, &nobody) != 0)
		return 0;
	if (lw_json_incarnation(lw_json_field(root, "lw"), &incarnation, &nobody) != 0)
		incarnation = 0;
	cJSON_Delete(root);
	return incarnation;
}

static uint64_t gone_ns(const struct lw_watch *watch)
{
	return watch->alive_ns + (uint64_t)watch->gone_after_ms * 1000000;
}

/* Plans the next probe, unless the peer is gone. */
static void next(struct lw_watch *watch)
{
	uint64_t at_ns = watch->probe_ns + (uint64_t)watch->gone_after_ms * 1000000 / PROBES;

	if (lw_now_ns() >= gone_ns(watch))
		tell_gone(watch, watch->error != 0 ? watch->error : -ETIMEDOUT);
	else
		lw_ctrl_timer_set(watch->engine->ctrl, &watch->timer, at_ns < gone_ns(watch) ? at_ns : gone_ns(watch));
}

static void on_probed(void *arg, int result, const char *body, size_t size)
{
	struct lw_watch *watch = arg;
	uint64_t life = result == 0 ? life_of(body, size) : 0;

	watch->probing = false;
	if (watch->gone_after_ms == 0 || result == -ESHUTDOWN)
		return;
	watch->error = result;
	if (result == 0)
		watch->alive_ns = watch->probe_ns;
	if (life != 0 && watch->incarnation != 0 && life != watch->incarnation)
		tell_gone(watch, -ESTALE);
	else
		next(watch);
}

static void probe(struct lw_watch *watch)
{
	struct lw_engine *engine = watch->engine;
	uint64_t now_ns = lw_now_ns();
	const char *question;
	struct lw_addrs rpc;
	bool there;
	int error;

	pthread_mutex_lock(&engine->lock);
	there = atomic_load(&watch->slot->gen) == watch->gen;
	rpc = watch->slot->rpc;
	pthread_mutex_unlock(&engine->lock);
	if (!there) {
		watch->gone_after_ms = 0;
		return;
	}
	if (now_ns >= gone_ns(watch)) {
		next(watch);
		return;
	}
	watch->probe_ns = now_ns;
	question = watch->incarnation != 0 ? LW_PROBE_LIFE : "{}";
	error = lw_ctrl_call_async(engine->ctrl, &rpc, LW_FRAME_PROBE, question, strlen(question),
				   (uint32_t)((gone_ns(watch) - now_ns) / 1000000) + 1, on_probed, watch);
	watch->probing = error == 0;
	if (error == 0 || error == -ESHUTDOWN)
		return;
	watch->error = error;
	next(watch);
}

static void on_time(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer)
{
	(void)ctrl;
	probe(lw_container(timer, struct lw_watch, timer));
}

/* What is wanted may have changed. */
static void watch_run(struct lw_ctrl_job *job)
{
	struct lw_watch *watch = (struct lw_watch *)(void *)job;
	struct lw_engine *engine = watch->engine;
	const struct lw_view *view;

	pthread_mutex_lock(&engine->lock);
	watch->posted = false;
	watch->gen = watch->want_gen;
	watch->gone_after_ms = atomic_load(&watch->slot->gen) == watch->gen ? watch->want_ms : 0;
	view = atomic_load(&watch->slot->view);
	watch->incarnation = view != NULL ? view->incarnation : 0;
	pthread_mutex_unlock(&engine->lock);
	lw_ctrl_timer_clear(&watch->timer);
	watch->alive_ns = lw_now_ns();
	watch->error = 0;
	if (watch->gone_after_ms != 0 && !watch->probing)
		probe(watch);
}

/* The slot's watch, made if there is none. Under the lock. */
static struct lw_watch *watch_of(struct lw_engine *engine, struct lw_segment_slot *slot)
{
	struct lw_watch *watch = slot->watch;

	if (watch != NULL)
		return watch;
	watch = calloc(1, sizeof(*watch));
	if (watch == NULL)
		return NULL;
	watch->engine = engine;
	watch->slot = slot;
	watch->job.run = watch_run;
	watch->timer.fire = on_time;
	slot->watch = watch;
	return watch;
}

static int want(struct lw_engine *engine, lw_segment_t segment, uint32_t gone_after_ms)
{
	struct lw_segment_slot *slot = lw_segment_of(engine, segment);
	struct lw_watch *watch;

	if (slot == NULL)
		return lw_fail(-EBADF, "the segment handle 0x%llx is stale, made up or another engine's",
			       (unsigned long long)segment);
	if (segment == LW_SEGMENT_LOCAL || slot->rpc.count == 0)
		return lw_fail(-ENOTSUP, "nobody is behind %s who could be gone", slot->name);
	watch = watch_of(engine, slot);
	if (watch == NULL)
		return lw_fail(-ENOMEM, "no memory to watch %s", slot->name);
	watch->want_ms = gone_after_ms;
	watch->want_gen = (uint32_t)(segment >> 32);
	if (!watch->posted)
		lw_ctrl_post(engine->ctrl, &watch->job);
	watch->posted = true;
	return 0;
}

int lw_segment_watch(struct lw_engine *engine, lw_segment_t segment, uint32_t gone_after_ms)
{
	int error;

	if (gone_after_ms != 0 && (gone_after_ms < GONE_MIN_MS || gone_after_ms > GONE_MAX_MS))
		return lw_fail(-EINVAL, "%u ms is not 0, or %d to %d, after which a peer is gone", gone_after_ms,
			       GONE_MIN_MS, GONE_MAX_MS);
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	error = want(engine, segment, gone_after_ms);
	pthread_mutex_unlock(&engine->lock);
	lw_engine_leave(engine);
	return error;
}

void lw_watch_free(struct lw_segment_slot *slot)
{
	free(slot->watch);
	slot->watch = NULL;
}
