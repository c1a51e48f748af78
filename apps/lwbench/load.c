/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "apps/common/host.h"
#include "apps/common/units.h"
#include "apps/lwbench/load.h"

#define POLL_MAX 64
#define GIVE_UP 32       /* batches that failed one after the other; the reference gives up at the first */
#define GRACE_MS 5000u   /* beyond a request's deadline until we call a batch lost */
#define SPIN_NS 2000000u /* a start nearer than this is waited for by polling */

/* A place for one batch under way. */
struct slot {
	lw_batch_t batch; /* 0: none allocated */
	uint64_t start_ns;
};

/* The state of one run of a thread. */
struct flight {
	struct slot *slots;
	uint32_t *free; /* stack of indexes */
	uint32_t free_count;
	uint32_t failed_batches; /* in a row */
	uint64_t issued;
	bool counted; /* not the warm-up */
};

void load_broken(struct load_thread *thread, const char *call, int rc)
{
	if (!thread->broken)
		fprintf(stderr, "lwbench: thread %u: %s: %s (%s)\n", thread->index, call, lw_last_error(),
			lw_strerror(rc));
	thread->broken = true;
}

void load_count(struct load_thread *thread, uint64_t count)
{
	uint64_t done = atomic_load_explicit(&thread->done, memory_order_relaxed);
	uint64_t bytes = atomic_load_explicit(&thread->bytes, memory_order_relaxed);

	atomic_store_explicit(&thread->done, done + count, memory_order_relaxed);
	atomic_store_explicit(&thread->bytes, bytes + count * thread->load->block, memory_order_relaxed);
}

void load_fill(struct load_thread *thread, uint32_t count, uint8_t op)
{
	const struct load *load = thread->load;
	uint64_t blocks = load->part_bytes / load->block;
	uint64_t part = thread->index * load->part_bytes;
	uint64_t at = thread->cursor;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t offset = part + at * load->block;

		thread->requests[i] = (struct lw_request){.local = load->local + offset,
							  .segment = load->segment,
							  .offset = load->remote + offset,
							  .length = load->block,
							  .op = op,
							  .priority = load->options->priority};
		at = at + 1 < blocks ? at + 1 : 0;
	}
}

/* Hands one batch over. 0; -EAGAIN not now; else the thread is broken. */
static int issue(struct load_thread *thread, struct flight *flight, uint64_t start_ns)
{
	const struct options *options = thread->load->options;
	struct slot *slot = &flight->slots[flight->free[flight->free_count - 1]];
	int rc;

	if (!slot->batch) {
		rc = lw_batch_alloc(thread->channel, options->batch, LW_BATCH_EVENT, slot, &slot->batch);
		if (rc == -ENOBUFS && flight->free_count < options->depth)
			return -EAGAIN;
		if (rc) {
			load_broken(thread, "lw_batch_alloc", rc);
			return rc;
		}
	}
	load_fill(thread, options->batch, options->op);
	slot->start_ns = start_ns;
	rc = lw_submit(thread->channel, slot->batch, thread->requests, options->batch);
	if (rc == -EAGAIN)
		return rc;
	if (rc) {
		load_broken(thread, "lw_submit", rc);
		return rc;
	}
	thread->cursor = (thread->cursor + options->batch) % (thread->load->part_bytes / thread->load->block);
	flight->free_count--;
	flight->issued++;
	return 0;
}

static void finish(struct load_thread *thread, struct flight *flight, const struct lw_completion *done, uint64_t now)
{
	struct slot *slot = done->user;

	if (done->failed) {
		failures_collect(&thread->failures, thread->load->engine, done->batch, done->tasks);
		thread->failed += done->failed;
		if (++flight->failed_batches == (thread->load->options->classic ? 1 : GIVE_UP)) {
			fprintf(stderr, "lwbench: thread %u: %" PRIu32 " batches failed in a row; it stops\n",
				thread->index, flight->failed_batches);
			thread->broken = true;
		}
	} else {
		flight->failed_batches = 0;
		if (flight->counted)
			hist_add(&thread->latency, now > slot->start_ns ? now - slot->start_ns : 0);
	}
	if (flight->counted)
		load_count(thread, done->tasks - done->failed);
	int rc = lw_batch_free(thread->load->engine, done->batch);
	if (rc)
		load_broken(thread, "lw_batch_free", rc);
	slot->batch = 0;
	flight->free[flight->free_count++] = (uint32_t)(slot - flight->slots);
}

