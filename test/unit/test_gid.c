/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a GID, over tables as hosts have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "drivers/rdma/gid.h"

#define ROWS 8

struct row {
	const char *address; /* IPv4 or IPv6; "" null */
	enum rdma_gid_type type;
	const char *netdev;
};

struct table {
	const char *name;
	int expected; /* index, or -1 */
	struct row rows[ROWS];
	size_t count;
};

#define V1 RDMA_GID_ROCE_V1
#define V2 RDMA_GID_ROCE_V2
#define IB RDMA_GID_IB
#define TABLE(name, expected, ...)                                                                                     \
	{                                                                                                              \
		name, expected, {__VA_ARGS__}, sizeof((struct row[]){__VA_ARGS__}) / sizeof(struct row)                \
	}

static const struct table tables[] = {
	TABLE("no row at all is none", -1, {"", V2, "eth0"}),
	TABLE("only null rows are none", -1, {"", V2, "eth0"}, {"", IB, ""}),
	TABLE("an InfiniBand port has one", 0, {"fe80::9a03:9b03:6:1", IB, ""}),
	TABLE("an InfiniBand port with a routable one", 1, {"fe80::9a03:9b03:6:1", IB, ""}, {"2001:db8::1", IB, ""}),
	TABLE("a port without an address: link-local, version 2", 1, {"fe80::1", V1, "eth0"}, {"fe80::1", V2, "eth0"}),
	TABLE("the usual port with 10/8", 3, {"fe80::1", V1, "eth0"}, {"fe80::1", V2, "eth0"}, {"10.0.0.5", V1, "eth0"},
	      {"10.0.0.5", V2, "eth0"}),
	TABLE("a public address", 3, {"fe80::1", V1, "eth0"}, {"fe80::1", V2, "eth0"}, {"198.51.100.7", V1, "eth0"},
	      {"198.51.100.7", V2, "eth0"}),
	TABLE("192.168/16 is routable", 1, {"10.0.0.5", V2, "eth0"}, {"192.168.1.5", V2, "eth0"}),
	TABLE("10/8 before link-local", 1, {"fe80::1", V2, "eth0"}, {"10.1.2.3", V2, "eth0"}),
	TABLE("172.16/12 is private", 1, {"172.31.255.1", V2, "eth0"}, {"172.32.0.1", V2, "eth0"}),
	TABLE("172.15 is routable", 1, {"172.16.0.1", V2, "eth0"}, {"172.15.0.1", V2, "eth0"}),
	TABLE("100.64/10 is private", 1, {"100.127.0.1", V2, "eth0"}, {"100.128.0.1", V2, "eth0"}),
	TABLE("100.63 is routable", 1, {"100.64.0.1", V2, "eth0"}, {"100.63.0.1", V2, "eth0"}),
	TABLE("a routable one without an interface before a private one", 1, {"10.0.0.5", V2, "eth0"},
	      {"198.51.100.7", V2, ""}),
	TABLE("a routable one with an interface before one without", 1, {"198.51.100.7", V2, ""},
	      {"198.51.100.8", V2, "eth0"}),
	TABLE("a private one before docker's", 1, {"172.17.0.1", V2, "docker0"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("a private one before a routable one of an overlay", 1, {"203.0.113.9", V2, "flannel.1"},
	      {"10.0.0.5", V2, "eth0"}),
	TABLE("cni", 1, {"203.0.113.9", V2, "cni0"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("calico", 1, {"203.0.113.9", V2, "calico7"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("vxlan", 1, {"203.0.113.9", V2, "vxlan.calico"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("tunl0", 1, {"203.0.113.9", V2, "tunl0"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("tunl01 is no overlay", 0, {"203.0.113.9", V2, "tunl01"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("an overlay before a private one without an interface", 0, {"203.0.113.9", V2, "docker0"},
	      {"10.0.0.5", V2, ""}),
	TABLE("a private one without an interface before link-local without one", 1, {"fe80::1", V2, ""},
	      {"10.0.0.5", V2, ""}),
	TABLE("link-local without an interface before version 1", 1, {"198.51.100.7", V1, "eth0"}, {"fe80::1", V2, ""}),
	TABLE("version 1 alone", 0, {"198.51.100.7", V1, "eth0"}, {"198.51.100.8", V1, "eth0"}),
	TABLE("version 1, and nulls before", 2, {"", V1, "eth0"}, {"", V2, "eth0"}, {"fe80::1", V1, "eth0"}),
	TABLE("IPv6, global", 1, {"fe80::1", V2, "eth0"}, {"2001:db8::7", V2, "eth0"}),
	TABLE("IPv6, global, beside 10/8", 2, {"fe80::1", V2, "eth0"}, {"10.0.0.5", V2, "eth0"},
	      {"2001:db8::7", V2, "eth0"}),
	TABLE("IPv4 link-local is link-local", 1, {"169.254.3.4", V2, "eth0"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("febf:: is link-local, too", 1, {"febf::1", V2, "eth0"}, {"10.0.0.5", V2, "eth0"}),
	TABLE("of two alike the lower index", 0, {"10.0.0.5", V2, "eth0"}, {"10.0.0.6", V2, "eth0"}),
	TABLE("soft-RoCE over a dummy interface", 1, {"fe80::3c6f:63ff:fece:7e9c", V2, "d0"}, {"10.99.0.1", V2, "d0"}),
};

static struct rdma_gid_row row_of(const struct row *given, uint32_t index)
{
	struct rdma_gid_row row = {.index = index, .type = given->type};

	snprintf(row.netdev, sizeof(row.netdev), "%s", given->netdev);
	if (inet_pton(AF_INET, given->address, row.raw + 12) == 1)
		row.raw[10] = row.raw[11] = 0xff;
	else if (given->address[0] != '\0')
		assert_int_equal(inet_pton(AF_INET6, given->address, row.raw), 1);
	return row;
}

static void test_gid_choose_recorded_table_expected_index(void **state)
{
	struct rdma_gid_row rows[ROWS];

	(void)state;
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		const struct table *table = &tables[i];
		int got;

		for (uint32_t k = 0; k < table->count; k++)
			rows[k] = row_of(&table->rows[k], k);
		got = rdma_gid_choose(rows, table->count);
		if (got != table->expected)
			fail_msg("%s: row %d, not %d", table->name, got, table->expected);
	}
}

static void test_gid_choose_unsorted_rows_lowest_index(void **state)
{
	static const struct row first = {"10.0.0.5", V2, "eth0"}, second = {"10.0.0.6", V2, "eth0"};
	struct rdma_gid_row rows[2] = {row_of(&first, 9), row_of(&second, 4)};

	(void)state;
	assert_int_equal(rdma_gid_choose(rows, 2), 1);
	assert_int_equal(rdma_gid_choose(rows, 0), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gid_choose_recorded_table_expected_index),
		cmocka_unit_test(test_gid_choose_unsorted_rows_lowest_index),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
