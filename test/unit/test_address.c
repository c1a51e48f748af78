/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of an address from made-up lists, and what an engine makes of it on this host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engines.h"
#include "meta/address.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define UP (IFF_UP | IFF_RUNNING)
#define MAX 16

/* One line of a list as getifaddrs(3) gives it. */
struct entry {
	const char *name;
	unsigned int flags;
	const char *address; /* NULL: a link, which has none */
	uint32_t scope;
};

struct list {
	struct ifaddrs ifaddrs[MAX];
	struct sockaddr_storage addr[MAX];
	char name[MAX][IF_NAMESIZE];
};

static const struct ifaddrs *make(struct list *list, const struct entry *entries, size_t count)
{
	memset(list, 0, sizeof(*list));
	for (size_t i = 0; i < count; i++) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)&list->addr[i];
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&list->addr[i];

		snprintf(list->name[i], sizeof(list->name[i]), "%s", entries[i].name);
		list->ifaddrs[i].ifa_name = list->name[i];
		list->ifaddrs[i].ifa_flags = entries[i].flags;
		list->ifaddrs[i].ifa_next = i + 1 < count ? &list->ifaddrs[i + 1] : NULL;
		list->ifaddrs[i].ifa_addr = (struct sockaddr *)&list->addr[i];
		list->addr[i].ss_family = AF_PACKET;
		if (entries[i].address == NULL)
			continue;
		if (inet_pton(AF_INET, entries[i].address, &v4->sin_addr) == 1) {
			v4->sin_family = AF_INET;
			continue;
		}
		assert_int_equal(inet_pton(AF_INET6, entries[i].address, &v6->sin6_addr), 1);
		v6->sin6_family = AF_INET6;
		v6->sin6_scope_id = entries[i].scope;
	}
	list->ifaddrs[count].ifa_name = NULL;
	return list->ifaddrs;
}

/* lo, a link that is down, bridges, a tunnel's own addresses, and the one that peers reach, last. */
static const struct entry host[] = {
	{"lo", UP | IFF_LOOPBACK, NULL, 0},  {"lo", UP | IFF_LOOPBACK, "127.0.0.1", 0},
	{"docker0", UP, "172.17.0.1", 0},    {"eth0", IFF_UP, "10.1.0.1", 0},
	{"eth1", UP, "169.254.7.7", 0},      {"bridge7", UP, "10.9.0.1", 0},
	{"eth2", UP, "10.2.0.1", 0},         {"eth3", UP, "10.3.0.1", 0},
	{"lo", UP | IFF_LOOPBACK, "::1", 0}, {"docker0", UP, "fd00:17::1", 0},
	{"eth2", UP, "fe80::2", 4},          {"eth2", UP, "2001:db8::2", 0},
};

static void test_list_is_in_order_of_choice(void **state)
{
	static const char *const order[] = {"10.2.0.1",   "10.3.0.1", "2001:db8::2", "169.254.7.7",
					    "172.17.0.1", "10.9.0.1", "fd00:17::1",  "fe80::2%eth2",
					    "127.0.0.1",  "::1",      "10.1.0.1"};
	struct lw_address_opts opts = {.sysfs = "test/data/topology/address"};
	struct lw_address found[MAX];
	struct list list;

	(void)state;
	opts.addrs = make(&list, host, COUNT(host));
	assert_int_equal(lw_address_list(&opts, found, MAX), COUNT(order));
	for (size_t i = 0; i < COUNT(order); i++)
		assert_string_equal(found[i].text, order[i]);
	assert_string_equal(found[0].interface, "eth2");
	assert_true(found[2].v6);
	/* A short list has the best. */
	assert_int_equal(lw_address_list(&opts, found, 3), COUNT(order));
	for (size_t i = 0; i < 3; i++)
		assert_string_equal(found[i].text, order[i]);
	opts.prefer_v6 = true;
	assert_int_equal(lw_address_list(&opts, found, MAX), COUNT(order));
	assert_string_equal(found[0].text, "2001:db8::2");
	assert_string_equal(found[1].text, "10.2.0.1");
}

