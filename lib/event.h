/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for the application: events here, notes in notify.c, and the one descriptor that tells of both. All under
 * the engine's notes_lock.
 */
#ifndef LW_EVENT_H
#define LW_EVENT_H

#include <lanewise/event.h>

struct lw_engine;

/* Queues an event; there is one at most for each watch, so memory is bounded by the segments. Off the hot path. */
void lw_event_push(struct lw_engine *engine, const struct lw_event *event);

/* Something was queued, or taken. Under notes_lock. */
void lw_event_signal(struct lw_engine *engine);

/* Frees what nobody took, and the descriptor. */
void lw_event_fini(struct lw_engine *engine);

/* In a forked child. */
void lw_event_forked(struct lw_engine *engine);

#endif
