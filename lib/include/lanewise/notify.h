/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications: small named messages between engines, delivered at most once and in order per sender. */
#ifndef LANEWISE_NOTIFY_H
#define LANEWISE_NOTIFY_H

#include <lanewise/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A message. To send: bytes of the caller's, copied. Received: one allocation that the caller frees with lw_note_free.
 * Both texts are followed by a NUL that their sizes do not count. Any bytes may be inside; a NUL to Lanewise peers
 * alone (others would cut the text there: -EILSEQ). */
struct lw_note {
	const char *name;
	size_t name_size; /* bytes, 0 .. 65,536 */
	const char *text;
	size_t text_size; /* bytes, 0 .. 524,288 */
};

/* Sends a note to the engine behind segment and waits for its answer. Any thread. Blocks for at most timeout_ms (0: the
 * setting handshake_timeout_ms); other peers' notes are not delayed. One that is given up before its turn is not sent.
 * 0 the peer has it; -ENOBUFS the peer's queue is full, or 64 MiB of notes wait for this peer; -ENOTSUP nobody is there
 * (null driver); -EHOSTUNREACH, -ECONNREFUSED, -ETIMEDOUT, -EPROTO; -EMSGSIZE too long; -EILSEQ a NUL, see above;
 * -EBADF; -EINVAL; -ENOMEM; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_notify(struct lw_engine *engine, lw_segment_t segment, const struct lw_note *note, uint32_t timeout_ms);

/* The same to the engine of that name, as found by a fresh look: the one that lives now. Errors of lw_segment_open,
 * too. */
LW_API int lw_notify_name(struct lw_engine *engine, const char *name, const struct lw_note *note, uint32_t timeout_ms);

/* lw_submit, and when every task of the batch COMPLETED the engine sends note to the segment of requests[0], once,
 * whether or not anybody polls. If a task does not complete, the note is dropped; so it is, with a warning in the log,
 * if the peer does not take it in handshake_timeout_ms, or 64 MiB of notes wait for this peer. One note a batch at a
 * time. As lw_submit, but allocates. Also: -EALREADY the batch has a note waiting; -EINVAL count is 0; note errors as
 * lw_notify.
 */
LW_API int lw_submit_notify(struct lw_channel *channel, lw_batch_t batch, const struct lw_request *requests,
			    size_t count, const struct lw_note *note);

/* Takes the oldest note received. Any thread. Never blocks beyond a short lock. 1 and *out; 0 none; -EINVAL;
 * -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_note_poll(struct lw_engine *engine, struct lw_note **out);

/* Frees a note of lw_note_poll. NULL is allowed. Any thread. Never blocks. */
LW_API void lw_note_free(struct lw_note *note);

#ifdef __cplusplus
}
#endif
#endif
