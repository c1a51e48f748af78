/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's insides: tables that all parts of lib/ share. Who writes what:
 *   config, drivers, workers     lw_engine_open, before any thread starts; constant afterwards
 *   tables under lock            control calls of any thread; never held while waiting for a peer
 *   batches, tasks               see lib/sched/task.h
 *   snapshots (memory, views)    replaced under lock, read by workers under qsbr
 * An engine structure is never freed, only used again, so a call with an engine that was closed meanwhile finds a state
 * and gets its error code.
 */
#ifndef LW_ENGINE_H
#define LW_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

#include "lib/clock.h"
#include "lib/config.h"
#include "lib/pages.h"
#include "lib/places.h"
#include "lib/rangemap.h"
#include "lib/rcu.h"
#include "lib/ring/channel.h"
#include "lib/ring/slab.h"
#include "lib/sched/driver.h"
#include "lib/sched/task.h"
#include "lib/sched/worker.h"
#include "meta/ctrl.h"
#include "meta/hostport.h"

enum lw_engine_state {
	LW_ENGINE_CLOSED = 0,
	LW_ENGINE_OPEN = 1,
	LW_ENGINE_CLOSING = 2,
	LW_ENGINE_FORKED = 3,
};

#define LW_HANDLE_INDEX_BITS 20
#define LW_HANDLE_INDEX_MASK ((UINT32_C(1) << LW_HANDLE_INDEX_BITS) - 1)
#define LW_HANDLE_TAG_BITS 12

static inline uint64_t lw_handle(uint32_t gen, uint32_t tag, uint32_t index)
{
	return (uint64_t)gen << 32 | (uint64_t)tag << LW_HANDLE_INDEX_BITS | index;
}

/* A way to a segment. */
struct lw_route {
	uint32_t driver; /* in lw_drivers */
	void *peer;      /* the driver's own; NULL for the engine's own segment */
};

/* What workers know of a segment. Immutable; replaced as a whole. */
struct lw_view {
	struct lw_route routes[LW_MAX_DRIVERS]; /* the best first */
	uint32_t route_count;
	uint8_t tcp_version;
	uint8_t tcp_options;  /* as in the peer's descriptor */
	uint64_t incarnation; /* 0: unknown */
	bool everything;      /* any range is offered (null driver) */
	bool of_files;        /* offsets count from the begin of the first file; nobody is behind it */
	bool devices;         /* some of it is memory of a GPU */
	struct lw_rangemap *ranges;
	struct lw_addrs data; /* where lanes connect to */
	uint32_t rails;       /* the first of data, which the peer has named to be used side by side; 0: it named none,
				 and data are tried one after the other */
	struct lw_addrs rpc;  /* its handshake port */
};

/* What a driver keeps of the peer for this view. NULL: the view has this route no more, or is NULL itself. */
static inline void *lw_view_peer(const struct lw_view *view, uint32_t driver)
{
	for (uint32_t i = 0; view != NULL && i < view->route_count; i++)
		if (view->routes[i].driver == driver)
			return view->routes[i].peer;
	return NULL;
}

#define LW_VIA_ANY (-1)

struct lw_segment_slot {
	_Atomic uint32_t gen; /* odd: open */
	_Atomic(struct lw_view *) view;
	_Atomic bool devices; /* as in the view; kept while it is open */
	/* under the engine's lock */
	uint32_t refs;
	bool stale;      /* the peer of this incarnation is gone; a new open gets a new slot */
	_Atomic int via; /* index of the one driver that it was opened for, or LW_VIA_ANY; set before gen becomes odd */
	char name[LW_NAME_MAX];
	struct lw_addrs rpc;        /* handshake port */
	struct lw_watch *watch;     /* NULL: there was none so far */
	struct lw_refresh *refresh; /* NULL: there was nobody to ask so far; set before gen becomes odd */
	_Atomic uint32_t leaving;   /* workers that still have to let go */
	struct lw_segment_leave *leave;
};

struct lw_buffer_slot {
	uint32_t gen; /* odd: registered */
	uint32_t access;
	uint32_t kind; /* LW_RANGE_KIND bits, as on the map */
	uint64_t addr;
	uint64_t length;
	char location[64];
	bool entering; /* not on the map yet: drivers learn of it */
	bool revoking; /* not offered any more; a worker did not confirm yet */
	bool late;     /* and the call that asked for it has given up */
};

struct lw_event_item {
	struct lw_event_item *next;
	struct lw_event event;
};

struct lw_note_item {
	struct lw_note_item *next;
	struct lw_note note;
};

struct lw_engine {
	_Atomic uint32_t calls;             /* control calls that are inside; written often, so alone */
	alignas(64) _Atomic uint32_t state; /* enum lw_engine_state */
	bool taken;                         /* under the table's lock: opening, open or closing */
	uint32_t tag;
	uint32_t epoch; /* even; where the generations of this life begin */
	uint64_t incarnation;
	struct lw_config config;
	char name[LW_NAME_MAX];
	struct lw_hostport own;   /* what is announced: where our handshake port is */
	char where[LW_NAME_MAX];  /* the same as text */
	struct lw_addrs address;  /* where we listen; its port is that of the handshake */
	struct lw_matrix *matrix; /* under the lock: that settings give; NULL: it is to be discovered */
	bool matrix_set;          /* the same: by lw_topology_set */

