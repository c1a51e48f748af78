/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to addresses that the peer does not offer, between valid ones, from several threads over one connection.
 * Each bad one fails and says that the range is not registered, whether this side knows it by itself (a range that was
 * never offered) or only the peer does (a buffer that it took back after we saw it). Each good one is exact, at both
 * ends; no byte of what was taken back changes; the connections that refusals end don't add up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"

#define MIB ((uint64_t)1 << 20)
#define THREADS 4
#define BAD 4096
#define ROUNDS (TEST_TSAN ? 200u : 1000u)
#define LEAST 50u
#define LIMIT_MS 30000 /* for ROUNDS */
/* The peer's memory: a MiB for each thread, a hole, a MiB that is taken back. */
#define HOLE (THREADS * MIB)
#define GONE (HOLE + MIB)
#define OFFER "offer=0:4194304:3,5242880:1048576:3"

struct mover {
	pthread_t thread;
	struct lw_engine *engine;
	const struct peer *peer;
	lw_segment_t segment;
	unsigned char *source, *back, *scratch;
	uint64_t seed, remote;
	unsigned wanted; /* rounds, fewer where they take longer than this */
	uint64_t until_ms;
	bool alone;      /* one request at a time, else the bad one ahead of the good one */
	unsigned rounds; /* done */
	atomic_uint *busy;
	char wrong[400]; /* the first thing that was */
};

static struct lw_task_status outcome(struct mover *mover, lw_batch_t batch, uint32_t task)
{
	struct lw_task_status status = {.state = LW_PENDING};

	lw_task_status(mover->engine, batch, task, &status);
	return status;
}

/* The request must have failed for the reason, and the sentence must name it. */
static bool refused(struct mover *mover, lw_batch_t batch, uint32_t task, enum lw_reason reason)
{
	struct lw_task_status status = outcome(mover, batch, task);
	char text[300] = "";

	lw_task_reason(mover->engine, batch, task, text, sizeof(text));
	if (status.state == LW_FAILED && status.reason == reason && status.error == -EACCES && status.bytes == 0 &&
	    strstr(text, "registered") != NULL && strstr(text, mover->peer->name) != NULL)
		return true;
	snprintf(mover->wrong, sizeof(mover->wrong), "a bad one: state %u, reason %u, \"%s\"", status.state,
		 status.reason, text);
	return false;
}

static bool completed(struct mover *mover, lw_batch_t batch, uint32_t task, uint64_t length)
{
	struct lw_task_status status = outcome(mover, batch, task);

	if (status.state == LW_COMPLETED && status.bytes == length)
		return true;
	snprintf(mover->wrong, sizeof(mover->wrong), "a good one: state %u, reason %u", status.state, status.reason);
	return false;
}

/* A bad request, then a good one. */
static bool pair_of(struct mover *mover, struct lw_channel *channel, enum lw_op op, void *local, bool taken_back)
{
	enum lw_reason reason = taken_back ? LW_REASON_REFUSED : LW_REASON_REMOTE_RANGE;
	uint64_t at = (taken_back ? GONE : HOLE) + test_random(&mover->seed) % (MIB - BAD);
	struct lw_request both[] = {
		{.local = mover->scratch, .segment = mover->segment, .length = BAD, .op = (uint8_t)op},
		{.local = local, .segment = mover->segment, .offset = mover->remote, .length = MIB, .op = (uint8_t)op}};
	bool well = true;
	lw_batch_t batch;

	both[0].offset = mover->peer->addr + at;
	if (lw_batch_alloc(channel, 2, 0, NULL, &batch) != 0) {
		snprintf(mover->wrong, sizeof(mover->wrong), "no batch: %s", lw_last_error());
		return false;
	}
	for (uint32_t i = 0; i < 2 && well; i += mover->alone ? 1 : 2) {
		if (lw_submit(channel, batch, &both[i], mover->alone ? 1 : 2) != 0 ||
		    lw_batch_wait(mover->engine, batch, 20000, NULL) != 0) {
			snprintf(mover->wrong, sizeof(mover->wrong), "not done: %s", lw_last_error());
			well = false;
		}
	}
	well = well && refused(mover, batch, 0, reason) && completed(mover, batch, 1, MIB);
	if (lw_batch_free(mover->engine, batch) != 0 && well) {
		snprintf(mover->wrong, sizeof(mover->wrong), "not freed: %s", lw_last_error());
		well = false;
	}
	return well;
}

static void move(struct mover *mover)
{
	struct lw_channel *channel;

	if (lw_channel_self(mover->engine, &channel) != 0) {
		snprintf(mover->wrong, sizeof(mover->wrong), "no channel");
		return;
	}
	for (unsigned i = 0; i < mover->wanted && (i < LEAST || test_now_ms() < mover->until_ms); i++) {
		test_fill(mover->source, MIB, test_random(&mover->seed));
		memset(mover->back, 0, MIB);
		if (!pair_of(mover, channel, LW_WRITE, mover->source, i % 2 == 0) ||
		    !pair_of(mover, channel, LW_READ, mover->back, i % 4 < 2))
			return;
		if (memcmp(mover->source, mover->back, MIB) != 0) {
			snprintf(mover->wrong, sizeof(mover->wrong), "wrong bytes came back");
			return;
		}
		mover->rounds++;
	}
}

static uint32_t peer_sum(struct peer *peer, uint64_t offset, uint64_t length)
{
	return (uint32_t)strtoul(peer_expect(peer, "sum ", "sum %" PRIu64 " %" PRIu64, offset, length) + strlen("sum "),
				 NULL, 16);
}

