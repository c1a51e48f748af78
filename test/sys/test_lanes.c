/* SPDX-License-Identifier: Apache-2.0 */
/* Two links to one peer, and lanes over both. A fast and a slow one carry together what they can; when one is cut, the
 * other takes over without a failed request and without a wrong byte, and the first one is used again once it is back.
 * Bounds are wide: how well it does is measured by `./dev bench lanes`.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/net.h"
#include "common/peer.h"
#include "common/stream.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define AREA (64 * MIB)
#define BLOCK (64 * KIB)
/* Of the area: the stream's part, and that of the rounds whose bytes are compared. */
#define EXACT_AT (32 * MIB)
#define EXACT (8 * MIB)

enum {
	SLOW_MBIT = 40,
	FAST_MBIT = 160,
	SETTLE_MS = 2000,
	WINDOW_MS = 3000,
	ROUND_MS = 5000, /* a round of EXACT bytes both ways, also when a link was cut a moment before */
	BACK_MS = 10000, /* until a link that is back is used */
	USED = 2000000,  /* bytes that show that it is */
};

static struct {
	struct lw_engine *engine;
	struct lw_channel *channel;
	struct peer peer;
	struct test_link links[2];
	lw_segment_t segment;
	unsigned char *local;
	uint64_t seed;
} rig;

