/* SPDX-License-Identifier: Apache-2.0 */
/* Batches and channels on the null driver, with a worker and driven by the caller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/engines.h"
#include "common/stall.h"

static char memory[4096];

/* One engine, one channel, the null segment. */
struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	lw_segment_t segment;
};

static struct rig open_rig(const char *extra)
{
	struct rig rig = {.engine = test_engine(extra)};

	assert_int_equal(lw_channel_open(rig.engine, &rig.channel), 0);
	assert_int_equal(lw_segment_open(rig.engine, "null://", 0, &rig.segment), 0);
	test_register(rig.engine, memory, sizeof(memory), 0);
	return rig;
}

static struct lw_engine_stats stats_of(struct rig *rig)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	assert_int_equal(lw_stats_engine(rig->engine, &stats), 0);
	return stats;
}

static void close_rig(struct rig *rig)
{
	struct lw_completion none;

	/* A slot is given back by whoever held it last: a worker that told the end, or the owner when it polls. */
	TEST_EVENTUALLY((lw_channel_poll(rig->channel, &none, 1), stats_of(rig).live_batches == 0));
	assert_int_equal(lw_engine_close(rig->engine), 0);
}

static struct lw_request good(const struct rig *rig)
{
	return (struct lw_request){.local = memory, .segment = rig->segment, .length = 10, .op = LW_WRITE};
}

/* Fails: its local range is not registered. */
static struct lw_request bad(const struct rig *rig)
{
	return (struct lw_request){.local = memory + 4090, .segment = rig->segment, .length = 10, .op = LW_WRITE};
}

static lw_batch_t alloc(const struct rig *rig, uint32_t capacity, uint32_t flags, void *user)
{
	lw_batch_t batch = 0;

	assert_int_equal(lw_batch_alloc(rig->channel, capacity, flags, user, &batch), 0);
	return batch;
}

static void submit_good(const struct rig *rig, lw_batch_t batch, size_t count)
{
	struct lw_request one = good(rig);

	for (size_t i = 0; i < count; i++)
		assert_int_equal(lw_submit(rig->channel, batch, &one, 1), 0);
}

static void test_submit_several_times_numbers_tasks_on(void **state)
{
	struct rig rig = open_rig(NULL);
	struct lw_batch_status status;
	struct lw_task_status task;
	lw_batch_t batch = alloc(&rig, 100, 0, NULL);
	uint64_t sequence = test_seed();
	bool fails[100];
	uint32_t failed = 0;

	(void)state;
	for (size_t i = 0; i < 100;) {
		struct lw_request list[9];
		size_t count = 1 + test_random(&sequence) % 9, k;

		for (k = 0; k < count && i < 100; k++, i++) {
			fails[i] = test_random(&sequence) % 3 == 0;
			failed += fails[i];
			list[k] = fails[i] ? bad(&rig) : good(&rig);
			list[k].length += i % 4;
		}
		assert_int_equal(lw_submit(rig.channel, batch, list, k), 0);
	}
	status = test_wait(rig.engine, batch);
	assert_int_equal(status.tasks, 100);
	assert_int_equal(status.failed, failed);
	assert_int_equal(status.state, failed != 0 ? LW_FAILED : LW_COMPLETED);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(lw_task_status(rig.engine, batch, i, &task), 0);
		assert_int_equal(task.state, fails[i] ? LW_FAILED : LW_COMPLETED);
		assert_int_equal(task.reason, fails[i] ? LW_REASON_LOCAL_RANGE : LW_REASON_NONE);
		assert_int_equal(task.error, fails[i] ? -EFAULT : 0);
		assert_int_equal(task.bytes, fails[i] ? 0 : 10 + i % 4);
	}
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	close_rig(&rig);
}

static void test_batch_of_no_capacity_is_complete_from_the_start(void **state)
{
	struct rig rig = open_rig(NULL);
	lw_batch_t batch = alloc(&rig, 0, LW_BATCH_EVENT, NULL);
	struct lw_request one = good(&rig);
	struct lw_completion done[1];
	struct lw_batch_status status;

	(void)state;
	assert_int_equal(lw_submit(rig.channel, batch, &one, 1), -ENOSPC);
	assert_int_equal(lw_submit(rig.channel, batch, NULL, 0), 0);
	assert_int_equal(lw_batch_wait(rig.engine, batch, UINT32_MAX, &status), 0);
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(status.tasks, 0);
	assert_int_equal(lw_channel_poll(rig.channel, done, 1), 0);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	close_rig(&rig);
}

