/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory lies decides which RDMA devices carry it: the location that each side registered, by the priority matrix
 * of each side, over devices of this process (common/nics.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/nics.h"
#include "drivers/rdma/rdma.h"

#define PART ((size_t)1 << 20)
#define PARTS 3 /* at cpu:0, at cpu:1, nobody says where */
#define MOVES 24

struct side {
	struct lw_engine *engine;
	unsigned char *memory;
};

/* Devices nic0 and nic1 here, nic2 and nic3 at the peer, which are paired in this order. */
struct rig {
	struct side here, there;
	struct lw_channel *channel;
	lw_segment_t segment;
};

static struct side open_side(const char *settings)
{
	static const char *const locations[PARTS] = {"cpu:0", "cpu:1", NULL};
	struct side side = {.engine = test_engine(settings), .memory = test_map(PARTS * PART, NULL)};
	struct lw_memory list[PARTS];
	lw_buffer_t ids[PARTS];

	for (size_t i = 0; i < PARTS; i++)
		list[i] = (struct lw_memory){.addr = side.memory + i * PART,
					     .length = PART,
					     .access = LW_ACCESS_REMOTE,
					     .location = locations[i]};
	if (lw_memory_register(side.engine, list, PARTS, ids) != 0)
		fail_msg("not registered: %s", lw_last_error());
	return side;
}

static uint32_t lanes_up(struct lw_engine *engine)
{
	struct lw_lane_stats lanes[16];
	int count = lw_stats_lanes(engine, lanes, 16);
	uint32_t up = 0;

	for (int i = 0; i < count && i < 16; i++)
		up += lanes[i].state == LW_LANE_UP;
	return up;
}

/* So many requests between these parts; all complete. */
static void move(const struct rig *rig, size_t here, size_t there, int moves)
{
	for (int i = 0; i < moves; i++) {
		size_t at = (size_t)i * 16384;
		struct lw_request request = {.local = rig->here.memory + here * PART + at,
					     .segment = rig->segment,
					     .offset = (uint64_t)(uintptr_t)rig->there.memory + there * PART + at,
					     .length = 16384,
					     .op = i % 2 == 0 ? LW_WRITE : LW_READ};

		assert_int_equal(test_transfer(rig->here.engine, rig->channel, request).state, LW_COMPLETED);
	}
}

static struct rig set_up(const char *ours, const char *theirs)
{
	struct rig rig;
	char text[512];

	test_nics(4);
	snprintf(text, sizeof(text), "drivers=rdma log_level=error rdma_devices=nic0,nic1 %s", ours);
	rig.here = open_side(text);
	snprintf(text, sizeof(text), "drivers=rdma log_level=error rdma_devices=nic2,nic3 %s", theirs);
	rig.there = open_side(text);
	assert_int_equal(lw_channel_self(rig.here.engine, &rig.channel), 0);
	rig.segment = test_segment(rig.here.engine, rig.there.engine);
	move(&rig, 2, 2, 1);
	TEST_EVENTUALLY(lanes_up(rig.here.engine) == 4);
	return rig;
}

static void tear_down(struct rig *rig)
{
	assert_int_equal(lw_engine_close(rig->here.engine), 0);
	assert_int_equal(lw_engine_close(rig->there.engine), 0);
	test_unmap(rig->here.memory, PARTS * PART);
	test_unmap(rig->there.memory, PARTS * PART);
}

/* Moves bytes between two parts: both devices carry some, or one of them, all. */
enum { NIC0, NIC1, BOTH };
static void check(const struct rig *rig, size_t here, size_t there, int expected)
{
	uint64_t before[2] = {test_nic_carried(0), test_nic_carried(1)}, carried[2];

	move(rig, here, there, MOVES);
	for (uint32_t i = 0; i < 2; i++)
		carried[i] = test_nic_carried(i) - before[i];
	assert_int_equal(carried[0] + carried[1], MOVES);
	if (expected == BOTH)
		assert_in_range(carried[0], 1, MOVES - 1);
	else
		assert_int_equal(carried[expected], MOVES);
}

#define OURS "topology={\"cpu:0\":[[\"nic0\"],[\"nic1\"]],\"cpu:1\":[[\"nic1\"],[\"nic0\"]]}"
/* The same the other way round: numbers of a matrix are not those of devices. */
#define OURS_CROSSED "topology={\"cpu:0\":[[\"nic1\"],[\"nic0\"]],\"cpu:1\":[[\"nic0\"],[\"nic1\"]]}"
#define THEIRS "topology={\"cpu:0\":[[\"nic2\"],[\"nic3\"]],\"cpu:1\":[[\"nic3\"],[\"nic2\"]]}"
#define ALIKE "topology={\"cpu:0\":[[\"nic2\",\"nic3\"],[]],\"cpu:1\":[[\"nic2\",\"nic3\"],[]]}"

static void test_location_here_its_device_carries(void **state)
{
	struct rig rig = set_up(OURS, ALIKE);

	(void)state;
	for (size_t there = 0; there < PARTS; there++) {
		check(&rig, 0, there, NIC0);
		check(&rig, 1, there, NIC1);
	}
	tear_down(&rig);
}

static void test_devices_of_the_matrix_are_found_by_name(void **state)
{
	struct rig rig = set_up(OURS_CROSSED, ALIKE);

	(void)state;
	check(&rig, 0, 2, NIC1);
	check(&rig, 1, 2, NIC0);
	tear_down(&rig);
}

static void test_location_of_the_peer_decides_where_ours_does_not(void **state)
{
	struct rig rig = set_up(OURS, THEIRS);

	(void)state;
	check(&rig, 2, 0, NIC0);
	check(&rig, 2, 1, NIC1);
	check(&rig, 0, 0, NIC0);
	check(&rig, 1, 1, NIC1);
	tear_down(&rig);
}

static void test_near_device_down_the_other_carries_until_it_is_back(void **state)
{
	struct rig rig = set_up(OURS, ALIKE);

	(void)state;
	test_nic_port(1, false);
	TEST_EVENTUALLY(lanes_up(rig.here.engine) == 2);
	check(&rig, 1, 2, NIC0);
	test_nic_port(1, true);
	TEST_EVENTUALLY((move(&rig, 2, 2, 1), lanes_up(rig.here.engine) == 4)); /* requests bring lanes back */
	check(&rig, 1, 2, NIC1);
	tear_down(&rig);
}

static const char *name_of(const void *names, size_t i)
{
	return ((const char *const *)names)[i];
}

static void test_near_row_without_our_devices_has_all(void **state)
{
	static const char *const names[] = {"nic0", "nic1"};
	struct lw_matrix matrix = {.device_count = 0};

	(void)state;
	assert_int_equal(rdma_near(&matrix, "cpu:0", name_of, names, 2), UINT64_MAX);
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", "elsewhere", true), 0);
	assert_int_equal(lw_matrix_add(&matrix, "cuda:1", "elsewhere", false), 0);
	assert_int_equal(lw_matrix_add(&matrix, "cuda:1", "nic1", true), 0);
	assert_int_equal(rdma_near(&matrix, "cpu:0", name_of, names, 2), UINT64_MAX);
	assert_int_equal(rdma_near(&matrix, "cuda:1", name_of, names, 2), 2);
	assert_int_equal(rdma_near(&matrix, "*", name_of, names, 2), UINT64_MAX);
	assert_int_equal(rdma_near(&matrix, NULL, name_of, names, 2), UINT64_MAX);
	lw_matrix_fini(&matrix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_location_here_its_device_carries),
		cmocka_unit_test(test_devices_of_the_matrix_are_found_by_name),
		cmocka_unit_test(test_location_of_the_peer_decides_where_ours_does_not),
		cmocka_unit_test(test_near_device_down_the_other_carries_until_it_is_back),
		cmocka_unit_test(test_near_row_without_our_devices_has_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
