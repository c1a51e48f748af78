/* SPDX-License-Identifier: Apache-2.0 */
/* A device goes down under load and comes up again. While another one is left, no request fails for it; when none is,
 * each request ends with a failure that names the peer, within its deadline and a second. Devices that are up again
 * carry their share again, through the same handle.
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
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"
#include "lab/rails.h"

#define AREA ((uint64_t)4 << 20)
#define BLOCK 65536
#define DEPTH 16
#define SLOW_MS 8000   /* what an emulated machine may need on top of what is promised */
#define AGAIN_MS 30000 /* a device that came up again is used after that, on a slow machine */

/* Ours are rxe0 and rxe1, the peer's rxe2 and rxe3. */
static struct {
	struct lw_engine *engine;
	struct peer peer;
	unsigned char *local;
	struct lw_request request;
	/* the load */
	pthread_t thread;
	atomic_bool stop;
	atomic_uint completed, failed;
	char why[300];
} rig;

static int set_up(void **state)
{
	static const char *const options[] = {"drivers=rdma", "rdma_devices=rxe2,rxe3", "rdma_timeout=17", NULL};

	(void)state;
	rig.engine = test_engine(OVER("rxe0,rxe1") " rdma_timeout=17");
	rig.local = test_map(AREA, NULL);
	test_register(rig.engine, rig.local, AREA, LW_ACCESS_LOCAL);
	peer_start(&rig.peer, AREA, options);
	rig.request = (struct lw_request){.local = rig.local,
					  .segment = rail_open(rig.engine, &rig.peer),
					  .offset = rig.peer.addr,
					  .length = BLOCK,
					  .op = LW_WRITE};
	rail_move(rig.engine, &rig.request, DEPTH);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	peer_end(&rig.peer);
	assert_int_equal(lw_engine_close(rig.engine), 0);
	test_unmap(rig.local, AREA);
	return 0;
}

static void *load(void *arg)
{
	struct lw_channel *channel = NULL;
	struct lw_request list[DEPTH];

	(void)arg;
	if (lw_channel_self(rig.engine, &channel) != 0)
		return NULL;
	for (unsigned round = 0; !atomic_load(&rig.stop); round++) {
		struct lw_batch_status status;
		lw_batch_t batch;

		for (uint32_t i = 0; i < DEPTH; i++) {
			list[i] = rig.request;
			list[i].local = (char *)rig.request.local + i * BLOCK;
			list[i].offset += i * BLOCK;
			list[i].op = (uint8_t)((round + i) % 2 == 0 ? LW_READ : LW_WRITE);
		}
		if (lw_batch_alloc(channel, DEPTH, 0, NULL, &batch) != 0)
			break;
		test_submit(channel, batch, list, DEPTH);
		if (lw_batch_wait(rig.engine, batch, 60000, &status) != 0)
			break;
		for (uint32_t i = 0; i < DEPTH && status.failed != 0 && rig.why[0] == '\0'; i++) {
			struct lw_task_status task;

			lw_task_status(rig.engine, batch, i, &task);
			if (task.state != LW_COMPLETED)
				lw_task_reason(rig.engine, batch, i, rig.why, sizeof(rig.why));
		}
		atomic_fetch_add(&rig.failed, status.failed);
		atomic_fetch_add(&rig.completed, DEPTH - status.failed);
		lw_batch_free(rig.engine, batch);
	}
	return NULL;
}

static void load_begin(void)
{
	atomic_store(&rig.stop, false);
	atomic_store(&rig.completed, 0);
	atomic_store(&rig.failed, 0);
	rig.why[0] = '\0';
	assert_int_equal(pthread_create(&rig.thread, NULL, load, NULL), 0);
}

static void load_end(void)
{
	atomic_store(&rig.stop, true);
	pthread_join(rig.thread, NULL);
}

