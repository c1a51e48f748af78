/* SPDX-License-Identifier: Apache-2.0 */
/* A path with lanes of a driver that does what the test says, and no thread, network or clock: the test sets the time.
 */
#ifndef LW_TEST_STILL_H
#define LW_TEST_STILL_H

#include "lib/engine.h"
#include "lib/sched/path_pvt.h"

#define TEST_STILL_LANES 4
#define TEST_STILL_TASKS 64
#define TEST_STILL_CREDITS 64

struct test_still {
	struct lw_engine *engine;
	struct lw_worker *worker;
	struct lw_path *path;
	struct lw_lane *lane[TEST_STILL_LANES];
	struct lw_slice slices[TEST_STILL_TASKS]; /* number i is of task i */
	/* what the driver says of each lane, and was asked to do */
	struct lw_look look[TEST_STILL_LANES];
	uint32_t probed_way[TEST_STILL_LANES]; /* LW_WAY_NONE: no probe is under way */
	unsigned probes[TEST_STILL_LANES], closes[TEST_STILL_LANES];
};

/* Lanes that are UP by the way of their number (count round ways), with nothing to do. The caller frees it. */
void test_still_open(struct test_still *still, uint32_t lanes, uint32_t ways);
void test_still_close(struct test_still *still);

/* The time goes on, by a millisecond after the other, with a look at the lanes after each. */
void test_still_pass(struct test_still *still, uint32_t ms);

/* Slice number i, of a request of its own, lies on the lane from now on. */
struct lw_slice *test_still_post(struct test_still *still, uint32_t number, uint32_t i, enum lw_op op, uint64_t length);
/* It ended well, and so many bytes moved. */
void test_still_end(struct test_still *still, struct lw_slice *slice);

#endif
