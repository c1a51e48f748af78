/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/mman.h>

#include "lib/pages.h"

#define MIB ((size_t)1 << 20)

static void assert_zero(const struct lw_pages *pages)
{
	const unsigned char *bytes = pages->memory;

	for (size_t i = 0; i < pages->bytes; i += 509)
		assert_int_equal(bytes[i], 0);
	assert_int_equal(bytes[pages->bytes - 1], 0);
}

static void give_back(struct lw_pages *pages)
{
	assert_int_equal(munmap(pages->memory, pages->bytes), 0);
}

static void test_get_gives_zeroed_aligned_memory(void **state)
{
	static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 3 * 1024 * 1024};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (int huge = 0; huge < 2; huge++) {
			struct lw_pages pages = {0};

			assert_int_equal(lw_pages_get(&pages, sizes[i], huge != 0), 0);
			assert_true(pages.bytes >= sizes[i] && pages.bytes > 0);
			assert_int_equal((uintptr_t)pages.memory % (pages.huge ? 2 * MIB : 4096), 0);
			assert_true(!pages.huge || huge != 0);
			assert_zero(&pages);
			memset(pages.memory, 0xff, pages.bytes);
			give_back(&pages);
		}
	}
}

static void test_get_again_uses_what_is_there(void **state)
{
	struct lw_pages pages = {0}, first;

	(void)state;
	assert_int_equal(lw_pages_get(&pages, MIB, false), 0);
	first = pages;
	assert_int_equal(lw_pages_get(&pages, MIB / 2, false), 0);
	assert_ptr_equal(pages.memory, first.memory);
	assert_int_equal(pages.bytes, first.bytes);
	/* More: another mapping; the first stays readable for stale handles. */
	memset(first.memory, 0x5a, first.bytes);
	assert_int_equal(lw_pages_get(&pages, 2 * MIB, false), 0);
	assert_ptr_not_equal(pages.memory, first.memory);
	assert_true(pages.bytes >= 2 * MIB);
	assert_int_equal(*(unsigned char *)first.memory, 0x5a);
	assert_zero(&pages);
	give_back(&pages);
	give_back(&first);
}

static void test_get_too_much_is_enomem_and_changes_nothing(void **state)
{
	struct lw_pages pages = {0}, before;

	(void)state;
	assert_int_equal(lw_pages_get(&pages, 4096, false), 0);
	before = pages;
	assert_int_equal(lw_pages_get(&pages, (size_t)1 << 62, false), -12);
	assert_int_equal(lw_pages_get(&pages, (size_t)1 << 62, true), -12);
	assert_ptr_equal(pages.memory, before.memory);
	assert_int_equal(pages.bytes, before.bytes);
	give_back(&pages);
}

static void test_drop_leaves_zeroes_and_no_page(void **state)
{
	(void)state;
	for (int huge = 0; huge < 2; huge++) {
		struct lw_pages pages = {0};
		unsigned char resident[8 * MIB / 4096];
		size_t count = 0;
		void *memory;

		lw_pages_drop(&pages); /* nothing there: nothing to do */
		assert_int_equal(lw_pages_get(&pages, 8 * MIB, huge != 0), 0);
		memory = pages.memory;
		memset(pages.memory, 0xff, pages.bytes);
		lw_pages_drop(&pages);
		assert_ptr_equal(pages.memory, memory);
		assert_false(pages.huge);
		assert_int_equal(mincore(pages.memory, 8 * MIB, resident), 0);
		for (size_t i = 0; i < sizeof(resident); i++)
			count += resident[i] & 1;
		assert_int_equal(count, 0);
		assert_zero(&pages);
		assert_int_equal(lw_pages_get(&pages, 8 * MIB, false), 0);
		assert_ptr_equal(pages.memory, memory);
		give_back(&pages);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_get_gives_zeroed_aligned_memory),
		cmocka_unit_test(test_get_again_uses_what_is_there),
		cmocka_unit_test(test_get_too_much_is_enomem_and_changes_nothing),
		cmocka_unit_test(test_drop_leaves_zeroes_and_no_page),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