	uint32_t worker_count;  /* 1 in caller mode too */
	uint32_t workers_ready; /* initialised so far */
	struct lw_worker *workers;
	_Atomic uint32_t next_worker;
	bool driver_on[LW_MAX_DRIVERS];
	char driver_note[LW_MAX_DRIVERS][128]; /* why it is off, or how it works here */
	void *driver_context[LW_MAX_DRIVERS];
	struct lw_ctrl *ctrl;
	struct lw_directory *directory; /* our place in a metadata store; NULL: peers ask each other */
	struct lw_rcu rcu;

	struct lw_pages batch_pages, batch_next_pages, task_pages, task_next_pages, channel_pages, segment_pages;
	struct lw_batch *batches;
	struct lw_slab batch_slab;
	struct lw_task *tasks;
	struct lw_slab chunk_slab;
	struct lw_channel *channels;
	uint32_t channel_count; /* of this life; 0: the table is not there */
	struct lw_segment_slot *segments;
	uint32_t segments_used; /* under the lock: slots ever used */
	struct lw_cancel *cancels;
	_Atomic uint32_t *cancels_next;
	struct lw_slab cancel_slab;

	pthread_mutex_t lock;
	_Atomic(struct lw_rangemap *) memory;
	struct lw_buffer_slot *buffers;
	uint32_t buffers_used;  /* slots ever used */
	uint32_t *buffers_free; /* stack of slots */
	uint32_t buffers_free_count, buffers_free_room, buffers_room;
	uint32_t live_buffers, live_segments, live_channels;
	uint32_t own_buffers;      /* of the live ones, the engine's */
	uint32_t revoking;         /* buffers that are */
	uint32_t entering;         /* the same */
	struct lw_places places;   /* under its own lock */
	struct lw_area *areas;     /* of lw_mem_alloc, under the lock */
	_Atomic uint64_t told[64]; /* incarnations of which a refused route was logged */

	pthread_mutex_t notes_lock; /* of what waits for the application */
	struct lw_note_item *notes_head, **notes_tail;
	uint32_t notes_count;
	struct lw_event_item *events_head, **events_tail;
	int event_fd;               /* -1: nobody has asked for it */
	bool event_set;             /* it is readable */
	struct lw_outbox *outboxes; /* the control thread's: notes on their way, by peer */

	/* Written with every batch: beside nothing that workers read. */
	alignas(64) _Atomic uint32_t live_batches;
};

/* Enters a control call: 0, or -EINVAL, -ESHUTDOWN, -EOWNERDEAD. leave after 0. */
int lw_engine_enter(struct lw_engine *engine);
void lw_engine_leave(struct lw_engine *engine);
/* The state as an error for the data path: 0, -ESHUTDOWN, -EOWNERDEAD. */
int lw_engine_check(const struct lw_engine *engine);
bool lw_engine_caller_driven(const struct lw_engine *engine);

static inline struct lw_batch *lw_batch_of(struct lw_engine *engine, lw_batch_t id)
{
	uint32_t index = (uint32_t)id & LW_HANDLE_INDEX_MASK;

	if (((uint32_t)id >> LW_HANDLE_INDEX_BITS) != engine->tag ||
	    index >= atomic_load_explicit(&engine->batch_slab.count, memory_order_relaxed) || (id >> 32 & 1) == 0)
		return NULL;
	if (atomic_load_explicit(&engine->batches[index].gen, memory_order_acquire) != (uint32_t)(id >> 32))
		return NULL;
	return &engine->batches[index];
}

/* The slot of an open segment, or NULL. LW_SEGMENT_LOCAL is slot 0. */
static inline struct lw_segment_slot *lw_segment_of(struct lw_engine *engine, lw_segment_t id)
{
	uint32_t index = (uint32_t)id & LW_HANDLE_INDEX_MASK;

	if (id == LW_SEGMENT_LOCAL)
		return &engine->segments[0];
	if (((uint32_t)id >> LW_HANDLE_INDEX_BITS) != engine->tag || index == 0 ||
	    index >= engine->config.max_segments || (id >> 32 & 1) == 0)
		return NULL;
	if (atomic_load_explicit(&engine->segments[index].gen, memory_order_acquire) != (uint32_t)(id >> 32))
		return NULL;
	return &engine->segments[index];
}

/* Task number i of a batch. The worker and the submitter, or anybody who checks the generation afterwards. */
struct lw_task *lw_batch_task(struct lw_engine *engine, struct lw_batch *batch, uint32_t i);
/* What -EBADF for a batch says. */
extern const char lw_stale_batch[];
/* A batch that can have one task alone. */
static inline bool lw_batch_is_solo(struct lw_batch *batch)
{
	return atomic_load_explicit(&batch->capacity, memory_order_relaxed) == 1;
}
/* The slot and its tasks go back; by whoever took the last holder off the batch's word. Lock-free. */
void lw_batch_recycle(struct lw_engine *engine, struct lw_batch *batch);
/* The owner popped the batch's node. The word after that; the slot may be another batch's then. */
uint64_t lw_batch_unqueue(struct lw_engine *engine, struct lw_batch *batch);
/* lw_submit with a note, which is the batch's after 0. The owner. Also -EALREADY. */
int lw_submit_noted(struct lw_channel *channel, lw_batch_t id, const struct lw_request *requests, size_t count,
		    struct lw_pending_note *note);
