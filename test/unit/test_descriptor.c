/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lanewise/types.h>

#include "meta/descriptor.h"

#define PORTS "\"tcp_data_port\":16231,\"tcp_proto_version\":2,\"timestamp\":\"2026-08-21 10:41:04.123456\""
#define SHM_TEXTS "\"changes\":0,\"grants\":[],\"host\":\"h\",\"nonce\":\"0123456789abcdef0123456789abcdef\""
#define HEAD "\"name\":\"n:1\",\"protocol\":\"tcp\"," PORTS
#define BUF(addr, length) "{\"addr\":" addr ",\"length\":" length ",\"name\":\"n:1\"}"

/* From an exact-size copy, so that the sanitizer sees a read beyond the end. */
static int decode_bytes(const char *text, size_t length, struct lw_desc **desc, char *why, size_t why_size)
{
	char *copy = malloc(length > 0 ? length : 1);
	int ret;

	assert_non_null(copy);
	memcpy(copy, text, length);
	ret = lw_desc_decode(copy, length, desc, why, why_size);
	free(copy);
	return ret;
}

static struct lw_desc *decode(const char *text)
{
	struct lw_desc *desc = NULL;
	char why[200] = "";

	if (decode_bytes(text, strlen(text), &desc, why, sizeof(why)) != 0)
		fail_msg("\"%.200s\" is refused: %s", text, why);
	return desc;
}

static void assert_buffers(const struct lw_desc *desc, const struct lw_desc_buffer *want, size_t count)
{
	size_t i;

	assert_int_equal(desc->buffer_count, count);
	for (i = 0; i < count; i++) {
		assert_true(desc->buffers[i].addr == want[i].addr && desc->buffers[i].length == want[i].length);
		assert_true(desc->buffers[i].access == want[i].access);
		assert_true(strcmp(desc->buffers[i].name, want[i].name) == 0);
	}
}

static void test_decode_reference_tcp_document_gives_its_fields(void **state)
{
	struct lw_desc *desc;

	(void)state;
	desc = decode(
		"{\"buffers\":[{\"addr\":140129317584896,\"length\":1073741824,\"name\":\"10.0.0.5:15428\"}],\n"
		" \"name\":\"10.0.0.5:15428\",\"protocol\":\"tcp\",\"tcp_data_port\":16231,\"tcp_proto_version\":2,\n"
		" \"timestamp\":\"2026-08-21 10:41:04.123456\"}\n");
	assert_string_equal(desc->name, "10.0.0.5:15428");
	assert_string_equal(desc->protocol, "tcp");
	assert_int_equal(desc->tcp_port, 16231);
	assert_int_equal(desc->tcp_version, 2);
	assert_int_equal(desc->incarnation, 0);
	assert_int_equal(desc->buffer_count, 1);
	assert_int_equal(desc->buffers[0].addr, UINT64_C(140129317584896));
	assert_int_equal(desc->buffers[0].length, 1073741824);
	assert_int_equal(desc->buffers[0].access, LW_ACCESS_REMOTE);
	assert_string_equal(desc->buffers[0].name, "10.0.0.5:15428");
	lw_desc_free(desc);
}

static void test_encode_plain_segment_has_the_reference_bytes(void **state)
{
	struct lw_desc_buffer buffer = {.addr = UINT64_C(140129317584896),
					.length = 8388608,
					.access = LW_ACCESS_REMOTE,
					.name = "127.0.0.1:15220"};
	struct lw_desc desc = {.name = "127.0.0.1:15220",
			       .protocol = "tcp",
			       .tcp_port = 16119,
			       .tcp_version = 2,
			       .buffer_count = 1,
			       .buffers = &buffer};
	static const char want[] =
		"{\"buffers\":[{\"addr\":140129317584896,\"length\":8388608,\"name\":\"127.0.0.1:15220\"}],"
		"\"name\":\"127.0.0.1:15220\",\"protocol\":\"tcp\",\"tcp_data_port\":16119,\"tcp_proto_version\":2,"
		"\"timestamp\":\"";
	unsigned int year, month, day, hour, minute, second, micros;
	size_t length;
	char *text;
	int end = 0;

	(void)state;
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_int_equal(length, strlen(text));
	assert_int_equal(length, sizeof(want) - 1 + 26 + 2);
	assert_memory_equal(text, want, sizeof(want) - 1);
	assert_int_equal(sscanf(text + sizeof(want) - 1, "%4u-%2u-%2u %2u:%2u:%2u.%6u\"}%n", &year, &month, &day, &hour,
				&minute, &second, &micros, &end),
			 7);
	assert_int_equal(end, 28);
	free(text);
}

