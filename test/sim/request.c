/* SPDX-License-Identifier: Apache-2.0 */
/* One request: which of its bytes moved, and whether the engine says of it what is true. */
#include <stddef.h>
#include <string.h>

#include "lib/error.h"
#include "sim/sim.h"

#define END_MS 1000 /* a request ends so long after its deadline at the latest */

struct sim_request sim_requests[SIM_REQUESTS];
uint32_t sim_live[SIM_REQUESTS];
static struct sim_request *by_task[SIM_TASKS];

struct sim_request *sim_request_new(void)
{
	for (uint32_t i = 0; i < SIM_REQUESTS; i++) {
		uint32_t at = sim.request_next++ % SIM_REQUESTS;

		if (sim_requests[at].used)
			continue;
		sim.requests_top = at < sim.requests_top ? sim.requests_top : at + 1;
		memset(&sim_requests[at], 0, offsetof(struct sim_request, part));
		sim_requests[at].used = true;
		return &sim_requests[at];
	}
	SIM_CHECK(false, "raise SIM_REQUESTS");
	return NULL;
}

void sim_request_submitted(struct sim_request *request, const struct lw_task *task)
{
	SIM_CHECK(task - sim.engine->tasks < SIM_TASKS, "raise SIM_TASKS");
	request->task = task;
	by_task[task - sim.engine->tasks] = request;
	sim_live[sim.live_count++] = (uint32_t)(request - sim_requests);
	sim.segments[request->segment].users++;
	sim.accepted++;
}

struct sim_request *sim_request_of(const struct lw_task *task)
{
	struct sim_request *request = by_task[task - sim.engine->tasks];

	return request != NULL && request->used && request->task == task && !request->ended ? request : NULL;
}

/* Enters [from, to) among the parts, which stay sorted and apart. */
static void enter(struct sim_request *request, uint64_t from, uint64_t to)
{
	uint32_t first = 0, last;

	while (first < request->parts && request->part[first].to < from)
		first++;
	for (last = first; last < request->parts && request->part[last].from <= to; last++) {
		from = request->part[last].from < from ? request->part[last].from : from;
		to = request->part[last].to > to ? request->part[last].to : to;
	}
	if (last == first) {
		SIM_CHECK(request->parts < SIM_PARTS, "raise SIM_PARTS");
		for (uint32_t i = request->parts++; i > first; i--)
			request->part[i] = request->part[i - 1];
	} else {
		for (uint32_t i = last; i < request->parts; i++)
			request->part[first + 1 + i - last] = request->part[i];
		request->parts -= last - first - 1;
	}
	request->part[first] = (struct sim_part){from, to};
}

void sim_request_touch(struct sim_request *request, uint64_t local, uint64_t remote, uint64_t length)
{
	uint64_t at = local - request->local;

	SIM_CHECK(!request->ended, "bytes move for a request that has ended");
	SIM_CHECK(at < request->length && length <= request->length - at && remote == request->remote + at,
		  "bytes move outside of the request: %llu at %lld", (unsigned long long)length, (long long)at);
	SIM_CHECK(sim_local_registered(local, length), "local bytes move that are not registered any more");
	SIM_CHECK(request->peer != SIM_SELF || sim_local_registered(remote, length),
		  "bytes of the engine's own segment move that are not registered any more");
	enter(request, at, at + length);
}

void sim_request_confirm(struct sim_request *request, uint64_t length)
{
	SIM_CHECK(!request->ended, "a slice ends of a request that has ended before");
	request->confirmed += length;
}

static bool was_unregistered(uint64_t addr, uint64_t length)
{
	for (uint64_t i = 0; i < SIM_PIECES; i++)
		if (sim.unregistered[i] && addr < SIM_LOCAL + (i + 1) * SIM_PIECE_BYTES &&
		    addr + length > SIM_LOCAL + i * SIM_PIECE_BYTES)
			return true;
	return false;
}

/* A WRITE whose lane could not be made again, so that another driver has the path now: it can't be repeated there. */
static bool lost_its_lane(const struct sim_request *request)
{
	const struct sim_peer *peer = &sim.peers[request->peer];

	return sim.tcp_first && request->op == LW_WRITE && request->cuts != 0 && peer->near &&
	       (peer->causes & (SIM_NO_CONNECT | SIM_SHORT | SIM_OPTIONS)) != 0;
}

/* Whether something happened that can be the reason. */
static bool is_true(const struct sim_request *request, uint32_t reason)
{
	const struct sim_segment *segment = &sim.segments[request->segment];
	uint32_t causes = sim.peers[request->peer].causes;
	bool own_gone = was_unregistered(request->local, request->length) ||
			(request->peer == SIM_SELF && was_unregistered(request->remote, request->length));
	bool other_life = request->peer != SIM_SELF && segment->life != sim.peers[request->peer].life;

	switch (reason) {
	case LW_REASON_NONE:
		return true;
	case LW_REASON_LOCAL_RANGE:
		return request->bad_local || own_gone;
	case LW_REASON_REMOTE_RANGE:
	case LW_REASON_REFUSED:
		return request->bad_remote || (causes & SIM_OFFER_LESS) != 0 || own_gone;
	case LW_REASON_UNREACHABLE:
		return (causes & SIM_NO_CONNECT) != 0;
	case LW_REASON_RESET: /* what must not be repeated, or was repeated more often than it may be */
		return request->unfenced || other_life || lost_its_lane(request) ||
		       (request->cuts > 3 && (causes & (SIM_CUT | SIM_OFFER_LESS | SIM_CORRUPT)) != 0);
	case LW_REASON_RESTARTED:
		return other_life;
	case LW_REASON_TIMEOUT:
		return sim.now_ns / SIM_MS >= request->submitted_ns / SIM_MS + request->timeout_ms;
	case LW_REASON_CANCELED:
		return request->canceled;
	case LW_REASON_SEGMENT_CLOSED:
		return segment->closed;
	case LW_REASON_UNREGISTERED:
		return own_gone;
	case LW_REASON_RESOURCES:
		return (causes & SIM_SHORT) != 0;
	case LW_REASON_OPTIONS:
		return (causes & SIM_OPTIONS) != 0;
	case LW_REASON_CORRUPT:
		return (causes & SIM_CORRUPT) != 0;
	default:
		return false;
	}
}

