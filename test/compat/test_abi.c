/* SPDX-License-Identifier: Apache-2.0 */
/* The interface within one process: layouts, constants, and what each function returns for what. */
#include "compat/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define AREA (64 * PAGE)

#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)

SIZE(struct transfer_request, 40);
AT(struct transfer_request, opcode, 0);
AT(struct transfer_request, source, 8);
AT(struct transfer_request, target_id, 16);
AT(struct transfer_request, target_offset, 24);
AT(struct transfer_request, length, 32);
SIZE(struct transfer_status, 16);
AT(struct transfer_status, status, 0);
AT(struct transfer_status, transferred_bytes, 8);
SIZE(struct notify_msg, 16);
AT(struct notify_msg, name, 0);
AT(struct notify_msg, msg, 8);
SIZE(struct buffer_entry, 16);
AT(struct buffer_entry, addr, 0);
AT(struct buffer_entry, length, 8);
SIZE(struct nic_load_stat, 80);
AT(struct nic_load_stat, device_name, 0);
AT(struct nic_load_stat, inflight_bytes, 64);
AT(struct nic_load_stat, ewma_bandwidth_bps, 72);
SIZE(struct segment_desc, 48);
AT(struct segment_desc, type, 0);
AT(struct segment_desc, desc_.rdma.addr, 8);
AT(struct segment_desc, desc_.rdma.size, 16);
AT(struct segment_desc, desc_.rdma.location, 24);
AT(struct segment_desc, desc_.nvmeof.file_path, 8);
AT(struct segment_desc, desc_.nvmeof.subsystem_name, 16);
AT(struct segment_desc, desc_.nvmeof.proto, 24);
AT(struct segment_desc, desc_.nvmeof.ip, 32);
AT(struct segment_desc, desc_.nvmeof.port, 40);

#if defined(segment_handle_t) && defined(segment_id_t) && defined(batch_id_t)
#define TYPES_ARE_MACROS 1
#else
#define TYPES_ARE_MACROS 0
#endif
_Static_assert(TYPES_ARE_MACROS, "programs may test for them");
_Static_assert((segment_id_t)-1 < 0 && sizeof(segment_id_t) == 4 && sizeof(segment_handle_t) == 4, "int32_t");
_Static_assert((batch_id_t)-1 > 0 && sizeof(batch_id_t) == 8, "uint64_t");
_Static_assert(LOCAL_SEGMENT == 0 && INVALID_BATCH == UINT64_MAX && OPCODE_READ == 0 && OPCODE_WRITE == 1, "values");
_Static_assert(STATUS_WAITING == 0 && STATUS_PENDING == 1 && STATUS_INVALID == 2 && STATUS_CANCELED == 3 &&
		       STATUS_COMPLETED == 4 && STATUS_TIMEOUT == 5 && STATUS_FAILED == 6,
	       "states");

static struct {
	transfer_engine_t engine;
	char *memory; /* AREA bytes, registered; a gap of a page follows, then AREA bytes that are not */
	char *loose;
} at;

