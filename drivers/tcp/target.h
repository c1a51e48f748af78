/* SPDX-License-Identifier: Apache-2.0 */
/* A served connection, as target.c and target_stage.c share it. The worker's that owns it. */
#ifndef LW_TCP_TARGET_H
#define LW_TCP_TARGET_H

#include "drivers/tcp/answers.h"
#include "drivers/tcp/target_stage.h"
#include "drivers/tcp/tcp.h"

struct tcp_block;

struct tcp_served {
	struct tcp_sock sock;
	TAILQ_ENTRY(tcp_served) link;
	struct lw_lane *lane;
	struct tcp_block *block;
	uint32_t block_index;
	uint32_t used_ms;    /* something last happened on it */
	uint32_t begin, end; /* unused bytes of staging */
	/* the WRITE that is coming in */
	uint64_t dest, left;
	uint32_t sum;     /* of its body so far */
	bool sum_to_come; /* the body is there */
	bool big;         /* it, or the last one, is BIG_BODY or more */
	bool confirm;
	bool held; /* the next header is a WRITE over what an answer still reads */
	/* HELLO: which lane of the peer's this is, and whether its older connections are being ended */
	uint64_t token;
	uint8_t options;
	enum { UNGREETED, PROVING, SERVING } stage; /* SERVING: the peer said HELLO, and knows what LEAVING means */
	bool fencing;
	struct tcp_fence *fence; /* NULL while fencing: to be begun */
	struct tcp_answers answers;
	struct tcp_staged staged; /* requests for memory of a GPU */
	/* the end */
	bool finished; /* the peer sends no more: the last answer ends the connection */
	bool closing;  /* refused: nothing is served any more */
	bool shut;
	uint32_t refused_at_ms;
};

_Static_assert(sizeof(struct tcp_served) <= TCP_LANE_BYTES, "a served connection fits into a lane");

static inline bool tcp_served_sums(const struct tcp_served *served)
{
	return (served->options & LW_TCP_CHECKSUM) != 0;
}

/* Ends it; abort: with a reset. */
void tcp_served_end(struct tcp_served *served, bool abort);

/* Nothing more is served; if status, the peer is told code when all answers are sent. */
void tcp_served_refuse(struct tcp_served *served, enum tcp_status code, bool status);

#endif
