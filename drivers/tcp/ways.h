/* SPDX-License-Identifier: Apache-2.0 */
/* Ways to a peer: pairs of one of our rails and one of the peer's addresses. */
#ifndef LW_TCP_WAYS_H
#define LW_TCP_WAYS_H

#include "drivers/tcp/rails.h"
#include "lib/sched/driver.h"

struct tcp_way {
	const struct tcp_rail *rail; /* NULL: the routes choose */
	const struct sockaddr_storage *addr;
};

/* As lw_driver_ops.ways, for these rails: at most TCP_RAILS times the addresses of view->data. The ways that are meant
 * to be used at once come first, and have different addresses on either side as far as there are such. */
struct lw_ways tcp_ways_count(const struct tcp_rails *rails, const struct lw_view *view);

/* The way of that number, counted round. False: there is none, the peer has no address. */
bool tcp_ways_get(const struct tcp_rails *rails, const struct lw_view *view, uint32_t number, struct tcp_way *out);

#endif