static int open_engine(void **state)
{
	(void)state;
	at.engine = host_engine();
	at.memory = mmap(NULL, 2 * AREA + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(at.memory != MAP_FAILED);
	at.loose = at.memory + AREA + PAGE;
	assert_int_equal(registerLocalMemory(at.engine, at.memory, AREA, "cpu:0", 1), 0);
	return 0;
}

static int close_engine(void **state)
{
	(void)state;
	destroyTransferEngine(at.engine);
	munmap(at.memory, 2 * AREA + PAGE);
	return 0;
}

static uint64_t address(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

/* Not a failure: every call has an answer for a handle that is none. */
static void assert_no_engine(transfer_engine_t engine)
{
	struct transfer_request request = {OPCODE_READ, at.memory, 0, address(at.memory), 8};
	notify_msg_t msg = {(char *)(uintptr_t) "n", (char *)(uintptr_t) "m"};
	struct transfer_status status = {.status = 77};
	buffer_entry_t entry = {at.memory, 8};
	void *addr = at.memory;
	nic_load_stat_t load;
	size_t count = 5;
	char text[64];
	int size = 5;

	assert_int_equal(discoverTopology(engine), -1);
	assert_int_equal(getLocalIpAndPort(engine, text, sizeof(text)), -1);
	assert_null(installTransport(engine, "tcp", NULL));
	assert_int_equal(uninstallTransport(engine, "tcp"), 0);
	assert_int_equal(openSegment(engine, "127.0.0.1:1"), -1);
	assert_int_equal(openSegmentNoCache(engine, "127.0.0.1:1"), -1);
	assert_int_equal(closeSegment(engine, 1), 0);
	assert_int_equal(warmupEfaSegment(engine, "x"), 0);
	assert_int_equal(removeLocalSegment(engine, "x"), -1);
	destroyTransferEngine(engine);
	assert_int_equal(registerLocalMemory(engine, at.loose, 8, "*", 1), -1);
	assert_int_equal(unregisterLocalMemory(engine, at.memory), -1);
	assert_int_equal(registerLocalMemoryBatch(engine, &entry, 1, "*"), -1);
	assert_int_equal(unregisterLocalMemoryBatch(engine, &addr, 1), -1);
	assert_true(allocateBatchID(engine, 1) == INVALID_BATCH);
	assert_int_equal(submitTransfer(engine, 0, &request, 1), 1);
	assert_int_equal(submitTransferWithNotify(engine, 0, &request, 1, msg), 1);
	assert_null(getNotifsFromEngine(engine, &size));
	assert_int_equal(size, 0);
	assert_int_equal(genNotifyInEngine(engine, 0, msg), -1);
	assert_int_equal(getTransferStatus(engine, 0, 0, &status), 1);
	assert_int_equal(status.status, 77);
	assert_int_equal(freeBatchID(engine, 0), 1);
	assert_int_equal(syncSegmentCache(engine), -1);
	assert_int_equal(getNicLoadStats(engine, &load, &count), -1);
	enableGracefulShutdown(engine);
	assert_int_equal(showLinks(engine, text, sizeof(text), 0), -1);

	assert_int_equal(getBatchTransferStatus(engine, 0, &status), 1);
	assert_int_equal(waitBatchTransfer(engine, 0, 1, &status), 1);
	assert_int_equal(cancelBatchTransfer(engine, 0), 1);
	assert_int_equal(getTransferReason(engine, 0, 0, text, sizeof(text)), 1);
	assert_int_equal(probePeerAliveByID(engine, 0), -1);
	assert_int_equal(sendNotifyByName(engine, "127.0.0.1:1", msg), -1);
	assert_int_equal(syncSegmentCacheByName(engine, "127.0.0.1:1"), -1);
	assert_null(getSegmentDescString(engine, 0));
	assert_null(getLocalTopologyString(engine));
	assert_int_equal(getRpcPort(engine), 0);
	assert_true(strlen(getTransferEngineError()) > 10);
}

static void test_engine_handle_that_is_none_gets_an_error_everywhere(void **state)
{
	transfer_engine_t gone = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", NULL, 0, 0), next;

	(void)state;
	assert_non_null(gone);
	destroyTransferEngine(gone);
	assert_no_engine(gone);
	assert_no_engine(NULL);
	assert_no_engine((transfer_engine_t)(uintptr_t)1);
	assert_no_engine((transfer_engine_t)(uintptr_t)UINTPTR_MAX);
	assert_no_engine(&gone);
	assert_no_engine((char *)at.engine + 1);
	next = host_engine(); /* whatever place it takes, it is not the old one */
	assert_ptr_not_equal(next, gone);
	assert_no_engine(gone);
	destroyTransferEngine(next);
}

static void test_engine_null_arguments_get_an_error(void **state)
{
	struct transfer_request request = {OPCODE_READ, at.memory, 0, address(at.memory), 8};
	notify_msg_t msg = {(char *)(uintptr_t) "n", (char *)(uintptr_t) "m"}, none = {NULL, NULL};
	batch_id_t batch = allocateBatchID(at.engine, 2);
	nic_load_stat_t load;
	size_t count = 5;
	char text[64];

	(void)state;
	assert_null(createTransferEngine(NULL, "127.0.0.1", NULL, 0, 0));
	assert_int_equal(getLocalIpAndPort(at.engine, NULL, 64), -1);
	assert_int_equal(getLocalIpAndPort(at.engine, text, 0), -1);
	assert_null(installTransport(at.engine, NULL, NULL));
	assert_int_equal(openSegment(at.engine, NULL), -1);
	assert_int_equal(openSegmentNoCache(at.engine, NULL), -1);
	assert_int_equal(removeLocalSegment(at.engine, NULL), -1);
	assert_int_equal(registerLocalMemory(at.engine, NULL, 8, "*", 1), -1);
	assert_int_equal(unregisterLocalMemory(at.engine, NULL), -3);
	assert_int_equal(registerLocalMemoryBatch(at.engine, NULL, 1, "*"), -1);
	assert_int_equal(unregisterLocalMemoryBatch(at.engine, NULL, 1), -1);
	assert_int_equal(submitTransfer(at.engine, batch, NULL, 1), 1);
	assert_int_equal(submitTransferWithNotify(at.engine, batch, NULL, 1, msg), 1);
	assert_int_equal(submitTransferWithNotify(at.engine, batch, &request, 1, none), 1);
	assert_null(getNotifsFromEngine(at.engine, NULL));
	assert_int_equal(freeNotifsMsgBuf(NULL, 3), 0);
	assert_int_equal(genNotifyInEngine(at.engine, 0, none), -1);
	assert_int_equal(getTransferStatus(at.engine, batch, 0, NULL), 1);
	assert_int_equal(getNicLoadStats(at.engine, NULL, &count), -1);
	assert_int_equal(getNicLoadStats(at.engine, &load, NULL), -1);
	assert_int_equal(showLinks(at.engine, NULL, 8, 0), -1);
	assert_int_equal(showLinks(at.engine, text, 0, 0), -1);
	assert_int_equal(getBatchTransferStatus(at.engine, batch, NULL), 1);
	assert_int_equal(getTransferReason(at.engine, batch, 0, NULL, 8), 1);
	freeTransferEngineString(NULL);
	assert_int_equal(freeBatchID(at.engine, batch), 0);
}

static void test_createTransferEngine_bad_strings_give_null_and_the_process_lives(void **state)
{
	static const char *const strings[] = {"", "nonsense://127.0.0.1:1", "://", "P2PHANDSHAKE "};

	(void)state;
	for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
		assert_null(createTransferEngine(strings[i], "127.0.0.1", NULL, 0, 1));
	assert_null(createTransferEngine("P2PHANDSHAKE", "192.0.2.7", NULL, 0, 1)); /* not this host's */
	assert_null(createTransferEngine("P2PHANDSHAKE", "[::", NULL, 0, 1));
	assert_true(strlen(getTransferEngineError()) > 10);
}

static void test_getLocalIpAndPort_is_the_own_name_or_an_error_when_cut(void **state)
{
	char name[128], text[128], cut[8];
	transfer_engine_t other = createTransferEngine("P2PHANDSHAKE", "127.0.0.1:4242", "10.0.0.1", 4243, 1);

	(void)state;
	host_name(at.engine, name);
	assert_int_equal(strncmp(name, "127.0.0.1:", 10), 0);
	assert_int_equal(getRpcPort(at.engine), atoi(name + 10));
	assert_int_equal(getLocalIpAndPort(at.engine, cut, sizeof(cut)), -1);
	assert_string_equal(cut, "127.0.0");
	assert_non_null(other); /* the port of the name, and both other arguments, have no effect */
	assert_int_equal(strncmp(host_name(other, text), "127.0.0.1:", 10), 0);
	assert_string_not_equal(text, name);
	assert_int_not_equal(getRpcPort(other), 4242);
	destroyTransferEngine(other);
}

static void test_createTransferEngine_without_a_transport_gives_the_codes_for_that(void **state)
{
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 12345, 0);
	struct transfer_request request = {OPCODE_WRITE, at.loose, LOCAL_SEGMENT, address(at.loose + PAGE), PAGE};
	char name[128], slashed[136];
	batch_id_t batch;

	(void)state;
	assert_non_null(engine);
	host_name(engine, name);
	assert_int_equal(openSegment(engine, name), -1);
	assert_int_equal(unregisterLocalMemory(engine, at.loose), 0);
	assert_int_equal(registerLocalMemory(engine, at.loose, 2 * PAGE, "*", 1), 0);
	assert_int_equal(registerLocalMemory(engine, at.loose, PAGE, "*", 1), -7);
	batch = allocateBatchID(engine, 1);
	assert_int_equal(submitTransfer(engine, batch, &request, 1), 8);
	assert_int_equal(submitTransfer(engine, batch + 1, &request, 1), 1);
	assert_int_equal(submitTransfer(engine, batch, NULL, 0), 0);
	assert_non_null(installTransport(engine, "tcp", NULL));
	assert_int_equal(openSegment(engine, name), LOCAL_SEGMENT);
	snprintf(slashed, sizeof(slashed), "//%s", name);
	assert_int_equal(openSegmentNoCache(engine, slashed), LOCAL_SEGMENT);
	/* What was registered before is there. */
	memset(at.loose, 'a', PAGE);
	assert_int_equal(submitTransfer(engine, batch, &request, 1), 0);
	assert_int_equal(host_wait(engine, batch, 0).status, STATUS_COMPLETED);
	assert_memory_equal(at.loose, at.loose + PAGE, PAGE);
	assert_int_equal(freeBatchID(engine, batch), 0);
	assert_int_equal(unregisterLocalMemory(engine, at.loose), 0);
	assert_int_equal(unregisterLocalMemory(engine, at.loose), -3);
	/* Removing the own name does no harm. */
	assert_int_equal(removeLocalSegment(engine, name), 0);
	assert_int_equal(openSegment(engine, name), LOCAL_SEGMENT);
	assert_int_equal(registerLocalMemory(engine, at.loose, PAGE, "*", 1), 0);
	destroyTransferEngine(engine);
}

static void test_installTransport_knows_what_there_is(void **state)
{
	static const char *const others[] = {"efa", "TCP", "", "a very long name indeed"};
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 12345, 0);
	char good[] = "{\"cpu:0\":[[\"mlx5_0\"],[\"mlx5_1\"]]}", bad[] = "{\"cpu:0\":[[\"mlx5_0\"]]}";
	void *args[2] = {bad, NULL};
	transport_t tcp;
	char *text;

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_null(installTransport(engine, others[i], NULL));
	assert_null(installTransport(engine, "tcp", args));
	args[0] = good;
	tcp = installTransport(engine, "tcp", args);
	assert_non_null(tcp);
	text = getLocalTopologyString(engine);
	assert_string_equal(text, good);
	freeTransferEngineString(text);
	args[0] = bad;
	assert_ptr_equal(installTransport(engine, "tcp", args), tcp);
	args[0] = NULL;
	assert_non_null(installTransport(engine, "shm", args));
	assert_non_null(installTransport(engine, "nvmeof", args));
	assert_int_equal(uninstallTransport(engine, "tcp"), 0);
	assert_ptr_equal(installTransport(engine, "tcp", NULL), tcp);
	assert_int_equal(discoverTopology(engine), 0);
	text = getLocalTopologyString(engine);
	assert_non_null(text);
	assert_string_not_equal(text, good);
	freeTransferEngineString(text);
	destroyTransferEngine(engine);
}

