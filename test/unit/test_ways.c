/* SPDX-License-Identifier: Apache-2.0 */
/* Ways between our rails and a peer's addresses: their number, their order, and those that are used at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "drivers/tcp/ways.h"
#include "lib/engine.h"

static struct sockaddr_storage address(const char *text)
{
	struct sockaddr_storage addr;

	assert_int_equal(lw_sockaddr_parse(text, &addr), 0);
	return addr;
}

static struct tcp_rails rails_of(const char *const *list, uint32_t bits)
{
	struct tcp_rails rails = {.count = 0};

	for (; *list != NULL; list++)
		rails.rail[rails.count++] = (struct tcp_rail){.addr = address(*list), .prefix_bits = bits};
	return rails;
}

static struct lw_view view_of(const char *const *list, uint32_t named)
{
	struct lw_view view = {.rails = named};

	for (; *list != NULL; list++)
		view.data.addr[view.data.count++] = address(*list);
	return view;
}

/* The ways as text, "RAIL>ADDRESS" by their last numbers, "-" for no rail. */
static void check(const struct tcp_rails *rails, const struct lw_view *view, uint32_t at_once, const char *expected)
{
	struct lw_ways ways = tcp_ways_count(rails, view);
	char text[400] = "";
	size_t used = 0;

	for (uint32_t i = 0; i < ways.count; i++) {
		struct tcp_way way;
		char own[80] = "-", other[80];

		if (!tcp_ways_get(rails, view, i, &way))
			break;
		if (way.rail != NULL)
			lw_sockaddr_format(&way.rail->addr, own, sizeof(own));
		lw_sockaddr_format(way.addr, other, sizeof(other));
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s>%s", i == 0 ? "" : " ", own, other);
	}
	assert_string_equal(text, expected);
	assert_int_equal(ways.at_once, at_once);
}

static const char *const nothing[] = {NULL};

static void test_ways_of_a_peer_that_names_none_are_tried_in_turn(void **state)
{
	const char *const two[] = {"[2001:db8::1]:9", "10.0.0.2:9", NULL};
	struct tcp_rails rails = rails_of(nothing, 24);
	struct lw_view view = view_of(two, 0), none = view_of(nothing, 0);
	struct tcp_way way;

	(void)state;
	check(&rails, &view, 1, "->[2001:db8::1]:9 ->10.0.0.2:9");
	check(&rails, &none, 1, "");
	assert_int_equal(tcp_ways_count(&rails, &none).count, 1);
	assert_false(tcp_ways_get(&rails, &none, 0, &way));
}

static void test_ways_of_named_addresses_are_used_at_once(void **state)
{
	const char *const peer[] = {"10.1.0.2:9", "10.2.0.2:8", "10.3.0.2:7", NULL};
	struct tcp_rails rails = rails_of(nothing, 24);
	struct lw_view view = view_of(peer, 2);

	(void)state;
	check(&rails, &view, 2, "->10.1.0.2:9 ->10.2.0.2:8 ->10.3.0.2:7");
}

static void test_ways_between_subnets_stay_in_them(void **state)
{
	const char *const own[] = {"10.1.0.1:1", "10.2.0.1:1", NULL};
	const char *const peer[] = {"10.2.0.2:9", "10.1.0.2:8", "10.9.0.2:7", NULL};
	struct tcp_rails rails = rails_of(own, 24);
	struct lw_view view = view_of(peer, 2);

	(void)state;
	check(&rails, &view, 2, "10.2.0.1:1>10.2.0.2:9 10.1.0.1:1>10.1.0.2:8 ->10.9.0.2:7");
}

static void test_ways_through_routers_differ_on_both_sides_first(void **state)
{
	const char *const own[] = {"10.1.0.1:1", "10.2.0.1:1", NULL};
	const char *const peer[] = {"10.5.0.2:9", "10.6.0.2:8", NULL};
	struct tcp_rails rails = rails_of(own, 24);
	struct lw_view view = view_of(peer, 2);

	(void)state;
	check(&rails, &view, 2,
	      "10.1.0.1:1>10.5.0.2:9 10.2.0.1:1>10.6.0.2:8 10.2.0.1:1>10.5.0.2:9 10.1.0.1:1>10.6.0.2:8");
}

