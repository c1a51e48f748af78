/* SPDX-License-Identifier: Apache-2.0 */
/* Two classes of requests to one peer, on each driver that moves bytes: one of the foreground overtakes nearly all of
 * the bulk that is under way, and bulk is not starved by a foreground that never pauses. Counted in bytes, so that it
 * does not matter how fast the machine is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"
#include "common/stream.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define AREA (64 * MIB)
#define SMALL (4 * KIB)

enum { TRIES = 50, STARVE_MS = 2000 };

static struct {
	struct lw_engine *engine;
	struct lw_channel *channel;
	struct peer peer;
	lw_segment_t segment;
	unsigned char *local;
} rig;

static void set_up(const char *settings)
{
	static const char *const options[] = {"shm_peers=on", NULL};

	peer_start(&rig.peer, AREA, options);
	rig.engine = test_engine(settings);
	rig.local = test_map(AREA, NULL);
	test_register(rig.engine, rig.local, AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	if (lw_segment_open(rig.engine, rig.peer.name, 0, &rig.segment) != 0)
		fail_msg("%s", lw_last_error());
}

static void tear_down(void)
{
	assert_int_equal(lw_engine_close(rig.engine), 0);
	peer_end(&rig.peer);
	test_unmap(rig.local, AREA);
}

static struct lw_request request_of(uint64_t at, uint64_t length, enum lw_priority priority)
{
	return (struct lw_request){.local = rig.local + at,
				   .segment = rig.segment,
				   .offset = rig.peer.addr + at,
				   .length = length,
				   .op = LW_WRITE,
				   .priority = (uint8_t)priority};
}

static struct test_stream *begin_stream(struct lw_request first, uint32_t depth)
{
	struct test_stream *stream = calloc(1, sizeof(*stream));

	assert_non_null(stream);
	stream->engine = rig.engine;
	stream->request = first;
	stream->depth = depth;
	test_stream_begin(stream);
	TEST_EVENTUALLY(atomic_load(&stream->completed) > depth);
	return stream;
}

static void end_stream(struct test_stream *stream)
{
	test_stream_end(stream);
	assert_int_equal(atomic_load(&stream->failed), 0);
	free(stream);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The bulk has 60 MiB under way. Without a limit most of it is on the lane, before the foreground's. */
static void foreground_overtakes_bulk(const char *settings)
{
	struct test_stream *bulk;
	uint64_t passed[TRIES];

	set_up(settings);
	bulk = begin_stream(request_of(0, 256 * KIB, LW_BULK), 240);
	for (int i = 0; i < TRIES; i++) {
		uint64_t before = atomic_load(&bulk->bytes);

		assert_int_equal(
			test_transfer(rig.engine, rig.channel, request_of(AREA - SMALL, SMALL, LW_FOREGROUND)).state,
			LW_COMPLETED);
		passed[i] = atomic_load(&bulk->bytes) - before;
		test_sleep_ms(2);
	}
	end_stream(bulk);
	qsort(passed, TRIES, sizeof(passed[0]), by_size);
	print_message("%s: while one of the foreground waits, %" PRIu64
		      " KiB of bulk pass; in the worst of %d tries %" PRIu64 " KiB\n",
		      settings, passed[TRIES / 2] / KIB, TRIES, passed[TRIES - 1] / KIB);
	assert_in_range(passed[TRIES / 2], 0, 8 * MIB);
	tear_down();
}

/* As much of the foreground always waits as a lane holds, and more. */
static void bulk_is_not_starved(const char *settings)
{
	struct test_stream *foreground, *bulk;
	uint64_t first, second;

	set_up(settings);
	bulk = begin_stream(request_of(32 * MIB, 64 * KIB, LW_BULK), 64);
	foreground = begin_stream(request_of(0, 64 * KIB, LW_FOREGROUND), 240);
	first = atomic_load(&foreground->bytes);
	second = test_stream_bytes_in(bulk, STARVE_MS);
	first = atomic_load(&foreground->bytes) - first;
	end_stream(foreground);
	end_stream(bulk);
	print_message("%s: %" PRIu64 " MiB of the foreground, %" PRIu64 " MiB of bulk\n", settings, first / MIB,
		      second / MIB);
	/* By weight it is a 16th. */
	assert_true(second > first / 64);
	assert_true(second < first / 2);
	tear_down();
}

#define OVER_TCP "drivers=tcp slice_bytes=262144 max_batches=512 max_tasks=65536"
#define BY_SHM "drivers=shm shm_peers=on slice_bytes=262144 max_batches=512 max_tasks=65536"

static void test_foreground_overtakes_bulk_over_tcp(void **state)
{
	(void)state;
	foreground_overtakes_bulk(OVER_TCP);
}

static void test_foreground_overtakes_bulk_by_shm(void **state)
{
	(void)state;
	foreground_overtakes_bulk(BY_SHM);
}

static void test_bulk_is_not_starved_over_tcp(void **state)
{
	(void)state;
	bulk_is_not_starved(OVER_TCP " lane_bytes=1048576");
}

static void test_bulk_is_not_starved_by_shm(void **state)
{
	(void)state;
	bulk_is_not_starved(BY_SHM " lane_bytes=1048576");
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_foreground_overtakes_bulk_over_tcp),
		cmocka_unit_test(test_foreground_overtakes_bulk_by_shm),
		cmocka_unit_test(test_bulk_is_not_starved_over_tcp),
		cmocka_unit_test(test_bulk_is_not_starved_by_shm),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	if (!test_setting_known("foreground_weight")) {
		print_message("skipped: lanes of this build do not weigh classes (setting foreground_weight)\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
