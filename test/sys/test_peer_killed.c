/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that are killed or frozen in the middle: every request ends within its deadline and a second, with a sentence
 * that names the peer; this process keeps neither descriptors, threads, batches nor memory; a healthy peer's stream
 * goes on unbroken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"

#define MIB ((uint64_t)1 << 20)
#define ROUNDS 10
#define MANY_ROUNDS 50
#define LEAST_ROUNDS 6 /* where they take longer than this */
#define LIMIT_MS 20000
#define LOAD 96 /* requests under way, of 1 MiB */
#define TIMEOUT_MS 2000
#define SLACK_MS (TEST_TSAN ? 3000 : 1000)
#define BOUND_MS (TIMEOUT_MS + SLACK_MS)

static uint64_t seed;

/* A stream of this process to a peer that stays well. */
static struct {
	struct lw_engine *engine;
	struct lw_request request;
	pthread_t thread;
	atomic_bool stop;
	atomic_uint completed, failed;
} healthy;

static void *stream(void *arg)
{
	struct lw_channel *channel = NULL;

	(void)arg;
	if (lw_channel_self(healthy.engine, &channel) != 0)
		return NULL;
	while (!atomic_load(&healthy.stop)) {
		struct lw_batch_status status = {.state = LW_PENDING};
		lw_batch_t batch;

		if (lw_batch_alloc(channel, 1, 0, NULL, &batch) != 0)
			return NULL;
		lw_submit(channel, batch, &healthy.request, 1);
		lw_batch_wait(healthy.engine, batch, 10000, &status);
		atomic_fetch_add(status.state == LW_COMPLETED ? &healthy.completed : &healthy.failed, 1);
		lw_batch_free(healthy.engine, batch);
	}
	return NULL;
}

static void begin_stream(struct lw_engine *engine, struct peer *peer, lw_segment_t segment, void *local)
{
	healthy.engine = engine;
	healthy.request = (struct lw_request){
		.local = local, .segment = segment, .offset = peer->addr, .length = 65536, .op = LW_WRITE};
	atomic_store(&healthy.stop, false);
	atomic_store(&healthy.completed, 0);
	atomic_store(&healthy.failed, 0);
	assert_int_equal(pthread_create(&healthy.thread, NULL, stream, NULL), 0);
	TEST_EVENTUALLY(atomic_load(&healthy.completed) > 0);
}

/* The stream gets on from here, and nothing of it has failed so far. */
static void check_stream(void)
{
	unsigned before = atomic_load(&healthy.completed);

	TEST_EVENTUALLY(atomic_load(&healthy.completed) > before + 3);
	assert_int_equal(atomic_load(&healthy.failed), 0);
}

static void end_stream(void)
{
	check_stream();
	atomic_store(&healthy.stop, true);
	pthread_join(healthy.thread, NULL);
	assert_int_equal(atomic_load(&healthy.failed), 0);
}

