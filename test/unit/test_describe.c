/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine tells of a buffer, a segment and its topology, and local memory that nobody registered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"

static char memory[8192];

static void test_lw_memory_get_gives_what_was_registered(void **state)
{
	struct lw_engine *engine = test_engine(NULL), *other = test_engine(NULL);
	struct lw_memory given = {
		.addr = memory + 16, .length = 100, .access = LW_ACCESS_REMOTE_READ, .location = "cpu:3"};
	struct lw_memory_info info;
	lw_buffer_t buffer, foreign;

	(void)state;
	assert_int_equal(lw_memory_register(engine, &given, 1, &buffer), 0);
	foreign = test_register(other, memory, 4096, LW_ACCESS_LOCAL);
	assert_int_equal(lw_memory_get(engine, buffer, &info), 0);
	assert_ptr_equal(info.addr, memory + 16);
	assert_int_equal(info.length, 100);
	assert_int_equal(info.access, LW_ACCESS_REMOTE_READ);
	assert_string_equal(info.location, "cpu:3");
	assert_int_equal(lw_memory_get(other, foreign, &info), 0);
	assert_string_equal(info.location, "");
	assert_int_equal(lw_memory_get(engine, foreign, &info), -EBADF);
	assert_int_equal(lw_memory_get(engine, 0, &info), -EBADF);
	assert_int_equal(lw_memory_get(engine, UINT64_MAX, &info), -EBADF);
	assert_int_equal(lw_memory_get(engine, buffer, NULL), -EINVAL);
	assert_int_equal(lw_memory_get(NULL, buffer, &info), -EINVAL);
	assert_int_equal(lw_memory_unregister(engine, &buffer, 1, 0), 0);
	assert_int_equal(lw_memory_get(engine, buffer, &info), -EBADF);
	assert_int_equal(lw_engine_close(other), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_memory_get(engine, buffer, &info), -ESHUTDOWN);
}

static void test_lw_memory_location_said_found_and_by_part(void **state)
{
	static const char *const wrong[] = {"cpu:", "cpu:x", "gpu:1", "segments:4096:", "segments:x:0", "node 0"};
	struct lw_engine *engine = test_engine(NULL);
	struct lw_memory given[] = {
		{.addr = memory, .length = 4096, .location = "cuda:1"},
		{.addr = memory + 4096, .length = 4000, .location = "segments:4096:0,3"},
	};
	unsigned char *touched = test_map(8192, NULL);
	char text[64], small[8];
	lw_buffer_t ids[2], own;

	(void)state;
	memset(touched, 1, 8192);
	assert_int_equal(lw_memory_register(engine, given, 2, ids), 0);
	own = test_register(engine, touched, 8192, LW_ACCESS_LOCAL);
	assert_int_equal(lw_memory_location(engine, ids[0], 4095, text, sizeof(text)), 0);
	assert_string_equal(text, "cuda:1");
	assert_int_equal(lw_memory_location(engine, ids[1], 1999, text, sizeof(text)), 0);
	assert_string_equal(text, "cpu:0");
	assert_int_equal(lw_memory_location(engine, ids[1], 2000, text, sizeof(text)), 0);
	assert_string_equal(text, "cpu:3");
	/* Where nobody tells, "*": but here the pages have been touched. */
	assert_int_equal(lw_memory_location(engine, own, 0, text, sizeof(text)), 0);
	assert_true(strncmp(text, "cpu:", 4) == 0 || strcmp(text, "*") == 0);
	assert_int_equal(lw_memory_location(engine, ids[0], 4096, text, sizeof(text)), -ERANGE);
	assert_int_equal(lw_memory_location(engine, ids[0] + 7, 0, text, sizeof(text)), -EBADF);
	assert_int_equal(lw_memory_location(engine, ids[0], 0, small, sizeof(small)), -EINVAL);
	assert_int_equal(lw_memory_location(NULL, ids[0], 0, text, sizeof(text)), -EINVAL);
	assert_int_equal(lw_memory_unregister(engine, ids, 2, 0), 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		given[0].location = wrong[i];
		assert_int_equal(lw_memory_register(engine, given, 1, ids), -EINVAL);
		assert_non_null(strstr(lw_last_error(), wrong[i]));
	}
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(touched, 8192);
}

static void test_lw_segment_json_tells_own_and_others(void **state)
{
	struct lw_engine *engine = test_engine(NULL), *peer = test_engine(NULL);
	lw_segment_t segment;
	char expected[160], *text;

	(void)state;
	test_register(peer, memory, 4096, LW_ACCESS_REMOTE_WRITE);
	test_register(peer, memory + 4096, 4096, LW_ACCESS_LOCAL);
	segment = test_segment(engine, peer);
	assert_int_equal(lw_segment_json(engine, segment, &text), 0);
	snprintf(expected, sizeof(expected),
		 "{\"buffers\":[{\"access\":\"w\",\"addr\":%llu,\"length\":4096}],\"data\":[\"127",
		 (unsigned long long)(uintptr_t)memory);
	assert_int_equal(strncmp(text, expected, strlen(expected)), 0);
	snprintf(expected, sizeof(expected), "\"handshake\":[\"%s\"],\"incarnation\":\"", lw_engine_name(peer));
	assert_non_null(strstr(text, expected));
	snprintf(expected, sizeof(expected), "\",\"name\":\"%s\"}", lw_engine_name(peer));
	assert_string_equal(text + strlen(text) - strlen(expected), expected);
	free(text);
	/* The own one has what is not offered, too. */
	assert_int_equal(lw_segment_json(peer, LW_SEGMENT_LOCAL, &text), 0);
	assert_non_null(strstr(text, "{\"access\":\"\",\"addr\":"));
	free(text);
	assert_int_equal(lw_segment_open(engine, "null://", 0, &segment), 0);
	assert_int_equal(lw_segment_json(engine, segment, &text), 0);
	assert_string_equal(
		text, "{\"buffers\":[],\"data\":[],\"driver\":\"null\",\"handshake\":[],\"incarnation\":\"\",\"name\":"
		      "\"null://\"}");
	free(text);
	assert_int_equal(lw_segment_json(engine, 1, &text), -EBADF);
	assert_int_equal(lw_segment_json(engine, segment, NULL), -EINVAL);
	assert_int_equal(lw_segment_json(NULL, segment, &text), -EINVAL);
	assert_int_equal(lw_engine_close(peer), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_segment_json(engine, segment, &text), -ESHUTDOWN);
}

