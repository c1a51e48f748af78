/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA driver over devices of this process (common/nics.h): registration, handshakes, broken ports. What moves the
 * bytes right is the conformance suite's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/nics.h"
#include "drivers/rdma/endpoint.h"
#include "drivers/rdma/verbs.h"
#include "lib/engine.h"
#include "meta/frame.h"
#include "meta/handshake.h"
#include "meta/matrix.h"

#define MIB ((size_t)1 << 20)
#define AREA (4 * MIB)

struct side {
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *memory;
	lw_buffer_t buffer;
	lw_segment_t segment; /* the other one's */
	struct side *other;
};

static int set_nics(void **state)
{
	(void)state;
	test_nics(2);
	return 0;
}

static struct side open_side(const char *settings)
{
	struct side side = {.engine = test_engine(settings), .memory = test_map(AREA, NULL)};

	side.buffer = test_register(side.engine, side.memory, AREA, LW_ACCESS_REMOTE);
	assert_int_equal(lw_channel_self(side.engine, &side.channel), 0);
	return side;
}

static void introduce(struct side *a, struct side *b)
{
	a->other = b;
	b->other = a;
	a->segment = test_segment(a->engine, b->engine);
	b->segment = test_segment(b->engine, a->engine);
}

static void close_side(struct side *side)
{
	assert_int_equal(lw_engine_close(side->engine), 0);
	test_unmap(side->memory, AREA);
}

static struct lw_task_status move(struct side *side, enum lw_op op, size_t at, size_t length)
{
	struct lw_request request = {.local = side->memory + at,
				     .segment = side->segment,
				     .offset = (uint64_t)(uintptr_t)side->other->memory + at,
				     .length = length,
				     .op = (uint8_t)op};

	return test_transfer(side->engine, side->channel, request);
}

/* Slices that lanes of the driver carried. */
static uint64_t carried(struct lw_engine *engine, const char *driver)
{
	struct lw_lane_stats lanes[64];
	int count = lw_stats_lanes(engine, lanes, 64);
	uint64_t slices = 0;

	for (int i = 0; i < count && i < 64; i++)
		if (strcmp(lanes[i].driver, driver) == 0)
			slices += lanes[i].slices;
	return slices;
}

static void test_transfer_both_ways_over_one_connection_and_nothing_stays(void **state)
{
	struct side a = open_side("drivers=rdma,tcp"), b = open_side("drivers=rdma,tcp");
	uint32_t qps;

	(void)state;
	introduce(&a, &b);
	test_fill(a.memory, MIB, 5);
	assert_int_equal(move(&a, LW_WRITE, 0, MIB).state, LW_COMPLETED);
	assert_memory_equal(a.memory, b.memory, MIB);
	TEST_EVENTUALLY(test_nics_qps() == 8); /* two devices, two queue pairs, both ends */
	qps = test_nics_qps();
	/* The other side finds the connections made. */
	test_fill(b.memory + MIB, MIB, 6);
	assert_int_equal(move(&b, LW_WRITE, MIB, MIB).state, LW_COMPLETED);
	assert_memory_equal(a.memory + MIB, b.memory + MIB, MIB);
	assert_int_equal(test_nics_qps(), qps);
	assert_true(carried(a.engine, "rdma") > 0 && carried(b.engine, "rdma") > 0);
	assert_int_equal(carried(a.engine, "tcp") + carried(b.engine, "tcp"), 0);
	close_side(&a);
	close_side(&b);
	assert_int_equal(test_nics_qps(), 0);
	assert_int_equal(test_nics_regions(), 0);
}