/* Takes what ended; waits for it when nothing else is to do before next_ns. */
static void reap(struct load_thread *thread, struct flight *flight, uint64_t now, uint64_t next_ns)
{
	struct lw_completion done[POLL_MAX];
	uint64_t wait_ns = next_ns > now ? next_ns - now : 0;
	int count;

	if (thread->load->options->spin || wait_ns < SPIN_NS) {
		count = lw_channel_poll(thread->channel, done, POLL_MAX);
	} else {
		uint64_t wait_ms = (wait_ns - SPIN_NS) / 1000000 + 1;
		count = lw_channel_wait(thread->channel, done, POLL_MAX, wait_ms < 20 ? (uint32_t)wait_ms : 20);
	}
	if (count < 0) {
		load_broken(thread, "lw_channel_poll", count);
		return;
	}
	now = app_clock_ns();
	for (int i = 0; i < count; i++)
		finish(thread, flight, &done[i], now);
}

/* Sleeps until a start that is due later, when nothing is under way. */
static void sleep_until(uint64_t due_ns)
{
	struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000), .tv_nsec = (long)(due_ns % 1000000000)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
}

/* Moves quota batches, or until end_ns or stop, and waits for those under way. */
static void flight_run(struct load_thread *thread, struct flight *flight, uint64_t quota, uint64_t end_ns)
{
	const struct options *options = thread->load->options;
	const bool paced = flight->counted && options->rate > 0;
	const double interval_ns = paced ? 1e9 * options->batch / options->rate : 0;
	const uint64_t begin_ns = app_clock_ns();
	uint64_t lost_ns = 0;

	flight->issued = 0;
	for (;;) {
		uint64_t now = app_clock_ns();
		uint64_t due_ns = now;
		bool full = false, more;

		for (;;) {
			more = flight->issued < quota && now < end_ns && !thread->broken &&
			       !atomic_load_explicit(&thread->load->stop, memory_order_relaxed);
			if (paced)
				due_ns = begin_ns + (uint64_t)(interval_ns * (double)flight->issued);
			if (!more || full || !flight->free_count || due_ns > now)
				break;
			full = issue(thread, flight, due_ns) != 0;
			if (!paced)
				due_ns = now = app_clock_ns();
		}
		uint32_t busy = options->depth - flight->free_count;
		if (!busy && !more)
			return;
		if (!busy && !full && due_ns > now) {
			sleep_until(due_ns < now + 20000000 ? due_ns : now + 20000000);
			continue;
		}
		/* A completion is what comes next, or makes room; unless a start comes first. */
		uint64_t next_ns = more && !full && flight->free_count ? due_ns : UINT64_MAX;
		reap(thread, flight, now, !full ? next_ns : busy ? now + SPIN_NS : now);
		if (more) {
			lost_ns = 0;
		} else if (!lost_ns) {
			lost_ns = now + ((uint64_t)options->timeout_ms + GRACE_MS) * 1000000;
		} else if (now > lost_ns) {
			fprintf(stderr, "lwbench: thread %u: %" PRIu32 " batches never ended\n", thread->index, busy);
			thread->failed += (uint64_t)busy * options->batch;
			thread->broken = true;
			return;
		}
	}
}

static void transfer(struct load_thread *thread)
{
	const struct options *options = thread->load->options;
	struct flight flight = {.free_count = options->depth};
	uint64_t quota = options->count ? (options->count - 1) / options->batch + 1 : UINT64_MAX;

	flight.slots = calloc(options->depth, sizeof(*flight.slots));
	flight.free = calloc(options->depth, sizeof(*flight.free));
	if (!flight.slots || !flight.free)
		load_broken(thread, "memory", -ENOMEM);
	for (uint32_t i = 0; flight.free && i < options->depth; i++)
		flight.free[i] = options->depth - 1 - i;
	if (!thread->broken)
		flight_run(thread, &flight, options->depth, UINT64_MAX);
	flight.counted = true;
	pthread_barrier_wait(&thread->load->barrier);
	thread->start_ns = app_clock_ns();
	if (!thread->broken)
		flight_run(thread, &flight, quota,
			   options->count ? UINT64_MAX : thread->start_ns + (uint64_t)(options->duration_s * 1e9));
	thread->end_ns = app_clock_ns();
	thread->moving_ns = thread->end_ns - thread->start_ns;
	for (uint32_t i = 0; flight.slots && i < options->depth; i++)
		if (flight.slots[i].batch)
			lw_batch_free(thread->load->engine, flight.slots[i].batch);
	free(flight.free);
	free(flight.slots);
}