static void test_submit_of_no_bytes_completes(void **state)
{
	struct rig rig = open_rig(NULL);
	struct lw_request nothing = {.segment = rig.segment, .op = LW_READ};
	struct lw_task_status task = test_transfer(rig.engine, rig.channel, nothing);

	(void)state;
	assert_int_equal(task.state, LW_COMPLETED);
	assert_int_equal(task.bytes, 0);
	assert_int_equal(task.lane, UINT32_MAX);
	close_rig(&rig);
}

/* Around each border of chunks and directories, every task is where its number says. */
static void test_batch_large_ones_keep_every_task_apart(void **state)
{
	static const uint32_t sizes[] = {63, 64, 65, 511, 512, 513, 1024, 65535, 65536, 65537, 200000};
	struct rig rig = open_rig("max_tasks=300000");
	struct lw_request *list = calloc(200000, sizeof(*list));

	(void)state;
	assert_non_null(list);
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		uint32_t size = sizes[s], wrong = 0;
		lw_batch_t batch = alloc(&rig, size, 0, NULL);
		struct lw_batch_status status;
		struct lw_task_status task;

		for (uint32_t i = 0; i < size; i++) {
			list[i] = i % 1009 == 7 ? bad(&rig) : good(&rig);
			list[i].length += i % 64;
		}
		assert_int_equal(lw_submit(rig.channel, batch, list, size - 1), 0);
		assert_int_equal(lw_submit(rig.channel, batch, &list[size - 1], 1), 0);
		assert_int_equal(lw_submit(rig.channel, batch, list, 1), -ENOSPC);
		memset(list, 0xff, size * sizeof(*list));
		status = test_wait(rig.engine, batch);
		assert_int_equal(status.tasks, size);
		for (uint32_t i = 0; i < size; i++) {
			assert_int_equal(lw_task_status(rig.engine, batch, i, &task), 0);
			if (i % 1009 == 7)
				wrong += task.state != LW_FAILED || task.bytes != 0;
			else
				wrong += task.state != LW_COMPLETED || task.bytes != 10 + i % 64;
		}
		assert_int_equal(wrong, 0);
		assert_int_equal(lw_task_status(rig.engine, batch, size, &task), -ERANGE);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	}
	free(list);
	close_rig(&rig);
}

/* Takes batches of that capacity until there are none; gives all back. */
static int count_allocs(const struct rig *rig, uint32_t capacity)
{
	static lw_batch_t batches[4096];
	int count = 0, all;

	while (lw_batch_alloc(rig->channel, capacity, 0, NULL, &batches[count]) == 0)
		count++;
	assert_int_equal(lw_batch_alloc(rig->channel, capacity, 0, NULL, &batches[count]), -ENOBUFS);
	all = count;
	if (count > 0) {
		assert_int_equal(lw_batch_free(rig->engine, batches[count / 2]), 0);
		assert_int_equal(lw_batch_alloc(rig->channel, capacity, 0, NULL, &batches[count / 2]), 0);
	}
	while (count > 0)
		assert_int_equal(lw_batch_free(rig->engine, batches[--count]), 0);
	return all;
}

static void test_batch_alloc_empty_slab_is_enobufs_and_recovers(void **state)
{
	static const uint32_t sizes[] = {1, 64, 65, 512, 513, 640, 1024};
	struct rig rig = open_rig("max_tasks=1024 max_batches=1000");
	int ones = count_allocs(&rig, 1), before[7], after;

	(void)state;
	assert_true(ones >= 16);
	assert_true(count_allocs(&rig, 64) >= 16);
	assert_true(count_allocs(&rig, 512) >= 2);
	assert_true(count_allocs(&rig, 1024) >= 1);
	assert_int_equal(count_allocs(&rig, 0), 1000);
	for (size_t i = 0; i < 7; i++)
		before[i] = count_allocs(&rig, sizes[i]);
	/* A failed one gives back what it had taken already: the counts stay, whatever was tried between. */
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < 7; i++) {
			after = count_allocs(&rig, sizes[i]);
			assert_int_equal(after, before[i]);
		}
	}
	close_rig(&rig);
}

