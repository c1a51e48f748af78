/* SPDX-License-Identifier: Apache-2.0 */
/* A host whose engines find each other by names in a metadata store. "test_stores URL" runs all of it over a store that
 * somebody else has started, and who does to it what lines "do: WORDS" on standard output ask for ("freeze", "thaw",
 * "stop", "restart", "behave CODE"), answering each with a line, "yes" or "no": test/sys/test_compat_stores.py. Without
 * a URL it runs what needs no store. */
#include "compat/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define AREA (256 * PAGE)
#define METADATA -200

static const char *url;
static transfer_engine_t engine;
static unsigned char *memory;

/* Asks the one who runs the store. False: that can't be done with this kind. */
static bool ask_store(const char *what)
{
	char line[16];

	printf("do: %s\n", what);
	fflush(stdout);
	if (fgets(line, sizeof(line), stdin) == NULL)
		fail_msg("nobody does what the store is to do");
	return strcmp(line, "yes\n") == 0;
}

static transfer_engine_t open_as(const char *name)
{
	transfer_engine_t opened = createTransferEngine(url, name, "10.9.8.7", 4711, 1);

	if (opened == NULL)
		fail_msg("no engine %s: %s", name, getTransferEngineError());
	return opened;
}

static void assert_said(const char *part)
{
	if (strstr(getTransferEngineError(), part) == NULL)
		fail_msg("\"%s\" does not say %s", getTransferEngineError(), part);
}

static int start(void **state)
{
	(void)state;
	memory = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(memory != MAP_FAILED);
	if (url != NULL) {
		engine = open_as("node5");
		assert_int_equal(registerLocalMemory(engine, memory, AREA, "*", 1), 0);
	}
	return 0;
}

static int end(void **state)
{
	(void)state;
	if (url != NULL)
		destroyTransferEngine(engine);
	munmap(memory, AREA);
	return 0;
}

/* ---- Without a store. ---- */

static void test_createTransferEngine_store_that_is_not_there_gives_null_and_a_reason(void **state)
{
	static const char *const urls[] = {"http://127.0.0.1:1/metadata", "redis://127.0.0.1:1", "etcd://127.0.0.1:1",
					   "127.0.0.1:1"};
	uint64_t start_ms = host_now_ms();

	(void)state;
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		assert_null(createTransferEngine(urls[i], "node5", "", 0, 1));
		assert_said("metadata store");
		assert_said("127.0.0.1:1");
	}
	assert_true(host_now_ms() - start_ms < 30000);
}

static void test_createTransferEngine_strings_that_name_no_store_give_null_and_a_reason(void **state)
{
	static const char *const urls[] = {"http://",
					   "http:///metadata",
					   "redis://",
					   "etcd://",
					   "http://u:p@127.0.0.1:1/metadata",
					   "redis://127.0.0.1:99999",
					   "ftp://127.0.0.1:1",
					   "p2phandshake://x"};
	char line[2] = "\n";

	(void)state;
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		if (createTransferEngine(urls[i], "node5", "", 0, 1) != NULL)
			fail_msg("%s gives an engine", urls[i]);
		assert_said("metadata store");
	}
	assert_null(createTransferEngine("http://127.0.0.1:1/metadata", line, "", 0, 1));
	assert_said("name");
	assert_null(createTransferEngine("http://127.0.0.1:1/metadata", "///", "", 0, 1));
	assert_said("name");
}

/* ---- With one. ---- */

static void test_getLocalIpAndPort_is_the_address_and_not_the_name(void **state)
{
	char address[128], expected[32];

	(void)state;
	assert_int_equal(getLocalIpAndPort(engine, address, sizeof(address)), 0);
	snprintf(expected, sizeof(expected), "127.0.0.1:%d", getRpcPort(engine));
	assert_string_equal(address, expected);
	assert_int_not_equal(getRpcPort(engine), 4711);
	assert_int_equal(getLocalIpAndPort(engine, address, 5), -1);
	assert_string_equal(address, "127.");
}

