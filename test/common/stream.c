/* SPDX-License-Identifier: Apache-2.0 */
#include "common/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "lib/clock.h"

#define POLLED 32

static void submit(struct test_stream *stream, struct lw_channel *channel, uint32_t place)
{
	struct lw_request request = stream->request;
	lw_batch_t batch;

	request.local = (char *)request.local + place * request.length;
	request.offset += place * request.length;
	if (stream->both && place % 2 != 0)
		request.op = LW_READ;
	if (lw_batch_alloc(channel, 1, LW_BATCH_EVENT, (void *)(uintptr_t)place, &batch) != 0)
		fail_msg("no batch: %s", lw_last_error());
	atomic_store(&stream->begun_ns[place], lw_now_ns());
	test_submit(channel, batch, &request, 1);
}

static void take(struct test_stream *stream, const struct lw_completion *done)
{
	uint32_t place = (uint32_t)(uintptr_t)done->user;
	uint64_t now_ns = lw_now_ns();

	if (done->failed != 0) {
		atomic_fetch_add(&stream->failed, 1);
	} else {
		atomic_fetch_add(&stream->completed, 1);
		atomic_fetch_add(&stream->bytes, stream->request.length);
	}
	if (atomic_load(&stream->begun_ns[place]) <= atomic_load(&stream->mark_ns))
		atomic_store(&stream->marked_end_ns, now_ns);
	atomic_store(&stream->begun_ns[place], 0);
	lw_batch_free(stream->engine, done->batch);
}

static void *work(void *arg)
{
	struct test_stream *stream = arg;
	struct lw_completion done[POLLED];
	struct lw_channel *channel;
	uint32_t live = stream->depth;

	if (lw_channel_self(stream->engine, &channel) != 0)
		fail_msg("no channel: %s", lw_last_error());
	for (uint32_t i = 0; i < stream->depth; i++)
		submit(stream, channel, i);
	while (live > 0) {
		int got = lw_channel_wait(channel, done, POLLED, 100);

		if (got < 0)
			fail_msg("wait: %s", lw_last_error());
		for (int i = 0; i < got; i++) {
			take(stream, &done[i]);
			if (atomic_load(&stream->stop))
				live--;
			else
				submit(stream, channel, (uint32_t)(uintptr_t)done[i].user);
		}
	}
	return NULL;
}

void test_stream_begin(struct test_stream *stream)
{
	assert_in_range(stream->depth, 1, TEST_STREAM_DEPTH);
	atomic_store(&stream->stop, false);
	assert_int_equal(pthread_create(&stream->thread, NULL, work, stream), 0);
}

void test_stream_end(struct test_stream *stream)
{
	atomic_store(&stream->stop, true);
	pthread_join(stream->thread, NULL);
}

uint64_t test_stream_bytes_in(struct test_stream *stream, uint32_t ms)
{
	uint64_t before = atomic_load(&stream->bytes);

	test_sleep_ms(ms);
	return atomic_load(&stream->bytes) - before;
}

void test_stream_mark(struct test_stream *stream)
{
	uint64_t now_ns = lw_now_ns();

	atomic_store(&stream->marked_end_ns, now_ns);
	atomic_store(&stream->mark_ns, now_ns);
}

bool test_stream_marked(struct test_stream *stream, uint64_t *after_ns)
{
	uint64_t mark_ns = atomic_load(&stream->mark_ns);

	for (uint32_t i = 0; i < stream->depth; i++) {
		uint64_t begun_ns = atomic_load(&stream->begun_ns[i]);

		if (begun_ns != 0 && begun_ns <= mark_ns)
			return false;
	}
	*after_ns = atomic_load(&stream->marked_end_ns) - mark_ns;
	return true;
}