static void test_encode_integers_above_doubles_are_exact(void **state)
{
	struct lw_desc_buffer buffer = {
		.addr = UINT64_MAX - 6, .length = UINT64_C(9007199254740993), .access = 3, .name = "n"};
	struct lw_desc desc = {.name = "n", .protocol = "tcp", .buffer_count = 1, .buffers = &buffer};
	size_t length;
	char *text;

	(void)state;
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_non_null(strstr(text, "\"addr\":18446744073709551609,"));
	assert_non_null(strstr(text, "\"length\":9007199254740993,"));
	free(text);
}

static void test_encode_decode_tells_whose_memory_is_a_gpus(void **state)
{
	struct lw_desc_buffer buffers[] = {
		{.addr = 4096, .length = 4096, .access = LW_ACCESS_REMOTE, .name = "n"},
		{.addr = 8192, .length = 4096, .access = LW_ACCESS_REMOTE, .name = "cuda:0", .device = true}};
	struct lw_desc desc = {
		.name = "n", .protocol = "tcp", .tcp_port = 1, .tcp_version = 2, .buffer_count = 2, .buffers = buffers};
	struct lw_desc *read;
	size_t length;
	char *text;

	(void)state;
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_non_null(strstr(text, "\"lw\":{\"device\":[0,1]}"));
	read = decode(text);
	assert_false(read->buffers[0].device);
	assert_true(read->buffers[1].device);
	lw_desc_free(read);
	free(text);
	/* A name says nothing: of a peer that is not ours it may be an operator's. */
	read = decode(
		"{\"buffers\":[{\"addr\":4096,\"length\":1,\"name\":\"cuda:0\"}],\"name\":\"n\",\"protocol\":\"tcp\","
		"\"tcp_data_port\":1}");
	assert_false(read->buffers[0].device);
	lw_desc_free(read);
}

static void test_encode_decode_full_segment_is_the_same(void **state)
{
	struct lw_desc_buffer buffers[3] = {
		{.addr = 8192, .length = 4096, .access = LW_ACCESS_REMOTE, .name = "cpu:0"},
		{.addr = 4096, .length = 4096, .access = LW_ACCESS_REMOTE_READ, .name = "a\"b\\c"},
		{.addr = UINT64_C(1) << 52,
		 .length = UINT64_C(1) << 52,
		 .access = LW_ACCESS_LOCAL,
		 .name = "n\xc3\xb6rd"},
	};
	struct lw_desc desc = {.name = "[fe80::1%eth0]:15001",
			       .protocol = "tcp",
			       .tcp_port = 65535,
			       .tcp_version = 1,
			       .incarnation = UINT64_C(0xfedcba9876543210),
			       .buffer_count = 3,
			       .buffers = buffers};
	struct lw_desc *read;
	size_t length;
	char *text;

	(void)state;
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_non_null(strstr(text, "],\"lw\":{\"access\":[3,1,0],\"incarnation\":\"fedcba9876543210\"},\"name\":"));
	read = decode(text);
	assert_string_equal(read->name, desc.name);
	assert_string_equal(read->protocol, desc.protocol);
	assert_int_equal(read->tcp_port, desc.tcp_port);
	assert_int_equal(read->tcp_version, desc.tcp_version);
	assert_true(read->incarnation == desc.incarnation);
	assert_buffers(read, buffers, 3);
	lw_desc_free(read);
	free(text);
}

