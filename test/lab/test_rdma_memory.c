/* SPDX-License-Identifier: Apache-2.0 */
/* Registration with RDMA devices: many large buffers, one of 4 GiB, and buffers that go while bytes move. What is
 * registered is 4 GiB of addresses; the pages below are those of a small file, mapped again and again, since a device
 * pins every page it is told and the lab's machine has not so many. The last page of each buffer is its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"
#include "lab/rails.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define CHUNK (64 * MIB)
#define CHUNKS 64
#define PAGE 4096

static uint64_t seed;

/* 4 GiB of addresses over one file of 64 MiB; the last page of each chunk is one of its own. */
static unsigned char *map_chunks(void)
{
	int file = memfd_create("pages", MFD_CLOEXEC), own = memfd_create("own", MFD_CLOEXEC);
	unsigned char *memory =
		mmap(NULL, CHUNKS * CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_true(file >= 0 && own >= 0 && memory != MAP_FAILED);
	assert_int_equal(ftruncate(file, (off_t)CHUNK), 0);
	assert_int_equal(ftruncate(own, (off_t)CHUNKS * PAGE), 0);
	for (uint64_t i = 0; i < CHUNKS; i++) {
		unsigned char *at = memory + i * CHUNK;

		assert_ptr_equal(mmap(at, CHUNK - PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), at);
		assert_ptr_equal(mmap(at + CHUNK - PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own,
				      (off_t)(i * PAGE)),
				 at + CHUNK - PAGE);
	}
	close(file);
	close(own);
	return memory;
}

/* A block to the end of each chunk, and back from the chunk after it: each has what is its own. */
static void write_and_read(struct lw_engine *engine, struct lw_request request, unsigned char *memory,
			   unsigned char *local)
{
	request.local = local;
	request.length = 2 * PAGE;
	for (uint64_t i = 0; i < CHUNKS; i++) {
		test_fill(local, 2 * PAGE, i);
		request.op = LW_WRITE;
		request.offset = (uint64_t)(uintptr_t)memory + (i + 1) * CHUNK - 2 * PAGE;
		rail_move(engine, &request, 1);
	}
	for (uint64_t i = 0; i < CHUNKS; i++) {
		unsigned char expected[2 * PAGE];

		test_fill(expected, sizeof(expected), i);
		assert_memory_equal(memory + (i + 1) * CHUNK - PAGE, expected + PAGE, PAGE);
		memset(local, 0, 2 * PAGE);
		request.op = LW_READ;
		request.offset = (uint64_t)(uintptr_t)memory + (i + 1) * CHUNK - 2 * PAGE;
		rail_move(engine, &request, 1);
		assert_memory_equal(local + PAGE, expected + PAGE, PAGE);
	}
}

/* Two engines of this process, on two devices. The second one's memory is registered in so many pieces. */
static void large(uint32_t pieces)
{
	struct lw_engine *engine = test_engine(OVER("rxe0")), *target = test_engine(OVER("rxe1"));
	unsigned char *memory = map_chunks(), *local = test_map(MIB, NULL);
	struct lw_memory list[CHUNKS];
	struct lw_request request = {0};
	lw_buffer_t ids[CHUNKS];
	uint64_t begin_ms = test_now_ms(), registered_ms;

	for (uint32_t i = 0; i < pieces; i++)
		list[i] = (struct lw_memory){.addr = memory + i * (CHUNKS * CHUNK / pieces),
					     .length = CHUNKS * CHUNK / pieces,
					     .access = LW_ACCESS_REMOTE};
	if (lw_memory_register(target, list, pieces, ids) != 0)
		fail_msg("%s", lw_last_error());
	registered_ms = test_now_ms();
	test_register(engine, local, MIB, LW_ACCESS_LOCAL);
	request.segment = test_segment(engine, target);
	write_and_read(engine, request, memory, local);
	if (pieces == 1) { /* one request over both marks that 32 bits can't pass */
		static const uint64_t places[] = {2 * GIB - PAGE, 4 * GIB - 2 * PAGE};

		for (int i = 0; i < 2; i++) {
			test_fill(local, 2 * PAGE, test_random(&seed));
			request.local = local;
			request.length = 2 * PAGE;
			request.op = LW_WRITE;
			request.offset = (uint64_t)(uintptr_t)memory + places[i];
			rail_move(engine, &request, 1);
			assert_memory_equal(memory + places[i], local, 2 * PAGE);
		}
	}
	print_message("%u buffers of %" PRIu64 " MiB: registered in %" PRIu64 " ms\n", pieces,
		      CHUNKS * CHUNK / pieces / MIB, registered_ms - begin_ms);
	assert_int_equal(lw_memory_unregister(target, ids, pieces, 0), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(target), 0);
	munmap(memory, CHUNKS * CHUNK);
	test_unmap(local, MIB);
}

static void test_register_64_buffers_of_64_mib_each_reached(void **state)
{
	(void)state;
	large(CHUNKS);
}

static void test_register_one_buffer_of_4_gib_reached_everywhere(void **state)
{
	(void)state;
	large(1);
}

/* The peer takes its memory back while we write to it and read it: what ends after that is refused or failed, and not
 * a byte changes there any more. */
static void test_peer_unregisters_under_load_nothing_changes_afterwards(void **state)
{
	enum { BLOCK = 65536, DEPTH = 32, ROUNDS = 5 };
	static const char *const options[] = {"drivers=rdma", "rdma_devices=rxe1", "offer=0:2097152:3", NULL};
	struct lw_engine *engine = test_engine(OVER("rxe0"));
	unsigned char *local = test_map(DEPTH * BLOCK, NULL);

	(void)state;
	test_register(engine, local, DEPTH * BLOCK, LW_ACCESS_LOCAL);
	for (int round = 0; round < ROUNDS; round++) {
		struct lw_request list[DEPTH];
		struct lw_channel *channel = NULL;
		struct lw_batch_status status;
		char expected[32];
		struct peer peer;
		lw_batch_t batch;
		lw_segment_t segment;

		peer_start(&peer, DEPTH * BLOCK, options);
		segment = rail_open(engine, &peer);
		assert_int_equal(lw_channel_self(engine, &channel), 0);
		for (uint32_t i = 0; i < DEPTH; i++)
			list[i] = (struct lw_request){.local = local + i * BLOCK,
						      .segment = segment,
						      .offset = peer.addr + i * BLOCK,
						      .length = BLOCK,
						      .op = (uint8_t)(i % 4 == 0 ? LW_READ : LW_WRITE)};
		rail_move(engine, list, 1);
		assert_int_equal(lw_batch_alloc(channel, 8 * DEPTH, 0, NULL, &batch), 0);
		for (int i = 0; i < 8; i++)
			test_submit(channel, batch, list, DEPTH);
		test_sleep_ms((uint32_t)(test_random(&seed) % 100));
		peer_expect(&peer, "ok", "withdraw 0");
		peer_expect(&peer, "ok", "fill 0 %u %d", DEPTH * BLOCK, round);
		peer_ask(&peer, "sum 0 %u", DEPTH * BLOCK);
		snprintf(expected, sizeof(expected), "%.20s", peer.line);
		if (lw_batch_wait(engine, batch, 60000, &status) != 0)
			fail_msg("not all ended: %s", lw_last_error());
		assert_int_equal(lw_batch_free(engine, batch), 0);
		for (int i = 0; i < 5; i++)
			assert_int_not_equal(test_transfer(engine, channel, list[1]).state, LW_COMPLETED);
		peer_expect(&peer, expected, "sum 0 %u", DEPTH * BLOCK);
		print_message("%u of %u had completed\n", status.tasks - status.failed, status.tasks);
		assert_int_equal(lw_segment_close(engine, segment), 0);
		peer_end(&peer);
	}
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, DEPTH * BLOCK);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_register_64_buffers_of_64_mib_each_reached),
		cmocka_unit_test(test_register_one_buffer_of_4_gib_reached_everywhere),
		cmocka_unit_test(test_peer_unregisters_under_load_nothing_changes_afterwards),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	if (!rails_here())
		return 77;
	seed = test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