static void test_lw_topology_set_replaces_the_matrix_and_gives_it_up(void **state)
{
	struct lw_engine *engine = test_engine("topology={\"cpu:0\":[[\"a\"],[]]}");
	char *text;

	(void)state;
	assert_int_equal(lw_topology_set(engine, "{\"cpu:1\":[[\"b\"],[\"c\"]]}"), 0);
	assert_int_equal(lw_topology_set(engine, "{\"cpu:1\":[[\"b\"]]}"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "cpu:1"));
	assert_int_equal(lw_topology_json(engine, &text), 0);
	assert_non_null(strstr(text, "\"matrix\":{\"cpu:1\":[[\"b\"],[\"c\"]]}"));
	assert_non_null(strstr(text, "\"source\":\"set\""));
	free(text);
	assert_int_equal(lw_topology_set(engine, NULL), 0);
	assert_int_equal(lw_topology_json(engine, &text), 0);
	assert_non_null(strstr(text, "\"source\":\"discovered\""));
	free(text);
	assert_int_equal(lw_topology_set(NULL, "null"), -EINVAL);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_topology_set(engine, "null"), -ESHUTDOWN);
}

static int levels[4];

static void count_line(int level, const char *line, void *arg)
{
	(void)arg;
	if (strcmp(line, "of the program's own?") == 0)
		levels[level]++;
}

static void test_lw_log_line_goes_where_the_librarys_lines_go(void **state)
{
	struct lw_engine *engine = test_engine("log_level=warning");

	(void)state;
	lw_log_set(count_line, NULL);
	lw_log_line(1, "of the program's own\n");
	lw_log_line(2, "of the program's own\n"); /* less urgent than what is logged */
	lw_log_line(1, NULL);
	lw_log_set(NULL, NULL);
	assert_int_equal(levels[1], 1);
	assert_int_equal(levels[2], 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

/* The state of a transfer from or to 4,096 bytes at local that nobody registered. */
static struct lw_task_status loose_transfer(const char *settings, uint8_t op, void *local)
{
	struct lw_engine *engine = test_engine(settings);
	struct lw_task_status status;
	struct lw_channel *channel;

	test_register(engine, memory, sizeof(memory), LW_ACCESS_REMOTE);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	status = test_transfer(engine, channel,
			       (struct lw_request){.local = local,
						   .segment = LW_SEGMENT_LOCAL,
						   .offset = (uint64_t)(uintptr_t)memory,
						   .length = 4096,
						   .op = op});
	assert_int_equal(lw_engine_close(engine), 0);
	return status;
}

static void test_local_unregistered_lets_mapped_memory_pass(void **state)
{
	static const char *const drivers[] = {"local_unregistered=on drivers=shm", "local_unregistered=on drivers=tcp"};
	char *loose = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_true(loose != MAP_FAILED);
	assert_int_equal(mprotect(loose + 8192, 4096, PROT_NONE), 0);
	assert_int_equal(loose_transfer(NULL, LW_WRITE, loose).reason, LW_REASON_LOCAL_RANGE);
	for (size_t i = 0; i < 2; i++) {
		memset(loose, 'a' + (int)i, 8192);
		assert_int_equal(loose_transfer(drivers[i], LW_WRITE, loose + 7).state, LW_COMPLETED);
		assert_memory_equal(memory, loose, 4096);
		memset(loose, 0, 8192);
		assert_int_equal(loose_transfer(drivers[i], LW_READ, loose + 4096).state, LW_COMPLETED);
		assert_memory_equal(memory, loose + 4096, 4096);
		/* Half of it is out of bounds; read alone is not enough for a READ. */
		assert_int_equal(loose_transfer(drivers[i], LW_WRITE, loose + 6144).reason, LW_REASON_LOCAL_RANGE);
		assert_int_equal(mprotect(loose, 8192, PROT_READ), 0);
		assert_int_equal(loose_transfer(drivers[i], LW_WRITE, loose).state, LW_COMPLETED);
		assert_int_equal(loose_transfer(drivers[i], LW_READ, loose).reason, LW_REASON_LOCAL_RANGE);
		assert_int_equal(mprotect(loose, 8192, PROT_READ | PROT_WRITE), 0);
		assert_int_equal(loose_transfer(drivers[i], LW_READ, (void *)(uintptr_t)64).reason,
				 LW_REASON_LOCAL_RANGE);
	}
	munmap(loose, 3 * 4096);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lw_memory_get_gives_what_was_registered),
		cmocka_unit_test(test_lw_memory_location_said_found_and_by_part),
		cmocka_unit_test(test_lw_segment_json_tells_own_and_others),
		cmocka_unit_test(test_lw_topology_set_replaces_the_matrix_and_gives_it_up),
		cmocka_unit_test(test_lw_log_line_goes_where_the_librarys_lines_go),
		cmocka_unit_test(test_local_unregistered_lets_mapped_memory_pass),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
