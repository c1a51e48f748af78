/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/frame.h"

#define LIMIT 1000

static void put_length(char *bytes, uint64_t length)
{
	int i;

	for (i = 0; i < 8; i++)
		bytes[i] = (char)(unsigned char)(length >> (8 * i) & 0xff);
}

static void assert_frame(const struct lw_frame_reader *reader, int type, bool legacy, const char *body)
{
	bool is_legacy;
	const char *text;
	size_t size;
	int is_type;

	lw_frame_reader_get(reader, &is_type, &text, &size, &is_legacy);
	assert_int_equal(is_type, type);
	assert_int_equal(is_legacy, legacy);
	assert_int_equal(size, strlen(body));
	assert_string_equal(text, body);
}

static void test_encode_typed_frame_has_the_reference_layout(void **state)
{
	static const char want[] = "\x0c\0\0\0\0\0\0\0\x02{\"name\":1}\n";
	size_t size;
	char *frame;

	(void)state;
	assert_int_equal(lw_frame_encode(LW_FRAME_NOTIFY, false, "{\"name\":1}", 10, &frame, &size), 0);
	assert_int_equal(size, sizeof(want) - 1);
	assert_memory_equal(frame, want, size);
	free(frame);
}

static void test_encode_legacy_frame_has_no_type(void **state)
{
	size_t size;
	char *frame;

	(void)state;
	assert_int_equal(lw_frame_encode(LW_FRAME_CONNECTION, true, "{}", 2, &frame, &size), 0);
	assert_int_equal(size, 11);
	assert_memory_equal(frame, "\x03\0\0\0\0\0\0\0{}\n", size);
	free(frame);
}

static void test_feed_one_byte_at_a_time_gives_the_frame(void **state)
{
	struct lw_frame_reader reader;
	size_t size, used, i;
	char *frame;

	(void)state;
	assert_int_equal(lw_frame_encode(LW_FRAME_METADATA, false, "{\"a\":[1,2,3]}", 13, &frame, &size), 0);
	lw_frame_reader_init(&reader, LIMIT);
	for (i = 0; i < size; i++) {
		assert_int_equal(lw_frame_reader_feed(&reader, frame + i, 1, &used), i + 1 == size);
		assert_int_equal(used, 1);
	}
	assert_frame(&reader, LW_FRAME_METADATA, false, "{\"a\":[1,2,3]}");
	assert_int_equal(lw_frame_reader_feed(&reader, "x", 1, &used), 1);
	assert_int_equal(used, 0);
	lw_frame_reader_fini(&reader);
	free(frame);
}

static void test_feed_glued_frames_stops_after_the_first(void **state)
{
	static const char glued[] = "\x04\0\0\0\0\0\0\0\x03{}\n\x04\0\0\0\0\0\0\0\x01[]\n";
	struct lw_frame_reader reader;
	size_t used, rest;

	(void)state;
	lw_frame_reader_init(&reader, LIMIT);
	assert_int_equal(lw_frame_reader_feed(&reader, glued, sizeof(glued) - 1, &used), 1);
	assert_int_equal(used, 12);
	assert_frame(&reader, LW_FRAME_PROBE, false, "{}");
	lw_frame_reader_fini(&reader);
	rest = sizeof(glued) - 1 - used;
	assert_int_equal(lw_frame_reader_feed(&reader, glued + used, rest, &used), 1);
	assert_int_equal(used, rest);
	assert_frame(&reader, LW_FRAME_METADATA, false, "[]");
	lw_frame_reader_fini(&reader);
}

static void test_get_legacy_frame_is_a_connection(void **state)
{
	struct lw_frame_reader reader;
	size_t used;

	(void)state;
	lw_frame_reader_init(&reader, LIMIT);
	assert_int_equal(lw_frame_reader_feed(&reader, "\x02\0\0\0\0\0\0\0{}", 10, &used), 1);
	assert_frame(&reader, LW_FRAME_CONNECTION, true, "{}");
	lw_frame_reader_fini(&reader);
	/* A high byte is no type either. */
	assert_int_equal(lw_frame_reader_feed(&reader, "\x02\0\0\0\0\0\0\0\x80\n", 10, &used), 1);
	assert_frame(&reader, LW_FRAME_CONNECTION, true, "\x80");
	lw_frame_reader_fini(&reader);
	assert_int_equal(lw_frame_reader_feed(&reader, "\x01\0\0\0\0\0\0\0\n", 9, &used), 1);
	assert_frame(&reader, LW_FRAME_CONNECTION, true, "");
	lw_frame_reader_fini(&reader);
}

