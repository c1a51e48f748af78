/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of libtransfer_engine.so. An engine is a slot of a table; slots are never freed, only used again, so a
 * call beside or after destroyTransferEngine finds a state and gets its error. Who writes what:
 *   engine, what is read of the settings     createTransferEngine, before the handle is known
 *   gen                                      the table's lock; read by anybody
 *   transports, segments                     under lock; the segments' handles are read by anybody
 */
#ifndef LW_COMPAT_H
#define LW_COMPAT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <lanewise/lanewise.h>

#pragma GCC visibility push(default)
#include "lib/compat/transfer_engine_ext.h"
#pragma GCC visibility pop

#define TE_TRANSPORTS 16
#define TE_ID_CHUNK 1024 /* segment ids in one piece of the table */
#define TE_ID_CHUNKS 1024

struct te_segment; /* segments.c */

struct te_transport {
	char name[16];
};

struct te {
	_Atomic uint32_t gen;               /* odd: there is an engine */
	_Atomic(struct lw_engine *) engine; /* NULL: the slot is free */
	bool caller_driven;                 /* poll = caller */
	bool tells_timeout;                 /* MC_SLICE_TIMEOUT is set */
	_Atomic bool graceful;              /* enableGracefulShutdown */
	uint32_t timeout_ms;                /* of requests; 0: the engine's setting, which somebody chose */
	uint32_t submit_wait_ms;            /* for room in a ring */
	uint64_t max_buffers;

	/* For threads that can't have a channel of their own: they hold the lock while they use it. */
	pthread_mutex_t shared_lock;
	struct lw_channel *shared;

	pthread_mutex_t lock;
	_Atomic uint32_t transport_count;
	struct te_transport transports[TE_TRANSPORTS];
	struct te_segment *segments;
	uint32_t segment_count, segment_room;
	uint32_t next_id;                                      /* of the next segment that is opened first */
	uint64_t close_count;                                  /* a clock: when a segment was closed */
	_Atomic(_Atomic lw_segment_t *) handles[TE_ID_CHUNKS]; /* by id; 0: none */
};

/* engine.c. The engine of a handle; NULL, said in te_fail's text: it is made up or destroyed. */
struct te *te_of(transfer_engine_t handle);
/* Destroys every engine that is marked. */
void te_destroy_graceful(void);
/* The calling thread's channel, or the shared one; give it back soon. 0 or a negative errno value. */
struct te_channel {
	struct lw_channel *channel;
	pthread_mutex_t *held; /* NULL: the thread's own */
};
int te_channel_take(struct te *te, struct te_channel *out);
void te_channel_give(struct te_channel *channel);

/* errors.c. The code of a negative errno value that an lw_ function returned, in the two families; 0 stays 0. */
int te_error(int error);
int te_status(int error);
/* Stores a text of static storage for getTransferEngineError, and returns code. */
int te_fail(int code, const char *text);

/* A warning, at most one a second for each next_ns, which begins as 0. */
void te_warn(_Atomic uint64_t *next_ns, const char *line);

static inline uint64_t te_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* env.c. What the environment and the settings say to this library alone. 0 or a negative errno value. */
int te_settings(struct te *te);
/* Settings that this library gives an engine where the environment says nothing. Fills out, the number of them. */
#define TE_PREFERRED 1
size_t te_preferred(struct lw_setting *out);

/* install.c. Installs what init does by itself. 0; -ENOTSUP nothing can be installed. */
int te_install_some(struct te *te);
static inline bool te_installed(struct te *te)
{
	return atomic_load_explicit(&te->transport_count, memory_order_acquire) != 0;
}

/* segments.c. */
void te_segments_init(struct te *te);
void te_segments_fini(struct te *te);
#define TE_NO_SEGMENT UINT64_MAX /* a handle that no engine knows */
static inline lw_segment_t te_segment(struct te *te, int64_t id)
{
	_Atomic lw_segment_t *chunk;
	lw_segment_t handle;

	if (id == LOCAL_SEGMENT)
		return LW_SEGMENT_LOCAL;
	if (id < 0 || id >= (int64_t)TE_ID_CHUNK * TE_ID_CHUNKS)
		return TE_NO_SEGMENT;
	chunk = atomic_load_explicit(&te->handles[id / TE_ID_CHUNK], memory_order_acquire);
	if (chunk == NULL)
		return TE_NO_SEGMENT;
	handle = atomic_load_explicit(&chunk[id % TE_ID_CHUNK], memory_order_acquire);
	return handle != 0 ? handle : TE_NO_SEGMENT;
}

/* What snprintf returned for a text of the caller's: 0 it fits, else -1 and the rest is cut off. */
int te_fits(int length, size_t size);

#endif
