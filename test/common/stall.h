/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that does nothing until it is let go. */
#ifndef LW_TEST_STALL_H
#define LW_TEST_STALL_H

#include <stdatomic.h>

#include "lib/engine.h"

struct test_stall {
	struct lw_command command;
	_Atomic int begun, over, gone;
};

/* Returns when the worker stands still. */
void test_stall_begin(struct test_stall *stall, struct lw_engine *engine, uint32_t worker);
/* Returns when it works again. */
void test_stall_end(struct test_stall *stall);

#endif
