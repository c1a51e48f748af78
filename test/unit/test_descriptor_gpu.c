/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs in segment descriptors: ours, read again; the form that Mooncake's engines read; theirs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/types.h>

#include "meta/descriptor.h"

#define PORTS "\"tcp_data_port\":0,\"tcp_proto_version\":1"
/* 64 bytes as digits: AB 00 00 ... */
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define HANDLE "AB" ZEROS "000000000000000000000000000000000000000000000000000000000000CD"
#define LOW "ab" ZEROS "000000000000000000000000000000000000000000000000000000000000cd"
#define OURS(memory)                                                                                                   \
	"{\"changes\":1,\"fd\":3,\"grants\":[],\"host\":\"h\",\"memory\":" memory                                      \
	",\"nonce\":\"0123456789abcdef0123456789abcdef\",\"pid\":9}"
#define ENTRY(addr, length, handle)                                                                                    \
	"{\"addr\":" addr ",\"device\":0,\"handle\":\"" handle "\",\"id\":0,\"length\":" length "}"

static int decode(const char *text, struct lw_desc **out, char *why, size_t size)
{
	char *copy = malloc(strlen(text)); /* of the exact size, so that the sanitizer sees a read beyond the end */
	int error;

	assert_non_null(copy);
	memcpy(copy, text, strlen(text));
	error = lw_desc_decode(copy, strlen(text), out, why, size);
	free(copy);
	return error;
}

static struct lw_desc *read_it(const char *text)
{
	struct lw_desc *desc = NULL;
	char why[200] = "";

	if (decode(text, &desc, why, sizeof(why)) != 0)
		fail_msg("\"%.300s\" is refused: %s", text, why);
	return desc;
}

/* An engine with two tensors in one allocation, one in another, and a buffer of the host. */
static struct lw_desc *example(const char *protocol)
{
	static const struct lw_desc_buffer buffers[] = {
		{.addr = 0x10000, .length = 4096, .access = LW_ACCESS_REMOTE, .name = "n:1", .grant = 77},
		{.addr = 0x7f0000001000, .length = 8192, .access = LW_ACCESS_REMOTE, .name = "n:1", .device = true},
		{.addr = 0x7f0000008000, .length = 100, .access = LW_ACCESS_REMOTE_READ, .name = "n:1", .device = true},
		{.addr = 0x7f0000400010, .length = 5, .access = LW_ACCESS_REMOTE, .name = "n:1", .device = true},
	};
	struct lw_desc *desc = calloc(1, sizeof(*desc));
	struct lw_desc_gpu *gpu;

	assert_non_null(desc);
	*desc = (struct lw_desc){
		.name = "n:1", .tcp_port = 16000, .tcp_version = 2, .incarnation = 5, .buffer_count = 4};
	snprintf(desc->protocol, sizeof(desc->protocol), "%s", protocol);
	desc->buffers = malloc(sizeof(buffers));
	assert_non_null(desc->buffers);
	memcpy(desc->buffers, buffers, sizeof(buffers));
	gpu = &desc->gpu[0];
	*gpu = (struct lw_desc_gpu){.pid = 4321, .fd = 12, .host = "boot pid:[1] ", .changes = 6, .count = 2};
	memset(gpu->nonce, 'a', 32);
	gpu->memory = calloc(2, sizeof(*gpu->memory));
	assert_non_null(gpu->memory);
	gpu->memory[0] = (struct lw_desc_allocation){
		.addr = 0x7f0000000000, .length = 0x200000, .id = 17, .device = 1, .handle = {0xab, [63] = 0xcd}};
	gpu->memory[1] = (struct lw_desc_allocation){
		.addr = 0x7f0000400000, .length = 0x200000, .id = 18, .device = 1, .handle = {1, 2, 3}};
	return desc;
}

static char *text_of(const struct lw_desc *desc)
{
	char *text;
	size_t length;

	assert_int_equal(lw_desc_encode(desc, &text, &length), 0);
	return text;
}