static lw_segment_t open_peer(struct lw_engine *engine, const struct peer *peer)
{
	lw_segment_t segment = 0;

	if (lw_segment_open(engine, peer->name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	return segment;
}

/* Puts LOAD requests under way, READ and WRITE in turn. */
static lw_batch_t load(struct lw_channel *channel, lw_segment_t segment, unsigned char *local, const struct peer *peer,
		       uint32_t timeout_ms)
{
	struct lw_request requests[LOAD];
	lw_batch_t batch;

	for (size_t i = 0; i < LOAD; i++)
		requests[i] = (struct lw_request){.local = local + i % 16 * MIB,
						  .segment = segment,
						  .offset = peer->addr + i % 16 * MIB,
						  .length = MIB,
						  .timeout_ms = timeout_ms,
						  .op = i % 2 == 0 ? LW_WRITE : LW_READ};
	assert_int_equal(lw_batch_alloc(channel, LOAD, 0, NULL, &batch), 0);
	test_submit(channel, batch, requests, LOAD);
	return batch;
}

/* Each task of the batch ended; those that did not complete name the peer and a reason. The number of those. */
static uint32_t check_outcomes(struct lw_engine *engine, lw_batch_t batch, const struct peer *peer)
{
	uint32_t bad = 0;
	char text[400];

	for (uint32_t i = 0; i < LOAD; i++) {
		struct lw_task_status status;

		assert_int_equal(lw_task_status(engine, batch, i, &status), 0);
		assert_int_not_equal(status.state, LW_PENDING);
		if (status.state == LW_COMPLETED)
			continue;
		bad++;
		assert_true(status.error < 0);
		assert_true(lw_task_reason(engine, batch, i, text, sizeof(text)) > 0);
		if (strstr(text, peer->name) == NULL || strstr(text, lw_reason_string((int)status.reason)) == NULL)
			fail_msg("\"%s\" does not name %s, or not the cause", text, peer->name);
	}
	assert_int_equal(lw_batch_free(engine, batch), 0);
	return bad;
}

static void test_sigkill_of_target_under_load_every_request_ends(void **state)
{
	unsigned char *local = test_map(17 * MIB, NULL);
	struct lw_engine *engine = test_engine("eal=on");
	struct lw_channel *channel;
	struct peer well, victim;
	lw_segment_t steady;
	int fds, threads;
	uint32_t bad = 0;

	(void)state;
	test_register(engine, local, 17 * MIB, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	peer_start(&well, MIB, NULL);
	steady = open_peer(engine, &well);
	begin_stream(engine, &well, steady, local + 16 * MIB);
	fds = test_fds();
	threads = test_threads();
	for (int round = 0; round < ROUNDS; round++) {
		lw_segment_t segment;
		struct lw_batch_status status;
		lw_batch_t batch;

		peer_start(&victim, 16 * MIB, NULL);
		segment = open_peer(engine, &victim);
		batch = load(channel, segment, local, &victim, TIMEOUT_MS);
		test_sleep_ms((uint32_t)(test_random(&seed) % 12));
		kill(victim.pid, SIGKILL);
		assert_int_equal(lw_batch_wait(engine, batch, BOUND_MS, &status), 0);
		bad += check_outcomes(engine, batch, &victim);
		peer_kill(&victim);
		assert_int_equal(lw_segment_close(engine, segment), 0);
		check_stream();
	}
	print_message("%u requests of %u met the end of their peer\n", bad, ROUNDS * LOAD);
	assert_true(bad > 0);
	TEST_EVENTUALLY(test_fds() == fds);
	assert_int_equal(test_threads(), threads);
	end_stream();
	peer_end(&well);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, 17 * MIB);
}

/* A thread that keeps requests under way until its peer is gone. */
struct sender {
	pthread_t thread;
	struct lw_engine *engine;
	const struct peer *peer;
	lw_segment_t segment;
	unsigned char *local;
	uint64_t offset;
	atomic_uint completed;
	unsigned bad;
	uint64_t longest_ms;
	char wrong[400];
};

enum { SENDERS = 8, BURST = 4, PIECE = 131072 };

static bool send_burst(struct sender *sender, struct lw_channel *channel)
{
	struct lw_request list[BURST];
	struct lw_batch_status status;
	uint64_t begin_ms = test_now_ms(), took_ms;
	lw_batch_t batch;
	char text[300];

	for (uint64_t i = 0; i < BURST; i++)
		list[i] = (struct lw_request){.local = sender->local + i * PIECE,
					      .segment = sender->segment,
					      .offset = sender->peer->addr + sender->offset + i * PIECE,
					      .length = PIECE,
					      .timeout_ms = TIMEOUT_MS,
					      .op = (uint8_t)(i % 2)};
	if (lw_batch_alloc(channel, BURST, 0, NULL, &batch) != 0 || lw_submit(channel, batch, list, BURST) != 0 ||
	    lw_batch_wait(sender->engine, batch, BOUND_MS, &status) != 0) {
		snprintf(sender->wrong, sizeof(sender->wrong), "%s", lw_last_error());
		return false;
	}
	took_ms = test_now_ms() - begin_ms;
	sender->longest_ms = took_ms > sender->longest_ms ? took_ms : sender->longest_ms;
	atomic_fetch_add(&sender->completed, BURST - status.failed);
	for (uint32_t i = 0; i < BURST; i++) {
		struct lw_task_status task;

		lw_task_status(sender->engine, batch, i, &task);
		if (task.state == LW_COMPLETED)
			continue;
		sender->bad++;
		lw_task_reason(sender->engine, batch, i, text, sizeof(text));
		if (strstr(text, sender->peer->name) == NULL)
			snprintf(sender->wrong, sizeof(sender->wrong), "\"%s\" does not name the peer", text);
	}
	if (lw_batch_free(sender->engine, batch) != 0)
		snprintf(sender->wrong, sizeof(sender->wrong), "%s", lw_last_error());
	return sender->wrong[0] == '\0';
}

static void *keep_sending(void *arg)
{
	struct sender *sender = arg;
	struct lw_channel *channel;

	if (lw_channel_self(sender->engine, &channel) != 0) {
		snprintf(sender->wrong, sizeof(sender->wrong), "%s", lw_last_error());
		return NULL;
	}
	while (sender->bad == 0)
		if (!send_burst(sender, channel))
			return NULL;
	send_burst(sender, channel); /* when it is known to be gone */
	return NULL;
}

static uint32_t live_batches(struct lw_engine *engine)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	assert_int_equal(lw_stats_engine(engine, &stats), 0);
	return stats.live_batches;
}

static void check_memory(uint64_t before_kib)
{
	uint64_t now_kib = test_rss_kib();

	print_message("%d KiB more than after the first rounds\n", (int)(now_kib - before_kib));
	if (!TEST_ASAN && !TEST_TSAN)
		assert_true(now_kib < before_kib + 2048);
}

static void test_sigkill_of_target_of_many_threads_leaves_nothing(void **state)
{
	unsigned char *local = test_map((SENDERS * BURST + 1) * PIECE, NULL);
	struct lw_engine *engine = test_engine("eal=on workers=2 tcp_lanes=2");
	uint64_t longest_ms = 0, begin_ms = test_now_ms(), rss_kib = 0;
	struct sender sender[SENDERS];
	struct peer well, victim;
	uint32_t bad = 0, live;
	int fds, threads, lanes, rounds;

	(void)state;
	memset(local, 1, (SENDERS * BURST + 1) * PIECE);
	test_register(engine, local, (SENDERS * BURST + 1) * PIECE, LW_ACCESS_LOCAL);
	peer_start(&well, MIB, NULL);
	begin_stream(engine, &well, open_peer(engine, &well), local + SENDERS * BURST * PIECE);
	fds = test_fds();
	threads = test_threads();
	lanes = lw_stats_lanes(engine, NULL, 0);
	for (rounds = 0; rounds < MANY_ROUNDS && (rounds < LEAST_ROUNDS || test_now_ms() - begin_ms < LIMIT_MS);
	     rounds++) {
		lw_segment_t segment;

		if (rounds == LEAST_ROUNDS / 2)
			rss_kib = test_rss_kib();
		peer_start(&victim, SENDERS * BURST * PIECE, NULL);
		segment = open_peer(engine, &victim);
		for (size_t i = 0; i < SENDERS; i++) {
			sender[i] = (struct sender){.engine = engine,
						    .peer = &victim,
						    .segment = segment,
						    .local = local + i * BURST * PIECE,
						    .offset = i * BURST * PIECE};
			assert_int_equal(pthread_create(&sender[i].thread, NULL, keep_sending, &sender[i]), 0);
		}
		TEST_EVENTUALLY(atomic_load(&sender[rounds % SENDERS].completed) > 0);
		test_sleep_ms((uint32_t)(test_random(&seed) % 12));
		kill(victim.pid, SIGKILL);
		for (size_t i = 0; i < SENDERS; i++)
			pthread_join(sender[i].thread, NULL);
		for (size_t i = 0; i < SENDERS; i++) {
			if (sender[i].wrong[0] != '\0')
				fail_msg("round %d: %s", rounds, sender[i].wrong);
			bad += sender[i].bad;
			longest_ms = sender[i].longest_ms > longest_ms ? sender[i].longest_ms : longest_ms;
		}
		peer_kill(&victim);
		assert_int_equal(lw_segment_close(engine, segment), 0);
		check_stream();
	}
	print_message("%d peers killed in %u ms; %u requests met it, the longest took %u ms\n", rounds,
		      (unsigned)(test_now_ms() - begin_ms), bad, (unsigned)longest_ms);
	assert_true(bad >= (uint32_t)rounds * SENDERS);
	assert_true(longest_ms <= BOUND_MS);
	TEST_EVENTUALLY(test_fds() == fds);
	TEST_EVENTUALLY(test_threads() == threads);
	TEST_EVENTUALLY(lw_stats_lanes(engine, NULL, 0) == lanes);
	check_memory(rss_kib);
	end_stream();
	live = live_batches(engine);
	assert_int_equal(live, 0);
	peer_end(&well);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, (SENDERS * BURST + 1) * PIECE);
}

