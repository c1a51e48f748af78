/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to an etcd cluster, through the JSON gateway of its v3 interface (3.4 and later).
 *
 * The endpoints are tried in turn, beginning with the one that answered last. The time that is left is shared evenly,
 * so that a frozen one does not use up what the others need.
 */
#ifndef LW_META_ETCD_H
#define LW_META_ETCD_H

#include <stddef.h>

#include <cjson/cJSON.h>

#include "meta/store_pvt.h"

struct lw_etcd;

/* list: "host[:port],host[:port]...". max_body: longest answer taken, bytes. 0; -EINVAL, -ENOTSUP, -ENOMEM. */
int lw_etcd_open(const char *list, size_t max_body, struct lw_etcd **out, const struct lw_store_call *call);

/* Posts body to /v3/PATH. *out is an object without "error", which the caller deletes. Blocks until the call's deadline
 * at most. 0; -ENOENT what etcd calls "not found" (a lease); else the errors of store.h. */
int lw_etcd_ask(struct lw_etcd *etcd, const char *path, const char *body, size_t size, cJSON **out,
		const struct lw_store_call *call);

/* The endpoint that answered last, for messages. */
const char *lw_etcd_name(const struct lw_etcd *etcd);

void lw_etcd_close(struct lw_etcd *etcd);
void lw_etcd_forked(struct lw_etcd *etcd);

#endif
