/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cancels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"
#include "lib/clock.h"

enum {
	CELL = 256 * 1024, /* memory of one request, on either side */
	CELLS = 96,
	LIVE = 12, /* batches under way */
	TASKS = 8, /* of a batch, at most */
	GUARD = 64,
	LONGEST = CELL - 2 * GUARD,
	POOL = 1 << 20,
	END_MS = 5000,  /* from the cancel of a task to its end; what is promised is 1 s */
	REST_MS = 1500, /* before the last look */
	FREEZE_MS = 800,
	FREEZE_EVERY_MS = 3000,
	CLOSE_EVERY = 100, /* cancels */
};

enum why { BY_ITSELF, BY_TASK, BY_BATCH, BY_CLOSE };

/* Memory on both sides: resting full of poison, or a request's. */
struct cell {
	uint64_t at, length; /* of its request, the last one */
	uint64_t asked_ms;   /* when its end was asked for */
	enum why why;
	const unsigned char *data;     /* what is moved; its bytes are below 0x80 */
	unsigned char here, there, op; /* poison */
	uint32_t state;                /* the request's end */
	uint64_t ended_ms;
};

struct flight {
	lw_batch_t batch; /* 0: none */
	uint32_t tasks, left;
	uint32_t cell[TASKS]; /* CELLS: that task has ended */
	uint64_t cancel_ns;
	bool whole; /* the whole batch is canceled then, else one task */
	bool never;
};

static struct {
	struct lw_engine *engine, *other;
	struct lw_channel *channel;
	struct peer peer;
	pid_t pid;
	lw_segment_t segment;
	char name[128];
	unsigned char *local, *own_target;
	uint64_t remote;
	uint64_t seed;
	struct cell cells[CELLS];
	uint32_t resting[CELLS], first, rest; /* a queue: the longest rest first */
	struct flight flights[LIVE];
	unsigned char pool[POOL], look[CELL], full[CELL];
	uint64_t begun, asked, cancels, closes, freezes, poisons;
	uint64_t ended[LW_TIMEOUT + 1], in_part, slowest_ms;
} run;

static uint64_t at_random(uint64_t below)
{
	return test_random(&run.seed) % below;
}

static void move_there(bool put, const struct cell *cell, void *bytes, uint64_t at, uint64_t length)
{
	uint64_t place = run.remote + (uint64_t)(cell - run.cells) * CELL + at;
	struct iovec here = {bytes, length}, there = {(void *)(uintptr_t)place, length};
	ssize_t got = put ? process_vm_writev(run.pid, &here, 1, &there, 1, 0)
			  : process_vm_readv(run.pid, &here, 1, &there, 1, 0);

	if (got != (ssize_t)length)
		fail_msg("the peer's memory can't be reached: %s", strerror(errno));
}

static unsigned char *here_of(const struct cell *cell)
{
	return run.local + (size_t)(cell - run.cells) * CELL;
}

/* The part of the cell that its last request could have been meant for. */
static uint64_t reach_of(const struct cell *cell)
{
	return cell->at + cell->length + GUARD;
}

static void poison(struct cell *cell)
{
	uint64_t reach = reach_of(cell);

	cell->here = (unsigned char)(0xc0 | (++run.poisons & 0x3f));
	cell->there = (unsigned char)(0x80 | (run.poisons & 0x3f));
	memset(run.full, cell->there, reach);
	move_there(true, cell, run.full, 0, reach);
	memset(here_of(cell), cell->here, reach);
}

/* The first byte that is not the poison; length: there is none. */
static uint64_t spoilt(const unsigned char *bytes, unsigned char poison, uint64_t length)
{
	if (length == 0 || (bytes[0] == poison && memcmp(bytes, bytes + 1, length - 1) == 0))
		return length;
	for (uint64_t i = 0; i < length; i++)
		if (bytes[i] != poison)
			return i;
	return length;
}

static const char *const sides[] = {"at the peer", "here"};
static const char *const causes[] = {"by itself", "the task was canceled", "the batch was canceled",
				     "the segment was closed"};
static const char *const states[] = {"pending", "completed", "failed", "canceled", "timed out"};

static void spoilt_by(const struct cell *cell, const char *what, bool here, uint64_t place, unsigned char byte)
{
	fail_msg("%s: byte %" PRIu64 " is 0x%02x %s; a %s of %" PRIu64 " bytes at %" PRIu64
		 " had ended (%s, %s) %u ms before",
		 what, place, byte, sides[here], cell->op == LW_READ ? "READ" : "WRITE", cell->length, cell->at,
		 states[cell->state], causes[cell->why], (unsigned)(test_now_ms() - cell->ended_ms));
}