static void test_encode_decode_shared_memory_is_the_same(void **state)
{
	struct lw_desc_buffer buffers[2] = {
		{.addr = 8192, .length = 4096, .access = LW_ACCESS_REMOTE, .name = "n", .grant = lw_desc_grant(1, 0)},
		{.addr = 4096,
		 .length = 1,
		 .access = LW_ACCESS_REMOTE,
		 .name = "n",
		 .grant = lw_desc_grant(UINT32_MAX, (1u << 20) - 1)},
	};
	struct lw_desc desc = {.name = "n:1",
			       .protocol = "tcp",
			       .tcp_port = 1,
			       .tcp_version = 2,
			       .shm = {.changes = 9,
				       .pid = 4194304,
				       .fd = 17,
				       .host = "c0ffee pid:[4026531836] time:[4026531834]",
				       .nonce = "0123456789abcdef0123456789abcdef"},
			       .buffer_count = 2,
			       .buffers = buffers};
	struct lw_desc *read;
	size_t length;
	char *text;

	(void)state;
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_non_null(strstr(
		text,
		"\"lw\":{\"shm\":{\"changes\":9,\"fd\":17,\"grants\":[1048576,4503599627370495],\"host\":\"c0ffee "));
	assert_non_null(strstr(text, ",\"pid\":4194304}},\"name\""));
	read = decode(text);
	assert_int_equal(read->shm.pid, desc.shm.pid);
	assert_int_equal(read->shm.fd, desc.shm.fd);
	assert_string_equal(read->shm.host, desc.shm.host);
	assert_string_equal(read->shm.nonce, desc.shm.nonce);
	assert_true(read->buffers[0].grant == buffers[0].grant && read->buffers[1].grant == buffers[1].grant);
	lw_desc_free(read);
	free(text);
}

static void test_encode_decode_several_protocols_are_the_same(void **state)
{
	struct lw_desc_buffer buffer = {.addr = 4096, .length = 1, .access = LW_ACCESS_REMOTE, .name = "n:1"};
	struct lw_desc desc = {.name = "n:1",
			       .protocol = "rdma,tcp",
			       .tcp_port = 1,
			       .tcp_version = 2,
			       .buffer_count = 1,
			       .buffers = &buffer};
	struct lw_desc *read;
	size_t length;
	char *text;

	(void)state;
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_non_null(strstr(text, "\"name\":\"n:1\",\"protocol\":\"tcp\"}]"));
	assert_non_null(strstr(text, "\"protocol\":[\"rdma\",\"tcp\"]"));
	read = decode(text);
	assert_string_equal(read->protocol, "rdma,tcp");
	assert_buffers(read, &buffer, 1);
	lw_desc_free(read);
	free(text);
}

static void test_decode_several_protocols_keeps_the_tcp_buffers(void **state)
{
	struct lw_desc *desc;

	(void)state;
	desc = decode("{\"buffers\":[{\"addr\":1407000,\"length\":4096,\"lkey\":[1],\"name\":\"cpu:0\",\"protocol\":"
		      "\"rdma\",\"rkey\":[2]},"
		      "{\"addr\":1407000,\"length\":4096,\"name\":\"node5\",\"protocol\":\"tcp\"}],"
		      "\"devices\":[{\"gid\":\"00\",\"lid\":0,\"name\":\"mlx5_0\"}],\"lw\":{\"access\":[3,1]},\"name\":"
		      "\"node5\","
		      "\"priority_matrix\":{\"cpu:0\":[[\"mlx5_0\"],[]]},\"protocol\":[\"rdma\",\"tcp\"],\"tcp_data_"
		      "port\":16000,"
		      "\"tcp_proto_version\":2,\"timestamp\":\"x\"}");
	assert_string_equal(desc->protocol, "rdma,tcp");
	assert_int_equal(desc->buffer_count, 1);
	assert_string_equal(desc->buffers[0].name, "node5");
	assert_int_equal(desc->buffers[0].access, LW_ACCESS_REMOTE_READ);
	lw_desc_free(desc);
}

struct shape {
	const char *what, *text;
};

