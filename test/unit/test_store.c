/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata stores without a server: URLs, options, owners. test_store_answers.c has scripted servers, and
 * test/sys/test_stores.py real ones. With the argument "client" the program is what common/store_client.h says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/store_client.h"
#include "meta/store.h"
#include "meta/store_pvt.h"

#define OURS UINT64_C(0x0123456789abcdef)
#define VALUE "{\"lw\":{\"incarnation\":\"0123456789abcdef\"}}"

static char why[400];

static struct lw_store_options ours(void)
{
	const struct lw_store_options options = {.size = sizeof(options), .incarnation = OURS, .lease_s = 60};

	return options;
}

static void *open_and_ask(void *arg)
{
	static const char *const urls[] = {"http://127.0.0.1:1", "127.0.0.1:1", "redis://127.0.0.1:1"};
	const struct lw_store_options options = ours();
	struct lw_store *store;
	char text[200], *value;
	size_t length, i;

	for (i = 0; i < 30; i++) {
		if (lw_store_open(urls[i % 3], &options, &store, text, sizeof(text)) != 0)
			return "not opened";
		if (lw_store_get(store, "k", 5000, &value, &length, text, sizeof(text)) != -ECONNREFUSED)
			return "not refused";
		lw_store_close(store);
	}
	return arg;
}

static void test_open_in_many_threads_at_once(void **state)
{
	pthread_t threads[32];
	const char *failed = NULL;
	void *result;
	size_t i;

	(void)state;
	for (i = 0; i < 32; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_ask, NULL), 0);
	for (i = 0; i < 32; i++) {
		pthread_join(threads[i], &result);
		if (result != NULL)
			failed = result;
	}
	if (failed != NULL)
		fail_msg("%s", failed);
}

/* URLs ----------------------------------------------------------------------------------------------------------------
 */

static void test_open_what_is_no_store_is_refused_and_says_what_is(void **state)
{
	static const char *const wrong[] = {
		"",
		"P2PHANDSHAKE",
		"p2phandshake",
		"host",
		"host:",
		"host:0",
		"host:1,",
		",host:1",
		"://",
		"http:",
		"http:/x",
		"ftp://h:1",
		"ETCD://h:1",
		"Redis://h",
		"etcd:///",
		"etcd://",
		"etcd://h:1,",
		"etcd://h:99999",
		"etcd://h/path",
		"etcd://a b:1",
		"etcd://u@h:1",
		"etcd://1:1,2:1,3:1,4:1,5:1,6:1,7:1,8:1,9:1",
		"redis://",
		"redis://h/3",
		"redis://u:p@h",
		"redis://h:x",
		"http://",
		"http:///x",
		"http://h:0/",
		"http://u:p@h/",
		"http://h/#x",
		"http://h/ x",
		"http://h\xc3\xb6st/",
		"http://::1/",
		"https://",
		"http://h:1\n/",
		"http://[::1/",
	};
	const struct lw_store_options options = ours();
	struct lw_store *store;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		why[0] = '\0';
		if (lw_store_open(wrong[i], &options, &store, why, sizeof(why)) != -EINVAL || why[0] == '\0')
			fail_msg("\"%s\" is taken: %s", wrong[i], why);
	}
	assert_int_equal(lw_store_open("foo://h", &options, &store, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "foo://h"));
	assert_non_null(strstr(why, "P2PHANDSHAKE, etcd://"));
	assert_non_null(strstr(why, "redis://"));
	assert_non_null(strstr(why, "https://"));
	assert_int_equal(lw_store_open("redis://u:secret@h", &options, &store, why, sizeof(why)), -EINVAL);
	assert_null(strstr(why, "secret"));
	assert_int_equal(lw_store_open("foo://h", &options, &store, NULL, 0), -EINVAL);
}

static void test_open_every_right_spelling_needs_no_server(void **state)
{
	static const char *const right[] = {
		"etcd://h",
		"etcd://10.0.0.5:2379",
		"etcd://h1:1,h2:2; h3 ,[::1]:4",
		"etcd://[fe80::1%eth0]:1",
		"10.0.0.5:2379",
		"h1:1 , h2:2",
		"[::1]:1",
		"redis://h",
		"redis://h:1/",
		"redis://[::1]:6379",
		"http://h",
		"http://h:8080/metadata",
		"http://h/metadata?a=b",
		"https://[::1]:1/x/",
		"http://[fe80::1%25eth0]/m",
	};
	const struct lw_store_options options = ours();
	struct lw_store *store;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
		if (lw_store_open(right[i], &options, &store, why, sizeof(why)) != 0)
			fail_msg("\"%s\": %s", right[i], why);
		lw_store_close(store);
	}
	lw_store_close(NULL);
	assert_true(lw_store_is_p2p("P2PHANDSHAKE"));
	assert_false(lw_store_is_p2p("P2PHANDSHAKE "));
	assert_false(lw_store_is_p2p("redis://h"));
	assert_false(lw_store_is_p2p(NULL));
}

static void test_open_wrong_options_are_refused(void **state)
{
	struct lw_store_options options = ours();
	struct lw_store *store;

	(void)state;
	options.size--;
	assert_int_equal(lw_store_open("redis://h", &options, &store, why, sizeof(why)), -EINVAL);
	options = ours();
	options.lease_s = LW_STORE_LEASE_LIMIT + 1;
	assert_int_equal(lw_store_open("redis://h", &options, &store, why, sizeof(why)), -EINVAL);
	options = ours();
	options.max_value = (size_t)LW_STORE_VALUE_LIMIT + 1;
	assert_int_equal(lw_store_open("redis://h", &options, &store, why, sizeof(why)), -EINVAL);
	options = ours();
	options.redis_db = 256;
	assert_int_equal(lw_store_open("redis://h", &options, &store, why, sizeof(why)), -EINVAL);
}

/* Owners --------------------------------------------------------------------------------------------------------------
 */

static void test_owner_is_what_the_value_carries(void **state)
{
	static const struct {
		const char *value;
		uint64_t owner;
	} cases[] = {
		{VALUE, OURS},
		{"{\"lw\":{\"auth\":true,\"incarnation\":\"ffffffffffffffff\"},\"x\":1}", UINT64_MAX},
		{"", 0},
		{"{}", 0},
		{"{\"name\":\"\\\"incarnation\\\":\\\"0123456789abcdef\\\"\"}", 0},
		{"\"incarnation\":\"0123456789abcde", 0},
		{"\"incarnation\":\"0123456789ABCDEF\"", 0},
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(lw_store_owner(cases[i].value, strlen(cases[i].value)), cases[i].owner);
	assert_true(lw_store_held(VALUE, strlen(VALUE), OURS));
	assert_false(lw_store_held(VALUE, strlen(VALUE), OURS + 1));
	assert_false(lw_store_held(VALUE, strlen(VALUE), 0));
	assert_true(lw_store_held("{}", 2, 0));
	assert_false(lw_store_held("{}", 2, OURS));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_in_many_threads_at_once), /* the first to load the libraries */
		cmocka_unit_test(test_open_what_is_no_store_is_refused_and_says_what_is),
		cmocka_unit_test(test_open_every_right_spelling_needs_no_server),
		cmocka_unit_test(test_open_wrong_options_are_refused),
		cmocka_unit_test(test_owner_is_what_the_value_carries),
	};

	if (argc > 1 && strcmp(argv[1], "client") == 0)
		return test_store_client();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
