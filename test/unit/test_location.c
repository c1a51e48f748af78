/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/mempolicy.h>

#include "meta/location.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define PAGES 64

static void test_parse_reads_every_form(void **state)
{
	static const struct {
		const char *text;
		enum lw_location_kind kind;
		const char *place;
		uint32_t number;
	} forms[] = {
		{"*", LW_LOCATION_ANY, "", 0},
		{"cpu:0", LW_LOCATION_PLACE, "cpu", 0},
		{"cpu:127", LW_LOCATION_PLACE, "cpu", 127},
		{"cuda:3", LW_LOCATION_PLACE, "cuda", 3},
		{"hip:1", LW_LOCATION_PLACE, "hip", 1},
		{"musa:0", LW_LOCATION_PLACE, "musa", 0},
		{"maca:00", LW_LOCATION_PLACE, "maca", 0},
		{"mlu:4", LW_LOCATION_PLACE, "mlu", 4},
		{"npu:5", LW_LOCATION_PLACE, "npu", 5},
		{"supa:4294967295", LW_LOCATION_PLACE, "supa", UINT32_MAX},
	};
	struct lw_location location;
	char why[200];

	(void)state;
	for (size_t i = 0; i < COUNT(forms); i++) {
		assert_int_equal(lw_location_parse(forms[i].text, &location, why, sizeof(why)), 0);
		assert_int_equal(location.kind, forms[i].kind);
		assert_string_equal(location.place, forms[i].place);
		assert_int_equal(location.number, forms[i].number);
	}
	assert_int_equal(lw_location_parse("segments:4096:0,1,0", &location, why, sizeof(why)), 0);
	assert_int_equal(location.kind, LW_LOCATION_PARTED);
	assert_int_equal(location.page_bytes, 4096);
	assert_int_equal(location.parts, 3);
	assert_int_equal(location.node[1], 1);
	assert_int_equal(lw_location_parse("segments:2097152:7", &location, why, sizeof(why)), 0);
	assert_int_equal(location.parts, 1);
}

static void test_parse_refuses_with_the_place(void **state)
{
	static const struct {
		const char *text, *why;
	} wrong[] = {
		{"", "is no location"},
		{"**", "is no location"},
		{"cpu", "is no location"},
		{"gpu:0", "is no location"},
		{"CPU:0", "is no location"},
		{" cpu:0", "is no location"},
		{"127.0.0.1:15000", "is no location"},
		{"cpu:", "has no number after \"cpu:\""},
		{"cpu:-1", "has no number after \"cpu:\""},
		{"cpu:0x1", "has no number after \"cpu:\""},
		{"cpu:0 ", "has no number after \"cpu:\""},
		{"cuda:4294967296", "has no number after \"cuda:\""},
		{"segments:", "has no page size"},
		{"segments:4096", "has no page size"},
		{"segments:0:1", "has no page size"},
		{"segments:18446744073709551616:1", "has no page size"},
		{"segments:4096:", "has no NUMA node as part 1"},
		{"segments:4096:0,", "has no NUMA node as part 2"},
		{"segments:4096:0,,1", "has no NUMA node as part 2"},
		{"segments:4096:0;1", "has no NUMA node as part 1"},
		{"segments:4096:0,1x", "has no NUMA node as part 2"},
	};
	struct lw_location location = {.number = 77};
	char why[200], many[600] = "segments:4096:0";

	(void)state;
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(lw_location_parse(wrong[i].text, &location, why, sizeof(why)), -EINVAL);
		if (strstr(why, wrong[i].why) == NULL)
			fail_msg("%s: \"%s\", not \"%s\"", wrong[i].text, why, wrong[i].why);
		assert_int_equal(location.number, 77);
	}
	for (int i = 1; i < LW_LOCATION_PARTS; i++)
		strcat(many, ",1");
	assert_int_equal(lw_location_parse(many, &location, why, sizeof(why)), 0);
	strcat(many, ",1");
	assert_int_equal(lw_location_parse(many, &location, why, sizeof(why)), -EINVAL);
	assert_string_equal(why, "has more than 64 parts");
}