static int set_up(void **state)
{
	static const char *const options[] = {"link=1+2", "tcp_bind=10.99.1.2,10.99.2.2", NULL};

	(void)state;
	memset(&rig, 0, sizeof(rig));
	rig.seed = test_seed();
	rig.local = test_map(AREA, NULL);
	peer_start(&rig.peer, AREA, options);
	for (unsigned i = 0; i < 2; i++)
		rig.links[i] = (struct test_link){.number = i + 1, .peer = rig.peer.pid};
	if (test_engine_try("", "10.99.1.1", &rig.engine) != 0 ||
	    lw_segment_open(rig.engine, rig.peer.name, 0, &rig.segment) != 0)
		fail_msg("%s", lw_last_error());
	test_register(rig.engine, rig.local, AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	assert_int_equal(lw_engine_close(rig.engine), 0);
	peer_end(&rig.peer);
	test_unmap(rig.local, AREA);
	return 0;
}

static void set_rates(unsigned first, unsigned second)
{
	const unsigned mbit[] = {first, second};

	for (int i = 0; i < 2; i++) {
		char rate[32];

		snprintf(rate, sizeof(rate), "%umbit", mbit[i]);
		if (!test_net_rate(&rig.links[i], rate))
			skip();
	}
}

static struct lw_request write_of(uint64_t at, uint64_t length)
{
	return (struct lw_request){.local = rig.local + at,
				   .segment = rig.segment,
				   .offset = rig.peer.addr + at,
				   .length = length,
				   .op = LW_WRITE};
}

static void begin_stream(struct test_stream *stream)
{
	memset(stream, 0, sizeof(*stream));
	stream->engine = rig.engine;
	stream->request = write_of(0, BLOCK);
	stream->depth = 128;
	stream->both = true;
	test_stream_begin(stream);
}

static void transfer(enum lw_op op, uint64_t here, uint64_t there)
{
	struct lw_request list[EXACT / BLOCK];
	struct lw_batch_status status;
	lw_batch_t batch;

	for (uint64_t i = 0; i < EXACT / BLOCK; i++) {
		list[i] = write_of(here + i * BLOCK, BLOCK);
		list[i].offset = rig.peer.addr + there + i * BLOCK;
		list[i].op = (uint8_t)op;
	}
	assert_int_equal(lw_batch_alloc(rig.channel, EXACT / BLOCK, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, list, EXACT / BLOCK);
	status = test_wait(rig.engine, batch);
	if (status.failed != 0) {
		char text[300] = "";

		for (uint32_t i = 0; i < EXACT / BLOCK && text[0] == '\0'; i++) {
			struct lw_task_status task;

			lw_task_status(rig.engine, batch, i, &task);
			if (task.state != LW_COMPLETED)
				lw_task_reason(rig.engine, batch, i, text, sizeof(text));
		}
		fail_msg("%u of %u requests failed: %s", status.failed, status.tasks, text);
	}
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
}

/* Fresh bytes there and back again, in time. */
static uint64_t exact_round(void)
{
	uint64_t begin_ms = test_now_ms(), took_ms;

	test_fill(rig.local + EXACT_AT, EXACT, test_random(&rig.seed));
	memset(rig.local + EXACT_AT + EXACT, 0, EXACT);
	transfer(LW_WRITE, EXACT_AT, EXACT_AT);
	transfer(LW_READ, EXACT_AT + EXACT, EXACT_AT);
	took_ms = test_now_ms() - begin_ms;
	assert_memory_equal(rig.local + EXACT_AT, rig.local + EXACT_AT + EXACT, EXACT);
	assert_in_range(took_ms, 0, ROUND_MS);
	return took_ms;
}

static void test_links_of_1_to_4_both_carry_what_they_can(void **state)
{
	uint64_t sent[2], all;
	struct test_stream stream;

	(void)state;
	set_rates(SLOW_MBIT, FAST_MBIT);
	begin_stream(&stream);
	stream.both = false;
	test_sleep_ms(SETTLE_MS);
	for (int i = 0; i < 2; i++)
		sent[i] = test_net_sent(&rig.links[i]);
	all = test_stream_bytes_in(&stream, WINDOW_MS);
	for (int i = 0; i < 2; i++)
		sent[i] = test_net_sent(&rig.links[i]) - sent[i];
	test_stream_end(&stream);
	print_message("%" PRIu64 " and %" PRIu64 " KiB/s by the links, %" PRIu64 " KiB/s of requests\n",
		      sent[0] / WINDOW_MS, sent[1] / WINDOW_MS, all / WINDOW_MS);
	assert_int_equal(atomic_load(&stream.failed), 0);
	/* 1 Mbit/s is 125 bytes a ms. By one lane the other link carries nothing; by turns both as much as the slow
	 * one. */
	assert_true(sent[0] > (uint64_t)SLOW_MBIT * 125 * WINDOW_MS * 6 / 10);
	assert_true(sent[1] > (uint64_t)FAST_MBIT * 125 * WINDOW_MS * 6 / 10);
	exact_round();
}

/* The time until the link carries bytes again. */
static uint64_t wait_used(const struct test_link *link)
{
	uint64_t begin_ms = test_now_ms(), before = test_net_sent(link);

	while (test_net_sent(link) < before + USED) {
		if (test_now_ms() - begin_ms > BACK_MS)
			fail_msg("link %u is not used %d ms after it is back", link->number, BACK_MS);
		test_sleep_ms(2);
	}
	return test_now_ms() - begin_ms;
}

static void cut_under_load(const char *what, unsigned which, enum test_cut how)
{
	const struct test_link *link = &rig.links[which];
	uint64_t longest_ms = 0, ms;
	struct test_stream stream;

	begin_stream(&stream);
	wait_used(link);
	test_net_cut(link, how);
	for (int i = 0; i < 4; i++) {
		ms = exact_round();
		longest_ms = ms > longest_ms ? ms : longest_ms;
		test_sleep_ms(200);
	}
	test_net_mend(link, how);
	ms = wait_used(link);
	exact_round();
	test_stream_end(&stream);
	print_message("link %u, %s: a round took %" PRIu64 " ms at most; used again %" PRIu64
		      " ms after it was back; %llu requests beside\n",
		      link->number, what, longest_ms, ms, atomic_load(&stream.completed));
	assert_int_equal(atomic_load(&stream.failed), 0);
}

static void test_cut_link_other_takes_over_and_it_is_taken_back(void **state)
{
	static const struct {
		const char *what;
		enum test_cut how;
	} cuts[] = {{"packets vanish", TEST_CUT_SILENT},
		    {"our device down", TEST_CUT_HERE},
		    {"the peer's device down", TEST_CUT_THERE}};

	(void)state;
	set_rates(400, 400);
	for (int i = 0; i < 3; i++)
		for (unsigned which = 0; which < 2; which++)
			cut_under_load(cuts[i].what, which, cuts[i].how);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_links_of_1_to_4_both_carry_what_they_can, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cut_link_other_takes_over_and_it_is_taken_back, set_up, tear_down),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	if (!test_setting_known("tcp_bind")) {
		print_message("skipped: this build has no lanes over several addresses (setting tcp_bind)\n");
		return 77;
	}
	return test_net_enter() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
