/* SPDX-License-Identifier: Apache-2.0 */
/* Notes to peers that do not read them, stand still, or die: whoever sends gets an answer in time, nobody else waits,
 * nothing piles up on either side, and no note tells of a transfer that did not end well.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"
#include "common/stall.h"

#define AREA ((uint64_t)1 << 20)
#define THREADS 4

static lw_segment_t open_peer(struct lw_engine *engine, const struct peer *peer)
{
	lw_segment_t segment = 0;

	if (lw_segment_open(engine, peer->name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	return segment;
}

struct peer_state {
	unsigned rss_kib, notes;
};

/* Also takes the peer's notes. */
static struct peer_state state_of(struct peer *peer)
{
	struct peer_state state;

	if (sscanf(peer_ask(peer, "state"), "state %*d %*d %u %u", &state.rss_kib, &state.notes) != 2)
		fail_msg("%s", peer->line);
	return state;
}

/* A thread that sends notes, one after the other. */
struct sender {
	pthread_t thread;
	struct lw_engine *engine;
	lw_segment_t segment;
	uint32_t calls; /* at most */
	uint32_t timeout_ms;
	struct lw_note note;
	atomic_bool *stop; /* NULL: only after so many calls */
	uint32_t taken, full, late, other;
	uint64_t longest_ms;
};

static void *keep_telling(void *arg)
{
	struct sender *sender = arg;

	for (uint32_t i = 0; i < sender->calls && (sender->stop == NULL || !atomic_load(sender->stop)); i++) {
		uint64_t begin_ms = test_now_ms(), took_ms;
		int error = lw_notify(sender->engine, sender->segment, &sender->note, sender->timeout_ms);

		took_ms = test_now_ms() - begin_ms;
		sender->longest_ms = took_ms > sender->longest_ms ? took_ms : sender->longest_ms;
		if (error == 0)
			sender->taken++;
		else if (error == -ENOBUFS)
			sender->full++;
		else if (error == -ETIMEDOUT)
			sender->late++;
		else
			sender->other++;
	}
	return NULL;
}

static void begin_telling(struct sender *sender)
{
	assert_int_equal(pthread_create(&sender->thread, NULL, keep_telling, sender), 0);
}

static void test_notes_to_a_peer_that_never_polls_are_full_and_cost_it_nothing(void **state)
{
	enum { QUEUE = 100, CALLS = 2500, TEXT = 10000 };
	static const char *const options[] = {"notify_queue=100", NULL};
	static char text[TEXT];
	struct lw_engine *engine = test_engine(NULL);
	uint32_t taken = 0, full = 0;
	struct sender senders[THREADS];
	struct peer_state before, after;
	lw_segment_t segment;
	struct peer peer;

	(void)state;
	memset(text, 't', sizeof(text));
	peer_start(&peer, AREA, options);
	segment = open_peer(engine, &peer);
	for (int round = 0; round < 2; round++) {
		before = state_of(&peer);
		for (int i = 0; i < THREADS; i++) {
			senders[i] =
				(struct sender){.engine = engine,
						.segment = segment,
						.calls = CALLS,
						.timeout_ms = 10000,
						.note = {.name = "n", .name_size = 1, .text = text, .text_size = TEXT}};
			begin_telling(&senders[i]);
		}
		taken = full = 0;
		for (int i = 0; i < THREADS; i++) {
			pthread_join(senders[i].thread, NULL);
			assert_int_equal(senders[i].late + senders[i].other, 0);
			taken += senders[i].taken;
			full += senders[i].full;
		}
		assert_int_equal(taken, QUEUE);
		assert_int_equal(full, THREADS * CALLS - QUEUE);
		after = state_of(&peer);
		assert_int_equal(after.notes, QUEUE);
	}
	print_message("the peer holds %d KiB more after %u notes more\n", (int)(after.rss_kib - before.rss_kib), full);
	if (!TEST_ASAN && !TEST_TSAN)
		assert_true(after.rss_kib < before.rss_kib + 4096);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
}

