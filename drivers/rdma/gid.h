/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a port's addresses (GIDs) its queue pairs use. A pure function over a table, so that recorded tables can be
 * its test. The order is the reference's (Mooncake's classic Transfer Engine), so that both choose alike on one host.
 */
#ifndef LW_RDMA_GID_H
#define LW_RDMA_GID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDMA_GID_BYTES 16

enum rdma_gid_type { RDMA_GID_IB, RDMA_GID_ROCE_V1, RDMA_GID_ROCE_V2 };

struct rdma_gid_row {
	uint8_t raw[RDMA_GID_BYTES];
	uint32_t index; /* in the port's table */
	enum rdma_gid_type type;
	char netdev[16]; /* the interface it belongs to; empty: none in this network namespace */
};

/* The best first. */
enum rdma_gid_class {
	RDMA_GID_ROUTABLE,      /* of an interface, an address that routers carry; 192.168/16 counts as one */
	RDMA_GID_ROUTABLE_BARE, /* the same, without an interface */
	RDMA_GID_PRIVATE,       /* of an interface, IPv4 of 10/8, 172.16/12 or 100.64/10 */
	RDMA_GID_DEGRADED,      /* of an interface of an overlay (flannel, cni, docker ...), or link-local */
	RDMA_GID_PRIVATE_BARE,  /* as PRIVATE, without an interface */
	RDMA_GID_DEGRADED_BARE, /* link-local, without an interface */
	RDMA_GID_OTHER,         /* RoCE version 1 */
	RDMA_GID_NULL,          /* all zero: never */
};

enum rdma_gid_class rdma_gid_class(const struct rdma_gid_row *row);

/* The position of the best row, the one of the lowest index among those of the best class. -1: there is none. */
int rdma_gid_choose(const struct rdma_gid_row *rows, size_t count);

#endif
