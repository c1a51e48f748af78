/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes: bytes each way, what peers can't reach, notifications, and peers that go. */
#include "compat/host.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define AREA (1024 * PAGE)

static transfer_engine_t engine;
static struct host_peer peer;
static segment_id_t id;
static unsigned char *memory;

static int start(void **state)
{
	(void)state;
	memory = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(memory != MAP_FAILED);
	engine = host_engine();
	assert_int_equal(registerLocalMemory(engine, memory, AREA, "*", 1), 0);
	host_peer_start(&peer, AREA);
	id = openSegment(engine, peer.name);
	assert_int_equal(id, 1);
	return 0;
}

static int end(void **state)
{
	(void)state;
	destroyTransferEngine(engine);
	munmap(memory, AREA);
	return 0;
}

static void test_transfers_move_the_bytes_both_ways(void **state)
{
	struct transfer_status status;
	uint64_t sum = 0;
	char text[32];

	(void)state;
	status = host_transfer(engine, OPCODE_READ, memory, id, peer.addr, AREA);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(status.transferred_bytes, AREA);
	for (size_t i = 0; i < AREA; i++)
		assert_int_equal(memory[i], 'p');
	for (size_t i = 0; i < AREA; i++) {
		memory[i] = (unsigned char)(i * 7 + i / 251);
		sum += memory[i];
	}
	status = host_transfer(engine, OPCODE_WRITE, memory, id, peer.addr, AREA);
	assert_int_equal(status.status, STATUS_COMPLETED);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)sum);
	assert_string_equal(host_peer_ask(&peer, "sum"), text);
}

static void test_submitTransfer_four_thousand_requests_in_a_batch(void **state)
{
	static struct transfer_request requests[4096];
	batch_id_t batch = allocateBatchID(engine, 4096);
	struct transfer_status status;

	(void)state;
	for (size_t i = 0; i < 4096; i++)
		requests[i] = (struct transfer_request){OPCODE_READ, memory + i * 1000, id, peer.addr + i * 1000, 1000};
	memset(memory, 0, AREA);
	assert_int_equal(submitTransfer(engine, batch, requests, 4096), 0);
	for (size_t i = 0; i < 4096; i++)
		assert_int_equal(host_wait(engine, batch, i).status, STATUS_COMPLETED);
	assert_int_equal(waitBatchTransfer(engine, batch, 20000, &status), 0);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(status.transferred_bytes, 4096 * 1000);
	assert_int_equal(freeBatchID(engine, batch), 0);
	for (size_t i = 0; i < 4096 * 1000; i++)
		assert_int_equal(memory[i], (unsigned char)(i * 7 + i / 251));
}

static void test_memory_that_was_not_offered_is_not_reached(void **state)
{
	struct transfer_status status;
	char before[32];

	(void)state;
	snprintf(before, sizeof(before), "%s", host_peer_ask(&peer, "sum"));
	memset(memory, 'x', PAGE);
	status = host_transfer(engine, OPCODE_READ, memory, id, peer.secret, 16);
	assert_int_equal(status.status, STATUS_FAILED);
	status = host_transfer(engine, OPCODE_WRITE, memory, id, peer.secret, 16);
	assert_int_equal(status.status, STATUS_FAILED);
	/* One byte behind the offer, and a range over its end. */
	status = host_transfer(engine, OPCODE_READ, memory, id, peer.addr + AREA, 1);
	assert_int_equal(status.status, STATUS_FAILED);
	status = host_transfer(engine, OPCODE_WRITE, memory, id, peer.addr + AREA - 4, 8);
	assert_int_equal(status.status, STATUS_FAILED);
	assert_int_equal(status.transferred_bytes, 0);
	assert_string_equal(host_peer_ask(&peer, "sum"), before);
	for (size_t i = 0; i < PAGE; i++)
		assert_int_equal(memory[i], 'x');
}

static void test_notifications_reach_another_process(void **state)
{
	notify_msg_t msg = {(char *)(uintptr_t) "alice", (char *)(uintptr_t) "hello"};
	struct transfer_request request = {OPCODE_WRITE, memory, id, peer.addr, 16};
	batch_id_t batch = allocateBatchID(engine, 1);
	uint64_t start_ms = host_now_ms();

	(void)state;
	assert_int_equal(genNotifyInEngine(engine, (uint64_t)id, msg), 0);
	assert_string_equal(host_peer_ask(&peer, "notes"), "1 alice=hello");
	msg.msg = (char *)(uintptr_t) "written";
	assert_int_equal(submitTransferWithNotify(engine, batch, &request, 1, msg), 0);
	while (strcmp(host_peer_ask(&peer, "notes"), "2 alice=written") != 0) {
		assert_true(host_now_ms() - start_ms < 20000);
		usleep(1000);
	}
	assert_int_equal(freeBatchID(engine, batch), 0); /* never polled */
	assert_int_equal(probePeerAliveByID(engine, id), 0);
}

/* Registered ranges are known to those who open again. */
static void test_withdrawn_memory_is_not_reached(void **state)
{
	(void)state;
	assert_string_equal(host_peer_ask(&peer, "withdraw"), "0");
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, peer.addr, 16).status, STATUS_FAILED);
	assert_int_equal(openSegmentNoCache(engine, peer.name), id);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, peer.addr, 16).status, STATUS_FAILED);
}