static const struct shape good[] = {
	{"no buffers", "{\"buffers\":[]," HEAD "}"},
	{"unknown fields", "{\"x\":{\"y\":[null,true,1.5,-3]},\"buffers\":[]," HEAD ",\"z\":1e400}"},
	{"adjacent buffers", "{\"buffers\":[" BUF("8192", "4096") "," BUF("4096", "4096") "]," HEAD "}"},
	{"the last address", "{\"buffers\":[" BUF("9007199254740991", "1") "]," HEAD "}"},
	{"an integer with an exponent", "{\"buffers\":[" BUF("4.096e3", "1") "]," HEAD "}"},
	{"no tcp_proto_version", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":1}"},
	{"a later tcp_proto_version",
	 "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":1,\"tcp_proto_version\":3}"},
	{"rdma", "{\"buffers\":[{\"addr\":1,\"length\":1,\"lkey\":[1],\"name\":\"cpu:0\",\"rkey\":[2]}],\"devices\":[],"
		 "\"name\":\"node5\",\"protocol\":\"rdma\"," PORTS "}"},
	{"cxl",
	 "{\"buffers\":[{\"length\":1073741824,\"name\":\"node5\",\"offset\":2147483648}],"
	 "\"cxl_base_addr\":140000000000000,\"cxl_name\":\"/dev/dax0.0\",\"name\":\"node5\",\"protocol\":\"cxl\"," PORTS
	 "}"},
	{"nvmeof", "{\"name\":\"nvmeof/kvfile1\",\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"/mnt/kv.bin\","
		   "\"length\":1073741824,\"local_path_map\":{\"node7\":\"/mnt/te/kv.bin\"}}]}"},
	{"an escaped backslash before u0000", "{\"buffers\":[],\"x\":\"\\\\u0000\"," HEAD "}"},
	{"sixteen levels", "{\"buffers\":[],\"x\":[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]," HEAD "}"},
};