static void assert_at(const char *location_text, uint64_t length, uint64_t offset, const char *expected)
{
	struct lw_location location;
	char why[200], text[LW_LOCATION_TEXT];

	assert_int_equal(lw_location_parse(location_text, &location, why, sizeof(why)), 0);
	lw_location_at(&location, length, offset, text, sizeof(text));
	assert_string_equal(text, expected);
}

static void test_at_finds_the_part(void **state)
{
	(void)state;
	assert_at("*", 100, 0, "*");
	assert_at("cuda:2", 100, 99, "cuda:2");
	assert_at("segments:4096:3,5", 8192, 0, "cpu:3");
	assert_at("segments:4096:3,5", 8192, 4095, "cpu:3");
	assert_at("segments:4096:3,5", 8192, 4096, "cpu:5");
	/* What the division leaves belongs to the last part. */
	assert_at("segments:4096:3,5,7", 100, 65, "cpu:5");
	assert_at("segments:4096:3,5,7", 100, 66, "cpu:7");
	assert_at("segments:4096:3,5,7", 100, 99, "cpu:7");
	assert_at("segments:4096:3,5,7", 2, 1, "*");
	assert_at("segments:4096:3,5", UINT64_MAX, UINT64_MAX - 1, "cpu:5");
}

/* What a made-up system answers, by page of the area. */
static int fake_node[PAGES];
static unsigned char *area;
static int fake_error;

static long fake_query(size_t count, void **pages, int *status)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	for (size_t i = 0; i < count; i++) {
		size_t at = (size_t)((unsigned char *)pages[i] - area) / page;

		assert_true(at < PAGES);
		assert_int_equal((uintptr_t)pages[i] % page, 0);
		status[i] = fake_node[at];
	}
	return fake_error;
}

static int map_area(void **state)
{
	(void)state;
	area = mmap(NULL, PAGES * (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		    -1, 0);
	return area == MAP_FAILED ? -1 : 0;
}

static int unmap_area(void **state)
{
	(void)state;
	return munmap(area, PAGES * (size_t)sysconf(_SC_PAGESIZE));
}

/* The location of pages [first, first + count) when they lie as fake_node says. */
static void assert_lies(size_t first, size_t count, const char *expected)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char text[LW_LOCATION_TEXT], whole[LW_LOCATION_TEXT];

	if (strncmp(expected, "segments:", 9) == 0) {
		snprintf(whole, sizeof(whole), "segments:%zu:%s", page, expected + 9);
		expected = whole;
	}
	assert_int_equal(lw_location_of(area + first * page, count * page, fake_query, text, sizeof(text)), 0);
	assert_string_equal(text, expected);
}

static void set_nodes(size_t first, size_t end, int node)
{
	for (size_t i = first; i < end; i++)
		fake_node[i] = node;
}

static void test_of_touched_pages_is_their_node(void **state)
{
	(void)state;
	set_nodes(0, PAGES, 3);
	assert_lies(0, PAGES, "cpu:3");
	assert_lies(7, 1, "cpu:3");
	/* Untouched pages don't count. */
	set_nodes(0, PAGES, -ENOENT);
	fake_node[40] = 5;
	assert_lies(0, PAGES, "cpu:5");
}

static void test_of_pages_of_several_nodes_is_parts_or_the_most(void **state)
{
	(void)state;
	set_nodes(0, 32, 0);
	set_nodes(32, 64, 1);
	assert_lies(0, PAGES, "segments:0,1");
	assert_lies(0, 32, "cpu:0");
	assert_lies(31, 2, "segments:0,1");
	set_nodes(0, 16, 0);
	set_nodes(16, 32, 1);
	set_nodes(32, 48, 0);
	set_nodes(48, 64, 2);
	assert_lies(0, PAGES, "segments:0,1,0,2");
	fake_node[20] = -ENOENT;
	assert_lies(0, PAGES, "segments:0,1,0,2");
	/* No even parts: the node with the most. */
	set_nodes(0, 64, 0);
	set_nodes(0, 5, 1);
	assert_lies(0, PAGES, "cpu:0");
	for (int i = 0; i < PAGES; i++)
		fake_node[i] = i % 3;
	assert_lies(0, PAGES, "cpu:0");
}

