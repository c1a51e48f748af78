/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA part of descriptors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/types.h>

#include "meta/descriptor.h"
#include "meta/matrix.h"

#define GID(last) "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:" last
#define DEVICES                                                                                                        \
	"\"devices\":[{\"gid\":\"" GID("05") "\",\"lid\":0,\"name\":\"mlx5_0\"},{\"gid\":\"" GID(                      \
		"06") "\",\"lid\":7,"                                                                                  \
		      "\"name\":\"mlx5_1\"}],"
#define MATRIX "\"priority_matrix\":{\"cpu:0\":[[\"mlx5_0\"],[\"mlx5_1\"]],\"cpu:1\":[[\"mlx5_1\"],[\"mlx5_0\"]]},"
#define TAIL "\"tcp_data_port\":0,\"tcp_proto_version\":1,\"timestamp\":\"x\"}"
#define BUFFER(addr, keys) "{\"addr\":" addr ",\"length\":4096," keys "\"name\":\"cpu:0\"}"

static struct lw_desc *decode(const char *text)
{
	struct lw_desc *desc = NULL;
	char why[160] = "";

	if (lw_desc_decode(text, strlen(text), &desc, why, sizeof(why)) != 0)
		fail_msg("%s: %s", text, why);
	return desc;
}

/* The reference's example: two devices, a remote buffer and one that is local alone. */
static void test_decode_reference_devices_and_keys(void **state)
{
	struct lw_desc *desc =
		decode("{\"buffers\":[{\"addr\":139637976727552,\"length\":4294967296,\"lkey\":[8192,12288],\"name\":"
		       "\"cpu:0\","
		       "\"rkey\":[8193,12289]},{\"addr\":139642271694848,\"length\":1048576,\"lkey\":[8448,12544],"
		       "\"name\":\"cpu:1\",\"rkey\":[]}]," DEVICES "\"name\":\"node5\"," MATRIX
		       "\"protocol\":\"rdma\",\"rdma_server_name\":\"192.168.9.5:12001\"," TAIL);

	(void)state;
	assert_int_equal(desc->rdma.device_count, 2);
	assert_string_equal(desc->rdma.devices[1].name, "mlx5_1");
	assert_int_equal(desc->rdma.devices[1].lid, 7);
	assert_true(desc->rdma.devices[0].has_gid);
	assert_int_equal(desc->rdma.devices[0].gid[15], 5);
	assert_string_equal(desc->rdma.name, "192.168.9.5:12001");
	assert_int_equal(desc->buffer_count, 2);
	assert_int_equal(desc->buffers[0].key, 1);
	assert_int_equal(desc->rdma.keys[0].rkey, 8193);
	assert_int_equal(desc->rdma.keys[1].lkey, 12288);
	assert_int_equal(desc->buffers[0].access, LW_ACCESS_REMOTE);
	assert_int_equal(desc->buffers[1].key, 0);
	assert_int_equal(desc->buffers[1].access, LW_ACCESS_LOCAL);
	assert_int_equal(desc->rdma.matrix->row_count, 2);
	lw_desc_free(desc);
}

static void test_encode_decode_are_the_same(void **state)
{
	struct lw_desc_device devices[2] = {{.name = "rxe0", .has_gid = true, .gid = {1, 2, 3}, .lid = 9},
					    {.name = "rxe1", .has_gid = true, .gid = {[15] = 255}}};
	struct lw_desc_key keys[] = {{1, 2}, {3, 4}, {UINT32_MAX, UINT32_MAX}, {7, 8}};
	struct lw_desc_buffer buffers[2] = {
		{.addr = 4096, .length = 1, .access = LW_ACCESS_REMOTE, .name = "*", .key = 1},
		{.addr = 8192, .length = 1, .access = LW_ACCESS_REMOTE, .name = "cpu:1", .key = 3}};
	struct lw_matrix matrix = {.row_count = 0};
	struct lw_desc desc = {.name = "n:1",
			       .protocol = "rdma",
			       .tcp_version = 2,
			       .tcp_port = 5,
			       .incarnation = 77,
			       .rdma = {.name = "m:1",
					.device_count = 2,
					.devices = devices,
					.key_count = 4,
					.keys = keys,
					.matrix = &matrix},
			       .buffer_count = 2,
			       .buffers = buffers};
	struct lw_desc *read;
	size_t size;
	char *text;

	(void)state;
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", "rxe0", true), 0);
	assert_int_equal(lw_matrix_add(&matrix, "cpu:0", "rxe1", false), 0);
	assert_int_equal(lw_desc_encode(&desc, &text, &size), 0);
	assert_non_null(strstr(text, "{\"buffers\":[{\"addr\":4096,\"length\":1,\"lkey\":[1,3],\"name\":\"*\","
				     "\"rkey\":[2,4]},"));
	assert_non_null(strstr(text, "],\"devices\":[{\"gid\":\"01:02:03:"));
	assert_non_null(strstr(text, "\"name\":\"n:1\",\"priority_matrix\":{\"cpu:0\":[[\"rxe0\"],[\"rxe1\"]]},"
				     "\"protocol\":\"rdma\",\"rdma_server_name\":\"m:1\",\"tcp_data_port\":5,"));
	read = decode(text);
	assert_memory_equal(read->rdma.devices, devices, sizeof(devices));
	assert_int_equal(read->rdma.key_count, 4);
	assert_memory_equal(read->rdma.keys, keys, sizeof(keys));
	assert_int_equal(read->buffers[1].key, 3);
	assert_string_equal(read->rdma.name, "m:1");
	lw_desc_free(read);
	free(text);
	lw_matrix_fini(&matrix);
}

