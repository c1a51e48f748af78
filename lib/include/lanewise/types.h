/* SPDX-License-Identifier: Apache-2.0 */
/* Handles and enumerations that all public headers share. */
#ifndef LANEWISE_TYPES_H
#define LANEWISE_TYPES_H

#include <stddef.h>
#include <stdint.h>

#define LW_API __attribute__((visibility("default")))

/* A handle: bits 0..19 index, 20..31 tag of the engine it belongs to, 32..63 generation (never 0). 0 is no handle. */
typedef uint64_t lw_batch_t;
typedef uint64_t lw_buffer_t;
typedef uint64_t lw_segment_t;

/* The engine's own segment: transfers inside one engine. Always open. It reaches what the engine offers to peers. */
#define LW_SEGMENT_LOCAL ((lw_segment_t)0)

struct lw_engine;
struct lw_channel;

enum lw_op {
	LW_READ = 0,  /* the segment's memory -> local memory */
	LW_WRITE = 1, /* local memory -> the segment's memory */
};

enum lw_state {
	LW_PENDING = 0,   /* accepted, not ended */
	LW_COMPLETED = 1, /* applied at the destination */
	LW_FAILED = 2,    /* ended with an error; the destination's bytes are undefined */
	LW_CANCELED = 3,  /* ended by lw_batch_cancel, lw_task_cancel or lw_segment_cancel */
	LW_TIMEOUT = 4,   /* ended by its deadline */
};

/* Who a buffer is offered to. As the local side of a request every registered buffer may be used. */
enum lw_access {
	LW_ACCESS_LOCAL = 0,
	LW_ACCESS_REMOTE_READ = 1,
	LW_ACCESS_REMOTE_WRITE = 2,
	LW_ACCESS_REMOTE = 3,
};

#endif
