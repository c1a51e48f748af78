/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path over RDMA calls no allocator, takes no lock and calls the kernel for nothing, beyond what the provider
 * does by itself: librxe takes spin locks, and rings its doorbell by a system call. Those are counted apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>

#include "common/bytes.h"
#include "common/counters.h"
#include "common/engines.h"
#include "common/peer.h"
#include "common/traced.h"
#include "lab/rails.h"

#define ROUNDS 200
#define BATCH 16
#define BLOCK 4096
#define AREA ((size_t)BATCH * BLOCK)

struct bench {
	struct peer peer;
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *memory;
	struct lw_request requests[BATCH];
};

static void open_bench(struct bench *bench, const char *settings)
{
	static const char *const options[] = {"drivers=rdma", "rdma_devices=rxe1", NULL};
	lw_segment_t segment;

	bench->engine = test_engine(settings);
	bench->memory = test_map(AREA, NULL);
	test_register(bench->engine, bench->memory, AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(bench->engine, &bench->channel), 0);
	peer_start(&bench->peer, AREA, options);
	segment = rail_open(bench->engine, &bench->peer);
	for (size_t i = 0; i < BATCH; i++)
		bench->requests[i] = (struct lw_request){.local = bench->memory + BLOCK * i,
							 .segment = segment,
							 .offset = bench->peer.addr + BLOCK * i,
							 .length = i % 4 == 3 ? 32 : BLOCK,
							 .op = i % 2 == 0 ? LW_READ : LW_WRITE};
}

static void close_bench(struct bench *bench)
{
	peer_end(&bench->peer);
	assert_int_equal(lw_engine_close(bench->engine), 0);
	test_unmap(bench->memory, AREA);
}

/* The number of rounds that went well. */
static int run(struct bench *bench, int rounds)
{
	struct lw_completion completion;
	lw_batch_t batch;
	int good = 0;

	for (int i = 0; i < rounds; i++) {
		if (lw_batch_alloc(bench->channel, BATCH, LW_BATCH_EVENT, NULL, &batch) != 0)
			break;
		while (lw_submit(bench->channel, batch, bench->requests, BATCH) == -EAGAIN)
			;
		while (lw_channel_poll(bench->channel, &completion, 1) == 0)
			;
		good += completion.failed == 0 && lw_batch_free(bench->engine, batch) == 0;
	}
	return good;
}

static void skip_if_sanitized(void)
{
#ifdef SANITIZED
	print_message("skipped: a sanitizer has the allocator, and makes system calls of its own\n");
	skip();
#endif
}

/* Where the provider's code lies, so that its locks are told from ours. */
static void find_provider(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uintptr_t from, to, low = UINTPTR_MAX, high = 0;
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps) != NULL) {
		if (strstr(line, "librxe") == NULL || sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) != 2)
			continue;
		low = from < low ? from : low;
		high = to > high ? to : high;
	}
	fclose(maps);
	assert_true(low < high);
	atomic_store(&foreign_from, low);
	atomic_store(&foreign_to, high);
}

static void test_hot_path_calls_no_allocator_and_no_lock_of_ours(void **state)
{
	struct bench bench;

	(void)state;
	skip_if_sanitized();
	open_bench(&bench, "drivers=rdma poll=busy rdma_devices=rxe0");
	find_provider();
	assert_int_equal(run(&bench, ROUNDS), ROUNDS);
	atomic_store(&allocations, 0);
	atomic_store(&locks, 0);
	atomic_store(&foreign_locks, 0);
	atomic_store(&armed, 1);
	assert_int_equal(run(&bench, ROUNDS), ROUNDS);
	atomic_store(&armed, 0);
	print_message("%d batches of %d: %" PRIu64 " allocator calls, %" PRIu64 " locks, %" PRIu64 " of the provider\n",
		      ROUNDS, BATCH, atomic_load(&allocations), atomic_load(&locks), atomic_load(&foreign_locks));
	assert_int_equal(atomic_load(&allocations), 0);
	assert_int_equal(atomic_load(&locks), 0);
	assert_true(atomic_load(&foreign_locks) >= ROUNDS); /* they can be told */
	close_bench(&bench);
}

struct calls {
	int doorbells; /* not counted by traced_calls */
	int extra;     /* that the child adds */
};

/* Whether a call is not the provider's doorbell: the write of a command to post requests. */
static bool is_ours(pid_t process, pid_t thread, const struct ptrace_syscall_info *info, void *arg)
{
	struct calls *calls = arg;
	long word;

	if (!traced_hot(process, thread, info, NULL))
		return false;
	if (info->entry.nr == SYS_write && info->entry.args[2] >= sizeof(struct ib_uverbs_cmd_hdr)) {
		errno = 0;
		word = ptrace(PTRACE_PEEKDATA, thread, (void *)(uintptr_t)info->entry.args[1], NULL);
		if (errno == 0 && (uint32_t)word == IB_USER_VERBS_CMD_POST_SEND) {
			calls->doorbells++;
			return false;
		}
	}
	if (calls->extra == 0)
		printf("system call %llu(%llx, %llx, %llx)\n", (unsigned long long)info->entry.nr,
		       (unsigned long long)info->entry.args[0], (unsigned long long)info->entry.args[1],
		       (unsigned long long)info->entry.args[2]);
	return true;
}

static int child(void *arg)
{
	const struct calls *calls = arg;
	struct bench bench;
	int good;

	open_bench(&bench, "drivers=rdma poll=busy rdma_devices=rxe0");
	if (run(&bench, ROUNDS) != ROUNDS)
		return 2;
	traced_mark(true);
	good = run(&bench, ROUNDS);
	for (int i = 0; i < calls->extra; i++)
		getppid();
	traced_mark(false);
	close_bench(&bench);
	return good == ROUNDS ? 0 : 3;
}

static void check_kernel(int extra)
{
	struct calls calls = {.extra = extra};
	int count;

	skip_if_sanitized();
	count = traced_calls(child, is_ours, &calls);
	if (count == -2) {
		print_message("skipped: this process may not trace another\n");
		skip();
	}
	print_message("%d batches of %d: %d doorbells, %d other system calls\n", ROUNDS, BATCH, calls.doorbells, count);
	assert_int_equal(count, extra);
	/* At the least one a batch, at the most one for each 64 KiB and one for each of the two lanes. */
	assert_in_range(calls.doorbells, ROUNDS, 4 * ROUNDS);
}

static void test_hot_path_makes_no_system_call_but_the_doorbell(void **state)
{
	(void)state;
	check_kernel(0);
}

static void test_counters_system_call_added_is_counted(void **state)
{
	(void)state;
	check_kernel(3);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hot_path_makes_no_system_call_but_the_doorbell),
		cmocka_unit_test(test_counters_system_call_added_is_counted),
		cmocka_unit_test(test_hot_path_calls_no_allocator_and_no_lock_of_ours),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	if (!rails_here())
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
