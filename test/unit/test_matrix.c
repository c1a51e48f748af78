/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/matrix.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct lw_matrix *parsed(const char *text)
{
	struct lw_matrix *matrix = NULL;
	char why[200] = "";

	if (lw_matrix_parse(text, strlen(text), &matrix, why, sizeof(why)) != 0)
		fail_msg("%s: %s", text, why);
	return matrix;
}

static void assert_reads_as(const char *text, const char *expected)
{
	struct lw_matrix *matrix = parsed(text);
	char *printed = lw_matrix_print(matrix);

	assert_string_equal(printed, expected);
	free(printed);
	lw_matrix_free(matrix);
}

static void test_parse_then_print_is_sorted_and_without_blanks(void **state)
{
	static const char *const same[] = {
		"null",
		"{\"*\":[[\"a\"],[]]}",
		"{\"cpu:0\":[[],[]]}",
		"{\"cpu:0\":[[\"mlx5_0\"],[\"mlx5_1\"]],\"cpu:1\":[[\"mlx5_1\"],[\"mlx5_0\"]]}",
		"{\"cpu:0\":[[\"b\",\"a\"],[\"d\",\"c\"]],\"cpu:10\":[[\"c\"],[]],\"cpu:2\":[[],[\"a\"]]}",
		"{\"n\xc3\xb6 \\\"q\\\"\":[[\"a/b\"],[]]}",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(same); i++)
		assert_reads_as(same[i], same[i]);
	assert_reads_as("{}", "null");
	assert_reads_as(" { \"cuda:0\" : [ [ ] , [ \"x\" ] ] ,\n\t\"cpu:0\":[[\"x\"],[]] } \r\n",
			"{\"cpu:0\":[[\"x\"],[]],\"cuda:0\":[[],[\"x\"]]}");
	/* A device is in a row once: where it was named first. */
	assert_reads_as("{\"cpu:0\":[[\"a\",\"b\",\"a\"],[\"b\",\"c\"]]}", "{\"cpu:0\":[[\"a\",\"b\"],[\"c\"]]}");
}

static void test_parse_wrong_field_is_refused_and_named(void **state)
{
	static const struct {
		const char *text, *why;
	} wrong[] = {
		{"", "not JSON: empty at byte 0"},
		{"{", "not JSON: unexpected text"},
		{"{\"cpu:0\":[[],[]]}}", "not JSON: more text after the end, at byte 17"},
		{"{\"cpu:0\":[[],[]]} x", "not JSON: more text after the end, at byte 18"},
		{"[]", "the matrix is not an object of locations"},
		{"7", "the matrix is not an object of locations"},
		{"\"cpu:0\"", "the matrix is not an object of locations"},
		{"{\"\":[[],[]]}", "a location is empty, longer than 63 bytes, or has control bytes"},
		{"{\"a\\n\":[[],[]]}", "a location is empty, longer than 63 bytes, or has control bytes"},
		{"{\"cpu:0\":[]}", "\"cpu:0\" is not a list of two lists, [[preferred],[available]]"},
		{"{\"cpu:0\":[[]]}", "\"cpu:0\" is not a list of two lists, [[preferred],[available]]"},
		{"{\"cpu:0\":[[],[],[]]}", "\"cpu:0\" is not a list of two lists, [[preferred],[available]]"},
		{"{\"cpu:0\":{\"a\":[],\"b\":[]}}", "\"cpu:0\" is not a list of two lists, [[preferred],[available]]"},
		{"{\"cpu:0\":[\"a\",\"b\"]}", "\"cpu:0\"[0] is not a list of device names"},
		{"{\"cpu:0\":[[],null]}", "\"cpu:0\"[1] is not a list of device names"},
		{"{\"cpu:0\":[[\"a\",7],[]]}", "\"cpu:0\"[0][1] is not a device name of 1 to 63 bytes"},
		{"{\"cpu:0\":[[],[\"\"]]}", "\"cpu:0\"[1][0] is not a device name of 1 to 63 bytes"},
		{"{\"cpu:0\":[[],[\"a\\u007f\"]]}", "\"cpu:0\"[1][0] is not a device name of 1 to 63 bytes"},
		{"{\"cpu:0\":[[],[\"a\\u0000b\"]]}", "a NUL inside a text at byte 16"},
		{"{\"cpu:0\":[[],[\"a\tb\"]]}", "not JSON: a control byte at byte 16"},
		{"{\"cpu:0\":[[],[]],\"cpu:0\":[[],[]]}", "\"cpu:0\" is there twice"},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(wrong); i++) {
		struct lw_matrix *matrix = NULL;
		char why[200] = "";

		assert_int_equal(lw_matrix_parse(wrong[i].text, strlen(wrong[i].text), &matrix, why, sizeof(why)),
				 -EPROTO);
		assert_null(matrix);
		if (strstr(why, wrong[i].why) == NULL)
			fail_msg("%s: \"%s\", not \"%s\"", wrong[i].text, why, wrong[i].why);
	}
}

