/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines of one process over tcp: every byte in its place, and every request an end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/engines.h"
#include "common/fake.h"

#define AREA ((size_t)512 * 1024)
#define GUARD ((size_t)64)
#define ENDS_MS 3000 /* an end is promised within 1 s; a machine that has other things to do gets more */

/* Engine a submits, engine b serves; each has an area of its own, and a model of what it should hold. */
struct pair {
	struct lw_engine *a, *b;
	struct lw_channel *channel;
	lw_segment_t segment;
	unsigned char *local, *remote, *local_model, *remote_model;
	uint64_t sequence;
};

static void fill(unsigned char *bytes, size_t length, uint64_t *sequence)
{
	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = test_random(sequence);

		memcpy(&bytes[i], &word, length - i < 8 ? length - i : 8);
	}
}

static struct pair open_pair(const char *extra_a, const char *extra_b)
{
	struct pair pair = {.a = test_engine(extra_a), .b = test_engine(extra_b), .sequence = test_seed()};

	pair.local = malloc(AREA);
	pair.remote = malloc(AREA);
	pair.local_model = malloc(AREA);
	pair.remote_model = malloc(AREA);
	assert_true(pair.local != NULL && pair.remote != NULL && pair.local_model != NULL && pair.remote_model != NULL);
	fill(pair.local, AREA, &pair.sequence);
	fill(pair.remote, AREA, &pair.sequence);
	memcpy(pair.local_model, pair.local, AREA);
	memcpy(pair.remote_model, pair.remote, AREA);
	assert_int_equal(lw_channel_open(pair.a, &pair.channel), 0);
	return pair;
}

static void close_pair(struct pair *pair)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	/* A worker that told the end of a batch may be about to let go of it. */
	TEST_EVENTUALLY((lw_stats_engine(pair->a, &stats), stats.live_batches == 0));
	assert_int_equal(lw_engine_close(pair->a), 0);
	assert_int_equal(lw_engine_close(pair->b), 0);
	free(pair->local);
	free(pair->remote);
	free(pair->local_model);
	free(pair->remote_model);
}

/* Both areas as one buffer each, and the segment. */
static struct pair open_whole_pair(const char *extra_a, const char *extra_b)
{
	struct pair pair = open_pair(extra_a, extra_b);

	test_register(pair.a, pair.local, AREA, LW_ACCESS_LOCAL);
	test_register(pair.b, pair.remote, AREA, LW_ACCESS_REMOTE);
	pair.segment = test_segment(pair.a, pair.b);
	return pair;
}

static struct lw_request request_of(const struct pair *pair, int op, size_t local, size_t remote, size_t length)
{
	return (struct lw_request){.local = pair->local + local,
				   .segment = pair->segment,
				   .offset = (uint64_t)(uintptr_t)pair->remote + remote,
				   .length = length,
				   .op = (uint8_t)op};
}

static void model(struct pair *pair, const struct lw_request *request)
{
	size_t local = (size_t)((unsigned char *)request->local - pair->local);
	size_t remote = (size_t)(request->offset - (uint64_t)(uintptr_t)pair->remote);

	if (request->op == LW_READ)
		memcpy(pair->local_model + local, pair->remote_model + remote, request->length);
	else
		memcpy(pair->remote_model + remote, pair->local_model + local, request->length);
}

static void assert_as_modelled(const struct pair *pair)
{
	assert_memory_equal(pair->local, pair->local_model, AREA);
	assert_memory_equal(pair->remote, pair->remote_model, AREA);
}

static void assert_completes(struct pair *pair, struct lw_request request)
{
	struct lw_task_status task = test_transfer(pair->a, pair->channel, request);

	if (task.state != LW_COMPLETED)
		fail_msg("%llu bytes ended in state %u: %s", (unsigned long long)request.length, task.state,
			 lw_reason_string((int)task.reason));
	assert_int_equal(task.error, 0);
	assert_int_equal(task.bytes, request.length);
	model(pair, &request);
}

static void assert_fails(struct pair *pair, struct lw_request request, enum lw_reason reason)
{
	struct lw_task_status task = test_transfer(pair->a, pair->channel, request);

	assert_int_equal(task.state, LW_FAILED);
	assert_int_equal(task.reason, reason);
	assert_true(task.error < 0);
	assert_int_equal(task.bytes, 0);
}

static size_t below(struct pair *pair, size_t limit)
{
	return (size_t)(test_random(&pair->sequence) % limit);
}

static void odd_sizes(const char *extra_a, const char *extra_b)
{
	static const size_t sizes[] = {1,    2,    3,    7,     8,     9,     23,    24,    25,
				       4095, 4096, 4097, 61439, 61440, 65535, 65536, 65537, 300001};
	struct pair pair = open_whole_pair(extra_a, extra_b);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (int k = 0; k < 6; k++) {
			size_t local = below(&pair, AREA - sizes[i]), remote = below(&pair, AREA - sizes[i]);

			assert_completes(&pair, request_of(&pair, k % 2, local, remote, sizes[i]));
			assert_as_modelled(&pair);
		}
	}
	assert_completes(&pair, request_of(&pair, LW_WRITE, 0, 0, AREA));
	assert_completes(&pair, request_of(&pair, LW_READ, AREA - 1, AREA - 1, 1));
	assert_as_modelled(&pair);
	close_pair(&pair);
}

