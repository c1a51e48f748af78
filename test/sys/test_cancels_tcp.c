/* SPDX-License-Identifier: Apache-2.0 */
/* A hundred thousand cancels over TCP, to another process: no byte moves after an end. See common/cancels.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/cancels.h"
#include "common/engines.h"
#include "common/peer.h"

enum { SLOWER = TEST_ASAN || TEST_TSAN ? 10 : 1, LIMIT_MS = 60000 };

static void test_cancel_over_tcp_no_late_byte(void **state)
{
	(void)state;
	test_cancels_run(&(struct test_cancels){
		.settings = "drivers=tcp", .count = 70000 / SLOWER, .limit_ms = LIMIT_MS, .freeze = true});
}

/* Bodies go by splice and lie in the peer's socket as our own pages; several workers and connections. */
static void test_cancel_of_spliced_bodies_over_many_lanes_no_late_byte(void **state)
{
	(void)state;
	test_cancels_run(&(struct test_cancels){.settings = "drivers=tcp workers=2 tcp_lanes=4 tcp_splice_bytes=4096",
						.count = 30000 / SLOWER,
						.limit_ms = LIMIT_MS,
						.freeze = true});
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cancel_over_tcp_no_late_byte),
		cmocka_unit_test(test_cancel_of_spliced_bodies_over_many_lanes_no_late_byte),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