static void test_submit_full_ring_takes_nothing_and_recovers(void **state)
{
	struct rig rig = open_rig("poll=caller ring_size=16");
	lw_batch_t batch = alloc(&rig, 100, 0, NULL);
	struct lw_request one = good(&rig), two[2];
	struct lw_batch_status status;

	(void)state;
	two[0] = two[1] = one;
	submit_good(&rig, batch, 16);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(lw_submit(rig.channel, batch, two, 2), -EAGAIN);
		assert_int_equal(lw_batch_status(rig.engine, batch, &status), 0);
		assert_int_equal(status.tasks, 16);
		assert_int_equal(status.done, 0);
	}
	while (lw_engine_progress(rig.engine) > 0)
		;
	assert_int_equal(lw_submit(rig.channel, batch, two, 2), 0);
	status = test_wait(rig.engine, batch);
	assert_int_equal(status.tasks, 18);
	assert_int_equal(status.bytes, 180);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	close_rig(&rig);
}

static void test_batch_free_pending_is_busy_then_works(void **state)
{
	struct rig rig = open_rig("poll=caller");
	lw_batch_t batch = alloc(&rig, 2, LW_BATCH_EVENT, NULL);
	struct lw_batch_status status;
	struct lw_task_status task;

	(void)state;
	submit_good(&rig, batch, 2);
	assert_int_equal(lw_batch_free(rig.engine, batch), -EBUSY);
	assert_int_equal(lw_task_status(rig.engine, batch, 1, &task), 0);
	assert_int_equal(task.state, LW_PENDING);
	assert_int_equal(lw_batch_status(rig.engine, batch, &status), 0);
	assert_int_equal(status.state, LW_PENDING);
	assert_int_equal(stats_of(&rig).live_batches, 1);
	while (lw_engine_progress(rig.engine) > 0)
		;
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	assert_int_equal(lw_batch_free(rig.engine, batch), -EBADF);
	/* Its completion was queued; nobody hears of it any more. */
	assert_int_equal(lw_channel_poll(rig.channel, &(struct lw_completion){0}, 1), 0);
	close_rig(&rig);
}

/* Who sees the last task end may free at once, though the batch was not counted yet. */
static void test_batch_free_when_the_last_task_is_seen_to_end_works(void **state)
{
	struct rig rig = open_rig(NULL);
	struct lw_task_status task;

	(void)state;
	for (int i = 0; i < 3000; i++) {
		lw_batch_t batch = alloc(&rig, 3, i % 2 != 0 ? LW_BATCH_EVENT : 0, NULL);
		struct lw_request list[3] = {good(&rig), good(&rig), good(&rig)};
		int error;

		assert_int_equal(lw_submit(rig.channel, batch, list, 3), 0);
		for (uint32_t k = 3; k-- > 0;)
			do
				assert_int_equal(lw_task_status(rig.engine, batch, k, &task), 0);
			while (task.state == LW_PENDING);
		error = lw_batch_free(rig.engine, batch);
		assert_int_equal(error, 0);
		assert_int_equal(lw_batch_status(rig.engine, batch, &(struct lw_batch_status){0}), -EBADF);
	}
	TEST_EVENTUALLY(
		(lw_channel_poll(rig.channel, &(struct lw_completion){0}, 1), stats_of(&rig).live_batches == 0));
	close_rig(&rig);
}

