/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sched/worker.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <rte_pause.h>

#include "lib/asym.h"
#include "lib/engine.h"
#include "lib/error.h"
#include "lib/log.h"

#define EVENTS_MAX 64
#define INTAKE_BURST 512   /* tasks taken from one ring in one pass */
#define TASKS_AHEAD 4      /* tasks whose cache lines are asked for ahead */
#define CLOCK_EVERY 16     /* passes between two looks at the clock: under a microsecond when there is nothing to do */
#define COLD_POLL_NS 50000 /* between two looks at sockets that nothing is expected from */
#define HOT_NS 1000000     /* sockets are asked each pass for so long after they had something */
#define SLEEP_BUSY_MS 2    /* longest sleep while something is under way */
#define SLEEP_IDLE_MS 1000
#define COPY_NS 2000000                /* a copy may take so long before the worker naps beside it */
#define LOOKS_MAX 32                   /* at lanes, in one millisecond */
#define SETTLE_NS UINT64_C(2000000000) /* how long the end waits for what can't be taken back */
#define EAGER_PASSES 48                /* passes without work before the loop begins to pause */
#define YIELD_EVERY 64                 /* passes without work between two sched_yield of an adaptive worker */
#define YIELD_EVERY_BUSY 65536         /* and of a busy one, whose CPU is meant to be its own */