static void test_showLinks_reports_as_text_and_json(void **state)
{
	static char text[1 << 20];
	nic_load_stat_t load;
	size_t count = 1;
	char few[8];

	(void)state;
	assert_int_equal(showLinks(at.engine, text, sizeof(text), 0), 0);
	assert_int_equal(strncmp(text, "=== Local NICs ===\n", 19), 0);
	assert_non_null(strstr(text, "\n=== Topology (NIC Selection) ===\n"));
	assert_int_equal(showLinks(at.engine, text, sizeof(text), 1), 0);
	assert_int_equal(strncmp(text, "{\"local_nics\":[", 15), 0);
	assert_non_null(strstr(text, "],\"topology\":"));
	assert_int_equal(showLinks(at.engine, few, sizeof(few), 0), -1);
	assert_string_equal(few, "=== Loc");
	assert_int_equal(getNicLoadStats(at.engine, &load, &count), 0);
	assert_int_equal(count, 0);
}

static void test_registerLocalMemory_codes(void **state)
{
	static const char segments[] = "segments:4096:0,1";
	char longest[200];

	(void)state;
	memset(longest, '0', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	memcpy(longest, segments, sizeof(segments) - 1);
	assert_int_equal(registerLocalMemory(at.engine, at.loose, 0, "*", 1), -1);
	assert_int_equal(registerLocalMemory(at.engine, at.loose, SIZE_MAX - 5, "*", 1), -1);
	assert_int_equal(registerLocalMemory(at.engine, at.memory, AREA, "*", 1), -7); /* again */
	assert_int_equal(registerLocalMemory(at.engine, at.memory + 1, 1, "*", 1), -7);
	assert_int_equal(registerLocalMemory(at.engine, at.memory + AREA - 1, PAGE, "*", 1), -7);
	assert_int_equal(registerLocalMemory(at.engine, at.memory + AREA, PAGE, segments, 1), 0); /* beside it */
	assert_int_equal(unregisterLocalMemory(at.engine, at.memory + 1), -3);
	assert_int_equal(unregisterLocalMemory(at.engine, at.memory + AREA), 0);
	assert_int_equal(unregisterLocalMemory(at.engine, at.memory + AREA), -3);
	assert_int_equal(registerLocalMemory(at.engine, at.loose, PAGE, NULL, 0), 0);
	assert_int_equal(unregisterLocalMemory(at.engine, at.loose), 0);
	assert_int_equal(registerLocalMemory(at.engine, at.loose, PAGE, longest, 1), 0);
	assert_int_equal(unregisterLocalMemory(at.engine, at.loose), 0);
}

static void test_registerLocalMemoryBatch_is_all_or_nothing(void **state)
{
	buffer_entry_t list[3] = {{at.loose, PAGE}, {at.loose + PAGE, PAGE}, {at.loose + 2 * PAGE, 0}};
	void *addrs[4] = {at.loose, at.loose + PAGE, at.loose + 2 * PAGE, at.loose + 1};

	(void)state;
	assert_int_equal(registerLocalMemoryBatch(at.engine, list, 0, "*"), 0);
	assert_int_equal(registerLocalMemoryBatch(at.engine, NULL, 0, "*"), 0);
	assert_int_equal(registerLocalMemoryBatch(at.engine, list, 3, "*"), -1);
	list[2] = (buffer_entry_t){at.loose + PAGE + 1, PAGE};
	assert_int_equal(registerLocalMemoryBatch(at.engine, list, 3, "*"), -7); /* among themselves */
	list[2] = (buffer_entry_t){at.memory, PAGE};
	assert_int_equal(registerLocalMemoryBatch(at.engine, list, 3, "*"), -7);
	assert_int_equal(unregisterLocalMemory(at.engine, at.loose), -3); /* nothing was left */
	list[2] = (buffer_entry_t){at.loose + 2 * PAGE, PAGE};
	assert_int_equal(registerLocalMemoryBatch(at.engine, list, 3, "cpu:0"), 0);
	addrs[3] = at.loose + 1;
	assert_int_equal(unregisterLocalMemoryBatch(at.engine, addrs, 4), -3); /* and the others went */
	assert_int_equal(registerLocalMemoryBatch(at.engine, list, 3, "cpu:0"), 0);
	assert_int_equal(unregisterLocalMemoryBatch(at.engine, addrs, 3), 0);
	assert_int_equal(unregisterLocalMemoryBatch(at.engine, addrs, 0), 0);
}

static void test_openSegment_codes(void **state)
{
	(void)state;
	assert_int_equal(openSegment(at.engine, ""), -1);
	assert_int_equal(openSegment(at.engine, "///"), -1);
	assert_int_equal(openSegment(at.engine, "127.0.0.1:1"), -1); /* nobody listens */
	if (!HOST_TSAN)
		assert_int_equal(openSegment(at.engine, "no.such.host.invalid:15000"), -1);
	assert_int_equal(removeLocalSegment(at.engine, "/"), -1);
	assert_int_equal(removeLocalSegment(at.engine, "who"), 0);
	assert_int_equal(closeSegment(at.engine, 4711), 0);
	assert_int_equal(closeSegment(at.engine, -1), 0);
	assert_int_equal(syncSegmentCache(at.engine), 0);
	assert_int_equal(syncSegmentCacheByName(at.engine, "who"), -1);
}

static void test_openSegment_ids_count_from_one_and_stay_with_their_names(void **state)
{
	transfer_engine_t first = host_engine(), second = host_engine(), third = host_engine();
	char one[128], two[128], three[128], own[128];

	(void)state;
	host_name(first, one);
	host_name(second, two);
	host_name(third, three);
	assert_int_equal(openSegment(at.engine, host_name(at.engine, own)), 0);
	assert_int_equal(openSegment(at.engine, one), 1);
	assert_int_equal(openSegment(at.engine, two), 2);
	assert_int_equal(openSegment(at.engine, one), 1);
	assert_int_equal(openSegmentNoCache(at.engine, one), 1);
	assert_int_equal(closeSegment(at.engine, 1), 0);
	assert_int_equal(openSegment(at.engine, one), 1);
	assert_int_equal(syncSegmentCache(at.engine), 0);
	assert_int_equal(openSegment(first, two), 1); /* ids are the opener's */
	assert_int_equal(openSegment(first, own), 2);
	/* A forgotten one gets the next number, and the old number is nobody's. */
	assert_int_equal(removeLocalSegment(at.engine, two), 0);
	assert_int_equal(probePeerAliveByID(at.engine, 2), -200);
	assert_int_equal(openSegment(at.engine, three), 3);
	assert_int_equal(openSegment(at.engine, two), 4);
	assert_int_equal(probePeerAliveByID(at.engine, 4), 0);
	assert_int_equal(probePeerAliveByID(at.engine, 0), 0);
	assert_int_equal(probePeerAliveByID(at.engine, -3), -200);
	destroyTransferEngine(third);
	assert_int_equal(probePeerAliveByID(at.engine, 3), 1);
	assert_int_equal(openSegment(at.engine, three), 3); /* known, though nobody answers */
	assert_int_equal(syncSegmentCache(at.engine), 0);
	assert_int_equal(syncSegmentCacheByName(at.engine, three), -1);
	assert_int_equal(syncSegmentCacheByName(at.engine, two), 0);
	destroyTransferEngine(first);
	destroyTransferEngine(second);
}

static void test_getSegmentDescString_tells_the_buffers(void **state)
{
	char expected[128], *text = getSegmentDescString(at.engine, LOCAL_SEGMENT);

	(void)state;
	assert_non_null(text);
	snprintf(expected, sizeof(expected), "{\"access\":\"rw\",\"addr\":%llu,\"length\":%d}",
		 (unsigned long long)address(at.memory), AREA);
	assert_non_null(strstr(text, expected));
	freeTransferEngineString(text);
	assert_null(getSegmentDescString(at.engine, 99));
}

static void test_submitTransfer_capacity_is_kept(void **state)
{
	struct transfer_request requests[9];
	struct transfer_status status = {.status = 77};
	batch_id_t batch = allocateBatchID(at.engine, 8), empty = allocateBatchID(at.engine, 0);

	(void)state;
	for (size_t i = 0; i < 8; i++)
		requests[i] = (struct transfer_request){OPCODE_WRITE, at.memory + i, LOCAL_SEGMENT,
							address(at.memory + PAGE + i), 1};
	assert_int_equal(submitTransfer(at.engine, empty, requests, 1), 2);
	assert_int_equal(submitTransfer(at.engine, empty, requests, 0), 0);
	assert_int_equal(getTransferStatus(at.engine, empty, 0, &status), 1);
	assert_int_equal(getBatchTransferStatus(at.engine, empty, &status), 0);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(freeBatchID(at.engine, empty), 0);
	assert_int_equal(submitTransfer(at.engine, batch, requests, 9), 2); /* looks at none of them */
	assert_int_equal(submitTransfer(at.engine, batch, requests, 5), 0);
	requests[1].target_id = 99;
	assert_int_equal(submitTransfer(at.engine, batch, requests, 4), 2); /* before the segment is looked at */
	assert_int_equal(submitTransfer(at.engine, batch, requests, 3), 1);
	assert_int_equal(getTransferStatus(at.engine, batch, 5, &status), 1); /* left no trace */
	requests[1].target_id = LOCAL_SEGMENT;
	assert_int_equal(submitTransfer(at.engine, batch, requests, 3), 0);
	memset(requests, 0xff, sizeof(requests)); /* the caller's again */
	for (size_t i = 0; i < 8; i++) {
		status = host_wait(at.engine, batch, i);
		assert_int_equal(status.status, STATUS_COMPLETED);
		assert_int_equal(status.transferred_bytes, 1);
	}
	assert_int_equal(getTransferStatus(at.engine, batch, 8, &status), 1);
	assert_int_equal(getTransferStatus(at.engine, batch, SIZE_MAX, &status), 1);
	assert_int_equal(getTransferStatus(at.engine, batch, (size_t)1 << 32, &status), 1);
	assert_int_equal(getTransferStatus(at.engine, batch, 0, &status), 0); /* again, after its end */
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(freeBatchID(at.engine, batch), 0);
	assert_true(allocateBatchID(at.engine, SIZE_MAX) == INVALID_BATCH);
	assert_true(allocateBatchID(at.engine, (size_t)1 << 32) == INVALID_BATCH);
}

static void test_submitTransfer_refusals(void **state)
{
	const struct transfer_request good = {OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.memory + PAGE), 8};
	struct transfer_request request[2] = {good, good};
	batch_id_t batch = allocateBatchID(at.engine, 2);
	struct transfer_status status;

	(void)state;
	request[1].target_id = 99;
	assert_int_equal(submitTransfer(at.engine, batch, request, 2), 1);
	request[1].target_id = -1;
	assert_int_equal(submitTransfer(at.engine, batch, request, 2), 1);
	request[1].target_id = INT32_MIN;
	assert_int_equal(submitTransfer(at.engine, batch, request, 2), 1);
	request[1] = good;
	request[1].opcode = 5;
	assert_int_equal(submitTransfer(at.engine, batch, request, 2), 1);
	request[1].opcode = 256; /* READ, if it were cut to a byte */
	assert_int_equal(submitTransfer(at.engine, batch, request, 2), 1);
	request[1] = good;
	request[1].source = NULL;
	assert_int_equal(submitTransfer(at.engine, batch, request, 2), 1);
	request[1] = good;
	request[1].target_offset = UINT64_MAX - 3;
	assert_int_equal(submitTransfer(at.engine, batch, request, 2), 1);
	assert_int_equal(getTransferStatus(at.engine, batch, 0, &status), 1);
	assert_int_equal(freeBatchID(at.engine, batch), 0);
}