static void test_channel_poll_gives_each_end_once_in_order(void **state)
{
	struct rig rig = open_rig("poll=caller");
	struct lw_completion done[8];
	lw_batch_t batches[5];
	int users[5];

	(void)state;
	for (int i = 0; i < 5; i++) {
		batches[i] = alloc(&rig, 10, LW_BATCH_EVENT, &users[i]);
		submit_good(&rig, batches[i], (size_t)i + 1);
		if (i == 3) {
			struct lw_request one = bad(&rig);

			assert_int_equal(lw_submit(rig.channel, batches[i], &one, 1), 0);
		}
		while (lw_engine_progress(rig.engine) > 0)
			;
	}
	assert_int_equal(lw_channel_poll(rig.channel, done, 2), 2);
	assert_int_equal(lw_channel_poll(rig.channel, &done[2], 6), 3);
	assert_int_equal(lw_channel_poll(rig.channel, done + 5, 3), 0);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(done[i].batch, batches[i]);
		assert_ptr_equal(done[i].user, &users[i]);
		assert_int_equal(done[i].tasks, i + 1 + (i == 3));
		assert_int_equal(done[i].failed, i == 3);
	}
	/* More tasks, more ends. */
	submit_good(&rig, batches[0], 1);
	assert_int_equal(lw_channel_poll(rig.channel, done, 8), 1);
	assert_int_equal(done[0].batch, batches[0]);
	assert_int_equal(done[0].tasks, 2);
	/* Freed ones of those that are queued are left out. */
	for (int i = 0; i < 5; i++) {
		submit_good(&rig, batches[i], 1);
		while (lw_engine_progress(rig.engine) > 0)
			;
	}
	for (int i = 0; i < 5; i += 2)
		assert_int_equal(lw_batch_free(rig.engine, batches[i]), 0);
	assert_int_equal(lw_channel_poll(rig.channel, done, 8), 2);
	assert_int_equal(done[0].batch, batches[1]);
	assert_int_equal(done[1].batch, batches[3]);
	assert_int_equal(lw_batch_free(rig.engine, batches[1]), 0);
	assert_int_equal(lw_batch_free(rig.engine, batches[3]), 0);
	close_rig(&rig);
}

static void test_completion_goes_to_the_channel_of_the_batch(void **state)
{
	struct rig rig = open_rig(NULL);
	lw_batch_t batch = alloc(&rig, 1, LW_BATCH_EVENT, NULL);
	struct lw_request one = good(&rig);
	struct lw_channel *other;
	struct lw_completion done[1];

	(void)state;
	assert_int_equal(lw_channel_open(rig.engine, &other), 0);
	assert_int_equal(lw_submit(other, batch, &one, 1), 0);
	assert_int_equal(lw_channel_wait(rig.channel, done, 1, 10000), 1);
	assert_int_equal(done[0].batch, batch);
	assert_int_equal(lw_channel_poll(other, done, 1), 0);
	/* A channel that is closed hears of nothing; its batches live on. */
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	assert_int_equal(lw_batch_alloc(other, 2, LW_BATCH_EVENT, NULL, &batch), 0);
	assert_int_equal(lw_submit(other, batch, &one, 1), 0);
	test_wait(rig.engine, batch);
	assert_int_equal(lw_channel_close(other), 0);
	assert_int_equal(lw_submit(rig.channel, batch, &one, 1), 0);
	assert_int_equal(test_wait(rig.engine, batch).tasks, 2);
	assert_int_equal(lw_channel_poll(rig.channel, done, 1), 0);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	close_rig(&rig);
}

static bool readable(int fd, int timeout_ms)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	return poll(&event, 1, timeout_ms) == 1;
}

static void test_channel_fd_is_readable_while_something_is_queued(void **state)
{
	struct rig rig = open_rig(NULL);
	lw_batch_t first = alloc(&rig, 1, LW_BATCH_EVENT, NULL), second = alloc(&rig, 1000, LW_BATCH_EVENT, NULL);
	struct lw_completion done[2];
	int fd;

	(void)state;
	submit_good(&rig, first, 1); /* before anybody asked for a descriptor */
	test_wait(rig.engine, first);
	fd = lw_channel_fd(rig.channel);
	assert_true(readable(fd, 0));
	TEST_EVENTUALLY(lw_channel_poll(rig.channel, done, 2) == 1);
	assert_false(readable(fd, 0));
	assert_int_equal(lw_channel_fd(rig.channel), fd);
	lw_channel_poll(rig.channel, done, 2);
	for (int i = 0; i < 200; i++) {
		submit_good(&rig, second, 1);
		assert_true(readable(fd, 10000));
		TEST_EVENTUALLY(lw_channel_poll(rig.channel, done, 2) == 1);
		assert_int_equal(done[0].tasks, i + 1);
		assert_false(readable(fd, 0));
	}
	/* Not emptied by a poll that takes less than there is. */
	assert_int_equal(lw_batch_free(rig.engine, first), 0);
	first = alloc(&rig, 1, LW_BATCH_EVENT, NULL);
	submit_good(&rig, first, 1);
	submit_good(&rig, second, 1);
	test_wait(rig.engine, first);
	test_wait(rig.engine, second);
	TEST_EVENTUALLY(lw_channel_poll(rig.channel, done, 1) == 1);
	assert_true(readable(fd, 10000));
	TEST_EVENTUALLY(lw_channel_poll(rig.channel, done, 2) == 1);
	assert_false(readable(fd, 0));
	assert_int_equal(lw_batch_free(rig.engine, first), 0);
	assert_int_equal(lw_batch_free(rig.engine, second), 0);
	close_rig(&rig);
}

