/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tcp/target_stage.h"

#include <errno.h>
#include <stddef.h>

#include "drivers/tcp/target.h"
#include "lib/engine.h"

#define STILL_MS 1000u       /* nothing happened for so long on a connection that may lose its buffers to others */
#define NO_ANSWER UINT32_MAX /* version 1 does not answer a WRITE */

static void wake_starving(struct tcp_worker *worker)
{
	struct tcp_served *served;

	while ((served = TAILQ_FIRST(&worker->starving)) != NULL) {
		TAILQ_REMOVE(&worker->starving, served, staged.starving_link);
		served->staged.starving = false;
		tcp_sock_wake(&served->sock);
	}
}

static void starve(struct tcp_served *served)
{
	if (!served->staged.starving)
		TAILQ_INSERT_TAIL(&served->sock.worker->starving, served, staged.starving_link);
	served->staged.starving = true;
}

static void note_move(struct tcp_served *served)
{
	served->staged.moved_ms = served->sock.worker->worker->now_ms;
}

void tcp_staged_gave(struct tcp_served *served, uint32_t count)
{
	if (count == 0)
		return;
	served->staged.holding -= count;
	note_move(served);
	wake_starving(served->sock.worker);
}

static void give(struct tcp_served *served, struct lw_bounce_slot *slot)
{
	lw_bounce_give(slot);
	tcp_staged_gave(served, 1);
}

/* The line of the GPU whose memory this is. NULL: it is not registered any more, and tcp_revoke is about to come. */
static struct lw_bounce_line *line_of(struct tcp_served *served, uint64_t addr)
{
	struct lw_worker *worker = served->sock.worker->worker;
	const struct lw_rangemap *map = atomic_load_explicit(&worker->engine->memory, memory_order_acquire);
	const struct lw_range *range = lw_rangemap_find(map, addr);

	if (range == NULL || (range->access & LW_RANGE_DEVICE) == 0)
		return NULL;
	return lw_bounce_line(&worker->bounces, LW_BOUNCE_PEERS, range->access);
}

/* A bounce buffer for memory at addr. NULL: not now; the connection is woken when there may be one. Copies of two GPUs
 * know no order, answers do: all of the other one's are sent before. */
static struct lw_bounce_slot *take(struct tcp_served *served, uint64_t addr)
{
	struct tcp_staged *staged = &served->staged;
	struct lw_bounce_line *line = line_of(served, addr);
	struct lw_bounce_slot *slot = NULL;

	if (line != NULL && (staged->holding == 0 || staged->line == line))
		slot = lw_bounce_take(line, staged->holding);
	if (slot == NULL) {
		starve(served);
		return NULL;
	}
	staged->line = line;
	staged->holding++;
	slot->owner = served;
	slot->device = addr;
	note_move(served);
	return slot;
}

/* The answer that a failed request begins with, if its peer can be told still; *number is it. */
static bool tellable(const struct tcp_served *served, uint32_t *number)
{
	const struct tcp_answer *answer = *number != NO_ANSWER ? tcp_answers_at(&served->answers, *number) : NULL;

	while (answer != NULL && answer->addr != 0 && !answer->begins)
		answer = tcp_answers_at(&served->answers, --*number);
	if (answer == NULL || (answer->addr != 0 && !answer->status))
		return false;
	return *number != served->answers.base || served->answers.sent == 0;
}

/* A copy for the answer of that number failed: it and all behind it are not given any more. False: the connection is
 * gone. */
static bool fail(struct tcp_served *served, uint32_t number)
{
	if (served->closing && number != NO_ANSWER && tcp_answers_at(&served->answers, number) == NULL)
		return true; /* one before it failed, too */
	if (!tellable(served, &number)) {
		tcp_served_end(served, true);
		return false;
	}
	served->staged.left = 0;
	served->staged.writing = false;
	tcp_staged_gave(served, tcp_answers_cut(&served->answers, number));
	tcp_served_refuse(served, TCP_STATUS_DEVICE, true);
	tcp_sock_wake(&served->sock);
	return true;
}

