/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/ring/channel.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <rte_pause.h>

#include "lib/asym.h"
#include "lib/engine.h"
#include "lib/error.h"

#define SPIN_NS 20000
#define CLOSE_MS 5000

static struct lw_batch *batch_of_node(struct lw_inbox_node *node)
{
	return (struct lw_batch *)(void *)((char *)node - offsetof(struct lw_batch, node));
}

/* The calling thread's own channels: one entry an engine. Kept by tag and generation of the slot, never by pointer
 * alone, since the engine may be closed before the thread ends. */
#define SELF_MAX 8
struct self {
	struct lw_channel *channel;
	uint32_t gen;
};
static _Thread_local struct self selves[SELF_MAX];
static pthread_key_t self_key;
static pthread_once_t self_once = PTHREAD_ONCE_INIT;
static int self_error;

static int close_channel(struct lw_channel *channel);

static bool is_open(const struct self *self)
{
	return self->channel != NULL && atomic_load_explicit(&self->channel->gen, memory_order_acquire) == self->gen;
}

static void self_end(void *arg)
{
	struct self *list = arg;

	for (int i = 0; i < SELF_MAX; i++) {
		struct lw_engine *engine = is_open(&list[i]) ? list[i].channel->engine : NULL;

		if (engine == NULL || lw_engine_enter(engine) != 0)
			continue;
		if (is_open(&list[i]))
			close_channel(list[i].channel);
		lw_engine_leave(engine);
		list[i].channel = NULL;
	}
}

static void self_init(void)
{
	self_error = pthread_key_create(&self_key, self_end);
}

int lw_channel_enter(struct lw_channel *channel)
{
	int error;

	atomic_store_explicit(&channel->inside, 1, memory_order_relaxed);
	lw_fence_light(); /* with the heavy one of lw_engine_close: either it sees us inside, or we see it closing */
	error = lw_engine_check(channel->engine);
	if (error == 0 && (atomic_load_explicit(&channel->gen, memory_order_relaxed) & 1) == 0)
		error = lw_fail_static(-EINVAL, "the channel is closed");
	if (error != 0)
		lw_channel_leave(channel);
	return error;
}

void lw_channel_leave(struct lw_channel *channel)
{
	atomic_store_explicit(&channel->inside, 0, memory_order_release);
}

static void attach(struct lw_worker *worker, struct lw_command *command)
{
	struct lw_channel *channel = (struct lw_channel *)((char *)command - offsetof(struct lw_channel, attach));
	struct lw_intake *intake = &worker->intakes[channel->index];

	*intake = (struct lw_intake){.ring = channel->ring};
	worker->intake_list[worker->intake_count++] = channel->index;
}

/* Takes what is in the ring, then forgets the ring. */
static void detach(struct lw_worker *worker, void *arg)
{
	struct lw_channel *channel = arg;
	struct lw_intake *intake = &worker->intakes[channel->index];

	for (uint32_t i = 0; i < worker->intake_count; i++) {
		if (worker->intake_list[i] != channel->index)
			continue;
		lw_worker_intake_drain(worker, intake);
		worker->intake_list[i] = worker->intake_list[--worker->intake_count];
		break;
	}
}

/* A worker between two passes holds no channel of a batch that ended. */
static void pass_by(struct lw_worker *worker, void *arg)
{
	(void)worker;
	(void)arg;
}

static struct lw_channel *take_slot(struct lw_engine *engine)
{
	struct lw_channel *channel = NULL;

	pthread_mutex_lock(&engine->lock);
	for (uint32_t i = 0; i < engine->config.max_channels && channel == NULL; i++)
		if (!engine->channels[i].used)
			channel = &engine->channels[i];
	if (channel != NULL) {
		channel->used = true;
		engine->live_channels++;
	}
	pthread_mutex_unlock(&engine->lock);
	return channel;
}

static void give_slot(struct lw_channel *channel)
{
	struct lw_engine *engine = channel->engine;

	pthread_mutex_lock(&engine->lock);
	channel->used = false;
	engine->live_channels--;
	pthread_mutex_unlock(&engine->lock);
}