/* Waits of these lengths take that long, and not much longer in the best of some tries. */
static const uint32_t wait_times[] = {0, 1, 30, 101};

static void assert_waits(int (*wait)(void *arg, uint32_t timeout_ms), void *arg, int result)
{
	for (size_t i = 0; i < sizeof(wait_times) / sizeof(wait_times[0]); i++) {
		uint64_t best = UINT64_MAX;

		for (int tries = 0; tries < 20 && best > wait_times[i] + 60; tries++) {
			uint64_t begin_ms = test_now_ms(), spent_ms;

			assert_int_equal(wait(arg, wait_times[i]), result);
			spent_ms = test_now_ms() - begin_ms;
			assert_true(spent_ms + 1 >= wait_times[i]);
			best = spent_ms < best ? spent_ms : best;
		}
		assert_in_range(best, 0, wait_times[i] + 60);
	}
}

static int wait_on_channel(void *arg, uint32_t timeout_ms)
{
	struct lw_completion done[1];

	return lw_channel_wait(arg, done, 1, timeout_ms);
}

static void test_channel_wait_ends_with_its_time(void **state)
{
	struct rig rig = open_rig(NULL);

	(void)state;
	assert_waits(wait_on_channel, rig.channel, 0);
	close_rig(&rig);
}

static void *wait_for_one(void *arg)
{
	struct lw_completion done[1];

	return (void *)(uintptr_t)lw_channel_wait(arg, done, 1, UINT32_MAX);
}

static void test_channel_wait_asleep_is_woken_by_an_end(void **state)
{
	struct rig rig = open_rig(NULL);

	(void)state;
	for (int i = 0; i < 20; i++) {
		lw_batch_t batch = alloc(&rig, 1, LW_BATCH_EVENT, NULL);
		struct test_stall stall;
		pthread_t thread;
		void *taken;

		test_stall_begin(&stall, rig.engine, 0);
		submit_good(&rig, batch, 1);
		assert_int_equal(pthread_create(&thread, NULL, wait_for_one, rig.channel), 0);
		test_sleep_ms((uint32_t)i % 4);
		test_stall_end(&stall);
		assert_int_equal(pthread_join(thread, &taken), 0);
		assert_int_equal((uintptr_t)taken, 1);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	}
	close_rig(&rig);
}

struct waiting {
	struct lw_engine *engine;
	lw_batch_t batch;
	_Atomic int error;
};

static int wait_on_batch(void *arg, uint32_t timeout_ms)
{
	struct waiting *waiting = arg;

	return lw_batch_wait(waiting->engine, waiting->batch, timeout_ms, NULL);
}

static void test_batch_wait_ends_with_its_time_or_the_last_task(void **state)
{
	struct rig rig = open_rig(NULL);
	struct waiting waiting = {.engine = rig.engine, .batch = alloc(&rig, 1, 0, NULL)};
	struct lw_batch_status status = {.state = 77};
	struct test_stall stall;

	(void)state;
	test_stall_begin(&stall, rig.engine, 0);
	submit_good(&rig, waiting.batch, 1);
	assert_waits(wait_on_batch, &waiting, -ETIMEDOUT);
	assert_int_equal(lw_batch_wait(rig.engine, waiting.batch, 1, &status), -ETIMEDOUT);
	assert_int_equal(status.state, 77);
	test_stall_end(&stall);
	assert_int_equal(lw_batch_wait(rig.engine, waiting.batch, UINT32_MAX, &status), 0);
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(lw_batch_free(rig.engine, waiting.batch), 0);
	close_rig(&rig);
}

