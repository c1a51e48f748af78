/* SPDX-License-Identifier: Apache-2.0 */
/* What a driver is: one constant table of functions, found in drivers/drivers.c. Members are grouped by the thread that
 * calls them. A driver talks back through lane.h and worker.h only; drivers do not know each other.
 */
#ifndef LW_SCHED_DRIVER_H
#define LW_SCHED_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/descriptor.h"

struct lw_buffer_slot;
struct lw_engine;
struct lw_lane;
struct lw_memory;
struct lw_path;
struct lw_slice;
struct lw_view;
struct lw_worker;

#define LW_MAX_DRIVERS 16

/* Kinds of memory, and pairs of them: ours and the peer's. */
#define LW_MEM_HOST 0u
#define LW_MEM_DEVICE 1u /* of a GPU */
#define LW_PAIR(local, remote) ((local) | (remote) << 1)
#define LW_PAIRS 4u
#define LW_MOVES(local, remote) (UINT32_C(1) << LW_PAIR(local, remote))

/* The ways that lead to a peer: for tcp a pair of addresses each, ours and the peer's. They are numbered from 0. */
struct lw_ways {
	uint32_t count;   /* at least 1 */
	uint32_t at_once; /* 1 .. count: the first ones, which are meant to be used side by side; the rest are for when
			     those fail */
};

/* What a connection's other end and the network let know, asked without waiting for either. */
struct lw_look {
	uint64_t moved;      /* bytes of either direction that arrived since the connection was made; only grows */
	uint32_t min_rtt_us; /* 0: not known */
	bool silent;         /* something was sent, sent again, and not even the peer's kernel says that it came */
};

struct lw_driver_ops {
	size_t size;        /* sizeof(struct lw_driver_ops) */
	const char *name;   /* as in descriptors and in the setting "drivers" */
	size_t lane_bytes;  /* the driver's own part of a lane */
	uint32_t credits;   /* slices on one lane at once */
	uint32_t peer_cuts; /* not 0: a slice may not cross a seam between two of the peer's buffers */
	uint32_t align;     /* not 0: slices of one request end at multiples of it in the peer's offsets */
	uint32_t lanes;     /* of one worker to one peer; 0: as the setting tcp_lanes says */
	uint32_t moves;     /* LW_MOVES bits: between which kinds of memory; 0: from host to host alone */
	bool own;           /* beside shm and tcp: it reaches the engine's own segment, by a route whose peer is NULL */
	/* The ways to this peer. A worker's thread. May be NULL: there is one. */
	struct lw_ways (*ways)(const void *context, const struct lw_view *view);
	/* The same for drivers whose number depends on the peer. A worker's thread. May be NULL: as lanes says. */
	uint32_t (*lanes_to)(const void *context, const struct lw_view *view);
	/* Whether a peer like this one checks every range itself, says so when it refuses, and serves ranges over
	 * several buffers: then it may be sent what it was not seen to offer. A worker's thread. May be NULL: it does
	 * not. */
	bool (*peer_checks)(const void *context, const struct lw_view *view);
	/* Whether the peer still offers just what it did when reach gave *peer: then what is outside of that is refused
	 * without a question to it. A worker's thread. May be NULL: nobody can tell. */
	bool (*offer_seen)(const void *peer);
	/* Which of a path's lanes are to carry bytes between these addresses, since their devices are nearest to both
	 * memories: a bit each, of lanes that are UP; if none is, whatever. A worker's thread. May be NULL: all alike.
	 */
	uint32_t (*nearest)(const struct lw_path *path, uint64_t local, uint64_t remote);

	/* lw_engine_open's and lw_engine_close's thread; may block briefly. note gets the reason of a failure; else it
	 * may say which of several methods is used here. */
	int (*open)(struct lw_engine *engine, void **context, char *note, size_t note_size);
	void (*close)(void *context);
	/* After the workers were prepared, and before they end: begins and stops to take connections. May be NULL. */
	int (*start)(void *context);
	void (*stop)(void *context);
	/* Adds what peers need to know to our descriptor. May be NULL. */
	void (*describe)(void *context, struct lw_desc *desc);
	/* Whether a peer with this descriptor can be reached: 0, and what the driver wants to keep for it in *peer,
	 * which forget gives back; -ENOTSUP it offers nothing for this driver; -EPROTONOSUPPORT it must not be reached
	 * at all; another negative errno: not by this driver. why gets the reason. The thread of lw_segment_open,
	 * lw-ctrl or lw-store; may open files of this host, waits for nobody (for an NVMe target at most as
	 * long as the setting handshake_timeout_ms says, in lw_segment_open alone). Both may be NULL: the driver
	 * reaches no peers. */
	int (*reach)(void *context, const struct lw_desc *desc, void **peer, char *why, size_t why_size);
	/* Any thread, possibly after close. */
	void (*forget)(void *peer);
	/* What is at an offset of the peer, for messages: " (path at offset)". Any thread, under the engine's lock;
	 * does not block. May be NULL: the offset is an address and says it all. */
	void (*where)(const void *peer, uint64_t offset, char *text, size_t size);
	/* For drivers with which peers reach our memory by themselves; all four may be NULL. A buffer's slot is offered
	 * from now on, or is not any more: under the engine's lock, neither blocks. */
	void (*offer)(void *context, uint32_t index, const struct lw_buffer_slot *buffer);
	void (*withdraw)(void *context, uint32_t index);
	/* engine->areas changed, which peers may map: under the engine's lock, before an area's memory goes. */
	void (*areas)(void *context);
	/* For drivers that have to know memory before it can move; both may be NULL. attach: 0, or a negative errno and
	 * why: then nothing is registered. detach: nobody's bytes move there any more, or attach failed. The threads of
	 * lw_memory_register and lw_memory_unregister, several at once; they may take their time (pages are pinned),
	 * but wait for nobody. What was not detached ends with close. Memory of a kind that the driver does not move is
	 * neither attached nor offered. */
	int (*attach)(void *context, uint32_t index, const struct lw_memory *memory, char *why, size_t why_size);
	void (*detach)(void *context, uint32_t index);
	/* What peers need to know of the buffer's bytes from buffer->addr on: fills in name and key, and shortens
	 * length where the next piece begins, for which it is called again. Under the engine's lock. May be NULL. 0,
	 * -ENOMEM. */
	int (*piece)(void *context, uint32_t index, struct lw_desc *desc, struct lw_desc_buffer *buffer);
	/* Answers a request of type LW_FRAME_CONNECTION; as lw_ctrl_opts.serve. The control thread. May be NULL. */
	int (*serve)(void *context, const char *body, size_t size, char **reply, size_t *reply_size);
	/* Waits, until end_ns at the latest, until no peer can still be inside a buffer that was withdrawn. 0, or
	 * -EBUSY and who it is in why. The thread of lw_memory_unregister. */
	int (*settle)(void *context, uint64_t end_ns, char *why, size_t why_size);
	/* Per worker, before its thread starts and after it ended. Both may be NULL. */
	int (*worker_open)(void *context, struct lw_worker *worker, void **worker_context);
	void (*worker_close)(void *worker_context);

