/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/contact.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static void test_encode_bytes_of_the_reference_and_ours(void **state)
{
	struct lw_contact contact = {.where = {.host = "10.0.0.5", .port = 15428}};
	char *text;
	size_t length;

	(void)state;
	assert_int_equal(lw_contact_encode(&contact, &text, &length), 0);
	assert_string_equal(text, "{\"ip_or_host_name\":\"10.0.0.5\",\"rpc_port\":15428}");
	assert_int_equal(length, strlen(text));
	free(text);
	contact.incarnation = 0xabcd;
	assert_int_equal(lw_contact_encode(&contact, &text, &length), 0);
	assert_string_equal(text, "{\"ip_or_host_name\":\"10.0.0.5\",\"lw\":{\"incarnation\":\"000000000000abcd\"},"
				  "\"rpc_port\":15428}");
	free(text);
}

static void test_decode_any_order_unknown_members_and_ipv6(void **state)
{
	static const char text[] =
		" {\"more\":[{}], \"rpc_port\":1,\"lw\":{\"x\":1,\"incarnation\":\"FEDCBA9876543210\"},"
		"\"ip_or_host_name\":\"fe80::1%eth0\"}\n";
	struct lw_contact contact;
	char why[200];

	(void)state;
	assert_int_equal(lw_contact_decode(text, strlen(text), &contact, why, sizeof(why)), 0);
	assert_string_equal(contact.where.host, "fe80::1%eth0");
	assert_true(contact.where.v6);
	assert_int_equal(contact.where.port, 1);
	assert_true(contact.incarnation == UINT64_C(0xfedcba9876543210));
}

static void test_decode_wrong_documents_refused_with_a_reason(void **state)
{
	static const struct {
		const char *text, *why;
	} wrong[] = {
		{"", "not JSON"},
		{"[]", "not an object"},
		{"{}", "ip_or_host_name"},
		{"{\"ip_or_host_name\":5,\"rpc_port\":1}", "ip_or_host_name"},
		{"{\"ip_or_host_name\":\"\",\"rpc_port\":1}", "ip_or_host_name"},
		{"{\"ip_or_host_name\":\"host:7\",\"rpc_port\":1}", "ip_or_host_name"},
		{"{\"ip_or_host_name\":\"h\"}", "rpc_port"},
		{"{\"ip_or_host_name\":\"h\",\"rpc_port\":0}", "rpc_port"},
		{"{\"ip_or_host_name\":\"h\",\"rpc_port\":65536}", "rpc_port"},
		{"{\"ip_or_host_name\":\"h\",\"rpc_port\":1.5}", "rpc_port"},
		{"{\"ip_or_host_name\":\"h\",\"rpc_port\":\"1\"}", "rpc_port"},
		{"{\"ip_or_host_name\":\"h\",\"rpc_port\":1,\"lw\":[]}", "lw"},
		{"{\"ip_or_host_name\":\"h\",\"rpc_port\":1,\"lw\":{\"incarnation\":\"12\"}}", "incarnation"},
		{"{\"ip_or_host_name\":\"h\\u0000x\",\"rpc_port\":1}", "NUL"},
		{"{\"ip_or_host_name\":\"h\",\"rpc_port\":1", "cut short"},
	};
	struct lw_contact contact = {.incarnation = 7};
	char why[200];

	(void)state;
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(lw_contact_decode(wrong[i].text, strlen(wrong[i].text), &contact, why, sizeof(why)),
				 -EPROTO);
		if (strstr(why, wrong[i].why) == NULL)
			fail_msg("%s: \"%s\" does not name %s", wrong[i].text, why, wrong[i].why);
		assert_int_equal(contact.incarnation, 7);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encode_bytes_of_the_reference_and_ours),
		cmocka_unit_test(test_decode_any_order_unknown_members_and_ipv6),
		cmocka_unit_test(test_decode_wrong_documents_refused_with_a_reason),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
