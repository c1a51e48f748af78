/* SPDX-License-Identifier: Apache-2.0 */
/* The store clients against scripted servers on 127.0.0.1: whatever they answer, and however slowly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/script.h"
#include "lib/clock.h"
#include "meta/store.h"

#define OURS UINT64_C(0x0123456789abcdef)
#define VALUE "{\"lw\":{\"incarnation\":\"0123456789abcdef\"}}"
#define SHORT_MS 300
#define SLACK_MS 1000
#define MAX_VALUE 100000
#define OK_HEAD "HTTP/1.1 200 OK\r\nContent-Length: "
#define CLOSED_HEAD "HTTP/1.1 200 OK\r\n\r\n"

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define WITH_TSAN 1
#endif

static char why[400];

static struct lw_store_options ours(void)
{
	const struct lw_store_options options = {
		.size = sizeof(options), .incarnation = OURS, .lease_s = 60, .max_value = MAX_VALUE};

	return options;
}

static struct lw_store *open_store(const char *scheme, uint16_t port)
{
	const struct lw_store_options options = ours();
	struct lw_store *store;
	char url[64];

	snprintf(url, sizeof(url), "%s://127.0.0.1:%u", scheme, port);
	if (lw_store_open(url, &options, &store, why, sizeof(why)) != 0)
		fail_msg("%s: %s", url, why);
	return store;
}

static int get(struct lw_store *store, const char *key, uint32_t timeout_ms)
{
	uint64_t begin_ns = lw_now_ns();
	char *value = NULL;
	size_t length;
	int ret;

	why[0] = '\0';
	ret = lw_store_get(store, key, timeout_ms, &value, &length, why, sizeof(why));
	assert_in_range((lw_now_ns() - begin_ns) / 1000000, 0, timeout_ms + SLACK_MS);
	assert_true((ret == 0) == (value != NULL));
	assert_true((ret == 0) == (why[0] == '\0'));
	free(value);
	return ret;
}

static int put(struct lw_store *store, enum lw_store_put how, uint32_t timeout_ms)
{
	return lw_store_put(store, "k", VALUE, strlen(VALUE), how, timeout_ms, why, sizeof(why));
}

/* What servers may answer ---------------------------------------------------------------------------------------------
 */

struct scene {
	const char *answer;
	enum script_manner manner;
	int error;
};

static uint64_t peak_kib(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	uint64_t kib = 0;
	char line[128];

	assert_non_null(file);
	while (fgets(line, sizeof(line), file) != NULL)
		sscanf(line, "VmPeak: %" SCNu64, &kib);
	fclose(file);
	return kib;
}

/* Each answer to a get; nothing is reserved for what is only announced. */
static void play(const char *scheme, const struct scene *scenes, size_t count, const char *head)
{
	uint64_t peak = peak_kib();
	size_t i;
	int ret;

	for (i = 0; i < count; i++) {
		struct script script = {.manner = scenes[i].manner};
		struct lw_store *store;
		char *whole = NULL;

		assert_true(asprintf(&whole, "%s%s", head, scenes[i].answer) >= 0);
		script.answer = whole;
		script.size = strlen(whole);
		script_start(&script);
		store = open_store(scheme, script.port);
		ret = get(store, "k", scenes[i].error == -ETIMEDOUT ? SHORT_MS : 10000);
		if (ret != scenes[i].error)
			fail_msg("%s: \"%.80s\" gives %d (%s), not %d", scheme, scenes[i].answer, ret, why,
				 scenes[i].error);
		lw_store_close(store);
		script_stop(&script);
		free(whole);
	}
	assert_in_range(peak_kib(), 0, peak + 400000);
}

