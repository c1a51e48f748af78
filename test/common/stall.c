/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/engines.h"
#include "common/stall.h"

static void run(struct lw_worker *worker, struct lw_command *command)
{
	struct test_stall *stall = (struct test_stall *)(void *)command;

	(void)worker;
	atomic_store(&stall->begun, 1);
	while (atomic_load(&stall->over) == 0)
		test_sleep_ms(1);
	atomic_store(&stall->gone, 1);
}

void test_stall_begin(struct test_stall *stall, struct lw_engine *engine, uint32_t worker)
{
	*stall = (struct test_stall){.command.run = run};
	lw_worker_send(&engine->workers[worker], &stall->command);
	TEST_EVENTUALLY(atomic_load(&stall->begun) != 0);
}

void test_stall_end(struct test_stall *stall)
{
	atomic_store(&stall->over, 1);
	TEST_EVENTUALLY(atomic_load(&stall->gone) != 0);
}
