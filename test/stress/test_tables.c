/* SPDX-License-Identifier: Apache-2.0 */
/* The tables that workers read under RCU, rebuilt all the time under load: buffers come and go, segments open and
 * close, and whoever uses what stays is not disturbed. Under AddressSanitizer a snapshot freed too soon is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/engines.h"

#define RUN_MS 1500
#define BUFFERS 400
#define BLOCK 64
#define BATCH 32

static _Atomic bool end;
static unsigned char lasting[2][2 * BATCH * BLOCK];
static unsigned char passing[BUFFERS][BLOCK];

struct part {
	struct lw_engine *engine;
	unsigned char *memory;
	uint64_t seed;
	uint64_t rounds;
	const char *wrong;
};

/* Copies within the own segment, and looks at every byte. */
static void *stream(void *arg)
{
	struct part *part = arg;
	struct lw_request requests[BATCH];
	struct lw_batch_status status;
	struct lw_channel *channel;

	if (lw_channel_open(part->engine, &channel) != 0) {
		part->wrong = "no channel";
		return NULL;
	}
	for (size_t i = 0; i < BATCH; i++)
		requests[i] = (struct lw_request){.local = part->memory + i * BLOCK,
						  .segment = LW_SEGMENT_LOCAL,
						  .offset = (uint64_t)(uintptr_t)part->memory + (BATCH + i) * BLOCK,
						  .length = BLOCK,
						  .op = LW_WRITE};
	for (; !atomic_load(&end) && part->wrong == NULL; part->rounds++) {
		lw_batch_t batch;

		memset(part->memory, (int)part->rounds, (size_t)BATCH * BLOCK);
		if (lw_batch_alloc(channel, BATCH, 0, NULL, &batch) != 0 ||
		    lw_submit(channel, batch, requests, BATCH) != 0 ||
		    lw_batch_wait(part->engine, batch, 20000, &status) != 0 || status.state != LW_COMPLETED)
			part->wrong = "a transfer over a buffer that stays did not complete";
		else if (memcmp(part->memory, part->memory + (size_t)BATCH * BLOCK, (size_t)BATCH * BLOCK) != 0)
			part->wrong = "a byte is wrong";
		lw_batch_free(part->engine, batch);
	}
	return NULL;
}

/* Registers and unregisters, one at a time and in lists. */
static void *rebuild_memory(void *arg)
{
	struct part *part = arg;
	lw_buffer_t ids[BUFFERS] = {0};

	for (; !atomic_load(&end) && part->wrong == NULL; part->rounds++) {
		uint64_t dice = test_random(&part->seed);
		size_t first = dice % BUFFERS, count = 1 + (dice >> 32) % 8;
		struct lw_memory list[8];

		count = first + count > BUFFERS ? BUFFERS - first : count;
		for (size_t i = 0; i < count; i++)
			list[i] = (struct lw_memory){
				.addr = passing[first + i], .length = BLOCK, .access = LW_ACCESS_REMOTE};
		if (ids[first] == 0) {
			int error = lw_memory_register(part->engine, list, count, &ids[first]);

			if (error != 0 && error != -EEXIST)
				part->wrong = "register failed";
		} else {
			if (lw_memory_unregister(part->engine, &ids[first], 1, 0) != 0)
				part->wrong = "unregister failed";
			ids[first] = 0;
		}
	}
	return NULL;
}

/* Opens, uses and closes segments, with requests under way or not. */
static void *rebuild_segments(void *arg)
{
	struct part *part = arg;
	struct lw_request request = {.local = part->memory, .length = BLOCK, .op = LW_READ};
	struct lw_channel *channel;

	if (lw_channel_open(part->engine, &channel) != 0) {
		part->wrong = "no channel";
		return NULL;
	}
	for (; !atomic_load(&end) && part->wrong == NULL; part->rounds++) {
		int error = lw_segment_open(part->engine, "null://", 0, &request.segment);
		lw_batch_t batch;

		if (error == -ENOSPC)
			continue; /* closed ones are on their way back */
		if (error != 0 || lw_batch_alloc(channel, 1, 0, NULL, &batch) != 0 ||
		    lw_submit(channel, batch, &request, 1) != 0) {
			part->wrong = "open or submit failed";
			break;
		}
		if (lw_segment_close(part->engine, request.segment) != 0 ||
		    lw_batch_wait(part->engine, batch, 20000, NULL) != 0 || lw_batch_free(part->engine, batch) != 0)
			part->wrong = "a request to a closed segment did not end";
	}
	return NULL;
}

static void test_tables_rebuilt_under_load_disturb_nobody(void **state)
{
	void *(*const bodies[])(void *) = {stream, stream, rebuild_memory, rebuild_segments};
	struct lw_engine *engine = test_engine("drivers=shm,null workers=2");
	struct lw_engine_stats stats = {.size = sizeof(stats)};
	struct part parts[4] = {{0}};
	pthread_t threads[4];

	(void)state;
	test_register(engine, lasting[0], sizeof(lasting[0]), LW_ACCESS_REMOTE);
	test_register(engine, lasting[1], sizeof(lasting[1]), LW_ACCESS_REMOTE);
	for (size_t i = 0; i < 4; i++) {
		parts[i] = (struct part){.engine = engine, .memory = lasting[i % 2], .seed = test_seed() + i};
		assert_int_equal(pthread_create(&threads[i], NULL, bodies[i], &parts[i]), 0);
	}
	test_sleep_ms(RUN_MS);
	atomic_store(&end, true);
	for (size_t i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		if (parts[i].wrong != NULL)
			fail_msg("part %zu: %s: %s", i, parts[i].wrong, lw_last_error());
		assert_true(parts[i].rounds > 10);
	}
	print_message("rounds: streams %llu and %llu, buffers %llu, segments %llu\n",
		      (unsigned long long)parts[0].rounds, (unsigned long long)parts[1].rounds,
		      (unsigned long long)parts[2].rounds, (unsigned long long)parts[3].rounds);
	TEST_EVENTUALLY((lw_stats_engine(engine, &stats), stats.live_segments == 0 && stats.live_batches == 0));
	assert_int_equal(lw_engine_close(engine), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables_rebuilt_under_load_disturb_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