static void test_parse_limits_are_kept(void **state)
{
	char *text = malloc(LW_MATRIX_BYTES + 64), why[200] = "", name[LW_MATRIX_NAME + 1];
	struct lw_matrix *matrix = NULL;
	size_t used;

	(void)state;
	memset(text, ' ', LW_MATRIX_BYTES + 64);
	memcpy(text, "{}", 2);
	assert_int_equal(lw_matrix_parse(text, LW_MATRIX_BYTES + 1, &matrix, why, sizeof(why)), -EPROTO);
	assert_non_null(strstr(why, "longer than"));
	assert_int_equal(lw_matrix_parse(text, LW_MATRIX_BYTES, &matrix, why, sizeof(why)), 0);
	lw_matrix_free(matrix);
	/* Depth: the parser's own limit. */
	memset(text, '[', LW_MATRIX_BYTES);
	matrix = NULL;
	assert_int_equal(lw_matrix_parse(text, LW_MATRIX_BYTES, &matrix, why, sizeof(why)), -EPROTO);
	for (int extra = 0; extra < 2; extra++) {
		used = (size_t)sprintf(text, "{\"cpu:0\":[[\"d0\"");
		for (int i = 1; i < LW_MATRIX_DEVICES + extra; i++)
			used += (size_t)sprintf(text + used, ",\"d%d\"", i);
		used += (size_t)sprintf(text + used, "],[\"d5\"]]}");
		matrix = NULL;
		assert_int_equal(lw_matrix_parse(text, used, &matrix, why, sizeof(why)), extra ? -EPROTO : 0);
		lw_matrix_free(matrix);
		used = (size_t)sprintf(text, "{\"r0\":[[],[]]");
		for (int i = 1; i < LW_MATRIX_ROWS + extra; i++)
			used += (size_t)sprintf(text + used, ",\"r%d\":[[],[]]", i);
		used += (size_t)sprintf(text + used, "}");
		matrix = NULL;
		assert_int_equal(lw_matrix_parse(text, used, &matrix, why, sizeof(why)), extra ? -EPROTO : 0);
		lw_matrix_free(matrix);
		memset(name, 'n', sizeof(name));
		name[LW_MATRIX_NAME - 1 + extra] = '\0';
		used = (size_t)sprintf(text, "{\"%s\":[[\"%s\"],[]]}", name, name);
		matrix = NULL;
		assert_int_equal(lw_matrix_parse(text, used, &matrix, why, sizeof(why)), extra ? -EPROTO : 0);
		lw_matrix_free(matrix);
	}
	free(text);
}

static void test_parse_any_cut_is_refused(void **state)
{
	static const char text[] = "{\"cpu:0\":[[\"mlx5_0\"],[\"mlx5_1\"]],\"cuda:1\":[[],[\"x\\u00e4\"]]}";

	(void)state;
	for (size_t length = 0; length < sizeof(text) - 1; length++) {
		struct lw_matrix *matrix = NULL;
		char why[100], *copy = malloc(length + 1);

		/* Its own piece of memory, so that a read behind it is seen. */
		memcpy(copy, text, length);
		assert_int_equal(lw_matrix_parse(copy, length, &matrix, why, sizeof(why)), -EPROTO);
		free(copy);
	}
}

static void test_find_known_location_has_its_row_and_others_all_devices(void **state)
{
	struct lw_matrix *matrix = parsed("{\"cpu:0\":[[\"b\"],[\"a\"]],\"cpu:1\":[[],[\"c\"]]}");
	struct lw_matrix_row row;

	(void)state;
	lw_matrix_find(matrix, "cpu:0", &row);
	assert_int_equal(row.preferred, 1);
	assert_int_equal(row.available, 1);
	assert_string_equal(matrix->device[row.device[0]], "b");
	assert_string_equal(matrix->device[row.device[1]], "a");
	lw_matrix_find(matrix, "cpu:1", &row);
	assert_int_equal(row.preferred, 0);
	assert_string_equal(matrix->device[row.device[0]], "c");
	lw_matrix_find(matrix, "cuda:9", &row);
	assert_string_equal(row.location, "*");
	assert_int_equal(row.preferred, 3);
	assert_int_equal(row.available, 0);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(row.device[i], i);
	lw_matrix_free(matrix);
}

static void test_add_refuses_names_that_do_not_fit(void **state)
{
	struct lw_matrix matrix = {.row_count = 0};
	char name[LW_MATRIX_NAME + 1];

	(void)state;
	memset(name, 'n', sizeof(name));
	name[LW_MATRIX_NAME] = '\0';
	assert_int_equal(lw_matrix_add(&matrix, "", "a", true), -EINVAL);
	assert_int_equal(lw_matrix_add(&matrix, name, "a", true), -EINVAL);
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", "", true), -EINVAL);
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", name, true), -EINVAL);
	assert_int_equal(matrix.row_count, 0);
	/* A preferred one goes behind the preferred ones, whatever was added meanwhile. */
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", "a", true), 0);
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", "z", false), 0);
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", "b", true), 0);
	assert_string_equal(matrix.device[matrix.rows[0].device[1]], "b");
	assert_string_equal(matrix.device[matrix.rows[0].device[2]], "z");
	lw_matrix_fini(&matrix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse_then_print_is_sorted_and_without_blanks),
		cmocka_unit_test(test_parse_wrong_field_is_refused_and_named),
		cmocka_unit_test(test_parse_limits_are_kept),
		cmocka_unit_test(test_parse_any_cut_is_refused),
		cmocka_unit_test(test_find_known_location_has_its_row_and_others_all_devices),
		cmocka_unit_test(test_add_refuses_names_that_do_not_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
