/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: which ranges are taken, what a handle is good for, and when memory may be unmapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/stall.h"

static char area[1 << 20];

static int try_register(struct lw_engine *engine, size_t begin, size_t length, lw_buffer_t *id)
{
	struct lw_memory memory = {.addr = area + begin, .length = length, .access = LW_ACCESS_REMOTE};

	return lw_memory_register(engine, &memory, 1, id);
}

static uint32_t live(struct lw_engine *engine)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	assert_int_equal(lw_stats_engine(engine, &stats), 0);
	return stats.live_buffers;
}

static void unregister(struct lw_engine *engine, lw_buffer_t id)
{
	assert_int_equal(lw_memory_unregister(engine, &id, 1, 0), 0);
}

static void test_register_overlaps_are_refused_neighbours_taken(void **state)
{
	static const struct {
		size_t begin, length;
		int error;
	} table[] = {
		{1000, 1000, -EEXIST},                                             /* the same */
		{1000, 1, -EEXIST},                                                /* contained */
		{1500, 10, -EEXIST},   {1999, 1, -EEXIST},   {900, 1200, -EEXIST}, /* containing */
		{1000, 1001, -EEXIST}, {999, 1001, -EEXIST}, {999, 2, -EEXIST},    /* off by one */
		{1999, 2, -EEXIST},    {900, 101, -EEXIST},  {900, 100, 0},        /* side by side */
		{2000, 100, 0},        {999, 1, 0},          {2000, 1, 0},         {0, 1, 0},
	};
	struct lw_engine *engine = test_engine(NULL);
	lw_buffer_t first = 0;

	(void)state;
	assert_int_equal(try_register(engine, 1000, 1000, &first), 0);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		lw_buffer_t id = 77;

		assert_int_equal(try_register(engine, table[i].begin, table[i].length, &id), table[i].error);
		if (table[i].error == 0)
			unregister(engine, id);
		else
			assert_int_equal(id, 77);
		assert_int_equal(live(engine), 1);
	}
	unregister(engine, first);
	assert_int_equal(try_register(engine, 900, 1200, &first), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

/* One of ten is wrong: none is taken, nobody sees any of them, and the others can be registered afterwards. */
static void test_register_list_is_all_or_none(void **state)
{
	struct lw_engine *engine = test_engine("max_buffers=12");
	lw_buffer_t taken = 0;

	(void)state;
	assert_int_equal(try_register(engine, 500000, 1000, &taken), 0);
	for (size_t k = 0; k < 10; k++) {
		for (int kind = 0; kind < 3; kind++) {
			struct lw_segment_range range;
			struct lw_memory list[10];
			lw_buffer_t ids[10], found = 77;
			int error = kind == 2 ? -EINVAL : -EEXIST;

			for (size_t i = 0; i < 10; i++) {
				list[i] = (struct lw_memory){
					.addr = area + i * 2000, .length = 1000, .access = LW_ACCESS_REMOTE};
				ids[i] = 77;
			}
			if (kind == 0)
				list[k].addr = area + 500999; /* what is registered */
			else if (kind == 1)
				list[k].addr = area + (k + 1) % 10 * 2000 + 999; /* another of the list */
			else
				list[k].length = 0;
			assert_int_equal(lw_memory_register(engine, list, 10, ids), error);
			assert_non_null(strstr(lw_last_error(), "buffer"));
			for (size_t i = 0; i < 10; i++) {
				assert_int_equal(ids[i], 77);
				assert_int_equal(lw_memory_find(engine, area + i * 2000, &found), -ENOENT);
			}
			assert_int_equal(live(engine), 1);
			assert_int_equal(lw_segment_ranges(engine, LW_SEGMENT_LOCAL, &range, 1), 1);
			list[k] = (struct lw_memory){.addr = area + k * 2000, .length = 1000};
			assert_int_equal(lw_memory_register(engine, list, 10, ids), 0);
			assert_int_equal(live(engine), 11);
			assert_int_equal(lw_memory_unregister(engine, ids, 10, 0), 0);
		}
	}
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_register_more_than_max_buffers_is_enospc(void **state)
{
	struct lw_engine *engine = test_engine("max_buffers=5");
	struct lw_memory list[6];
	lw_buffer_t ids[6];

	(void)state;
	for (size_t i = 0; i < 6; i++)
		list[i] = (struct lw_memory){.addr = area + i * 10, .length = 10};
	for (int round = 0; round < 3; round++) {
		assert_int_equal(lw_memory_register(engine, list, 6, ids), -ENOSPC);
		assert_non_null(strstr(lw_last_error(), "max_buffers"));
		assert_int_equal(live(engine), 0);
		assert_int_equal(lw_memory_register(engine, list, 5, ids), 0);
		assert_int_equal(lw_memory_register(engine, &list[5], 1, &ids[5]), -ENOSPC);
		assert_int_equal(lw_memory_unregister(engine, &ids[1], 1, 0), 0);
		assert_int_equal(lw_memory_register(engine, &list[5], 1, &ids[1]), 0);
		assert_int_equal(lw_memory_unregister(engine, ids, 5, 0), 0);
	}
	assert_int_equal(lw_engine_close(engine), 0);
}

struct racer {
	struct lw_engine *engine;
	size_t begin;
	int error;
	lw_buffer_t id;
};

static pthread_barrier_t barrier;

static void *race(void *arg)
{
	struct racer *racer = arg;

	pthread_barrier_wait(&barrier);
	racer->error = try_register(racer->engine, racer->begin, 100, &racer->id);
	return NULL;
}

static void test_register_by_16_threads_has_one_winner(void **state)
{
	struct lw_engine *engine = test_engine(NULL);

	(void)state;
	assert_int_equal(pthread_barrier_init(&barrier, NULL, 16), 0);
	for (int round = 0; round < 20; round++) {
		struct racer racers[16];
		pthread_t threads[16];
		lw_buffer_t winner = 0;
		int won = 0;

		for (size_t i = 0; i < 16; i++) {
			racers[i] = (struct racer){.engine = engine, .begin = 1000 + i * 5};
			assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
		}
		for (size_t i = 0; i < 16; i++) {
			pthread_join(threads[i], NULL);
			assert_true(racers[i].error == 0 || racers[i].error == -EEXIST);
			won += racers[i].error == 0;
			winner = racers[i].error == 0 ? racers[i].id : winner;
		}
		assert_int_equal(won, 1);
		assert_int_equal(live(engine), 1);
		unregister(engine, winner);
	}
	pthread_barrier_destroy(&barrier);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_unregister_does_all_it_can_and_reports_the_first_error(void **state)
{
	struct lw_engine *engine = test_engine(NULL);
	lw_buffer_t ids[4], list[6];

	(void)state;
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(try_register(engine, i * 100, 100, &ids[i]), 0);
	memcpy(list, (lw_buffer_t[]){ids[0], 12345, ids[1], ids[2], UINT64_MAX, ids[3]}, sizeof(list));
	assert_int_equal(lw_memory_unregister(engine, list, 6, 0), -EBADF);
	assert_non_null(strstr(lw_last_error(), "handle"));
	assert_int_equal(live(engine), 0);
	assert_int_equal(lw_memory_unregister(engine, ids, 4, 0), -EBADF);
	assert_int_equal(try_register(engine, 0, 400, &ids[0]), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_find_gives_the_buffer_around_an_address(void **state)
{
	struct lw_engine *engine = test_engine(NULL);
	lw_buffer_t ids[3], found;

	(void)state;
	assert_int_equal(try_register(engine, 100, 100, &ids[0]), 0);
	assert_int_equal(try_register(engine, 200, 1, &ids[1]), 0);
	assert_int_equal(try_register(engine, 300, 100, &ids[2]), 0);
	for (size_t i = 0; i < 500; i++) {
		int which = i < 100 || (i > 200 && i < 300) || i >= 400 ? -1 : i < 200 ? 0 : i == 200 ? 1 : 2;

		found = 77;
		assert_int_equal(lw_memory_find(engine, area + i, &found), which < 0 ? -ENOENT : 0);
		assert_int_equal(found, which < 0 ? 77 : ids[which]);
	}
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_handles_are_never_the_same_again(void **state)
{
	struct lw_engine *engine = test_engine(NULL);
	static lw_buffer_t seen[2000];

	(void)state;
	for (size_t i = 0; i < 2000; i++) {
		assert_int_equal(try_register(engine, 0, 100, &seen[i]), 0);
		unregister(engine, seen[i]);
		assert_int_equal(lw_memory_unregister(engine, &seen[i], 1, 0), -EBADF);
	}
	for (size_t i = 0; i < 2000; i++)
		for (size_t k = 0; k < i; k += 1 + i / 50)
			assert_true(seen[i] != seen[k]);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_segment_ranges_lists_own_and_offered_ones(void **state)
{
	static const struct lw_segment_range wanted[] = {{.addr = 100, .length = 50, .access = LW_ACCESS_REMOTE},
							 {.addr = 200, .length = 1, .access = LW_ACCESS_REMOTE_READ},
							 {.addr = 300, .length = 10, .access = LW_ACCESS_LOCAL},
							 {.addr = 310, .length = 10, .access = LW_ACCESS_REMOTE_WRITE}};
	struct lw_engine *engine = test_engine(NULL), *peer = test_engine(NULL);
	struct lw_segment_range own[6], offered[6];
	lw_segment_t segment;
	int shown = 0;

	(void)state;
	for (size_t i = 4; i-- > 0;) /* in any order */
		test_register(engine, area + wanted[i].addr, wanted[i].length, wanted[i].access);
	segment = test_segment(peer, engine);
	memset(own, 0xff, sizeof(own));
	assert_int_equal(lw_segment_ranges(engine, LW_SEGMENT_LOCAL, own, 3), 4);
	assert_int_equal(own[3].addr, UINT64_MAX);
	assert_int_equal(lw_segment_ranges(engine, LW_SEGMENT_LOCAL, own, 6), 4);
	assert_int_equal(own[4].addr, UINT64_MAX);
	assert_int_equal(lw_segment_ranges(peer, segment, offered, 6), 3);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(own[i].addr, (uint64_t)(uintptr_t)area + wanted[i].addr);
		assert_int_equal(own[i].length, wanted[i].length);
		assert_int_equal(own[i].access, wanted[i].access);
		assert_int_equal(own[i].reserved, 0);
		if (wanted[i].access != LW_ACCESS_LOCAL)
			assert_memory_equal(&offered[shown++], &own[i], sizeof(own[i]));
	}
	assert_int_equal(lw_segment_ranges(peer, LW_SEGMENT_LOCAL, own, 6), 0);
	assert_int_equal(lw_engine_close(peer), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

/* A worker that does not answer: the buffer is not offered any more, but its range is not free either. */
static void test_unregister_beside_a_worker_that_stands_still_is_busy(void **state)
{
	struct lw_engine *engine = test_engine(NULL);
	struct test_stall stall;
	lw_buffer_t id, other, found;
	uint64_t begin_ms;

	(void)state;
	assert_int_equal(try_register(engine, 1000, 1000, &id), 0);
	test_stall_begin(&stall, engine, 0);
	for (int i = 0; i < 2; i++) {
		begin_ms = test_now_ms();
		assert_int_equal(lw_memory_unregister(engine, &id, 1, 50), -EBUSY);
		assert_in_range(test_now_ms() - begin_ms, 49, 2000);
		/* Who does not have the handle any more finds it. */
		assert_int_equal(lw_memory_find(engine, area + 1999, &found), 0);
		assert_true(found == id);
		assert_int_equal(lw_memory_find(engine, area + 2000, &found), -ENOENT);
		assert_int_equal(lw_segment_ranges(engine, LW_SEGMENT_LOCAL, NULL, 0), 0);
		assert_int_equal(try_register(engine, 1999, 10, &other), -EEXIST);
		assert_int_equal(try_register(engine, 900, 1200, &other), -EEXIST);
	}
	test_stall_end(&stall);
	unregister(engine, id);
	assert_int_equal(lw_memory_unregister(engine, &id, 1, 0), -EBADF);
	assert_int_equal(lw_memory_find(engine, area + 1000, &found), -ENOENT);
	assert_int_equal(try_register(engine, 900, 1200, &other), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

/* A stream of READs and WRITEs into a mapping of the target that comes and goes; each is unmapped as soon as
 * lw_memory_unregister returned. Any access after that ends the process. */
struct stream {
	struct lw_engine *engine;
	lw_segment_t segment;
	char *local;
	_Atomic uint64_t remote;
	_Atomic int stop;
	_Atomic uint64_t completed, failed;
	const char *wrong;
};

enum { MAPPED = 256 * 1024 };

static void *stream_run(void *arg)
{
	struct stream *stream = arg;
	struct lw_channel *channel;
	lw_batch_t batch;

	if (lw_channel_self(stream->engine, &channel) != 0 || lw_batch_alloc(channel, 0, 0, NULL, &batch) != 0 ||
	    lw_batch_free(stream->engine, batch) != 0)
		stream->wrong = "no channel";
	while (atomic_load(&stream->stop) == 0 && stream->wrong == NULL) {
		uint64_t remote = atomic_load(&stream->remote);
		struct lw_request list[8];
		struct lw_batch_status status;

		for (size_t i = 0; i < 8; i++)
			list[i] = (struct lw_request){.local = stream->local + i * MAPPED / 8,
						      .segment = stream->segment,
						      .offset = remote + i * MAPPED / 8,
						      .length = MAPPED / 8,
						      .op = i % 2};
		if (lw_batch_alloc(channel, 8, 0, NULL, &batch) != 0 || lw_submit(channel, batch, list, 8) != 0 ||
		    lw_batch_wait(stream->engine, batch, 10000, &status) != 0 ||
		    lw_batch_free(stream->engine, batch) != 0) {
			stream->wrong = lw_last_error();
			break;
		}
		atomic_fetch_add(&stream->completed, status.tasks - status.failed);
		atomic_fetch_add(&stream->failed, status.failed);
	}
	return NULL;
}

static void test_unregister_then_unmap_at_once_is_safe_for_the_target(void **state)
{
	struct lw_engine *engine = test_engine("slice_bytes=16384"), *target = test_engine("workers=2");
	struct stream stream = {.engine = engine, .local = malloc(MAPPED)};
	uint64_t sequence = test_seed();
	pthread_t thread;

	(void)state;
	assert_non_null(stream.local);
	test_register(engine, stream.local, MAPPED, LW_ACCESS_LOCAL);
	test_register(target, area, 1, LW_ACCESS_REMOTE);
	stream.segment = test_segment(engine, target);
	atomic_store(&stream.remote, (uint64_t)(uintptr_t)area);
	assert_int_equal(pthread_create(&thread, NULL, stream_run, &stream), 0);
	for (int round = 0; round < 60; round++) {
		char *mapped = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		uint64_t before = atomic_load(&stream.completed);
		lw_buffer_t id;

		assert_ptr_not_equal(mapped, MAP_FAILED);
		id = test_register(target, mapped, MAPPED, LW_ACCESS_REMOTE);
		assert_int_equal(test_segment(engine, target), stream.segment);
		assert_int_equal(lw_segment_close(engine, stream.segment), 0); /* the reference of that */
		atomic_store(&stream.remote, (uint64_t)(uintptr_t)mapped);
		TEST_EVENTUALLY(atomic_load(&stream.completed) > before + 16);
		test_sleep_ms((uint32_t)(test_random(&sequence) % 3));
		unregister(target, id);
		assert_int_equal(munmap(mapped, MAPPED), 0);
	}
	atomic_store(&stream.stop, 1);
	pthread_join(thread, NULL);
	if (stream.wrong != NULL)
		fail_msg("%s", stream.wrong);
	assert_true(atomic_load(&stream.failed) > 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(target), 0);
	free(stream.local);
}

static void test_unregister_then_unmap_at_once_is_safe_for_the_initiator(void **state)
{
	struct lw_engine *engine = test_engine("slice_bytes=16384"), *target = test_engine(NULL);
	struct lw_channel *channel;
	lw_segment_t segment;

	(void)state;
	test_register(target, area, sizeof(area), LW_ACCESS_REMOTE);
	segment = test_segment(engine, target);
	assert_int_equal(lw_channel_open(engine, &channel), 0);
	for (int round = 0; round < 100; round++) {
		char *mapped = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct lw_request list[8];
		lw_buffer_t id;
		lw_batch_t batch;

		assert_ptr_not_equal(mapped, MAP_FAILED);
		id = test_register(engine, mapped, MAPPED, LW_ACCESS_LOCAL);
		assert_int_equal(lw_batch_alloc(channel, 8, 0, NULL, &batch), 0);
		for (size_t i = 0; i < 8; i++)
			list[i] = (struct lw_request){.local = mapped + i * MAPPED / 8,
						      .segment = segment,
						      .offset = (uint64_t)(uintptr_t)area + i * MAPPED / 8,
						      .length = MAPPED / 8,
						      .op = (uint8_t)(i + (size_t)round) % 2};
		assert_int_equal(lw_submit(channel, batch, list, 8), 0);
		for (int spin = 0; spin < round * 100; spin++)
			atomic_signal_fence(memory_order_seq_cst);
		unregister(engine, id);
		assert_int_equal(munmap(mapped, MAPPED), 0);
		test_wait(engine, batch);
		for (uint32_t i = 0; i < 8; i++) {
			struct lw_task_status task;

			assert_int_equal(lw_task_status(engine, batch, i, &task), 0);
			assert_true(task.state == LW_COMPLETED || task.reason == LW_REASON_UNREGISTERED ||
				    task.reason == LW_REASON_LOCAL_RANGE || task.reason == LW_REASON_RESET);
		}
		assert_int_equal(lw_batch_free(engine, batch), 0);
	}
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(target), 0);
}

/* 20,000 buffers, one by one and as a list; a peer opens them all and reaches the last. */
static uint64_t thread_cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* What comes and goes again and again costs what it cost at first: nothing is left behind that has to be gone through.
 */
static void test_register_and_unregister_cost_the_same_in_every_round(void **state)
{
	enum { COUNT = 1000, ROUNDS = 120, BEST_OF = 30 };
	static struct lw_memory list[COUNT];
	static lw_buffer_t ids[COUNT];
	struct lw_engine *engine = test_engine(NULL);
	uint64_t first_ns = UINT64_MAX, last_ns = UINT64_MAX;

	(void)state;
	for (size_t i = 0; i < COUNT; i++)
		list[i] = (struct lw_memory){.addr = area + i * 50, .length = 49, .access = LW_ACCESS_REMOTE};
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t begin_ns = thread_cpu_ns(), took_ns;

		for (size_t i = 0; i < COUNT; i++)
			assert_int_equal(lw_memory_register(engine, &list[i], 1, &ids[i]), 0);
		assert_int_equal(lw_memory_unregister(engine, ids, COUNT, 0), 0);
		took_ns = thread_cpu_ns() - begin_ns;
		if (round < BEST_OF && took_ns < first_ns)
			first_ns = took_ns;
		if (round >= ROUNDS - BEST_OF && took_ns < last_ns)
			last_ns = took_ns;
	}
	print_message("%d buffers: %u us in the first rounds, %u us in the last\n", COUNT, (unsigned)(first_ns / 1000),
		      (unsigned)(last_ns / 1000));
	assert_true(last_ns <= first_ns * 2);
	assert_int_equal(live(engine), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

/* Nobody looks at the pages: a large piece costs what a small one does, and takes no memory. Its end is reached. */
static void test_register_16_gib_in_one_piece_costs_nothing(void **state)
{
	const size_t length = (size_t)16 << 30;
	enum { ROUNDS = 20, LIMIT_US = 2000, MORE_KIB = 16384 };
	uint64_t best_ns = UINT64_MAX, before_kib;
	struct lw_engine *engine, *peer;
	unsigned char *large, byte = 'x';
	struct lw_channel *channel;
	lw_buffer_t id;

	(void)state;
	if (TEST_ASAN) {
		print_message("skipped: AddressSanitizer's shadow of 16 GiB takes minutes\n");
		skip();
	}
	engine = test_engine(NULL);
	peer = test_engine(NULL);
	large = test_map(length, NULL);
	before_kib = test_rss_kib();
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t begin_ns = thread_cpu_ns(), took_ns;

		id = test_register(engine, large, length, LW_ACCESS_REMOTE);
		took_ns = thread_cpu_ns() - begin_ns;
		best_ns = took_ns < best_ns ? took_ns : best_ns;
		if (round < ROUNDS - 1)
			assert_int_equal(lw_memory_unregister(engine, &id, 1, 0), 0);
	}
	assert_in_range(best_ns / 1000, 0, LIMIT_US);
	test_register(peer, &byte, 1, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_open(peer, &channel), 0);
	assert_int_equal(test_transfer(peer, channel,
				       (struct lw_request){.local = &byte,
							   .segment = test_segment(peer, engine),
							   .offset = (uint64_t)(uintptr_t)large + length - 1,
							   .length = 1,
							   .op = LW_WRITE})
				 .state,
			 LW_COMPLETED);
	assert_int_equal(large[length - 1], 'x');
	assert_in_range(test_rss_kib(), 0, before_kib + MORE_KIB);
	assert_int_equal(lw_engine_close(peer), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(large, length);
}

static void test_register_20000_buffers_works(void **state)
{
	enum { COUNT = 20000 };
	static struct lw_memory list[COUNT];
	static lw_buffer_t ids[COUNT];
	struct lw_engine *engine = test_engine(NULL), *peer = test_engine(NULL);
	struct lw_channel *channel;
	char byte = 'x';

	(void)state;
	test_register(peer, &byte, 1, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_open(peer, &channel), 0);
	for (size_t i = 0; i < COUNT; i++)
		list[i] = (struct lw_memory){.addr = area + i * 50, .length = 49, .access = LW_ACCESS_REMOTE};
	for (int round = 0; round < 2; round++) {
		lw_segment_t segment;

		if (round == 0)
			for (size_t i = 0; i < COUNT; i++)
				assert_int_equal(lw_memory_register(engine, &list[i], 1, &ids[i]), 0);
		else
			assert_int_equal(lw_memory_register(engine, list, COUNT, ids), 0);
		assert_int_equal(live(engine), COUNT);
		segment = test_segment(peer, engine);
		assert_int_equal(lw_segment_ranges(peer, segment, NULL, 0), COUNT);
		area[COUNT * 50 - 2] = 0;
		assert_int_equal(test_transfer(peer, channel,
					       (struct lw_request){.local = &byte,
								   .segment = segment,
								   .offset = (uint64_t)(uintptr_t)&area[COUNT * 50 - 2],
								   .length = 1,
								   .op = LW_WRITE})
					 .state,
				 LW_COMPLETED);
		assert_int_equal(area[COUNT * 50 - 2], 'x');
		assert_int_equal(lw_memory_unregister(engine, ids, COUNT, 0), 0);
		assert_int_equal(live(engine), 0);
		assert_int_equal(lw_segment_close(peer, segment), 0);
	}
	assert_int_equal(lw_engine_close(peer), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_register_overlaps_are_refused_neighbours_taken),
		cmocka_unit_test(test_register_list_is_all_or_none),
		cmocka_unit_test(test_register_more_than_max_buffers_is_enospc),
		cmocka_unit_test(test_register_by_16_threads_has_one_winner),
		cmocka_unit_test(test_unregister_does_all_it_can_and_reports_the_first_error),
		cmocka_unit_test(test_find_gives_the_buffer_around_an_address),
		cmocka_unit_test(test_handles_are_never_the_same_again),
		cmocka_unit_test(test_segment_ranges_lists_own_and_offered_ones),
		cmocka_unit_test(test_unregister_beside_a_worker_that_stands_still_is_busy),
		cmocka_unit_test(test_unregister_then_unmap_at_once_is_safe_for_the_target),
		cmocka_unit_test(test_unregister_then_unmap_at_once_is_safe_for_the_initiator),
		cmocka_unit_test(test_register_and_unregister_cost_the_same_in_every_round),
		cmocka_unit_test(test_register_16_gib_in_one_piece_costs_nothing),
		cmocka_unit_test(test_register_20000_buffers_works),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
