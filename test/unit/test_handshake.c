/* SPDX-License-Identifier: Apache-2.0 */
/* Documents with which queue pairs are joined. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/handshake.h"

#define GID "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05"

static const uint8_t gid[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 5};

static struct lw_handshake example(void)
{
	struct lw_handshake handshake = {.local_path = "10.0.0.5:15001@mlx5_0",
					 .peer_path = "10.0.0.6:15002@mlx5_1",
					 .has_gid = true,
					 .has_ready = true,
					 .qp_count = 2,
					 .qp = {312, 313}};

	memcpy(handshake.gid, gid, sizeof(gid));
	return handshake;
}

/* The reference's example, byte for byte. */
static void test_encode_request_as_the_reference(void **state)
{
	struct lw_handshake handshake = example();
	char *text;

	(void)state;
	assert_int_equal(lw_handshake_encode(&handshake, &text), 0);
	assert_string_equal(text,
			    "{\"local_gid\":\"" GID "\",\"local_lid\":0,\"local_nic_path\":\"10.0.0.5:15001@mlx5_0\","
			    "\"payload\":\"\",\"peer_nic_path\":\"10.0.0.6:15002@mlx5_1\",\"qp_num\":[312,313],"
			    "\"ready_ack\":false,\"reply_msg\":\"\"}");
	free(text);
}

static void test_encode_decode_all_fields_are_the_same(void **state)
{
	struct lw_handshake handshake = example(), read;
	char *text;

	(void)state;
	handshake.ready = true;
	handshake.lid = 65535;
	handshake.incarnation = UINT64_C(0xfedcba9876543210);
	handshake.meant = 7;
	handshake.over = true;
	strcpy(handshake.reply, "no \"room\"");
	assert_int_equal(lw_handshake_encode(&handshake, &text), 0);
	assert_non_null(strstr(text, "\"lw\":{\"for\":\"0000000000000007\",\"incarnation\":\"fedcba9876543210\","
				     "\"over\":true}"));
	assert_int_equal(lw_handshake_decode(text, strlen(text), &read, NULL, 0), 0);
	assert_memory_equal(&read, &handshake, sizeof(read));
	free(text);
}

static void test_decode_engine_without_rdma_is_empty(void **state)
{
	static const char text[] = "{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\","
				   "\"peer_nic_path\":\"\",\"qp_num\":[],\"reply_msg\":\"\"}";
	struct lw_handshake read;

	(void)state;
	assert_int_equal(lw_handshake_decode(text, strlen(text), &read, NULL, 0), 0);
	assert_false(read.has_ready || read.has_gid);
	assert_int_equal(read.qp_count, 0);
	assert_int_equal(lw_handshake_decode("{}", 2, &read, NULL, 0), 0);
	assert_string_equal(read.local_path, "");
}

static void test_decode_wrong_field_refused_with_its_name(void **state)
{
	static const struct {
		const char *text, *names;
	} wrong[] = {
		{"5", "object"},
		{"[]", "object"},
		{"null", "object"},
		{"{\"qp_num\":[\"x\"]}", "qp_num"},
		{"{\"qp_num\":5}", "qp_num"},
		{"{\"qp_num\":[-1]}", "qp_num"},
		{"{\"qp_num\":[4294967296]}", "qp_num"},
		{"{\"qp_num\":[1.5]}", "qp_num"},
		{"{\"local_nic_path\":5}", "local_nic_path"},
		{"{\"peer_nic_path\":[\"a\"]}", "peer_nic_path"},
		{"{\"peer_nic_path\":\"a\\u0001\"}", "peer_nic_path"},
		{"{\"local_gid\":\"00\"}", "local_gid"},
		{"{\"local_gid\":\"00-00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05\"}", "local_gid"},
		{"{\"local_gid\":\"0g:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05\"}", "local_gid"},
		{"{\"local_lid\":65536}", "local_lid"},
		{"{\"local_lid\":\"1\"}", "local_lid"},
		{"{\"ready_ack\":1}", "ready_ack"},
		{"{\"reply_msg\":{}}", "reply_msg"},
		{"{\"lw\":1}", "lw"},
		{"{\"lw\":{\"for\":7}}", "for"},
		{"{\"lw\":{\"incarnation\":\"xyz\"}}", "incarnation"},
	};
	struct lw_handshake read = {.lid = 9};
	char why[160];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		why[0] = '\0';
		assert_int_equal(lw_handshake_decode(wrong[i].text, strlen(wrong[i].text), &read, why, sizeof(why)),
				 -EPROTO);
		if (strstr(why, wrong[i].names) == NULL)
			fail_msg("%s: \"%s\" does not name %s", wrong[i].text, why, wrong[i].names);
		assert_int_equal(read.lid, 9);
	}
}

static void test_decode_more_qps_than_can_be_refused(void **state)
{
	char text[LW_HANDSHAKE_QPS * 2 + 64] = "{\"qp_num\":[";
	struct lw_handshake read;
	size_t used = strlen(text);

	(void)state;
	for (int i = 0; i < LW_HANDSHAKE_QPS; i++, used += 2)
		memcpy(text + used, "7,", 3);
	strcpy(text + used - 1, "]}");
	assert_int_equal(lw_handshake_decode(text, strlen(text), &read, NULL, 0), 0);
	assert_int_equal(read.qp_count, LW_HANDSHAKE_QPS);
	strcpy(text + used - 1, ",7]}");
	assert_int_equal(lw_handshake_decode(text, strlen(text), &read, NULL, 0), -EPROTO);
}

static void test_nic_path_marked_and_too_long(void **state)
{
	char path[LW_NIC_PATH], name[LW_NIC_PATH];

	(void)state;
	assert_true(lw_nic_path(path, "[::1]:5", "mlx5_0", 0));
	assert_string_equal(path, "[::1]:5@mlx5_0");
	assert_true(lw_nic_path(path, "a", "b", 3));
	assert_string_equal(path, "a@b#3");
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 2] = '\0';
	assert_false(lw_nic_path(path, name, "b", 0));
}

static void test_gid_text_there_and_back(void **state)
{
	char text[LW_GID_TEXT];
	uint8_t back[16];

	(void)state;
	lw_gid_format(gid, text);
	assert_string_equal(text, GID);
	assert_true(lw_gid_parse(GID, back));
	assert_memory_equal(back, gid, 16);
	assert_true(lw_gid_parse("00:00:00:00:00:00:00:00:00:00:FF:ff:0A:00:00:05", back));
	assert_memory_equal(back, gid, 16);
	assert_false(lw_gid_parse(GID ":", back));
	assert_false(lw_gid_parse("", back));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encode_request_as_the_reference),
		cmocka_unit_test(test_encode_decode_all_fields_are_the_same),
		cmocka_unit_test(test_decode_engine_without_rdma_is_empty),
		cmocka_unit_test(test_decode_wrong_field_refused_with_its_name),
		cmocka_unit_test(test_decode_more_qps_than_can_be_refused),
		cmocka_unit_test(test_nic_path_marked_and_too_long),
		cmocka_unit_test(test_gid_text_there_and_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