/* The same, while the connection is at work. */
static void fail_later(struct tcp_served *served, uint32_t number)
{
	served->staged.failed = true;
	served->staged.failed_answer = number;
	tcp_sock_wake(&served->sock);
}

bool tcp_staged_check(struct tcp_served *served)
{
	if (!served->staged.failed)
		return true;
	served->staged.failed = false;
	return fail(served, served->staged.failed_answer);
}

/* WRITE ---------------------------------------------------------------------------------------------------------------
 */

static void written(struct lw_worker *worker, struct lw_bounce_slot *slot, int error)
{
	struct tcp_served *served = slot->owner;
	uint32_t number = slot->tag;
	struct tcp_answer *answer;

	(void)worker;
	give(served, slot);
	if (error != 0) {
		fail(served, number);
		return;
	}
	answer = number != NO_ANSWER ? tcp_answers_at(&served->answers, number) : NULL;
	if (answer == NULL)
		return;
	answer->sum--;
	answer->waits = answer->part || answer->sum != 0;
	if (!answer->waits)
		tcp_sock_wake(&served->sock);
}

void tcp_staged_write(struct tcp_served *served, uint64_t addr, uint64_t size, bool v2)
{
	struct tcp_staged *staged = &served->staged;

	served->dest = addr;
	served->left = size;
	served->sum = TCP_SUM_START;
	staged->writing = true;
	staged->answer = NO_ANSWER;
	/* sum counts its copies; part: the body is not over. */
	if (v2)
		staged->answer = tcp_answers_add(&served->answers,
						 (struct tcp_answer){.length = 1, .part = true, .waits = true});
}

void *tcp_staged_place(struct tcp_served *served, uint64_t *room)
{
	struct tcp_staged *staged = &served->staged;

	if (staged->slot == NULL) {
		staged->slot = take(served, served->dest);
		staged->filled = 0;
	}
	if (staged->slot == NULL)
		return NULL;
	*room = staged->slot->pool->bytes - staged->filled;
	*room = *room < served->left ? *room : served->left;
	return staged->slot->memory + staged->filled;
}

void tcp_staged_stored(struct tcp_served *served, uint64_t bytes)
{
	struct tcp_staged *staged = &served->staged;
	struct lw_bounce_slot *slot = staged->slot;

	if (tcp_served_sums(served))
		served->sum = tcp_checksum_add(served->sum, slot->memory + staged->filled, bytes);
	note_move(served);
	staged->filled += (uint32_t)bytes;
	if (served->left != 0 && staged->filled < slot->pool->bytes)
		return;
	staged->slot = NULL;
	slot->tag = staged->answer;
	slot->done = written;
	if (lw_bounce_copy(served->sock.worker->worker, staged->line, slot, slot->device, staged->filled, true) != 0) {
		give(served, slot);
		fail_later(served, staged->answer);
	} else if (staged->answer != NO_ANSWER) {
		tcp_answers_at(&served->answers, staged->answer)->sum++;
	}
}

void tcp_staged_confirm(struct tcp_served *served)
{
	struct tcp_answer *answer;

	served->staged.writing = false;
	if (served->staged.answer == NO_ANSWER || served->staged.failed)
		return;
	answer = tcp_answers_at(&served->answers, served->staged.answer);
	answer->part = false;
	answer->waits = answer->sum != 0;
}

/* READ ----------------------------------------------------------------------------------------------------------------
 */

static void loaded(struct lw_worker *worker, struct lw_bounce_slot *slot, int error)
{
	struct tcp_served *served = slot->owner;
	struct tcp_answer *answer = tcp_answers_at(&served->answers, slot->tag);
	struct tcp_staged *staged = &served->staged;

	(void)worker;
	if (error != 0) {
		fail(served, slot->tag);
		return;
	}
	if (tcp_served_sums(served)) {
		staged->sum = answer->begins ? TCP_SUM_START : staged->sum;
		staged->sum = tcp_checksum_add(staged->sum, slot->memory, slot->length);
		answer->sum = tcp_checksum_wire(staged->sum);
		answer->sum_known = true;
	}
	answer->waits = false;
	tcp_sock_wake(&served->sock);
}

