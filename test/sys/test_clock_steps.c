/* SPDX-License-Identifier: Apache-2.0 */
/* The wall clock is set an hour forward and back while requests run and while connections are made to an address that
 * answers nothing. No request, call or stream ends early for it, and what gets no answer still ends within its deadline
 * and a second. The program has the C library's clock functions in its own hands, those of the engine and of the peer's
 * process included; it looks first whether the steps are seen there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/fake.h"
#include "common/peer.h"

#define HOUR 3600
#define LIMIT_MS 4000 /* of each request and call */
#define PAUSE_MS 900
#define STREAM_MS 8000
#define EVERY_MS 400

/* The clock ---------------------------------------------------------------------------------------------------------*/

/* How far the wall clocks of this program and of its peers are off: shared memory, of which each has one. */
static struct clocks {
	atomic_long test_s, peer_s;
} * clocks;
static atomic_long *offset_s; /* its own; NULL: none yet */

/* A descriptor that peers inherit. */
#define CLOCKS_FD "LW_TEST_CLOCKS_FD"

static void set_up_clocks(void)
{
	const char *inherited = getenv(CLOCKS_FD);
	int fd = inherited != NULL ? atoi(inherited) : memfd_create("clocks", 0);
	char text[16];

	if (fd < 0 || (inherited == NULL && (ftruncate(fd, sizeof(*clocks)) != 0 || fcntl(fd, F_SETFD, 0) != 0)))
		abort();
	clocks = mmap(NULL, sizeof(*clocks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (clocks == MAP_FAILED)
		abort();
	offset_s = inherited != NULL ? &clocks->peer_s : &clocks->test_s;
	snprintf(text, sizeof(text), "%d", fd);
	setenv(CLOCKS_FD, text, 1);
}

static bool is_wall(clockid_t clock)
{
	return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's are reserved */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	long error = syscall(SYS_clock_gettime, clock, now);

	if (error == 0 && is_wall(clock) && offset_s != NULL)
		now->tv_sec += atomic_load(offset_s);
	return (int)error;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec exact;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &exact);
	*now = (struct timeval){.tv_sec = exact.tv_sec, .tv_usec = exact.tv_nsec / 1000};
	return 0;
}

time_t time(time_t *out)
{
	struct timespec exact;

	clock_gettime(CLOCK_REALTIME, &exact);
	if (out != NULL)
		*out = exact.tv_sec;
	return exact.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
	return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

static long real_now(void)
{
	struct timespec now;

	syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
	return now.tv_sec;
}

/* Steps of this process's clock, and of a peer's if there is one, in a thread. Now and then the peer stands still for a
 * while, so that there are requests under way that do last. */
static struct {
	pthread_t thread;
	atomic_bool stop;
	pid_t peer;
	uint64_t seed;
	unsigned steps, pauses;
} stepper;

static void *step(void *arg)
{
	unsigned turn = 0;

	(void)arg;
	while (!atomic_load(&stepper.stop)) {
		uint64_t dice = (turn++ + test_random(&stepper.seed) % 2) % 4;

		if (stepper.peer != 0 && dice < 2)
			atomic_store(&clocks->peer_s, dice == 0 ? HOUR : -HOUR);
		if (stepper.peer != 0 && dice == 2)
			kill(stepper.peer, SIGSTOP);
		if (stepper.peer == 0 || dice >= 2) {
			test_sleep_ms(20);
			atomic_store(&clocks->test_s, atomic_load(&clocks->test_s) > 0 ? -HOUR : HOUR);
		}
		if (stepper.peer != 0 && dice == 2) {
			test_sleep_ms(PAUSE_MS);
			kill(stepper.peer, SIGCONT);
			stepper.pauses++;
		}
		stepper.steps++;
		test_sleep_ms(EVERY_MS / 2 + (uint32_t)(test_random(&stepper.seed) % EVERY_MS));
	}
	return NULL;
}

static void begin_steps(pid_t peer)
{
	atomic_store(&stepper.stop, false);
	stepper.peer = peer;
	stepper.steps = stepper.pauses = 0;
	assert_int_equal(pthread_create(&stepper.thread, NULL, step, NULL), 0);
}

static unsigned end_steps(void)
{
	atomic_store(&stepper.stop, true);
	pthread_join(stepper.thread, NULL);
	atomic_store(&clocks->test_s, 0);
	atomic_store(&clocks->peer_s, 0);
	return stepper.steps;
}

static int clock_as_it_is(void **state)
{
	(void)state;
	atomic_store(&clocks->test_s, 0);
	atomic_store(&clocks->peer_s, 0);
	return 0;
}

/* How far the clock is off that an engine stamps its descriptor with. */
static long off_at(const char *name)
{
	static const char ask[] = "\x03\0\0\0\0\0\0\0\x01{}";
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char text[4096] = "", *stamp = NULL;
	struct tm tm = {.tm_isdst = -1};
	size_t have = 0;
	ssize_t got;

	at.sin_port = htons((uint16_t)atoi(strrchr(name, ':') + 1));
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(write(fd, ask, sizeof(ask) - 1), sizeof(ask) - 1);
	while (have < sizeof(text) - 1 && (got = read(fd, text + have, sizeof(text) - 1 - have)) > 0)
		have += (size_t)got;
	close(fd);
	if (have > 9)
		stamp = strstr(text + 9, "\"timestamp\":\"");
	if (stamp == NULL || strptime(stamp + strlen("\"timestamp\":\""), "%Y-%m-%d %H:%M:%S", &tm) == NULL)
		fail_msg("no time in what %s answered", name);
	return (long)mktime(&tm) - real_now();
}

/* An hour, give or take what the look took. */
static bool about(long seconds, long wanted)
{
	return seconds >= wanted - 20 && seconds <= wanted + 20;
}

/* Tests -------------------------------------------------------------------------------------------------------------*/

static void test_steps_are_seen_by_program_engine_and_peer(void **state)
{
	struct lw_engine *engine = test_engine("");
	uint64_t before_ms = test_now_ms();
	struct timespec exact;
	struct timeval coarse;
	struct peer peer;

	(void)state;
	peer_start(&peer, 4096, NULL);
	assert_true(about(off_at(peer.name), 0));
	for (int sign = -1; sign <= 1; sign += 2) {
		atomic_store(&clocks->test_s, sign * HOUR);
		assert_true(about(time(NULL) - real_now(), sign * HOUR));
		gettimeofday(&coarse, NULL);
		assert_true(about(coarse.tv_sec - real_now(), sign * HOUR));
		clock_gettime(CLOCK_REALTIME, &exact);
		assert_true(about(exact.tv_sec - real_now(), sign * HOUR));
		assert_true(about(off_at(lw_engine_name(engine)), sign * HOUR));
		assert_true(about(off_at(peer.name), 0));
		atomic_store(&clocks->peer_s, sign * HOUR);
		assert_true(about(off_at(peer.name), sign * HOUR));
		atomic_store(&clocks->peer_s, 0);
	}
	assert_true(test_now_ms() - before_ms < 60000);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_stream_while_clocks_step_nothing_fails(void **state)
{
	enum { LENGTH = 65536, SIDE = 8 };
	unsigned char *local = test_map(2 * LENGTH * SIDE, NULL);
	static const char *const options[] = {"timeout_ms=4000", "handshake_timeout_ms=4000", NULL};
	struct lw_engine *engine = test_engine("timeout_ms=4000 handshake_timeout_ms=4000 connect_timeout_ms=4000");
	struct lw_note note = {.name = "n", .name_size = 1, .text = "t", .text_size = 1}, *got;
	unsigned long long completed = 0, failed = 1;
	unsigned notes = 0, batches = 0, steps;
	uint64_t begin_ms, longest_ms = 0;
	struct lw_channel *channel;
	lw_segment_t segment;
	struct peer peer;

	(void)state;
	peer_start(&peer, 2 * LENGTH * SIDE, options);
	test_register(engine, local, 2 * LENGTH * SIDE, LW_ACCESS_REMOTE);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	if (lw_segment_open(engine, peer.name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	peer_expect(&peer, "segment ", "open %s", lw_engine_name(engine));
	peer_expect(&peer, "ok", "stream write %s %d %" PRIu64 " %d %d", peer.line + strlen("segment "), LENGTH * SIDE,
		    (uint64_t)(uintptr_t)local + LENGTH * SIDE, LENGTH, SIDE);
	begin_steps(peer.pid);
	for (begin_ms = test_now_ms(); test_now_ms() - begin_ms < STREAM_MS;) {
		struct lw_request list[SIDE];
		struct lw_batch_status status;
		uint64_t sent_ms = test_now_ms(), took_ms;
		lw_segment_t again;
		lw_batch_t batch;

		for (uint64_t i = 0; i < SIDE; i++)
			list[i] = (struct lw_request){.local = local + i * LENGTH,
						      .segment = segment,
						      .offset = peer.addr + i * LENGTH,
						      .length = LENGTH,
						      .op = (uint8_t)(i % 2)};
		assert_int_equal(lw_batch_alloc(channel, SIDE, 0, NULL, &batch), 0);
		assert_int_equal(lw_submit(channel, batch, list, SIDE), 0);
		if (lw_batch_wait(engine, batch, LIMIT_MS + 1000, &status) != 0)
			fail_msg("%s", lw_last_error());
		assert_int_equal(status.state, LW_COMPLETED);
		assert_int_equal(lw_batch_free(engine, batch), 0);
		took_ms = test_now_ms() - sent_ms;
		longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
		if (++batches % 16 != 0)
			continue;
		/* The calls that wait. */
		if (lw_segment_open(engine, peer.name, 0, &again) != 0 || lw_segment_probe(engine, again, 0) != 0 ||
		    lw_notify(engine, again, &note, 0) != 0 || lw_segment_close(engine, again) != 0)
			fail_msg("%s", lw_last_error());
		notes++;
		if (notes % 100 == 0)
			peer_expect(&peer, "state ", "state"); /* takes the notes */
	}
	steps = end_steps();
	assert_int_equal(sscanf(peer_ask(&peer, "stop"), "streamed %llu %llu", &completed, &failed), 2);
	print_message("%u batches here, %llu requests there, %u notes, %u steps, %u pauses; the longest took %u ms\n",
		      batches, completed, notes, steps, stepper.pauses, (unsigned)longest_ms);
	assert_int_equal(failed, 0);
	assert_true(completed > 0 && batches > 16);
	assert_in_range(steps, STREAM_MS / (EVERY_MS + PAUSE_MS) / 2, UINT32_MAX);
	assert_true(stepper.pauses > 0 && longest_ms > PAUSE_MS / 2);
	assert_int_equal(lw_note_poll(engine, &got), 0);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, 2 * LENGTH * SIDE);
}

/* Fills the queue of a listener that nobody accepts from: it answers no further connection, as if its host were gone.
 */
struct hole {
	int listener, filler[8];
};

static void dig(struct hole *hole, int listener)
{
	struct sockaddr_in at = {0};
	socklen_t length = sizeof(at);

	hole->listener = listener;
	assert_int_equal(listen(listener, 0), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
	for (size_t i = 0; i < sizeof(hole->filler) / sizeof(hole->filler[0]); i++) {
		hole->filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (connect(hole->filler[i], (struct sockaddr *)&at, sizeof(at)) != 0)
			assert_int_equal(errno, EINPROGRESS);
	}
}

static void fill_in(struct hole *hole)
{
	for (size_t i = 0; i < sizeof(hole->filler) / sizeof(hole->filler[0]); i++)
		close(hole->filler[i]);
}

/* What began at begin_ms ended now, not before its limit and at most a second later. */
static void ended_in_time(const char *what, uint64_t begin_ms, uint64_t limit_ms)
{
	uint64_t took_ms = test_now_ms() - begin_ms;

	print_message("%s: %u ms of %u\n", what, (unsigned)took_ms, (unsigned)limit_ms);
	if (took_ms + 20 < limit_ms || took_ms > limit_ms + 1000)
		fail_msg("%s ended after %u ms, its limit is %u", what, (unsigned)took_ms, (unsigned)limit_ms);
}

static void request_into(struct lw_engine *engine, struct lw_request request, enum lw_reason reason, uint64_t limit_ms)
{
	uint64_t begin_ms = test_now_ms();
	struct lw_channel *channel;
	struct lw_task_status status;

	assert_int_equal(lw_channel_self(engine, &channel), 0);
	status = test_transfer(engine, channel, request);
	ended_in_time("a request", begin_ms, limit_ms);
	if (status.reason != reason)
		fail_msg("reason %u, not %d", status.reason, (int)reason);
}

static void test_request_to_black_hole_while_clock_steps_ends_in_time(void **state)
{
	unsigned char *local = test_map(4096, NULL);
	struct lw_request request = {.local = local, .offset = TEST_FAKE_ADDR, .length = 4096, .op = LW_WRITE};

	(void)state;
	/* The deadline is first, then the limit of the connection. */
	for (int first = 0; first < 2; first++) {
		struct lw_engine *engine = test_engine(first == 0 ? "connect_timeout_ms=30000 timeout_ms=1500"
								  : "connect_timeout_ms=1500 timeout_ms=30000");
		struct test_fake *fake = test_fake_open();
		struct hole hole;

		dig(&hole, test_fake_listener(fake));
		test_register(engine, local, 4096, LW_ACCESS_LOCAL);
		if (lw_segment_open(engine, test_fake_name(fake), 0, &request.segment) != 0)
			fail_msg("%s", lw_last_error());
		begin_steps(0);
		for (int i = 0; i < 2; i++)
			request_into(engine, request, first == 0 ? LW_REASON_TIMEOUT : LW_REASON_UNREACHABLE, 1500);
		assert_true(end_steps() > 2);
		fill_in(&hole);
		assert_int_equal(lw_engine_close(engine), 0);
		test_fake_close(fake);
	}
	test_unmap(local, 4096);
}

/* Steps come before and during the calls: a limit in wall time would be hours off. */
static void test_calls_to_black_hole_while_clock_steps_end_in_time(void **state)
{
	struct lw_note note = {.name = "n", .name_size = 1, .text = "t", .text_size = 1};
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct lw_engine *engine = test_engine("connect_timeout_ms=30000 timeout_ms=30000 handshake_timeout_ms=1200");
	socklen_t length = sizeof(at);
	unsigned char *local = test_map(4096, NULL);
	struct lw_channel *channel;
	struct test_fake *fake = test_fake_open();
	lw_segment_t segment;
	struct peer peer;
	struct hole hole;
	lw_batch_t batch;
	char name[32];
	uint64_t begin_ms;

	(void)state;
	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	dig(&hole, listener);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
	snprintf(name, sizeof(name), "127.0.0.1:%u", ntohs(at.sin_port));
	/* A peer that stands still: its kernel takes the connection, nobody answers. */
	peer_start(&peer, 4096, NULL);
	if (lw_segment_open(engine, peer.name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	kill(peer.pid, SIGSTOP);
	begin_steps(0);
	begin_ms = test_now_ms();
	assert_int_equal(lw_segment_open(engine, name, 0, &segment), -ETIMEDOUT);
	ended_in_time("an open", begin_ms, 1200);
	begin_ms = test_now_ms();
	assert_int_equal(lw_segment_open(engine, peer.name, 700, &segment), -ETIMEDOUT);
	ended_in_time("an open of a peer that stands still", begin_ms, 700);
	begin_ms = test_now_ms();
	assert_int_equal(lw_segment_probe(engine, segment, 700), -ETIMEDOUT);
	ended_in_time("a probe", begin_ms, 700);
	begin_ms = test_now_ms();
	assert_int_equal(lw_notify(engine, segment, &note, 700), -ETIMEDOUT);
	ended_in_time("a note", begin_ms, 700);
	/* Waiting for what doesn't end. */
	test_register(engine, local, 4096, LW_ACCESS_LOCAL);
	if (lw_segment_open(engine, test_fake_name(fake), 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	assert_int_equal(lw_batch_alloc(channel, 1, LW_BATCH_EVENT, NULL, &batch), 0);
	test_submit(
		channel, batch,
		&(struct lw_request){
			.local = local, .segment = segment, .offset = TEST_FAKE_ADDR, .length = 4096, .op = LW_WRITE},
		1);
	begin_ms = test_now_ms();
	assert_int_equal(lw_batch_wait(engine, batch, 700, NULL), -ETIMEDOUT);
	ended_in_time("a wait for a batch", begin_ms, 700);
	begin_ms = test_now_ms();
	assert_int_equal(lw_channel_wait(channel, &(struct lw_completion){0}, 1, 700), 0);
	ended_in_time("a wait for a completion", begin_ms, 700);
	assert_true(end_steps() > 4);
	kill(peer.pid, SIGCONT);
	peer_end(&peer);
	fill_in(&hole);
	close(listener);
	assert_int_equal(lw_engine_close(engine), 0);
	test_fake_close(fake);
	test_unmap(local, 4096);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_steps_are_seen_by_program_engine_and_peer, clock_as_it_is),
		cmocka_unit_test(test_stream_while_clocks_step_nothing_fails),
		cmocka_unit_test(test_request_to_black_hole_while_clock_steps_ends_in_time),
		cmocka_unit_test(test_calls_to_black_hole_while_clock_steps_end_in_time),
	};
	int status;

	set_up_clocks();
	if (peer_main(argc, argv, &status))
		return status;
	stepper.seed = test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