/* Keys belong to rdma's entries; the buffers that are kept are tcp's, for the same memory. */
static void test_decode_several_protocols_keys_find_their_buffers(void **state)
{
	struct lw_desc *desc = decode(
		"{\"buffers\":[{\"addr\":8192,\"length\":1,\"name\":\"n\",\"protocol\":\"tcp\"},"
		"{\"addr\":8192,\"length\":1,\"lkey\":[1,2],\"name\":\"cpu:0\",\"protocol\":\"rdma\",\"rkey\":[3,4]},"
		"{\"addr\":4096,\"length\":1,\"name\":\"n\",\"protocol\":\"tcp\"},"
		"{\"addr\":4096,\"length\":1,\"lkey\":[5,6],\"name\":\"cpu:0\",\"protocol\":\"rdma\",\"rkey\":[7,8]}"
		"]," DEVICES "\"name\":\"n\"," MATRIX "\"protocol\":[\"rdma\",\"tcp\"]," TAIL);

	(void)state;
	assert_int_equal(desc->buffer_count, 2);
	assert_int_equal(desc->rdma.keys[desc->buffers[0].key - 1].rkey, 3);
	assert_int_equal(desc->rdma.keys[desc->buffers[1].key].rkey, 8);
	assert_int_equal(desc->buffers[0].access, LW_ACCESS_REMOTE);
	lw_desc_free(desc);
}

/* Whatever is wrong with this part, the rest can be used, and why says what. */
static void test_decode_wrong_part_is_left_out(void **state)
{
	static const struct {
		const char *buffer_keys, *devices, *rest, *why;
	} wrong[] = {
		{"\"lkey\":[1,2],\"rkey\":[3,4],", "", "", "devices"},
		{"", "\"devices\":[],", "", "devices"},
		{"", "\"devices\":5,", "", "devices"},
		{"", "\"devices\":[5],", "", "devices[0]"},
		{"", "\"devices\":[{\"gid\":\"\",\"lid\":0,\"name\":\"a\"}],", "", "devices[0]"},
		{"", "\"devices\":[{\"gid\":\"00\",\"lid\":0,\"name\":\"\"}],", "", "devices[0]"},
		{"", "\"devices\":[{\"gid\":\"00\",\"lid\":65536,\"name\":\"a\"}],", "", "devices[0]"},
		{"\"lkey\":[1],\"rkey\":[3],", DEVICES, "", "2 devices"},
		{"\"lkey\":[1],\"rkey\":[3,4],", DEVICES, "", "2 devices"},
		{"\"rkey\":[3,4],", DEVICES, "", "2 devices"},
		{"\"lkey\":[1,2],\"rkey\":[3,-4],", DEVICES, "", "rkey"},
		{"\"lkey\":[1,2],\"rkey\":[3,4294967296],", DEVICES, "", "rkey"},
		{"\"lkey\":[1,\"2\"],\"rkey\":[3,4],", DEVICES, "", "lkey"},
		{"\"lkey\":[1,2],\"rkey\":[3,4],", DEVICES, "\"rdma_server_name\":5,", "rdma_server_name"},
	};
	char text[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct lw_desc *desc;

		snprintf(text, sizeof(text),
			 "{\"buffers\":[{\"addr\":4096,\"length\":1,%s\"name\":\"cpu:0\"}],%s\"name\":\"n\",%s"
			 "\"protocol\":\"rdma\"," TAIL,
			 wrong[i].buffer_keys, wrong[i].devices, wrong[i].rest);
		desc = decode(text);
		assert_int_equal(desc->rdma.device_count, 0);
		assert_null(desc->rdma.keys);
		assert_int_equal(desc->buffers[0].key, 0);
		assert_int_equal(desc->buffers[0].access, LW_ACCESS_REMOTE);
		if (strstr(desc->rdma.why, wrong[i].why) == NULL)
			fail_msg("%s: \"%s\" does not name %s", text, desc->rdma.why, wrong[i].why);
		lw_desc_free(desc);
	}
}

/* A GID that can't be read makes its device useless, not the document; so does a matrix that is none. */
static void test_decode_odd_gid_and_matrix_are_taken(void **state)
{
	struct lw_desc *desc = decode("{\"buffers\":[" BUFFER(
		"4096", "\"lkey\":[1],\"rkey\":[3],") "],\"devices\":[{"
						      "\"gid\":\"fe80::1\",\"name\":\"a\"}],\"name\":\"n\",\"priority_"
						      "matrix\":{\"x\":5},"
						      "\"protocol\":\"rdma\"," TAIL);

	(void)state;
	assert_int_equal(desc->rdma.device_count, 1);
	assert_false(desc->rdma.devices[0].has_gid);
	assert_null(desc->rdma.matrix);
	assert_int_equal(desc->rdma.keys[0].rkey, 3);
	lw_desc_free(desc);
}

static void test_decode_without_rdma_ignores_devices(void **state)
{
	struct lw_desc *desc = decode("{\"buffers\":[" BUFFER(
		"4096", "\"rkey\":[],") "]," DEVICES "\"name\":\"n\",\"protocol\":\"tcp\"," TAIL);

	(void)state;
	assert_int_equal(desc->rdma.device_count, 0);
	assert_int_equal(desc->buffers[0].access, LW_ACCESS_REMOTE);
	lw_desc_free(desc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode_reference_devices_and_keys),
		cmocka_unit_test(test_encode_decode_are_the_same),
		cmocka_unit_test(test_decode_several_protocols_keys_find_their_buffers),
		cmocka_unit_test(test_decode_wrong_part_is_left_out),
		cmocka_unit_test(test_decode_odd_gid_and_matrix_are_taken),
		cmocka_unit_test(test_decode_without_rdma_ignores_devices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
