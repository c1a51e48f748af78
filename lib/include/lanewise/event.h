/* SPDX-License-Identifier: Apache-2.0 */
/* Events: what an engine tells unasked, and a descriptor for those who wait for them or for notes. */
#ifndef LANEWISE_EVENT_H
#define LANEWISE_EVENT_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lw_event_kind {
	LW_EVENT_PEER_GONE = 1, /* the peer of a watched segment; its watch has ended */
};

struct lw_event {
	uint32_t kind;        /* enum lw_event_kind */
	int32_t error;        /* why: -ETIMEDOUT, -ECONNREFUSED, -EHOSTUNREACH, -ECONNRESET, -EPROTO it did not answer;
				 -ESTALE it was restarted */
	lw_segment_t segment; /* as it was given to lw_segment_watch */
	char name[256];       /* of the segment */
};

/* Watches whether the segment's peer lives: it is asked several times in gone_after_ms, by its handshake port. When it
 * has not answered for so long, or another life of it answers, one event tells it, and the watch ends. Whoever waits
 * for a peer that may have died meanwhile (a receiver, whose sender told it to expect something) learns it so; what is
 * under way to that peer is not touched. Another call for the same segment replaces the time; 0 ends the watch, and so
 * does closing the segment. gone_after_ms: 0, 100 .. 86,400,000. A peer that merely stands still for less is not gone.
 * Any thread. Never blocks. 0; -ENOTSUP nobody is there (null driver, LW_SEGMENT_LOCAL); -EBADF; -EINVAL; -ENOMEM;
 * -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_watch(struct lw_engine *engine, lw_segment_t segment, uint32_t gone_after_ms);

/* Takes the oldest event. Any thread. Never blocks beyond a short lock. 1 and *out; 0 none; -EINVAL; -ESHUTDOWN;
 * -EOWNERDEAD. */
LW_API int lw_event_poll(struct lw_engine *engine, struct lw_event *out);

/* A descriptor that is readable while an event (lw_event_poll) or a note (lw_note_poll) waits, for poll() and epoll. It
 * stays the engine's: do not read or close it. Any thread. Never blocks. The descriptor; -EINVAL; -EMFILE; -ESHUTDOWN;
 * -EOWNERDEAD. */
LW_API int lw_event_fd(struct lw_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
