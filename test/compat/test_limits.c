/* SPDX-License-Identifier: Apache-2.0 */
/* When something runs out: segments, and the time to take memory back. */
#include "compat/host.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define PEERS 5
#define PAGE 4096

static struct {
	transfer_engine_t engine;
	char *memory; /* a page, registered */
	char name[128];
} peers[PEERS];

static transfer_engine_t engine;

static void peer_start(size_t i)
{
	peers[i].engine = host_engine();
	peers[i].memory = aligned_alloc(PAGE, PAGE);
	assert_non_null(peers[i].memory);
	assert_int_equal(registerLocalMemory(peers[i].engine, peers[i].memory, PAGE, "*", 1), 0);
	host_name(peers[i].engine, peers[i].name);
}

static void peer_end(size_t i)
{
	destroyTransferEngine(peers[i].engine);
	free(peers[i].memory);
	peers[i].memory = NULL;
}

/* Whether a page gets to the peer by that id; the alternative is that no engine knows the id. */
static bool reaches(segment_id_t id, size_t i)
{
	static char page[PAGE];
	struct transfer_request request = {OPCODE_WRITE, page, id, (uint64_t)(uintptr_t)peers[i].memory, PAGE};
	batch_id_t batch = allocateBatchID(engine, 1);
	int code;

	memset(page, (int)i + 1, PAGE);
	code = submitTransfer(engine, batch, &request, 1);
	if (code == 0) {
		assert_int_equal(host_wait(engine, batch, 0).status, STATUS_COMPLETED);
		assert_memory_equal(page, peers[i].memory, PAGE);
	} else {
		assert_int_equal(code, 1);
	}
	assert_int_equal(freeBatchID(engine, batch), 0);
	return code == 0;
}

/* Room for three: first goes who was closed first, then who does not answer, then nobody. */
static void test_openSegment_makes_room_when_segments_run_out(void **state)
{
	(void)state;
	for (size_t i = 0; i < PEERS; i++)
		peer_start(i);
	setenv("LW_MAX_SEGMENTS", "4", 1); /* one is the own */
	engine = host_engine();
	unsetenv("LW_MAX_SEGMENTS");
	for (segment_id_t id = 1; id <= 3; id++) {
		assert_int_equal(openSegment(engine, peers[id - 1].name), id);
		assert_true(reaches(id, (size_t)id - 1));
	}
	closeSegment(engine, 2);
	closeSegment(engine, 1);
	assert_true(reaches(1, 0) && reaches(2, 1));             /* closed ones go on */
	assert_int_equal(openSegment(engine, peers[3].name), 4); /* in the place of 2, which was closed first */
	assert_true(reaches(1, 0) && !reaches(2, 1) && reaches(3, 2) && reaches(4, 3));
	assert_int_equal(openSegment(engine, peers[1].name), 5); /* in the place of 1 */
	assert_true(!reaches(1, 0) && reaches(3, 2) && reaches(4, 3) && reaches(5, 1));

	/* Nobody is closed: all live. */
	assert_int_equal(openSegment(engine, peers[0].name), -1);
	assert_non_null(strstr(getTransferEngineError(), "max_segments"));
	assert_true(reaches(3, 2) && reaches(4, 3) && reaches(5, 1));

	peer_end(3);
	assert_int_equal(openSegment(engine, peers[0].name), 6); /* in the place of 4, which is dead */
	assert_true(reaches(3, 2) && reaches(5, 1) && reaches(6, 0));
	assert_int_equal(probePeerAliveByID(engine, 4), -200);
	assert_int_equal(openSegment(engine, peers[4].name), -1);

	destroyTransferEngine(engine);
	for (size_t i = 0; i < PEERS; i++)
		if (peers[i].memory != NULL)
			peer_end(i);
}

static void test_registerLocalMemory_when_buffers_run_out_is_a_lack_of_memory(void **state)
{
	static char pages[3][PAGE];
	buffer_entry_t list[2] = {{pages[1], PAGE}, {pages[2], PAGE}};
	transfer_engine_t small;

	(void)state;
	setenv("LW_MAX_BUFFERS", "2", 1);
	small = host_engine();
	unsetenv("LW_MAX_BUFFERS");
	assert_int_equal(registerLocalMemory(small, pages[0], PAGE, "*", 1), 0);
	assert_int_equal(registerLocalMemoryBatch(small, list, 2, "*"), -302);
	assert_int_equal(registerLocalMemoryBatch(small, list, 1, "*"), 0);
	assert_int_equal(registerLocalMemory(small, pages[2], PAGE, "*", 1), -302);
	assert_non_null(strstr(getTransferEngineError(), "max_buffers"));
	destroyTransferEngine(small);
}

/* The thread of a process by its name, or 0. */
static pid_t find_thread(pid_t pid, const char *name)
{
	char path[300], comm[32] = "";
	struct dirent *entry;
	pid_t found = 0;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	folder = opendir(path);
	while (folder != NULL && found == 0 && (entry = readdir(folder)) != NULL) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)pid, entry->d_name);
		file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
		if (file == NULL)
			continue;
		if (fgets(comm, sizeof(comm), file) != NULL && strcmp(comm, name) == 0)
			found = (pid_t)atoi(entry->d_name);
		fclose(file);
	}
	if (folder != NULL)
		closedir(folder);
	return found;
}

/* A worker that stands still, while all other threads of its process go on. */
static void test_unregisterLocalMemory_that_was_busy_works_again_by_address(void **state)
{
	struct host_peer peer;
	int status;
	pid_t worker;

	(void)state;
	host_peer_start(&peer, PAGE);
	/* It may not have run yet, and names itself. */
	for (int i = 0; (worker = find_thread(peer.pid, "lw-w0\n")) == 0 && i < 5000; i++)
		usleep(1000);
	assert_true(worker > 0);
	if (ptrace(PTRACE_SEIZE, worker, NULL, NULL) != 0) {
		print_message("not run: a thread of another process can't be stopped here: %s\n", strerror(errno));
		host_peer_end(&peer);
		skip();
	}
	assert_int_equal(ptrace(PTRACE_INTERRUPT, worker, NULL, NULL), 0);
	assert_int_equal(waitpid(worker, &status, __WALL), worker);
	assert_string_equal(host_peer_ask(&peer, "withdraw"), "-4");
	assert_int_equal(ptrace(PTRACE_DETACH, worker, NULL, NULL), 0);
	assert_string_equal(host_peer_ask(&peer, "withdraw"), "0");
	assert_string_equal(host_peer_ask(&peer, "withdraw"), "-3");
	host_peer_end(&peer);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_openSegment_makes_room_when_segments_run_out),
		cmocka_unit_test(test_registerLocalMemory_when_buffers_run_out_is_a_lack_of_memory),
		cmocka_unit_test(test_unregisterLocalMemory_that_was_busy_works_again_by_address),
	};
	int status;

	host_quiet();
	if (host_peer_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
