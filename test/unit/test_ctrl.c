/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread against itself and against raw sockets, on 127.0.0.1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lib/log.h"
#include "meta/ctrl.h"
#include "meta/frame.h"

#define MAX_FRAME (4u << 20)
#define BOUND_MS 2000 /* far more than anything here needs, far less than the time-outs that would be waited for */
#define LONG_MS 20000

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void nap(void)
{
	const struct timespec ts = {.tv_nsec = 1000000};

	nanosleep(&ts, NULL);
}

/* Polls until condition holds; the test fails after BOUND_MS. */
#define EVENTUALLY(condition)                                                                                          \
	do {                                                                                                           \
		int64_t begin_ms = now_ms();                                                                           \
		while (!(condition)) {                                                                                 \
			if (now_ms() - begin_ms > BOUND_MS)                                                            \
				fail_msg("never: %s", #condition);                                                     \
			nap();                                                                                         \
		}                                                                                                      \
	} while (0)

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

/* Answers what it was asked. "die" is not answered; "big" is answered with a million bytes. */
static int echo(void *arg, int type, const char *body, size_t size, char **reply, size_t *reply_size)
{
	atomic_int *served = arg;
	bool big = strcmp(body, "big") == 0;

	(void)type;
	atomic_fetch_add(served, 1);
	if (strcmp(body, "die") == 0)
		return -EINVAL;
	*reply_size = big ? 1000000 : size;
	*reply = malloc(*reply_size + 1);
	if (*reply == NULL)
		return -ENOMEM;
	if (big)
		memset(*reply, 'x', *reply_size);
	else
		memcpy(*reply, body, size);
	return 0;
}

static atomic_int served;

static struct lw_ctrl *open_ctrl(uint32_t max_clients, uint32_t timeout_ms)
{
	struct lw_ctrl_opts opts = {.port_min = 20000,
				    .port_max = 30000,
				    .max_frame = MAX_FRAME,
				    .max_clients = max_clients,
				    .timeout_ms = timeout_ms};
	struct sockaddr_in *in = (struct sockaddr_in *)&opts.bind;
	struct lw_ctrl *ctrl;

	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	opts.serve = echo;
	opts.arg = &served;
	atomic_store(&served, 0);
	assert_int_equal(lw_ctrl_open(&opts, &ctrl), 0);
	return ctrl;
}

static struct sockaddr_storage address(uint16_t port)
{
	struct sockaddr_storage addr;
	struct sockaddr_in *in = (struct sockaddr_in *)&addr;

	memset(&addr, 0, sizeof(addr));
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	in->sin_port = htons(port);
	return addr;
}

static struct lw_addrs addresses(uint16_t port)
{
	struct lw_addrs addrs = {.count = 1};

	addrs.addr[0] = address(port);
	return addrs;
}

/* A blocking socket that is connected to port, whose reads end after BOUND_MS. */
static int dial(uint16_t port)
{
	struct sockaddr_storage addr = address(port);
	const struct timeval bound = {.tv_sec = BOUND_MS / 1000};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&addr, lw_sockaddr_length(&addr)), 0);
	return fd;
}

static void put(int fd, const void *bytes, size_t size)
{
	assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), size);
}

/* All that comes until the other side closes. -1: it did not close in time. */
static ssize_t drain(int fd, char *bytes, size_t size)
{
	size_t have = 0;
	ssize_t part;

	while (have < size && (part = recv(fd, bytes + have, size - have, 0)) != 0) {
		if (part < 0 && errno == ECONNRESET)
			break;
		if (part < 0)
			return -1;
		have += (size_t)part;
	}
	return (ssize_t)have;
}

static int listener_fd(uint16_t *port)
{
	struct sockaddr_storage addr = address(0);
	int fd;

	assert_int_equal(lw_listen_random(&addr, 20000, 30000, 16, &fd, port), 0);
	return fd;
}