static void assert_chosen(const struct entry *entries, size_t count, const char *wanted, const char *expected)
{
	struct lw_address_opts opts = {.wanted = wanted, .sysfs = "test/data/topology/address"};
	char why[400] = "";
	struct lw_address found;
	struct list list;

	opts.addrs = make(&list, entries, count);
	if (lw_address_choose(&opts, &found, why, sizeof(why)) != 0)
		fail_msg("%s: %s", expected, why);
	assert_string_equal(found.text, expected);
}

static void assert_refused(const struct entry *entries, size_t count, const char *wanted, int error,
			   const char *why_part)
{
	struct lw_address_opts opts = {.wanted = wanted, .sysfs = "test/data/topology/address"};
	struct lw_address found = {.text = "untouched"};
	char why[400] = "";
	struct list list;

	opts.addrs = make(&list, entries, count);
	assert_int_equal(lw_address_choose(&opts, &found, why, sizeof(why)), error);
	if (strstr(why, why_part) == NULL)
		fail_msg("\"%s\", not \"%s\"", why, why_part);
	assert_string_equal(found.text, "untouched");
}

static void test_choose_takes_the_first_that_peers_reach(void **state)
{
	static const struct entry bridge[] = {{"lo", UP | IFF_LOOPBACK, "127.0.0.1", 0},
					      {"docker0", UP, "172.17.0.1", 0},
					      {"eth0", IFF_UP, "10.0.0.1", 0}};
	static const struct entry local[] = {{"lo", UP | IFF_LOOPBACK, "127.0.0.1", 0},
					     {"lo", UP | IFF_LOOPBACK, "::1", 0}};
	static const struct entry v6[] = {
		{"lo", UP | IFF_LOOPBACK, "127.0.0.1", 0}, {"eth0", UP, "fe80::1", 9}, {"eth0", UP, "2001:db8::9", 0}};

	(void)state;
	assert_chosen(host, COUNT(host), NULL, "10.2.0.1");
	assert_chosen(host, COUNT(host), "", "10.2.0.1");
	assert_chosen(bridge, COUNT(bridge), NULL, "172.17.0.1");
	assert_chosen(local, COUNT(local), NULL, "127.0.0.1");
	assert_chosen(v6, COUNT(v6), NULL, "2001:db8::9");
	assert_chosen(v6, 2, NULL, "fe80::1%eth0");
}

static void test_choose_wanted_address_must_be_there(void **state)
{
	(void)state;
	assert_chosen(host, COUNT(host), "10.3.0.1", "10.3.0.1");
	assert_chosen(host, COUNT(host), "172.17.0.1", "172.17.0.1");
	assert_chosen(host, COUNT(host), "10.1.0.1", "10.1.0.1"); /* down: the caller knows why */
	assert_chosen(host, COUNT(host), "127.0.0.1", "127.0.0.1");
	assert_chosen(host, COUNT(host), "127.0.3.9", "127.0.3.9");
	assert_chosen(host, COUNT(host), "2001:0db8:0::2", "2001:db8::2");
	assert_chosen(host, COUNT(host), "[2001:db8::2]", "2001:db8::2");
	assert_chosen(host, COUNT(host), "fe80::2%4", "fe80::2%eth2");
	assert_refused(host, COUNT(host), "10.4.0.1", -EADDRNOTAVAIL,
		       "\"10.4.0.1\" is no address of this host; there are 10.2.0.1 (eth2), 10.3.0.1 (eth3),");
	assert_refused(host, COUNT(host), "10.4.0.1", -EADDRNOTAVAIL, "10.1.0.1 (eth0, down)");
	assert_refused(host, COUNT(host), "fe80::2", -EADDRNOTAVAIL, "fe80::2%eth2 (eth2)");
	assert_refused(host, COUNT(host), "fe80::2%5", -EADDRNOTAVAIL, "is no address of this host");
	assert_refused(host, COUNT(host), "fe80::2%nosuch", -EADDRNOTAVAIL, "is no address of this host");
	assert_refused(host, COUNT(host), "0.0.0.0", -EADDRNOTAVAIL, "is no address of this host");
	assert_refused(host, COUNT(host), "::", -EADDRNOTAVAIL, "is no address of this host");
	assert_refused(host, COUNT(host), "localhost", -EINVAL, "\"localhost\" is no numeric address; this host has");
	assert_refused(host, COUNT(host), "10.2.0.1:80", -EINVAL, "is no numeric address");
	assert_refused(host, COUNT(host), "[]", -EINVAL, "is no numeric address");
	assert_refused(host, COUNT(host), "eth2", -EINVAL, "is no numeric address");
}