static const struct shape wrong[] = {
	{"empty", ""},
	{"blanks", " \n"},
	{"null", "null"},
	{"a number", "5"},
	{"a list", "[]"},
	{"a text", "\"x\""},
	{"an object without fields", "{}"},
	{"cut", "{\"buffers\":[" BUF("1", "1") "]," HEAD},
	{"cut in a list", "{\"buffers\":[" BUF("1", "1") ","},
	{"cut in a text", "{\"buffers\":[],\"name\":\"n"},
	{"cut after a colon", "{\"1\":1,"},
	{"more after the end", "{\"buffers\":[]," HEAD "}{}"},
	{"closed twice", "{\"buffers\":[]," HEAD "}}"},
	{"brackets crossed", "{\"buffers\":[}," HEAD "]"},
	{"a control byte", "{\"buffers\":[],\"x\":\"a\tb\"," HEAD "}"},
	{"a NUL in a text", "{\"buffers\":[],\"x\":\"a\\u0000b\"," HEAD "}"},
	{"seventeen levels", "{\"buffers\":[],\"x\":[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]," HEAD "}"},
	{"no name", "{\"buffers\":[],\"protocol\":\"tcp\"," PORTS "}"},
	{"name a list", "{\"buffers\":[],\"name\":[\"x\"],\"protocol\":\"tcp\"," PORTS "}"},
	{"name empty", "{\"buffers\":[],\"name\":\"\",\"protocol\":\"tcp\"," PORTS "}"},
	{"name with a newline", "{\"buffers\":[],\"name\":\"a\\nb\",\"protocol\":\"tcp\"," PORTS "}"},
	{"no protocol", "{\"buffers\":[],\"name\":\"n\"," PORTS "}"},
	{"protocol unknown", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"pigeon\"," PORTS "}"},
	{"protocol a number", "{\"buffers\":[],\"name\":\"n\",\"protocol\":5," PORTS "}"},
	{"protocol an empty list", "{\"buffers\":[],\"name\":\"n\",\"protocol\":[]," PORTS "}"},
	{"protocol a list of lists", "{\"buffers\":[],\"name\":\"n\",\"protocol\":[[\"tcp\"]]," PORTS "}"},
	{"protocol with a comma", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp,rdma\"," PORTS "}"},
	{"protocol too often", "{\"buffers\":[],\"name\":\"n\",\"protocol\":[\"tcp\",\"tcp\",\"tcp\",\"tcp\",\"tcp\","
			       "\"tcp\",\"tcp\",\"tcp\",\"tcp\"]," PORTS "}"},
	{"no port", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\"}"},
	{"port 70000", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":70000}"},
	{"port negative", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":-1}"},
	{"port a text", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":\"80\"}"},
	{"port a fraction", "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":80.5}"},
	{"version 0",
	 "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":1,\"tcp_proto_version\":0}"},
	{"version a text",
	 "{\"buffers\":[],\"name\":\"n\",\"protocol\":\"tcp\",\"tcp_data_port\":1,\"tcp_proto_version\":\"2\"}"},
	{"no buffers field", "{" HEAD "}"},
	{"buffers an object", "{\"buffers\":{}," HEAD "}"},
	{"a buffer a number", "{\"buffers\":[7]," HEAD "}"},
	{"addr missing", "{\"buffers\":[{\"length\":1,\"name\":\"n\"}]," HEAD "}"},
	{"addr 0", "{\"buffers\":[" BUF("0", "1") "]," HEAD "}"},
	{"addr a text", "{\"buffers\":[" BUF("\"4096\"", "1") "]," HEAD "}"},
	{"addr negative", "{\"buffers\":[" BUF("-4096", "1") "]," HEAD "}"},
	{"addr a fraction", "{\"buffers\":[" BUF("1.5", "1") "]," HEAD "}"},
	{"addr 2^53", "{\"buffers\":[" BUF("9007199254740992", "1") "]," HEAD "}"},
	{"addr 2^53 + 1", "{\"buffers\":[" BUF("9007199254740993", "1") "]," HEAD "}"},
	{"addr 2^70", "{\"buffers\":[" BUF("1180591620717411303424", "1") "]," HEAD "}"},
	{"addr beyond doubles", "{\"buffers\":[" BUF("1e999", "1") "]," HEAD "}"},
	{"length missing", "{\"buffers\":[{\"addr\":1,\"name\":\"n\"}]," HEAD "}"},
	{"length 0", "{\"buffers\":[" BUF("1", "0") "]," HEAD "}"},
	{"length true", "{\"buffers\":[" BUF("1", "true") "]," HEAD "}"},
	{"the end beyond the last address", "{\"buffers\":[" BUF("9007199254740991", "2") "]," HEAD "}"},
	{"buffer without name", "{\"buffers\":[{\"addr\":1,\"length\":1}]," HEAD "}"},
	{"buffer with empty name", "{\"buffers\":[{\"addr\":1,\"length\":1,\"name\":\"\"}]," HEAD "}"},
	{"buffer named by a number", "{\"buffers\":[{\"addr\":1,\"length\":1,\"name\":1}]," HEAD "}"},
	{"the same buffer twice", "{\"buffers\":[" BUF("4096", "4096") "," BUF("4096", "4096") "]," HEAD "}"},
	{"buffers that overlap by a byte", "{\"buffers\":[" BUF("8191", "4096") "," BUF("4096", "4096") "]," HEAD "}"},
	{"a buffer inside another", "{\"buffers\":[" BUF("4096", "4096") "," BUF("5000", "1") "]," HEAD "}"},
	{"lw a list", "{\"buffers\":[],\"lw\":[]," HEAD "}"},
	{"shm no object", "{\"buffers\":[],\"lw\":{\"shm\":5}," HEAD "}"},
	{"shm without pid", "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3," SHM_TEXTS "}}," HEAD "}"},
	{"shm pid 0", "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3,\"pid\":0," SHM_TEXTS "}}," HEAD "}"},
	{"shm pid above int", "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3,\"pid\":2147483648," SHM_TEXTS "}}," HEAD "}"},
	{"shm fd negative", "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":-1,\"pid\":7," SHM_TEXTS "}}," HEAD "}"},
	{"shm changes missing", "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3,\"pid\":7,\"grants\":[],\"host\":\"h\","
				"\"nonce\":\"0123456789abcdef0123456789abcdef\"}}," HEAD "}"},
	{"shm nonce short",
	 "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3,\"pid\":7,\"changes\":0,\"grants\":[],\"host\":\"h\","
	 "\"nonce\":\"00\"}}," HEAD "}"},
	{"shm nonce no hex",
	 "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3,\"pid\":7,\"changes\":0,\"grants\":[],\"host\":\"h\","
	 "\"nonce\":\"0123456789abcdef0123456789abcdeX\"}}," HEAD "}"},
	{"shm host missing", "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3,\"pid\":7,\"changes\":0,\"grants\":[],"
			     "\"nonce\":\"0123456789abcdef0123456789abcdef\"}}," HEAD "}"},
	{"shm grants too few",
	 "{\"buffers\":[" BUF("4096", "1") "],\"lw\":{\"shm\":{\"fd\":3,\"pid\":7," SHM_TEXTS "}}," HEAD "}"},
	{"shm grants no list",
	 "{\"buffers\":[],\"lw\":{\"shm\":{\"fd\":3,\"pid\":7,\"changes\":0,\"grants\":{},\"host\":\"h\","
	 "\"nonce\":\"0123456789abcdef0123456789abcdef\"}}," HEAD "}"},
	{"data a text", "{\"buffers\":[],\"lw\":{\"data\":\"10.0.0.1:5\"}," HEAD "}"},
	{"data a name", "{\"buffers\":[],\"lw\":{\"data\":[\"host:5\"]}," HEAD "}"},
	{"data without a port", "{\"buffers\":[],\"lw\":{\"data\":[\"10.0.0.1\"]}," HEAD "}"},
	{"data of many hosts", "{\"buffers\":[],\"lw\":{\"data\":[\"224.0.0.1:5\"]}," HEAD "}"},
	{"data of no host", "{\"buffers\":[],\"lw\":{\"data\":[\"[::]:5\"]}," HEAD "}"},
	{"data of some link", "{\"buffers\":[],\"lw\":{\"data\":[\"[fe80::1]:5\"]}," HEAD "}"},
	{"nine data addresses", "{\"buffers\":[],\"lw\":{\"data\":[\"1.1.1.1:1\",\"1.1.1.1:2\",\"1.1.1.1:3\",\"1.1.1.1:"
				"4\",\"1.1.1.1:5\",\"1.1.1."
				"1:6\",\"1.1.1.1:7\",\"1.1.1.1:8\",\"1.1.1.1:9\"]}," HEAD "}"},
	{"incarnation a number", "{\"buffers\":[],\"lw\":{\"incarnation\":5}," HEAD "}"},
	{"incarnation short", "{\"buffers\":[],\"lw\":{\"incarnation\":\"123\"}," HEAD "}"},
	{"incarnation no hex", "{\"buffers\":[],\"lw\":{\"incarnation\":\"0x23456789abcdef\"}," HEAD "}"},
	{"access too short", "{\"buffers\":[" BUF("1", "1") "," BUF("9", "1") "],\"lw\":{\"access\":[3]}," HEAD "}"},
	{"access too long", "{\"buffers\":[" BUF("1", "1") "],\"lw\":{\"access\":[3,3]}," HEAD "}"},
	{"access for no buffer", "{\"buffers\":[],\"lw\":{\"access\":[3]}," HEAD "}"},
	{"access no list", "{\"buffers\":[" BUF("1", "1") "],\"lw\":{\"access\":3}," HEAD "}"},
	{"device too short", "{\"buffers\":[" BUF("1", "1") "," BUF("9", "1") "],\"lw\":{\"device\":[1]}," HEAD "}"},
	{"device no list", "{\"buffers\":[" BUF("1", "1") "],\"lw\":{\"device\":1}," HEAD "}"},
	{"device 2", "{\"buffers\":[" BUF("1", "1") "],\"lw\":{\"device\":[2]}," HEAD "}"},
	{"access 4", "{\"buffers\":[" BUF("1", "1") "],\"lw\":{\"access\":[4]}," HEAD "}"},
	{"access a text", "{\"buffers\":[" BUF("1", "1") "],\"lw\":{\"access\":[\"rw\"]}," HEAD "}"},
};

