/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "meta/base64.h"

/* RFC 4648, section 10, and bytes with their top bit set. */
static const char *const vectors[][2] = {
	{"", ""},
	{"f", "Zg=="},
	{"fo", "Zm8="},
	{"foo", "Zm9v"},
	{"foob", "Zm9vYg=="},
	{"fooba", "Zm9vYmE="},
	{"foobar", "Zm9vYmFy"},
	{"\xff\xfe\xfb", "//77"},
	{"\xfb\xef", "++8="},
};

static void test_vectors_both_ways(void **state)
{
	char text[16], bytes[16];
	size_t i, size;

	(void)state;
	for (i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
		size_t length = strlen(vectors[i][0]);

		assert_int_equal(LW_BASE64_LENGTH(length), strlen(vectors[i][1]));
		*lw_base64_encode(vectors[i][0], length, text) = '\0';
		assert_string_equal(text, vectors[i][1]);
		assert_int_equal(lw_base64_decode(text, strlen(text), bytes, &size), 0);
		assert_int_equal(size, length);
		assert_memory_equal(bytes, vectors[i][0], length);
	}
}

static void test_decode_other_texts_are_refused(void **state)
{
	static const char *const wrong[] = {
		"Z", "Zg", "Zg=", "Zg==Zg", "Zg==Zg==", "====", "Z===", "Zm-v", "Zm v", "Zm\377v"};
	char bytes[16];
	size_t i, size = 77;

	(void)state;
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (lw_base64_decode(wrong[i], strlen(wrong[i]), bytes, &size) != -EPROTO)
			fail_msg("\"%s\" is taken", wrong[i]);
	assert_int_equal(size, 77);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors_both_ways),
		cmocka_unit_test(test_decode_other_texts_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