static void test_register_local_memory_has_no_remote_rights(void **state)
{
	const int remote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	struct lw_engine *engine = test_engine("drivers=rdma,tcp");
	unsigned char *memory = test_map(3 * MIB, NULL);

	(void)state;
	test_register(engine, memory, MIB, LW_ACCESS_LOCAL);
	test_register(engine, memory + MIB, MIB, LW_ACCESS_REMOTE_READ);
	test_register(engine, memory + 2 * MIB, MIB, LW_ACCESS_REMOTE);
	assert_int_equal(test_nics_rights(memory) & remote, 0);
	assert_int_equal(test_nics_rights(memory + MIB) & remote, IBV_ACCESS_REMOTE_READ);
	assert_int_equal(test_nics_rights(memory + 2 * MIB) & remote, remote);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(memory, 3 * MIB);
}

static void test_register_list_of_which_one_fails_leaves_nothing(void **state)
{
	struct lw_engine *engine = test_engine("drivers=rdma,tcp rdma_max_mr_bytes=65536");
	unsigned char *memory = test_map(10 * MIB, NULL);
	struct lw_memory list[10];
	lw_buffer_t ids[10];

	(void)state;
	for (int i = 0; i < 10; i++)
		list[i] =
			(struct lw_memory){.addr = memory + (size_t)i * MIB, .length = MIB, .access = LW_ACCESS_REMOTE};
	for (uint32_t skip = 0; skip < 320; skip += 53) {
		test_nics_refuse(skip);
		assert_int_equal(lw_memory_register(engine, list, 10, ids), -ENOMEM);
		assert_non_null(strstr(lw_last_error(), "ulimit"));
		assert_int_equal(test_nics_regions(), 0);
	}
	assert_int_equal(lw_memory_register(engine, list, 10, ids), 0);
	assert_int_equal(test_nics_regions(), 10 * 16 * 2);
	assert_int_equal(lw_memory_unregister(engine, ids, 10, 0), 0);
	assert_int_equal(test_nics_regions(), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(memory, 10 * MIB);
}

static void test_document_shows_devices_keys_and_matrix(void **state)
{
	struct side a = open_side("drivers=rdma,tcp rdma_max_mr_bytes=1048576");
	struct lw_desc *desc;
	size_t size;
	char *text;

	(void)state;
	assert_int_equal(lw_segment_document(a.engine, &text, &size), 0);
	assert_non_null(strstr(text, "\"protocol\":\"rdma\""));
	assert_non_null(strstr(text, "{\"gid\":\"00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:01\",\"lid\":0,\"name\":"
				     "\"nic0\"}"));
	assert_int_equal(lw_desc_decode(text, size, &desc, NULL, 0), 0);
	assert_int_equal(desc->rdma.device_count, 2);
	assert_string_equal(desc->rdma.devices[1].name, "nic1");
	assert_non_null(desc->rdma.matrix);
	assert_int_equal(desc->rdma.matrix->device_count, 2);
	assert_int_equal(desc->buffer_count, 4); /* a piece each */
	assert_int_equal(desc->rdma.key_count, 8);
	for (size_t i = 0; i < 4; i++) {
		assert_string_equal(desc->buffers[i].name, "*");
		assert_true(desc->buffers[i].key != 0);
		assert_true(desc->rdma.keys[desc->buffers[i].key - 1].rkey != 0);
		assert_true(desc->rdma.keys[desc->buffers[i].key].lkey != 0);
	}
	lw_desc_free(desc);
	free(text);
	close_side(&a);
}

static void test_open_unwanted_device_is_left_out(void **state)
{
	struct lw_engine *engine = test_engine("drivers=rdma,tcp rdma_devices=nic1");
	char *text;
	size_t size;

	(void)state;
	assert_int_equal(lw_segment_document(engine, &text, &size), 0);
	assert_non_null(strstr(text, "nic1"));
	assert_null(strstr(text, "nic0"));
	free(text);
	assert_int_equal(lw_engine_close(engine), 0);
	/* None at all: off, with the reason, and the others work. */
	engine = test_engine("drivers=rdma,tcp rdma_devices=mlx5_0 log_level=error");
	assert_int_equal(lw_driver_index(engine, "rdma", 4), -1);
	assert_non_null(strstr(engine->driver_note[1], "rdma_devices"));
	assert_int_equal(lw_engine_close(engine), 0);
}

/* RDMA has no proof of the secret: an engine that wants one does not let peers in by it. */
static void test_open_with_a_secret_is_off(void **state)
{
	struct lw_engine *engine = test_engine("drivers=rdma,tcp tcp_secret=shared log_level=error");

	(void)state;
	assert_int_equal(lw_driver_index(engine, "rdma", 4), -1);
	assert_non_null(strstr(engine->driver_note[1], "tcp_secret"));
	assert_int_equal(lw_engine_close(engine), 0);
}

struct writer {
	struct side *side;
	pthread_barrier_t *start;
	size_t at;
	int rounds;
	uint32_t reason; /* of the first that did not complete */
};

static void *write_on(void *arg)
{
	struct writer *writer = arg;
	struct side side = *writer->side;

	if (lw_channel_self(side.engine, &side.channel) != 0)
		return NULL;
	pthread_barrier_wait(writer->start);
	for (int i = 0; i < writer->rounds && writer->reason == 0; i++)
		writer->reason = (uint32_t)move(&side, i % 2 == 0 ? LW_WRITE : LW_READ, writer->at, 3000).reason;
	return NULL;
}

static void test_both_sides_call_at_once_all_complete(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct side side[2] = {open_side("drivers=rdma workers=2"), open_side("drivers=rdma workers=2")};
		pthread_barrier_t start;
		struct writer writer[4];
		pthread_t thread[4];

		introduce(&side[0], &side[1]);
		pthread_barrier_init(&start, NULL, 4);
		for (int i = 0; i < 4; i++) {
			writer[i] = (struct writer){
				.side = &side[i % 2], .start = &start, .at = (size_t)i * MIB, .rounds = 20};
			assert_int_equal(pthread_create(&thread[i], NULL, write_on, &writer[i]), 0);
		}
		for (int i = 0; i < 4; i++) {
			pthread_join(thread[i], NULL);
			assert_int_equal(writer[i].reason, LW_REASON_NONE);
		}
		pthread_barrier_destroy(&start);
		close_side(&side[0]);
		close_side(&side[1]);
		assert_int_equal(test_nics_qps(), 0);
	}
}