/* Requests to a healthy peer, with a note for each, while others wait for one that stands still. */
static void test_notes_to_a_frozen_peer_end_in_time_pile_up_nowhere_and_delay_nobody(void **state)
{
	enum { FROZEN_MS = 4000, TIMEOUT_MS = 200, TEXT = 400000, SLACK_MS = 1000 };
	static char text[TEXT];
	struct lw_engine *engine = test_engine(NULL);
	unsigned char *local = test_map(AREA, NULL);
	struct sender senders[THREADS], well_sender;
	uint32_t late = 0, moved = 0;
	lw_segment_t frozen_segment, well_segment;
	uint64_t begin_ms, longest_ms = 0, rss_kib, more_kib;
	struct lw_channel *channel;
	struct peer frozen, well;
	atomic_bool stop = false;

	(void)state;
	memset(text, 't', sizeof(text));
	test_register(engine, local, AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	peer_start(&frozen, AREA, NULL);
	peer_start(&well, AREA, NULL);
	frozen_segment = open_peer(engine, &frozen);
	well_segment = open_peer(engine, &well);
	peer_freeze(&frozen);
	rss_kib = test_rss_kib();
	for (int i = 0; i < THREADS; i++) {
		senders[i] = (struct sender){.engine = engine,
					     .segment = frozen_segment,
					     .calls = UINT32_MAX,
					     .timeout_ms = TIMEOUT_MS,
					     .note = {.name = "late", .name_size = 4, .text = text, .text_size = TEXT},
					     .stop = &stop};
		begin_telling(&senders[i]);
	}
	well_sender = (struct sender){.engine = engine,
				      .segment = well_segment,
				      .calls = 1000,
				      .timeout_ms = 5000,
				      .note = {.name = "n", .name_size = 1},
				      .stop = &stop};
	begin_telling(&well_sender);
	for (begin_ms = test_now_ms(); test_now_ms() - begin_ms < FROZEN_MS; moved++) {
		struct lw_request request = {
			.local = local, .segment = well_segment, .offset = well.addr, .length = 4096, .op = LW_WRITE};
		uint64_t start_ms = test_now_ms(), took_ms;

		assert_int_equal(test_transfer(engine, channel, request).state, LW_COMPLETED);
		took_ms = test_now_ms() - start_ms;
		longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
	}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(senders[i].thread, NULL);
		assert_int_equal(senders[i].taken + senders[i].full + senders[i].other, 0);
		assert_in_range(senders[i].longest_ms, 0, TIMEOUT_MS + SLACK_MS);
		late += senders[i].late;
	}
	pthread_join(well_sender.thread, NULL);
	assert_true(well_sender.taken > 0);
	assert_int_equal(well_sender.late + well_sender.full + well_sender.other, 0);
	more_kib = test_rss_kib() - rss_kib;
	print_message("%u notes were late, the longest %u ms; beside them %u notes and %u requests, the longest %u ms; "
		      "%d KiB more\n",
		      late, (unsigned)senders[0].longest_ms, well_sender.taken, moved, (unsigned)longest_ms,
		      (int)more_kib);
	assert_in_range(well_sender.longest_ms, 0, SLACK_MS);
	assert_in_range(longest_ms, 0, SLACK_MS);
	/* Of each thread two, and what is on its way: far less than what was given up. */
	assert_true(late > 10 * THREADS);
	if (!TEST_ASAN && !TEST_TSAN)
		assert_true((int64_t)more_kib < (3 * THREADS * TEXT) / 1024);
	kill(frozen.pid, SIGCONT);
	assert_int_equal(lw_notify(engine, frozen_segment, &(struct lw_note){.name = "n", .name_size = 1}, 5000), 0);
	peer_end(&frozen);
	peer_end(&well);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, AREA);
}

/* One is on its way for long; behind it others are given up before their turn. They are not sent after that. */
static void test_note_that_was_given_up_before_its_turn_is_not_sent(void **state)
{
	enum { BEHIND = 8 };
	struct lw_engine *engine = test_engine(NULL);
	struct sender first, behind[BEHIND];
	lw_segment_t segment;
	struct peer peer;

	(void)state;
	peer_start(&peer, AREA, NULL);
	segment = open_peer(engine, &peer);
	for (int round = 0; round < 3; round++) {
		peer_freeze(&peer);
		first = (struct sender){.engine = engine,
					.segment = segment,
					.calls = 1,
					.timeout_ms = 15000,
					.note = {.name = "first", .name_size = 5}};
		begin_telling(&first);
		test_sleep_ms(100);
		for (int i = 0; i < BEHIND; i++) {
			behind[i] = first;
			behind[i].timeout_ms = 100 + 20 * (uint32_t)i;
			begin_telling(&behind[i]);
		}
		for (int i = 0; i < BEHIND; i++) {
			pthread_join(behind[i].thread, NULL);
			assert_int_equal(behind[i].late, 1);
		}
		kill(peer.pid, SIGCONT);
		pthread_join(first.thread, NULL);
		assert_int_equal(first.taken, 1);
		assert_int_equal(lw_notify(engine, segment, &(struct lw_note){.name = "last", .name_size = 4}, 5000),
				 0);
		assert_int_equal(state_of(&peer).notes, 2);
	}
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
}

