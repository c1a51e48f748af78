/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that offers 20,000 buffers, and a hundred that open its segment at the same moment, by asking it: all get all
 * of it, with the limits as they are by default, and the peer's memory does not grow with their number.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"

enum { COUNT = 20000, LENGTH = 4096, ENGINES = 10, THREADS = 100, ROUNDS = 2, PEER_MORE_KIB = 64 * 1024 };

struct opener {
	pthread_t thread;
	struct lw_engine *engine;
	const struct peer *peer;
	pthread_barrier_t *barrier;
	char wrong[300];
	uint64_t took_ms;
};

/* Opens, and reads the last buffer. */
static void *open_one(void *arg)
{
	struct opener *opener = arg;
	struct lw_channel *channel;
	lw_segment_t segment;
	uint64_t begin_ms;
	int count;

	pthread_barrier_wait(opener->barrier);
	begin_ms = test_now_ms();
	if (lw_segment_open(opener->engine, opener->peer->name, 0, &segment) != 0) {
		snprintf(opener->wrong, sizeof(opener->wrong), "%s", lw_last_error());
		return NULL;
	}
	opener->took_ms = test_now_ms() - begin_ms;
	count = lw_segment_ranges(opener->engine, segment, NULL, 0);
	if (count != COUNT)
		snprintf(opener->wrong, sizeof(opener->wrong), "%d ranges", count);
	if (lw_channel_self(opener->engine, &channel) != 0 || lw_segment_close(opener->engine, segment) != 0)
		snprintf(opener->wrong, sizeof(opener->wrong), "%s", lw_last_error());
	return NULL;
}

static unsigned rss_of(struct peer *peer)
{
	unsigned kib;

	if (sscanf(peer_ask(peer, "state"), "state %*d %*d %u", &kib) != 1)
		fail_msg("%s", peer->line);
	return kib;
}

static void test_100_opens_at_once_of_20000_buffers_all_get_all(void **state)
{
	static const char *const options[] = {"offer=", "handshake_timeout_ms=20000", NULL};
	static unsigned char local[LENGTH];
	struct opener openers[THREADS];
	struct lw_engine *engines[ENGINES];
	uint64_t longest_ms = 0;
	/* A sanitizer makes each ten times as slow. */
	uint32_t threads = TEST_ASAN || TEST_TSAN ? THREADS / 10 : THREADS;
	pthread_barrier_t barrier;
	struct peer peer;
	unsigned kib;

	(void)state;
	peer_start(&peer, (uint64_t)COUNT * LENGTH, options);
	peer_expect(&peer, "registered", "many %d %d", COUNT, LENGTH);
	peer_expect(&peer, "ok", "fill %d %d 7", (COUNT - 1) * LENGTH, LENGTH);
	for (int i = 0; i < ENGINES; i++) {
		engines[i] = test_engine("handshake_timeout_ms=20000");
		test_register(engines[i], local, sizeof(local), LW_ACCESS_LOCAL);
	}
	pthread_barrier_init(&barrier, NULL, threads);
	kib = rss_of(&peer);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < (int)threads; i++) {
			openers[i] =
				(struct opener){.engine = engines[i % ENGINES], .peer = &peer, .barrier = &barrier};
			assert_int_equal(pthread_create(&openers[i].thread, NULL, open_one, &openers[i]), 0);
		}
		for (int i = 0; i < (int)threads; i++) {
			pthread_join(openers[i].thread, NULL);
			if (openers[i].wrong[0] != '\0')
				fail_msg("%s", openers[i].wrong);
			longest_ms = openers[i].took_ms > longest_ms ? openers[i].took_ms : longest_ms;
		}
	}
	print_message("the longest open took %u ms; the peer holds %d KiB more\n", (unsigned)longest_ms,
		      (int)(rss_of(&peer) - kib));
	if (!TEST_ASAN && !TEST_TSAN)
		assert_true(rss_of(&peer) < kib + PEER_MORE_KIB);
	for (int i = 0; i < ENGINES; i++) {
		struct lw_channel *channel;
		struct lw_request request = {.local = local,
					     .offset = peer.addr + (uint64_t)(COUNT - 1) * LENGTH,
					     .length = LENGTH,
					     .op = LW_READ};

		memset(local, 0, sizeof(local));
		assert_int_equal(lw_segment_open(engines[i], peer.name, 0, &request.segment), 0);
		assert_int_equal(lw_channel_open(engines[i], &channel), 0);
		assert_int_equal(test_transfer(engines[i], channel, request).state, LW_COMPLETED);
		peer_expect(&peer, "sum", "sum %d %d", (COUNT - 1) * LENGTH, LENGTH);
		assert_int_equal(strtoul(peer.line + 4, NULL, 16), test_crc(local, LENGTH));
		assert_int_equal(lw_engine_close(engines[i]), 0);
	}
	pthread_barrier_destroy(&barrier);
	peer_end(&peer);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_100_opens_at_once_of_20000_buffers_all_get_all),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