static void test_transfer_odd_sizes_and_offsets_are_exact(void **state)
{
	(void)state;
	odd_sizes(NULL, NULL);
}

static void test_transfer_in_small_slices_over_many_lanes_is_exact(void **state)
{
	(void)state;
	odd_sizes("slice_bytes=4096 tcp_lanes=3", TEST_TSAN ? NULL : "workers=2");
}

static void test_transfer_driven_by_the_caller_is_exact(void **state)
{
	(void)state;
	odd_sizes("poll=caller slice_bytes=5000", NULL);
}

static void test_transfer_from_busy_workers_is_exact(void **state)
{
	(void)state;
	odd_sizes("poll=busy", "idle_us=0");
}

/* Registers an area as chunks of random length side by side; edges[i] is where chunk i begins. */
static size_t register_chunks(struct pair *pair, struct lw_engine *engine, unsigned char *area, size_t *edges)
{
	struct lw_memory list[512];
	lw_buffer_t ids[512];
	size_t count = 0, at = GUARD;

	while (at < AREA - GUARD && count < 512) {
		size_t length = 1 + below(pair, count % 3 == 0 ? 20 : 20000);

		length = length < AREA - GUARD - at ? length : AREA - GUARD - at;
		edges[count] = at;
		list[count++] = (struct lw_memory){.addr = area + at, .length = length, .access = LW_ACCESS_REMOTE};
		at += length;
	}
	edges[count] = at;
	assert_int_equal(lw_memory_register(engine, list, count, ids), 0);
	return count;
}

/* A range that begins inside a random chunk and ends inside one of the next three. */
static size_t pick(struct pair *pair, const size_t *edges, size_t count, size_t *length)
{
	size_t first = below(pair, count), last = first + below(pair, 3);
	size_t begin = edges[first] + below(pair, edges[first + 1] - edges[first]), end;

	last = last < count ? last : count - 1;
	end = edges[last] + 1 + below(pair, edges[last + 1] - edges[last]);
	*length = end > begin ? end - begin : 1;
	return begin;
}

static void test_transfer_across_seams_is_exact(void **state)
{
	static size_t local_edges[513], remote_edges[513];
	struct pair pair = open_pair("slice_bytes=4096", NULL);
	size_t locals = register_chunks(&pair, pair.a, pair.local, local_edges);
	size_t remotes = register_chunks(&pair, pair.b, pair.remote, remote_edges);

	(void)state;
	pair.segment = test_segment(pair.a, pair.b);
	for (int i = 0; i < 1500; i++) {
		size_t local_length, remote_length, length;
		size_t local = pick(&pair, local_edges, locals, &local_length);
		size_t remote = pick(&pair, remote_edges, remotes, &remote_length);
		uint8_t op = i % 2 == 0 ? LW_READ : LW_WRITE;
		size_t from, to;

		length = i % 3 == 0 ? local_length : remote_length;
		length = length < local_edges[locals] - local ? length : local_edges[locals] - local;
		length = length < remote_edges[remotes] - remote ? length : remote_edges[remotes] - remote;
		assert_completes(&pair, request_of(&pair, op, local, remote, length));
		from = local - GUARD;
		assert_memory_equal(pair.local + from, pair.local_model + from, length + 2 * GUARD);
		to = remote - GUARD;
		assert_memory_equal(pair.remote + to, pair.remote_model + to, length + 2 * GUARD);
	}
	assert_as_modelled(&pair);
	/* One byte too many, on either side and at either end: refused before a byte moves. */
	for (uint8_t op = LW_READ; op <= LW_WRITE; op++) {
		size_t whole = local_edges[locals] - GUARD;

		assert_fails(&pair, request_of(&pair, op, GUARD - 1, GUARD, 3000), LW_REASON_LOCAL_RANGE);
		assert_fails(&pair, request_of(&pair, op, local_edges[locals] - 2999, GUARD, 3000),
			     LW_REASON_LOCAL_RANGE);
		assert_fails(&pair, request_of(&pair, op, GUARD, GUARD - 1, 3000), LW_REASON_REMOTE_RANGE);
		assert_fails(&pair, request_of(&pair, op, GUARD, remote_edges[remotes] - 2999, 3000),
			     LW_REASON_REMOTE_RANGE);
		assert_fails(&pair, request_of(&pair, op, GUARD, GUARD, whole + 1), LW_REASON_LOCAL_RANGE);
	}
	assert_as_modelled(&pair);
	close_pair(&pair);
}

/* Requests side by side that lie in different buffers, all under way at once. */
static void test_transfer_neighbours_at_once_are_exact(void **state)
{
	static size_t edges[513];
	struct pair pair = open_pair(NULL, NULL);
	size_t count = register_chunks(&pair, pair.b, pair.remote, edges);

	(void)state;
	test_register(pair.a, pair.local, AREA, LW_ACCESS_LOCAL);
	pair.segment = test_segment(pair.a, pair.b);
	for (int op = LW_READ; op <= LW_WRITE; op++) {
		struct lw_request *list = calloc(count, sizeof(*list));
		struct lw_batch_status status;
		lw_batch_t batch;

		assert_non_null(list);
		assert_int_equal(lw_batch_alloc(pair.channel, (uint32_t)count, 0, NULL, &batch), 0);
		fill(pair.local, AREA, &pair.sequence);
		memcpy(pair.local_model, pair.local, AREA);
		for (size_t i = 0; i < count; i++) {
			list[i] = request_of(&pair, (uint8_t)op, edges[i], edges[i], edges[i + 1] - edges[i]);
			model(&pair, &list[i]);
		}
		assert_int_equal(lw_submit(pair.channel, batch, list, count), 0);
		/* The array is the caller's again. */
		memset(list, 0xff, count * sizeof(*list));
		free(list);
		status = test_wait(pair.a, batch);
		assert_int_equal(status.state, LW_COMPLETED);
		assert_int_equal(status.bytes, edges[count] - GUARD);
		assert_int_equal(lw_batch_free(pair.a, batch), 0);
		assert_as_modelled(&pair);
	}
	close_pair(&pair);
}