struct poller {
	pthread_t thread;
	struct lw_engine *engine;
	lw_batch_t batch;
	bool seen; /* that it COMPLETED */
};

static void *keep_polling(void *arg)
{
	struct poller *poller = arg;
	struct lw_batch_status status = {.state = LW_PENDING};

	while (lw_batch_status(poller->engine, poller->batch, &status) == 0 && status.state == LW_PENDING)
		;
	poller->seen = status.state == LW_COMPLETED;
	return NULL;
}

static lw_batch_t submit_noted(struct lw_channel *channel, struct lw_request *list, uint32_t count, const char *name)
{
	const struct lw_note note = {.name = name, .name_size = strlen(name)};
	lw_batch_t batch;

	assert_int_equal(lw_batch_alloc(channel, count, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit_notify(channel, batch, list, count, &note), 0);
	return batch;
}

/* The last bytes are late, since the target's worker stands still: the note waits for them, and eight threads that poll
 * make it no second one. */
static void test_note_of_a_batch_comes_after_its_last_byte_and_once(void **state)
{
	enum { TASKS = 16, POLLERS = 8, PART = AREA / TASKS };
	struct lw_engine *engine = test_engine(NULL), *target = test_engine(NULL);
	unsigned char *local = test_map(AREA, NULL), *remote = test_map(AREA, NULL);
	struct poller pollers[POLLERS];
	uint64_t seed = test_seed();
	struct lw_channel *channel;
	struct test_stall stall;
	lw_segment_t segment;

	(void)state;
	test_register(engine, local, AREA, LW_ACCESS_LOCAL);
	test_register(target, remote, AREA, LW_ACCESS_REMOTE);
	segment = test_segment(engine, target);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	for (int round = 0; round < 10; round++) {
		struct lw_request list[TASKS];
		struct lw_note *note;
		lw_batch_t batch;

		test_fill(local, AREA, test_random(&seed));
		for (size_t i = 0; i < TASKS; i++)
			list[i] = (struct lw_request){.local = local + i * PART,
						      .segment = segment,
						      .offset = (uint64_t)(uintptr_t)remote + i * PART,
						      .length = PART,
						      .op = LW_WRITE};
		test_stall_begin(&stall, target, 0);
		batch = submit_noted(channel, list, TASKS, "done");
		for (int i = 0; i < POLLERS; i++) {
			pollers[i] = (struct poller){.engine = engine, .batch = batch};
			assert_int_equal(pthread_create(&pollers[i].thread, NULL, keep_polling, &pollers[i]), 0);
		}
		test_sleep_ms(20 + (uint32_t)(test_random(&seed) % 20));
		assert_int_equal(lw_note_poll(target, &note), 0);
		test_stall_end(&stall);
		TEST_EVENTUALLY(lw_note_poll(target, &note) == 1);
		assert_memory_equal(local, remote, AREA);
		lw_note_free(note);
		for (int i = 0; i < POLLERS; i++) {
			pthread_join(pollers[i].thread, NULL);
			assert_true(pollers[i].seen);
		}
		assert_int_equal(lw_note_poll(target, &note), 0);
		assert_int_equal(lw_batch_free(engine, batch), 0);
	}
	test_sleep_ms(50);
	assert_int_equal(lw_note_poll(target, &(struct lw_note *){NULL}), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(target), 0);
	test_unmap(local, AREA);
	test_unmap(remote, AREA);
}

static void test_note_of_a_canceled_batch_never_comes(void **state)
{
	struct lw_engine *engine = test_engine(NULL), *target = test_engine(NULL);
	unsigned char *local = test_map(AREA, NULL), *remote = test_map(AREA, NULL);
	struct lw_request request = {
		.local = local, .offset = (uint64_t)(uintptr_t)remote, .length = AREA, .op = LW_WRITE};
	const struct lw_note last = {.name = "last", .name_size = 4};
	struct lw_channel *channel;
	struct test_stall stall;
	struct lw_note *note;

	(void)state;
	test_register(engine, local, AREA, LW_ACCESS_LOCAL);
	test_register(target, remote, AREA, LW_ACCESS_REMOTE);
	request.segment = test_segment(engine, target);
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	for (int round = 0; round < 5; round++) {
		lw_batch_t batch;

		test_stall_begin(&stall, target, 0);
		batch = submit_noted(channel, &request, 1, "never");
		test_sleep_ms((uint32_t)round);
		assert_int_equal(lw_batch_cancel(engine, batch), 0);
		assert_int_equal(test_wait(engine, batch).state, LW_FAILED);
		test_stall_end(&stall);
		assert_int_equal(lw_batch_free(engine, batch), 0);
	}
	assert_int_equal(lw_notify(engine, request.segment, &last, 0), 0);
	assert_int_equal(lw_note_poll(target, &note), 1);
	assert_string_equal(note->name, "last");
	lw_note_free(note);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_engine_close(target), 0);
	test_unmap(local, AREA);
	test_unmap(remote, AREA);
}