static void *wait_for_batch(void *arg)
{
	struct waiting *waiting = arg;

	atomic_store(&waiting->error, lw_batch_wait(waiting->engine, waiting->batch, UINT32_MAX, NULL));
	return NULL;
}

static void test_batch_wait_by_many_threads_all_wake(void **state)
{
	struct rig rig = open_rig(NULL);
	struct waiting waiting = {.engine = rig.engine, .batch = alloc(&rig, 1, 0, NULL), .error = 77};
	pthread_t threads[4];
	struct test_stall stall;

	(void)state;
	test_stall_begin(&stall, rig.engine, 0);
	submit_good(&rig, waiting.batch, 1);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_for_batch, &waiting), 0);
	test_sleep_ms(5);
	test_stall_end(&stall);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&waiting.error), 0);
	assert_int_equal(lw_batch_free(rig.engine, waiting.batch), 0);
	close_rig(&rig);
}

/* Nothing happens unless somebody drives; every waiting call does. */
static void test_caller_mode_is_driven_by_every_waiting_call(void **state)
{
	struct rig rig = open_rig("poll=caller");
	struct lw_completion done[1];
	lw_batch_t batch = alloc(&rig, 4, LW_BATCH_EVENT, NULL);
	struct lw_batch_status status;
	int threads = test_threads();

	(void)state;
	submit_good(&rig, batch, 1);
	test_sleep_ms(20);
	assert_int_equal(lw_batch_status(rig.engine, batch, &status), 0);
	assert_int_equal(status.done, 0);
	assert_int_equal(lw_engine_progress(rig.engine), 1);
	assert_int_equal(lw_engine_progress(rig.engine), 0);
	assert_int_equal(lw_channel_poll(rig.channel, done, 1), 1);
	submit_good(&rig, batch, 1);
	assert_int_equal(lw_channel_poll(rig.channel, done, 1), 1);
	submit_good(&rig, batch, 1);
	assert_int_equal(lw_channel_wait(rig.channel, done, 1, 10000), 1);
	submit_good(&rig, batch, 1);
	assert_int_equal(lw_batch_wait(rig.engine, batch, 10000, &status), 0);
	assert_int_equal(status.done, 4);
	assert_int_equal(lw_channel_wait(rig.channel, done, 1, 10000), 1);
	assert_int_equal(done[0].tasks, 4);
	assert_int_equal(lw_channel_wait(rig.channel, done, 1, 20), 0);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	assert_int_equal(test_threads(), threads);
	close_rig(&rig);
}

/* After this many cycles of every kind the slabs hold as much as before. */
static void cycle(const char *extra)
{
	struct rig rig = open_rig(extra);
	uint64_t sequence = test_seed();
	uint32_t requests = 0;
	int batches = count_allocs(&rig, 1);

	for (int i = 0; i < 50000; i++) {
		uint64_t dice = test_random(&sequence);
		uint32_t count = (uint32_t)(dice % 4);
		lw_batch_t batch = alloc(&rig, count, dice & 256 ? LW_BATCH_EVENT : 0, NULL);
		struct lw_request list[3] = {good(&rig), dice & 512 ? bad(&rig) : good(&rig), good(&rig)};
		struct lw_completion done[4];

		assert_int_equal(lw_submit(rig.channel, batch, list, count), 0);
		requests += count;
		if (dice & 1024)
			lw_channel_poll(rig.channel, done, 4);
		assert_int_equal(lw_batch_wait(rig.engine, batch, 20000, NULL), 0);
		if (dice & 2048)
			lw_channel_poll(rig.channel, done, 4);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	}
	TEST_EVENTUALLY(
		(lw_channel_poll(rig.channel, &(struct lw_completion){0}, 1), stats_of(&rig).live_batches == 0));
	assert_int_equal(count_allocs(&rig, 1), batches);
	assert_int_equal(stats_of(&rig).requests, requests);
	close_rig(&rig);
}

static void test_slabs_are_flat_after_50000_cycles_with_a_worker(void **state)
{
	(void)state;
	cycle(NULL);
}

static void test_slabs_are_flat_after_50000_cycles_in_caller_mode(void **state)
{
	(void)state;
	cycle("poll=caller");
}