static void test_transfer_access_is_enforced(void **state)
{
	enum { PART = 4096 };
	static const uint32_t access[] = {LW_ACCESS_LOCAL, LW_ACCESS_REMOTE_READ, LW_ACCESS_REMOTE_WRITE,
					  LW_ACCESS_REMOTE};
	struct pair pair = open_pair(NULL, NULL);

	(void)state;
	test_register(pair.a, pair.local, AREA, LW_ACCESS_LOCAL);
	for (size_t i = 0; i < 4; i++)
		test_register(pair.b, pair.remote + i * PART, PART, access[i]);
	pair.segment = test_segment(pair.a, pair.b);
	for (size_t i = 0; i < 4; i++) {
		struct lw_request get = request_of(&pair, LW_READ, 0, i * PART, PART);
		struct lw_request put = request_of(&pair, LW_WRITE, PART, i * PART, PART);

		if ((access[i] & LW_ACCESS_REMOTE_READ) != 0)
			assert_completes(&pair, get);
		else
			assert_fails(&pair, get, LW_REASON_REMOTE_RANGE);
		if ((access[i] & LW_ACCESS_REMOTE_WRITE) != 0)
			assert_completes(&pair, put);
		else
			assert_fails(&pair, put, LW_REASON_REMOTE_RANGE);
		assert_as_modelled(&pair);
	}
	/* Across the seam both sides of it have to allow it. */
	assert_fails(&pair, request_of(&pair, LW_READ, 0, 2 * PART - 1, 2), LW_REASON_REMOTE_RANGE);
	assert_fails(&pair, request_of(&pair, LW_WRITE, 0, 2 * PART - 1, 2), LW_REASON_REMOTE_RANGE);
	assert_completes(&pair, request_of(&pair, LW_WRITE, 0, 3 * PART - 1, 2));
	assert_as_modelled(&pair);
	close_pair(&pair);
}

static void test_transfer_bad_ones_among_good_ones_spoil_nothing(void **state)
{
	enum { TASKS = 64, PART = 1000 };
	struct pair pair = open_whole_pair("tcp_lanes=2", NULL);
	char text[300];

	(void)state;
	for (int round = 0; round < 60; round++) {
		struct lw_request list[TASKS];
		enum lw_reason expected[TASKS];
		struct lw_task_status task;
		lw_batch_t batch;

		assert_int_equal(lw_batch_alloc(pair.channel, TASKS, 0, NULL, &batch), 0);
		for (size_t i = 0; i < TASKS; i++) {
			uint8_t op = (uint8_t)below(&pair, 2);
			size_t dice = below(&pair, 6);

			list[i] = request_of(&pair, op, i * PART, i * PART, 1 + below(&pair, PART));
			expected[i] = LW_REASON_NONE;
			if (dice == 0) {
				list[i].local = pair.local_model + i * PART;
				expected[i] = LW_REASON_LOCAL_RANGE;
			} else if (dice == 1) {
				list[i].offset = (uint64_t)(uintptr_t)pair.remote_model + i * PART;
				expected[i] = LW_REASON_REMOTE_RANGE;
			} else {
				model(&pair, &list[i]);
			}
		}
		assert_int_equal(lw_submit(pair.channel, batch, list, TASKS), 0);
		test_wait(pair.a, batch);
		for (uint32_t i = 0; i < TASKS; i++) {
			assert_int_equal(lw_task_status(pair.a, batch, i, &task), 0);
			assert_int_equal(task.reason, expected[i]);
			assert_int_equal(task.state, expected[i] == LW_REASON_NONE ? LW_COMPLETED : LW_FAILED);
			assert_int_equal(task.bytes, expected[i] == LW_REASON_NONE ? list[i].length : 0);
			if (expected[i] != LW_REASON_REMOTE_RANGE || round > 0)
				continue;
			assert_true(lw_task_reason(pair.a, batch, i, text, sizeof(text)) > 0);
			assert_non_null(strstr(text, lw_engine_name(pair.b)));
		}
		assert_int_equal(lw_batch_free(pair.a, batch), 0);
		assert_as_modelled(&pair);
	}
	close_pair(&pair);
}

