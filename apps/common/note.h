/* SPDX-License-Identifier: Apache-2.0 */
/* Questions and answers between two programs, by notes. */
#ifndef APPS_COMMON_NOTE_H
#define APPS_COMMON_NOTE_H

#include <stdbool.h>

#include <lanewise/lanewise.h>

/* Sends a note of two texts. Blocks for at most timeout_ms. Returns as lw_notify. */
int app_note_send(struct lw_engine *engine, lw_segment_t segment, const char *name, const char *text,
		  uint32_t timeout_ms);

/* Answers: opens the segment called peer, sends the note, closes the segment. Blocks for at most 2 * timeout_ms.
 * Returns as lw_segment_open and lw_notify. */
int app_note_answer(struct lw_engine *engine, const char *peer, const char *name, const char *text,
		    uint32_t timeout_ms);

/* Asks: drops the notes that wait, sends name with this engine's own name as text, and waits for a note called answer.
 * Other notes that come meanwhile are dropped. drive: the engine has poll = caller. Blocks for at most 2 * timeout_ms.
 * 0 and *out, which the caller frees with lw_note_free; -ETIMEDOUT; otherwise as lw_notify. */
int app_note_ask(struct lw_engine *engine, lw_segment_t segment, const char *name, const char *answer, bool drive,
		 uint32_t timeout_ms, struct lw_note **out);

#endif