static void test_ways_of_two_rails_to_one_address_are_two(void **state)
{
	const char *const own[] = {"10.1.0.1:1", "10.1.0.3:1", "10.9.0.1:1", NULL};
	const char *const peer[] = {"10.1.0.2:9", NULL};
	struct tcp_rails rails = rails_of(own, 24);
	struct lw_view view = view_of(peer, 0);

	(void)state;
	check(&rails, &view, 2, "10.1.0.1:1>10.1.0.2:9 10.1.0.3:1>10.1.0.2:9");
}

static void test_ways_to_an_address_of_our_own_leave_it_to_the_routes(void **state)
{
	const char *const own[] = {"10.1.0.1:1", "10.2.0.1:1", NULL};
	const char *const peer[] = {"10.1.0.1:9", "10.2.0.1:8", NULL};
	struct tcp_rails rails = rails_of(own, 24);
	struct lw_view view = view_of(peer, 2);

	(void)state;
	check(&rails, &view, 2, "->10.1.0.1:9 ->10.2.0.1:8");
}

static void test_rail_reaches_compares_the_bits_of_its_subnet(void **state)
{
	struct tcp_rail rail = {.addr = address("10.1.16.1:1"), .prefix_bits = 20};
	struct sockaddr_storage inside = address("10.1.31.255:5"), outside = address("10.1.32.1:5");
	struct sockaddr_storage other = address("[2001:db8::1]:5");

	(void)state;
	assert_true(tcp_rail_reaches(&rail, &inside));
	assert_false(tcp_rail_reaches(&rail, &outside));
	assert_false(tcp_rail_reaches(&rail, &other));
}

static void test_rails_read_takes_what_is_here_and_names_what_is_not(void **state)
{
	static const char nine[] = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5,127.0.0.6,127.0.0.7,127.0.0.8,"
				   "127.0.0.9";
	const char *const bad[] = {"10.255.254.253", "nosuchdevice0", "127.0.0.1,127.0.0.1", nine,
				   "0.0.0.0",        "224.0.0.1"};
	struct tcp_rails rails;
	char why[200];

	(void)state;
	assert_int_equal(tcp_rails_read("", AF_INET, &rails, why, sizeof(why)), 0);
	assert_int_equal(rails.count, 0);
	assert_int_equal(tcp_rails_read("127.0.0.1,127.0.0.2,", AF_INET, &rails, why, sizeof(why)), 0);
	assert_int_equal(rails.count, 2);
	assert_int_equal(rails.rail[0].prefix_bits, 8);
	assert_string_equal(rails.rail[0].device, "");
	assert_int_equal(tcp_rails_read("lo", AF_INET, &rails, why, sizeof(why)), 0);
	assert_int_equal(rails.count, 1);
	assert_string_equal(rails.rail[0].device, "lo");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		why[0] = '\0';
		assert_int_equal(tcp_rails_read(bad[i], AF_INET, &rails, why, sizeof(why)), -EINVAL);
		assert_non_null(strstr(why, "tcp_bind"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ways_of_a_peer_that_names_none_are_tried_in_turn),
		cmocka_unit_test(test_ways_of_named_addresses_are_used_at_once),
		cmocka_unit_test(test_ways_between_subnets_stay_in_them),
		cmocka_unit_test(test_ways_through_routers_differ_on_both_sides_first),
		cmocka_unit_test(test_ways_of_two_rails_to_one_address_are_two),
		cmocka_unit_test(test_ways_to_an_address_of_our_own_leave_it_to_the_routes),
		cmocka_unit_test(test_rail_reaches_compares_the_bits_of_its_subnet),
		cmocka_unit_test(test_rails_read_takes_what_is_here_and_names_what_is_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