/* The peer takes a buffer back that we still believe in: it refuses, and what follows on the connection is exact. */
static void test_transfer_refused_by_the_peer_spoils_nothing(void **state)
{
	enum { TASKS = 32, PART = 8192 };
	struct pair pair = open_pair("refresh=off", NULL);
	unsigned char *gone = malloc(PART);
	lw_buffer_t buffer;

	(void)state;
	assert_non_null(gone);
	memset(gone, 'g', PART);
	test_register(pair.a, pair.local, AREA, LW_ACCESS_LOCAL);
	test_register(pair.b, pair.remote, AREA, LW_ACCESS_REMOTE);
	buffer = test_register(pair.b, gone, PART, LW_ACCESS_REMOTE);
	pair.segment = test_segment(pair.a, pair.b);
	assert_int_equal(lw_memory_unregister(pair.b, &buffer, 1, 0), 0);
	for (int round = 0; round < 40; round++) {
		struct lw_request list[TASKS];
		struct lw_task_status task;
		lw_batch_t batch;
		size_t refused = below(&pair, TASKS);

		assert_int_equal(lw_batch_alloc(pair.channel, TASKS, 0, NULL, &batch), 0);
		for (size_t i = 0; i < TASKS; i++) {
			list[i] =
				request_of(&pair, (uint8_t)below(&pair, 2), i * PART, i * PART, 1 + below(&pair, PART));
			if (i == refused)
				list[i].offset = (uint64_t)(uintptr_t)gone;
			else
				model(&pair, &list[i]);
		}
		assert_int_equal(lw_submit(pair.channel, batch, list, TASKS), 0);
		assert_int_equal(test_wait(pair.a, batch).failed, 1);
		assert_int_equal(lw_task_status(pair.a, batch, (uint32_t)refused, &task), 0);
		assert_int_equal(task.state, LW_FAILED);
		assert_int_equal(task.reason, LW_REASON_REFUSED);
		assert_int_equal(task.error, -EACCES);
		assert_int_equal(lw_batch_free(pair.a, batch), 0);
		assert_as_modelled(&pair);
	}
	for (size_t i = 0; i < PART; i++)
		assert_int_equal(gone[i], 'g');
	/* An open asks again: then it is known here already. */
	assert_int_equal(test_segment(pair.a, pair.b), pair.segment);
	assert_int_equal(test_transfer(pair.a, pair.channel,
				       (struct lw_request){.local = pair.local,
							   .segment = pair.segment,
							   .offset = (uint64_t)(uintptr_t)gone,
							   .length = 1})
				 .reason,
			 LW_REASON_REMOTE_RANGE);
	free(gone);
	close_pair(&pair);
}

static void test_transfer_of_no_bytes_completes_wherever_it_points(void **state)
{
	struct pair pair = open_whole_pair(NULL, NULL);
	struct lw_request nothing = {.local = pair.local_model, .segment = pair.segment, .offset = UINT64_MAX};
	struct lw_task_status task = test_transfer(pair.a, pair.channel, nothing);

	(void)state;
	assert_int_equal(task.state, LW_COMPLETED);
	assert_int_equal(task.bytes, 0);
	nothing.segment = LW_SEGMENT_LOCAL;
	nothing.local = NULL;
	assert_int_equal(test_transfer(pair.a, pair.channel, nothing).state, LW_COMPLETED);
	close_pair(&pair);
}

static void test_transfer_inside_one_engine_is_exact(void **state)
{
	struct pair pair = open_pair(NULL, NULL);
	lw_segment_t own = 77;

	(void)state;
	test_register(pair.a, pair.local, AREA, LW_ACCESS_REMOTE);
	test_register(pair.a, pair.remote, AREA, LW_ACCESS_REMOTE);
	assert_int_equal(lw_segment_open(pair.a, lw_engine_name(pair.a), 0, &own), 0);
	assert_int_equal(own, LW_SEGMENT_LOCAL);
	pair.segment = LW_SEGMENT_LOCAL;
	for (int i = 0; i < 50; i++) {
		size_t length = 1 + below(&pair, 100000);

		assert_completes(&pair, request_of(&pair, i % 2, below(&pair, AREA - length),
						   below(&pair, AREA - length), length));
		assert_as_modelled(&pair);
	}
	assert_int_equal(lw_segment_probe(pair.a, LW_SEGMENT_LOCAL, 0), 0);
	close_pair(&pair);
}

static struct lw_note note_of(const char *name, const char *text)
{
	return (struct lw_note){.name = name, .name_size = strlen(name), .text = text, .text_size = strlen(text)};
}

static void assert_note(struct lw_engine *engine, const char *name, const char *text)
{
	struct lw_note *note = NULL;

	TEST_EVENTUALLY(lw_note_poll(engine, &note) == 1);
	assert_int_equal(note->name_size, strlen(name));
	assert_string_equal(note->name, name);
	assert_int_equal(note->text_size, strlen(text));
	assert_string_equal(note->text, text);
	lw_note_free(note);
}

static void test_notify_contents_arrive_as_they_were(void **state)
{
	static char all[256], big_name[65537], big_text[524289];
	static const char *const texts[][2] = {{"", ""},
					       {"name", ""},
					       {"", "text"},
					       {"a \"quoted\" \\ name", "line\nfeed\ttab\r"},
					       {"\x01\x1f\x7f", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
					       {"{\"name\":1}", "[]"},
					       {all, all},
					       {big_name, "t"},
					       {"n", big_text}};
	struct pair pair = open_whole_pair(NULL, NULL);

	(void)state;
	for (int i = 0; i < 255; i++)
		all[i] = (char)(i + 1);
	memset(big_name, 'n', sizeof(big_name) - 1);
	memset(big_text, 't', sizeof(big_text) - 1);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct lw_note note = note_of(texts[i][0], texts[i][1]), *none = NULL;

		assert_int_equal(lw_notify(pair.a, pair.segment, &note, 0), 0);
		assert_note(pair.b, texts[i][0], texts[i][1]);
		assert_int_equal(lw_note_poll(pair.b, &none), 0);
	}
	close_pair(&pair);
}