static uint32_t state_for(uint32_t reason)
{
	switch (reason) {
	case LW_REASON_NONE:
		return LW_COMPLETED;
	case LW_REASON_TIMEOUT:
		return LW_TIMEOUT;
	case LW_REASON_CANCELED:
	case LW_REASON_SEGMENT_CLOSED:
		return LW_CANCELED;
	default:
		return LW_FAILED;
	}
}

/* When its end was asked for: from then on the engine waits for nothing but its fence. */
static uint64_t asked_ns(const struct sim_request *request, const struct lw_task_status *status)
{
	if (status->reason == LW_REASON_TIMEOUT)
		return request->submitted_ns + request->timeout_ms * SIM_MS;
	return status->reason == LW_REASON_CANCELED ? request->canceled_ns : 0;
}

static void end(struct sim_request *request, const struct lw_task_status *status)
{
	uint64_t whole = request->parts == 1 ? request->part[0].to - request->part[0].from : 0;
	uint32_t early;

	SIM_SAY("request %u.%u ends: %s", request->batch, request->number, lw_reason_string((int)status->reason));
	SIM_CHECK(request->held == 0, "it has ended with %u slices on lanes", request->held);
	SIM_CHECK(status->state == state_for(status->reason), "state %u with reason %u", status->state, status->reason);
	SIM_CHECK(status->error == lw_reason_errno((int)status->reason), "error %d with reason %u", status->error,
		  status->reason);
	SIM_CHECK(is_true(request, status->reason), "ended without a cause: \"%s\"",
		  lw_reason_string((int)status->reason));
	SIM_CHECK(status->bytes == request->confirmed, "%llu bytes are confirmed, the task says %llu",
		  (unsigned long long)request->confirmed, (unsigned long long)status->bytes);
	if (status->state == LW_COMPLETED) {
		SIM_CHECK(status->bytes == request->length && whole == request->length,
			  "completed with %llu of %llu bytes applied, %llu confirmed", (unsigned long long)whole,
			  (unsigned long long)request->length, (unsigned long long)request->confirmed);
		SIM_CHECK(request->ghosts == 0, "completed while bytes of a broken connection may still arrive");
		/* Unless it was registered, or offered, before the worker looked. */
		SIM_CHECK(request->length == 0 || !request->bad_local || request->registrations != sim.registrations,
			  "completed from memory that is not registered");
		SIM_CHECK(request->length == 0 || !request->bad_remote ||
				  (sim.peers[request->peer].causes & SIM_OFFER_LESS) != 0 ||
				  request->registrations != sim.registrations,
			  "completed into memory that was never offered");
	}
	early = sim_driver_forget(request, asked_ns(request, status));
	SIM_CHECK(early == 0, "it has ended, \"%s\", while %u pieces of it may still reach the peer",
		  lw_reason_string((int)status->reason), early);
	request->ended = true;
	request->outcome = *status;
	sim.segments[request->segment].users--;
}

/* What a request that has not ended may still be waiting for. */
static void check_waiting(const struct sim_request *request)
{
	uint64_t slack_ns = 2 * sim.longest_gap_ns + 2 * SIM_MS;

	if (request->taken_ns != 0)
		SIM_CHECK(sim.now_ns <= request->taken_ns + (request->timeout_ms + END_MS) * SIM_MS + slack_ns,
			  "request %u.%u did not end at its deadline", request->batch, request->number);
	SIM_CHECK(!sim.segments[request->segment].dead || request->held != 0 || request->taken_ns == 0,
		  "request %u.%u waits for a life of its peer that is over", request->batch, request->number);
	if (request->canceled_ns != 0) {
		SIM_CHECK(request->held != 0 || request->cuts != 0 || request->canceled_ns >= sim.last_pass_ns,
			  "request %u.%u was canceled, is on no lane, and does not end", request->batch,
			  request->number);
		SIM_CHECK(sim.now_ns <= request->canceled_ns + END_MS * SIM_MS + slack_ns,
			  "request %u.%u does not end after its cancel", request->batch, request->number);
	}
}

bool sim_request_look(struct sim_request *request)
{
	struct lw_task_status status;
	int error;

	/* Quicker, where the task says it. */
	if (!request->ended && sim.batches[request->batch].capacity != 1 &&
	    (atomic_load_explicit(&request->task->outcome, memory_order_relaxed) & 0xff) == LW_PENDING) {
		check_waiting(request);
		return false;
	}
	error = lw_task_status(sim.engine, sim.batches[request->batch].id, request->number, &status);
	SIM_CHECK(error == 0, "no status of request %u.%u: %d", request->batch, request->number, error);
	if (request->ended) {
		SIM_CHECK(status.state == request->outcome.state && status.reason == request->outcome.reason &&
				  status.bytes == request->outcome.bytes,
			  "request %u.%u changed after its end", request->batch, request->number);
		return true;
	}
	if (status.state == LW_PENDING) {
		check_waiting(request);
		return false;
	}
	end(request, &status);
	return true;
}
