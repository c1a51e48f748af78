/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path calls no allocator, no lock and, with drivers whose hardware allows it, not the kernel.
 *
 * Allocator and lock calls are counted by functions of the same names in this program, which the library's calls
 * resolve to. System calls are counted by tracing a child (ptrace), of its main thread and its workers. Both are
 * counted between two marks, after a warm-up. That the counters can count is tested, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lanewise/lanewise.h>

#include "common/counters.h"
#include "common/files.h"
#include "common/traced.h"

#define ROUNDS 2000
#define BATCH 64

/* The engine under test, its memory and its requests. */
struct bench {
	struct lw_engine *engine;
	struct lw_channel *channel;
	char *memory;
	struct lw_request requests[BATCH];
};

static int open_bench(struct bench *bench, const char *segment)
{
	struct lw_setting settings[] = {{"poll", "busy"}, {"drivers", "shm,nvmeof,null"}};
	bool files = segment != NULL && strncmp(segment, "file:", 5) == 0; /* in whole blocks, as is usual with them */
	struct lw_engine_opts opts = {.size = sizeof(opts), .settings = settings, .settings_count = 2};
	struct lw_memory memory = {.length = (size_t)1 << 20, .access = LW_ACCESS_REMOTE};
	lw_segment_t target = LW_SEGMENT_LOCAL;
	lw_buffer_t id;

	bench->memory = malloc(memory.length);
	memory.addr = bench->memory;
	if (bench->memory == NULL || lw_engine_open(&opts, &bench->engine) != 0 ||
	    lw_memory_register(bench->engine, &memory, 1, &id) != 0 ||
	    lw_channel_self(bench->engine, &bench->channel) != 0)
		return -1;
	memset(bench->memory, 7, memory.length);
	if (segment != NULL && lw_segment_open(bench->engine, segment, 0, &target) != 0)
		return -1;
	for (size_t i = 0; i < BATCH; i++)
		bench->requests[i] = (struct lw_request){.local = bench->memory + 4096 * i,
							 .segment = target,
							 .offset = (files ? 0 : (uint64_t)(uintptr_t)bench->memory) +
								   ((size_t)1 << 19) + 4096 * i,
							 .length = files ? 4096 : 64 * (i + 1),
							 .op = i % 2 == 0 ? LW_WRITE : LW_READ};
	return 0;
}

static void close_bench(struct bench *bench)
{
	lw_engine_close(bench->engine);
	free(bench->memory);
}

/* The hot path, whole: allocate, submit, poll by status and by completion, free. The number of rounds that went well.
 */
static int run(struct bench *bench, int rounds)
{
	struct lw_completion completion;
	struct lw_batch_status status;
	struct lw_task_status task;
	int good = 0;

	for (int i = 0; i < rounds; i++) {
		uint32_t flags = i % 2 == 0 ? 0 : LW_BATCH_EVENT;
		lw_batch_t batch;

		if (lw_batch_alloc(bench->channel, BATCH, flags, NULL, &batch) != 0)
			break;
		while (lw_submit(bench->channel, batch, bench->requests, BATCH) == -EAGAIN)
			;
		if (flags != 0)
			while (lw_channel_poll(bench->channel, &completion, 1) == 0)
				;
		do {
			if (lw_batch_status(bench->engine, batch, &status) != 0)
				return good;
		} while (status.state == LW_PENDING);
		lw_task_status(bench->engine, batch, BATCH - 1, &task);
		good += status.state == LW_COMPLETED && task.state == LW_COMPLETED &&
			lw_batch_free(bench->engine, batch) == 0;
	}
	return good;
}

static void skip_if_sanitized(void)
{
#ifdef SANITIZED
	print_message("skipped: a sanitizer has the allocator, and makes system calls of its own\n");
	skip();
#endif
}

static void check_calls(const char *segment, int rounds)
{
	struct bench bench;

	skip_if_sanitized();
	assert_int_equal(open_bench(&bench, segment), 0);
	assert_int_equal(run(&bench, rounds), rounds);
	atomic_store(&allocations, 0);
	atomic_store(&locks, 0);
	atomic_store(&armed, 1);
	assert_int_equal(run(&bench, rounds), rounds);
	atomic_store(&armed, 0);
	assert_int_equal(atomic_load(&allocations), 0);
	assert_int_equal(atomic_load(&locks), 0);
	close_bench(&bench);
}

static void test_hot_path_null_calls_no_allocator_and_no_lock(void **state)
{
	(void)state;
	check_calls("null://", ROUNDS);
}

static void test_hot_path_shm_calls_no_allocator_and_no_lock(void **state)
{
	(void)state;
	check_calls(NULL, ROUNDS);
}

static void test_hot_path_files_calls_no_allocator_and_no_lock(void **state)
{
	char url[128];

	(void)state;
	snprintf(url, sizeof(url), "file:%s", test_file((uint64_t)1 << 20));
	check_calls(url, ROUNDS / 10);
}

static void test_counters_allocation_and_lock_added_are_counted(void **state)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	void *volatile memory;

	(void)state;
	skip_if_sanitized();
	atomic_store(&allocations, 0);
	atomic_store(&locks, 0);
	atomic_store(&armed, 1);
	memory = malloc(1);
	free(memory);
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	atomic_store(&armed, 0);
	assert_int_equal(atomic_load(&allocations), 2);
	assert_int_equal(atomic_load(&locks), 2);
}

struct traced {
	const char *segment;
	int extra; /* system calls that are added, to show that they are counted */
};

/* The child: warm-up, mark, hot path, mark. */
static int child(void *arg)
{
	const struct traced *traced = arg;
	struct bench bench;
	int good;

	if (open_bench(&bench, traced->segment) != 0 || run(&bench, ROUNDS) != ROUNDS)
		return 2;
	traced_mark(true);
	good = run(&bench, ROUNDS);
	for (int i = 0; i < traced->extra; i++)
		getppid();
	traced_mark(false);
	close_bench(&bench);
	return good == ROUNDS ? 0 : 3;
}

static void check_kernel(const char *segment, int extra, int expected)
{
	struct traced traced = {segment, extra};
	int calls;

	skip_if_sanitized();
	calls = traced_calls(child, traced_hot, &traced);
	if (calls == -2) {
		print_message("skipped: this process may not trace another\n");
		skip();
	}
	assert_int_equal(calls, expected);
}

static void test_hot_path_null_makes_no_system_call(void **state)
{
	(void)state;
	check_kernel("null://", 0, 0);
}

static void test_hot_path_shm_makes_no_system_call(void **state)
{
	(void)state;
	check_kernel(NULL, 0, 0);
}

static void test_counters_system_call_added_is_counted(void **state)
{
	(void)state;
	check_kernel("null://", 3, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hot_path_null_makes_no_system_call),
		cmocka_unit_test(test_hot_path_shm_makes_no_system_call),
		cmocka_unit_test(test_counters_system_call_added_is_counted),
		cmocka_unit_test(test_hot_path_null_calls_no_allocator_and_no_lock),
		cmocka_unit_test(test_hot_path_shm_calls_no_allocator_and_no_lock),
		cmocka_unit_test(test_hot_path_files_calls_no_allocator_and_no_lock),
		cmocka_unit_test(test_counters_allocation_and_lock_added_are_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
