/* SPDX-License-Identifier: Apache-2.0 */
/* One engine, one worker, three healthy peers, one that stands still, one whose connections are never made. A quarter
 * of the load goes to the sick ones: what goes to the healthy ones is as quick as without them, and nothing of it
 * fails; what goes to the sick ones ends within its deadline and a second. An engine that is closed meanwhile does not
 * wait for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/fake.h"
#include "common/peer.h"

enum {
	HEALTHY = 3,
	SICK = 2,
	PIECE = 4096,
	WINDOW_MS = 1000,
	WINDOWS = 5, /* of each kind */
	SICK_MS = 400,
	BOUND_MS = SICK_MS + 1000,
	SICK_LIVE = 64, /* requests under way to the sick ones */
	SAMPLES = 100000,
	BACKLOG = 200, /* more than the listener takes */
};

/* A request to a sick peer. */
struct sick {
	lw_batch_t batch;
	uint64_t begin_ms;
};

static struct {
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *local;
	lw_segment_t healthy[HEALTHY], sick[SICK];
	uint64_t healthy_at[HEALTHY], sick_at[SICK];
	struct sick live[SICK_LIVE];
	uint32_t ended, longest_ms;
} rig;

static lw_segment_t open_name(const char *name)
{
	lw_segment_t segment = 0;

	if (lw_segment_open(rig.engine, name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	return segment;
}

/* Fills the queue of a listener that nobody serves, so that the next connections get no answer at all. */
static int fill_backlog(int listener, int *fds)
{
	struct sockaddr_in at;
	socklen_t size = sizeof(at);
	int count = 0;

	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
	while (count < BACKLOG) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		struct pollfd wait = {.fd = fd, .events = POLLOUT};

		assert_true(fd >= 0);
		fds[count++] = fd;
		if (connect(fd, (struct sockaddr *)&at, size) != 0)
			assert_int_equal(errno, EINPROGRESS);
		if (poll(&wait, 1, 200) == 0)
			return count;
	}
	fail_msg("the listener takes more than %d connections", BACKLOG);
	return 0;
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static lw_batch_t begin_request(lw_segment_t segment, uint64_t at, enum lw_op op)
{
	struct lw_request request = {.local = rig.local,
				     .segment = segment,
				     .offset = at,
				     .length = PIECE,
				     .timeout_ms = SICK_MS,
				     .op = (uint8_t)op};
	lw_batch_t batch;

	assert_int_equal(lw_batch_alloc(rig.channel, 1, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, &request, 1);
	return batch;
}

/* Takes what ended of the requests to the sick ones. The number still under way. */
static uint32_t tend_sick(void)
{
	uint32_t live = 0;

	for (struct sick *sick = rig.live; sick < rig.live + SICK_LIVE; sick++) {
		struct lw_batch_status status;
		uint32_t took_ms;

		if (sick->batch == 0)
			continue;
		took_ms = (uint32_t)(test_now_ms() - sick->begin_ms);
		assert_int_equal(lw_batch_status(rig.engine, sick->batch, &status), 0);
		if (status.state == LW_PENDING) {
			if (took_ms > BOUND_MS)
				fail_msg("a request to a sick peer has not ended after %u ms", took_ms);
			live++;
			continue;
		}
		assert_int_equal(status.failed, 1);
		assert_int_equal(lw_batch_free(rig.engine, sick->batch), 0);
		sick->batch = 0;
		rig.ended++;
		rig.longest_ms = took_ms > rig.longest_ms ? took_ms : rig.longest_ms;
	}
	return live;
}

static void ask_sick(uint64_t *seed)
{
	uint64_t which = test_random(seed) % SICK;

	for (struct sick *sick = rig.live; sick < rig.live + SICK_LIVE; sick++) {
		if (sick->batch != 0)
			continue;
		sick->begin_ms = test_now_ms();
		sick->batch = begin_request(rig.sick[which], rig.sick_at[which], (enum lw_op)(test_random(seed) % 2));
		return;
	}
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Requests to the healthy ones for a while, one at a time, with or without the others beside; their 99th percentile. */
static uint32_t window_p99_us(bool with_sick, uint64_t *seed)
{
	static uint32_t samples[SAMPLES];
	uint64_t until_ms = test_now_ms() + WINDOW_MS;
	uint32_t count = 0;

	for (; test_now_ms() < until_ms && count < SAMPLES; count++) {
		uint64_t which = test_random(seed) % HEALTHY, begin_us = now_us();
		lw_batch_t batch =
			begin_request(rig.healthy[which], rig.healthy_at[which], (enum lw_op)(test_random(seed) % 2));
		struct lw_batch_status status = test_wait(rig.engine, batch);

		samples[count] = (uint32_t)(now_us() - begin_us);
		if (status.state != LW_COMPLETED)
			fail_msg("a request to a healthy peer failed");
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
		if (with_sick && count % 3 == 0)
			ask_sick(seed);
		if (with_sick && count % 64 == 0)
			tend_sick();
	}
	TEST_EVENTUALLY(tend_sick() == 0);
	assert_true(count > 100);
	qsort(samples, count, sizeof(samples[0]), by_size);
	return samples[count * 99 / 100];
}

static void test_sick_peers_do_not_slow_the_healthy_ones(void **state)
{
	uint32_t without_us = UINT32_MAX, with_us = UINT32_MAX;
	struct peer healthy[HEALTHY], frozen;
	uint64_t seed = test_seed();
	int fds[BACKLOG], count;
	struct test_fake *deaf;

	(void)state;
	rig.engine = test_engine("connect_timeout_ms=300 refresh=off");
	rig.local = test_map(PIECE, NULL);
	test_register(rig.engine, rig.local, PIECE, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	for (int i = 0; i < HEALTHY; i++) {
		peer_start(&healthy[i], PIECE, NULL);
		rig.healthy[i] = open_name(healthy[i].name);
		rig.healthy_at[i] = healthy[i].addr;
	}
	peer_start(&frozen, PIECE, NULL);
	rig.sick[0] = open_name(frozen.name);
	rig.sick_at[0] = frozen.addr;
	deaf = test_fake_open();
	rig.sick[1] = open_name(test_fake_name(deaf));
	rig.sick_at[1] = TEST_FAKE_ADDR;
	count = fill_backlog(test_fake_listener(deaf), fds);
	peer_freeze(&frozen);
	for (int i = 0; i < WINDOWS; i++) {
		uint32_t us = window_p99_us(false, &seed);

		without_us = us < without_us ? us : without_us;
		us = window_p99_us(true, &seed);
		with_us = us < with_us ? us : with_us;
	}
	print_message("the slowest of 100 takes %u us without sick peers, %u us with them; %u requests to these, the "
		      "longest %u ms\n",
		      without_us, with_us, rig.ended, rig.longest_ms);
	assert_true(rig.ended > SICK_LIVE);
	/* The quietest window of each kind. */
	assert_true(with_us <= without_us * (TEST_ASAN || TEST_TSAN ? 4 : 3) / 2 + 300);
	kill(frozen.pid, SIGCONT);
	while (count > 0)
		close(fds[--count]);
	test_fake_close(deaf);
	peer_end(&frozen);
	for (int i = 0; i < HEALTHY; i++)
		peer_end(&healthy[i]);
	assert_int_equal(lw_engine_close(rig.engine), 0);
	test_unmap(rig.local, PIECE);
}

/* A thread in a call that waits for a sick peer. */
struct caller {
	pthread_t thread;
	int kind;
	const char *name;
	int error;
};

static void *call_sick(void *arg)
{
	static const struct lw_note note = {.name = "n", .name_size = 1};
	struct caller *caller = arg;
	lw_segment_t segment;

	switch (caller->kind) {
	case 0:
		caller->error = lw_notify(rig.engine, rig.sick[0], &note, 60000);
		break;
	case 1:
		caller->error = lw_segment_probe(rig.engine, rig.sick[0], 60000);
		break;
	case 2:
		caller->error = lw_segment_open(rig.engine, caller->name, 60000, &segment);
		break;
	default:
		caller->error = lw_notify_name(rig.engine, caller->name, &note, 60000);
		break;
	}
	return NULL;
}

static void test_close_beside_requests_and_calls_to_sick_peers_is_quick(void **state)
{
	enum { CALLERS = 16, REQUESTS = 500, CLOSE_MS = 5000 };
	struct caller callers[CALLERS];
	struct peer healthy, frozen;
	int fds[BACKLOG], count;
	struct test_fake *deaf;
	uint64_t begin_ms;
	int fds_before;

	(void)state;
	peer_start(&healthy, PIECE, NULL);
	peer_start(&frozen, PIECE, NULL);
	deaf = test_fake_open();
	fds_before = test_fds();
	rig.engine = test_engine("refresh=off");
	rig.local = test_map(PIECE, NULL);
	test_register(rig.engine, rig.local, PIECE, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	rig.healthy[0] = open_name(healthy.name);
	rig.sick[0] = open_name(frozen.name);
	rig.sick[1] = open_name(test_fake_name(deaf));
	peer_expect(&healthy, "segment ", "open %s", lw_engine_name(rig.engine));
	assert_int_equal(begin_request(rig.healthy[0], healthy.addr, LW_WRITE) == 0, 0);
	count = fill_backlog(test_fake_listener(deaf), fds);
	peer_freeze(&frozen);
	for (int i = 0; i < CALLERS; i++) {
		callers[i] = (struct caller){.kind = i % 4, .name = frozen.name};
		assert_int_equal(pthread_create(&callers[i].thread, NULL, call_sick, &callers[i]), 0);
	}
	for (int s = 0; s < SICK; s++) {
		struct lw_request list[REQUESTS];
		lw_batch_t batch;

		for (int i = 0; i < REQUESTS; i++)
			list[i] = (struct lw_request){.local = rig.local,
						      .segment = rig.sick[s],
						      .offset = s == 0 ? frozen.addr : TEST_FAKE_ADDR,
						      .length = PIECE,
						      .op = (uint8_t)(i % 2)};
		assert_int_equal(lw_batch_alloc(rig.channel, REQUESTS, 0, NULL, &batch), 0);
		test_submit(rig.channel, batch, list, REQUESTS);
	}
	test_sleep_ms(200);
	begin_ms = test_now_ms();
	assert_int_equal(lw_engine_close(rig.engine), 0);
	print_message("closed after %u ms\n", (unsigned)(test_now_ms() - begin_ms));
	assert_in_range(test_now_ms() - begin_ms, 0, CLOSE_MS);
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(callers[i].thread, NULL);
		if (callers[i].error != -ESHUTDOWN)
			fail_msg("call %d: %d", callers[i].kind, callers[i].error);
	}
	assert_in_range(test_now_ms() - begin_ms, 0, CLOSE_MS);
	/* Who knew it learns at once that it is gone. */
	begin_ms = test_now_ms();
	peer_expect(&healthy, "error ", "probe %s", healthy.line + strlen("segment "));
	assert_in_range(test_now_ms() - begin_ms, 0, 1000);
	while (count > 0)
		close(fds[--count]);
	TEST_EVENTUALLY(test_fds() <= fds_before);
	test_fake_close(deaf);
	kill(frozen.pid, SIGCONT);
	peer_end(&frozen);
	peer_end(&healthy);
	test_unmap(rig.local, PIECE);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sick_peers_do_not_slow_the_healthy_ones),
		cmocka_unit_test(test_close_beside_requests_and_calls_to_sick_peers_is_quick),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