static void test_submitTransfer_corner_cases_have_their_outcome(void **state)
{
	struct transfer_status status;
	char reason[300];
	batch_id_t batch;
	struct transfer_request outside = {OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.memory + AREA - 4), 8};

	(void)state;
	status = host_transfer(at.engine, OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.memory), 0);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(status.transferred_bytes, 0);
	status = host_transfer(at.engine, OPCODE_READ, NULL, LOCAL_SEGMENT, 0, 0);
	assert_int_equal(status.status, STATUS_COMPLETED);
	/* Local memory that nobody registered works; what is not there fails. */
	memset(at.loose, 'u', PAGE);
	status = host_transfer(at.engine, OPCODE_WRITE, at.loose, LOCAL_SEGMENT, address(at.memory), PAGE);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(status.transferred_bytes, PAGE);
	assert_memory_equal(at.memory, at.loose, PAGE);
	status = host_transfer(at.engine, OPCODE_WRITE, (void *)(uintptr_t)16, LOCAL_SEGMENT, address(at.memory), 8);
	assert_int_equal(status.status, STATUS_FAILED);
	/* As a target it must be registered. */
	status = host_transfer(at.engine, OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.loose), 8);
	assert_int_equal(status.status, STATUS_FAILED);
	batch = allocateBatchID(at.engine, 1);
	assert_int_equal(submitTransfer(at.engine, batch, &outside, 1), 0);
	assert_int_equal(host_wait(at.engine, batch, 0).status, STATUS_FAILED);
	assert_int_equal(getTransferReason(at.engine, batch, 0, reason, sizeof(reason)), 0);
	assert_non_null(strstr(reason, "registered"));
	assert_int_equal(getTransferReason(at.engine, batch, 0, reason, 10), 1);
	assert_int_equal(getTransferReason(at.engine, batch, 1, reason, sizeof(reason)), 1);
	assert_int_equal(waitBatchTransfer(at.engine, batch, 20000, &status), 0);
	assert_int_equal(getBatchTransferStatus(at.engine, batch, &status), 0);
	assert_int_equal(status.status, STATUS_FAILED);
	assert_int_equal(freeBatchID(at.engine, batch), 0);
	/* Two buffers side by side are one range. */
	assert_int_equal(registerLocalMemory(at.engine, at.memory + AREA, PAGE, "*", 1), 0);
	status = host_transfer(at.engine, OPCODE_WRITE, at.loose, LOCAL_SEGMENT, address(at.memory + AREA - 8), 16);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_memory_equal(at.memory + AREA - 8, "uuuuuuuuuuuuuuuu", 16);
	assert_int_equal(unregisterLocalMemory(at.engine, at.memory + AREA), 0);
	/* Memory that is not offered is not reached through the own segment either. */
	assert_int_equal(registerLocalMemory(at.engine, at.loose, PAGE, "*", 0), 0);
	status = host_transfer(at.engine, OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.loose), 8);
	assert_int_equal(status.status, STATUS_FAILED);
	status = host_transfer(at.engine, OPCODE_READ, at.loose, LOCAL_SEGMENT, address(at.memory), 8);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(unregisterLocalMemory(at.engine, at.loose), 0);
}