/* A worker counted tasks as ended. The worker's thread. */
void lw_batch_ended(struct lw_engine *engine, struct lw_batch *batch, uint32_t done, uint32_t failed);

/* cancel.c */
int lw_cancel_init(struct lw_engine *engine);
void lw_cancel_fini(struct lw_engine *engine);
/* memory.c */
void lw_memory_init(struct lw_engine *engine);
void lw_memory_fini(struct lw_engine *engine);
/* Enters memory of the engine's own, which drivers move from and to as from what is registered; it is not shown, and
 * stays until the engine is closed. 0, or as lw_memory_register. */
int lw_memory_enter_own(struct lw_engine *engine, void *addr, size_t length);
/* Whether a buffer with a byte of [addr, end) is registered, or not let go of yet. Under the lock. */
bool lw_memory_in_use(const struct lw_engine *engine, uint64_t addr, uint64_t end);
/* alloc.c: memory of lw_mem_alloc, which other processes can map. */
struct lw_area {
	struct lw_area *next;
	uint64_t addr, length;
	uint64_t inode; /* the file's, by which it is told from another one that got its descriptor's number */
	int fd;         /* the memory's, sealed against shrinking */
};
void lw_areas_fini(struct lw_engine *engine);
/* In a forked child: closes its copies of the descriptors. */
void lw_areas_forked(struct lw_engine *engine);
/* route.c: the drivers that reach a peer. */
/* The driver's index, or -1: there is none of that name, or it is off. */
int lw_driver_index(const struct lw_engine *engine, const char *name, size_t length);
/* Fills in the view's routes, in the order of the setting drivers; via: a driver's index, for that one alone, or
 * LW_VIA_ANY. 0; -ENOTSUP none; -EPROTONOSUPPORT; of files what the driver says; the text of lw_last_error is set. May
 * block as lw_driver_ops.reach says. */
int lw_routes_find(struct lw_engine *engine, const struct lw_desc *desc, int via, struct lw_view *view);
void lw_routes_drop(struct lw_view *view);
/* Number n of the view's routes that lead from one kind of memory to the other (LW_PAIR): those whose driver moves that
 * by itself, then those that get there from bounce buffers, in the place of a GPU's memory of ours (*staged). NULL:
 * there are no more. */
const struct lw_route *lw_route_at(const struct lw_view *view, uint32_t pair, uint32_t n, bool *staged);
/* segment.c */
void lw_segment_init(struct lw_engine *engine);
void lw_segment_fini(struct lw_engine *engine);
/* Our own document without buffers: what the drivers tell. */
void lw_segment_describe(struct lw_engine *engine, struct lw_desc *desc);
/* The whole of it as text: what is registered and offered now. */
int lw_segment_document(struct lw_engine *engine, char **json, size_t *size);
/* The view of what a peer offers; via as for lw_routes_find. 0; -ENOTSUP, -EPROTO, -EPROTONOSUPPORT, -ENOMEM, said in
 * lw_last_error. */
int lw_segment_view(struct lw_engine *engine, const struct lw_desc *desc, const struct lw_addrs *rpc, int via,
		    struct lw_view **out);
void lw_segment_view_free(struct lw_view *view);
/* Takes a newer view of the segment over. 0; -ESTALE it is one of another life of the peer: the segment is stale from
 * now on; -EBADF the segment is not that one any more. */
int lw_segment_renew(struct lw_engine *engine, struct lw_segment_slot *slot, uint32_t gen, struct lw_view *view);
/* The name of a segment for messages. */
void lw_segment_name(struct lw_engine *engine, lw_segment_t segment, char *text, size_t size);
/* What is at an offset of it, as " (path at offset)"; "" where the offset says it all. */
void lw_segment_where(struct lw_engine *engine, lw_segment_t segment, uint64_t offset, char *text, size_t size);
/* Where the handshake port of the peer is, its name, and which life it lives (NULL: nobody wants to know; 0: it is not
 * ours). 0, -EBADF, -ENOTSUP nobody is there (null driver). */
int lw_segment_rpc(struct lw_engine *engine, lw_segment_t segment, struct lw_addrs *rpc, char name[LW_NAME_MAX],
		   uint64_t *incarnation);
/* What a probe asks a peer of ours, so that the answer tells its incarnation. */
#define LW_PROBE_LIFE "{\"lw\":{}}"

/* notify.c */
int lw_notify_receive(struct lw_engine *engine, const char *body, size_t size, char **reply, size_t *reply_size);
/* The batch ended: send or drop its note. A worker's thread; lock-free. */
void lw_notify_batch_ended(struct lw_engine *engine, struct lw_pending_note *note, bool send);
void lw_notify_fini(struct lw_engine *engine);

#endif