static int call_port(struct lw_ctrl *ctrl, uint16_t port, const char *body, uint32_t timeout_ms)
{
	struct lw_addrs addrs = addresses(port);
	size_t size = 0;
	char *reply = NULL;
	int ret = lw_ctrl_call(ctrl, &addrs, LW_FRAME_PROBE, body, strlen(body), timeout_ms, &reply, &size);

	if (ret == 0 && strcmp(body, "big") != 0) {
		assert_int_equal(size, strlen(body));
		assert_string_equal(reply, body);
	}
	free(reply);
	return ret;
}

static int call(struct lw_ctrl *ctrl, const char *body)
{
	return call_port(ctrl, lw_ctrl_port(ctrl), body, LONG_MS);
}

/* Serving -------------------------------------------------------------------------------------------------------------
 */

static void test_serve_one_byte_at_a_time_gets_the_reply_and_a_half_close(void **state)
{
	static const char request[] = "\x04\0\0\0\0\0\0\0\x03{}\n";
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	char reply[64];
	size_t i;
	int fd = dial(lw_ctrl_port(ctrl));

	(void)state;
	for (i = 0; i < sizeof(request) - 1; i++)
		put(fd, request + i, 1);
	assert_int_equal(drain(fd, reply, sizeof(reply)), sizeof(request) - 1);
	assert_memory_equal(reply, request, sizeof(request) - 1);
	close(fd);
	lw_ctrl_close(ctrl);
}

static void test_serve_glued_legacy_or_half_closed_request_is_answered(void **state)
{
	static const char glued[] = "\x04\0\0\0\0\0\0\0\x01{}\n\x04\0\0\0\0\0\0\0\x01[]\n";
	static const char legacy[] = "\x03\0\0\0\0\0\0\0{}\n";
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	char reply[64];
	int fd = dial(lw_ctrl_port(ctrl));

	(void)state;
	put(fd, glued, sizeof(glued) - 1);
	assert_int_equal(drain(fd, reply, sizeof(reply)), 12);
	assert_memory_equal(reply, glued, 12);
	close(fd);

	fd = dial(lw_ctrl_port(ctrl));
	put(fd, legacy, sizeof(legacy) - 1);
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	assert_int_equal(drain(fd, reply, sizeof(reply)), sizeof(legacy) - 1);
	assert_memory_equal(reply, legacy, sizeof(legacy) - 1);
	close(fd);
	lw_ctrl_close(ctrl);
}

static void test_serve_foreign_bytes_are_closed_without_an_answer(void **state)
{
	static const struct {
		const char *bytes;
		size_t size;
	} foreign[] = {
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27},
		{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11},
		{"SSH-2.0-OpenSSH_9.2\r\n", 21},
		{"*1\r\n$4\r\nPING\r\n", 14},
		{"\0\0\0\0\0\0\0\0", 8},
		{"\0\0\0\0\0\0\0\x80", 8},
		{"\xff\xff\xff\xff\xff\xff\xff\xff\xff", 9},
		{"\x01\x00\x40\x00\0\0\0\0\x01", 9}, /* the limit and one */
		{"\x05\0\0\0\0\0\0\0\x03"
		 "die\n",
		 13},
	};
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	char reply[64];
	size_t i;

	(void)state;
	lw_log_level_set(LW_LOG_ERROR); /* it warns, rightly */
	for (i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
		int fd = dial(lw_ctrl_port(ctrl));

		put(fd, foreign[i].bytes, foreign[i].size);
		if (drain(fd, reply, sizeof(reply)) != 0)
			fail_msg("case %zu was answered or left open", i);
		close(fd);
	}
	assert_int_equal(call(ctrl, "{}"), 0);
	lw_ctrl_close(ctrl);
	lw_log_level_set(LW_LOG_WARNING);
}

