/* SPDX-License-Identifier: Apache-2.0 */
/* What the application does with batches: submits, cancels, polls and frees at random, and keeps the books. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

#define CAPACITY 24
#define BIG_CAPACITY 700 /* more than the slots of a batch name directly */

static struct sim_batch *random_batch(void)
{
	return &sim.batches[sim_random(SIM_BATCHES)];
}

static bool alloc_batch(struct sim_batch *batch, uint32_t capacity)
{
	bool event = sim_chance(600);
	uint32_t *requests;
	lw_batch_t id;
	int error = lw_batch_alloc(sim.channel, capacity, event ? LW_BATCH_EVENT : 0, batch, &id);

	if (error == -ENOBUFS)
		return false;
	SIM_CHECK(error == 0, "no batch: %d", error);
	requests = calloc(capacity, sizeof(*requests));
	SIM_CHECK(requests != NULL, "no memory");
	*batch = (struct sim_batch){.id = id, .capacity = capacity, .event = event, .requests = requests};
	return true;
}

static uint64_t random_length(bool small)
{
	switch (small ? 0 : sim_random(8)) {
	case 0:
		return sim_random(64);
	case 1:
	case 2:
		return 4096 * (1 + sim_random(3));
	case 3:
		return 1 + sim_random(100000);
	default:
		return 1 + sim_random(16000);
	}
}

/* A place for length bytes in a side's pieces; now and then one that does not fit. */
static uint64_t random_place(uint64_t base, uint64_t length)
{
	uint64_t room = SIM_PIECES * SIM_PIECE_BYTES - length;

	if (sim_chance(10))
		return base + SIM_PIECES * SIM_PIECE_BYTES - length / 2;
	return base + (sim_chance(300) ? sim_random(room / 4096 + 1) * 4096 : sim_random(room + 1));
}

static void draw(struct sim_request *request, uint32_t segment, bool small)
{
	const struct sim_segment *to = &sim.segments[segment];
	uint64_t base = to->peer == SIM_SELF ? SIM_LOCAL : SIM_REMOTE;
	uint64_t length = random_length(small);

	request->op = sim_chance(500) ? LW_READ : LW_WRITE;
	request->priority = sim_chance(300) ? LW_BULK : LW_FOREGROUND;
	request->segment = segment;
	request->peer = to->peer;
	request->length = length;
	request->registrations = sim.registrations;
	request->local = random_place(SIM_LOCAL, length);
	request->remote = random_place(base, length);
	request->submitted_ns = sim.now_ns;
	request->timeout_ms =
		sim.calm || sim_chance(300) ? 30000 : 1 + (uint32_t)sim_random(sim_chance(300) ? 50 : 3000);
	request->bad_local = !sim_local_registered(request->local, length);
	request->bad_remote = !sim_peer_offers(&sim.peers[to->peer], request->op, request->remote, length);
}

static struct lw_request asked(const struct sim_request *request)
{
	return (struct lw_request){.local = (void *)(uintptr_t)request->local,
				   .segment = sim.segments[request->segment].id,
				   .offset = request->remote,
				   .length = request->length,
				   .timeout_ms = request->timeout_ms,
				   .op = request->op,
				   .priority = request->priority};
}

/* In place, where the tasks will be. */
static int commit(lw_batch_t id, const struct lw_request *list, uint32_t *count)
{
	struct lw_slot *slots;
	int places = lw_submit_reserve(sim.channel, id, *count, &slots);

	if (places < 0)
		return places;
	*count = (uint32_t)places;
	for (int i = 0; i < places; i++)
		slots[i].request = list[i];
	return lw_submit_commit(sim.channel, id, *count);
}

static bool ring_is_full(void)
{
	const struct lw_spsc *ring = sim.channel->ring;

	return ring->tail - atomic_load(&ring->head) > ring->mask;
}

/* The segment, through whichever handle, was canceled and the worker did not see it yet. */
static bool is_canceling(uint32_t segment)
{
	for (uint32_t i = 0; i < SIM_SEGMENTS; i++)
		if (sim.segments[i].id == sim.segments[segment].id && sim.segments[i].cancel_pass > sim.passes)
			return true;
	return false;
}