static void test_batch_ids_that_are_none_get_an_error(void **state)
{
	struct transfer_request request = {OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.memory + PAGE), 8};
	notify_msg_t msg = {(char *)(uintptr_t) "n", (char *)(uintptr_t) "m"};
	transfer_engine_t other = host_engine();
	batch_id_t freed = allocateBatchID(at.engine, 1), foreign = allocateBatchID(other, 1);
	const batch_id_t none[] = {0, INVALID_BATCH, 1, freed, foreign, freed ^ 1, (batch_id_t)(uintptr_t)&request};
	struct transfer_status status = {.status = 77};

	(void)state;
	assert_int_equal(freeBatchID(at.engine, freed), 0);
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		assert_int_equal(submitTransfer(at.engine, none[i], &request, 1), 1);
		assert_int_equal(submitTransferWithNotify(at.engine, none[i], &request, 1, msg), 1);
		assert_int_equal(getTransferStatus(at.engine, none[i], 0, &status), 1);
		assert_int_equal(getBatchTransferStatus(at.engine, none[i], &status), 1);
		assert_int_equal(waitBatchTransfer(at.engine, none[i], 0, &status), 1);
		assert_int_equal(cancelBatchTransfer(at.engine, none[i]), 1);
		assert_int_equal(freeBatchID(at.engine, none[i]), 1);
		assert_int_equal(status.status, 77);
	}
	assert_int_equal(freeBatchID(other, foreign), 0);
	destroyTransferEngine(other);
}