static void test_http_every_answer_has_its_error(void **state)
{
	static const struct scene scenes[] = {
		{OK_HEAD "2\r\n\r\n{}", SCRIPT_ANSWER, 0},
		{OK_HEAD "2\r\n\r\n{}", SCRIPT_CLOSE, 0},
		{OK_HEAD "0\r\n\r\n", SCRIPT_ANSWER, 0},
		{CLOSED_HEAD "{}", SCRIPT_CLOSE, 0},
		{"", SCRIPT_CLOSE, -ECONNRESET},
		{"", SCRIPT_RESET, -ECONNRESET},
		{"", SCRIPT_ANSWER, -ETIMEDOUT},
		{"HTTP/1.1 20", SCRIPT_ANSWER, -ETIMEDOUT},
		{OK_HEAD "20\r\n\r\n{}", SCRIPT_ANSWER, -ETIMEDOUT},
		{OK_HEAD "20\r\n\r\n01234567890123456789", SCRIPT_DRIP, -ETIMEDOUT},
		{OK_HEAD "20\r\n\r\n{}", SCRIPT_CLOSE, -EPROTO},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}", SCRIPT_CLOSE, -EPROTO},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", SCRIPT_CLOSE, -EPROTO},
		{"nonsense\r\n\r\n", SCRIPT_CLOSE, -EPROTO},
		{"-ERR unknown command\r\n", SCRIPT_CLOSE, -EPROTO},
		{"HTTP/1.1 302 F\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", SCRIPT_ANSWER, -EPROTO},
		{"HTTP/1.1 204 N\r\n\r\n", SCRIPT_ANSWER, -EPROTO},
		{OK_HEAD "99999999999\r\n\r\n{}", SCRIPT_ANSWER, -EMSGSIZE},
		{OK_HEAD "99999999999\r\n\r\n01234567", SCRIPT_FLOOD, -EMSGSIZE},
		{CLOSED_HEAD "01234567", SCRIPT_FLOOD, -EMSGSIZE},
		{"HTTP/1.1 200 OK\r\nX: 12\r\n\r\nY: 34\r\n", SCRIPT_FLOOD, -EMSGSIZE},
		{"HTTP/1.1 200 OK\r\nXX: 12\r\n", SCRIPT_FLOOD, -EMSGSIZE},
		{"HTTP/1.1 404 N\r\nContent-Length: 0\r\n\r\n", SCRIPT_ANSWER, -ENOENT},
		{"HTTP/1.1 403 N\r\nContent-Length: 3\r\n\r\n\x01\x1b[", SCRIPT_ANSWER, -EACCES},
		{"HTTP/1.1 500 N\r\nContent-Length: 0\r\n\r\n", SCRIPT_ANSWER, -EIO},
	};

	(void)state;
	play("http", scenes, sizeof(scenes) / sizeof(scenes[0]), "");
}

static void test_etcd_every_answer_has_its_error(void **state)
{
#define KV(rest) "{\"kvs\":[{\"key\":\"aw==\"," rest "}]}"
	static const struct scene scenes[] = {
		{KV("\"mod_revision\":\"7\",\"value\":\"e30=\""), SCRIPT_CLOSE, 0},
		{KV("\"mod_revision\":\"7\""), SCRIPT_CLOSE, 0},
		{"{}", SCRIPT_CLOSE, -ENOENT},
		{"{\"kvs\":[]}", SCRIPT_CLOSE, -ENOENT},
		{"", SCRIPT_CLOSE, -EPROTO},
		{"5", SCRIPT_CLOSE, -EPROTO},
		{"[]", SCRIPT_CLOSE, -EPROTO},
		{"null", SCRIPT_CLOSE, -EPROTO},
		{"{\"kvs\":[{\"key\":\"aw==\"", SCRIPT_CLOSE, -EPROTO},
		{"{\"kvs\":5}", SCRIPT_CLOSE, -EPROTO},
		{"{\"kvs\":{}}", SCRIPT_CLOSE, -EPROTO},
		{"{\"kvs\":[5]}", SCRIPT_CLOSE, -EPROTO},
		{"{\"kvs\":[{\"key\":\"bA==\",\"mod_revision\":\"7\"}]}", SCRIPT_CLOSE, -EPROTO},
		{KV("\"mod_revision\":7"), SCRIPT_CLOSE, -EPROTO},
		{KV("\"mod_revision\":\"-7\""), SCRIPT_CLOSE, -EPROTO},
		{KV("\"mod_revision\":\"99999999999999999999999999\""), SCRIPT_CLOSE, -EPROTO},
		{KV("\"mod_revision\":\"7\",\"value\":7"), SCRIPT_CLOSE, -EPROTO},
		{KV("\"mod_revision\":\"7\",\"value\":\"e30\""), SCRIPT_CLOSE, -EPROTO},
		{KV("\"mod_revision\":\"7\",\"value\":\"e3!=\""), SCRIPT_CLOSE, -EPROTO},
		{"{\"error\":\"etcdserver: no\",\"code\":2,\"message\":\"etcdserver: no\"}", SCRIPT_CLOSE, -EIO},
		{"{\"error\":{\"grpc_code\":7,\"message\":\"no\"}}", SCRIPT_CLOSE, -EACCES},
		{"{\"error\":5}", SCRIPT_CLOSE, -EPROTO},
		{"{\"error\":\"x\",\"code\":1e300,\"message\":\"x\"}", SCRIPT_CLOSE, -EIO},
		{"{\"kvs\":[[[[[[[[[[[[[[[[", SCRIPT_FLOOD, -EMSGSIZE},
		{"{\"kvs\":[1,2,3,4,", SCRIPT_FLOOD, -EMSGSIZE},
	};
	static char deep[20000], wide[40000];
	const struct scene made[] = {{deep, SCRIPT_CLOSE, -EPROTO}, {wide, SCRIPT_CLOSE, -EPROTO}};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(deep) - 1; i++)
		deep[i] = i < sizeof(deep) / 2 ? '[' : ']';
	snprintf(wide, sizeof(wide), "{\"kvs\":[1");
	for (i = 9; i < sizeof(wide) - 3; i += 2)
		memcpy(wide + i, ",1", 2);
	memcpy(wide + i - 1, "]}", 3);
	play("etcd", scenes, sizeof(scenes) / sizeof(scenes[0]), CLOSED_HEAD);
	play("etcd", made, 2, CLOSED_HEAD);
}