static int open_channel(struct lw_engine *engine, bool self, struct lw_channel **out)
{
	struct lw_channel *channel = take_slot(engine);
	uint32_t size = (uint32_t)engine->config.ring_size;
	int error;

	if (channel == NULL)
		return lw_fail(-ENOSPC, "all %llu channels are in use; close some, or raise the setting max_channels",
			       (unsigned long long)engine->config.max_channels);
	channel->engine = engine;
	channel->index = (uint32_t)(channel - engine->channels);
	channel->self = self;
	channel->home = atomic_fetch_add(&engine->next_worker, 1) % engine->worker_count;
	channel->ready = NULL;
	channel->ready_tail = &channel->ready;
	lw_inbox_init(&channel->ended);
	atomic_store(&channel->watched, 0);
	atomic_store(&channel->event_fd, -1);
	atomic_store(&channel->inside, 0);
	/* The ring stays with the slot: the next channel in it uses it again. */
	if (channel->ring == NULL) {
		struct lw_spsc *ring = aligned_alloc(LW_CACHE_LINE, sizeof(*ring));
		struct lw_spsc_entry *slots = aligned_alloc(LW_CACHE_LINE, size * sizeof(*slots));

		if (ring == NULL || slots == NULL) {
			free(ring);
			free(slots);
			error = lw_fail(-ENOMEM, "no memory for a channel's ring");
			goto fail;
		}
		lw_spsc_init(ring, slots, size);
		channel->ring = ring;
	} else {
		lw_spsc_init(channel->ring, channel->ring->entries, size);
	}
	/* Nobody waits for it: what is pushed before the worker knows the ring is in the ring when it does. */
	channel->attach.run = attach;
	lw_worker_send(&engine->workers[channel->home], &channel->attach);
	atomic_fetch_add_explicit(&channel->gen, 1, memory_order_release);
	*out = channel;
	return 0;
fail:
	give_slot(channel);
	return error;
}

/* Closes what lw_engine_close finds open, too: the workers have ended then. */
void lw_channel_fini(struct lw_channel *channel)
{
	int fd;

	if (channel->engine == NULL)
		return; /* never opened: its descriptor reads 0, which is the host's */
	fd = atomic_exchange(&channel->event_fd, -1);
	if (fd >= 0)
		close(fd);
	if (channel->ring != NULL) {
		free(channel->ring->entries);
		free(channel->ring);
		channel->ring = NULL;
	}
	if ((atomic_load(&channel->gen) & 1) != 0)
		atomic_fetch_add(&channel->gen, 1);
	channel->used = false;
}

static int close_channel(struct lw_channel *channel)
{
	struct lw_engine *engine = channel->engine;
	struct lw_inbox_node *node;
	int error, fd;

	atomic_fetch_add_explicit(&channel->gen, 1, memory_order_release);
	error = lw_worker_call(&engine->workers[channel->home], detach, channel, NULL, CLOSE_MS);
	for (uint32_t i = 0; i < engine->worker_count && error == 0; i++)
		error = lw_worker_call(&engine->workers[i], pass_by, NULL, NULL, CLOSE_MS);
	if (error != 0)
		/* The slot is lost rather than used twice. */
		return lw_fail(error, "a worker did not let the channel go in time; is the process starved of CPU?");
	lw_channel_reap(channel);
	while ((node = channel->ready) != NULL) {
		channel->ready = node->next;
		lw_batch_unqueue(engine, batch_of_node(node));
	}
	fd = atomic_exchange(&channel->event_fd, -1);
	if (fd >= 0)
		close(fd);
	give_slot(channel);
	return 0;
}

int lw_channel_open(struct lw_engine *engine, struct lw_channel **out)
{
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	error = open_channel(engine, false, out);
	lw_engine_leave(engine);
	return error;
}