/* Since its request ended, nothing was stored in it. */
static void check_rest(const struct cell *cell)
{
	uint64_t reach = reach_of(cell), place = spoilt(here_of(cell), cell->here, reach);

	if (place < reach)
		spoilt_by(cell, "late", true, place, here_of(cell)[place]);
	move_there(false, cell, run.look, 0, reach);
	place = spoilt(run.look, cell->there, reach);
	if (place < reach)
		spoilt_by(cell, "late", false, place, run.look[place]);
}

/* The request's destination holds what it should, and its surroundings what they did. */
static void check_end(const struct cell *cell)
{
	uint64_t reach = reach_of(cell), moved = 0;
	bool here = cell->op == LW_READ;
	const unsigned char *bytes = here_of(cell);
	unsigned char old = here ? cell->here : cell->there;

	if (!here) {
		move_there(false, cell, run.look, 0, reach);
		bytes = run.look;
	}
	for (uint64_t i = 0; i < cell->at; i++)
		if (bytes[i] != old)
			spoilt_by(cell, "before the range", here, i, bytes[i]);
	for (uint64_t i = cell->at + cell->length; i < reach; i++)
		if (bytes[i] != old)
			spoilt_by(cell, "behind the range", here, i, bytes[i]);
	bytes += cell->at;
	if (memcmp(bytes, cell->data, cell->length) == 0 ||
	    (cell->state != LW_COMPLETED && spoilt(bytes, old, cell->length) == cell->length))
		return;
	for (uint64_t i = 0; i < cell->length; i++) {
		bool right = bytes[i] == cell->data[i];

		if (!right && (cell->state == LW_COMPLETED || bytes[i] != old))
			spoilt_by(cell, "not what was sent", here, cell->at + i, bytes[i]);
		moved += right;
	}
	run.in_part += moved != 0;
}

/* Sizes of all magnitudes, and more of those that are long under way. */
static uint64_t some_length(void)
{
	uint64_t length = 1 + at_random(at_random(3) == 0 ? LONGEST : UINT64_C(1) << at_random(19));

	return length < LONGEST ? length : LONGEST;
}

/* A request on the cell that has rested the longest. */
static struct lw_request prepare(uint32_t *index)
{
	struct cell *cell;

	*index = run.resting[run.first];
	run.first = (run.first + 1) % CELLS;
	run.rest--;
	cell = &run.cells[*index];
	check_rest(cell);
	cell->at = at_random(GUARD);
	cell->length = some_length();
	cell->op = (unsigned char)at_random(2);
	cell->data = run.pool + at_random(POOL - LONGEST);
	cell->why = BY_ITSELF;
	poison(cell);
	if (cell->op == LW_READ)
		move_there(true, cell, (void *)(uintptr_t)cell->data, cell->at, cell->length);
	else
		memcpy(here_of(cell) + cell->at, cell->data, cell->length);
	return (struct lw_request){.local = here_of(cell) + cell->at,
				   .segment = run.segment,
				   .offset = run.remote + *index * (uint64_t)CELL + cell->at,
				   .length = cell->length,
				   .timeout_ms = at_random(16) == 0 ? 1 + (uint32_t)at_random(10) : 0,
				   .op = cell->op,
				   .priority = (uint8_t)at_random(2)};
}

/* When, and what: often at once, mostly while it is under way. */
static void plan(struct flight *flight)
{
	flight->cancel_ns = lw_now_ns() + (at_random(3) == 0 ? 0 : at_random(UINT64_C(1) << at_random(22)));
	flight->whole = at_random(2) == 0;
	flight->never = at_random(16) == 0;
}

static void begin_flight(struct flight *flight)
{
	struct lw_request list[TASKS];

	flight->tasks = flight->left = 1 + (uint32_t)at_random(TASKS);
	for (uint32_t i = 0; i < flight->tasks; i++)
		list[i] = prepare(&flight->cell[i]);
	assert_int_equal(lw_batch_alloc(run.channel, flight->tasks, 0, NULL, &flight->batch), 0);
	test_submit(run.channel, flight->batch, list, flight->tasks);
	run.begun += flight->tasks;
	plan(flight);
}

