/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of one peer, each for one driver: a request goes the way of the handle that it names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include <lanewise/lanewise.h>

#include "common/bytes.h"
#include "common/engines.h"

#define AREA 65536u
#define LANES 32

static struct {
	struct lw_engine *a, *b;
	struct lw_channel *channel;
	unsigned char *local, *remote;
} rig;

static int set_up(void **state)
{
	(void)state;
	rig.a = test_engine("drivers=shm,tcp,null shm_peers=on");
	rig.b = test_engine("drivers=shm,tcp shm_peers=on");
	rig.local = test_map(AREA, NULL);
	rig.remote = test_map(AREA, NULL);
	test_register(rig.a, rig.local, AREA, LW_ACCESS_LOCAL);
	test_register(rig.b, rig.remote, AREA, LW_ACCESS_REMOTE);
	return lw_channel_self(rig.a, &rig.channel);
}

static int tear_down(void **state)
{
	(void)state;
	lw_engine_close(rig.a);
	lw_engine_close(rig.b);
	test_unmap(rig.local, AREA);
	test_unmap(rig.remote, AREA);
	return 0;
}

static lw_segment_t open_via(const char *driver)
{
	lw_segment_t segment;

	if (lw_segment_open_via(rig.a, lw_engine_name(rig.b), driver, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	return segment;
}

/* Bytes that lanes of the driver have sent. */
static uint64_t sent_by(const char *driver)
{
	struct lw_lane_stats list[LANES];
	int count = lw_stats_lanes(rig.a, list, LANES);
	uint64_t bytes = 0;

	for (int i = 0; i < count && i < LANES; i++)
		if (!list[i].target && strcmp(list[i].driver, driver) == 0)
			bytes += list[i].tx_bytes;
	return bytes;
}

static struct lw_batch_status write_all(lw_segment_t segment)
{
	struct lw_request request = {.local = rig.local,
				     .segment = segment,
				     .offset = (uint64_t)(uintptr_t)rig.remote,
				     .length = AREA,
				     .op = LW_WRITE};
	struct lw_batch_status status;
	lw_batch_t batch;

	assert_int_equal(lw_batch_alloc(rig.channel, 1, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, &request, 1);
	status = test_wait(rig.a, batch);
	assert_int_equal(lw_batch_free(rig.a, batch), 0);
	return status;
}

/* Exact, and by that driver alone. */
static void goes_by(lw_segment_t segment, const char *driver, const char *other)
{
	uint64_t by = sent_by(driver), beside = sent_by(other);

	test_fill(rig.local, AREA, segment);
	assert_int_equal(write_all(segment).state, LW_COMPLETED);
	assert_memory_equal(rig.remote, rig.local, AREA);
	assert_int_equal(sent_by(driver) - by, AREA);
	assert_true(sent_by(other) <= beside); /* a lane that is closed meanwhile is not listed any more */
}

static void test_each_handle_goes_its_way(void **state)
{
	lw_segment_t best = test_segment(rig.a, rig.b), tcp = open_via("tcp"), shm = open_via("shm");

	(void)state;
	assert_true(best != tcp && best != shm && tcp != shm);
	for (int i = 0; i < 3; i++) {
		goes_by(best, "shm", "tcp");
		goes_by(tcp, "tcp", "shm");
		goes_by(shm, "shm", "tcp");
	}
}

static void test_opened_again_is_the_same(void **state)
{
	lw_segment_t tcp = open_via("tcp"), best = test_segment(rig.a, rig.b);

	(void)state;
	assert_true(open_via("tcp") == tcp);
	assert_true(test_segment(rig.a, rig.b) == best);
	assert_int_equal(lw_segment_close(rig.a, tcp), 0);
	goes_by(tcp, "tcp", "shm");
	assert_int_equal(lw_segment_close(rig.a, tcp), 0);
	assert_int_equal(lw_segment_close(rig.a, tcp), -EBADF);
	goes_by(best, "shm", "tcp");
}

static void test_refresh_keeps_the_driver(void **state)
{
	unsigned char *more = test_map(AREA, NULL);
	lw_segment_t tcp = open_via("tcp");
	struct lw_request request = {.local = rig.local,
				     .segment = tcp,
				     .offset = (uint64_t)(uintptr_t)more,
				     .length = AREA,
				     .op = LW_WRITE};
	uint64_t beside = sent_by("shm");
	lw_batch_t batch;

	(void)state;
	assert_int_equal(lw_segment_refresh(rig.a, tcp, 0), 0);
	goes_by(tcp, "tcp", "shm");
	/* What was registered later is looked for by the engine itself. */
	test_register(rig.b, more, AREA, LW_ACCESS_REMOTE);
	assert_int_equal(lw_batch_alloc(rig.channel, 1, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, &request, 1);
	assert_int_equal(test_wait(rig.a, batch).state, LW_COMPLETED);
	assert_memory_equal(more, rig.local, AREA);
	assert_int_equal(sent_by("shm"), beside);
	lw_batch_free(rig.a, batch);
	test_unmap(more, AREA);
}

static void refused(const char *name, const char *driver, int error, const char *text)
{
	lw_segment_t segment = 1;

	assert_int_equal(lw_segment_open_via(rig.a, name, driver, 0, &segment), error);
	assert_non_null(strstr(lw_last_error(), text));
	assert_int_equal(segment, 1);
}

static void test_what_can_not_be_is_refused(void **state)
{
	const char *peer = lw_engine_name(rig.b);
	lw_segment_t segment;

	(void)state;
	refused(peer, "pigeon", -EINVAL, "pigeon");
	refused(peer, "rdma", -EINVAL, "rdma");
	refused(peer, "", -EINVAL, "drivers");
	refused(peer, NULL, -EINVAL, "driver");
	refused(NULL, "tcp", -EINVAL, "name");
	refused(peer, "null", -ENOTSUP, "null");
	refused("null://", "tcp", -ENOTSUP, "tcp");
	refused(lw_engine_name(rig.a), "tcp", -ENOTSUP, "tcp");
	assert_int_equal(lw_segment_open_via(rig.a, peer, "tcp", 0, NULL), -EINVAL);
	assert_int_equal(lw_segment_open_via(rig.a, lw_engine_name(rig.a), "shm", 0, &segment), 0);
	assert_int_equal(segment, LW_SEGMENT_LOCAL);
	assert_int_equal(lw_segment_open_via(rig.a, "null://", "null", 0, &segment), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_each_handle_goes_its_way),
		TEST(test_opened_again_is_the_same),
		TEST(test_refresh_keeps_the_driver),
		TEST(test_what_can_not_be_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