	/* In a forked child, once a worker: closes the child's copies of descriptors, and does nothing else. May be
	 * NULL. */
	void (*forked)(void *worker_context);

	/* The worker's thread; none of these blocks or allocates. */

	/* Begins to connect a lane to lane->path's view, by lane->way. The lane reports lw_lane_up or lw_lane_down, at
	 * once or later.
	 * 0, or a negative errno: the lane is down already (-EPROTONOSUPPORT: the peer is set up otherwise). */
	int (*lane_open)(struct lw_lane *lane, const struct lw_view *view);
	/* Drops the connection. When it returns, no memory of the lane's slices is or will be touched from here. With
	 * recall it is called without a slice on the lane, except for lw_engine_close that has waited long enough. */
	void (*lane_close)(struct lw_lane *lane);
	/* Moves a small request whole and at once, without a slice; one of the foreground may overtake bulk that was
	 * posted. May be NULL. False: it was not touched, post it. */
	bool (*now)(struct lw_lane *lane, uint8_t op, uint64_t local, uint64_t remote, uint64_t length);
	/* Takes a slice, the last one of lane->inflight; bytes may move now or in flush. Ends in lw_slice_done. */
	void (*post)(struct lw_lane *lane, struct lw_slice *slice);
	/* Called once after one or more posts. */
	void (*flush)(struct lw_lane *lane);
	/* Takes back a slice that no byte was sent for. False if it is too late. */
	bool (*unpost)(struct lw_lane *lane, struct lw_slice *slice);
	/* What is known of the connection of a lane that is UP. One cheap system call at most. False: nothing now. May
	 * be NULL: nothing ever. */
	bool (*look)(struct lw_lane *lane, struct lw_look *out);
	/* Finds out whether something answers by this way, beside the lane's connection and without a change of it. It
	 * reports lw_lane_probed, once, later, unless probe_end drops it. One at a time a lane. 0, or a negative errno:
	 * nothing is under way. Both NULL: lanes stay where they are. The view may have fewer ways than when the lane
	 * was connected. */
	int (*probe)(struct lw_lane *lane, const struct lw_view *view, uint32_t way);
	void (*probe_end)(struct lw_lane *lane);
	/* For drivers that can't take the memory of a slice back from the kernel or the hardware: asks for the early
	 * end of one that unpost refused, again and again maybe. The slice ends in lw_slice_done, never inside this
	 * call. Until then its task stays pending, its memory registered, and its lane open. NULL: lane_close takes
	 * everything back at once, and an aborted slice has a grace before that. */
	void (*recall)(struct lw_lane *lane, struct lw_slice *slice);
	/* May be NULL if the driver serves no peers. Stops serving peers inside [addr, end): when it returns, no byte
	 * there is or will be touched for a peer. */
	void (*revoke)(void *worker_context, uint64_t addr, uint64_t end);
	/* Moves what can be moved now. Called in a pass after lw_worker_want, in each pass while it returns true, and
	 * once a millisecond. May be NULL. */
	bool (*poll)(void *worker_context);
};

/* Whether the driver moves bytes between that pair of kinds by itself. */
static inline bool lw_driver_moves(const struct lw_driver_ops *ops, uint32_t pair)
{
	return ops->moves != 0 ? (ops->moves >> pair & 1) != 0 : pair == LW_PAIR(LW_MEM_HOST, LW_MEM_HOST);
}

/* Whether it has to do with that kind of our memory: as the near side of a request, or as the far side of a peer's. */
static inline bool lw_driver_knows(const struct lw_driver_ops *ops, uint32_t kind)
{
	for (uint32_t pair = 0; pair < LW_PAIRS; pair++)
		if (lw_driver_moves(ops, pair) && ((pair & 1) == kind || pair >> 1 == kind))
			return true;
	return false;
}

extern const struct lw_driver_ops *const lw_drivers[];
extern const size_t lw_drivers_count;

#endif