static void test_decode_accepted_shapes_are_read(void **state)
{
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct lw_desc *desc = NULL;
		char why[200] = "";

		if (decode_bytes(good[i].text, strlen(good[i].text), &desc, why, sizeof(why)) != 0)
			fail_msg("%s: %s", good[i].what, why);
		assert_in_range(desc->tcp_version, 1, 2);
		lw_desc_free(desc);
	}
}

static void test_decode_wrong_shapes_are_refused_with_a_reason(void **state)
{
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct lw_desc *desc = NULL;
		char why[200] = "";
		int ret = decode_bytes(wrong[i].text, strlen(wrong[i].text), &desc, why, sizeof(why));

		if (ret != -EPROTO || desc != NULL || why[0] == '\0')
			fail_msg("%s: %d \"%s\"", wrong[i].what, ret, why);
		assert_int_equal(decode_bytes(wrong[i].text, strlen(wrong[i].text), &desc, NULL, 0), -EPROTO);
	}
}

static void test_decode_every_prefix_of_a_document_is_refused(void **state)
{
	static const char text[] = "{\"buffers\":[" BUF("4096", "1") "],\"lw\":{\"access\":[1],\"incarnation\":"
								     "\"0123456789abcdef\"}," HEAD "}";
	struct lw_desc *desc = NULL;
	char why[200];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(text) - 1; i++)
		assert_int_equal(decode_bytes(text, i, &desc, why, sizeof(why)), -EPROTO);
	lw_desc_free(decode(text));
}