void tcp_staged_read(struct tcp_served *served, uint64_t addr, uint64_t size, bool v2)
{
	struct tcp_staged *staged = &served->staged;

	staged->from = addr;
	staged->left = size;
	staged->first = true;
	served->confirm = v2;
	tcp_staged_go_on(served);
}

bool tcp_staged_go_on(struct tcp_served *served)
{
	struct tcp_staged *staged = &served->staged;
	struct lw_bounce_slot *slot;
	uint64_t here;

	while (staged->left != 0 && !staged->failed && !tcp_answers_full(&served->answers)) {
		slot = take(served, staged->from);
		if (slot == NULL)
			return false;
		here = staged->left < slot->pool->bytes ? staged->left : slot->pool->bytes;
		slot->done = loaded;
		slot->tag = tcp_answers_add(
			&served->answers, (struct tcp_answer){.addr = (uint64_t)(uintptr_t)slot->memory,
							      .length = here,
							      .status = staged->first && served->confirm,
							      .begins = staged->first,
							      .part = here < staged->left,
							      .summed = here == staged->left && tcp_served_sums(served),
							      .waits = true,
							      .bounce = slot});
		staged->first = false;
		if (lw_bounce_copy(served->sock.worker->worker, staged->line, slot, staged->from, here, false) != 0)
			fail_later(served, slot->tag);
		staged->from += here;
		staged->left -= here;
	}
	return !tcp_staged_waits(staged);
}

/* The connection
 * -------------------------------------------------------------------------------------------------------
 */

bool tcp_staged_inside(const struct tcp_served *served, uint64_t addr, uint64_t end)
{
	const struct tcp_staged *staged = &served->staged;

	return (staged->slot != NULL && tcp_overlaps(staged->slot->device, staged->filled, addr, end)) ||
	       tcp_overlaps(staged->from, staged->left, addr, end);
}

void tcp_staged_refuse(struct tcp_served *served)
{
	struct tcp_staged *staged = &served->staged;

	if (staged->writing && staged->answer != NO_ANSWER)
		tcp_staged_gave(served, tcp_answers_cut(&served->answers, staged->answer));
	staged->writing = false;
}

void tcp_staged_end(struct tcp_served *served)
{
	struct lw_bounces *bounces = &served->sock.worker->worker->bounces;
	struct tcp_worker *worker = served->sock.worker;

	if (served->staged.starving)
		TAILQ_REMOVE(&worker->starving, served, staged.starving_link);
	if (served->staged.holding == 0)
		return;
	for (uint32_t i = 0; i < LW_RANGE_PLACES; i++) {
		struct lw_bounce_line *line =
			atomic_load_explicit(&bounces->line[LW_BOUNCE_PEERS][i], memory_order_acquire);

		for (uint32_t k = 0; line != NULL && k < line->pool->count; k++)
			if (line->pool->slot[k].owner == served)
				lw_bounce_give(&line->pool->slot[k]);
	}
	wake_starving(worker);
}

void tcp_staged_poll(struct tcp_worker *worker)
{
	/* Copies of connections that ended give theirs back without a word. */
	if (!TAILQ_EMPTY(&worker->starving))
		wake_starving(worker);
}

void tcp_staged_tick(struct tcp_worker *worker)
{
	const struct tcp_served *first = TAILQ_FIRST(&worker->starving);
	uint32_t now_ms = worker->worker->now_ms;
	struct tcp_served *served;

	TAILQ_FOREACH(served, &worker->served, link)
	{
		if (served->staged.holding == 0 || now_ms - served->staged.moved_ms < STILL_MS ||
		    (first == NULL || (first == served && TAILQ_NEXT(first, staged.starving_link) == NULL)))
			continue;
		tcp_served_end(served, true);
		return;
	}
}