/* Batches of WRITEs until told to stop. */
struct load {
	struct side *side;
	atomic_bool stop;
	atomic_uint done, failed, reason; /* of the last that failed */
};

static void *load_on(void *arg)
{
	struct load *load = arg;
	struct side side = *load->side;

	if (lw_channel_self(side.engine, &side.channel) != 0)
		return NULL;
	while (!atomic_load(&load->stop)) {
		struct lw_task_status status = move(&side, LW_WRITE, 0, 3 * MIB);

		if (status.state != LW_COMPLETED) {
			atomic_store(&load->reason, status.reason);
			atomic_fetch_add(&load->failed, 1);
		}
		atomic_fetch_add(&load->done, 1);
	}
	return NULL;
}

/* How many lanes of our own are up. */
static uint32_t lanes_up(const struct side *side)
{
	struct lw_lane_stats lanes[16];
	int count = lw_stats_lanes(side->engine, lanes, 16);
	uint32_t up = 0;

	for (int i = 0; i < count && i < 16; i++)
		up += lanes[i].target == 0 && lanes[i].state == LW_LANE_UP;
	return up;
}

/* Ports go down and up under load; all lanes are there again each time, and no request fails. Queue pairs that are on
 * their way out beside new ones that the peer has not joined are as many. */
static void take_ports_down(const char *ours, const char *theirs, const uint32_t *ports, uint32_t count)
{
	char settings[2][160];
	struct side a, b;
	struct load load = {.side = &a};
	pthread_t thread;

	snprintf(settings[0], sizeof(settings[0]), "drivers=rdma slice_bytes=65536 log_level=error %s", ours);
	snprintf(settings[1], sizeof(settings[1]), "drivers=rdma log_level=error %s", theirs);
	a = open_side(settings[0]);
	b = open_side(settings[1]);
	introduce(&a, &b);
	assert_int_equal(pthread_create(&thread, NULL, load_on, &load), 0);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t before = atomic_load(&load.done);

		TEST_EVENTUALLY(atomic_load(&load.done) > before + 5);
		test_nic_port(ports[i], false);
		before = atomic_load(&load.done);
		TEST_EVENTUALLY(atomic_load(&load.done) > before + 5);
		test_nic_port(ports[i], true);
		TEST_EVENTUALLY(test_nics_qps() == 8 && lanes_up(&a) == 4);
	}
	atomic_store(&load.stop, true);
	pthread_join(thread, NULL);
	if (atomic_load(&load.failed) != 0)
		fail_msg("%u of %u failed: %s", atomic_load(&load.failed), atomic_load(&load.done),
			 lw_reason_string((int)atomic_load(&load.reason)));
	close_side(&a);
	close_side(&b);
	assert_int_equal(test_nics_qps(), 0);
}