static void test_decode_names_in_range_are_cut_or_refused(void **state)
{
	char text[1024], name[301];
	struct lw_desc *desc = NULL;
	int length;

	(void)state;
	memset(name, 'x', sizeof(name) - 1);
	name[255] = '\0';
	snprintf(text, sizeof(text),
		 "{\"buffers\":[{\"addr\":1,\"length\":1,\"name\":\"%s\"}],\"name\":\"%s\",\"protocol\":\"tcp\"," PORTS
		 "}",
		 name, name);
	desc = decode(text);
	assert_int_equal(strlen(desc->name), 255);
	assert_int_equal(strlen(desc->buffers[0].name), 63);
	lw_desc_free(desc);
	name[255] = 'x';
	name[256] = '\0';
	length = snprintf(text, sizeof(text), "{\"buffers\":[],\"name\":\"%s\",\"protocol\":\"tcp\"," PORTS "}", name);
	assert_int_equal(decode_bytes(text, (size_t)length, &desc, NULL, 0), -EPROTO);
}

static void test_decode_deep_nesting_is_refused_before_it_recurses(void **state)
{
	enum { DEPTH = 1000000 };
	char *text = malloc(DEPTH * 5 + 1), why[200] = "";
	struct lw_desc *desc;
	size_t i;

	(void)state;
	assert_non_null(text);
	memset(text, '[', DEPTH);
	memset(text + DEPTH, ']', DEPTH);
	assert_int_equal(lw_desc_decode(text, (size_t)2 * DEPTH, &desc, why, sizeof(why)), -EPROTO);
	assert_non_null(strstr(why, "deeper"));
	for (i = 0; i < DEPTH; i++)
		memcpy(text + 5 * i, "{\"a\":", 5);
	assert_int_equal(lw_desc_decode(text, (size_t)5 * DEPTH, &desc, why, sizeof(why)), -EPROTO);
	free(text);
}

static void test_decode_many_tiny_values_are_refused_before_they_are_allocated(void **state)
{
	enum { COUNT = 1000000 };
	char *text = malloc(COUNT * 2 + 200), why[200] = "";
	struct lw_desc *desc;
	size_t length = 0, i;

	(void)state;
	assert_non_null(text);
	length += (size_t)sprintf(text, "{\"x\":[0");
	for (i = 0; i < COUNT; i++)
		length += (size_t)sprintf(text + length, ",0");
	length += (size_t)sprintf(text + length, "]," HEAD ",\"buffers\":[]}");
	assert_int_equal(lw_desc_decode(text, length, &desc, why, sizeof(why)), -EPROTO);
	assert_non_null(strstr(why, "values"));
	free(text);
}

