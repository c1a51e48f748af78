/* SPDX-License-Identifier: Apache-2.0 */
/* One request of 4.5 GiB over each driver that moves bytes, with next to no memory behind it: both ranges are one small
 * file mapped again and again, but for pages around the edges of 32 bits, which are their own and are compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"

#define MIB ((size_t)1 << 20)
#define TILE (64 * MIB)
#define WHOLE ((size_t)9 << 29)
#define OWN 8192 /* bytes at an edge that are compared */

static const size_t edges[] = {0, ((size_t)1 << 31) - OWN / 2, ((size_t)1 << 32) - OWN / 2, WHOLE - OWN};
#define EDGES (sizeof(edges) / sizeof(edges[0]))

/* WHOLE bytes of addresses, with TILE and the edges behind them; NULL: not here. */
static unsigned char *map_wide(void)
{
	unsigned char *wide = mmap(NULL, WHOLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int fd = memfd_create("tile", MFD_CLOEXEC);

	if (wide == MAP_FAILED || fd < 0 || ftruncate(fd, (off_t)TILE) != 0)
		return NULL;
	for (size_t at = 0; at < WHOLE; at += TILE)
		if (mmap(wide + at, TILE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
			return NULL;
	for (size_t i = 0; i < EDGES; i++)
		if (mmap(wide + edges[i], OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			 0) == MAP_FAILED)
			return NULL;
	close(fd);
	return wide;
}

static void move_wide(const char *drivers, bool to_itself)
{
	unsigned char *local = map_wide(), *remote = map_wide();
	struct lw_engine *engine = test_engine(drivers), *target = to_itself ? engine : test_engine(drivers);
	struct lw_request request = {
		.local = local, .offset = (uint64_t)(uintptr_t)remote, .length = WHOLE, .timeout_ms = 60000};
	uint64_t seed = test_seed();
	struct lw_channel *channel;

	if (local == NULL || remote == NULL) {
		print_message("skipped: no addresses for twice 4.5 GiB\n");
		skip();
		return; /* not reached, which an analyser can't see */
	}
	test_register(engine, local, WHOLE, LW_ACCESS_LOCAL);
	test_register(target, remote, WHOLE, LW_ACCESS_REMOTE);
	request.segment = to_itself ? LW_SEGMENT_LOCAL : test_segment(engine, target);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	for (uint8_t op = LW_READ; op <= LW_WRITE; op++) {
		unsigned char *from = op == LW_READ ? remote : local, *to = op == LW_READ ? local : remote;
		struct lw_task_status status;
		uint64_t begin_ms;

		for (size_t i = 0; i < EDGES; i++) {
			test_fill(from + edges[i], OWN, test_random(&seed));
			memset(to + edges[i], 0, OWN);
		}
		test_fill(from + MIB, MIB, test_random(&seed));
		memset(to + MIB, 0, MIB);
		request.op = op;
		begin_ms = test_now_ms();
		status = test_transfer(engine, channel, request);
		print_message("%s in %u ms\n", op == LW_READ ? "READ" : "WRITE", (unsigned)(test_now_ms() - begin_ms));
		assert_string_equal(lw_reason_string((int)status.reason), lw_reason_string(LW_REASON_NONE));
		assert_int_equal(status.bytes, WHOLE);
		for (size_t i = 0; i < EDGES; i++)
			assert_memory_equal(from + edges[i], to + edges[i], OWN);
		assert_memory_equal(from + MIB, to + MIB, MIB);
	}
	/* Nothing is cut at 2^32: a byte beyond the end is outside. */
	request.offset += 1;
	assert_int_equal(test_transfer(engine, channel, request).state, LW_FAILED);
	assert_int_equal(lw_engine_close(engine), 0);
	if (!to_itself)
		assert_int_equal(lw_engine_close(target), 0);
	munmap(local, WHOLE);
	munmap(remote, WHOLE);
}

static void test_transfer_of_4608_mib_over_tcp_exact(void **state)
{
	(void)state;
	move_wide("drivers=tcp", false);
}

static void test_transfer_of_4608_mib_inside_one_engine_exact(void **state)
{
	(void)state;
	move_wide("drivers=shm,tcp", true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transfer_of_4608_mib_over_tcp_exact),
		cmocka_unit_test(test_transfer_of_4608_mib_inside_one_engine_exact),
	};

	if (TEST_ASAN || TEST_TSAN) {
		print_message("skipped: a sanitizer's shadow of 9 GiB takes too much memory and time\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