static void test_freeBatchID_takes_what_is_done_and_was_never_polled(void **state)
{
	struct transfer_request request = {OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.memory + PAGE), 8};
	batch_id_t batch = allocateBatchID(at.engine, 1);
	uint64_t start_ms = host_now_ms();
	int code;

	(void)state;
	memcpy(at.memory, "12345678", 8);
	assert_int_equal(submitTransfer(at.engine, batch, &request, 1), 0);
	while ((code = freeBatchID(at.engine, batch)) == 4 && host_now_ms() - start_ms < 20000)
		usleep(100);
	assert_int_equal(code, 0);
	assert_memory_equal(at.memory + PAGE, "12345678", 8);
	assert_int_equal(freeBatchID(at.engine, batch), 1);
}

static void test_notifications_between_two_engines(void **state)
{
	notify_msg_t msg = {(char *)(uintptr_t) "who", (char *)(uintptr_t) "what"}, *list;
	struct transfer_request request = {OPCODE_WRITE, at.memory, 0, 0, 8};
	transfer_engine_t other = host_engine();
	uint64_t start_ms = host_now_ms();
	char name[128];
	segment_id_t id;
	batch_id_t batch;
	int size = 7;

	(void)state;
	assert_null(getNotifsFromEngine(other, &size));
	assert_int_equal(size, 0);
	id = openSegment(at.engine, host_name(other, name));
	assert_true(id > 0);
	assert_int_equal(genNotifyInEngine(at.engine, (uint64_t)id, msg), 0);
	msg.msg = (char *)(uintptr_t) "";
	assert_int_equal(sendNotifyByName(at.engine, name, msg), 0);
	assert_int_equal(genNotifyInEngine(at.engine, 4711, msg), -200);
	assert_int_equal(genNotifyInEngine(at.engine, UINT64_MAX, msg), -200);
	assert_int_equal(genNotifyInEngine(at.engine, (uint64_t)1 << 32, msg), -200); /* 0, if it were cut */
	list = getNotifsFromEngine(other, &size);
	assert_int_equal(size, 2);
	assert_string_equal(list[0].name, "who");
	assert_string_equal(list[0].msg, "what");
	assert_string_equal(list[1].msg, "");
	assert_int_equal(freeNotifsMsgBuf(list, size), 0);
	/* With a batch: none for an empty list; sent though nobody polls; none if a task fails. */
	assert_int_equal(registerLocalMemory(other, at.loose, PAGE, "*", 1), 0);
	assert_int_equal(openSegmentNoCache(at.engine, name), id);
	batch = allocateBatchID(at.engine, 2);
	msg.msg = (char *)(uintptr_t) "done";
	assert_int_equal(submitTransferWithNotify(at.engine, batch, &request, 0, msg), 1);
	request.target_id = id;
	request.target_offset = address(at.loose);
	memcpy(at.memory, "notified", 8);
	assert_int_equal(submitTransferWithNotify(at.engine, batch, &request, 1, msg), 0);
	while ((list = getNotifsFromEngine(other, &size)) == NULL && host_now_ms() - start_ms < 20000)
		usleep(1000);
	assert_int_equal(size, 1);
	assert_string_equal(list[0].msg, "done");
	assert_memory_equal(at.loose, "notified", 8);
	freeNotifsMsgBuf(list, size);
	request.target_offset = address(at.loose) + PAGE;
	assert_int_equal(submitTransferWithNotify(at.engine, batch, &request, 1, msg), 0);
	assert_int_equal(host_wait(at.engine, batch, 1).status, STATUS_FAILED);
	host_sleep_ms(50);
	assert_null(getNotifsFromEngine(other, &size));
	assert_int_equal(freeBatchID(at.engine, batch), 0);
	destroyTransferEngine(other);
	assert_int_equal(genNotifyInEngine(at.engine, (uint64_t)id, msg), -102);
	/* To oneself. */
	assert_int_equal(genNotifyInEngine(at.engine, LOCAL_SEGMENT, msg), 0);
	list = getNotifsFromEngine(at.engine, &size);
	assert_int_equal(size, 1);
	freeNotifsMsgBuf(list, size);
}

