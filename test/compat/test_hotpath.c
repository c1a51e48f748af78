/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating, submitting, polling and freeing batches calls no allocator and takes no lock, once a thread has submitted
 * its longest list. */
#include "compat/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/counters.h"

#define ROUNDS 2000
#define TASKS 300

static void test_batches_call_no_allocator_and_no_lock(void **state)
{
	static struct transfer_request requests[TASKS];
	static char memory[2 * TASKS];
	transfer_engine_t engine = host_engine();
	struct transfer_status status;
	unsigned failed = 0;

	(void)state;
	assert_int_equal(registerLocalMemory(engine, memory, sizeof(memory), "*", 1), 0);
	for (size_t i = 0; i < TASKS; i++)
		requests[i] = (struct transfer_request){OPCODE_WRITE, memory + i, LOCAL_SEGMENT,
							(uint64_t)(uintptr_t)(memory + TASKS + i), 1};
	for (unsigned round = 0; round < ROUNDS; round++) {
		size_t tasks = round % 2 == 0 ? 1 : TASKS;
		batch_id_t batch;

		atomic_store(&armed, round >= 10);
		batch = allocateBatchID(engine, tasks);
		failed += submitTransfer(engine, batch, requests, tasks) != 0;
		for (size_t i = 0; i < tasks; i++) {
			do {
				failed += getTransferStatus(engine, batch, i, &status) != 0;
			} while (status.status == STATUS_WAITING && failed == 0);
			failed += status.status != STATUS_COMPLETED;
		}
		failed += getBatchTransferStatus(engine, batch, &status) != 0;
		failed += freeBatchID(engine, batch) != 0;
		atomic_store(&armed, 0);
	}
	assert_int_equal(failed, 0);
	assert_int_equal(atomic_load(&allocations), 0);
	assert_int_equal(atomic_load(&locks), 0);
	/* They can count. */
	atomic_store(&armed, 1);
	assert_int_equal(unregisterLocalMemory(engine, memory), 0);
	atomic_store(&armed, 0);
	assert_true(atomic_load(&allocations) > 0);
	assert_true(atomic_load(&locks) > 0);
	destroyTransferEngine(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_batches_call_no_allocator_and_no_lock),
	};

#ifdef SANITIZED
	puts("skipped: a sanitizer's allocator stands in the way of the counters");
	return 77;
#endif
	host_quiet();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
