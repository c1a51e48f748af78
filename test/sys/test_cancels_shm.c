/* SPDX-License-Identifier: Apache-2.0 */
/* A hundred thousand cancels of copies without a socket: to memory that is mapped, to any memory of another process,
 * and inside one process: no byte moves after an end. See common/cancels.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/cancels.h"
#include "common/engines.h"
#include "common/peer.h"

#define SETTINGS "drivers=shm shm_peers=on"

enum { SLOWER = TEST_ASAN || TEST_TSAN ? 10 : 1, LIMIT_MS = 40000 };

static void test_cancel_into_memory_of_another_process_no_late_byte(void **state)
{
	(void)state;
	test_cancels_run(&(struct test_cancels){
		.settings = SETTINGS, .count = 40000 / SLOWER, .limit_ms = LIMIT_MS, .freeze = true});
}

static void test_cancel_into_mapped_memory_no_late_byte(void **state)
{
	static const char *const options[] = {"alloc=1", NULL};

	(void)state;
	test_cancels_run(&(struct test_cancels){.settings = SETTINGS,
						.options = options,
						.count = 40000 / SLOWER,
						.limit_ms = LIMIT_MS,
						.freeze = true});
}

static void test_cancel_inside_one_process_no_late_byte(void **state)
{
	(void)state;
	test_cancels_run(&(struct test_cancels){
		.settings = SETTINGS " workers=2", .count = 20000 / SLOWER, .limit_ms = LIMIT_MS, .inside = true});
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cancel_into_memory_of_another_process_no_late_byte),
		cmocka_unit_test(test_cancel_into_mapped_memory_no_late_byte),
		cmocka_unit_test(test_cancel_inside_one_process_no_late_byte),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
