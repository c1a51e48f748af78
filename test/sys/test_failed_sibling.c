/* SPDX-License-Identifier: Apache-2.0 */
/* One request of a batch fails while the others still run. The batch is pending until the last one ended, and can't be
 * freed before; then it can, and from there on the engine touches none of its memory. Over a link of 10 Mbit/s, where
 * the others run for long after the first failure is seen, and many thousand times with failures of all kinds, where
 * neither batches nor memory may get lost.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/fake.h"
#include "common/net.h"
#include "common/peer.h"

#define TASKS 64
#define PLACE 4096 /* of one task, on both sides */
#define AREA ((uint64_t)TASKS * PLACE)
/* The peer's memory: what is written, what is read, a buffer that is taken back, and a hole. */
#define TO_READ AREA
#define GONE (2 * AREA)
#define HOLE (GONE + PLACE)
#define PEER_BYTES (HOLE + PLACE)
#define OFFER "offer=0:524288:3,524288:4096:3"
#define MBIT 10
#define BURST 16384

static bool own_net;

enum kind { NEVER_OFFERED, TAKEN_BACK, NOT_REGISTERED_HERE, CANCELED, TIMED_OUT, KINDS };

static const char *const kind_names[KINDS] = {"never offered", "taken back", "not registered here", "canceled",
					      "timed out"};

struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	struct peer peer;
	lw_segment_t segment;
	unsigned char *local; /* AREA to write from, AREA to read into */
	unsigned char *unregistered;
	uint64_t seed;
	struct test_fake *mute; /* another peer, which never answers */
	lw_segment_t mute_segment;
};

static void set_up(struct rig *rig, const char *link)
{
	const char *options[] = {OFFER, link, NULL};

	*rig = (struct rig){.seed = test_seed(), .engine = test_engine("refresh=off")};
	peer_start(&rig->peer, PEER_BYTES, options);
	rig->local = test_map(2 * AREA, NULL);
	rig->unregistered = test_map(PLACE, NULL);
	test_register(rig->engine, rig->local, 2 * AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig->engine, &rig->channel), 0);
	if (lw_segment_open(rig->engine, rig->peer.name, 0, &rig->segment) != 0)
		fail_msg("%s", lw_last_error());
	peer_expect(&rig->peer, "ok", "withdraw %" PRIu64, GONE);
	rig->mute = test_fake_open();
	if (lw_segment_open(rig->engine, test_fake_name(rig->mute), 0, &rig->mute_segment) != 0)
		fail_msg("%s", lw_last_error());
}

static void tear_down(struct rig *rig)
{
	assert_int_equal(lw_engine_close(rig->engine), 0);
	test_fake_close(rig->mute);
	peer_end(&rig->peer);
	test_unmap(rig->local, 2 * AREA);
	test_unmap(rig->unregistered, PLACE);
}

static uint32_t live_batches(struct lw_engine *engine)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	assert_int_equal(lw_stats_engine(engine, &stats), 0);
	return stats.live_batches;
}

/* Task 0 as the kind has it, the others valid, WRITE and READ in turn, at most so long. */
static lw_batch_t submit(struct rig *rig, enum kind kind, uint64_t longest, struct lw_request *list)
{
	lw_batch_t batch;

	for (uint64_t i = 0; i < TASKS; i++) {
		bool write = i % 2 == 0;

		list[i] = (struct lw_request){.local = rig->local + (write ? 0 : AREA) + i * PLACE,
					      .segment = rig->segment,
					      .offset = rig->peer.addr + (write ? 0 : TO_READ) + i * PLACE,
					      .length = 1 + test_random(&rig->seed) % longest,
					      .op = write ? LW_WRITE : LW_READ};
	}
	list[0].op = test_random(&rig->seed) % 2 == 0 ? LW_WRITE : LW_READ;
	switch (kind) {
	case NEVER_OFFERED:
		list[0].offset = rig->peer.addr + HOLE;
		break;
	case TAKEN_BACK:
		list[0].offset = rig->peer.addr + GONE;
		break;
	case NOT_REGISTERED_HERE:
		list[0].local = rig->unregistered;
		break;
	case CANCELED:
	case TIMED_OUT:
		list[0].op = LW_READ; /* a WRITE may also be lost when another one's time is up on its connection */
		list[0].segment = rig->mute_segment;
		list[0].offset = TEST_FAKE_ADDR;
		list[0].timeout_ms = kind == TIMED_OUT ? 1 : 0;
		break;
	default:
		break;
	}
	assert_int_equal(lw_batch_alloc(rig->channel, TASKS, 0, NULL, &batch), 0);
	test_submit(rig->channel, batch, list, TASKS);
	if (kind == CANCELED)
		assert_int_equal(lw_task_cancel(rig->engine, batch, 0), 0);
	return batch;
}