/* The local segment and one for each initiator: lanes that we serve go when their initiators do. */
static void test_sigkill_of_initiator_under_load_target_lives(void **state)
{
	unsigned char *offered = test_map(8 * MIB, NULL);
	struct lw_engine *engine = test_engine("eal=on");
	struct peer well, victim;
	int fds, threads, lanes, rounds;
	static const char *const several[] = {"workers=2", "tcp_lanes=4", NULL}; /* eight connections */
	unsigned long long completed, failed;
	uint64_t rss_kib = 0, begin_ms = test_now_ms();

	(void)state;
	test_register(engine, offered, 8 * MIB, LW_ACCESS_REMOTE);
	peer_start(&well, MIB, NULL);
	peer_expect(&well, "segment ", "open %s", lw_engine_name(engine));
	peer_expect(&well, "ok", "stream write %s 0 %" PRIu64 " 65536 4", well.line + strlen("segment "),
		    (uint64_t)(uintptr_t)offered);
	TEST_EVENTUALLY(lw_stats_lanes(engine, NULL, 0) == 1);
	fds = test_fds();
	threads = test_threads();
	lanes = lw_stats_lanes(engine, NULL, 0);
	for (rounds = 0; rounds < MANY_ROUNDS && (rounds < LEAST_ROUNDS || test_now_ms() - begin_ms < LIMIT_MS);
	     rounds++) {
		if (rounds == LEAST_ROUNDS / 2)
			rss_kib = test_rss_kib();
		peer_start(&victim, 4 * MIB, several);
		peer_expect(&victim, "segment ", "open %s", lw_engine_name(engine));
		peer_expect(&victim, "ok", "stream %s %s 0 %" PRIu64 " %" PRIu64 " 16",
			    rounds % 2 == 0 ? "write" : "read", victim.line + strlen("segment "),
			    (uint64_t)(uintptr_t)offered + MIB, 3 * MIB / 16);
		TEST_EVENTUALLY(lw_stats_lanes(engine, NULL, 0) >= lanes + 4);
		test_sleep_ms((uint32_t)(test_random(&seed) % 12));
		peer_kill(&victim);
		TEST_EVENTUALLY(lw_stats_lanes(engine, NULL, 0) == lanes);
	}
	TEST_EVENTUALLY(test_fds() == fds);
	assert_int_equal(test_threads(), threads);
	print_message("%d peers killed in %u ms\n", rounds, (unsigned)(test_now_ms() - begin_ms));
	check_memory(rss_kib);
	assert_int_equal(sscanf(peer_ask(&well, "stop"), "streamed %llu %llu", &completed, &failed), 2);
	assert_true(completed > 0);
	assert_int_equal(failed, 0);
	peer_end(&well);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(offered, 8 * MIB);
}