static void test_of_memory_nobody_knows_is_any(void **state)
{
	(void)state;
	set_nodes(0, PAGES, -ENOENT);
	assert_lies(0, PAGES, "*");
	set_nodes(0, PAGES, 2);
	fake_error = -1;
	assert_lies(0, PAGES, "*");
	fake_error = 0;
}

static void test_of_untouched_memory_stays_untouched(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char resident[PAGES];
	char text[LW_LOCATION_TEXT], why[200];
	struct lw_location location;

	(void)state;
	assert_int_equal(madvise(area, PAGES * page, MADV_DONTNEED), 0);
	assert_int_equal(lw_location_of(area, PAGES * page, NULL, text, sizeof(text)), 0);
	assert_int_equal(lw_location_parse(text, &location, why, sizeof(why)), 0);
	assert_int_equal(mincore(area, PAGES * page, resident), 0);
	for (size_t i = 0; i < PAGES; i++)
		assert_int_equal(resident[i] & 1, 0);
	/* Touched, the system tells the node, or that it doesn't. */
	memset(area, 1, PAGES * page);
	assert_int_equal(lw_location_of(area + 100, 5 * page, NULL, text, sizeof(text)), 0);
	assert_int_equal(lw_location_parse(text, &location, why, sizeof(why)), 0);
	if (location.kind == LW_LOCATION_ANY)
		print_message("the system tells no NUMA nodes here\n");
	else
		assert_string_equal(location.place, "cpu");
}

/* Node 0 is there wherever the kernel knows nodes. */
static void test_of_untouched_memory_is_where_its_policy_binds_it(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned long nodes = 1;
	char text[LW_LOCATION_TEXT];

	(void)state;
	assert_int_equal(madvise(area, PAGES * page, MADV_DONTNEED), 0);
	if (syscall(SYS_mbind, area + 8 * page, 8 * page, MPOL_BIND, &nodes, 8 * sizeof(nodes), 0) != 0) {
		print_message("skipped: memory can't be bound to a node here\n");
		skip();
	}
	assert_int_equal(lw_location_of(area + 9 * page, page, NULL, text, sizeof(text)), 0);
	assert_string_equal(text, "cpu:0");
	assert_int_equal(lw_location_of(area, page, NULL, text, sizeof(text)), 0);
	assert_string_equal(text, "*");
}

static void test_of_wrong_arguments_is_refused(void **state)
{
	char text[LW_LOCATION_TEXT];

	(void)state;
	assert_int_equal(lw_location_of(NULL, 1, NULL, text, sizeof(text)), -EINVAL);
	assert_int_equal(lw_location_of(area, 0, NULL, text, sizeof(text)), -EINVAL);
	assert_int_equal(lw_location_of(area, SIZE_MAX, NULL, text, sizeof(text)), -EINVAL);
	assert_int_equal(lw_location_of(area, 1, NULL, text, sizeof(text) - 1), -EINVAL);
	assert_int_equal(lw_location_of(area, 1, NULL, NULL, sizeof(text)), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse_reads_every_form),
		cmocka_unit_test(test_parse_refuses_with_the_place),
		cmocka_unit_test(test_at_finds_the_part),
		cmocka_unit_test(test_of_touched_pages_is_their_node),
		cmocka_unit_test(test_of_pages_of_several_nodes_is_parts_or_the_most),
		cmocka_unit_test(test_of_memory_nobody_knows_is_any),
		cmocka_unit_test(test_of_untouched_memory_stays_untouched),
		cmocka_unit_test(test_of_untouched_memory_is_where_its_policy_binds_it),
		cmocka_unit_test(test_of_wrong_arguments_is_refused),
	};

	return cmocka_run_group_tests(tests, map_area, unmap_area);
}
