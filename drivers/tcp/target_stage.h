/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of peers for memory of a GPU, which sockets can't reach: served through bounce buffers of the worker,
 * several at once, so that copies and the wire overlap.
 *
 *   WRITE  the body is received into a buffer; when that is full, or the body over, it is copied on. The answer waits
 *          in its place among the others until the last copy has ended.
 *   READ   pieces of the body are copied into buffers, one answer each, and leave in their order as they come; a buffer
 *          goes back when it is sent. Until the last piece has its buffer nothing more is taken in.
 *
 * The copies of a GPU end in their order, so requests for the same memory take effect in theirs. A connection gets as
 * many buffers as are left for the others; one that waits for a buffer is woken when any goes back; and one that holds
 * some, while another waits and nothing happens on it, ends (tcp_staged_tick). A copy that fails is told with the
 * status DEVICE; if a part of a body has left already, the connection is reset. The copies of a connection that ended
 * go on to their end; its lane's fence and lw_memory_unregister wait for them.
 *
 * The worker's thread; nothing blocks or allocates.
 */
#ifndef LW_TCP_TARGET_STAGE_H
#define LW_TCP_TARGET_STAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "lib/rangemap.h"
#include "lib/sched/bounce.h"

struct tcp_served;
struct tcp_worker;

/* A served connection's part. */
struct tcp_staged {
	struct lw_bounce_line *line; /* of the last request */
	uint32_t holding;            /* bounce buffers */
	bool writing;                /* the WRITE that is coming in is for a GPU */
	bool first;                  /* the next piece of the READ is its first */
	bool starving;               /* waits for a bounce buffer */
	uint32_t answer;             /* the WRITE's, by its number */
	uint32_t filled;             /* bytes in slot */
	uint32_t sum;                /* of the READ whose pieces are being copied */
	uint32_t moved_ms;           /* something last happened to a buffer of it */
	bool failed;                 /* a copy for the answer of that number could not begin */
	uint32_t failed_answer;
	struct lw_bounce_slot *slot; /* that the body comes into; NULL: none so far */
	uint64_t from, left;         /* of the READ: what has no piece yet */
	TAILQ_ENTRY(tcp_served) starving_link;
};

/* Begins a request for [addr, addr + size) in memory of a GPU; there is room for an answer. */
void tcp_staged_write(struct tcp_served *served, uint64_t addr, uint64_t size, bool v2);
void tcp_staged_read(struct tcp_served *served, uint64_t addr, uint64_t size, bool v2);

/* Goes on with a READ: as many pieces as there are buffers and answers for. False: there is more of it to come. */
bool tcp_staged_go_on(struct tcp_served *served);

/* Where the next bytes of the WRITE go, and how many. NULL: nowhere now; the connection is woken. */
void *tcp_staged_place(struct tcp_served *served, uint64_t *room);
/* So many bytes of the body came there; dest and left of the connection count them already. */
void tcp_staged_stored(struct tcp_served *served, uint64_t bytes);
/* The WRITE is well, as far as the wire goes: it is answered when its copies have ended. */
void tcp_staged_confirm(struct tcp_served *served);

/* Nothing more is taken in until something else has happened: a buffer came back, or an answer has left. */
static inline bool tcp_staged_waits(const struct tcp_staged *staged)
{
	return staged->starving || staged->left != 0 || staged->failed;
}

/* What failed while the connection was at work. Before its next work. False: the connection is gone. */
bool tcp_staged_check(struct tcp_served *served);

/* The WRITE that is coming in is refused: it has no answer any more. */
void tcp_staged_refuse(struct tcp_served *served);

/* So many answers that held a bounce buffer are gone. */
void tcp_staged_gave(struct tcp_served *served, uint32_t count);

/* Whether something of a request under way is in [addr, end), copies aside. */
bool tcp_staged_inside(const struct tcp_served *served, uint64_t addr, uint64_t end);

/* The connection ends. */
void tcp_staged_end(struct tcp_served *served);

/* Wakes who waits for a buffer, if there are some. Each pass in which the driver is polled. */
void tcp_staged_poll(struct tcp_worker *worker);
/* Ends a connection on which nothing happens, if another one waits for its buffers. Now and then. */
void tcp_staged_tick(struct tcp_worker *worker);

#endif