static void *thread_main(void *arg)
{
	struct load_thread *thread = arg;
	struct load *load = thread->load;

	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* paced starts come in time */
	if (load->options->pin)
		app_pin(app_cpus() - 1 - thread->index % app_cpus());
	int rc = lw_channel_open(load->engine, &thread->channel);
	if (rc)
		load_broken(thread, "lw_channel_open", rc);
	if (load->options->validate) {
		pthread_barrier_wait(&load->barrier);
		thread->start_ns = app_clock_ns();
		if (!thread->broken)
			validate_loop(thread, load->options->count
						      ? UINT64_MAX
						      : thread->start_ns + (uint64_t)(load->options->duration_s * 1e9));
		thread->end_ns = app_clock_ns();
	} else {
		transfer(thread);
	}
	if (thread->channel)
		lw_channel_close(thread->channel);
	atomic_fetch_sub_explicit(&load->running, 1, memory_order_release);
	return NULL;
}

/* Waits for the threads; tells how it goes. true: a signal ended it. */
static bool watch(struct load *load, struct load_thread *threads)
{
	const struct options *options = load->options;
	uint64_t begin_ns = app_clock_ns(), next_ns = begin_ns + 1000000000, bytes_before = 0, done_before = 0;
	bool ended = false;

	while (atomic_load_explicit(&load->running, memory_order_acquire) > 0) {
		if (app_ended(10)) {
			ended = true;
			atomic_store_explicit(&load->stop, true, memory_order_relaxed);
		}
		uint64_t now = app_clock_ns(), bytes = 0, done = 0;
		if (!options->progress || now < next_ns)
			continue;
		for (uint32_t i = 0; i < options->threads; i++) {
			bytes += atomic_load_explicit(&threads[i].bytes, memory_order_relaxed);
			done += atomic_load_explicit(&threads[i].done, memory_order_relaxed);
		}
		double seconds = (double)(now - next_ns + 1000000000) / 1e9;
		fprintf(stderr, "lwbench: %3.0f s  %8.3f GB/s  %11.0f requests/s\n", (double)(now - begin_ns) / 1e9,
			app_gbps(bytes - bytes_before, seconds), (double)(done - done_before) / seconds);
		bytes_before = bytes;
		done_before = done;
		next_ns = now + 1000000000;
	}
	return ended;
}

int load_run(struct load *load, struct row *row, struct failures *failures, bool *mismatch, bool *broken, bool *ended)
{
	const struct options *options = load->options;
	struct load_thread *threads = calloc(options->threads, sizeof(*threads));
	uint64_t start_ns = UINT64_MAX, end_ns = 0, moving_ns = 0;

	if (!threads)
		return -ENOMEM;
	pthread_barrier_init(&load->barrier, NULL, options->threads + 1);
	atomic_store_explicit(&load->stop, false, memory_order_relaxed);
	atomic_store_explicit(&load->running, options->threads, memory_order_relaxed);
	for (uint32_t i = 0; i < options->threads; i++) {
		threads[i].load = load;
		threads[i].index = i;
		threads[i].requests = calloc(options->batch, sizeof(*threads[i].requests));
		if (!threads[i].requests || pthread_create(&threads[i].thread, NULL, thread_main, &threads[i])) {
			fprintf(stderr, "lwbench: thread %" PRIu32 " can't be started\n", i);
			exit(EXIT_OPEN); /* those that run wait for it at the barrier */
		}
	}
	pthread_barrier_wait(&load->barrier);
	double cpu_s = app_cpu_seconds(NULL, NULL);
	*ended = watch(load, threads);
	for (uint32_t i = 0; i < options->threads; i++) {
		struct load_thread *thread = &threads[i];

		pthread_join(thread->thread, NULL);
		row->requests += atomic_load_explicit(&thread->done, memory_order_relaxed);
		row->bytes += atomic_load_explicit(&thread->bytes, memory_order_relaxed);
		row->failed += thread->failed;
		hist_merge(&row->latency, &thread->latency);
		failures_merge(failures, &thread->failures);
		start_ns = thread->start_ns < start_ns ? thread->start_ns : start_ns;
		end_ns = thread->end_ns > end_ns ? thread->end_ns : end_ns;
		moving_ns = thread->moving_ns > moving_ns ? thread->moving_ns : moving_ns;
		*mismatch |= thread->mismatch;
		*broken |= thread->broken;
		free(thread->requests);
	}
	row->cpu_s = app_cpu_seconds(NULL, NULL) - cpu_s;
	row->elapsed_s = (double)(end_ns - start_ns) / 1e9;
	row->seconds = (double)(options->validate ? moving_ns : end_ns - start_ns) / 1e9;
	pthread_barrier_destroy(&load->barrier);
	free(threads);
	return 0;
}