static void test_port_down_under_load_other_device_takes_over(void **state)
{
	static const uint32_t ports[] = {0, 1, 0, 1, 0, 1};

	(void)state;
	take_ports_down("", "", ports, 6);
}

static void test_port_of_the_peer_down_under_load_other_device_takes_over(void **state)
{
	static const uint32_t ports[] = {2, 3, 2, 3, 2, 3};

	(void)state;
	test_nics(4);
	take_ports_down("rdma_devices=nic0,nic1", "rdma_devices=nic2,nic3", ports, 6);
}

static void test_only_port_down_fails_and_comes_back(void **state)
{
	struct side a, b;

	(void)state;
	test_nics(1);
	a = open_side("drivers=rdma log_level=error");
	b = open_side("drivers=rdma log_level=error");
	introduce(&a, &b);
	assert_int_equal(move(&a, LW_WRITE, 0, MIB).state, LW_COMPLETED);
	test_nic_port(0, false);
	TEST_EVENTUALLY(move(&a, LW_WRITE, 0, MIB).reason == LW_REASON_UNREACHABLE);
	test_nic_port(0, true);
	TEST_EVENTUALLY(move(&a, LW_WRITE, 0, MIB).state == LW_COMPLETED);
	close_side(&a);
	close_side(&b);
}

/* A device that stands still: the deadline decides, and the queue pair is broken before the request has ended. */
static void test_device_stands_still_deadline_ends_it(void **state)
{
	struct side a = open_side("drivers=rdma timeout_ms=300 log_level=error"), b = open_side("drivers=rdma");

	(void)state;
	introduce(&a, &b);
	assert_int_equal(move(&a, LW_WRITE, 0, MIB).state, LW_COMPLETED);
	test_nics_budget(0);
	assert_int_equal(move(&a, LW_WRITE, 0, MIB).state, LW_TIMEOUT);
	test_nics_budget(UINT64_MAX);
	TEST_EVENTUALLY(move(&a, LW_WRITE, 0, MIB).state == LW_COMPLETED);
	close_side(&a);
	close_side(&b);
}

/* The same without a deadline near: the lane is given up, and made again. */
static void test_device_stands_still_lane_is_made_again(void **state)
{
	struct side a = open_side("drivers=rdma rdma_timeout=10 rdma_retries=1 log_level=error"),
		    b = open_side("drivers=rdma");
	struct load load = {.side = &a};
	uint32_t before;
	pthread_t thread;

	(void)state;
	introduce(&a, &b);
	assert_int_equal(pthread_create(&thread, NULL, load_on, &load), 0);
	for (int i = 0; i < 3; i++) {
		before = atomic_load(&load.done);
		TEST_EVENTUALLY(atomic_load(&load.done) > before + 5);
		test_nics_budget(0);
		test_sleep_ms(20);
		test_nics_stuck();
		test_nics_budget(UINT64_MAX);
	}
	before = atomic_load(&load.done);
	TEST_EVENTUALLY(atomic_load(&load.done) > before + 5);
	atomic_store(&load.stop, true);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&load.failed), 0);
	close_side(&a);
	close_side(&b);
}