static void test_choose_nothing_up_is_refused(void **state)
{
	static const struct entry down[] = {{"lo", IFF_LOOPBACK, "127.0.0.1", 0}, {"eth0", IFF_UP, "10.0.0.1", 0}};
	static const struct entry bare[] = {{"eth0", UP, NULL, 0}};

	(void)state;
	assert_refused(
		down, COUNT(down), NULL, -EADDRNOTAVAIL,
		"no interface of this host is up and running; there are 127.0.0.1 (lo, down), 10.0.0.1 (eth0, down)");
	assert_refused(bare, COUNT(bare), NULL, -EADDRNOTAVAIL, "there are none");
	assert_refused(bare, COUNT(bare), "10.0.0.1", -EADDRNOTAVAIL, "there are none");
}

/* Engines ------------------------------------------------------------------------------------------------------------
 */

static int infos;
static char info[1100];

static void collect(int level, const char *line, void *arg)
{
	(void)arg;
	if (level == 2 && strstr(line, "is announced") != NULL) {
		infos++;
		snprintf(info, sizeof(info), "%s", line);
	}
}

static void assert_engine_at(const char *settings, const char *name, const char *host_part)
{
	struct lw_engine *engine = NULL;
	char expected[100];

	if (test_engine_try(settings, name, &engine) != 0)
		fail_msg("no engine: %s", lw_last_error());
	snprintf(expected, sizeof(expected), "%s:", host_part);
	if (strncmp(lw_engine_name(engine), expected, strlen(expected)) != 0)
		fail_msg("%s, not %s", lw_engine_name(engine), expected);
	lw_engine_close(engine);
}

static void test_open_without_a_name_announces_the_chosen_address(void **state)
{
	struct lw_address_opts opts = {.wanted = NULL};
	struct lw_address chosen;
	char why[400] = "", text[80];

	(void)state;
	if (lw_address_choose(&opts, &chosen, why, sizeof(why)) != 0) {
		print_message("skipped: %s\n", why);
		skip();
	}
	snprintf(text, sizeof(text), chosen.v6 ? "[%s]" : "%s", chosen.text);
	infos = 0;
	lw_log_set(collect, NULL);
	assert_engine_at("log_level=info", NULL, text);
	lw_log_set(NULL, NULL);
	assert_int_equal(infos, 1);
	assert_non_null(strstr(info, chosen.text));
	assert_non_null(strstr(info, chosen.interface));
}

static void test_open_address_is_taken_from_setting_then_environment(void **state)
{
	struct lw_engine *engine = NULL;

	(void)state;
	setenv("MC_TCP_BIND_ADDRESS", "127.0.0.3", 1);
	assert_engine_at("", NULL, "127.0.0.3");
	assert_engine_at("address=127.0.0.2", NULL, "127.0.0.2");
	assert_engine_at("", "127.0.0.4", "127.0.0.4"); /* who names himself knows */
	setenv("MC_TCP_BIND_ADDRESS", "203.0.113.77", 1);
	assert_int_equal(test_engine_try("", NULL, &engine), -EADDRNOTAVAIL);
	assert_non_null(strstr(lw_last_error(), "\"203.0.113.77\" is no address of this host; there are"));
	assert_engine_at("", "127.0.0.1", "127.0.0.1");
	unsetenv("MC_TCP_BIND_ADDRESS");
	assert_int_equal(test_engine_try("address=node7", NULL, &engine), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "the setting address: \"node7\""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_list_is_in_order_of_choice),
		cmocka_unit_test(test_choose_takes_the_first_that_peers_reach),
		cmocka_unit_test(test_choose_wanted_address_must_be_there),
		cmocka_unit_test(test_choose_nothing_up_is_refused),
		cmocka_unit_test(test_open_without_a_name_announces_the_chosen_address),
		cmocka_unit_test(test_open_address_is_taken_from_setting_then_environment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
