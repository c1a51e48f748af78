/* SPDX-License-Identifier: Apache-2.0 */
/* The way to a peer breaks for some seconds and comes back: our device is down, the peer's is, or packets vanish
 * without a word. Meanwhile each request ends within its deadline and a second, and another peer's stream goes on.
 * Within 5 s of the repair requests through the same handle complete again, in both directions: nobody stays marked as
 * dead. With the argument "long" the outage is one of 40 s, and the rate after it is watched for a minute.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/net.h"
#include "common/peer.h"

#define AREA ((uint64_t)1 << 20)
#define SIDE 8
#define PIECE 32768
#define HALF (SIDE * PIECE)
#define TIMEOUT_MS 1000
#define QUICK_MS 400
#define AGAIN_MS 5000
#define GONE_MS 45000

static struct {
	struct lw_engine *engine;
	struct lw_channel *channel;
	struct peer peer, well;
	struct test_link link; /* to peer */
	lw_segment_t segment;
	char back[32]; /* the peer's handle of us */
	unsigned char *local;
	int fds, lanes; /* at the start */
} rig;

/* A stream to another peer, whose link stays well. */
static struct {
	struct lw_request request;
	pthread_t thread;
	atomic_bool stop;
	atomic_uint completed, failed;
} steady;

static void *stream(void *arg)
{
	struct lw_channel *channel = NULL;

	(void)arg;
	if (lw_channel_self(rig.engine, &channel) != 0)
		return NULL;
	while (!atomic_load(&steady.stop)) {
		bool well = test_transfer(rig.engine, channel, steady.request).state == LW_COMPLETED;

		atomic_fetch_add(well ? &steady.completed : &steady.failed, 1);
	}
	return NULL;
}

/* The stream gets on from here, and nothing of it has failed so far. */
static void check_stream(void)
{
	unsigned before = atomic_load(&steady.completed);

	TEST_EVENTUALLY(atomic_load(&steady.completed) > before + 3);
	assert_int_equal(atomic_load(&steady.failed), 0);
}