static void drain_wake(struct lw_io *io, uint32_t events)
{
	uint64_t count;

	(void)events;
	while (read(io->fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

static int io_control(struct lw_worker *worker, int what, struct lw_io *io, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = io};

	return epoll_ctl(worker->epoll_fd, what, io->fd, &event) == 0 ? 0 : -errno;
}

int lw_worker_io_add(struct lw_worker *worker, struct lw_io *io, uint32_t events)
{
	int error = io_control(worker, EPOLL_CTL_ADD, io, events);

	if (error == 0)
		worker->ios++;
	return error;
}

void lw_worker_io_del(struct lw_worker *worker, struct lw_io *io)
{
	if (io_control(worker, EPOLL_CTL_DEL, io, 0) == 0)
		worker->ios--;
}

int lw_worker_waker_add(struct lw_worker *worker, struct lw_io *io)
{
	return io_control(worker, EPOLL_CTL_ADD, io, EPOLLIN);
}

void lw_worker_waker_del(struct lw_worker *worker, struct lw_io *io)
{
	io_control(worker, EPOLL_CTL_DEL, io, 0);
}

static size_t lane_bytes(const struct lw_engine *engine)
{
	size_t own = 0;

	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->lane_bytes > own)
			own = lw_drivers[i]->lane_bytes;
	own += sizeof(struct lw_lane);
	return (own + LW_CACHE_LINE - 1) / LW_CACHE_LINE * LW_CACHE_LINE;
}

int lw_worker_init(struct lw_worker *worker, struct lw_engine *engine, uint32_t index)
{
	const struct lw_config *config = &engine->config;
	int error;

	memset(worker, 0, sizeof(*worker));
	worker->engine = engine;
	worker->index = index;
	worker->cpu = -1;
	worker->wake_fd = -1;
	worker->claim_fd = -1;
	worker->tally.batch = LW_INDEX_NONE;
	worker->now_ns = lw_now_ns();
	worker->now_ms = (uint32_t)(worker->now_ns / 1000000);
	worker->ticked_ms = worker->now_ms;
	worker->worked_ns = worker->now_ns;
	TAILQ_INIT(&worker->free_slices);
	TAILQ_INIT(&worker->active);
	TAILQ_INIT(&worker->live);
	LIST_INIT(&worker->dirty);
	lw_inbox_init(&worker->commands);
	lw_bounces_init(&worker->bounces);
	worker->lane_stride = lane_bytes(engine);
	worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	worker->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (worker->epoll_fd < 0 || worker->wake_fd < 0) {
		error = lw_fail(-errno, "no descriptor for a worker: %s; raise the limit of open files",
				strerror(errno));
		goto fail;
	}
	worker->wake_io = (struct lw_io){.fd = worker->wake_fd, .ready = drain_wake};
	error = io_control(worker, EPOLL_CTL_ADD, &worker->wake_io, EPOLLIN);
	if (error != 0)
		goto fail;
	/* calloc leaves untouched pages to the kernel: large tables cost what is used of them. */
	worker->slices = calloc(config->max_slices + LW_PAIRS * config->max_segments, sizeof(*worker->slices));
	worker->segments = (uint32_t)config->max_segments;
	worker->paths = calloc(LW_PAIRS * config->max_segments, sizeof(*worker->paths));
	worker->lanes = aligned_alloc(LW_CACHE_LINE, config->max_lanes * worker->lane_stride);
	worker->free_lanes = calloc(config->max_lanes, sizeof(*worker->free_lanes));
	worker->intakes = calloc(config->max_channels, sizeof(*worker->intakes));
	worker->intake_list = calloc(config->max_channels, sizeof(*worker->intake_list));
	if (worker->slices == NULL || worker->paths == NULL || worker->lanes == NULL || worker->free_lanes == NULL ||
	    worker->intakes == NULL || worker->intake_list == NULL) {
		error = lw_fail(-ENOMEM,
				"no memory for a worker's tables; lower max_slices, max_lanes or max_segments");
		goto fail;
	}
	for (uint64_t i = config->max_lanes; i-- > 0;)
		worker->free_lanes[worker->free_lanes_count++] = (uint32_t)i;
	return 0;
fail:
	lw_worker_fini(worker);
	return error;
}

void lw_worker_fini(struct lw_worker *worker)
{
	if (!lw_bounces_free(&worker->bounces))
		lw_log(LW_LOG_WARNING,
		       "worker %u ends while copies between a GPU and the host, or requests, still use "
		       "bounce buffers: those are left as they are",
		       worker->index);
	free(worker->slices);
	free(worker->paths);
	free(worker->lanes);
	free(worker->free_lanes);
	free(worker->intakes);
	free(worker->intake_list);
	if (worker->epoll_fd >= 0)
		close(worker->epoll_fd);
	if (worker->wake_fd >= 0)
		close(worker->wake_fd);
	worker->epoll_fd = -1;
	worker->wake_fd = -1;
	worker->slices = NULL;
	worker->paths = NULL;
	worker->lanes = NULL;
	worker->free_lanes = NULL;
	worker->intakes = NULL;
	worker->intake_list = NULL;
}

void lw_worker_forked(struct lw_worker *worker)
{
	close(worker->epoll_fd);
	close(worker->wake_fd);
	if (worker->claim_fd >= 0)
		close(worker->claim_fd);
}

/* Begins anew what other threads may be reading at this moment. */
static void lane_show(struct lw_lane *lane, uint32_t driver)
{
	_Atomic uint64_t *counter = (_Atomic uint64_t *)&lane->stats;

	atomic_store_explicit(&lane->state, LW_LANE_DOWN, memory_order_relaxed);
	atomic_store_explicit(&lane->in_use, false, memory_order_relaxed);
	atomic_store_explicit(&lane->served, false, memory_order_relaxed);
	atomic_store_explicit(&lane->shown_driver, driver, memory_order_relaxed);
	atomic_store_explicit(&lane->segment, 0, memory_order_relaxed);
	atomic_store_explicit(&lane->rate, 0, memory_order_relaxed);
	lw_lane_show(lane, "");
	for (size_t i = 0; i < sizeof(lane->stats) / sizeof(*counter); i++)
		atomic_store_explicit(&counter[i], 0, memory_order_relaxed);
}

struct lw_lane *lw_worker_lane_take(struct lw_worker *worker, uint32_t driver)
{
	struct lw_lane *lane;
	uint32_t index;

	if (worker->free_lanes_count == 0)
		return NULL;
	index = worker->free_lanes[--worker->free_lanes_count];
	lane = lw_worker_lane(worker, index);
	memset(lane, 0, offsetof(struct lw_lane, state));
	memset(lane->own, 0, worker->lane_stride - offsetof(struct lw_lane, own));
	lane_show(lane, driver);
	TAILQ_INIT(&lane->inflight);
	lane->worker = worker;
	lane->ops = lw_drivers[driver];
	lane->driver = driver;
	lane->index = index;
	lane->credits = lane->ops->credits;
	lane->last_way = LW_WAY_NONE;
	lane->watch.probe_way = LW_WAY_NONE;
	if (index >= atomic_load_explicit(&worker->lanes_used, memory_order_relaxed))
		atomic_store_explicit(&worker->lanes_used, index + 1, memory_order_release);
	return lane;
}

void lw_worker_lane_give(struct lw_worker *worker, struct lw_lane *lane)
{
	if (lane->dirty)
		LIST_REMOVE(lane, dirty_link);
	lane->dirty = false;
	atomic_store_explicit(&lane->in_use, false, memory_order_release);
	worker->free_lanes[worker->free_lanes_count++] = lane->index;
}

void lw_worker_wake(struct lw_worker *worker)
{
	uint64_t one = 1;

	if (atomic_load_explicit(&worker->sleeping, memory_order_relaxed) == 0)
		return;
	if (atomic_exchange_explicit(&worker->sleeping, 0, memory_order_acq_rel) == 0)
		return;
	while (write(worker->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void lw_worker_send(struct lw_worker *worker, struct lw_command *command)
{
	lw_inbox_push(&worker->commands, &command->node);
	lw_fence_light();
	lw_worker_wake(worker);
}

static bool run_commands(struct lw_worker *worker)
{
	struct lw_inbox_node *node, *next;

	if (lw_inbox_empty(&worker->commands))
		return false;
	for (node = lw_inbox_take_all(&worker->commands); node != NULL; node = next) {
		struct lw_command *command = (struct lw_command *)(void *)node;

		next = node->next;
		command->run(worker, command);
	}
	return true;
}

void lw_worker_later(struct lw_worker *worker, struct lw_command *command)
{
	command->node.next = worker->later;
	worker->later = &command->node;
}

static void run_later(struct lw_worker *worker)
{
	struct lw_inbox_node *node = worker->later, *next;

	worker->later = NULL;
	for (; node != NULL; node = next) {
		struct lw_command *command = (struct lw_command *)(void *)node;

		next = node->next;
		command->run(worker, command);
	}
}

void lw_worker_tally_flush(struct lw_worker *worker)
{
	struct lw_tally *tally = &worker->tally;
	struct lw_engine *engine = worker->engine;

	if (tally->batch == LW_INDEX_NONE)
		return;
	lw_count(&worker->requests, tally->done);
	lw_count(&worker->bytes, tally->bytes);
	if (tally->failed != 0)
		lw_count(&worker->failed, tally->failed);
	lw_batch_ended(engine, &engine->batches[tally->batch], tally->done, tally->failed);
	tally->batch = LW_INDEX_NONE;
}

/* Takes the task that run begins with; run has a copy of what it asks. */
static void take_task(struct lw_worker *worker, const struct lw_run *run, struct lw_task *task)
{
	struct lw_engine *engine = worker->engine;
	struct lw_segment_slot *slot = lw_segment_of(engine, run->segment);
	uint32_t index = (uint32_t)run->segment & LW_HANDLE_INDEX_MASK;
	struct lw_path *path = &worker->paths[index];

	if (run->length == 0) {
		lw_worker_finish(worker, task, run->batch, 0, LW_COMPLETED, LW_REASON_NONE, LW_LANE_NONE);
		return;
	}
	if (slot == NULL) {
		lw_worker_finish(worker, task, run->batch, 0, LW_CANCELED, LW_REASON_SEGMENT_CLOSED, LW_LANE_NONE);
		return;
	}
	if (path->gen == 0)
		lw_path_init(worker, path, index, LW_PAIR(LW_MEM_HOST, LW_MEM_HOST),
			     run->segment == LW_SEGMENT_LOCAL ? 1 : (uint32_t)(run->segment >> 32));
	if (atomic_load_explicit(&worker->devices, memory_order_relaxed) ||
	    atomic_load_explicit(&slot->devices, memory_order_relaxed))
		path = lw_path_of(worker, path, run);
	if (worker->draining || path->staged || !lw_path_now(worker, path, run, task))
		lw_path_take(worker, path, task);
}

/* Steps over the first task of the run and copies what the next one asks. */
static void step(struct lw_engine *engine, struct lw_run *run)
{
	const struct lw_task *task;

	if (--run->count == 0)
		return;
	run->task++;
	/* The next chunk lies elsewhere. */
	if (++run->first % LW_CHUNK_TASKS == 0)
		run->task = (uint32_t)(lw_batch_task(engine, &engine->batches[run->batch], run->first) - engine->tasks);
	task = &engine->tasks[run->task];
	__builtin_prefetch(task + TASKS_AHEAD, 1);
	run->local = task->local;
	run->remote = task->remote;
	run->length = task->length;
	run->segment = task->segment;
	run->op = task->op;
	run->priority = task->priority;
}

static bool take_from(struct lw_worker *worker, struct lw_intake *intake)
{
	struct lw_engine *engine = worker->engine;
	struct lw_run *run = &intake->run;
	uint32_t budget = INTAKE_BURST;

	for (; budget > 0; budget--) {
		if (run->count == 0) {
			if (!lw_spsc_pop(intake->ring, run))
				break;
			if (!run->solo)
				__builtin_prefetch(&engine->tasks[run->task], 1);
		}
		take_task(worker, run, &engine->tasks[run->task]);
		step(engine, run);
	}
	return budget != INTAKE_BURST;
}

void lw_worker_intake_drain(struct lw_worker *worker, struct lw_intake *intake)
{
	struct lw_run *run = &intake->run;
	/* What is in the ring now: one that is filled as fast as it is emptied must not keep us. */
	uint32_t entries = intake->ring->mask + 1;

	worker->draining = true; /* queue them: bytes move in the passes, where the others get their turn */
	for (;;) {
		for (; run->count > 0; step(worker->engine, run))
			take_task(worker, run, &worker->engine->tasks[run->task]);
		if (entries-- == 0 || !lw_spsc_pop(intake->ring, run))
			break;
	}
	worker->draining = false;
}

static void read_clock(struct lw_worker *worker)
{
	worker->clocked = worker->passes;
	worker->now_ns = lw_now_ns();
	worker->now_ms = (uint32_t)(worker->now_ns / 1000000);
}

void lw_worker_clock(struct lw_worker *worker)
{
	if (worker->clocked != worker->passes)
		read_clock(worker);
}

/* Asks the descriptors and tells their owners. Those only take note; they act in their driver's poll, later in the
 * pass, so none of the events here can be for something that another one just closed. */
static bool poll_io(struct lw_worker *worker, int timeout_ms)
{
	struct lw_rcu *rcu = &worker->engine->rcu;
	struct epoll_event events[EVENTS_MAX];
	int count;

	if (timeout_ms != 0)
		lw_rcu_offline(rcu, worker->index);
	count = epoll_wait(worker->epoll_fd, events, EVENTS_MAX, timeout_ms);
	if (timeout_ms != 0) {
		lw_rcu_online(rcu, worker->index);
		read_clock(worker);
	}
	worker->polled_ns = worker->now_ns;
	for (int i = 0; i < count; i++) {
		struct lw_io *io = events[i].data.ptr;

		io->ready(io, events[i].events);
	}
	return count > 0;
}

static void flush_lanes(struct lw_worker *worker)
{
	struct lw_lane *lane;

	while ((lane = LIST_FIRST(&worker->dirty)) != NULL) {
		LIST_REMOVE(lane, dirty_link);
		lane->dirty = false;
		lane->ops->flush(lane);
	}
}

static bool pump_paths(struct lw_worker *worker)
{
	struct lw_path *path, *next;
	bool worked = false;

	for (path = TAILQ_FIRST(&worker->active); path != NULL; path = next) {
		next = TAILQ_NEXT(path, active_link);
		worked |= lw_path_pump(worker, path);
	}
	return worked;
}

static void tick(struct lw_worker *worker)
{
	struct lw_path *path, *next;

	worker->ticked_ms = worker->now_ms;
	worker->looks = LOOKS_MAX;
	for (uint32_t i = 0; i < lw_drivers_count; i++)
		if (worker->driver_context[i] != NULL && lw_drivers[i]->poll != NULL)
			lw_worker_want(worker, i);
	for (path = TAILQ_FIRST(&worker->live); path != NULL; path = next) {
		next = TAILQ_NEXT(path, live_link);
		lw_path_tick(worker, path);
	}
	if (worker->later != NULL)
		run_later(worker);
}

static bool poll_drivers(struct lw_worker *worker)
{
	uint32_t wanted = worker->wanted;
	bool busy = false;

	worker->wanted = 0;
	for (; wanted != 0; wanted &= wanted - 1) {
		uint32_t driver = (uint32_t)__builtin_ctz(wanted);

		if (lw_drivers[driver]->poll(worker->driver_context[driver])) {
			busy = true;
			lw_worker_want(worker, driver);
		}
	}
	return busy;
}

uint32_t lw_worker_pass(struct lw_worker *worker, bool *worked)
{
	struct lw_engine *engine = worker->engine;
	uint64_t before = atomic_load_explicit(&worker->requests, memory_order_relaxed);
	bool busy = false;

	if (++worker->passes % CLOCK_EVERY == 0)
		read_clock(worker);
	if (run_commands(worker)) {
		read_clock(worker); /* they take their time */
		busy = true;
	}
	/* Without a driver's descriptors there is nothing to ask while we are awake. */
	if (worker->ios != 0 && (worker->hot != 0 || worker->now_ns - worker->io_ns < HOT_NS ||
				 worker->now_ns - worker->polled_ns >= COLD_POLL_NS)) {
		if (poll_io(worker, 0)) {
			worker->io_ns = worker->now_ns;
			busy = true;
		}
	}
	if (worker->wanted != 0)
		busy |= poll_drivers(worker);
	if (worker->bounces.copies != 0)
		busy |= lw_bounces_poll(worker);
	for (uint32_t i = 0; i < worker->intake_count; i++)
		busy |= take_from(worker, &worker->intakes[worker->intake_list[i]]);
	lw_worker_tally_flush(worker); /* what ended at once is told at once */
	busy |= pump_paths(worker);
	flush_lanes(worker);
	if (worker->now_ms != worker->ticked_ms)
		tick(worker);
	lw_worker_tally_flush(worker);
	lw_rcu_quiescent(&engine->rcu, worker->index);
	if (busy)
		worker->worked_ns = worker->now_ns;
	*worked = busy;
	return (uint32_t)(atomic_load_explicit(&worker->requests, memory_order_relaxed) - before);
}

/* Something is under way that only a timer may end. */
static bool has_timers(const struct lw_worker *worker)
{
	const struct lw_path *path;

	if (!TAILQ_EMPTY(&worker->active) || worker->bounces.copies != 0)
		return true;
	TAILQ_FOREACH(path, &worker->live, live_link)
	if (path->inflight != 0)
		return true;
	return false;
}

static bool has_input(struct lw_worker *worker)
{
	if (!lw_inbox_empty(&worker->commands))
		return true;
	for (uint32_t i = 0; i < worker->intake_count; i++) {
		struct lw_intake *intake = &worker->intakes[worker->intake_list[i]];

		if (intake->run.count != 0 || !lw_spsc_empty(intake->ring))
			return true;
	}
	return false;
}

bool lw_worker_sleep(struct lw_worker *worker, int timeout_ms)
{
	int longest = worker->bounces.copies != 0 ? 1 : has_timers(worker) ? SLEEP_BUSY_MS : SLEEP_IDLE_MS;
	bool woken = true;

	if (timeout_ms < 0 || timeout_ms > longest)
		timeout_ms = longest;
	atomic_store_explicit(&worker->sleeping, 1, memory_order_relaxed);
	lw_fence_heavy(); /* with the light fence of submit and send: either they see sleeping, or we see their input */
	if (!has_input(worker) && atomic_load_explicit(&worker->stop, memory_order_relaxed) == 0) {
		lw_count(&worker->sleeps, 1);
		woken = poll_io(worker, timeout_ms);
		if (woken)
			worker->io_ns = worker->now_ns;
	}
	atomic_store_explicit(&worker->sleeping, 0, memory_order_relaxed);
	read_clock(worker);
	return woken;
}

/* A copy is about to end, and nobody would wake us. */
static bool copies_soon(const struct lw_worker *worker)
{
	return worker->bounces.copies != 0 && worker->now_ns - worker->bounces.began_ns < COPY_NS;
}

void lw_worker_run(struct lw_worker *worker)
{
	struct lw_engine *engine = worker->engine;
	uint64_t idle_ns = engine->config.idle_us * 1000;
	bool adaptive = engine->config.poll == LW_POLL_ADAPTIVE;
	uint32_t yield_every = adaptive ? YIELD_EVERY : YIELD_EVERY_BUSY;
	uint32_t spins = 0;
	bool worked;

	if (pthread_getcpuclockid(pthread_self(), &worker->cpu_clock) == 0)
		atomic_store_explicit(&worker->running, 1, memory_order_release);
	lw_rcu_online(&engine->rcu, worker->index);
	while (atomic_load_explicit(&worker->stop, memory_order_relaxed) == 0) {
		lw_worker_pass(worker, &worked);
		if (worked) {
			spins = 0;
			continue;
		}
		if (adaptive && worker->now_ns - worker->worked_ns >= idle_ns && !copies_soon(worker)) {
			/* Woken: poll for a while before sleeping again. After a timer's turn one pass is enough. */
			if (lw_worker_sleep(worker, -1))
				worker->worked_ns = worker->now_ns;
			continue;
		}
		/* Somebody else may need this CPU to give us work. The first passes without work go without a pause:
		 * the answer to an answer comes within a microsecond. */
		if (++spins % yield_every == 0)
			sched_yield();
		else if (spins > EAGER_PASSES)
			rte_pause();
	}
	lw_worker_abandon(worker);
	lw_rcu_offline(&engine->rcu, worker->index);
	atomic_store_explicit(&worker->running, 0, memory_order_release);
}

/* Gives drivers with recall the time to get their slices back. */
static void settle_paths(struct lw_worker *worker)
{
	uint64_t end_ns = lw_now_ns() + SETTLE_NS;
	struct lw_path *path, *next;
	bool held;

	do {
		held = false;
		for (path = TAILQ_FIRST(&worker->live); path != NULL; path = next) {
			next = TAILQ_NEXT(path, live_link);
			held |= !lw_path_reset(worker, path, LW_REASON_SHUTDOWN, LW_RESET_NOW);
		}
		if (worker->bounces.copies != 0)
			lw_bounces_poll(worker);
		if (!held && (worker->bounces.copies == 0 || worker->bounces.given_up))
			return;
		for (uint32_t i = 0; i < lw_drivers_count; i++)
			if (held && worker->driver_context[i] != NULL && lw_drivers[i]->poll != NULL)
				lw_drivers[i]->poll(worker->driver_context[i]);
		usleep(100);
	} while (lw_now_ns() < end_ns);
	worker->bounces.given_up = true;
	lw_log(LW_LOG_WARNING,
	       "worker %u ends while the kernel, or a GPU, still carries requests out: it may touch their memory later",
	       worker->index);
}

void lw_worker_abandon(struct lw_worker *worker)
{
	struct lw_engine *engine = worker->engine;
	struct lw_path *path;

	run_commands(worker);
	for (uint32_t i = 0; i < worker->intake_count; i++) {
		struct lw_intake *intake = &worker->intakes[worker->intake_list[i]];

		while (intake->run.count > 0 || lw_spsc_pop(intake->ring, &intake->run)) {
			struct lw_batch *batch = &engine->batches[intake->run.batch];

			for (; intake->run.count > 0; intake->run.count--) {
				struct lw_task *task = lw_batch_task(engine, batch, intake->run.first++);

				lw_worker_finish(worker, task, intake->run.batch, 0, LW_FAILED, LW_REASON_SHUTDOWN,
						 LW_LANE_NONE);
			}
		}
	}
	settle_paths(worker);
	while ((path = TAILQ_FIRST(&worker->live)) != NULL)
		lw_path_reset(worker, path, LW_REASON_SHUTDOWN, LW_RESET_FORCE);
	run_later(worker);
	lw_worker_tally_flush(worker);
}

enum call_state { CALL_WAITING, CALL_DONE, CALL_ABANDONED };

struct call {
	struct lw_command command;
	void (*fn)(struct lw_worker *worker, void *arg);
	void *arg;
	void (*release)(void *arg);
	_Atomic uint32_t state; /* enum call_state; whoever comes second frees the call */
};

static void call_run(struct lw_worker *worker, struct lw_command *command)
{
	struct call *call = (struct call *)(void *)command;

	call->fn(worker, call->arg);
	if (atomic_exchange_explicit(&call->state, CALL_DONE, memory_order_acq_rel) == CALL_ABANDONED) {
		if (call->release != NULL)
			call->release(call->arg);
		free(call);
		return;
	}
	/* The caller may have freed the call already: the address alone is used, and a wake-up too many harms nobody.
	 */
	syscall(SYS_futex, &call->state, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

int lw_worker_call(struct lw_worker *worker, void (*fn)(struct lw_worker *worker, void *arg), void *arg,
		   void (*release)(void *arg), uint32_t timeout_ms)
{
	uint64_t end_ns = lw_now_ns() + (uint64_t)timeout_ms * 1000000;
	struct call *call = malloc(sizeof(*call));

	if (call == NULL)
		return -ENOMEM;
	*call = (struct call){.command.run = call_run, .fn = fn, .arg = arg, .release = release};
	lw_worker_send(worker, &call->command);
	while (atomic_load_explicit(&call->state, memory_order_acquire) != CALL_DONE) {
		struct timespec pause = {.tv_nsec = 1000000};
		uint32_t waiting = CALL_WAITING;

		if (lw_now_ns() >= end_ns && atomic_compare_exchange_strong(&call->state, &waiting, CALL_ABANDONED))
			return -ETIMEDOUT;
		if (!lw_worker_drive(worker))
			syscall(SYS_futex, &call->state, FUTEX_WAIT_PRIVATE, CALL_WAITING, &pause, NULL, 0);
	}
	free(call);
	return 0;
}

bool lw_worker_drive(struct lw_worker *worker)
{
	bool worked;

	if (!lw_engine_caller_driven(worker->engine))
		return false;
	if (atomic_exchange_explicit(&worker->driving, 1, memory_order_acquire) != 0)
		return false;
	lw_rcu_online(&worker->engine->rcu, worker->index);
	read_clock(worker); /* nobody knows how long ago the last call was */
	lw_worker_pass(worker, &worked);
	lw_rcu_offline(&worker->engine->rcu, worker->index);
	atomic_store_explicit(&worker->driving, 0, memory_order_release);
	return true;
}
