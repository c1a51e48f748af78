/* SPDX-License-Identifier: Apache-2.0 */
/* The connections, in the order in which they began to wait for something: since they were made, or since their last
 * answer was sent. Who waits too long is cut; so is, when there are too many, the one that has waited longest. A client
 * that is silent, slow to send or slow to read is all one here. Any thread may call any function. */
#ifndef APPS_LWMETA_CONNS_H
#define APPS_LWMETA_CONNS_H

#include <stdint.h>

struct conns;
struct conn;

struct conns_figures {
	uint64_t open, made, cut_slow, cut_many;
};

/* NULL when there is no memory. */
struct conns *conns_new(uint64_t most, uint64_t timeout_ms);

/* Notes a connection down, and cuts the oldest one when there are too many. NULL when there is no memory. */
struct conn *conns_add(struct conns *conns, int fd);

/* The connection was answered. NULL is allowed. */
void conns_answered(struct conns *conns, struct conn *conn);

/* The connection ends; its socket is still open. NULL is allowed. */
void conns_remove(struct conns *conns, struct conn *conn);

/* Cuts those that have waited too long. */
void conns_tick(struct conns *conns);

void conns_figures(struct conns *conns, struct conns_figures *out);

/* When no connection is left. NULL is allowed. */
void conns_free(struct conns *conns);

#endif