/* The load gets on: so many requests more complete, and none fails. */
static void gets_on(unsigned count, const char *when)
{
	unsigned from = atomic_load(&rig.completed);
	uint64_t begin_ms = test_now_ms();

	while (atomic_load(&rig.completed) < from + count && atomic_load(&rig.failed) == 0) {
		if (test_now_ms() - begin_ms > AGAIN_MS)
			fail_msg("%s: %u requests completed in %d ms", when, atomic_load(&rig.completed) - from,
				 AGAIN_MS);
		test_sleep_ms(5);
	}
	if (atomic_load(&rig.failed) != 0)
		fail_msg("%s: %u requests failed: %s", when, atomic_load(&rig.failed), rig.why);
}

/* Packets leave by this device. */
static void carries(unsigned rail)
{
	uint64_t from = rail_packets(rail), begin_ms = test_now_ms();

	while (rail_packets(rail) < from + 200) {
		if (test_now_ms() - begin_ms > AGAIN_MS)
			fail_msg("rxe%u does not carry anything %d ms after it came up again", rail, AGAIN_MS);
		test_sleep_ms(5);
	}
}

static void one_down_and_up(unsigned rail, const char *whose)
{
	char when[64];

	load_begin();
	gets_on(4 * DEPTH, "before");
	for (int round = 0; round < 3; round++) {
		rail_down(rail);
		snprintf(when, sizeof(when), "%s device down, round %d", whose, round);
		gets_on(8 * DEPTH, when);
		rail_heal(rail);
		snprintf(when, sizeof(when), "%s device up again, round %d", whose, round);
		gets_on(8 * DEPTH, when);
		carries(rail);
	}
	load_end();
	print_message("%s device: %u requests completed, none failed\n", whose, atomic_load(&rig.completed));
	assert_int_equal(atomic_load(&rig.failed), 0);
}

static void test_own_device_down_under_load_no_request_fails(void **state)
{
	(void)state;
	one_down_and_up(0, "own");
}

static void test_device_of_the_peer_down_under_load_no_request_fails(void **state)
{
	(void)state;
	one_down_and_up(3, "the peer's");
}

/* No device is left: what is under way and what comes new fails with a reason, in time; then all is well again. */
static void test_all_devices_down_requests_fail_clearly_then_served_again(void **state)
{
	uint64_t begin_ms;
	unsigned tries = 0;

	(void)state;
	load_begin();
	gets_on(DEPTH, "before");
	rail_down(0);
	rail_down(1);
	for (begin_ms = test_now_ms(); atomic_load(&rig.failed) == 0; test_sleep_ms(5))
		if (test_now_ms() - begin_ms > AGAIN_MS)
			fail_msg("nothing failed in %d ms without a device", AGAIN_MS);
	load_end();
	print_message("%u requests failed: %s\n", atomic_load(&rig.failed), rig.why);
	assert_non_null(strstr(rig.why, rig.peer.name));
	for (; tries < 5; tries++) {
		struct lw_channel *channel = NULL;
		struct lw_request request = rig.request;
		struct lw_task_status status;

		request.timeout_ms = 1000;
		assert_int_equal(lw_channel_self(rig.engine, &channel), 0);
		begin_ms = test_now_ms();
		status = test_transfer(rig.engine, channel, request);
		assert_true(status.state == LW_FAILED || status.state == LW_TIMEOUT);
		assert_true(test_now_ms() - begin_ms < 2000 + SLOW_MS);
	}
	rail_heal(0);
	rail_heal(1);
	begin_ms = test_now_ms();
	for (bool well = false; !well;) {
		struct lw_channel *channel = NULL;
		struct lw_request request = rig.request;

		request.timeout_ms = 5000;
		assert_int_equal(lw_channel_self(rig.engine, &channel), 0);
		well = test_transfer(rig.engine, channel, request).state == LW_COMPLETED;
		if (test_now_ms() - begin_ms > AGAIN_MS)
			fail_msg("not served again %d ms after the devices came up", AGAIN_MS);
	}
	load_begin();
	gets_on(8 * DEPTH, "up again");
	carries(0);
	carries(1);
	load_end();
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own_device_down_under_load_no_request_fails),
		cmocka_unit_test(test_device_of_the_peer_down_under_load_no_request_fails),
		cmocka_unit_test(test_all_devices_down_requests_fail_clearly_then_served_again),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	if (!rails_here())
		return 77;
	test_seed();
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