static void test_waitBatchTransfer_and_cancel(void **state)
{
	struct transfer_request request = {OPCODE_WRITE, at.memory, LOCAL_SEGMENT, address(at.memory + PAGE), 64};
	batch_id_t batch = allocateBatchID(at.engine, 2);
	struct transfer_status status;

	(void)state;
	assert_int_equal(submitTransfer(at.engine, batch, &request, 1), 0);
	assert_int_equal(submitTransfer(at.engine, batch, &request, 1), 0);
	assert_int_equal(waitBatchTransfer(at.engine, batch, 20000, &status), 0);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(status.transferred_bytes, 128);
	assert_int_equal(cancelBatchTransfer(at.engine, batch), 0); /* too late, and no harm */
	assert_int_equal(getBatchTransferStatus(at.engine, batch, &status), 0);
	assert_int_equal(status.status, STATUS_COMPLETED);
	assert_int_equal(freeBatchID(at.engine, batch), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_engine_handle_that_is_none_gets_an_error_everywhere),
		cmocka_unit_test(test_engine_null_arguments_get_an_error),
		cmocka_unit_test(test_createTransferEngine_bad_strings_give_null_and_the_process_lives),
		cmocka_unit_test(test_getLocalIpAndPort_is_the_own_name_or_an_error_when_cut),
		cmocka_unit_test(test_createTransferEngine_without_a_transport_gives_the_codes_for_that),
		cmocka_unit_test(test_installTransport_knows_what_there_is),
		cmocka_unit_test(test_showLinks_reports_as_text_and_json),
		cmocka_unit_test(test_registerLocalMemory_codes),
		cmocka_unit_test(test_registerLocalMemoryBatch_is_all_or_nothing),
		cmocka_unit_test(test_openSegment_codes),
		cmocka_unit_test(test_openSegment_ids_count_from_one_and_stay_with_their_names),
		cmocka_unit_test(test_getSegmentDescString_tells_the_buffers),
		cmocka_unit_test(test_submitTransfer_capacity_is_kept),
		cmocka_unit_test(test_submitTransfer_refusals),
		cmocka_unit_test(test_submitTransfer_corner_cases_have_their_outcome),
		cmocka_unit_test(test_batch_ids_that_are_none_get_an_error),
		cmocka_unit_test(test_freeBatchID_takes_what_is_done_and_was_never_polled),
		cmocka_unit_test(test_notifications_between_two_engines),
		cmocka_unit_test(test_waitBatchTransfer_and_cancel),
	};

	host_quiet();
	return cmocka_run_group_tests(tests, open_engine, close_engine);
}