static void test_redis_every_answer_has_its_error(void **state)
{
	static const struct scene scenes[] = {
		{"$2\r\n{}\r\n", SCRIPT_ANSWER, 0},
		{"$0\r\n\r\n", SCRIPT_ANSWER, 0},
		{"$-1\r\n", SCRIPT_ANSWER, -ENOENT},
		{"", SCRIPT_CLOSE, -ECONNRESET},
		{"", SCRIPT_RESET, -ECONNRESET},
		{"", SCRIPT_ANSWER, -ETIMEDOUT},
		{"$2\r\n{", SCRIPT_ANSWER, -ETIMEDOUT},
		{"$2\r\n{", SCRIPT_CLOSE, -EPROTO},
		{"$20\r\n01234567890123456789\r\n", SCRIPT_DRIP, -ETIMEDOUT},
		{"$1000000000\r\n", SCRIPT_ANSWER, -ETIMEDOUT},
		{"$1000000000\r\n01234567", SCRIPT_FLOOD, -EMSGSIZE},
		{"+01234567", SCRIPT_FLOOD, -EMSGSIZE},
		{"*1000000000\r\n", SCRIPT_ANSWER, -EPROTO},
		{"*1\r\n$1\r\nx\r\n", SCRIPT_ANSWER, -EPROTO},
		{"*0\r\n", SCRIPT_ANSWER, -EPROTO},
		{"$-7\r\n", SCRIPT_ANSWER, -EPROTO},
		{"$99999999999999999999\r\n", SCRIPT_ANSWER, -EPROTO},
		{":5\r\n", SCRIPT_ANSWER, -EPROTO},
		{"+OK\r\n", SCRIPT_ANSWER, -EPROTO},
		{"$2\r\n{}\r\n$2\r\n{}\r\n", SCRIPT_ANSWER, -EPROTO},
		{"HTTP/1.1 400 Bad Request\r\n\r\n", SCRIPT_CLOSE, -EPROTO},
		{"-ERR what\r\n", SCRIPT_ANSWER, -EIO},
		{"-LOADING it\r\n", SCRIPT_ANSWER, -EIO},
		{"-NOAUTH no\r\n", SCRIPT_ANSWER, -EACCES},
		{"-ERR Error running script: -OOM command not allowed\r\n", SCRIPT_ANSWER, -ENOSPC},
		{"-READONLY no\r\n", SCRIPT_ANSWER, -EROFS},
	};

	(void)state;
	play("redis", scenes, sizeof(scenes) / sizeof(scenes[0]), "");
}

/* Connections ---------------------------------------------------------------------------------------------------------
 */