static bool completes(struct lw_engine *engine, struct lw_channel *channel, lw_segment_t segment, void *local,
		      const struct peer *peer)
{
	struct lw_request request = {.local = local,
				     .segment = segment,
				     .offset = peer->addr,
				     .length = 4096,
				     .timeout_ms = 500,
				     .op = LW_WRITE};

	return test_transfer(engine, channel, request).state == LW_COMPLETED;
}

static void test_sigstop_of_target_times_out_then_serves_again(void **state)
{
	enum { SHORT_MS = 500, FROZEN_MS = 3000 };
	unsigned char *local = test_map(17 * MIB, NULL);
	struct lw_engine *engine = test_engine("eal=on");
	struct lw_batch_status status;
	struct lw_channel *channel;
	lw_segment_t segment;
	struct peer well, victim;
	uint64_t begin_ms, sent_ms;
	uint32_t waves = 0;

	(void)state;
	test_register(engine, local, 17 * MIB, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	peer_start(&well, MIB, NULL);
	peer_start(&victim, 16 * MIB, NULL);
	segment = open_peer(engine, &victim);
	begin_stream(engine, &well, open_peer(engine, &well), local + 16 * MIB);
	assert_true(completes(engine, channel, segment, local, &victim));
	kill(victim.pid, SIGSTOP);
	assert_int_equal(waitpid(victim.pid, NULL, WUNTRACED), victim.pid); /* all its threads stand still */
	for (begin_ms = test_now_ms(); test_now_ms() - begin_ms < FROZEN_MS; waves++) {
		lw_batch_t batch = load(channel, segment, local, &victim, SHORT_MS);

		sent_ms = test_now_ms();
		assert_int_equal(lw_batch_wait(engine, batch, SHORT_MS + SLACK_MS, &status), 0);
		print_message("frozen: %u of %u ended otherwise than completed after %u ms\n", status.failed,
			      status.tasks, (unsigned)(test_now_ms() - sent_ms));
		assert_int_equal(check_outcomes(engine, batch, &victim), LOAD);
		check_stream();
	}
	assert_true(waves >= 2);
	kill(victim.pid, SIGCONT);
	begin_ms = test_now_ms();
	while (!completes(engine, channel, segment, local, &victim))
		assert_true(test_now_ms() - begin_ms < 5000);
	print_message("served again %u ms after it went on\n", (unsigned)(test_now_ms() - begin_ms));
	for (int i = 0; i < 20; i++)
		assert_true(completes(engine, channel, segment, local, &victim));
	end_stream();
	peer_end(&victim);
	peer_end(&well);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, 17 * MIB);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sigkill_of_target_under_load_every_request_ends),
		cmocka_unit_test(test_sigkill_of_target_of_many_threads_leaves_nothing),
		cmocka_unit_test(test_sigkill_of_initiator_under_load_target_lives),
		cmocka_unit_test(test_sigstop_of_target_times_out_then_serves_again),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	seed = test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
