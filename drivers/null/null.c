/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/null/null.h"

#include "lib/engine.h"

static int null_open(struct lw_engine *engine, void **context, char *why, size_t why_size)
{
	(void)engine;
	(void)why;
	(void)why_size;
	*context = NULL;
	return 0;
}

static void null_close(void *context)
{
	(void)context;
}

static int null_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	(void)view;
	lw_lane_up(lane);
	return 0;
}

static void null_lane_close(struct lw_lane *lane)
{
	(void)lane;
}

static bool null_now(struct lw_lane *lane, uint8_t op, uint64_t local, uint64_t remote, uint64_t length)
{
	(void)lane;
	(void)op;
	(void)local;
	(void)remote;
	(void)length;
	return true;
}

static void null_post(struct lw_lane *lane, struct lw_slice *slice)
{
	lw_slice_done(lane, slice, LW_REASON_NONE);
}

static void null_flush(struct lw_lane *lane)
{
	(void)lane;
}

static bool null_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	(void)lane;
	(void)slice;
	return false;
}

const struct lw_driver_ops lw_null_ops = {
	.size = sizeof(struct lw_driver_ops),
	.name = "null",
	.moves = UINT32_C(0xf),
	.credits = 1024,
	.open = null_open,
	.close = null_close,
	.lane_open = null_lane_open,
	.lane_close = null_lane_close,
	.now = null_now,
	.post = null_post,
	.flush = null_flush,
	.unpost = null_unpost,
};