/* Whether task 0 failed, and for its reason. */
static bool failed_first(struct rig *rig, lw_batch_t batch, enum kind kind)
{
	static const enum lw_reason reasons[KINDS] = {LW_REASON_REMOTE_RANGE, LW_REASON_REFUSED, LW_REASON_LOCAL_RANGE,
						      LW_REASON_CANCELED, LW_REASON_TIMEOUT};
	struct lw_task_status status;

	assert_int_equal(lw_task_status(rig->engine, batch, 0, &status), 0);
	if (status.state == LW_PENDING)
		return false;
	if (status.reason != reasons[kind])
		fail_msg("%s: state %u, reason %u", kind_names[kind], status.state, status.reason);
	return true;
}

/* Frees the batch if that can be done: not before all have ended. */
static bool freed(struct rig *rig, lw_batch_t batch)
{
	struct lw_batch_status before;
	int error;

	assert_int_equal(lw_batch_status(rig->engine, batch, &before), 0);
	if (before.state != LW_PENDING && (before.state != LW_FAILED || before.done != TASKS || before.failed != 1))
		fail_msg("state %u, %u done, %u failed", before.state, before.done, before.failed);
	error = lw_batch_free(rig->engine, batch);
	if (error == -EBUSY && before.state == LW_PENDING)
		return false;
	if (error != 0)
		fail_msg("free of a batch in state %u: %d: %s", before.state, error, lw_last_error());
	assert_int_equal(lw_batch_free(rig->engine, batch), -EBADF);
	assert_int_equal(lw_batch_status(rig->engine, batch, &before), -EBADF);
	return true;
}

static void test_free_over_a_slow_link_busy_until_the_last_one_ended(void **state)
{
	enum { LONGEST = 2048, ROUNDS = 90, LIMIT_MS = 25000 };
	static unsigned char model[AREA], to_read[AREA]; /* what the peer holds */
	uint64_t begin_ms = test_now_ms(), moved = 0;
	unsigned busy = 0, rounds = 0;
	char shape[128];
	struct rig rig;
	uint32_t live;

	(void)state;
	snprintf(shape, sizeof(shape), "root tbf rate %dmbit burst %d latency 400ms", MBIT, BURST);
	if (!own_net || !test_net_can(0, "tc qdisc add dev lo %s && tc qdisc del dev lo root", shape)) {
		print_message("skipped: no network of its own, or no tc with tbf\n");
		skip();
	}
	set_up(&rig, "link=1");
	test_net_run(0, "tc qdisc add dev lw1 %s", shape);
	test_net_run(rig.peer.pid, "tc qdisc add dev lw1 %s", shape);
	peer_expect(&rig.peer, "ok", "fill %" PRIu64 " %" PRIu64 " 7", TO_READ, AREA);
	test_fill(to_read, AREA, 7);
	live = live_batches(rig.engine);
	for (; rounds < ROUNDS && test_now_ms() - begin_ms < LIMIT_MS; rounds++) {
		enum kind kind = (enum kind)(rounds % KINDS);
		uint64_t there = 0, back = 0, sent_ms, took_ms, least_ms;
		struct lw_request list[TASKS];
		lw_batch_t batch;
		char sum[32];

		test_fill(rig.local, AREA, test_random(&rig.seed));
		memset(rig.local + AREA, 0, AREA);
		sent_ms = test_now_ms();
		batch = submit(&rig, kind, LONGEST, list);
		for (int i = 1; i < TASKS; i++) {
			*(list[i].op == LW_WRITE ? &there : &back) += list[i].length;
			if (list[i].op == LW_WRITE)
				memcpy(model + i * PLACE, list[i].local, list[i].length);
		}
		TEST_EVENTUALLY(failed_first(&rig, batch, kind));
		for (; !freed(&rig, batch); busy++)
			test_sleep_ms(1);
		/* The link can't have carried them in less. Nor was the first failure the last end. */
		took_ms = test_now_ms() - sent_ms;
		least_ms = (there > back ? there : back) * 8 / (MBIT * 1000);
		least_ms -= BURST * 8 / (MBIT * 1000) < least_ms ? BURST * 8 / (MBIT * 1000) : least_ms;
		if (took_ms < least_ms)
			fail_msg("free after %u ms, the link needs %u", (unsigned)took_ms, (unsigned)least_ms);
		moved += there + back;
		/* The memory is ours again. */
		for (int i = 1; i < TASKS; i += 2)
			assert_memory_equal(rig.local + AREA + i * PLACE, to_read + i * PLACE, list[i].length);
		memset(rig.local, 0xa5, 2 * AREA);
		snprintf(sum, sizeof(sum), "sum %08x", test_crc(model, AREA));
		peer_expect(&rig.peer, sum, "sum 0 %" PRIu64, AREA);
		for (uint64_t i = 0; i < 2 * AREA; i++)
			if (rig.local[i] != 0xa5)
				fail_msg("memory was touched after the end");
	}
	print_message("%u batches, %" PRIu64 " KiB, %u times busy, %u ms\n", rounds, moved >> 10, busy,
		      (unsigned)(test_now_ms() - begin_ms));
	assert_true(rounds >= KINDS);
	assert_true(busy > rounds);
	assert_int_equal(live_batches(rig.engine), live);
	tear_down(&rig);
}