/* Connections to peers that are gone do not stay; those to peers that live do. */
static void test_peer_gone_its_queue_pairs_go_too(void **state)
{
	struct side a = open_side("drivers=rdma"), b = open_side("drivers=rdma"), c = open_side("drivers=rdma");

	(void)state;
	rdma_probe_ms = 50;
	introduce(&a, &b);
	assert_int_equal(move(&a, LW_WRITE, 0, MIB).state, LW_COMPLETED);
	TEST_EVENTUALLY(test_nics_qps() == 8);
	introduce(&a, &c);
	assert_int_equal(move(&a, LW_WRITE, 0, MIB).state, LW_COMPLETED);
	TEST_EVENTUALLY(test_nics_qps() == 16);
	assert_int_equal(lw_segment_close(a.engine, a.segment), 0);
	test_sleep_ms(1500);
	assert_int_equal(test_nics_qps(), 16);
	close_side(&c);
	TEST_EVENTUALLY(test_nics_qps() == 8);
	a.other = &b;
	a.segment = test_segment(a.engine, b.engine);
	assert_int_equal(move(&a, LW_WRITE, 0, MIB).state, LW_COMPLETED);
	close_side(&a);
	close_side(&b);
	rdma_probe_ms = 20000;
}

/* A peer that speaks the reference's side of the handshake. */
static struct lw_handshake say(struct lw_engine *from, struct lw_engine *to, const struct lw_handshake *words)
{
	struct lw_handshake reply;
	char *text, *answer;
	size_t size;
	int error;

	assert_int_equal(lw_handshake_encode(words, &text), 0);
	error = lw_ctrl_call(from->ctrl, &to->address, LW_FRAME_CONNECTION, text, strlen(text), 5000, &answer, &size);
	assert_int_equal(error, 0);
	assert_int_equal(lw_handshake_decode(answer, size, &reply, NULL, 0), 0);
	free(text);
	free(answer);
	return reply;
}

static struct lw_handshake first_words(struct lw_engine *to)
{
	struct lw_handshake words = {.local_path = "10.0.0.9:15000@mlx5_0",
				     .has_gid = true,
				     .gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 9},
				     .has_ready = true,
				     .qp_count = 2,
				     .qp = {312, 313}};

	assert_true(lw_nic_path(words.peer_path, lw_engine_name(to), "nic0", 0));
	return words;
}