static void test_notify_full_queue_is_enobufs_and_keeps_order(void **state)
{
	struct pair pair = open_whole_pair(NULL, "notify_queue=3");
	char texts[5][8];

	(void)state;
	for (int i = 0; i < 5; i++) {
		struct lw_note note;

		snprintf(texts[i], sizeof(texts[i]), "%d", i);
		note = note_of("n", texts[i]);
		assert_int_equal(lw_notify(pair.a, pair.segment, &note, 0), i < 3 ? 0 : -ENOBUFS);
	}
	for (int i = 0; i < 3; i++)
		assert_note(pair.b, "n", texts[i]);
	assert_int_equal(lw_notify(pair.a, pair.segment, &(struct lw_note){.name = "again", .name_size = 5}, 0), 0);
	assert_note(pair.b, "again", "");
	close_pair(&pair);
}

static void test_submit_notify_comes_after_the_data_and_once(void **state)
{
	enum { TASKS = 16, PART = 16384 };
	struct pair pair = open_whole_pair("slice_bytes=4096", NULL);
	struct lw_note *none = NULL;

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct lw_request list[TASKS];
		struct lw_note note;
		char text[16], copy[16];
		lw_batch_t batch;

		fill(pair.local, AREA, &pair.sequence);
		memcpy(pair.local_model, pair.local, AREA);
		assert_int_equal(lw_batch_alloc(pair.channel, TASKS, 0, NULL, &batch), 0);
		for (size_t i = 0; i < TASKS; i++) {
			list[i] = request_of(&pair, LW_WRITE, i * PART, i * PART, PART);
			model(&pair, &list[i]);
		}
		snprintf(text, sizeof(text), "round %d", round);
		snprintf(copy, sizeof(copy), "%s", text);
		note = note_of("done", copy);
		assert_int_equal(lw_submit_notify(pair.channel, batch, list, TASKS, &note), 0);
		memset(copy, 'x', sizeof(copy)); /* it was copied */
		memset(list, 0xff, sizeof(list));
		assert_note(pair.b, "done", text);
		assert_as_modelled(&pair);
		test_wait(pair.a, batch);
		assert_int_equal(lw_batch_free(pair.a, batch), 0);
	}
	test_sleep_ms(20);
	assert_int_equal(lw_note_poll(pair.b, &none), 0);
	close_pair(&pair);
}

static void test_submit_notify_is_dropped_when_a_task_fails(void **state)
{
	struct pair pair = open_whole_pair(NULL, NULL);
	struct lw_note note = note_of("never", "never"), last = note_of("last", ""), *received = NULL;

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct lw_request list[2] = {request_of(&pair, LW_WRITE, 0, 0, 1000),
					     request_of(&pair, LW_WRITE, 0, 2000, 1000)};
		lw_batch_t batch;

		if (round % 2 == 0)
			list[round % 4 / 2].offset = 4096;
		else
			list[round % 4 / 2].local = pair.local_model;
		assert_int_equal(lw_batch_alloc(pair.channel, 3, 0, NULL, &batch), 0);
		assert_int_equal(lw_submit_notify(pair.channel, batch, list, 2, &note), 0);
		assert_int_equal(test_wait(pair.a, batch).failed, 1);
		assert_int_equal(lw_batch_free(pair.a, batch), 0);
	}
	assert_int_equal(lw_notify(pair.a, pair.segment, &last, 0), 0);
	assert_int_equal(lw_note_poll(pair.b, &received), 1);
	assert_string_equal(received->name, "last");
	lw_note_free(received);
	close_pair(&pair);
}

/* A pair whose segment is a peer that never answers. */
struct mute {
	struct pair pair;
	struct test_fake *fake;
	lw_batch_t batch;
	uint32_t tasks;
};

static struct lw_request mute_request(const struct mute *mute, int op, size_t at, size_t length)
{
	struct lw_request request = request_of(&mute->pair, op, at, 0, length);

	request.offset = TEST_FAKE_ADDR + at;
	return request;
}

static uint64_t slices_on_lanes(struct lw_engine *engine)
{
	struct lw_lane_stats lanes[64];
	int count = lw_stats_lanes(engine, lanes, 64);
	uint64_t slices = 0;

	assert_in_range(count, 0, 64);
	for (int i = 0; i < count; i++)
		slices += lanes[i].inflight_slices;
	return slices;
}

/* Opens it with so many requests of 16 KiB under way, of which only some fit on the connection. */
static struct mute open_mute(uint32_t tasks, uint32_t timeout_ms)
{
	struct mute mute = {.pair = open_pair("workers=1", NULL), .fake = test_fake_open(), .tasks = tasks};
	struct lw_request *list = calloc(tasks, sizeof(*list));

	assert_non_null(list);
	test_register(mute.pair.a, mute.pair.local, AREA, LW_ACCESS_LOCAL);
	test_register(mute.pair.b, mute.pair.remote, AREA, LW_ACCESS_REMOTE);
	assert_int_equal(lw_segment_open(mute.pair.a, test_fake_name(mute.fake), 0, &mute.pair.segment), 0);
	assert_int_equal(lw_batch_alloc(mute.pair.channel, tasks, 0, NULL, &mute.batch), 0);
	for (uint32_t i = 0; i < tasks; i++) {
		list[i] = mute_request(&mute, i % 3 == 0 ? LW_READ : LW_WRITE, i % 16 * 16384, 16384);
		list[i].timeout_ms = timeout_ms;
	}
	assert_int_equal(lw_submit(mute.pair.channel, mute.batch, list, tasks), 0);
	free(list);
	TEST_EVENTUALLY(slices_on_lanes(mute.pair.a) > 0); /* some are on the wire */
	return mute;
}