static void settle(struct flight *flight, uint32_t task, uint32_t state)
{
	uint32_t index = flight->cell[task];
	struct cell *cell = &run.cells[index];

	cell->state = state;
	cell->ended_ms = test_now_ms();
	check_end(cell);
	poison(cell);
	run.ended[state]++;
	if (cell->why != BY_ITSELF && cell->ended_ms - cell->asked_ms > run.slowest_ms)
		run.slowest_ms = cell->ended_ms - cell->asked_ms;
	run.resting[(run.first + run.rest++) % CELLS] = index;
	flight->cell[task] = CELLS;
	flight->left--;
}

/* Takes what ended. */
static void tend(struct flight *flight)
{
	for (uint32_t i = 0; i < flight->tasks; i++) {
		struct lw_task_status status;

		if (flight->cell[i] == CELLS)
			continue;
		assert_int_equal(lw_task_status(run.engine, flight->batch, i, &status), 0);
		if (status.state != LW_PENDING)
			settle(flight, i, status.state);
		else if (run.cells[flight->cell[i]].why != BY_ITSELF &&
			 test_now_ms() - run.cells[flight->cell[i]].asked_ms > END_MS)
			fail_msg("a canceled request has not ended after %d ms", END_MS);
	}
	if (flight->left != 0)
		return;
	assert_int_equal(lw_batch_free(run.engine, flight->batch), 0);
	flight->batch = 0;
}

/* The end of this task was asked for. */
static void note_asked(const struct flight *flight, uint32_t task, enum why why)
{
	struct cell *cell = flight->cell[task] < CELLS ? &run.cells[flight->cell[task]] : NULL;

	if (cell == NULL)
		return;
	run.asked += cell->why == BY_ITSELF;
	if (cell->why == BY_ITSELF)
		cell->asked_ms = test_now_ms();
	cell->why = why;
}

static void note_all_asked(const struct flight *flight, enum why why)
{
	for (uint32_t i = 0; i < flight->tasks; i++)
		note_asked(flight, i, why);
}

static void cancel(struct flight *flight)
{
	uint32_t task = (uint32_t)at_random(flight->tasks);
	int error = flight->whole ? lw_batch_cancel(run.engine, flight->batch)
				  : lw_task_cancel(run.engine, flight->batch, task);

	if (error == -EAGAIN)
		return; /* later */
	assert_int_equal(error, 0);
	run.cancels += flight->whole || flight->cell[task] != CELLS;
	if (flight->whole)
		note_all_asked(flight, BY_BATCH);
	else
		note_asked(flight, task, BY_TASK);
	plan(flight);
	flight->never |= flight->whole;
}

static void open_peer(void)
{
	if (lw_segment_open(run.engine, run.name, 0, &run.segment) != 0)
		fail_msg("%s", lw_last_error());
}

/* Ends all requests to the peer. */
static void close_peer(void)
{
	assert_int_equal(lw_segment_close(run.engine, run.segment), 0);
	for (struct flight *flight = run.flights; flight < run.flights + LIVE; flight++)
		if (flight->batch != 0)
			note_all_asked(flight, BY_CLOSE);
	run.closes++;
	run.segment = 0;
}

static void set_up(const struct test_cancels *how)
{
	static const char *options[16];
	int count = 0;

	memset(&run, 0, sizeof(run));
	run.seed = test_seed();
	test_fill(run.pool, POOL, run.seed);
	for (uint32_t i = 0; i < POOL; i++)
		run.pool[i] &= 0x7f;
	run.engine = test_engine(how->settings);
	run.local = test_map((size_t)CELL * CELLS, NULL);
	test_register(run.engine, run.local, (size_t)CELL * CELLS, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(run.engine, &run.channel), 0);
	if (how->inside) {
		run.other = test_engine(how->settings);
		run.own_target = test_map((size_t)CELL * CELLS, NULL);
		test_register(run.other, run.own_target, (size_t)CELL * CELLS, LW_ACCESS_REMOTE);
		run.remote = (uint64_t)(uintptr_t)run.own_target;
		run.pid = getpid();
		strncpy(run.name, lw_engine_name(run.other), sizeof(run.name) - 1);
	} else {
		static char settings[256];

		strncpy(settings, how->settings, sizeof(settings) - 1);
		options[count++] = settings;
		for (const char *const *more = how->options; more != NULL && *more != NULL; more++)
			options[count++] = *more;
		options[count] = NULL;
		peer_start(&run.peer, (uint64_t)CELL * CELLS, options);
		run.remote = run.peer.addr;
		run.pid = run.peer.pid;
		memcpy(run.name, run.peer.name, sizeof(run.name));
	}
	open_peer();
	for (uint32_t i = 0; i < CELLS; i++) {
		run.cells[i].length = LONGEST;
		poison(&run.cells[i]);
		run.resting[run.rest++] = i;
	}
}