static void test_get_body_keeps_all_but_one_newline(void **state)
{
	struct lw_frame_reader reader;
	size_t used;

	(void)state;
	lw_frame_reader_init(&reader, LIMIT);
	assert_int_equal(lw_frame_reader_feed(&reader, "\x01\0\0\0\0\0\0\0\x03", 9, &used), 1);
	assert_frame(&reader, LW_FRAME_PROBE, false, "");
	lw_frame_reader_fini(&reader);
	assert_int_equal(lw_frame_reader_feed(&reader, "\x05\0\0\0\0\0\0\0\x03{}\n\n", 13, &used), 1);
	assert_frame(&reader, LW_FRAME_PROBE, false, "{}\n");
	assert_frame(&reader, LW_FRAME_PROBE, false, "{}\n"); /* asking again changes nothing */
	lw_frame_reader_fini(&reader);
}

static int feed_length(uint64_t length)
{
	struct lw_frame_reader reader;
	char head[8];
	size_t used;
	int ret;

	put_length(head, length);
	lw_frame_reader_init(&reader, LIMIT);
	ret = lw_frame_reader_feed(&reader, head, sizeof(head), &used);
	assert_null(reader.payload); /* nothing is reserved for a claim */
	lw_frame_reader_fini(&reader);
	return ret;
}

static void test_feed_length_out_of_range_is_refused(void **state)
{
	(void)state;
	assert_int_equal(feed_length(0), -EPROTO);
	assert_int_equal(feed_length(1), 0);
	assert_int_equal(feed_length(LIMIT), 0);
	assert_int_equal(feed_length(LIMIT + 1), -EPROTO);
	assert_int_equal(feed_length(UINT64_C(1) << 63), -EPROTO);
	assert_int_equal(feed_length(UINT64_MAX), -EPROTO);
}

static void test_feed_refused_frame_stays_refused(void **state)
{
	struct lw_frame_reader reader;
	char head[8];
	size_t used;

	(void)state;
	put_length(head, LIMIT + 1);
	lw_frame_reader_init(&reader, LIMIT);
	assert_int_equal(lw_frame_reader_feed(&reader, head, sizeof(head), &used), -EPROTO);
	assert_int_equal(lw_frame_reader_feed(&reader, "x", 1, &used), -EPROTO);
	assert_null(reader.payload);
	lw_frame_reader_fini(&reader);
}

static void test_feed_longest_frame_in_odd_pieces_is_exact(void **state)
{
	enum { SIZE = 300000, PIECE = 777 };
	struct lw_frame_reader reader;
	size_t size, used, at, part, i;
	char *body = malloc(SIZE), *frame;
	const char *text;
	bool legacy;
	int type, ret = 0;

	(void)state;
	assert_non_null(body);
	for (i = 0; i < SIZE; i++)
		body[i] = (char)('a' + i % 26);
	assert_int_equal(lw_frame_encode(LW_FRAME_METADATA, false, body, SIZE, &frame, &size), 0);
	lw_frame_reader_init(&reader, SIZE + 2);
	for (at = 0; at < size; at += used) {
		part = size - at < PIECE ? size - at : PIECE;
		assert_int_equal(ret, 0);
		ret = lw_frame_reader_feed(&reader, frame + at, part, &used);
		assert_int_equal(used, part);
		/* Never more than double of what has come, and a first page. */
		assert_true(reader.capacity <= 2 * (at + part) + 4096);
	}
	assert_int_equal(ret, 1);
	lw_frame_reader_get(&reader, &type, &text, &i, &legacy);
	assert_int_equal(i, SIZE);
	assert_memory_equal(text, body, SIZE);
	lw_frame_reader_fini(&reader);
	free(frame);
	free(body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encode_typed_frame_has_the_reference_layout),
		cmocka_unit_test(test_encode_legacy_frame_has_no_type),
		cmocka_unit_test(test_feed_one_byte_at_a_time_gives_the_frame),
		cmocka_unit_test(test_feed_glued_frames_stops_after_the_first),
		cmocka_unit_test(test_get_legacy_frame_is_a_connection),
		cmocka_unit_test(test_get_body_keeps_all_but_one_newline),
		cmocka_unit_test(test_feed_length_out_of_range_is_refused),
		cmocka_unit_test(test_feed_refused_frame_stays_refused),
		cmocka_unit_test(test_feed_longest_frame_in_odd_pieces_is_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
