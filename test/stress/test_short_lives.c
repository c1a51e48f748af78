/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that live for one transfer, engines that live for one, by the thousand: everything completes, and memory,
 * descriptors, threads and mappings are what they were after the first ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"

enum { THREADS = 10000, AT_ONCE = 8, LIVES = 200, BLOCK = 4096, WARM_UP = 5 };

struct level {
	int fds, threads;
	unsigned maps;
	uint64_t rss_kib;
};

static struct level level_now(void)
{
	struct level level = {.fds = test_fds(), .threads = test_threads(), .rss_kib = test_rss_kib()};
	FILE *file = fopen("/proc/self/maps", "r");
	int byte;

	assert_non_null(file);
	while ((byte = getc(file)) != EOF)
		level.maps += byte == '\n';
	fclose(file);
	return level;
}

static void check_flat(struct level before)
{
	struct level now;

	TEST_EVENTUALLY(test_fds() <= before.fds && test_threads() <= before.threads);
	now = level_now();
	print_message("%d KiB and %d mappings more\n", (int)(now.rss_kib - before.rss_kib),
		      (int)(now.maps - before.maps));
	if (TEST_ASAN || TEST_TSAN)
		return;
	assert_true(now.rss_kib < before.rss_kib + before.rss_kib / 20 + 1024);
	assert_true(now.maps < before.maps + before.maps / 20 + 8);
}

struct place {
	pthread_t thread;
	struct lw_engine *engine;
	struct lw_request request;
	_Atomic uint32_t *completed;
};

/* With the channel that it gets by asking for it, and leaves behind. */
static void *live_for_one(void *arg)
{
	struct place *place = arg;
	struct lw_channel *channel;
	struct lw_batch_status status = {.state = LW_PENDING};
	lw_batch_t batch;

	if (lw_channel_self(place->engine, &channel) == 0 && lw_batch_alloc(channel, 1, 0, NULL, &batch) == 0 &&
	    lw_submit(channel, batch, &place->request, 1) == 0 &&
	    lw_batch_wait(place->engine, batch, 20000, &status) == 0 && lw_batch_free(place->engine, batch) == 0 &&
	    status.state == LW_COMPLETED)
		atomic_fetch_add(place->completed, 1);
	return NULL;
}

static void run_threads(struct place *places, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += AT_ONCE) {
		for (int k = 0; k < AT_ONCE; k++)
			assert_int_equal(pthread_create(&places[k].thread, NULL, live_for_one, &places[k]), 0);
		for (int k = 0; k < AT_ONCE; k++)
			pthread_join(places[k].thread, NULL);
	}
}

static void test_10000_threads_with_one_transfer_each_leave_nothing(void **state)
{
	struct lw_engine *engine = test_engine("max_channels=16"), *target = test_engine(NULL);
	unsigned char *local = test_map(AT_ONCE * BLOCK, NULL), *remote = test_map(AT_ONCE * BLOCK, NULL);
	struct place places[AT_ONCE];
	_Atomic uint32_t completed = 0;
	lw_segment_t segment;
	struct level before;

	(void)state;
	test_fill(local, AT_ONCE * BLOCK, test_seed());
	test_register(engine, local, AT_ONCE * BLOCK, LW_ACCESS_LOCAL);
	test_register(target, remote, AT_ONCE * BLOCK, LW_ACCESS_REMOTE);
	segment = test_segment(engine, target);
	for (size_t i = 0; i < AT_ONCE; i++)
		places[i] = (struct place){.engine = engine,
					   .completed = &completed,
					   .request = {.local = local + i * BLOCK,
						       .segment = segment,
						       .offset = (uint64_t)(uintptr_t)remote + i * BLOCK,
						       .length = BLOCK,
						       .op = LW_WRITE}};
	run_threads(places, 100 * AT_ONCE);
	before = level_now();
	completed = 0;
	run_threads(places, THREADS);
	assert_int_equal(completed, THREADS);
	assert_memory_equal(local, remote, AT_ONCE * BLOCK);
	check_flat(before);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(target), 0);
	test_unmap(local, AT_ONCE * BLOCK);
	test_unmap(remote, AT_ONCE * BLOCK);
}

static void live_once(unsigned char *local, unsigned char *remote, struct lw_engine *target, int number)
{
	struct lw_engine *engine = test_engine(NULL);
	struct lw_request request = {.local = local,
				     .segment = test_segment(engine, target),
				     .offset = (uint64_t)(uintptr_t)remote,
				     .length = BLOCK,
				     .op = LW_WRITE};
	struct lw_channel *channel;

	memset(local, number, BLOCK);
	test_register(engine, local, BLOCK, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	assert_int_equal(test_transfer(engine, channel, request).state, LW_COMPLETED);
	assert_memory_equal(local, remote, BLOCK);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_engines_that_live_for_one_transfer_leave_nothing(void **state)
{
	unsigned char *local = test_map(BLOCK, NULL), *remote = test_map(BLOCK, NULL);
	struct lw_engine *target = test_engine(NULL);
	struct level before;

	(void)state;
	test_register(target, remote, BLOCK, LW_ACCESS_REMOTE);
	for (int i = 0; i < WARM_UP; i++)
		live_once(local, remote, target, i);
	TEST_EVENTUALLY(lw_stats_lanes(target, NULL, 0) == 0);
	before = level_now();
	for (int i = 0; i < LIVES; i++)
		live_once(local, remote, target, i);
	TEST_EVENTUALLY(lw_stats_lanes(target, NULL, 0) == 0);
	check_flat(before);
	assert_int_equal(lw_engine_close(target), 0);
	test_unmap(local, BLOCK);
	test_unmap(remote, BLOCK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_10000_threads_with_one_transfer_each_leave_nothing),
		cmocka_unit_test(test_engines_that_live_for_one_transfer_leave_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