static void test_get_nobody_listens_or_no_time_is_told_at_once(void **state)
{
	static const char *const schemes[] = {"http", "etcd", "redis"};
	struct lw_store *store;
	size_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		store = open_store(schemes[i], 1);
		assert_int_equal(get(store, "k", 5000), -ECONNREFUSED);
		assert_non_null(strstr(why, "127.0.0.1:1"));
		assert_int_equal(get(store, "k", 0), -ETIMEDOUT);
		assert_int_equal(put(store, LW_STORE_TAKE, 0), -ETIMEDOUT);
		lw_store_close(store);
	}
}

/* A short and right answer of each kind. */
static const char *const short_answers[][2] = {
	{"http", "HTTP/1.0 200 OK\r\n\r\n{}"},
	{"etcd", "HTTP/1.0 200 OK\r\n\r\n{\"kvs\":[]}"},
	{"redis", "$2\r\n{}\r\n"},
};

static void on_alarm(int number)
{
	(void)number;
}

static void test_get_signals_every_millisecond_change_nothing(void **state)
{
	const struct itimerval often = {.it_interval.tv_usec = 1000, .it_value.tv_usec = 1000},
			       never = {.it_value.tv_sec = 0};
	const struct sigaction action = {.sa_handler = on_alarm};
	struct sigaction old;
	struct lw_store *store;
	size_t i;
	int ret;

	(void)state;
	sigaction(SIGALRM, &action, &old);
	for (i = 0; i < 3; i++) {
		struct script script = {.manner = SCRIPT_DRIP, .answer = short_answers[i][1]};

		script.size = strlen(script.answer);
		if (i < 2) /* the end of the connection is that of the answer */
			script.manner = SCRIPT_CLOSE;
		script_start(&script);
		store = open_store(short_answers[i][0], script.port);
		setitimer(ITIMER_REAL, &often, NULL);
		ret = get(store, "k", 10000);
		setitimer(ITIMER_REAL, &never, NULL);
		assert_int_equal(ret, i == 1 ? -ENOENT : 0);
		lw_store_close(store);
		script_stop(&script);
	}
	/* And they don't end a wait before its time. */
	for (i = 0; i < 3; i++) {
		struct script script = {.answer = ""};
		uint64_t begin_ns;

		script_start(&script);
		store = open_store(short_answers[i][0], script.port);
		setitimer(ITIMER_REAL, &often, NULL);
		begin_ns = lw_now_ns();
		ret = get(store, "k", SHORT_MS);
		setitimer(ITIMER_REAL, &never, NULL);
		assert_int_equal(ret, -ETIMEDOUT);
		assert_in_range((lw_now_ns() - begin_ns) / 1000000, SHORT_MS - 5, SHORT_MS + SLACK_MS);
		lw_store_close(store);
		script_stop(&script);
	}
	sigaction(SIGALRM, &old, NULL);
}

static void test_get_host_by_name_reaches_the_address_that_listens(void **state)
{
	const struct lw_store_options options = ours();
	struct lw_store *store;
	char url[64];
	size_t i;
	int ret;

	(void)state;
#ifdef WITH_TSAN
	print_message("skipped: ThreadSanitizer crashes in threads of getaddrinfo_a\n");
	skip();
#endif
	for (i = 0; i < 3; i++) {
		struct script script = {.manner = SCRIPT_CLOSE, .answer = short_answers[i][1]};

		script.size = strlen(script.answer);
		script_start(&script);
		snprintf(url, sizeof(url), "%s://localhost:%u", short_answers[i][0], script.port);
		assert_int_equal(lw_store_open(url, &options, &store, why, sizeof(why)), 0);
		ret = get(store, "k", 10000);
		if (ret != (i == 1 ? -ENOENT : 0))
			fail_msg("%s gives %d: %s", url, ret, why);
		lw_store_close(store);
		script_stop(&script);
		snprintf(url, sizeof(url), "%s://no-such-host.invalid:1", short_answers[i][0]);
		assert_int_equal(lw_store_open(url, &options, &store, why, sizeof(why)), 0);
		ret = get(store, "k", SHORT_MS);
		assert_true(ret == -EHOSTUNREACH || ret == -ETIMEDOUT);
		lw_store_close(store);
	}
}