struct churn {
	struct rig *rig;
	uint64_t sequence, ended;
	_Atomic int failures;
};

static void *churn_run(void *arg)
{
	struct churn *churn = arg;
	struct rig mine = *churn->rig;
	int users[16] = {0};
	lw_batch_t held[16] = {0};

	if (lw_channel_self(mine.engine, &mine.channel) != 0)
		return (void *)"no channel";
	for (int i = 0; i < 3000; i++) {
		uint32_t slot = (uint32_t)(test_random(&churn->sequence) % 16), count = 0;
		struct lw_request list[3] = {good(&mine), good(&mine), good(&mine)};
		struct lw_completion done[4];
		int taken;

		if (held[slot] == 0 &&
		    lw_batch_alloc(mine.channel, 3, LW_BATCH_EVENT, &users[slot], &held[slot]) == 0) {
			count = 1 + (uint32_t)(test_random(&churn->sequence) % 3);
			users[slot]++;
			if (lw_submit(mine.channel, held[slot], list, count) != 0)
				return (void *)"submit failed";
		}
		taken = lw_channel_wait(mine.channel, done, 4, count == 0 ? 20 : 0);
		for (int k = 0; k < taken; k++) {
			int *user = done[k].user;

			if (held[user - users] != done[k].batch || --*user != 0)
				return (void *)"an end came twice, or to the wrong one";
			if (lw_batch_free(mine.engine, done[k].batch) != 0)
				return (void *)"free failed";
			held[user - users] = 0;
			churn->ended++;
		}
	}
	for (int i = 0; i < 16; i++)
		if (held[i] != 0 &&
		    (lw_batch_wait(mine.engine, held[i], 20000, NULL) != 0 || lw_batch_free(mine.engine, held[i]) != 0))
			return (void *)"the rest did not end";
	return NULL;
}

static void test_threads_with_their_own_channels_get_each_end_once(void **state)
{
	struct rig rig = open_rig("workers=2");
	struct churn churns[4];
	pthread_t threads[4];
	uint64_t sequence = test_seed();

	(void)state;
	for (int i = 0; i < 4; i++) {
		churns[i] = (struct churn){.rig = &rig, .sequence = test_random(&sequence)};
		assert_int_equal(pthread_create(&threads[i], NULL, churn_run, &churns[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		void *wrong;

		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		if (wrong != NULL)
			fail_msg("%s", (const char *)wrong);
		assert_true(churns[i].ended > 1000);
	}
	/* Channels of threads that ended are closed. */
	assert_int_equal(stats_of(&rig).live_channels, 1);
	TEST_EVENTUALLY(stats_of(&rig).live_batches == 0);
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_submit_several_times_numbers_tasks_on),
		cmocka_unit_test(test_batch_of_no_capacity_is_complete_from_the_start),
		cmocka_unit_test(test_submit_of_no_bytes_completes),
		cmocka_unit_test(test_batch_large_ones_keep_every_task_apart),
		cmocka_unit_test(test_batch_alloc_empty_slab_is_enobufs_and_recovers),
		cmocka_unit_test(test_submit_full_ring_takes_nothing_and_recovers),
		cmocka_unit_test(test_batch_free_pending_is_busy_then_works),
		cmocka_unit_test(test_batch_free_when_the_last_task_is_seen_to_end_works),
		cmocka_unit_test(test_channel_poll_gives_each_end_once_in_order),
		cmocka_unit_test(test_completion_goes_to_the_channel_of_the_batch),
		cmocka_unit_test(test_channel_fd_is_readable_while_something_is_queued),
		cmocka_unit_test(test_channel_wait_ends_with_its_time),
		cmocka_unit_test(test_channel_wait_asleep_is_woken_by_an_end),
		cmocka_unit_test(test_batch_wait_ends_with_its_time_or_the_last_task),
		cmocka_unit_test(test_batch_wait_by_many_threads_all_wake),
		cmocka_unit_test(test_caller_mode_is_driven_by_every_waiting_call),
		cmocka_unit_test(test_slabs_are_flat_after_50000_cycles_with_a_worker),
		cmocka_unit_test(test_slabs_are_flat_after_50000_cycles_in_caller_mode),
		cmocka_unit_test(test_threads_with_their_own_channels_get_each_end_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
