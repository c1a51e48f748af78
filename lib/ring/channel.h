/* SPDX-License-Identifier: Apache-2.0 */
/* A channel's insides. Slots of one array in the engine; the memory is type-stable. */
#ifndef LW_RING_CHANNEL_H
#define LW_RING_CHANNEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <lanewise/channel.h>

#include "lib/ring/command.h"
#include "lib/ring/inbox.h"
#include "lib/ring/spsc.h"

struct lw_engine;

struct lw_channel {
	struct lw_command attach; /* tells the home worker of the ring */
	/* constant while open */
	struct lw_engine *engine;
	uint32_t index;
	uint32_t home;        /* worker that gets what this channel submits */
	struct lw_spsc *ring; /* to the home worker */
	bool self;            /* a thread's own, of lw_channel_self */
	bool used;            /* under the engine's lock */
	_Atomic uint32_t gen; /* odd: open */
	/* the owner's */
	alignas(64) struct lw_inbox_node *ready; /* ended batches, oldest first */
	struct lw_inbox_node **ready_tail;
	_Atomic uint32_t inside; /* the owner is in a call that lw_engine_close has to wait for */
	/* shared with workers */
	alignas(64) struct lw_inbox ended;
	_Atomic uint32_t watched; /* 1: an event descriptor exists or the owner sleeps: write to it */
	_Atomic int event_fd;     /* -1: none yet */
};

/* Enters a call of the owner: 0, or -ESHUTDOWN, -EOWNERDEAD, or -EINVAL if the channel is closed. Two plain stores and
 * a compiler barrier, since lw_engine_close has the heavy fence. Leave after 0. */
int lw_channel_enter(struct lw_channel *channel);
void lw_channel_leave(struct lw_channel *channel);

/* Moves ended batches to the ready list and drops those that were freed meanwhile. The owner. */
void lw_channel_reap(struct lw_channel *channel);

/* The engine is closing and its workers have ended. */
void lw_channel_fini(struct lw_channel *channel);

/* A batch of the channel ended: called by a worker after the batch's last touch, if the owner has to be told. */
void lw_channel_wake(struct lw_channel *channel);

#endif
