/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to one peer without a pause, so many side by side, by a thread of its own. */
#ifndef LW_TEST_STREAM_H
#define LW_TEST_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

#define TEST_STREAM_DEPTH 256u

struct test_stream {
	/* the caller's, before the begin */
	struct lw_engine *engine;
	struct lw_request request; /* the first of them; the next ones lie behind it, on both sides */
	uint32_t depth;            /* at most TEST_STREAM_DEPTH */
	bool both;                 /* every other one is a READ */
	/* counted; any thread may read */
	atomic_ullong completed, failed, bytes;
	atomic_ullong mark_ns, marked_end_ns; /* see test_stream_marked */
	/* the stream's own */
	pthread_t thread;
	atomic_bool stop;
	atomic_ullong begun_ns[TEST_STREAM_DEPTH]; /* 0: not under way */
};

void test_stream_begin(struct test_stream *stream);
/* Waits until all requests have ended, which must happen. */
void test_stream_end(struct test_stream *stream);

/* Bytes completed within a time. */
uint64_t test_stream_bytes_in(struct test_stream *stream, uint32_t ms);

/* Puts a mark: what is under way now is looked after. */
void test_stream_mark(struct test_stream *stream);
/* True once all that was under way at the mark has ended; *after_ns: how long after the mark the last of it did. */
bool test_stream_marked(struct test_stream *stream, uint64_t *after_ns);

#endif