static void test_serve_reference_joins_and_is_ready(void **state)
{
	struct lw_engine *engine = test_engine("drivers=rdma"), *other = test_engine("drivers=tcp");
	struct lw_handshake words = first_words(engine), reply, again;

	(void)state;
	reply = say(other, engine, &words);
	assert_string_equal(reply.reply, "");
	assert_string_equal(reply.local_path, words.peer_path);
	assert_string_equal(reply.peer_path, words.local_path);
	assert_int_equal(reply.qp_count, 2);
	assert_true(reply.has_ready && !reply.ready && reply.has_gid);
	assert_int_equal(test_nics_qps(), 2);
	/* Asked twice it is the same connection. */
	again = say(other, engine, &words);
	assert_memory_equal(again.qp, reply.qp, 2 * sizeof(reply.qp[0]));
	words.ready = true;
	assert_string_equal(say(other, engine, &words).reply, "");
	/* Other queue pairs: the peer was started again. */
	words.ready = false;
	words.qp[0] = 700;
	again = say(other, engine, &words);
	assert_string_equal(again.reply, "");
	assert_int_not_equal(again.qp[0], reply.qp[0]);
	assert_int_equal(test_nics_qps(), 2);
	assert_int_equal(lw_engine_close(other), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(test_nics_qps(), 0);
}

static void test_serve_what_does_not_fit_is_refused(void **state)
{
	struct lw_engine *engine = test_engine("drivers=rdma"), *other = test_engine("drivers=tcp");
	struct lw_handshake words = first_words(engine), wrong;

	(void)state;
	wrong = words;
	wrong.qp_count = 1;
	assert_non_null(strstr(say(other, engine, &wrong).reply, "MC_NUM_QP_PER_EP"));
	wrong = words;
	assert_true(lw_nic_path(wrong.peer_path, lw_engine_name(engine), "nic7", 0));
	assert_non_null(strstr(say(other, engine, &wrong).reply, "NIC path"));
	wrong = words;
	strcat(wrong.peer_path, "#1");
	assert_string_not_equal(say(other, engine, &wrong).reply, "");
	wrong = words;
	wrong.ready = true;
	assert_string_not_equal(say(other, engine, &wrong).reply, "");
	wrong = words;
	wrong.has_gid = false;
	assert_string_not_equal(say(other, engine, &wrong).reply, "");
	wrong = words;
	wrong.local_path[0] = '\0';
	assert_string_not_equal(say(other, engine, &wrong).reply, "");
	wrong = words;
	wrong.meant = engine->incarnation ^ 1;
	assert_string_not_equal(say(other, engine, &wrong).reply, "");
	assert_int_equal(test_nics_qps(), 0);
	/* Ready for other queue pairs than those that were joined. */
	assert_string_equal(say(other, engine, &words).reply, "");
	wrong = words;
	wrong.ready = true;
	wrong.qp[1] = 99;
	assert_string_not_equal(say(other, engine, &wrong).reply, "");
	assert_int_equal(lw_engine_close(other), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

/* Connections that nobody here uses are bounded. */
static void test_serve_many_peers_oldest_makes_room(void **state)
{
	struct lw_engine *engine = test_engine("drivers=rdma rdma_max_endpoints=16"),
			 *other = test_engine("drivers=tcp");
	struct lw_handshake words = first_words(engine);

	(void)state;
	for (int i = 0; i < 40; i++) {
		snprintf(words.local_path, sizeof(words.local_path), "10.0.0.9:%d@mlx5_0", 15000 + i);
		assert_string_equal(say(other, engine, &words).reply, "");
	}
	assert_int_equal(test_nics_qps(), 16 * 2);
	assert_int_equal(lw_engine_close(other), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(test_nics_qps(), 0);
}

/* An argument is a pattern of names. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_transfer_both_ways_over_one_connection_and_nothing_stays, set_nics),
		cmocka_unit_test_setup(test_register_local_memory_has_no_remote_rights, set_nics),
		cmocka_unit_test_setup(test_register_list_of_which_one_fails_leaves_nothing, set_nics),
		cmocka_unit_test_setup(test_document_shows_devices_keys_and_matrix, set_nics),
		cmocka_unit_test_setup(test_open_unwanted_device_is_left_out, set_nics),
		cmocka_unit_test_setup(test_open_with_a_secret_is_off, set_nics),
		cmocka_unit_test_setup(test_both_sides_call_at_once_all_complete, set_nics),
		cmocka_unit_test_setup(test_port_down_under_load_other_device_takes_over, set_nics),
		cmocka_unit_test_setup(test_port_of_the_peer_down_under_load_other_device_takes_over, set_nics),
		cmocka_unit_test_setup(test_only_port_down_fails_and_comes_back, set_nics),
		cmocka_unit_test_setup(test_device_stands_still_deadline_ends_it, set_nics),
		cmocka_unit_test_setup(test_device_stands_still_lane_is_made_again, set_nics),
		cmocka_unit_test_setup(test_peer_gone_its_queue_pairs_go_too, set_nics),
		cmocka_unit_test_setup(test_serve_reference_joins_and_is_ready, set_nics),
		cmocka_unit_test_setup(test_serve_what_does_not_fit_is_refused, set_nics),
		cmocka_unit_test_setup(test_serve_many_peers_oldest_makes_room, set_nics),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