static void test_connection_is_kept_and_made_again_when_it_was_closed(void **state)
{
	static const char *const answers[][2] = {{"http", OK_HEAD "2\r\n\r\n{}"}, {"redis", "$2\r\n{}\r\n"}};
	struct lw_store *store;
	unsigned close;
	size_t i;
	int j;

	(void)state;
	for (i = 0; i < 2; i++) {
		for (close = 0; close < 2; close++) {
			struct script script = {.manner = close ? SCRIPT_CLOSE : SCRIPT_ANSWER,
						.answer = answers[i][1],
						.size = strlen(answers[i][1])};

			script_start(&script);
			store = open_store(answers[i][0], script.port);
			for (j = 0; j < 3; j++)
				assert_int_equal(get(store, "k", 5000), 0);
			assert_int_equal(atomic_load(&script.connections), close ? 3 : 1);
			lw_store_close(store);
			script_stop(&script);
		}
	}
}

static void test_forked_child_leaves_the_connection_to_its_parent(void **state)
{
	static const char *const answers[][2] = {{"http", OK_HEAD "2\r\n\r\n{}"}, {"redis", "$2\r\n{}\r\n"}};
	struct lw_store *store;
	size_t i;
	int status;
	pid_t pid;

	(void)state;
	for (i = 0; i < 2; i++) {
		struct script script = {.answer = answers[i][1], .size = strlen(answers[i][1])};

		script_start(&script);
		store = open_store(answers[i][0], script.port);
		assert_int_equal(get(store, "k", 5000), 0);
		pid = fork();
		if (pid == 0) {
			lw_store_forked(store);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		assert_int_equal(get(store, "k", 5000), 0);
		assert_int_equal(atomic_load(&script.connections), 1);
		lw_store_close(store);
		script_stop(&script);
	}
}

static void test_put_reset_while_sending_raises_no_signal(void **state)
{
	static const char *const schemes[] = {"http", "etcd", "redis"};
	struct lw_store_options options = ours();
	size_t size = 8u << 20, i;
	char *value = malloc(size);
	struct sigaction action;
	struct lw_store *store;
	sigset_t before, after, pending;
	char url[64];
	int ret;

	(void)state;
	assert_non_null(value);
	memset(value, 'x', size);
	options.max_value = size;
	options.incarnation = 0;
	options.lease_s = 0;
	pthread_sigmask(SIG_BLOCK, NULL, &before);
	for (i = 0; i < 3; i++) {
		struct script script = {.manner = SCRIPT_RESET, .answer = ""};

		script_start(&script);
		snprintf(url, sizeof(url), "%s://127.0.0.1:%u", schemes[i], script.port);
		assert_int_equal(lw_store_open(url, &options, &store, why, sizeof(why)), 0);
		ret = lw_store_put(store, "k", value, size, LW_STORE_TAKE, 5000, why, sizeof(why));
		assert_int_equal(ret, -ECONNRESET);
		lw_store_close(store);
		script_stop(&script);
	}
	pthread_sigmask(SIG_BLOCK, NULL, &after);
	sigemptyset(&pending);
	sigpending(&pending);
	for (i = 1; i < 32; i++) {
		assert_int_equal(sigismember(&before, (int)i), sigismember(&after, (int)i));
		assert_int_equal(sigismember(&pending, (int)i), 0);
	}
	assert_int_equal(sigaction(SIGPIPE, NULL, &action), 0);
	assert_true(action.sa_handler == SIG_DFL);
	free(value);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_http_every_answer_has_its_error),
		cmocka_unit_test(test_etcd_every_answer_has_its_error),
		cmocka_unit_test(test_redis_every_answer_has_its_error),
		cmocka_unit_test(test_get_nobody_listens_or_no_time_is_told_at_once),
		cmocka_unit_test(test_get_signals_every_millisecond_change_nothing),
		cmocka_unit_test(test_get_host_by_name_reaches_the_address_that_listens),
		cmocka_unit_test(test_connection_is_kept_and_made_again_when_it_was_closed),
		cmocka_unit_test(test_forked_child_leaves_the_connection_to_its_parent),
		cmocka_unit_test(test_put_reset_while_sending_raises_no_signal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