/* The batch has count requests more. */
static void keep_books(struct sim_batch *batch, struct sim_request *const *list, uint32_t count)
{
	struct lw_batch *slot = lw_batch_of(sim.engine, batch->id);

	SIM_CHECK(slot != NULL, "a batch that was submitted to is stale");
	for (uint32_t i = 0; i < count; i++) {
		struct sim_request *request = list[i];

		request->batch = (uint32_t)(batch - sim.batches);
		request->number = batch->submitted;
		request->canceled = batch->cancel_pass > sim.passes || is_canceling(request->segment);
		batch->requests[batch->submitted++] = (uint32_t)(request - sim_requests);
		sim_request_submitted(request, lw_batch_task(sim.engine, slot, request->number));
		SIM_SAY("request %u.%u: %s %llu bytes, peer %u, %u ms%s%s%s", request->batch, request->number,
			request->op == LW_READ ? "READ" : "WRITE", (unsigned long long)request->length, request->peer,
			request->timeout_ms, request->priority == LW_BULK ? ", bulk" : "",
			request->bad_local ? ", bad local" : "", request->bad_remote ? ", bad remote" : "");
	}
	batch->owed = false; /* it is told again when these have ended */
}

/* Submits count requests, drawn already. False: the ring was full. */
static bool submit(struct sim_batch *batch, struct sim_request **list, uint32_t count)
{
	struct lw_request requests[CAPACITY];
	bool full = ring_is_full();
	uint32_t given = count;
	int error;

	for (uint32_t i = 0; i < count; i++)
		requests[i] = asked(list[i]);
	error = sim_chance(200) ? commit(batch->id, requests, &given)
				: lw_submit(sim.channel, batch->id, requests, count);
	memset(requests, 0xff, sizeof(requests)); /* the engine must not need them any more */
	if (error == 0)
		keep_books(batch, list, given);
	SIM_CHECK(error == (full ? -EAGAIN : 0), "submit: %d with a ring that is %s", error,
		  full ? "full" : "not full");
	for (uint32_t i = error == 0 ? given : 0; i < count; i++)
		list[i]->used = false;
	return error == 0;
}

static uint32_t random_segment(void)
{
	uint32_t at = (uint32_t)sim_random(SIM_SEGMENTS);

	while (!sim.segments[at].open)
		at = (at + 1) % SIM_SEGMENTS; /* the engine's own is open always */
	return at;
}

/* A handle that was closed, or never was one. */
static void submit_stale(struct sim_batch *batch)
{
	struct lw_request request = {.local = (void *)SIM_LOCAL, .length = 1};
	uint32_t at = (uint32_t)sim_random(SIM_SEGMENTS);
	int error;

	request.segment = sim.segments[at].closed ? sim.segments[at].id : sim_random(UINT64_MAX);
	if (lw_segment_of(sim.engine, request.segment) != NULL)
		return;
	error = lw_submit(sim.channel, batch->id, &request, 1);
	SIM_CHECK(error == (ring_is_full() ? -EAGAIN : -EBADF), "a stale segment is answered with %d", error);
}

void sim_app_submit(void)
{
	struct sim_batch *batch = random_batch();
	struct sim_request *list[CAPACITY];
	uint32_t segment = random_segment(), count = 1;
	bool big = sim_chance(2);

	if (batch->id == 0 && !alloc_batch(batch, big               ? BIG_CAPACITY
						  : sim_chance(200) ? 1
								    : 1 + (uint32_t)sim_random(CAPACITY)))
		return;
	if (sim_chance(5) && batch->submitted < batch->capacity)
		submit_stale(batch);
	do {
		uint32_t room = batch->capacity - batch->submitted;

		if (room == 0)
			return;
		count = 1 + (uint32_t)sim_random(room < CAPACITY ? room : CAPACITY);
		if (sim.live_count + count > SIM_REQUESTS / 2)
			return;
		for (uint32_t i = 0; i < count; i++) {
			list[i] = sim_request_new();
			draw(list[i], sim_chance(100) ? random_segment() : segment, batch->capacity == BIG_CAPACITY);
		}
	} while (submit(batch, list, count) && batch->capacity == BIG_CAPACITY);
}

static void mark(struct sim_request *request)
{
	request->canceled = true;
	if (request->canceled_ns == 0)
		request->canceled_ns = sim.now_ns;
}