static void test_openSegment_finds_names_of_every_kind(void **state)
{
	static const char *const names[] = {"node6",       "a/b",  "10.0.0.5", "node 7 \"x\" %2F&=?#+",
					    "n\303\266de", "x:y:z"};

	(void)state;
	assert_int_equal(openSegment(engine, "node5"), LOCAL_SEGMENT);
	assert_int_equal(openSegment(engine, "/node5"), LOCAL_SEGMENT);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char slashed[64], address[128];
		struct host_peer peer;
		segment_id_t id;

		host_peer_start_in(&peer, AREA, url, names[i]);
		id = openSegment(engine, names[i]);
		if (id <= 0)
			fail_msg("%s: %d, %s", names[i], id, getTransferEngineError());
		snprintf(slashed, sizeof(slashed), "//%s", names[i]);
		assert_int_equal(openSegment(engine, slashed), id);
		/* An address is no name here, unless somebody has it for a name. */
		snprintf(address, sizeof(address), "%s", peer.name);
		assert_int_equal(openSegment(engine, address), -1);
		assert_said(address);
		memset(memory, 0, AREA);
		assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, peer.addr, AREA).status,
				 STATUS_COMPLETED);
		for (size_t k = 0; k < AREA; k++)
			assert_int_equal(memory[k], 'p');
		memset(memory, 1, AREA);
		assert_int_equal(host_transfer(engine, OPCODE_WRITE, memory, id, peer.addr, AREA).status,
				 STATUS_COMPLETED);
		assert_int_equal(atoi(host_peer_ask(&peer, "sum")), AREA);
		assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, peer.secret, 16).status, STATUS_FAILED);
		host_peer_end(&peer);
		assert_int_equal(openSegment(engine, names[i]), id); /* what was known of it stays */
		assert_int_equal(removeLocalSegment(engine, names[i]), 0);
		assert_int_equal(openSegment(engine, names[i]), -1); /* it took its documents away */
		assert_said(names[i]);
	}
}

static void test_peer_that_asks_back_by_our_name(void **state)
{
	transfer_engine_t other = open_as("a/c");
	segment_id_t id = openSegment(other, "node5");
	char page[PAGE];

	(void)state;
	assert_true(id > 0);
	memset(memory, 'n', PAGE);
	assert_int_equal(host_transfer(other, OPCODE_READ, page, id, (uint64_t)(uintptr_t)memory, PAGE).status,
			 STATUS_COMPLETED);
	assert_memory_equal(page, memory, PAGE);
	destroyTransferEngine(other);
}

static void test_notifications_and_probes_by_name(void **state)
{
	notify_msg_t msg = {(char *)(uintptr_t) "alice", (char *)(uintptr_t) "hello"};
	struct host_peer peer;
	segment_id_t id;

	(void)state;
	host_peer_start_in(&peer, PAGE, url, "listener");
	assert_int_equal(sendNotifyByName(engine, "listener", msg), 0);
	assert_string_equal(host_peer_ask(&peer, "notes"), "1 alice=hello");
	id = openSegment(engine, "listener");
	assert_int_equal(genNotifyInEngine(engine, (uint64_t)id, msg), 0);
	assert_string_equal(host_peer_ask(&peer, "notes"), "2 alice=hello");
	assert_int_equal(sendNotifyByName(engine, "nobody", msg), METADATA);
	assert_said("nobody");
	assert_int_equal(genNotifyInEngine(engine, 9999, msg), METADATA);
	assert_int_equal(probePeerAliveByID(engine, id), 0);
	host_peer_kill(&peer);
	assert_int_equal(probePeerAliveByID(engine, id), 1);
	assert_int_equal(genNotifyInEngine(engine, (uint64_t)id, msg), -102);
}

static void test_peer_that_restarts_has_its_id_after_syncSegmentCache(void **state)
{
	struct host_peer first, second;
	segment_id_t id;

	(void)state;
	host_peer_start_in(&first, AREA, url, "phoenix");
	id = openSegment(engine, "phoenix");
	assert_true(id > 0);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, first.addr, PAGE).status, STATUS_COMPLETED);
	host_peer_kill(&first);
	host_peer_start_in(&second, AREA, url, "phoenix");
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, second.addr, PAGE).status, STATUS_FAILED);
	assert_int_equal(syncSegmentCache(engine), 0);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, second.addr, PAGE).status, STATUS_COMPLETED);
	assert_int_equal(openSegmentNoCache(engine, "phoenix"), id);
	host_peer_end(&second);
	assert_int_equal(syncSegmentCacheByName(engine, "phoenix"), -1);
	assert_int_equal(syncSegmentCacheByName(engine, "never-opened"), -1);
	assert_int_equal(syncSegmentCache(engine), 0);
}

static void test_withdrawn_memory_is_not_reached(void **state)
{
	struct host_peer peer;
	segment_id_t id;

	(void)state;
	host_peer_start_in(&peer, AREA, url, "miser");
	id = openSegment(engine, "miser");
	assert_string_equal(host_peer_ask(&peer, "withdraw"), "0");
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, peer.addr, PAGE).status, STATUS_FAILED);
	assert_int_equal(syncSegmentCacheByName(engine, "miser"), 0);
	assert_string_equal(host_peer_ask(&peer, "withdraw"), "-3");
	host_peer_end(&peer);
}

/* What the store does not take is not registered; what it is not told is taken back all the same. The codes are those
 * of the metadata family. */
