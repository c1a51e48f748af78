/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "meta/hostport.h"

#define DEFAULT_PORT 12001

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define WITH_TSAN 1
#endif

/* The C library makes getaddrinfo_a's threads behind ThreadSanitizer's back, which crashes in them. */
static void skip_with_tsan(void)
{
#ifdef WITH_TSAN
	print_message("skipped: ThreadSanitizer crashes in threads of getaddrinfo_a\n");
	skip();
#endif
}

struct spelling {
	const char *text;
	const char *host; /* NULL: refused */
	uint16_t port;
	bool v6;
};

static const struct spelling spellings[] = {
	{"node5", "node5", DEFAULT_PORT, false},
	{"node5:80", "node5", 80, false},
	{"node-5.rack_1.example.com:65535", "node-5.rack_1.example.com", 65535, false},
	{"10.0.0.5", "10.0.0.5", DEFAULT_PORT, false},
	{"10.0.0.5:15428", "10.0.0.5", 15428, false},
	{"10.0.0.5:00080", "10.0.0.5", 80, false},
	{"a%b/c d:7", "a%b/c d", 7, false},
	{"n\xc3\xb6rd:7", "n\xc3\xb6rd", 7, false},
	{"::", "::", DEFAULT_PORT, true},
	{"::1", "::1", DEFAULT_PORT, true},
	{"[::1]", "::1", DEFAULT_PORT, true},
	{"[::1]:80", "::1", 80, true},
	{"[::]:1", "::", 1, true},
	{"2001:db8::1:8080", "2001:db8::1:8080", DEFAULT_PORT, true},
	{"2001:db8:0:0:0:0:1:8080", "2001:db8:0:0:0:0:1:8080", DEFAULT_PORT, true},
	{"2001:db8:0:0:0:0:0:1:8080", "2001:db8:0:0:0:0:0:1", 8080, true},
	{"[2001:DB8::1]:8080", "2001:DB8::1", 8080, true},
	{"::ffff:10.0.0.5", "::ffff:10.0.0.5", DEFAULT_PORT, true},
	{"::ffff:10.0.0.5:80", "::ffff:10.0.0.5", 80, true},
	{"[::ffff:10.0.0.5]:80", "::ffff:10.0.0.5", 80, true},
	{"2001:db8::5:15428", "2001:db8::5", 15428, true},
	{"fe80::1%eth0", "fe80::1%eth0", DEFAULT_PORT, true},
	{"fe80::1%eth0:80", "fe80::1%eth0", 80, true},
	{"[fe80::1%eth0]", "fe80::1%eth0", DEFAULT_PORT, true},
	{"[fe80::1%eth0]:80", "fe80::1%eth0", 80, true},
	{"[fe80::1%2]:80", "fe80::1%2", 80, true},
	{"", NULL, 0, false},
	{":", NULL, 0, false},
	{":80", NULL, 0, false},
	{"node5:", NULL, 0, false},
	{"node5:0", NULL, 0, false},
	{"node5:65536", NULL, 0, false},
	{"node5:70000", NULL, 0, false},
	{"node5:-1", NULL, 0, false},
	{"node5:+1", NULL, 0, false},
	{"node5: 80", NULL, 0, false},
	{"node5:80x", NULL, 0, false},
	{"node5:http", NULL, 0, false},
	{"node5:99999999999999999999", NULL, 0, false},
	{"node5:80:90", NULL, 0, false},
	{"no\nde:80", NULL, 0, false},
	{"[]", NULL, 0, false},
	{"[]:80", NULL, 0, false},
	{"[::1", NULL, 0, false},
	{"::1]", NULL, 0, false},
	{"[::1]]:80", NULL, 0, false},
	{"[[::1]]:80", NULL, 0, false},
	{"[::1]80", NULL, 0, false},
	{"[::1]:", NULL, 0, false},
	{"[::1]:70000", NULL, 0, false},
	{"[10.0.0.5]:80", NULL, 0, false},
	{"[node5]:80", NULL, 0, false},
	{"fe80::1%", NULL, 0, false},
	{"[fe80::1%]:80", NULL, 0, false},
	{"1:2:3:4:5:6:7:8:9:10", NULL, 0, false},
};

static void test_parse_every_spelling_gives_its_parts(void **state)
{
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
		const struct spelling *want = &spellings[i];
		struct lw_hostport hp;
		int ret = lw_hostport_parse(want->text, DEFAULT_PORT, &hp);

		if (ret != (want->host == NULL ? -EINVAL : 0))
			fail_msg("\"%s\" gives %d", want->text, ret);
		if (want->host == NULL)
			continue;
		if (strcmp(hp.host, want->host) != 0 || hp.port != want->port || hp.v6 != want->v6)
			fail_msg("\"%s\" gives host \"%s\" port %u v6 %d", want->text, hp.host, hp.port, hp.v6);
	}
}