/* Who waits for the note of a sender that is killed, or stands still, between its submit and its note learns it from
 * its watch, and then holds nothing of that sender. */
static void test_watch_tells_of_a_sender_that_dies_before_its_note(void **state)
{
	enum { GONE_MS = 500, SLACK_MS = 1000 };
	struct lw_engine *target = test_engine(NULL);
	unsigned char *remote = test_map(AREA, NULL);
	uint64_t seed = test_seed();
	struct lw_note *note;
	int lanes = 0;

	(void)state;
	test_register(target, remote, AREA, LW_ACCESS_REMOTE);
	for (int round = 0; round < 6; round++) {
		bool freeze = round % 2 == 1;
		struct lw_event event = {.kind = 0};
		struct test_stall stall;
		lw_segment_t segment;
		struct peer sender;
		uint64_t begin_ms;

		peer_start(&sender, AREA, NULL);
		peer_expect(&sender, "segment ", "open %s", lw_engine_name(target));
		segment = open_peer(target, &sender);
		assert_int_equal(lw_segment_watch(target, segment, GONE_MS), 0);
		test_stall_begin(&stall, target, 0);
		peer_tell(&sender, "write %s 0 %" PRIu64 " %" PRIu64 " done %d", sender.line + strlen("segment "),
			  (uint64_t)(uintptr_t)remote, AREA, round);
		test_sleep_ms((uint32_t)(test_random(&seed) % 30));
		if (freeze)
			peer_freeze(&sender);
		else
			kill(sender.pid, SIGKILL);
		begin_ms = test_now_ms();
		test_stall_end(&stall);
		TEST_EVENTUALLY(lw_event_poll(target, &event) == 1);
		print_message("%s: told after %u ms\n", freeze ? "frozen" : "killed",
			      (unsigned)(test_now_ms() - begin_ms));
		assert_in_range(test_now_ms() - begin_ms, 0, GONE_MS + SLACK_MS);
		assert_int_equal(event.kind, LW_EVENT_PEER_GONE);
		assert_int_equal(event.segment, segment);
		assert_string_equal(event.name, sender.name);
		assert_int_equal(lw_note_poll(target, &note), 0);
		assert_true(lw_segment_probe(target, segment, GONE_MS) < 0);
		peer_kill(&sender);
		assert_int_equal(lw_segment_close(target, segment), 0);
		TEST_EVENTUALLY(lw_stats_lanes(target, NULL, 0) == lanes);
	}
	assert_int_equal(lw_engine_close(target), 0);
	test_unmap(remote, AREA);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_notes_to_a_peer_that_never_polls_are_full_and_cost_it_nothing),
		cmocka_unit_test(test_notes_to_a_frozen_peer_end_in_time_pile_up_nowhere_and_delay_nobody),
		cmocka_unit_test(test_note_that_was_given_up_before_its_turn_is_not_sent),
		cmocka_unit_test(test_note_of_a_batch_comes_after_its_last_byte_and_once),
		cmocka_unit_test(test_note_of_a_canceled_batch_never_comes),
		cmocka_unit_test(test_watch_tells_of_a_sender_that_dies_before_its_note),
	};
	int status;

	/* Large blocks go back to the system when they are freed, whatever was freed before: memory tells what is held.
	 */
	mallopt(M_MMAP_THRESHOLD, 128 * 1024);

	if (peer_main(argc, argv, &status))
		return status;
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
