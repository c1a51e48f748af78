/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes with an RDMA device each, then with four each: whatever one does to the other's memory is exact, both
 * ways, the bytes go over the wire, and each of several devices has its share of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"
#include "lab/rails.h"

#define AREA ((uint64_t)8 << 20)
#define HALF (AREA / 2)
#define MTU 4096

static uint64_t seed;

/* Requests of a random size fill half of an area; what is at "from" must have arrived at "to". */
static uint64_t pick_length(uint32_t *count)
{
	static const uint64_t lengths[] = {1, 13, 4095, 4096, 65536, 65537, 1 << 20, HALF};
	uint64_t length = lengths[test_random(&seed) % (sizeof(lengths) / sizeof(lengths[0]))];

	*count = (uint32_t)(HALF / length < 64 ? HALF / length : 64);
	return length;
}

/* We move bytes between our memory and the peer's. */
static void move_here(struct lw_engine *engine, lw_segment_t segment, unsigned char *memory, struct peer *peer)
{
	uint32_t count;
	uint64_t length = pick_length(&count);
	struct lw_request request = {.local = memory,
				     .segment = segment,
				     .offset = peer->addr,
				     .length = length,
				     .op = test_random(&seed) % 2 == 0 ? LW_READ : LW_WRITE};
	char expected[32];

	test_fill(memory, HALF, test_random(&seed));
	peer_expect(peer, "ok", "fill 0 %" PRIu64 " %" PRIu64, HALF, test_random(&seed));
	rail_move(engine, &request, count);
	snprintf(expected, sizeof(expected), "sum %08x", test_crc(memory, length * count));
	peer_expect(peer, expected, "sum 0 %" PRIu64, length * count);
}

/* The peer moves bytes between its memory and ours. */
static void move_there(const char *handle, unsigned char *memory, struct peer *peer)
{
	const char *op = test_random(&seed) % 2 == 0 ? "read" : "write";
	char expected[32];
	uint32_t count;
	uint64_t length = pick_length(&count);

	test_fill(memory + HALF, HALF, test_random(&seed));
	peer_expect(peer, "ok", "fill %" PRIu64 " %" PRIu64 " %" PRIu64, HALF, HALF, test_random(&seed));
	snprintf(expected, sizeof(expected), "ran %u 0 0 0 ", count);
	peer_expect(peer, expected, "run %s %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %u 15000", op, handle, HALF,
		    (uint64_t)(uintptr_t)memory + HALF, length, count);
	snprintf(expected, sizeof(expected), "sum %08x", test_crc(memory + HALF, length * count));
	peer_expect(peer, expected, "sum %" PRIu64 " %" PRIu64, HALF, length * count);
}

static void exchange(const char *settings, const char *const *options, unsigned rounds)
{
	unsigned char *memory = test_map(AREA, NULL);
	struct lw_engine *engine = test_engine(settings);
	lw_segment_t segment;
	struct peer peer;
	char handle[32];

	test_register(engine, memory, AREA, LW_ACCESS_REMOTE);
	peer_start(&peer, AREA, options);
	segment = rail_open(engine, &peer);
	peer_expect(&peer, "segment ", "open %s", lw_engine_name(engine));
	snprintf(handle, sizeof(handle), "%s", peer.line + strlen("segment "));
	for (unsigned i = 0; i < rounds; i++) {
		move_here(engine, segment, memory, &peer);
		move_there(handle, memory, &peer);
	}
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(memory, AREA);
}

static void test_two_devices_exchange_exact_over_the_wire(void **state)
{
	static const char *const options[] = {"drivers=rdma", "rdma_devices=rxe1", NULL};
	uint64_t before[2] = {rail_packets(0), rail_packets(1)}, idle = rail_packets(2);

	(void)state;
	exchange(OVER("rxe0"), options, 12);
	print_message("rxe0 sent %" PRIu64 " packets, rxe1 %" PRIu64 "\n", rail_packets(0) - before[0],
		      rail_packets(1) - before[1]);
	assert_true(rail_packets(0) - before[0] > 2 * HALF / MTU);
	assert_true(rail_packets(1) - before[1] > 2 * HALF / MTU);
	assert_int_equal(rail_packets(2), idle);
}

static void test_two_devices_with_busy_workers_exact(void **state)
{
	static const char *const options[] = {"drivers=rdma", "rdma_devices=rxe2", "poll=busy", NULL};

	(void)state;
	exchange("drivers=rdma poll=busy rdma_devices=rxe3", options, 4);
}

/* 256 requests of 64 KiB: no device is left out, none carries it all. */
static void test_four_devices_each_has_its_share(void **state)
{
	enum { BLOCK = 65536, BLOCKS = 128 };
	static const char *const options[] = {"drivers=rdma", "rdma_devices=rxe0,rxe1,rxe2,rxe3", NULL};
	struct lw_engine *engine = test_engine(OVER("rxe0,rxe1,rxe2,rxe3"));
	uint64_t before[RAILS], sent[RAILS], sum = 0;
	unsigned char *memory = test_map(AREA, NULL);
	struct lw_request request = {.local = memory, .length = BLOCK, .op = LW_WRITE};
	char expected[32];
	struct peer peer;

	(void)state;
	test_register(engine, memory, AREA, LW_ACCESS_LOCAL);
	test_fill(memory, AREA, test_random(&seed));
	peer_start(&peer, AREA, options);
	request.segment = rail_open(engine, &peer);
	request.offset = peer.addr;
	rail_move(engine, &request, 1); /* the first lanes are made */
	for (unsigned i = 0; i < RAILS; i++)
		before[i] = rail_packets(i);
	for (unsigned i = 0; i < 4; i++)
		rail_move(engine, &request, BLOCKS);
	for (unsigned i = 0; i < RAILS; i++) {
		sent[i] = rail_packets(i) - before[i];
		sum += sent[i];
	}
	print_message("packets: %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", sent[0], sent[1], sent[2], sent[3]);
	for (unsigned i = 0; i < RAILS; i++)
		assert_in_range(sent[i], sum / 20, sum / 2);
	snprintf(expected, sizeof(expected), "sum %08x", test_crc(memory, AREA));
	peer_expect(&peer, expected, "sum 0 %" PRIu64, AREA);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(memory, AREA);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_devices_exchange_exact_over_the_wire),
		cmocka_unit_test(test_two_devices_with_busy_workers_exact),
		cmocka_unit_test(test_four_devices_each_has_its_share),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	if (!rails_here())
		return 77;
	seed = test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