static void test_serve_silent_clients_delay_nobody(void **state)
{
	static const char half[] = "\x04\0\0";
	struct lw_ctrl *ctrl = open_ctrl(64, LONG_MS);
	int fds[20], i;
	int64_t begin;

	(void)state;
	for (i = 0; i < 20; i++) {
		fds[i] = dial(lw_ctrl_port(ctrl));
		if (i % 2 == 0)
			put(fds[i], half, sizeof(half) - 1);
	}
	begin = now_ms();
	for (i = 0; i < 100; i++)
		assert_int_equal(call(ctrl, "{}"), 0);
	assert_in_range(now_ms() - begin, 0, BOUND_MS);
	for (i = 0; i < 20; i++)
		close(fds[i]);
	lw_ctrl_close(ctrl);
}

static void test_serve_silent_client_is_dropped_at_its_deadline(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, 100);
	int fd = dial(lw_ctrl_port(ctrl));
	char byte;

	(void)state;
	assert_int_equal(drain(fd, &byte, 1), 0);
	close(fd);
	lw_ctrl_close(ctrl);
}

static void test_serve_more_clients_than_allowed_drops_the_oldest_silent_one(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(4, LONG_MS);
	int fds[8], i;
	char byte;

	(void)state;
	for (i = 0; i < 8; i++) /* accepted in the order in which they connected */
		fds[i] = dial(lw_ctrl_port(ctrl));
	for (i = 0; i < 4; i++)
		assert_int_equal(drain(fds[i], &byte, 1), 0);
	for (i = 4; i < 8; i++)
		assert_int_equal(recv(fds[i], &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(call(ctrl, "{}"), 0);
	assert_int_equal(drain(fds[4], &byte, 1), 0);
	for (i = 0; i < 8; i++)
		close(fds[i]);
	lw_ctrl_close(ctrl);
}

static void test_serve_client_that_leaves_mid_reply_harms_nobody(void **state)
{
	static const char request[] = "\x05\0\0\0\0\0\0\0\x01"
				      "big\n";
	const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	struct lw_ctrl *ctrl = open_ctrl(64, LONG_MS);
	struct sigaction action;
	int before, i;

	(void)state;
	assert_int_equal(sigaction(SIGPIPE, NULL, &action), 0);
	assert_true(action.sa_handler == SIG_DFL); /* else this test proves nothing */
	assert_int_equal(call(ctrl, "{}"), 0);
	before = count_fds();
	for (i = 0; i < 200; i++) {
		int fd = dial(lw_ctrl_port(ctrl));

		put(fd, request, sizeof(request) - 1);
		if (i % 2 == 0)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		if (i % 3 == 0)
			EVENTUALLY(recv(fd, (char[1]){0}, 1, MSG_PEEK) == 1);
		close(fd);
	}
	assert_int_equal(call(ctrl, "big"), 0);
	EVENTUALLY(count_fds() <= before);
	lw_ctrl_close(ctrl);
}

static void test_serve_out_of_descriptors_recovers(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(64, LONG_MS);
	int before = count_fds(), fd, next;
	struct rlimit old, low;
	char reply[64];

	(void)state;
	lw_log_level_set(LW_LOG_ERROR); /* it warns, rightly */
	assert_int_equal(call(ctrl, "{}"), 0);
	EVENTUALLY(count_fds() <= before); /* all below the next one are in use, and stay so */
	next = dup(0);
	assert_true(next >= 0);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = old;
	low.rlim_cur = (rlim_t)next + 1; /* it is ours, and the server finds none */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	fd = dial(lw_ctrl_port(ctrl));
	assert_int_equal(fd, next);
	put(fd, "\x04\0\0\0\0\0\0\0\x03{}\n", 12);
	assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 120), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_int_equal(drain(fd, reply, sizeof(reply)), 12);
	close(fd);
	lw_ctrl_close(ctrl);
	lw_log_level_set(LW_LOG_WARNING);
}

/* Calling -------------------------------------------------------------------------------------------------------------
 */

static void test_call_large_bodies_come_back_whole(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	struct lw_addrs addrs = addresses(lw_ctrl_port(ctrl));
	size_t size = MAX_FRAME - 2, got = 0, i;
	char *body = malloc(size + 1), *reply = NULL;

	(void)state;
	assert_non_null(body);
	for (i = 0; i < size; i++)
		body[i] = (char)('a' + i % 23);
	body[size] = '\0';
	assert_int_equal(lw_ctrl_call(ctrl, &addrs, LW_FRAME_METADATA, body, size, LONG_MS, &reply, &got), 0);
	assert_int_equal(got, size);
	assert_memory_equal(reply, body, size);
	free(reply);
	assert_int_equal(lw_ctrl_call(ctrl, &addrs, LW_FRAME_METADATA, body, size + 1, LONG_MS, &reply, &got),
			 -EMSGSIZE);
	free(body);
	lw_ctrl_close(ctrl);
}

static void test_call_refused_port_says_so(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	struct lw_addrs none = {.count = 0};
	size_t size;
	char *reply;
	uint16_t port;

	(void)state;
	close(listener_fd(&port));
	assert_int_equal(call_port(ctrl, port, "{}", LONG_MS), -ECONNREFUSED);
	assert_int_equal(lw_ctrl_call(ctrl, &none, LW_FRAME_PROBE, "", 0, LONG_MS, &reply, &size), -EHOSTUNREACH);
	lw_ctrl_close(ctrl);
}

static void test_call_second_address_is_tried_when_the_first_is_refused(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	struct lw_addrs addrs = {.count = 2};
	char *reply = NULL;
	uint16_t port;
	size_t size;

	(void)state;
	close(listener_fd(&port));
	addrs.addr[0] = address(port);
	addrs.addr[1] = address(lw_ctrl_port(ctrl));
	assert_int_equal(lw_ctrl_call(ctrl, &addrs, LW_FRAME_PROBE, "{}", 2, LONG_MS, &reply, &size), 0);
	free(reply);
	addrs.addr[1] = address(port);
	assert_int_equal(lw_ctrl_call(ctrl, &addrs, LW_FRAME_PROBE, "{}", 2, LONG_MS, &reply, &size), -ECONNREFUSED);
	lw_ctrl_close(ctrl);
}

static void test_call_black_hole_ends_in_time_and_delays_nobody(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	int64_t begin = now_ms();
	uint16_t port;
	int fd = listener_fd(&port), before; /* never accepted from: connects, then silence */

	(void)state;
	before = count_fds();
	assert_int_equal(call_port(ctrl, port, "{}", 50), -ETIMEDOUT);
	assert_in_range(now_ms() - begin, 50, 50 + BOUND_MS);
	assert_int_equal(call(ctrl, "{}"), 0);
	EVENTUALLY(count_fds() <= before);
	close(fd);
	lw_ctrl_close(ctrl);
}

static void test_call_black_holed_address_leaves_time_for_the_next(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	struct lw_addrs addrs = {.count = 2};
	char *reply = NULL;
	size_t size;
	uint16_t port;
	int hole, fills[64], i;

	(void)state;
	/* A full backlog: the kernel drops what comes, as a host behind a firewall does. */
	hole = listener_fd(&port);
	assert_int_equal(listen(hole, 0), 0);
	addrs.addr[0] = address(port);
	for (i = 0; i < 64; i++) {
		fills[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		assert_true(fills[i] >= 0);
		connect(fills[i], (struct sockaddr *)&addrs.addr[0], lw_sockaddr_length(&addrs.addr[0]));
	}
	addrs.addr[1] = address(lw_ctrl_port(ctrl));
	assert_int_equal(lw_ctrl_call(ctrl, &addrs, LW_FRAME_PROBE, "{}", 2, 600, &reply, &size), 0);
	free(reply);
	assert_int_equal(call_port(ctrl, port, "{}", 50), -ETIMEDOUT);
	for (i = 0; i < 64; i++)
		close(fills[i]);
	close(hole);
	lw_ctrl_close(ctrl);
}

struct answerer {
	int listen_fd;
	const char *bytes;
	size_t size;
};

/* Takes one request and answers it with given bytes. */
static void *answer_once(void *arg)
{
	struct answerer *answerer = arg;
	char request[64];
	int fd;

	poll(&(struct pollfd){.fd = answerer->listen_fd, .events = POLLIN}, 1, BOUND_MS);
	fd = accept(answerer->listen_fd, NULL, NULL);
	if (fd < 0)
		return NULL;
	if (recv(fd, request, sizeof(request), 0) > 0)
		send(fd, answerer->bytes, answerer->size, MSG_NOSIGNAL);
	close(fd);
	return NULL;
}

static int call_answered_with(struct lw_ctrl *ctrl, const char *bytes, size_t size)
{
	struct answerer answerer = {.bytes = bytes, .size = size};
	pthread_t thread;
	uint16_t port;
	int ret;

	answerer.listen_fd = listener_fd(&port);
	assert_int_equal(pthread_create(&thread, NULL, answer_once, &answerer), 0);
	ret = call_port(ctrl, port, "{}", LONG_MS);
	pthread_join(thread, NULL);
	close(answerer.listen_fd);
	return ret;
}

static void test_call_wrong_answers_are_errors(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);

	(void)state;
	assert_int_equal(call_answered_with(ctrl, "\x04\0\0\0\0\0\0\0\x03{}\n", 12), 0);
	assert_int_equal(call_answered_with(ctrl, "\x04\0\0\0\0\0\0\0\x02{}\n", 12), -EPROTO);
	assert_int_equal(call_answered_with(ctrl, "\x03\0\0\0\0\0\0\0{}\n", 11), -EPROTO);
	assert_int_equal(call_answered_with(ctrl, "\0\0\0\0\0\0\0\0", 8), -EPROTO);
	assert_int_equal(call_answered_with(ctrl, "HTTP/1.1 400 Bad Request\r\n\r\n", 28), -EPROTO);
	assert_int_equal(call_answered_with(ctrl, "\x04\0\0\0\0\0\0\0\x03{", 10), -ECONNRESET);
	assert_int_equal(call_answered_with(ctrl, "", 0), -ECONNRESET);
	assert_int_equal(call(ctrl, "die"), -ECONNRESET);
	lw_ctrl_close(ctrl);
}

struct tally {
	atomic_int done, good, last;
};

static void count_done(void *arg, int result, const char *body, size_t size)
{
	struct tally *tally = arg;

	if (result == 0 && size == 2 && memcmp(body, "{}", 3) == 0)
		atomic_fetch_add(&tally->good, 1);
	atomic_store(&tally->last, result);
	atomic_fetch_add(&tally->done, 1);
}

static void test_call_async_storm_ends_well_and_leaves_no_descriptor(void **state)
{
	enum { ROUNDS = 4, CALLS = 200 };
	struct lw_ctrl *ctrl = open_ctrl(256, LONG_MS);
	struct lw_addrs addrs = addresses(lw_ctrl_port(ctrl));
	struct tally tally = {0};
	int before, i, round;

	(void)state;
	assert_int_equal(call(ctrl, "{}"), 0);
	before = count_fds();
	for (round = 1; round <= ROUNDS; round++) {
		for (i = 0; i < CALLS; i++)
			assert_int_equal(
				lw_ctrl_call_async(ctrl, &addrs, LW_FRAME_PROBE, "{}", 2, LONG_MS, count_done, &tally),
				0);
		EVENTUALLY(atomic_load(&tally.done) == round * CALLS);
	}
	assert_int_equal(atomic_load(&tally.good), ROUNDS * CALLS);
	assert_int_equal(atomic_load(&served), ROUNDS * CALLS + 1);
	EVENTUALLY(count_fds() <= before);
	lw_ctrl_close(ctrl);
}

static void *call_many(void *arg)
{
	struct lw_ctrl *ctrl = arg;
	intptr_t failed = 0;
	int i;

	for (i = 0; i < 50; i++)
		failed += call(ctrl, "{\"x\":1}") != 0;
	return (void *)failed;
}

static void test_call_from_many_threads_each_gets_its_answer(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(256, LONG_MS);
	pthread_t threads[8];
	void *failed;
	int i;

	(void)state;
	for (i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call_many, ctrl), 0);
	for (i = 0; i < 8; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(atomic_load(&served), 400);
	lw_ctrl_close(ctrl);
}

/* The end -------------------------------------------------------------------------------------------------------------
 */

struct caller {
	struct lw_ctrl *ctrl;
	uint16_t port;
	int result;
};

static void *call_into_silence(void *arg)
{
	struct caller *caller = arg;

	caller->result = call_port(caller->ctrl, caller->port, "{}", LONG_MS);
	return NULL;
}

static void test_close_calls_in_flight_end_with_shutdown(void **state)
{
	int before = count_fds(), hole, fds[4], i;
	struct tally tally = {0};
	struct caller callers[4];
	struct lw_ctrl *ctrl;
	struct lw_addrs addrs;
	pthread_t threads[4];
	int64_t begin;
	uint16_t port;

	(void)state;
	ctrl = open_ctrl(16, LONG_MS);
	hole = listener_fd(&port);
	addrs = addresses(port);
	for (i = 0; i < 4; i++) {
		callers[i] = (struct caller){.ctrl = ctrl, .port = port};
		assert_int_equal(pthread_create(&threads[i], NULL, call_into_silence, &callers[i]), 0);
	}
	/* All four requests have come: none of the threads begins after the close. */
	for (i = 0; i < 4; i++) {
		EVENTUALLY((fds[i] = accept(hole, NULL, NULL)) >= 0);
		EVENTUALLY(recv(fds[i], (char[1]){0}, 1, MSG_PEEK | MSG_DONTWAIT) == 1);
	}
	for (i = 0; i < 4; i++)
		assert_int_equal(lw_ctrl_call_async(ctrl, &addrs, LW_FRAME_PROBE, "{}", 2, LONG_MS, count_done, &tally),
				 0);
	begin = now_ms();
	lw_ctrl_close(ctrl);
	assert_in_range(now_ms() - begin, 0, BOUND_MS);
	assert_int_equal(atomic_load(&tally.done), 4);
	assert_int_equal(atomic_load(&tally.last), -ESHUTDOWN);
	for (i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(callers[i].result, -ESHUTDOWN);
		close(fds[i]);
	}
	close(hole);
	assert_int_equal(count_fds(), before);
}

static void test_open_close_many_times_leaves_nothing(void **state)
{
	int before = count_fds(), i;

	(void)state;
	for (i = 0; i < 50; i++) {
		struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
		int fd = dial(lw_ctrl_port(ctrl));

		lw_ctrl_close(ctrl);
		close(fd);
	}
	assert_int_equal(count_fds(), before);
}

static void test_open_full_range_is_refused_without_a_leak(void **state)
{
	struct lw_ctrl_opts opts = {
		.max_frame = MAX_FRAME, .max_clients = 1, .timeout_ms = 1, .serve = echo, .arg = &served};
	struct lw_ctrl *ctrl = NULL;
	uint16_t port;
	int taken = listener_fd(&port), before = count_fds();

	(void)state;
	opts.bind = address(0);
	opts.port_min = port;
	opts.port_max = port;
	assert_int_equal(lw_ctrl_open(&opts, &ctrl), -EADDRINUSE);
	assert_null(ctrl);
	assert_int_equal(count_fds(), before);
	close(taken);
}

/* Jobs and watches ----------------------------------------------------------------------------------------------------
 */

struct numbered_job {
	struct lw_ctrl_job job;
	int number;
};

static atomic_int jobs_run;
static int jobs_in_order; /* written by the control thread alone */
static char job_thread[16];
static sigset_t job_mask;

static void run_numbered(struct lw_ctrl_job *job)
{
	struct numbered_job *numbered = (struct numbered_job *)job;

	if (numbered->number == atomic_load(&jobs_run))
		jobs_in_order++;
	pthread_getname_np(pthread_self(), job_thread, sizeof(job_thread));
	pthread_sigmask(SIG_BLOCK, NULL, &job_mask);
	atomic_fetch_add(&jobs_run, 1);
}

static void test_post_jobs_run_in_order_on_the_control_thread(void **state)
{
	enum { COUNT = 2000 };
	static struct numbered_job jobs[COUNT];
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	int i;

	(void)state;
	atomic_store(&jobs_run, 0);
	jobs_in_order = 0;
	for (i = 0; i < COUNT; i++) {
		jobs[i] = (struct numbered_job){.job.run = run_numbered, .number = i};
		lw_ctrl_post(ctrl, &jobs[i].job);
		if (i % 100 == 0) /* now and then it sleeps */
			EVENTUALLY(atomic_load(&jobs_run) == i + 1);
	}
	lw_ctrl_close(ctrl); /* runs what was posted */
	assert_int_equal(atomic_load(&jobs_run), COUNT);
	assert_int_equal(jobs_in_order, COUNT);
	assert_string_equal(job_thread, "lw-ctrl");
	assert_int_equal(sigismember(&job_mask, SIGTERM), 1);
	assert_int_equal(sigismember(&job_mask, SIGPROF), 1);
}

static void run_counted(struct lw_ctrl_job *job)
{
	(void)job;
	atomic_fetch_add(&jobs_run, 1);
}

struct poster {
	struct lw_ctrl *ctrl;
	struct lw_ctrl_job jobs[500];
};

static void *post_many(void *arg)
{
	struct poster *poster = arg;
	size_t i;

	for (i = 0; i < 500; i++) {
		poster->jobs[i].run = run_counted;
		lw_ctrl_post(poster->ctrl, &poster->jobs[i]);
		if (i % 50 == 0)
			nap();
	}
	return NULL;
}

static void test_post_from_many_threads_loses_no_wake(void **state)
{
	static struct poster posters[4];
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	pthread_t threads[4];
	int i;

	(void)state;
	atomic_store(&jobs_run, 0);
	for (i = 0; i < 4; i++) {
		posters[i].ctrl = ctrl;
		assert_int_equal(pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
	}
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	EVENTUALLY(atomic_load(&jobs_run) == 2000);
	lw_ctrl_close(ctrl);
}

struct watched {
	struct lw_ctrl *ctrl;
	struct lw_ctrl_watch *watch;
	int fd;
	bool pause, end, inside_call;
	atomic_int runs;
};

static void on_ready(void *arg)
{
	struct watched *watched = arg;
	uint64_t count;

	if (watched->pause)
		lw_ctrl_watch_pause(watched->ctrl, watched->watch, 60);
	else if (read(watched->fd, &count, sizeof(count)) < 0)
		return;
	if (watched->inside_call && call(watched->ctrl, "{}") != -EDEADLK)
		return;
	if (watched->end)
		lw_ctrl_unwatch(watched->ctrl, watched->watch);
	atomic_fetch_add(&watched->runs, 1);
}

static void watched_open(struct watched *watched)
{
	watched->ctrl = open_ctrl(16, LONG_MS);
	watched->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	assert_true(watched->fd >= 0);
	assert_int_equal(lw_ctrl_watch(watched->ctrl, watched->fd, on_ready, watched, &watched->watch), 0);
}

static void watched_close(struct watched *watched)
{
	lw_ctrl_close(watched->ctrl);
	close(watched->fd);
}

static void signal_fd(int fd)
{
	const uint64_t one = 1;

	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

static void test_watch_readable_descriptor_runs_until_unwatched(void **state)
{
	struct watched watched = {0};
	int i;

	(void)state;
	watched.inside_call = true;
	watched_open(&watched);
	for (i = 1; i <= 10; i++) {
		signal_fd(watched.fd);
		EVENTUALLY(atomic_load(&watched.runs) == i);
	}
	lw_ctrl_unwatch(watched.ctrl, watched.watch);
	signal_fd(watched.fd);
	assert_int_equal(call(watched.ctrl, "{}"), 0); /* the loop has turned, several times */
	assert_int_equal(atomic_load(&watched.runs), 10);
	watched_close(&watched);
}

static void test_watch_wrong_descriptor_is_refused(void **state)
{
	struct lw_ctrl *ctrl = open_ctrl(16, LONG_MS);
	struct lw_ctrl_watch *watch = NULL;

	(void)state;
	assert_int_equal(lw_ctrl_watch(ctrl, -1, on_ready, NULL, &watch), -EBADF);
	assert_null(watch);
	lw_ctrl_close(ctrl);
}

static void test_watch_pause_comes_back_after_its_time(void **state)
{
	struct watched watched = {.pause = true};
	int64_t begin = now_ms(), took;

	(void)state;
	watched_open(&watched);
	signal_fd(watched.fd); /* stays readable: only the pauses hold it back */
	EVENTUALLY(atomic_load(&watched.runs) >= 4);
	took = now_ms() - begin;
	assert_in_range(took, 3 * 60, BOUND_MS);
	lw_ctrl_unwatch(watched.ctrl, watched.watch);
	watched_close(&watched);
}

static void test_unwatch_inside_ready_ends_it_at_once(void **state)
{
	struct watched watched = {.pause = true, .end = true};

	(void)state;
	watched_open(&watched);
	signal_fd(watched.fd);
	EVENTUALLY(atomic_load(&watched.runs) == 1);
	assert_int_equal(call(watched.ctrl, "{}"), 0);
	assert_int_equal(atomic_load(&watched.runs), 1);
	watched_close(&watched);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_serve_one_byte_at_a_time_gets_the_reply_and_a_half_close),
		cmocka_unit_test(test_serve_glued_legacy_or_half_closed_request_is_answered),
		cmocka_unit_test(test_serve_foreign_bytes_are_closed_without_an_answer),
		cmocka_unit_test(test_serve_silent_clients_delay_nobody),
		cmocka_unit_test(test_serve_silent_client_is_dropped_at_its_deadline),
		cmocka_unit_test(test_serve_more_clients_than_allowed_drops_the_oldest_silent_one),
		cmocka_unit_test(test_serve_client_that_leaves_mid_reply_harms_nobody),
		cmocka_unit_test(test_serve_out_of_descriptors_recovers),
		cmocka_unit_test(test_call_large_bodies_come_back_whole),
		cmocka_unit_test(test_call_refused_port_says_so),
		cmocka_unit_test(test_call_second_address_is_tried_when_the_first_is_refused),
		cmocka_unit_test(test_call_black_hole_ends_in_time_and_delays_nobody),
		cmocka_unit_test(test_call_black_holed_address_leaves_time_for_the_next),
		cmocka_unit_test(test_call_wrong_answers_are_errors),
		cmocka_unit_test(test_call_async_storm_ends_well_and_leaves_no_descriptor),
		cmocka_unit_test(test_call_from_many_threads_each_gets_its_answer),
		cmocka_unit_test(test_close_calls_in_flight_end_with_shutdown),
		cmocka_unit_test(test_open_close_many_times_leaves_nothing),
		cmocka_unit_test(test_open_full_range_is_refused_without_a_leak),
		cmocka_unit_test(test_post_jobs_run_in_order_on_the_control_thread),
		cmocka_unit_test(test_post_from_many_threads_loses_no_wake),
		cmocka_unit_test(test_watch_readable_descriptor_runs_until_unwatched),
		cmocka_unit_test(test_watch_wrong_descriptor_is_refused),
		cmocka_unit_test(test_watch_pause_comes_back_after_its_time),
		cmocka_unit_test(test_unwatch_inside_ready_ends_it_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
