/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tcp/answers.h"

#include "drivers/tcp/checksum.h"
#include "drivers/tcp/piece.h"

#define ACKS 64u
#define SUM_AHEAD (256u * 1024) /* a body up to here is summed before it leaves, a longer one while it does */

static const uint64_t ok_frames[ACKS] = {
#define OK4 TCP_STATUS_MAGIC << 32, TCP_STATUS_MAGIC << 32, TCP_STATUS_MAGIC << 32, TCP_STATUS_MAGIC << 32
#define OK16 OK4, OK4, OK4, OK4
	OK16, OK16, OK16, OK16};
_Static_assert(TCP_STATUS_OK == 0 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "the frames are written as they go out");

void tcp_answers_init(struct tcp_answers *answers, struct tcp_answer *ring, uint32_t room)
{
	*answers = (struct tcp_answers){.ring = ring, .room = room, .last_sent = TCP_STATUS_BYTES};
}

static struct tcp_answer *at(const struct tcp_answers *answers, uint32_t i)
{
	return &answers->ring[(answers->first + i) % answers->room];
}

uint32_t tcp_answers_add(struct tcp_answers *answers, struct tcp_answer answer)
{
	*at(answers, answers->count) = answer;
	return answers->base + answers->count++;
}

struct tcp_answer *tcp_answers_at(const struct tcp_answers *answers, uint32_t number)
{
	return number - answers->base < answers->count ? at(answers, number - answers->base) : NULL;
}

uint32_t tcp_answers_cut(struct tcp_answers *answers, uint32_t number)
{
	uint32_t bounces = 0;

	while (answers->count > number - answers->base) {
		struct tcp_answer *answer = at(answers, --answers->count);

		bounces += answer->bounce != NULL;
		if (answer->bounce != NULL)
			lw_bounce_give(answer->bounce);
	}
	return bounces;
}

void tcp_answers_add_ok(struct tcp_answers *answers)
{
	/* Side by side they are one entry. */
	if (answers->count > 0 && at(answers, answers->count - 1)->addr == 0 && !at(answers, answers->count - 1)->waits)
		at(answers, answers->count - 1)->length++;
	else
		tcp_answers_add(answers, (struct tcp_answer){.length = 1});
}

void tcp_answers_end(struct tcp_answers *answers, enum tcp_status code)
{
	answers->last = tcp_status_word(code);
	answers->last_sent = 0;
}

bool tcp_answers_read(const struct tcp_answers *answers, uint64_t addr, uint64_t end)
{
	for (uint32_t i = 0; i < answers->count; i++) {
		const struct tcp_answer *answer = at(answers, i);

		if (answer->addr != 0 && answer->bounce == NULL &&
		    tcp_overlaps(answer->addr, answer->length, addr, end))
			return true;
	}
	return false;
}

static uint64_t status_bytes(const struct tcp_answer *answer)
{
	return answer->status ? TCP_STATUS_BYTES : 0;
}

/* A part of the one constant that says OK, over and over; false: there is more than it holds. */
static bool ok_piece(struct iovec *iov, int *count, uint64_t frames, uint64_t done)
{
	uint64_t bytes = frames * TCP_STATUS_BYTES - done, offset = done % TCP_STATUS_BYTES;
	bool whole = bytes <= sizeof(ok_frames) - offset;

	tcp_add_piece(iov, count, ok_frames, whole ? offset + bytes : sizeof(ok_frames), offset);
	return whole;
}

/* A body of which, with its status, done bytes are sent; false: its end is not known yet. */
static bool body_pieces(struct iovec *iov, int *count, struct tcp_answer *answer, uint64_t done)
{
	uint64_t status = status_bytes(answer);
	const void *memory = (const void *)(uintptr_t)answer->addr;

	tcp_add_piece(iov, count, ok_frames, status, done);
	tcp_add_piece(iov, count, memory, answer->length, tcp_minus(done, status));
	if (!answer->summed)
		return true;
	if (!answer->sum_known && answer->length <= SUM_AHEAD)
		answer->sum = tcp_checksum_wire(tcp_checksum_add(TCP_SUM_START, memory, answer->length));
	else if (!answer->sum_known && done < status + answer->length)
		return false;
	else if (!answer->sum_known)
		answer->sum = tcp_checksum_wire(answer->sum);
	answer->sum_known = true;
	tcp_add_piece(iov, count, &answer->sum, TCP_SUM_BYTES, tcp_minus(done, status + answer->length));
	return true;
}

int tcp_answers_pieces(struct tcp_answers *answers, struct iovec *iov, int max)
{
	uint64_t done = answers->sent;
	bool more = true;
	int count = 0;

	for (uint32_t i = 0; more && i < answers->count && count <= max - 3; i++, done = 0) {
		struct tcp_answer *answer = at(answers, i);

		if (answer->waits)
			break;
		more = answer->addr == 0 ? ok_piece(iov, &count, answer->length, done)
					 : body_pieces(iov, &count, answer, done);
	}
	if (answers->count == 0)
		tcp_add_piece(iov, &count, &answers->last, TCP_STATUS_BYTES, answers->last_sent);
	return count;
}

static uint64_t whole(const struct tcp_answer *answer)
{
	if (answer->addr == 0)
		return answer->length * TCP_STATUS_BYTES;
	return status_bytes(answer) + answer->length + (answer->summed ? TCP_SUM_BYTES : 0);
}

/* Goes on with the sum of a long body, of which, with its status, bytes more are sent. */
static void go_on_sum(struct tcp_answer *answer, uint64_t sent, uint64_t bytes)
{
	uint64_t status = status_bytes(answer);
	uint64_t from = tcp_minus(sent, status), to = tcp_minus(sent + bytes, status);

	if (from < to)
		answer->sum = tcp_checksum_add(answer->sum, (const void *)(uintptr_t)(answer->addr + from), to - from);
}

struct tcp_sent tcp_answers_sent(struct tcp_answers *answers, uint64_t bytes)
{
	struct tcp_sent sent = {0};

	while (bytes > 0 && answers->count > 0) {
		struct tcp_answer *answer = at(answers, 0);
		uint64_t left = whole(answer) - answers->sent, here = left < bytes ? left : bytes;

		if (answer->summed && !answer->sum_known)
			go_on_sum(answer, answers->sent, here);
		answers->sent += here;
		bytes -= here;
		if (here < left)
			break;
		if (answer->addr != 0 && !answer->greeting) {
			sent.bodies += !answer->part;
			sent.bytes += answer->length;
		}
		sent.bounces += answer->bounce != NULL;
		if (answer->bounce != NULL)
			lw_bounce_give(answer->bounce);
		answers->sent = 0;
		answers->first = (answers->first + 1) % answers->room;
		answers->base++;
		answers->count--;
	}
	if (answers->count == 0)
		answers->last_sent = (uint8_t)(answers->last_sent + bytes);
	return sent;
}