static void finish(const struct test_cancels *how)
{
	uint64_t begin_ms = test_now_ms();
	bool live = true;

	for (struct flight *flight = run.flights; flight < run.flights + LIVE; flight++)
		if (flight->batch != 0 && lw_batch_cancel(run.engine, flight->batch) == 0)
			note_all_asked(flight, BY_BATCH);
	while (live) {
		live = false;
		for (struct flight *flight = run.flights; flight < run.flights + LIVE; flight++) {
			if (flight->batch != 0)
				tend(flight);
			live |= flight->batch != 0;
		}
		if (test_now_ms() - begin_ms > 2 * END_MS)
			fail_msg("not all have ended");
	}
	test_sleep_ms(REST_MS);
	for (uint32_t i = 0; i < CELLS; i++)
		check_rest(&run.cells[i]);
	assert_int_equal(lw_engine_close(run.engine), 0);
	for (uint32_t i = 0; i < CELLS; i++)
		check_rest(&run.cells[i]);
	if (how->inside)
		assert_int_equal(lw_engine_close(run.other), 0);
	else
		peer_end(&run.peer);
	test_unmap(run.local, (size_t)CELL * CELLS);
	if (how->inside)
		test_unmap(run.own_target, (size_t)CELL * CELLS);
}

/* Lets the peer stand still when it is time, and go on. */
static void freeze(uint64_t *thaw_ms, uint64_t *next_ms)
{
	uint64_t now_ms = test_now_ms();

	if (*thaw_ms == 0 && now_ms >= *next_ms) {
		peer_freeze(&run.peer);
		run.freezes++;
		*thaw_ms = now_ms + FREEZE_MS;
	} else if (*thaw_ms != 0 && now_ms >= *thaw_ms) {
		if (run.freezes % 2 == 0)
			close_peer();
		kill(run.pid, SIGCONT);
		if (run.segment == 0)
			open_peer();
		*thaw_ms = 0;
		*next_ms = now_ms + FREEZE_EVERY_MS;
	}
}

void test_cancels_run(const struct test_cancels *how)
{
	uint64_t begin_ms, thaw_ms = 0, next_ms, next_close = CLOSE_EVERY;

	set_up(how);
	begin_ms = test_now_ms();
	next_ms = begin_ms + FREEZE_EVERY_MS / 2;
	while (run.cancels < how->count && test_now_ms() - begin_ms < how->limit_ms) {
		for (struct flight *flight = run.flights; flight < run.flights + LIVE; flight++) {
			if (flight->batch == 0 && run.rest >= CELLS / 4)
				begin_flight(flight);
			if (flight->batch != 0 && !flight->never && lw_now_ns() >= flight->cancel_ns)
				cancel(flight);
			if (flight->batch != 0)
				tend(flight);
		}
		if (how->freeze)
			freeze(&thaw_ms, &next_ms);
		if (run.cancels >= next_close && thaw_ms == 0) {
			close_peer();
			open_peer();
			next_close += CLOSE_EVERY;
		}
	}
	if (thaw_ms != 0)
		kill(run.pid, SIGCONT);
	print_message("%" PRIu64 " cancels in %u ms, for %" PRIu64 " of %" PRIu64 " tasks; closed %" PRIu64
		      " times, frozen %" PRIu64 " times\n",
		      run.cancels, (unsigned)(test_now_ms() - begin_ms), run.asked, run.begun, run.closes, run.freezes);
	finish(how);
	print_message("%" PRIu64 " canceled, %" PRIu64 " timed out, %" PRIu64 " failed, %" PRIu64 " completed; %" PRIu64
		      " stored in part; the longest end took %" PRIu64 " ms\n",
		      run.ended[LW_CANCELED], run.ended[LW_TIMEOUT], run.ended[LW_FAILED], run.ended[LW_COMPLETED],
		      run.in_part, run.slowest_ms);
	assert_true(run.cancels > how->count / 10);
	assert_true(run.ended[LW_CANCELED] > run.cancels / 10);
}