static void test_format_parsed_name_parses_to_the_same(void **state)
{
	char first[LW_NAME_MAX + 16], second[LW_NAME_MAX + 16];
	struct lw_hostport hp, again;
	int length;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
		if (spellings[i].host == NULL)
			continue;
		assert_int_equal(lw_hostport_parse(spellings[i].text, DEFAULT_PORT, &hp), 0);
		length = lw_hostport_format(&hp, first, sizeof(first));
		assert_int_equal(length, strlen(first));
		assert_int_equal(lw_hostport_parse(first, 1, &again), 0);
		assert_string_equal(again.host, hp.host);
		assert_int_equal(again.port, hp.port);
		assert_int_equal(again.v6, hp.v6);
		length = lw_hostport_format(&again, second, sizeof(second));
		assert_int_equal(length, strlen(second));
		assert_string_equal(first, second);
	}
}

static void test_format_without_port_leaves_it_out(void **state)
{
	struct lw_hostport hp;
	char text[64];

	(void)state;
	assert_int_equal(lw_hostport_parse("::1", 0, &hp), 0);
	assert_int_equal(hp.port, 0);
	assert_int_equal(lw_hostport_format(&hp, text, sizeof(text)), 5);
	assert_string_equal(text, "[::1]");
	assert_int_equal(lw_hostport_parse("node5", 0, &hp), 0);
	assert_int_equal(lw_hostport_format(&hp, text, sizeof(text)), 5);
	assert_string_equal(text, "node5");
}

static void test_format_short_buffer_is_refused(void **state)
{
	struct lw_hostport hp;
	char text[9];

	(void)state;
	assert_int_equal(lw_hostport_parse("node5:80", 0, &hp), 0);
	assert_int_equal(lw_hostport_format(&hp, text, 8), -ENAMETOOLONG);
	assert_int_equal(lw_hostport_format(&hp, text, 9), 8);
}

static void test_parse_long_names_are_refused_from_the_limit_on(void **state)
{
	char text[LW_NAME_MAX + 8];
	struct lw_hostport hp;

	(void)state;
	memset(text, 'x', sizeof(text));
	text[LW_NAME_MAX - 1] = '\0';
	assert_int_equal(lw_hostport_parse(text, 1, &hp), 0);
	assert_int_equal(strlen(hp.host), LW_NAME_MAX - 1);
	text[LW_NAME_MAX - 1] = 'x';
	text[LW_NAME_MAX] = '\0';
	assert_int_equal(lw_hostport_parse(text, 1, &hp), -EINVAL);
	assert_int_equal(lw_hostport_parse(NULL, 1, &hp), -EINVAL);
}

static int resolve(const char *name, uint32_t timeout_ms, struct lw_addrs *addrs)
{
	struct lw_hostport hp;

	assert_int_equal(lw_hostport_parse(name, DEFAULT_PORT, &hp), 0);
	return lw_hostport_resolve(&hp, timeout_ms, addrs);
}

static void assert_resolves(const char *name, const char *expected)
{
	struct lw_addrs addrs;
	char text[LW_NAME_MAX + 8];

	assert_int_equal(resolve(name, 0, &addrs), 0); /* numeric: needs no time */
	assert_int_equal(addrs.count, 1);
	lw_sockaddr_format(&addrs.addr[0], text, sizeof(text));
	assert_string_equal(text, expected);
}