static void assert_refused(void)
{
	static unsigned char pages[3][PAGE];
	buffer_entry_t list[2] = {{pages[1], PAGE}, {pages[2], PAGE}};
	notify_msg_t msg = {(char *)(uintptr_t) "n", (char *)(uintptr_t) "m"};
	void *addrs[2] = {pages[1], pages[2]};

	assert_int_equal(registerLocalMemory(engine, pages[0], PAGE, "*", 1), METADATA);
	assert_said("metadata store");
	assert_int_equal(registerLocalMemoryBatch(engine, list, 2, "*"), METADATA);
	assert_int_equal(unregisterLocalMemory(engine, pages[0]), -3);
	assert_int_equal(registerLocalMemory(engine, pages[0], PAGE, "*", 0), 0); /* which no peer has to know */
	assert_int_equal(unregisterLocalMemory(engine, pages[0]), 0);
	assert_int_equal(unregisterLocalMemory(engine, memory), METADATA);
	assert_said("metadata store");
	assert_int_equal(unregisterLocalMemory(engine, memory), -3);
	assert_int_equal(unregisterLocalMemoryBatch(engine, addrs, 2), -3);
	assert_int_equal(openSegment(engine, "nobody"), -1);
	assert_said("nobody");
	assert_int_equal(sendNotifyByName(engine, "nobody", msg), METADATA);
	assert_null(createTransferEngine(url, "late", "", 0, 1));
	assert_said("metadata store");
	assert_int_equal(openSegment(engine, "node5"), LOCAL_SEGMENT);
}

static void assert_well(void)
{
	uint64_t start_ms = host_now_ms();
	int code;

	while ((code = registerLocalMemory(engine, memory, AREA, "*", 1)) != 0) {
		assert_int_equal(code, METADATA);
		if (host_now_ms() - start_ms > 20000)
			fail_msg("the store is back, and registering fails: %s", getTransferEngineError());
		host_sleep_ms(100);
	}
	test_peer_that_asks_back_by_our_name(NULL);
}

static void test_store_that_refuses_is_an_error_of_the_very_call(void **state)
{
	static const char *const codes[] = {"behave 507", "behave 403", "behave 500", "behave 405", "behave 413"};

	(void)state;
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		if (!ask_store(codes[i])) {
			print_message("not run: this store can't be told to refuse\n");
			skip();
		}
		assert_refused();
		assert_true(ask_store("behave"));
		assert_well();
	}
}

static void test_store_that_is_frozen_costs_its_time_and_no_more(void **state)
{
	struct host_peer peer;
	segment_id_t id;
	uint64_t start_ms;

	(void)state;
	host_peer_start_in(&peer, AREA, url, "neighbour");
	id = openSegment(engine, "neighbour");
	assert_true(ask_store("freeze"));
	start_ms = host_now_ms();
	assert_refused();
	assert_true(host_now_ms() - start_ms < 20000);
	/* Peers that are known go on. */
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory, id, peer.addr, PAGE).status, STATUS_COMPLETED);
	assert_true(ask_store("thaw"));
	assert_well();
	host_peer_end(&peer);
}

static void test_store_that_is_gone_and_comes_back(void **state)
{
	(void)state;
	assert_true(ask_store("stop"));
	assert_refused();
	assert_true(ask_store("restart"));
	assert_well();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest without[] = {
		cmocka_unit_test(test_createTransferEngine_store_that_is_not_there_gives_null_and_a_reason),
		cmocka_unit_test(test_createTransferEngine_strings_that_name_no_store_give_null_and_a_reason),
	};
	const struct CMUnitTest with[] = {
		cmocka_unit_test(test_getLocalIpAndPort_is_the_address_and_not_the_name),
		cmocka_unit_test(test_openSegment_finds_names_of_every_kind),
		cmocka_unit_test(test_peer_that_asks_back_by_our_name),
		cmocka_unit_test(test_notifications_and_probes_by_name),
		cmocka_unit_test(test_peer_that_restarts_has_its_id_after_syncSegmentCache),
		cmocka_unit_test(test_withdrawn_memory_is_not_reached),
		cmocka_unit_test(test_store_that_refuses_is_an_error_of_the_very_call),
		cmocka_unit_test(test_store_that_is_frozen_costs_its_time_and_no_more),
		cmocka_unit_test(test_store_that_is_gone_and_comes_back),
	};
	int status;

	host_quiet();
	setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1", 1);
	setenv("LW_STORE_TIMEOUT_MS", "1000", 0);
	setenv("LW_HANDSHAKE_TIMEOUT_MS", "1500", 0);
	if (host_peer_main(argc, argv, &status))
		return status;
	url = argc == 2 ? argv[1] : NULL;
	return url != NULL ? cmocka_run_group_tests(with, start, end) : cmocka_run_group_tests(without, start, end);
}