/* Last: the peer is gone. */
static void test_peer_that_was_killed_fails_transfers_and_no_more(void **state)
{
	struct transfer_request requests[64];
	notify_msg_t msg = {(char *)(uintptr_t) "n", (char *)(uintptr_t) "m"};
	batch_id_t batch = allocateBatchID(engine, 64);

	(void)state;
	host_peer_kill(&peer);
	for (size_t i = 0; i < 64; i++)
		requests[i] = (struct transfer_request){OPCODE_READ, memory + i * PAGE, id, peer.addr, PAGE};
	assert_int_equal(submitTransfer(engine, batch, requests, 64), 0);
	for (size_t i = 0; i < 64; i++)
		assert_int_equal(host_wait(engine, batch, i).status, STATUS_FAILED);
	assert_int_equal(freeBatchID(engine, batch), 0);
	assert_int_equal(probePeerAliveByID(engine, id), 1);
	assert_int_equal(genNotifyInEngine(engine, (uint64_t)id, msg), -102);
	assert_int_equal(openSegment(engine, peer.name), id);
	assert_int_equal(removeLocalSegment(engine, peer.name), 0);
	assert_int_equal(openSegment(engine, peer.name), -1);
}

static void test_peer_that_ends_in_order_and_another_one(void **state)
{
	struct host_peer other;
	segment_id_t next;

	(void)state;
	host_peer_start(&other, AREA);
	next = openSegment(engine, other.name);
	assert_int_equal(next, 2);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, next, other.addr, AREA).status, STATUS_COMPLETED);
	host_peer_end(&other);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, next, other.addr, AREA).status, STATUS_FAILED);
}

/* The same name, another life: the id fails until the name is opened again, and then means the new one. */
static void test_peer_that_restarts_under_its_name_keeps_its_id(void **state)
{
	struct host_peer first, second;
	segment_id_t next;
	char port[16];
	int number;

	(void)state;
	host_peer_start(&first, AREA);
	next = openSegment(engine, first.name);
	assert_true(next > 0);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, next, first.addr, PAGE).status, STATUS_COMPLETED);
	number = atoi(strrchr(first.name, ':') + 1);
	host_peer_kill(&first);
	/* A range of two, for the handshake and the data: one of few tries gets the same. */
	snprintf(port, sizeof(port), "%d", number);
	setenv("LW_PORT_MIN", port, 1);
	snprintf(port, sizeof(port), "%d", number + 1);
	setenv("LW_PORT_MAX", port, 1);
	for (int i = 0; i < 50; i++) {
		host_peer_start(&second, AREA);
		if (strcmp(second.name, first.name) == 0)
			break;
		host_peer_end(&second);
	}
	unsetenv("LW_PORT_MIN");
	unsetenv("LW_PORT_MAX");
	assert_string_equal(second.name, first.name);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, next, second.addr, PAGE).status, STATUS_FAILED);
	assert_int_equal(openSegmentNoCache(engine, second.name), next);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, next, second.addr, PAGE).status, STATUS_COMPLETED);
	assert_int_equal(probePeerAliveByID(engine, next), 0);
	host_peer_end(&second);
}

/* The engine is destroyed while requests to a peer that answers nothing are under way. */
static void test_destroyTransferEngine_with_a_frozen_peer_takes_a_moment(void **state)
{
	transfer_engine_t own = host_engine();
	struct transfer_request requests[64];
	struct host_peer frozen;
	uint64_t start_ms;
	segment_id_t target;
	batch_id_t batch;

	(void)state;
	host_peer_start(&frozen, AREA);
	target = openSegment(own, frozen.name);
	assert_int_equal(target, 1);
	kill(frozen.pid, SIGSTOP);
	for (size_t i = 0; i < 64; i++)
		requests[i] = (struct transfer_request){OPCODE_READ, memory, target, frozen.addr, AREA};
	batch = allocateBatchID(own, 64);
	assert_int_equal(submitTransfer(own, batch, requests, 64), 0);
	assert_int_equal(freeBatchID(own, batch), 4);
	assert_int_equal(cancelBatchTransfer(own, batch), 0);
	for (size_t i = 0; i < 64; i++)
		assert_int_equal(host_wait(own, batch, i).status, STATUS_CANCELED);
	assert_int_equal(freeBatchID(own, batch), 0);
	batch = allocateBatchID(own, 64);
	assert_int_equal(submitTransfer(own, batch, requests, 64), 0);
	start_ms = host_now_ms();
	destroyTransferEngine(own);
	assert_true(host_now_ms() - start_ms < 5000);
	assert_int_equal(freeBatchID(own, batch), 1);
	kill(frozen.pid, SIGCONT);
	host_peer_end(&frozen);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transfers_move_the_bytes_both_ways),
		cmocka_unit_test(test_submitTransfer_four_thousand_requests_in_a_batch),
		cmocka_unit_test(test_memory_that_was_not_offered_is_not_reached),
		cmocka_unit_test(test_notifications_reach_another_process),
		cmocka_unit_test(test_withdrawn_memory_is_not_reached),
		cmocka_unit_test(test_peer_that_was_killed_fails_transfers_and_no_more),
		cmocka_unit_test(test_peer_that_ends_in_order_and_another_one),
		cmocka_unit_test(test_peer_that_restarts_under_its_name_keeps_its_id),
		cmocka_unit_test(test_destroyTransferEngine_with_a_frozen_peer_takes_a_moment),
	};
	int status;

	host_quiet();
	if (host_peer_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, start, end);
}