int lw_channel_self(struct lw_engine *engine, struct lw_channel **out)
{
	struct self *spare = NULL;
	int error;

	if (engine == NULL || out == NULL)
		return lw_fail(-EINVAL, "engine and out must not be NULL");
	for (int i = 0; i < SELF_MAX; i++) {
		if (!is_open(&selves[i])) {
			spare = spare == NULL ? &selves[i] : spare;
			continue;
		}
		if (selves[i].channel->engine == engine) {
			error = lw_engine_check(engine);
			if (error == 0)
				*out = selves[i].channel;
			return error;
		}
	}
	if (spare == NULL)
		return lw_fail(-ENOSPC, "this thread has channels of %d engines already; use lw_channel_open",
			       SELF_MAX);
	pthread_once(&self_once, self_init);
	if (self_error != 0 || pthread_setspecific(self_key, selves) != 0)
		return lw_fail(-ENOMEM, "no thread-specific key is free; use lw_channel_open");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	error = open_channel(engine, true, &spare->channel);
	if (error == 0) {
		spare->gen = atomic_load(&spare->channel->gen);
		*out = spare->channel;
	} else {
		spare->channel = NULL;
	}
	lw_engine_leave(engine);
	return error;
}

int lw_channel_close(struct lw_channel *channel)
{
	struct lw_engine *engine;
	int error;

	if (channel == NULL)
		return lw_fail(-EINVAL, "channel must not be NULL");
	engine = channel->engine; /* the slot may be another's in the end */
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	if (channel->self || (atomic_load(&channel->gen) & 1) == 0)
		error = lw_fail(-EINVAL, "the channel is closed already, or a thread's own (lw_channel_self)");
	else
		error = close_channel(channel);
	lw_engine_leave(engine);
	return error;
}

void lw_channel_reap(struct lw_channel *channel)
{
	struct lw_inbox_node *node = lw_inbox_take_all(&channel->ended), **link;

	while (node != NULL) {
		struct lw_inbox_node *next = node->next;

		node->next = NULL;
		*channel->ready_tail = node;
		channel->ready_tail = &node->next;
		node = next;
	}
	/* Freed ones are nobody's news. */
	channel->ready_tail = &channel->ready;
	for (link = &channel->ready; (node = *link) != NULL;) {
		struct lw_batch *batch = batch_of_node(node);

		if ((atomic_load_explicit(&batch->word, memory_order_acquire) & LW_WORD_FREE) != 0) {
			*link = node->next;
			lw_batch_unqueue(channel->engine, batch);
			continue;
		}
		link = &node->next;
		channel->ready_tail = link;
	}
}

static size_t take_ended(struct lw_channel *channel, struct lw_completion *out, size_t max)
{
	struct lw_engine *engine = channel->engine;
	size_t taken = 0;

	if (channel->ready == NULL && lw_inbox_empty(&channel->ended))
		return 0;
	lw_channel_reap(channel);
	while (taken < max && channel->ready != NULL) {
		struct lw_batch *batch = batch_of_node(channel->ready);
		struct lw_completion *completion = &out[taken];
		uint64_t word;

		channel->ready = channel->ready->next;
		if (channel->ready == NULL)
			channel->ready_tail = &channel->ready;
		*completion = (struct lw_completion){
			.batch = lw_handle((atomic_load_explicit(&batch->gen, memory_order_relaxed) - 1) | 1,
					   engine->tag, (uint32_t)(batch - engine->batches)),
			.user = batch->user,
			.tasks = atomic_load_explicit(&batch->submitted, memory_order_relaxed),
		};
		word = lw_batch_unqueue(engine, batch);
		completion->failed = lw_word_failed(word);
		/* One that was freed is nobody's news; one with tasks again is told when those have ended. */
		taken += (word & LW_WORD_FREE) == 0 && lw_word_pending(word) == 0;
	}
	return taken;
}

void lw_channel_wake(struct lw_channel *channel)
{
	uint64_t one = 1;
	int fd;

	if (atomic_load_explicit(&channel->watched, memory_order_seq_cst) == 0)
		return;
	fd = atomic_load_explicit(&channel->event_fd, memory_order_relaxed);
	if (fd >= 0)
		while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
}

static void drain_event(struct lw_channel *channel)
{
	uint64_t count;
	int fd = atomic_load_explicit(&channel->event_fd, memory_order_relaxed);

	if (fd >= 0)
		while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR)
			;
}

