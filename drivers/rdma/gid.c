/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/rdma/gid.h"

#include <string.h>

/* Interfaces of container networks: their addresses are not reached from other hosts. */
static const char *const overlays[] = {"flannel", "cni", "calico", "vxlan", "docker"};

static bool is_overlay(const char *netdev)
{
	for (size_t i = 0; i < sizeof(overlays) / sizeof(overlays[0]); i++)
		if (strncmp(netdev, overlays[i], strlen(overlays[i])) == 0)
			return true;
	return strcmp(netdev, "tunl0") == 0;
}

/* An IPv4 address as RoCE maps it: ::ffff:a.b.c.d. */
static bool is_ipv4(const uint8_t *raw)
{
	static const uint8_t head[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(raw, head, sizeof(head)) == 0;
}

static bool is_private(const uint8_t *raw)
{
	const uint8_t *ip = raw + 12;

	return is_ipv4(raw) &&
	       (ip[0] == 10 || (ip[0] == 172 && (ip[1] & 0xf0) == 16) || (ip[0] == 100 && (ip[1] & 0xc0) == 64));
}

static bool is_link_local(const uint8_t *raw)
{
	return (raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80) || (is_ipv4(raw) && raw[12] == 169 && raw[13] == 254);
}

enum rdma_gid_class rdma_gid_class(const struct rdma_gid_row *row)
{
	static const uint8_t null[RDMA_GID_BYTES];
	bool bare = row->netdev[0] == '\0';

	if (memcmp(row->raw, null, sizeof(null)) == 0)
		return RDMA_GID_NULL;
	if (row->type == RDMA_GID_ROCE_V1)
		return RDMA_GID_OTHER;
	if (is_overlay(row->netdev) || is_link_local(row->raw))
		return bare ? RDMA_GID_DEGRADED_BARE : RDMA_GID_DEGRADED;
	if (is_private(row->raw))
		return bare ? RDMA_GID_PRIVATE_BARE : RDMA_GID_PRIVATE;
	return bare ? RDMA_GID_ROUTABLE_BARE : RDMA_GID_ROUTABLE;
}

int rdma_gid_choose(const struct rdma_gid_row *rows, size_t count)
{
	enum rdma_gid_class best_class = RDMA_GID_NULL;
	int best = -1;

	for (size_t i = 0; i < count; i++) {
		enum rdma_gid_class class = rdma_gid_class(&rows[i]);

		if (class < best_class || (best >= 0 && class == best_class && rows[i].index < rows[best].index)) {
			best = (int)i;
			best_class = class;
		}
	}
	return best;
}