static void test_encode_decode_is_the_same(void **state)
{
	/* Whatever the document calls itself for others' sake: our own peers read the same of it. */
	static const char *const protocols[] = {"tcp", "nvlink_intra", "nvlink"};

	(void)state;
	for (size_t p = 0; p < 3; p++) {
		struct lw_desc *desc = example(protocols[p]), *back;
		char *text = text_of(desc);

		back = read_it(text);
		assert_string_equal(back->protocol, protocols[p]);
		assert_int_equal(back->buffer_count, 4);
		for (size_t i = 0; i < 4; i++) {
			assert_int_equal(back->buffers[i].addr, desc->buffers[i].addr);
			assert_int_equal(back->buffers[i].length, desc->buffers[i].length);
			assert_int_equal(back->buffers[i].access, desc->buffers[i].access);
			assert_int_equal(back->buffers[i].device, desc->buffers[i].device);
			assert_int_equal(back->buffers[i].grant, desc->buffers[i].grant);
		}
		assert_int_equal(back->gpu[0].pid, 4321);
		assert_int_equal(back->gpu[0].fd, 12);
		assert_int_equal(back->gpu[0].changes, 6);
		assert_string_equal(back->gpu[0].host, desc->gpu[0].host);
		assert_string_equal(back->gpu[0].nonce, desc->gpu[0].nonce);
		assert_int_equal(back->gpu[0].count, 2);
		assert_memory_equal(back->gpu[0].memory, desc->gpu[0].memory, 2 * sizeof(*back->gpu[0].memory));
		for (int i = 1; i < LW_DESC_GPUS; i++)
			assert_int_equal(back->gpu[i].pid, 0);
		lw_desc_free(back);
		lw_desc_free(desc);
		free(text);
	}
}

/* What a reader that knows Mooncake's documents alone finds: whole allocations, each once, with their handles. */
static void test_encode_for_the_reference_lists_allocations_once(void **state)
{
	struct lw_desc *desc = example("nvlink_intra");
	char *text = text_of(desc);

	(void)state;
	assert_non_null(strstr(text, "\"protocol\":\"nvlink_intra\""));
	assert_non_null(strstr(text, "{\"addr\":139637976727552,\"length\":2097152,\"name\":\"cuda:1\",\"shm_name\":"
				     "\"" HANDLE "\"}"));
	assert_non_null(strstr(text, "{\"addr\":139637976731648,\"length\":8192,\"name\":\"n:1\",\"shm_name\":\"\"}"));
	lw_desc_free(desc);
	free(text);
}

static void test_decode_of_the_references_documents_gives_ranges_and_handles(void **state)
{
	static const char single[] = "{\"buffers\":[{\"addr\":140500000000000,\"length\":2097152,\"name\":\"cuda:3\","
				     "\"shm_name\":\"" HANDLE "\"},"
				     "{\"addr\":140600000000000,\"length\":4096,\"name\":\"cpu:0\",\"shm_name\":\"\"},"
				     "{\"addr\":140700000000000,\"length\":4096,\"name\":\"cuda:0\",\"shm_name\":\"" LOW
				     "\"}],\"name\":\"node5:15001\",\"protocol\":\"nvlink_intra\"," PORTS "}";
	static const char several[] =
		"{\"buffers\":[{\"addr\":65536,\"length\":4096,\"name\":\"n\",\"protocol\":\"tcp\"},"
		"{\"addr\":131072,\"length\":4096,\"name\":\"n\",\"protocol\":\"tcp\"},"
		"{\"addr\":131072,\"length\":8192,\"name\":\"hip:0\",\"protocol\":\"hip\","
		"\"shm_name\":\"" HANDLE "\"}],\"name\":\"node5:15001\","
		"\"protocol\":[\"tcp\",\"hip\"]," PORTS "}";
	struct lw_desc *desc = read_it(single);

	(void)state;
	assert_int_equal(desc->buffer_count, 2); /* what has no handle is nobody's to reach */
	assert_true(desc->buffers[0].device && desc->buffers[1].device);
	assert_int_equal(desc->gpu[0].pid, 0);
	assert_int_equal(desc->gpu[0].count, 2);
	assert_int_equal(desc->gpu[0].memory[0].addr, 140500000000000);
	assert_int_equal(desc->gpu[0].memory[0].device, 3);
	assert_int_equal(desc->gpu[0].memory[0].handle[0], 0xab);
	assert_int_equal(desc->gpu[0].memory[1].handle[63], 0xcd);
	lw_desc_free(desc);
	desc = read_it(several);
	assert_int_equal(desc->buffer_count, 2);
	assert_false(desc->buffers[0].device);
	assert_true(desc->buffers[1].device);
	assert_int_equal(desc->gpu[1].count, 1);
	assert_int_equal(desc->gpu[0].count, 0);
	lw_desc_free(desc);
}