/* The owner, inside. */
static int poll_once(struct lw_channel *channel, struct lw_completion *out, size_t max)
{
	size_t taken;

	if (lw_engine_caller_driven(channel->engine))
		lw_worker_drive(&channel->engine->workers[0]);
	taken = take_ended(channel, out, max);
	/* Only who asked for a descriptor pays for it: make it unreadable once nothing is left, then look again. */
	if (taken < max && atomic_load_explicit(&channel->watched, memory_order_relaxed) != 0) {
		drain_event(channel);
		taken += take_ended(channel, &out[taken], max - taken);
	}
	return (int)taken;
}

int lw_channel_poll(struct lw_channel *channel, struct lw_completion *out, size_t max)
{
	int error;

	if (channel == NULL || out == NULL || max == 0)
		return lw_fail_static(-EINVAL, "channel and out must not be NULL, max not 0");
	error = lw_channel_enter(channel);
	if (error != 0)
		return error;
	error = poll_once(channel, out, max);
	lw_channel_leave(channel);
	return error;
}

static int make_event(struct lw_channel *channel)
{
	int fd = atomic_load(&channel->event_fd);

	if (fd >= 0)
		return fd;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return lw_fail(-errno, "no descriptor for the channel's event; raise the limit of open files");
	atomic_store(&channel->event_fd, fd);
	return fd;
}

int lw_channel_fd(struct lw_channel *channel)
{
	uint64_t one = 1;
	int error, fd;

	if (channel == NULL)
		return lw_fail(-EINVAL, "channel must not be NULL");
	error = lw_channel_enter(channel);
	if (error != 0)
		return error;
	fd = make_event(channel);
	if (fd >= 0) {
		/* What ended before somebody watched: readable at once, the first poll makes it right. */
		atomic_store_explicit(&channel->watched, 1, memory_order_seq_cst);
		while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
	lw_channel_leave(channel);
	return fd;
}

/* Milliseconds to sleep: what is left, rounded up, and at most 100, to see the engine closed by another thread. */
static int nap_ms(uint32_t timeout_ms, uint64_t spent_ns)
{
	uint64_t left_ns = (uint64_t)timeout_ms * 1000000 - spent_ns;

	return timeout_ms == UINT32_MAX || left_ns > 100000000 ? 100 : (int)((left_ns + 999999) / 1000000);
}

static int wait_inside(struct lw_channel *channel, struct lw_completion *out, size_t max, uint32_t timeout_ms)
{
	uint64_t start_ns = lw_now_ns();
	bool was_watched;

	for (;;) {
		struct pollfd event = {.events = POLLIN};
		uint64_t spent_ns;
		int taken = lw_engine_check(channel->engine);

		if (taken == 0)
			taken = poll_once(channel, out, max);
		if (taken != 0)
			return taken;
		spent_ns = lw_now_ns() - start_ns;
		if (timeout_ms != UINT32_MAX && spent_ns >= (uint64_t)timeout_ms * 1000000)
			return 0;
		if (spent_ns < SPIN_NS || lw_engine_caller_driven(channel->engine)) {
			rte_pause();
			continue;
		}
		event.fd = make_event(channel);
		if (event.fd < 0)
			return event.fd;
		was_watched = atomic_exchange_explicit(&channel->watched, 1, memory_order_seq_cst) != 0;
		taken = (int)take_ended(channel, out, max);
		if (taken == 0)
			poll(&event, 1, nap_ms(timeout_ms, spent_ns));
		/* A thread that only slept gives up the descriptor's cost again. */
		if (!was_watched) {
			atomic_store_explicit(&channel->watched, 0, memory_order_seq_cst);
			drain_event(channel);
		}
		if (taken != 0)
			return taken;
	}
}

int lw_channel_wait(struct lw_channel *channel, struct lw_completion *out, size_t max, uint32_t timeout_ms)
{
	int error;

	if (channel == NULL || out == NULL || max == 0)
		return lw_fail_static(-EINVAL, "channel and out must not be NULL, max not 0");
	error = lw_channel_enter(channel);
	if (error != 0)
		return error;
	error = wait_inside(channel, out, max, timeout_ms);
	lw_channel_leave(channel);
	return error;
}
