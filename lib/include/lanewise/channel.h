/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: what one application thread owns, its rings to the workers and its queue of completions. */
#ifndef LANEWISE_CHANNEL_H
#define LANEWISE_CHANNEL_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One batch that ended. */
struct lw_completion {
	lw_batch_t batch;
	void *user;      /* what lw_batch_alloc was given */
	uint32_t tasks;  /* tasks of the batch so far: with several submits a batch may end more than once */
	uint32_t failed; /* of those, not COMPLETED */
};

/* The calling thread's own channel of this engine, made on first use and closed when the thread ends. Any thread.
 * Never blocks beyond a short table lock on first use. 0; -EINVAL; -ENOSPC more than the setting max_channels, or the
 * thread has channels of 8 engines already; -ENOMEM; -ESHUTDOWN;
 * -EOWNERDEAD. */
LW_API int lw_channel_self(struct lw_engine *engine, struct lw_channel **out);

/* Opens a channel that the caller hands to whom it likes, one thread at a time. Otherwise as lw_channel_self. The
 * caller gives it back with lw_channel_close. */
LW_API int lw_channel_open(struct lw_engine *engine, struct lw_channel **out);

/* Closes a channel of lw_channel_open. Its batches live on; their completions are no longer queued. The channel's
 * owner. Blocks for at most 5 s until each worker let go. 0; -EINVAL NULL, or not from lw_channel_open; -ETIMEDOUT a
 * worker did not let go; -ESHUTDOWN. */
LW_API int lw_channel_close(struct lw_channel *channel);

/* Takes at most max batches that ended and were allocated with LW_BATCH_EVENT. In caller mode it also drives the
 * engine. The channel's owner. Never blocks. The number taken; -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_channel_poll(struct lw_channel *channel, struct lw_completion *out, size_t max);

/* As lw_channel_poll, but waits for the first one: spins briefly, then sleeps. The channel's owner. Blocks for at most
 * timeout_ms (0: returns at once; UINT32_MAX: without limit). In caller mode it drives the engine. A batch that nothing
 * was submitted to has no completion. The number taken, 0 when the time is over; errors as lw_channel_poll, and
 * -EMFILE. */
LW_API int lw_channel_wait(struct lw_channel *channel, struct lw_completion *out, size_t max, uint32_t timeout_ms);

/* A descriptor that becomes readable when a completion is queued, for poll() and epoll; lw_channel_poll makes it
 * unreadable again when it empties the queue. It stays the channel's: do not read or close it. Once asked for, each
 * completion that meets an empty queue costs the worker one system call. The channel's owner. Never blocks.
 * The descriptor; -EINVAL; -EMFILE; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_channel_fd(struct lw_channel *channel);

#ifdef __cplusplus
}
#endif
#endif