/* Those that end a connection, or wait, are the lesser part. */
static enum kind any_kind(uint64_t *seed)
{
	uint64_t dice = test_random(seed) % 400;

	return dice == 0    ? TIMED_OUT
	       : dice < 4   ? CANCELED
	       : dice < 20  ? TAKEN_BACK
	       : dice < 200 ? NEVER_OFFERED
			    : NOT_REGISTERED_HERE;
}

static void test_free_after_mixed_failures_nothing_is_lost(void **state)
{
	enum {
		LONGEST = 256,
		ROUNDS = TEST_ASAN || TEST_TSAN ? 3000 : 20000,
		WARM = ROUNDS / 5,
		SIDE = 16,
		LIMIT_MS = 30000
	};
	unsigned busy = 0, ended = 0, begun = 0, rounds = ROUNDS, seen[KINDS] = {0};
	uint64_t begin_ms = test_now_ms(), last_ms = begin_ms, rss_kib = 0, grown_kib;
	struct lw_request list[TASKS];
	lw_batch_t batch[SIDE] = {0};
	enum kind kind[SIDE];
	struct rig rig;
	uint32_t live;

	(void)state;
	set_up(&rig, NULL);
	live = live_batches(rig.engine);
	while (ended < rounds) {
		unsigned ended_before = ended;

		if (begun < ROUNDS && begun > WARM * 2 && test_now_ms() - begin_ms > LIMIT_MS)
			rounds = begun; /* a slow machine */
		if (test_now_ms() - last_ms > 10000)
			fail_msg("no batch ended in 10 s");
		for (int i = 0; i < SIDE; i++) {
			if (batch[i] == 0 && begun < rounds) {
				kind[i] = any_kind(&rig.seed);
				batch[i] = submit(&rig, kind[i], LONGEST, list);
				seen[kind[i]]++;
				begun++;
			} else if (batch[i] != 0 && failed_first(&rig, batch[i], kind[i])) {
				if (!freed(&rig, batch[i])) {
					busy++;
					continue;
				}
				batch[i] = 0;
				last_ms = test_now_ms();
				if (++ended == WARM)
					rss_kib = test_rss_kib();
			}
		}
		if (ended == ended_before)
			sched_yield();
	}
	grown_kib = test_rss_kib() - rss_kib;
	for (int i = 0; i < KINDS; i++)
		print_message("%u %s, ", seen[i], kind_names[i]);
	print_message("%u times busy, %u ms\n", busy, (unsigned)(test_now_ms() - begin_ms));
	assert_true(busy > 0);
	assert_int_equal(live_batches(rig.engine), live);
	if (!TEST_ASAN && !TEST_TSAN && (int64_t)grown_kib > 1024)
		fail_msg("%" PRIu64 " KiB more", grown_kib);
	tear_down(&rig);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_free_over_a_slow_link_busy_until_the_last_one_ended),
		cmocka_unit_test(test_free_after_mixed_failures_nothing_is_lost),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	test_seed();
	own_net = test_net_enter();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
