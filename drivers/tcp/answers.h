/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a served connection that wait to be sent, in the order of their requests. Bounded: while there is no room
 * nothing more is read from the peer. The worker's; nothing blocks or allocates.
 */
#ifndef LW_TCP_ANSWERS_H
#define LW_TCP_ANSWERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "drivers/tcp/wire.h"
#include "lib/sched/bounce.h"

/* addr 0: length counts status frames that say OK; else length bytes of memory, after a status if v2, and with their
 * checksum behind if summed. */
struct tcp_answer {
	uint64_t addr;
	uint64_t length;
	uint32_t sum; /* of what was sent so far; as it goes out when sum_known */
	bool status;
	bool summed;
	bool sum_known;
	bool greeting;                 /* memory of the driver's: not counted */
	bool waits;                    /* nothing from here on is sent yet */
	bool begins;                   /* a body in pieces: this is the first */
	bool part;                     /* and more of them follow; not the last */
	struct lw_bounce_slot *bounce; /* whose memory it is; goes back when it is sent */
};

struct tcp_answers {
	struct tcp_answer *ring;
	uint32_t room, first, count;
	uint32_t base;     /* the number of the first; they are counted on */
	uint64_t sent;     /* bytes of the first */
	uint64_t last;     /* a status that is sent when all others are */
	uint8_t last_sent; /* bytes of it; TCP_STATUS_BYTES: there is none */
};

/* Bodies that went out whole. */
struct tcp_sent {
	uint64_t bodies, bytes;
	uint32_t bounces; /* bounce buffers that went back */
};

void tcp_answers_init(struct tcp_answers *answers, struct tcp_answer *ring, uint32_t room);

static inline bool tcp_answers_full(const struct tcp_answers *answers)
{
	return answers->count == answers->room;
}

/* All is sent, the last status too. */
static inline bool tcp_answers_over(const struct tcp_answers *answers)
{
	return answers->count == 0 && answers->last_sent == TCP_STATUS_BYTES;
}

/* The caller made sure of room. The answer's number. */
uint32_t tcp_answers_add(struct tcp_answers *answers, struct tcp_answer answer);
void tcp_answers_add_ok(struct tcp_answers *answers);
/* The status that ends it all; nothing is added after it. */
void tcp_answers_end(struct tcp_answers *answers, enum tcp_status code);

/* The one of that number, until it is sent. NULL: it is not there. */
struct tcp_answer *tcp_answers_at(const struct tcp_answers *answers, uint32_t number);
/* Takes that one, of which nothing is sent, and all behind it back. How many bounce buffers went back. */
uint32_t tcp_answers_cut(struct tcp_answers *answers, uint32_t number);

/* Whether one that waits reads in [addr, end). */
bool tcp_answers_read(const struct tcp_answers *answers, uint64_t addr, uint64_t end);

/* What is to be sent next: pieces in iov, which has room for max. Their number. */
int tcp_answers_pieces(struct tcp_answers *answers, struct iovec *iov, int max);
/* So many bytes of those pieces are sent. */
struct tcp_sent tcp_answers_sent(struct tcp_answers *answers, uint64_t bytes);

#endif