static void test_resolve_numeric_host_is_converted_at_once(void **state)
{
	struct lw_addrs addrs;

	(void)state;
	assert_resolves("127.0.0.1:5", "127.0.0.1:5");
	assert_resolves("10.1.2.3", "10.1.2.3:12001");
	assert_resolves("[::1]:65535", "[::1]:65535");
	assert_resolves("::ffff:10.0.0.5", "[::ffff:10.0.0.5]:12001");
	assert_resolves("[fe80::1%lo]:7", "[fe80::1%lo]:7");
	assert_int_equal(resolve("fe80::1%nosuchif0", 1000, &addrs), -EHOSTUNREACH);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void test_resolve_localhost_gives_loopback(void **state)
{
	struct lw_addrs addrs;
	uint32_t i;

	(void)state;
	skip_with_tsan();
	assert_int_equal(resolve("localhost:77", 5000, &addrs), 0);
	assert_in_range(addrs.count, 1, 8);
	for (i = 0; i < addrs.count; i++) {
		assert_true(addrs.addr[i].ss_family == AF_INET || addrs.addr[i].ss_family == AF_INET6);
		assert_int_equal(lw_sockaddr_port(&addrs.addr[i]), 77);
	}
}

static void test_resolve_without_time_ends_at_once_and_spoils_nothing(void **state)
{
	int64_t begin = now_ms();
	struct lw_addrs addrs;
	int i, ret;

	(void)state;
	skip_with_tsan();
	for (i = 0; i < 50; i++) {
		ret = resolve("no-such-host.invalid:1", 0, &addrs);
		assert_true(ret == -ETIMEDOUT || ret == -EHOSTUNREACH);
	}
	assert_in_range(now_ms() - begin, 0, 2000);
	test_resolve_localhost_gives_loopback(state);
}

static void test_resolve_unknown_host_ends_within_its_time(void **state)
{
	int64_t begin = now_ms();
	struct lw_addrs addrs;
	int ret;

	(void)state;
	skip_with_tsan();
	ret = resolve("no-such-host.invalid:1", 300, &addrs);
	assert_true(ret == -EHOSTUNREACH || ret == -ETIMEDOUT);
	assert_in_range(now_ms() - begin, 0, 2000);
}

static void loopback(struct sockaddr_storage *addr)
{
	struct sockaddr_in *in = (struct sockaddr_in *)addr;

	memset(addr, 0, sizeof(*addr));
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

static void test_listen_random_small_range_fills_up_and_then_refuses(void **state)
{
	struct sockaddr_storage addr;
	uint16_t base = 0, port, seen[8] = {0};
	int fds[8], extra = -1, opened = 0, ret = 0, i;

	(void)state;
	loopback(&addr);
	/* The kernel's own range is above, our neighbours' engines below. */
	assert_int_equal(lw_listen_random(&addr, 20000, 30000, 8, &fds[0], &base), 0);
	for (opened = 1; opened < 8; opened++) {
		ret = lw_listen_random(&addr, base, (uint16_t)(base + 7), 8, &fds[opened], &port);
		if (ret < 0)
			break; /* a stranger has one of the eight */
		assert_in_range(port, base, base + 7);
		assert_int_equal(seen[port - base]++, 0);
		assert_int_not_equal(port, base);
	}
	if (ret == 0)
		ret = lw_listen_random(&addr, base, (uint16_t)(base + 7), 8, &extra, &port);
	assert_int_equal(ret, -EADDRINUSE);
	assert_int_equal(extra, -1);
	for (i = 0; i < opened; i++)
		close(fds[i]);
}

static void test_listen_random_last_free_port_is_found(void **state)
{
	enum { PORTS = 512, ROUNDS = 8 };
	struct sockaddr_storage addr;
	uint16_t base, last, port;
	int fds[PORTS], count, round, i;

	(void)state;
	loopback(&addr);
	assert_int_equal(lw_listen_random(&addr, 20000, 30000, 8, &fds[0], &base), 0);
	last = (uint16_t)(base + PORTS - 1);
	for (count = 1; count < PORTS; count++) /* strangers may have some of them */
		if (lw_listen_random(&addr, base, last, 8, &fds[count], &port) < 0)
			break;
	assert_true(count > ROUNDS);
	/* Random draws alone would miss the one free port about every other time. */
	for (round = 0; round < ROUNDS; round++) {
		close(fds[round]);
		assert_int_equal(lw_listen_random(&addr, base, last, 8, &fds[round], &port), 0);
		assert_in_range(port, base, last);
	}
	for (i = 0; i < count; i++)
		close(fds[i]);
}

static void test_listen_random_socket_is_private_and_nonblocking(void **state)
{
	struct sockaddr_storage addr, bound;
	socklen_t size = sizeof(bound), on_size = sizeof(int);
	uint16_t port;
	int fd, on = 0;

	(void)state;
	loopback(&addr);
	assert_int_equal(lw_listen_random(&addr, 20000, 30000, 8, &fd, &port), 0);
	assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &on_size), 0);
	assert_int_equal(on, 1);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, &on_size), 0);
	assert_int_equal(on, 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&bound, &size), 0);
	assert_int_equal(lw_sockaddr_port(&bound), port);
	close(fd);
}

static void test_listen_random_wrong_arguments_are_refused(void **state)
{
	struct sockaddr_storage addr;
	struct sockaddr_in *in = (struct sockaddr_in *)&addr;
	uint16_t port;
	int fd = -1;

	(void)state;
	loopback(&addr);
	assert_int_equal(lw_listen_random(&addr, 30000, 20000, 8, &fd, &port), -EINVAL);
	assert_int_equal(lw_listen_random(&addr, 0, 20000, 8, &fd, &port), -EINVAL);
	in->sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1, kept for examples: nobody has it */
	assert_int_equal(lw_listen_random(&addr, 20000, 30000, 8, &fd, &port), -EADDRNOTAVAIL);
	assert_int_equal(fd, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse_every_spelling_gives_its_parts),
		cmocka_unit_test(test_format_parsed_name_parses_to_the_same),
		cmocka_unit_test(test_format_without_port_leaves_it_out),
		cmocka_unit_test(test_format_short_buffer_is_refused),
		cmocka_unit_test(test_parse_long_names_are_refused_from_the_limit_on),
		cmocka_unit_test(test_resolve_numeric_host_is_converted_at_once),
		cmocka_unit_test(test_resolve_localhost_gives_loopback),
		cmocka_unit_test(test_resolve_without_time_ends_at_once_and_spoils_nothing),
		cmocka_unit_test(test_resolve_unknown_host_ends_within_its_time),
		cmocka_unit_test(test_listen_random_small_range_fills_up_and_then_refuses),
		cmocka_unit_test(test_listen_random_last_free_port_is_found),
		cmocka_unit_test(test_listen_random_socket_is_private_and_nonblocking),
		cmocka_unit_test(test_listen_random_wrong_arguments_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