static void close_mute(struct mute *mute)
{
	assert_int_equal(lw_batch_free(mute->pair.a, mute->batch), 0);
	test_fake_close(mute->fake);
	close_pair(&mute->pair);
}

static void assert_all_end(struct mute *mute, uint64_t begin_ms, uint64_t bound_ms, enum lw_state state,
			   enum lw_reason reason)
{
	struct lw_batch_status status = test_wait(mute->pair.a, mute->batch);
	struct lw_task_status task;

	assert_in_range(test_now_ms() - begin_ms, 0, bound_ms);
	assert_int_equal(status.failed, mute->tasks);
	for (uint32_t i = 0; i < mute->tasks; i++) {
		assert_int_equal(lw_task_status(mute->pair.a, mute->batch, i, &task), 0);
		assert_int_equal(task.state, state);
		assert_int_equal(task.reason, reason);
	}
}

static void assert_all_pending(struct mute *mute)
{
	struct lw_batch_status status;

	assert_int_equal(lw_batch_status(mute->pair.a, mute->batch, &status), 0);
	assert_int_equal(status.state, LW_PENDING);
	assert_int_equal(status.done, 0);
	assert_int_equal(lw_batch_free(mute->pair.a, mute->batch), -EBUSY);
}

static void test_transfer_deadline_ends_what_a_mute_peer_holds(void **state)
{
	uint64_t begin_ms = test_now_ms();
	struct mute mute = open_mute(400, 150);

	(void)state;
	assert_all_pending(&mute);
	assert_all_end(&mute, begin_ms, 150 + ENDS_MS, LW_TIMEOUT, LW_REASON_TIMEOUT);
	assert_true(test_now_ms() - begin_ms >= 149);
	close_mute(&mute);
}

static void test_transfer_mute_peer_delays_no_other(void **state)
{
	struct mute mute = open_mute(1000, 0);
	struct pair *pair = &mute.pair;
	lw_segment_t silent = pair->segment;

	(void)state;
	pair->segment = test_segment(pair->a, pair->b);
	for (int i = 0; i < 200; i++)
		assert_completes(pair, request_of(pair, i % 2, 300000 + below(pair, 1000), 0, 10000));
	assert_as_modelled(pair);
	pair->segment = silent;
	assert_all_pending(&mute);
	assert_int_equal(lw_segment_close(pair->a, silent), 0);
	assert_all_end(&mute, test_now_ms(), ENDS_MS, LW_CANCELED, LW_REASON_SEGMENT_CLOSED);
	close_mute(&mute);
}

static void test_batch_cancel_ends_it_within_a_second(void **state)
{
	struct mute mute = open_mute(400, 0);

	(void)state;
	assert_all_pending(&mute);
	assert_int_equal(lw_batch_cancel(mute.pair.a, mute.batch), 0);
	assert_all_end(&mute, test_now_ms(), ENDS_MS, LW_CANCELED, LW_REASON_CANCELED);
	assert_int_equal(lw_batch_cancel(mute.pair.a, mute.batch), 0);
	close_mute(&mute);
}