void sim_app_cancel(void)
{
	struct sim_batch *batch = random_batch();
	uint32_t segment = random_segment(), number = 0;
	uint64_t what = sim_random(3);
	int error;

	if (what == 2) {
		error = lw_segment_cancel(sim.engine, sim.segments[segment].id);
	} else if (batch->id == 0 || batch->submitted == 0) {
		return;
	} else if (what == 1) {
		error = lw_batch_cancel(sim.engine, batch->id);
	} else {
		number = (uint32_t)sim_random(batch->submitted);
		error = lw_task_cancel(sim.engine, batch->id, number);
	}
	SIM_CHECK(error == 0, "cancel: %d", error);
	SIM_SAY("cancel %s %u",
		what == 2   ? "segment"
		: what == 1 ? "batch"
			    : "task of batch",
		what == 2 ? segment : (uint32_t)(batch - sim.batches));
	if (what == 1)
		batch->cancel_pass = sim.passes + 1;
	for (uint32_t i = 0; i < SIM_SEGMENTS && what == 2; i++)
		if (sim.segments[i].id == sim.segments[segment].id)
			sim.segments[i].cancel_pass = sim.passes + 1;
	for (uint32_t i = 0; i < sim.live_count; i++) {
		struct sim_request *request = &sim_requests[sim_live[i]];

		if (what == 2 ? sim.segments[request->segment].id == sim.segments[segment].id
			      : request->batch == batch - sim.batches && (what == 1 || request->number == number))
			mark(request);
	}
}

void sim_app_poll(void)
{
	struct lw_completion list[4];
	int count;

	sim_pass_begin();
	count = lw_channel_poll(sim.channel, list, 1 + sim_random(4));
	SIM_CHECK(count >= 0, "poll: %d", count);
	sim_pass_end();
	for (int i = 0; i < count; i++) {
		struct sim_batch *batch = list[i].user;

		SIM_CHECK(batch->id == list[i].batch && batch->event, "a completion of no batch that wants one");
		SIM_CHECK(batch->owed, "a batch's end is told twice, or before it came");
		SIM_CHECK(batch->ended == batch->submitted && list[i].tasks == batch->submitted,
			  "%u tasks are told to have ended, %u of %u have", list[i].tasks, batch->ended,
			  batch->submitted);
		SIM_CHECK(list[i].failed == batch->failed, "%u failed, told are %u", batch->failed, list[i].failed);
		SIM_CHECK(batch->queued > sim.events_polled, "completions come in another order than they were queued");
		sim.events_polled = batch->queued;
		batch->owed = false;
	}
}

static void forget_batch(struct sim_batch *batch)
{
	struct lw_batch_status status;
	lw_batch_t id = batch->id;

	for (uint32_t i = 0; i < batch->submitted; i++) {
		sim_request_look(&sim_requests[batch->requests[i]]);
		sim_requests[batch->requests[i]].used = false;
	}
	SIM_CHECK(lw_batch_free(sim.engine, id) == 0, "a batch that ended is not freed");
	SIM_CHECK(lw_batch_free(sim.engine, id) == -EBADF && lw_batch_status(sim.engine, id, &status) == -EBADF,
		  "a batch that was freed is known still");
	free(batch->requests);
	*batch = (struct sim_batch){.id = 0};
}

void sim_app_free(bool all)
{
	for (uint32_t i = 0; i < SIM_BATCHES; i++) {
		struct sim_batch *batch = &sim.batches[i];

		if (batch->id == 0 || (!all && !sim_chance(300)))
			continue;
		if (batch->ended == batch->submitted)
			forget_batch(batch);
		else
			SIM_CHECK(lw_batch_free(sim.engine, batch->id) == -EBUSY, "a batch is freed before its end");
	}
}

void sim_app_probe(void)
{
	struct sim_batch *batch = &sim.batches[0];

	SIM_CHECK(batch->id == 0 && alloc_batch(batch, SIM_SEGMENTS), "no batch for the last requests");
	for (uint32_t i = 0; i < SIM_SEGMENTS; i++) {
		struct sim_segment *segment = &sim.segments[i];
		struct sim_request *request;

		if (!segment->open)
			continue;
		request = sim_request_new();
		draw(request, i, true);
		request->length = 5000;
		request->timeout_ms = 5000;
		request->local = SIM_LOCAL + 100;
		request->remote = (segment->peer == SIM_SELF ? SIM_LOCAL : SIM_REMOTE) + 30000;
		request->bad_local = !sim_local_registered(request->local, request->length);
		request->bad_remote = !sim_peer_offers(&sim.peers[segment->peer], request->op, request->remote, 5000);
		SIM_CHECK(submit(batch, &request, 1), "the last requests are not taken");
	}
}
