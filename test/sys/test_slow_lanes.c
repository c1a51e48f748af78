/* SPDX-License-Identifier: Apache-2.0 */
/* A peer with two addresses stands still for longer than a lane may, and goes on: it was slow, not dead. No lane is
 * cut, and no request fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"

#define MIB ((uint64_t)1 << 20)
#define AREA (64 * MIB)

enum { ROUNDS = 3, STILL_MS = 1500, LANES = 2, STATS = 16 };

static struct {
	struct lw_engine *engine;
	struct lw_channel *channel;
	struct peer peer;
	lw_segment_t segment;
	unsigned char *local;
} rig;

/* Both ways side by side; each piece of the area once. */
static lw_batch_t submit_all(void)
{
	struct lw_request list[AREA / MIB];
	lw_batch_t batch;

	for (uint64_t i = 0; i < AREA / MIB; i++)
		list[i] = (struct lw_request){.local = rig.local + i * MIB,
					      .segment = rig.segment,
					      .offset = rig.peer.addr + i * MIB,
					      .length = MIB,
					      .op = (uint8_t)(i % 2)};
	assert_int_equal(lw_batch_alloc(rig.channel, AREA / MIB, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, list, AREA / MIB);
	return batch;
}

/* Of our lanes to the peer: there are two, by different ways, and neither was cut. */
static void check_lanes(void)
{
	struct lw_lane_stats list[STATS], *own[LANES];
	int count = lw_stats_lanes(rig.engine, list, STATS), have = 0;

	for (int i = 0; i < count && i < STATS && have < LANES; i++)
		if (!list[i].target)
			own[have++] = &list[i];
	for (int i = 0; i < have; i++)
		print_message("%s: %llu connects, %llu stalls, %llu moves, %llu retries, %llu errors\n", own[i]->way,
			      (unsigned long long)own[i]->connects, (unsigned long long)own[i]->stalls,
			      (unsigned long long)own[i]->moves, (unsigned long long)own[i]->retries,
			      (unsigned long long)own[i]->errors);
	assert_int_equal(have, LANES);
	assert_string_not_equal(own[0]->way, own[1]->way);
	for (int i = 0; i < LANES; i++) {
		assert_int_equal(own[i]->connects, 1);
		assert_int_equal(own[i]->stalls + own[i]->moves + own[i]->retries + own[i]->errors, 0);
		assert_true(own[i]->tx_bytes > 0);
		assert_true(own[i]->rx_bytes > 0);
	}
}

static void test_peer_that_stands_still_keeps_its_lanes_and_requests(void **state)
{
	static const char *const options[] = {"tcp_bind=127.0.0.1,127.0.0.2", NULL};
	struct lw_batch_status status;

	(void)state;
	rig.local = test_map(AREA, NULL);
	peer_start(&rig.peer, AREA, options);
	rig.engine = test_engine("drivers=tcp lane_stall_ms=100");
	test_register(rig.engine, rig.local, AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	if (lw_segment_open(rig.engine, rig.peer.name, 0, &rig.segment) != 0)
		fail_msg("%s", lw_last_error());
	assert_int_equal(test_wait(rig.engine, submit_all()).failed, 0);
	for (int i = 0; i < ROUNDS; i++) {
		lw_batch_t batch;

		peer_freeze(&rig.peer);
		batch = submit_all();
		test_sleep_ms(STILL_MS);
		kill(rig.peer.pid, SIGCONT);
		status = test_wait(rig.engine, batch);
		assert_int_equal(status.failed, 0);
		assert_int_equal(status.bytes, AREA);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	}
	check_lanes();
	assert_int_equal(lw_engine_close(rig.engine), 0);
	peer_end(&rig.peer);
	test_unmap(rig.local, AREA);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_peer_that_stands_still_keeps_its_lanes_and_requests),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