struct use {
	int fds, threads, lanes;
};

static struct use peer_use(struct peer *peer)
{
	struct use use;

	if (sscanf(peer_ask(peer, "state"), "state %d %d %*u %*u %d", &use.fds, &use.threads, &use.lanes) != 3)
		fail_msg("%s", peer->line);
	return use;
}

static int worse(int a, int b)
{
	return a > b ? a : b;
}

static void *run(void *arg)
{
	struct mover *mover = arg;

	move(mover);
	atomic_fetch_sub(mover->busy, 1);
	return NULL;
}

static void alternate(unsigned rounds, bool alone, int lanes)
{
	static const char *const options[] = {OFFER, NULL};
	unsigned char *local = test_map(THREADS * 2 * MIB + THREADS * BAD, NULL);
	uint64_t seed = test_seed(), begin_ms = test_now_ms();
	struct use before, most = {0}, here_before, here = {0};
	struct mover mover[THREADS] = {0};
	atomic_uint busy = THREADS;
	struct lw_engine *engine;
	char settings[32];
	lw_segment_t segment;
	struct peer peer;
	uint32_t sum;

	snprintf(settings, sizeof(settings), "tcp_lanes=%d refresh=off", lanes);
	engine = test_engine(settings);
	peer_start(&peer, GONE + MIB, options);
	test_register(engine, local, THREADS * 2 * MIB + THREADS * BAD, LW_ACCESS_LOCAL);
	peer_expect(&peer, "ok", "fill %" PRIu64 " %" PRIu64 " 5", HOLE, 2 * MIB);
	sum = peer_sum(&peer, HOLE, 2 * MIB);
	if (lw_segment_open(engine, peer.name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	peer_expect(&peer, "ok", "withdraw %" PRIu64, GONE);
	before = peer_use(&peer);
	here_before = (struct use){.fds = test_fds(), .lanes = lw_stats_lanes(engine, NULL, 0)};
	for (int i = 0; i < THREADS; i++) {
		mover[i].engine = engine;
		mover[i].peer = &peer;
		mover[i].segment = segment;
		mover[i].source = local + (uint64_t)i * 2 * MIB;
		mover[i].back = mover[i].source + MIB;
		mover[i].scratch = local + THREADS * 2 * MIB + (uint64_t)i * BAD;
		mover[i].seed = test_random(&seed);
		mover[i].remote = peer.addr + (uint64_t)i * MIB;
		mover[i].wanted = rounds;
		mover[i].until_ms = begin_ms + (uint64_t)rounds * LIMIT_MS / ROUNDS;
		mover[i].alone = alone;
		mover[i].busy = &busy;
		assert_int_equal(pthread_create(&mover[i].thread, NULL, run, &mover[i]), 0);
	}
	while (atomic_load(&busy) > 0) {
		struct use now = peer_use(&peer);

		most.lanes = worse(most.lanes, now.lanes);
		most.fds = worse(most.fds, now.fds);
		here.fds = worse(here.fds, test_fds());
		here.lanes = worse(here.lanes, lw_stats_lanes(engine, NULL, 0));
		test_sleep_ms(20);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(mover[i].thread, NULL);
	for (int i = 0; i < THREADS; i++)
		if (mover[i].wrong[0] != '\0')
			fail_msg("thread %d, round %u: %s", i, mover[i].rounds, mover[i].wrong);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(peer_sum(&peer, (uint64_t)i * MIB, MIB), test_crc(mover[i].source, MIB));
	assert_int_equal(peer_sum(&peer, HOLE, 2 * MIB), sum);
	print_message("%u rounds of each of %d threads in %u ms; at most %d lanes here and %d there, %d and %d "
		      "descriptors more\n",
		      mover[0].rounds, THREADS, (unsigned)(test_now_ms() - begin_ms), here.lanes, most.lanes,
		      here.fds - here_before.fds, most.fds - before.fds);
	/* Ours, and for each at the peer one that is being closed yet. */
	assert_in_range(here.lanes, 1, here_before.lanes + lanes);
	assert_in_range(most.lanes, 1, before.lanes + 4 * lanes);
	assert_true(here.fds <= here_before.fds + 4 * lanes + 2);
	assert_true(most.fds <= before.fds + 4 * lanes + 2);
	/* And the pipes that WRITEs of this size go through. */
	TEST_EVENTUALLY(test_fds() <= here_before.fds + 3 * lanes);
	TEST_EVENTUALLY(peer_use(&peer).fds <= before.fds + lanes);
	assert_int_equal(lw_segment_close(engine, segment), 0);
	TEST_EVENTUALLY(test_fds() == here_before.fds);
	TEST_EVENTUALLY(peer_use(&peer).fds <= before.fds); /* a handshake may have been under way then */
	assert_int_equal(peer_use(&peer).lanes, before.lanes);
	assert_int_equal(peer_use(&peer).threads, before.threads);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, THREADS * 2 * MIB + THREADS * BAD);
}

static void test_bad_address_before_each_valid_request_fails_alone(void **state)
{
	(void)state;
	alternate(ROUNDS, true, 1);
}

static void test_bad_address_ahead_of_a_valid_request_fails_alone(void **state)
{
	(void)state;
	alternate(ROUNDS / 4, false, 1);
}

static void test_bad_address_over_two_lanes_fails_alone(void **state)
{
	(void)state;
	alternate(ROUNDS / 4, false, 2);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_address_before_each_valid_request_fails_alone),
		cmocka_unit_test(test_bad_address_ahead_of_a_valid_request_fails_alone),
		cmocka_unit_test(test_bad_address_over_two_lanes_fails_alone),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