static void test_segment_cancel_ends_all_of_it_and_the_segment_works_on(void **state)
{
	struct mute mute = open_mute(400, 0);
	struct lw_batch_status status;
	struct lw_request more = mute_request(&mute, LW_READ, 0, 1);
	lw_batch_t batch;

	(void)state;
	assert_int_equal(lw_segment_cancel(mute.pair.a, mute.pair.segment), 0);
	assert_all_end(&mute, test_now_ms(), ENDS_MS, LW_CANCELED, LW_REASON_CANCELED);
	assert_int_equal(lw_batch_alloc(mute.pair.channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(mute.pair.channel, batch, &more, 1), 0);
	assert_int_equal(lw_batch_wait(mute.pair.a, batch, 50, &status), -ETIMEDOUT);
	assert_int_equal(lw_segment_close(mute.pair.a, mute.pair.segment), 0);
	assert_int_equal(test_wait(mute.pair.a, batch).failed, 1);
	assert_int_equal(lw_batch_free(mute.pair.a, batch), 0);
	close_mute(&mute);
}

/* Cancels one by one from the last: those that wait end at once, the others go on. */
static void test_task_cancel_ends_that_one_alone(void **state)
{
	struct mute mute = open_mute(400, 0);
	struct lw_task_status task;
	struct lw_batch_status status;

	(void)state;
	for (uint32_t i = 0; i < 50; i++) {
		uint32_t number = mute.tasks - 1 - i;

		assert_int_equal(lw_task_cancel(mute.pair.a, mute.batch, number), 0);
		do
			assert_int_equal(lw_task_status(mute.pair.a, mute.batch, number, &task), 0);
		while (task.state == LW_PENDING);
		assert_int_equal(task.state, LW_CANCELED);
		assert_int_equal(task.error, -ECANCELED);
		assert_int_equal(lw_batch_status(mute.pair.a, mute.batch, &status), 0);
		assert_true(status.done <= i + 1);
	}
	assert_int_equal(lw_batch_cancel(mute.pair.a, mute.batch), 0);
	assert_all_end(&mute, test_now_ms(), ENDS_MS, LW_CANCELED, LW_REASON_CANCELED);
	close_mute(&mute);
}

static void test_segment_close_ends_what_is_under_way(void **state)
{
	struct mute mute = open_mute(400, 0);
	struct lw_request late = mute_request(&mute, LW_READ, 0, 1);
	lw_batch_t batch;
	lw_segment_t again = 0;

	(void)state;
	assert_int_equal(lw_segment_open(mute.pair.a, test_fake_name(mute.fake), 0, &again), 0);
	assert_int_equal(again, mute.pair.segment);
	assert_int_equal(lw_segment_close(mute.pair.a, again), 0);
	assert_all_pending(&mute);
	assert_int_equal(lw_segment_close(mute.pair.a, again), 0);
	assert_all_end(&mute, test_now_ms(), ENDS_MS, LW_CANCELED, LW_REASON_SEGMENT_CLOSED);
	assert_int_equal(lw_batch_alloc(mute.pair.channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(mute.pair.channel, batch, &late, 1), -EBADF);
	assert_int_equal(lw_batch_free(mute.pair.a, batch), 0);
	close_mute(&mute);
}

static void test_segment_close_and_reopen_works_many_times(void **state)
{
	struct pair pair = open_whole_pair(NULL, NULL);
	int fds = 0;

	(void)state;
	for (int i = 0; i < 100; i++) {
		lw_segment_t old = pair.segment;

		for (int k = 0; k < 3; k++)
			assert_completes(&pair,
					 request_of(&pair, k % 2, below(&pair, 1000), below(&pair, 1000), 20000));
		assert_int_equal(lw_segment_close(pair.a, old), 0);
		pair.segment = test_segment(pair.a, pair.b);
		assert_int_not_equal(pair.segment, old);
		if (i == 10)
			fds = test_fds();
	}
	assert_completes(&pair, request_of(&pair, LW_WRITE, 0, 0, 1));
	assert_as_modelled(&pair);
	TEST_EVENTUALLY(test_fds() <= fds + 2);
	close_pair(&pair);
}

static void test_unregister_ends_what_uses_the_memory_and_only_that(void **state)
{
	struct mute mute = open_mute(100, 0);
	size_t length = (size_t)1 << 20;
	unsigned char *own = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct lw_request list[4];
	struct lw_batch_status status;
	struct lw_task_status task;
	lw_buffer_t buffer;
	lw_batch_t batch;

	(void)state;
	assert_ptr_not_equal(own, MAP_FAILED);
	buffer = test_register(mute.pair.a, own, length, LW_ACCESS_LOCAL);
	assert_int_equal(lw_batch_alloc(mute.pair.channel, 4, 0, NULL, &batch), 0);
	for (size_t i = 0; i < 4; i++) {
		list[i] = mute_request(&mute, i % 2 == 0 ? LW_READ : LW_WRITE, 0, 100000);
		list[i].local = own + i * 200000;
	}
	assert_int_equal(lw_submit(mute.pair.channel, batch, list, 4), 0);
	TEST_EVENTUALLY(slices_on_lanes(mute.pair.a) == 104);
	assert_int_equal(lw_memory_unregister(mute.pair.a, &buffer, 1, 0), 0);
	assert_int_equal(munmap(own, length), 0);
	assert_int_equal(lw_batch_wait(mute.pair.a, batch, 1000, &status), 0);
	assert_int_equal(status.failed, 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(lw_task_status(mute.pair.a, batch, i, &task), 0);
		assert_int_equal(task.state, LW_FAILED);
		assert_int_equal(task.reason, LW_REASON_UNREGISTERED);
	}
	assert_int_equal(lw_batch_free(mute.pair.a, batch), 0);
	assert_int_equal(lw_segment_close(mute.pair.a, mute.pair.segment), 0);
	test_wait(mute.pair.a, mute.batch);
	close_mute(&mute);
}

static void test_engine_close_with_requests_under_way_is_quick(void **state)
{
	struct mute mute = open_mute(1000, 0);
	uint64_t begin_ms = test_now_ms();

	(void)state;
	assert_int_equal(lw_engine_close(mute.pair.a), 0);
	assert_in_range(test_now_ms() - begin_ms, 0, 4000);
	mute.pair.a = test_engine(NULL);
	test_fake_close(mute.fake);
	close_pair(&mute.pair);
}

/* A peer that closes each connection in mid-answer: READs go to another one until somebody serves them or the attempts
 * are over; each gets an end. */
static void test_transfer_connections_that_break_end_in_a_reason(void **state)
{
	struct mute mute = open_mute(20, 0);
	struct lw_batch_status status = {.state = LW_PENDING};
	uint64_t begin_ms = test_now_ms();
	struct lw_task_status task;

	(void)state;
	while (lw_batch_wait(mute.pair.a, mute.batch, 5, &status) == -ETIMEDOUT && test_now_ms() - begin_ms < 10000) {
		int fd = accept4(test_fake_listener(mute.fake), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0)
			close(fd);
	}
	assert_int_equal(status.failed, 20);
	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(lw_task_status(mute.pair.a, mute.batch, i, &task), 0);
		assert_int_equal(task.state, LW_FAILED);
		assert_int_equal(task.reason, LW_REASON_RESET);
	}
	close_mute(&mute);
}

static void test_transfer_to_a_peer_that_is_gone_is_unreachable(void **state)
{
	struct pair pair = open_whole_pair("connect_timeout_ms=500", NULL);
	struct lw_task_status task;
	lw_segment_t old;
	uint64_t begin_ms;

	(void)state;
	assert_completes(&pair, request_of(&pair, LW_WRITE, 0, 0, 100));
	old = pair.segment;
	assert_int_equal(lw_engine_close(pair.b), 0);
	begin_ms = test_now_ms();
	task = test_transfer(pair.a, pair.channel, request_of(&pair, LW_READ, 0, 0, 100));
	assert_in_range(test_now_ms() - begin_ms, 0, 2000);
	assert_int_equal(task.state, LW_FAILED);
	assert_true(task.reason == LW_REASON_UNREACHABLE || task.reason == LW_REASON_RESET);
	assert_true(lw_segment_probe(pair.a, old, 500) < 0);
	pair.b = test_engine(NULL);
	test_register(pair.b, pair.remote, AREA, LW_ACCESS_REMOTE);
	pair.segment = test_segment(pair.a, pair.b);
	assert_completes(&pair, request_of(&pair, LW_WRITE, 0, 0, 100));
	close_pair(&pair);
}

/* Offsets and lengths around 2^31 and 2^32. */
static void test_transfer_beyond_32_bits_is_exact(void **state)
{
	static const uint64_t edges[] = {UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(9) << 29};
	size_t length = (size_t)5 << 30;
	struct pair pair = open_pair(NULL, NULL);
	unsigned char *big[2];
	lw_segment_t nowhere;

	(void)state;
	for (int i = 0; i < 2; i++) {
		big[i] = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (big[i] == MAP_FAILED) {
			print_message("skipped: no address space for 10 GiB\n");
			skip();
		}
		test_register(i == 0 ? pair.a : pair.b, big[i], length, LW_ACCESS_REMOTE);
	}
	pair.segment = test_segment(pair.a, pair.b);
	for (size_t i = 0; i < 3; i++) {
		for (uint8_t op = LW_READ; op <= LW_WRITE; op++) {
			unsigned char *local = big[0] + edges[i] - 4096, *remote = big[1] + edges[i] - 4096;
			struct lw_request request = {.local = local,
						     .segment = pair.segment,
						     .offset = (uint64_t)(uintptr_t)remote,
						     .length = 8192,
						     .op = op};

			fill(op == LW_READ ? remote : local, 8192, &pair.sequence);
			assert_string_equal(lw_reason_string((int)test_transfer(pair.a, pair.channel, request).reason),
					    lw_reason_string(LW_REASON_NONE));
			assert_memory_equal(local, remote, 8192);
			assert_int_equal(local[-1] | local[8192] | remote[-1] | remote[8192], 0);
		}
	}
	assert_int_equal(lw_segment_open(pair.a, "null://", 0, &nowhere), 0);
	assert_int_equal(
		test_transfer(pair.a, pair.channel,
			      (struct lw_request){.local = big[0], .segment = nowhere, .length = (uint64_t)9 << 29})
			.bytes,
		(uint64_t)9 << 29);
	close_pair(&pair);
	munmap(big[0], length);
	munmap(big[1], length);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transfer_odd_sizes_and_offsets_are_exact),
		cmocka_unit_test(test_transfer_in_small_slices_over_many_lanes_is_exact),
		cmocka_unit_test(test_transfer_driven_by_the_caller_is_exact),
		cmocka_unit_test(test_transfer_from_busy_workers_is_exact),
		cmocka_unit_test(test_transfer_across_seams_is_exact),
		cmocka_unit_test(test_transfer_neighbours_at_once_are_exact),
		cmocka_unit_test(test_transfer_access_is_enforced),
		cmocka_unit_test(test_transfer_bad_ones_among_good_ones_spoil_nothing),
		cmocka_unit_test(test_transfer_refused_by_the_peer_spoils_nothing),
		cmocka_unit_test(test_transfer_of_no_bytes_completes_wherever_it_points),
		cmocka_unit_test(test_transfer_inside_one_engine_is_exact),
		cmocka_unit_test(test_notify_contents_arrive_as_they_were),
		cmocka_unit_test(test_notify_full_queue_is_enobufs_and_keeps_order),
		cmocka_unit_test(test_submit_notify_comes_after_the_data_and_once),
		cmocka_unit_test(test_submit_notify_is_dropped_when_a_task_fails),
		cmocka_unit_test(test_transfer_deadline_ends_what_a_mute_peer_holds),
		cmocka_unit_test(test_transfer_mute_peer_delays_no_other),
		cmocka_unit_test(test_batch_cancel_ends_it_within_a_second),
		cmocka_unit_test(test_segment_cancel_ends_all_of_it_and_the_segment_works_on),
		cmocka_unit_test(test_task_cancel_ends_that_one_alone),
		cmocka_unit_test(test_segment_close_ends_what_is_under_way),
		cmocka_unit_test(test_segment_close_and_reopen_works_many_times),
		cmocka_unit_test(test_unregister_ends_what_uses_the_memory_and_only_that),
		cmocka_unit_test(test_engine_close_with_requests_under_way_is_quick),
		cmocka_unit_test(test_transfer_connections_that_break_end_in_a_reason),
		cmocka_unit_test(test_transfer_to_a_peer_that_is_gone_is_unreachable),
		cmocka_unit_test(test_transfer_beyond_32_bits_is_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