/* What is no handle is left out; the rest of the document stands. */
static void test_decode_of_bad_handles_of_others_leaves_them_out(void **state)
{
	static const char *const handles[] = {"AB", "no digits", HANDLE "00", "G" HANDLE};
	char text[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(handles) / sizeof(handles[0]); i++) {
		struct lw_desc *desc;

		snprintf(text, sizeof(text),
			 "{\"buffers\":[{\"addr\":65536,\"length\":4096,\"name\":\"cuda:0\",\"shm_name\":\"%s\"}],"
			 "\"name\":\"n\",\"protocol\":\"nvlink\"," PORTS "}",
			 handles[i]);
		desc = read_it(text);
		assert_int_equal(desc->gpu[0].count, 0);
		lw_desc_free(desc);
	}
}

static void test_decode_of_wrong_parts_of_ours_is_refused_with_a_reason(void **state)
{
	static const char *const parts[] = {
		"5",
		"{}",
		"{\"pid\":0}",
		OURS("{}"),
		OURS("[5]"),
		OURS("[{}]"),
		OURS("[" ENTRY("0", "4096", HANDLE) "]"),
		OURS("[" ENTRY("4096", "0", HANDLE) "]"),
		OURS("[" ENTRY("9007199254740991", "4096", HANDLE) "]"),
		OURS("[" ENTRY("1.5", "4096", HANDLE) "]"),
		OURS("[" ENTRY("4096", "4096", "AB") "]"),
		OURS("[" ENTRY("4096", "4096", "Z" HANDLE) "]"),
		OURS("[" ENTRY("4096", "8192", HANDLE) "," ENTRY("8192", "4096", HANDLE) "]"),
		"{\"changes\":1,\"fd\":3,\"grants\":[],\"host\":\"h\",\"memory\":[],\"nonce\":\"short\",\"pid\":9}",
		"{\"changes\":1,\"fd\":3,\"grants\":[1],\"host\":\"h\",\"memory\":[],"
		"\"nonce\":\"0123456789abcdef0123456789abcdef\",\"pid\":9}",
		"{\"changes\":1,\"fabric\":7,\"fd\":3,\"grants\":[],\"host\":\"h\",\"memory\":[],"
		"\"nonce\":\"0123456789abcdef0123456789abcdef\",\"pid\":9}",
	};
	char text[2048];

	(void)state;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		struct lw_desc *desc = NULL;
		char why[200] = "";

		snprintf(text, sizeof(text),
			 "{\"buffers\":[],\"lw\":{\"nvlink\":%s},\"name\":\"n\",\"protocol\":\"tcp\"," PORTS "}",
			 parts[i]);
		if (decode(text, &desc, why, sizeof(why)) != -EPROTO)
			fail_msg("taken: %s", text);
		assert_null(desc);
		assert_true(strlen(why) > 10);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encode_decode_is_the_same),
		cmocka_unit_test(test_encode_for_the_reference_lists_allocations_once),
		cmocka_unit_test(test_decode_of_the_references_documents_gives_ranges_and_handles),
		cmocka_unit_test(test_decode_of_bad_handles_of_others_leaves_them_out),
		cmocka_unit_test(test_decode_of_wrong_parts_of_ours_is_refused_with_a_reason),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