static lw_segment_t open_peer(struct lw_engine *engine, const struct peer *peer)
{
	lw_segment_t segment = 0;

	if (lw_segment_open(engine, peer->name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	return segment;
}

/* SIDE requests side by side; how many completed. Each ends in time. */
static uint32_t try_here(uint32_t timeout_ms)
{
	struct lw_request list[SIDE];
	struct lw_batch_status status;
	lw_batch_t batch;

	for (uint64_t i = 0; i < SIDE; i++)
		list[i] = (struct lw_request){.local = rig.local + i * PIECE,
					      .segment = rig.segment,
					      .offset = rig.peer.addr + i * PIECE,
					      .length = PIECE,
					      .timeout_ms = timeout_ms,
					      .op = (uint8_t)(i % 2)};
	assert_int_equal(lw_batch_alloc(rig.channel, SIDE, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, list, SIDE);
	if (lw_batch_wait(rig.engine, batch, timeout_ms + 1000, &status) != 0)
		fail_msg("not all ended: %s", lw_last_error());
	if (status.failed != 0) {
		char text[300] = "";

		for (uint32_t i = 0; i < SIDE && text[0] == '\0'; i++) {
			struct lw_task_status task;

			lw_task_status(rig.engine, batch, i, &task);
			if (task.state != LW_COMPLETED)
				lw_task_reason(rig.engine, batch, i, text, sizeof(text));
		}
		if (strstr(text, rig.peer.name) == NULL)
			fail_msg("\"%s\" does not name the peer", text);
	}
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	return SIDE - status.failed;
}

/* The same from the peer to us. */
static uint32_t try_there(uint32_t timeout_ms)
{
	unsigned completed, failed, canceled, timeout, ms;

	peer_ask(&rig.peer, "run write %s %d %" PRIu64 " %d %d %u", rig.back, HALF,
		 (uint64_t)(uintptr_t)rig.local + HALF, PIECE, SIDE, timeout_ms);
	if (sscanf(rig.peer.line, "ran %u %u %u %u %u", &completed, &failed, &canceled, &timeout, &ms) != 5)
		fail_msg("%s", rig.peer.line);
	assert_true(ms <= timeout_ms + 1000);
	return completed;
}

static int set_up(void **state)
{
	static const char *const first[] = {"link=1", NULL}, *const second[] = {"link=2", NULL};

	(void)state;
	rig.local = test_map(AREA, NULL);
	peer_start(&rig.peer, AREA, first);
	peer_start(&rig.well, AREA, second);
	rig.link = (struct test_link){.number = 1, .peer = rig.peer.pid};
	if (test_engine_try("", "10.99.1.1", &rig.engine) != 0)
		fail_msg("%s", lw_last_error());
	test_register(rig.engine, rig.local, AREA, LW_ACCESS_REMOTE);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	steady.request = (struct lw_request){.local = rig.local,
					     .segment = open_peer(rig.engine, &rig.well),
					     .offset = rig.well.addr,
					     .length = PIECE,
					     .op = LW_WRITE};
	rig.segment = open_peer(rig.engine, &rig.peer);
	peer_expect(&rig.peer, "segment ", "open %s", lw_engine_name(rig.engine));
	snprintf(rig.back, sizeof(rig.back), "%s", rig.peer.line + strlen("segment "));
	assert_int_equal(pthread_create(&steady.thread, NULL, stream, NULL), 0);
	assert_int_equal(try_here(10000), SIDE);
	assert_int_equal(try_there(10000), SIDE);
	check_stream();
	rig.fds = test_fds();
	rig.lanes = lw_stats_lanes(rig.engine, NULL, 0);
	return 0;
}

/* Breaks the way, tries for so long, mends it, and waits for both directions. */
static void outage(const char *what, uint32_t lasts_ms, enum test_cut how)
{
	unsigned tries = 0, here_ms = 0, there_ms = 0, spent_ms;
	uint64_t begin_ms;

	test_net_cut(&rig.link, how);
	for (begin_ms = test_now_ms(); test_now_ms() - begin_ms < lasts_ms; tries++) {
		assert_int_equal(try_here(TIMEOUT_MS), 0);
		if (tries % 2 == 0)
			assert_int_equal(try_there(TIMEOUT_MS), 0);
		check_stream();
		test_sleep_ms(50);
	}
	assert_true(tries > 0);
	test_net_mend(&rig.link, how);
	begin_ms = test_now_ms();
	while (here_ms == 0 || there_ms == 0) {
		bool here = here_ms == 0 && try_here(QUICK_MS) == SIDE,
		     there = there_ms == 0 && try_there(QUICK_MS) == SIDE;

		spent_ms = (unsigned)(test_now_ms() - begin_ms) + 1;
		here_ms = here ? spent_ms : here_ms;
		there_ms = there ? spent_ms : there_ms;
		if (spent_ms > AGAIN_MS)
			fail_msg("%s: %u ms after the repair not served again", what, spent_ms);
	}
	print_message("%s for %u ms, %u tries: served again after %u ms, the other way after %u ms\n", what, lasts_ms,
		      tries, here_ms, there_ms);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(try_here(5000), SIDE);
		assert_int_equal(try_there(5000), SIDE);
	}
	check_stream();
}

static void test_packets_vanish_then_arrive_served_again(void **state)
{
	(void)state;
	outage("packets vanish", 8000, TEST_CUT_SILENT);
}

static void test_own_device_down_then_up_served_again(void **state)
{
	(void)state;
	outage("own device down", 4000, TEST_CUT_HERE);
}

static void test_device_of_the_peer_down_then_up_served_again(void **state)
{
	(void)state;
	outage("the peer's device down", 4000, TEST_CUT_THERE);
}

/* Requests side by side for a while; those that completed. */
static uint32_t completed_in(uint32_t ms)
{
	uint64_t until_ms = test_now_ms() + ms;
	uint32_t count = 0;

	while (test_now_ms() < until_ms)
		count += try_here(5000);
	return count;
}

/* It waits here for seconds, in one batch: nothing of it fails because of that. */
static void test_long_batch_over_a_slow_link_all_complete(void **state)
{
	enum { TASKS = 8000, BLOCK = 4096 };
	struct lw_request *list = calloc(TASKS, sizeof(*list));
	struct lw_batch_status status;
	uint64_t begin_ms = test_now_ms();
	lw_batch_t batch;

	(void)state;
	assert_non_null(list);
	if (!test_net_rate(&rig.link, "50mbit"))
		skip();
	for (uint64_t i = 0; i < TASKS; i++)
		list[i] = (struct lw_request){.local = rig.local + i * BLOCK % (HALF / 2),
					      .segment = rig.segment,
					      .offset = rig.peer.addr + i * BLOCK % (HALF / 2),
					      .length = BLOCK,
					      .op = LW_WRITE};
	assert_int_equal(lw_batch_alloc(rig.channel, TASKS, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, list, TASKS);
	free(list);
	status = test_wait(rig.engine, batch);
	print_message("%d requests over 50 Mbit/s in %u ms\n", TASKS, (unsigned)(test_now_ms() - begin_ms));
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(status.bytes, (uint64_t)TASKS * BLOCK);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	test_net_rate(&rig.link, NULL);
	check_stream();
}

/* After an outage each window must have as much as the one before it. The link has a rate of its own, so that this does
 * not measure the machine. */
static void compare_rates(uint32_t down_ms, uint32_t window_ms, unsigned windows)
{
	enum { SETTLE_MS = 5000 };
	uint32_t before, after, down = 0;
	uint64_t begin_ms;

	if (!test_net_rate(&rig.link, "80mbit"))
		skip();
	completed_in(500);
	before = completed_in(window_ms);
	test_net_cut(&rig.link, TEST_CUT_HERE);
	for (begin_ms = test_now_ms(); test_now_ms() - begin_ms < down_ms;)
		down += try_here(TIMEOUT_MS);
	test_net_mend(&rig.link, TEST_CUT_HERE);
	for (begin_ms = test_now_ms(); test_now_ms() - begin_ms < SETTLE_MS;)
		try_here(TIMEOUT_MS);
	assert_true(before > SIDE);
	for (unsigned i = 0; i < windows; i++) {
		after = completed_in(window_ms);
		print_message("%u requests before, %u while the link was down, %u after\n", before, down, after);
		assert_true(after >= before * 9 / 10);
	}
	test_net_rate(&rig.link, NULL);
	check_stream();
}

static void test_rate_after_an_outage_is_that_of_before(void **state)
{
	(void)state;
	compare_rates(5000, 2000, 1);
}

static void test_rate_for_a_minute_after_40_s_is_that_of_before(void **state)
{
	(void)state;
	compare_rates(40000, 10000, 6);
}

/* Connections whose end never reached us are found out by the system's own probes. */
static void test_after_all_outages_nothing_is_left(void **state)
{
	uint64_t begin_ms = test_now_ms();

	(void)state;
	print_message("%d lanes and %d descriptors more than before\n", lw_stats_lanes(rig.engine, NULL, 0) - rig.lanes,
		      test_fds() - rig.fds);
	while (test_fds() > rig.fds || lw_stats_lanes(rig.engine, NULL, 0) > rig.lanes) {
		if (test_now_ms() - begin_ms > GONE_MS)
			fail_msg("%d lanes and %d descriptors are left",
				 lw_stats_lanes(rig.engine, NULL, 0) - rig.lanes, test_fds() - rig.fds);
		test_sleep_ms(20);
	}
	check_stream();
	atomic_store(&steady.stop, true);
	pthread_join(steady.thread, NULL);
	assert_int_equal(atomic_load(&steady.failed), 0);
	peer_end(&rig.peer);
	peer_end(&rig.well);
	assert_int_equal(lw_engine_close(rig.engine), 0);
	test_unmap(rig.local, AREA);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_packets_vanish_then_arrive_served_again),
		cmocka_unit_test(test_own_device_down_then_up_served_again),
		cmocka_unit_test(test_device_of_the_peer_down_then_up_served_again),
		cmocka_unit_test(test_long_batch_over_a_slow_link_all_complete),
		cmocka_unit_test(test_rate_after_an_outage_is_that_of_before),
		cmocka_unit_test(test_after_all_outages_nothing_is_left),
	};
	static const struct CMUnitTest long_tests[] = {
		cmocka_unit_test(test_rate_for_a_minute_after_40_s_is_that_of_before),
		cmocka_unit_test(test_after_all_outages_nothing_is_left),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	if (!test_net_enter())
		return 77;
	if (argc > 1 && strcmp(argv[1], "long") == 0)
		return cmocka_run_group_tests(long_tests, set_up, NULL);
	return cmocka_run_group_tests(tests, set_up, NULL);
}
