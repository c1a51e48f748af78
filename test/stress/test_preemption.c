/* SPDX-License-Identifier: Apache-2.0 */
/* A submitting thread that is stopped anywhere, also inside submit, delays nobody else and loses nothing.
 *
 * Eight threads and the worker share one CPU. A ninth one stops a thread drawn at random, by a signal whose handler
 * waits until it is let go, thousands of times: wherever it was, it stays there while the others go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <lanewise/lanewise.h>

#include "common/engines.h"

#define THREADS 8
#define BATCH 16
#define STOPS 4000

struct submitter {
	struct lw_engine *engine;
	lw_segment_t segment;
	pthread_t thread;
	_Atomic uint64_t rounds; /* batches that came back whole */
	const char *wrong;
};

static _Atomic bool end;
static _Atomic int held[THREADS]; /* 1: to be stopped, 2: stopped, 0: free */
static _Thread_local int self = -1;
static char memory[THREADS][BATCH * 64];

static void stop_here(int number)
{
	int error = errno;
	int one = 1;

	(void)number;
	if (self >= 0 && atomic_compare_exchange_strong(&held[self], &one, 2)) {
		const struct timespec nap = {.tv_nsec = 300000};

		while (atomic_load(&held[self]) == 2)
			nanosleep(&nap, NULL);
	}
	errno = error;
}

static const char *one_round(struct submitter *submitter, struct lw_channel *channel, struct lw_request *requests)
{
	struct lw_batch_status status;
	lw_batch_t batch;
	int error;

	if (lw_batch_alloc(channel, BATCH, 0, NULL, &batch) != 0)
		return "no batch";
	do {
		error = lw_submit(channel, batch, requests, BATCH);
	} while (error == -EAGAIN && (sched_yield(), true));
	if (error != 0)
		return "submit failed";
	if (lw_batch_wait(submitter->engine, batch, 20000, &status) != 0)
		return "a batch did not end";
	if (status.state != LW_COMPLETED || status.done != BATCH)
		return "a task was lost";
	return lw_batch_free(submitter->engine, batch) == 0 ? NULL : "free failed";
}

static void *submit_until_end(void *arg)
{
	struct submitter *submitter = arg;
	struct lw_request requests[BATCH];
	struct lw_channel *channel;

	if (lw_channel_open(submitter->engine, &channel) != 0) {
		submitter->wrong = "no channel";
		return NULL;
	}
	for (int i = 0; i < BATCH; i++)
		requests[i] = (struct lw_request){.local = memory[self] + (ptrdiff_t)i * 64,
						  .segment = submitter->segment,
						  .offset = 4096,
						  .length = 64,
						  .op = LW_WRITE};
	while (!atomic_load(&end) && submitter->wrong == NULL) {
		submitter->wrong = one_round(submitter, channel, requests);
		atomic_fetch_add(&submitter->rounds, 1);
	}
	if (lw_channel_close(channel) != 0 && submitter->wrong == NULL)
		submitter->wrong = "the channel did not close";
	return NULL;
}

struct start {
	struct submitter *submitter;
	int number;
};

static void *enter(void *arg)
{
	struct start *start = arg;

	self = start->number;
	return submit_until_end(start->submitter);
}

static uint64_t all_rounds(struct submitter *submitters)
{
	uint64_t sum = 0;

	for (int i = 0; i < THREADS; i++)
		sum += atomic_load(&submitters[i].rounds);
	return sum;
}

/* Stops threads drawn at random, one at a time, and lets each go after a while; batches that the others finished
 * meanwhile. */
static uint64_t stop_at_random(struct submitter *submitters, uint64_t *sequence, uint64_t *spent_ms)
{
	uint64_t before = all_rounds(submitters), start = test_now_ms();

	for (int i = 0; i < STOPS; i++) {
		uint64_t number = test_random(sequence);
		int victim = (int)(number % THREADS);
		struct timespec nap = {.tv_nsec = (long)(number >> 8 & 0x3ffff)};

		atomic_store(&held[victim], 1);
		pthread_kill(submitters[victim].thread, SIGUSR1);
		for (int k = 0; k < 10000 && atomic_load(&held[victim]) == 1; k++)
			nanosleep(&(const struct timespec){.tv_nsec = 10000}, NULL);
		nanosleep(&nap, NULL);
		atomic_store(&held[victim], 0);
	}
	*spent_ms = test_now_ms() - start;
	return all_rounds(submitters) - before;
}

static void test_submit_stopped_anywhere_others_go_on(void **state)
{
	struct sigaction action = {.sa_handler = stop_here, .sa_flags = SA_RESTART}, old_action;
	struct submitter submitters[THREADS] = {{0}};
	struct start starts[THREADS];
	uint64_t sequence = test_seed(), quiet, stopped, spent_ms, calm_ms = 500;
	struct lw_engine *engine;
	lw_segment_t segment;
	cpu_set_t all, one;

	(void)state;
	sched_getaffinity(0, sizeof(all), &all);
	CPU_ZERO(&one);
	for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	sigaction(SIGUSR1, &action, &old_action);
	engine = test_engine("max_channels=16");
	test_register(engine, memory, sizeof(memory), LW_ACCESS_LOCAL);
	assert_int_equal(lw_segment_open(engine, "null://", 0, &segment), 0);
	for (int i = 0; i < THREADS; i++) {
		submitters[i].engine = engine;
		submitters[i].segment = segment;
		starts[i] = (struct start){.submitter = &submitters[i], .number = i};
		assert_int_equal(pthread_create(&submitters[i].thread, NULL, enter, &starts[i]), 0);
	}
	/* The one who stops the others is not starved by them. */
	sched_setaffinity(0, sizeof(all), &all);
	test_sleep_ms(100);
	quiet = all_rounds(submitters);
	test_sleep_ms((uint32_t)calm_ms);
	quiet = all_rounds(submitters) - quiet;
	stopped = stop_at_random(submitters, &sequence, &spent_ms);
	atomic_store(&end, true);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(submitters[i].thread, NULL);
		if (submitters[i].wrong != NULL)
			fail_msg("thread %d: %s", i, submitters[i].wrong);
	}
	sigaction(SIGUSR1, &old_action, NULL);
	assert_int_equal(lw_engine_close(engine), 0);
	print_message("batches a second: %.0f undisturbed, %.0f while one of %d was stopped, %d times\n",
		      (double)quiet * 1e3 / (double)calm_ms, (double)stopped * 1e3 / (double)spent_ms, THREADS, STOPS);
	/* The CPU is theirs alone: without the stopped one they get at least half as far as with it. */
	assert_true(stopped * calm_ms * 2 >= quiet * spent_ms);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_submit_stopped_anywhere_others_go_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