static int64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* CPU time to encode and decode a segment of count buffers. */
static int64_t round_trip_us(size_t count)
{
	struct lw_desc desc = {.name = "n:1", .protocol = "tcp", .tcp_port = 1, .tcp_version = 2, .incarnation = 1};
	struct lw_desc *read = NULL;
	int64_t begin;
	size_t length, i;
	char *text;

	desc.buffers = calloc(count, sizeof(*desc.buffers));
	desc.buffer_count = count;
	assert_non_null(desc.buffers);
	for (i = 0; i < count; i++) {
		desc.buffers[i] =
			(struct lw_desc_buffer){.addr = 4096 * (1 + i * 7919 % count), .length = 4096, .name = "n:1"};
		desc.buffers[i].access = (uint32_t)(i % 4);
	}
	begin = now_us();
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_int_equal(lw_desc_decode(text, length, &read, NULL, 0), 0);
	begin = now_us() - begin;
	assert_buffers(read, desc.buffers, count);
	lw_desc_free(read);
	free(text);
	free(desc.buffers);
	return begin;
}

static void test_decode_20000_buffers_takes_linear_time(void **state)
{
	int64_t small = INT64_MAX, large = INT64_MAX, us;
	int i;

	(void)state;
	for (i = 0; i < 3; i++) { /* the best of three: others use the machine */
		us = round_trip_us(2000);
		small = us < small ? us : small;
		us = round_trip_us(20000);
		large = us < large ? us : large;
	}
	if (large > 40 * small + 20000) /* ten times the work; a square would be a hundred */
		fail_msg("2,000 buffers: %" PRId64 " us, 20,000: %" PRId64 " us", small, large);
}

static void test_encode_data_addresses_are_read_again(void **state)
{
	struct lw_desc desc = {.name = "n:1", .protocol = "tcp", .tcp_port = 1, .tcp_version = 2, .data.count = 2};
	struct lw_desc *read;
	size_t length;
	char *text;

	(void)state;
	assert_int_equal(lw_sockaddr_parse("10.1.0.2:15777", &desc.data.addr[0]), 0);
	assert_int_equal(lw_sockaddr_parse("[2001:db8::2]:15778", &desc.data.addr[1]), 0);
	assert_int_equal(lw_desc_encode(&desc, &text, &length), 0);
	assert_non_null(strstr(text, "\"lw\":{\"data\":[\"10.1.0.2:15777\",\"[2001:db8::2]:15778\"]}"));
	read = decode(text);
	assert_int_equal(read->data.count, 2);
	assert_memory_equal(&read->data.addr, &desc.data.addr, sizeof(desc.data.addr));
	lw_desc_free(read);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode_reference_tcp_document_gives_its_fields),
		cmocka_unit_test(test_encode_plain_segment_has_the_reference_bytes),
		cmocka_unit_test(test_encode_integers_above_doubles_are_exact),
		cmocka_unit_test(test_encode_decode_tells_whose_memory_is_a_gpus),
		cmocka_unit_test(test_encode_decode_full_segment_is_the_same),
		cmocka_unit_test(test_encode_decode_shared_memory_is_the_same),
		cmocka_unit_test(test_encode_decode_several_protocols_are_the_same),
		cmocka_unit_test(test_decode_several_protocols_keeps_the_tcp_buffers),
		cmocka_unit_test(test_decode_accepted_shapes_are_read),
		cmocka_unit_test(test_decode_wrong_shapes_are_refused_with_a_reason),
		cmocka_unit_test(test_decode_every_prefix_of_a_document_is_refused),
		cmocka_unit_test(test_decode_names_in_range_are_cut_or_refused),
		cmocka_unit_test(test_decode_deep_nesting_is_refused_before_it_recurses),
		cmocka_unit_test(test_decode_many_tiny_values_are_refused_before_they_are_allocated),
		cmocka_unit_test(test_encode_data_addresses_are_read_again),
		cmocka_unit_test(test_decode_20000_buffers_takes_linear_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
