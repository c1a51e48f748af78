/* SPDX-License-Identifier: Apache-2.0 */
/* Rails: the addresses of this host that tcp_bind lists, over which data connections are spread. */
#ifndef LW_TCP_RAILS_H
#define LW_TCP_RAILS_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define TCP_RAILS 8

struct tcp_rail {
	struct sockaddr_storage addr; /* its port is 0 */
	uint32_t prefix_bits;         /* of its subnet */
	char device[IF_NAMESIZE];     /* not "": sockets are bound to it, too */
};

struct tcp_rails {
	uint32_t count; /* 0: tcp_bind is empty */
	struct tcp_rail rail[TCP_RAILS];
};

/* Reads a list of numeric addresses and device names, separated by commas; of a device its first address of that
 * family (AF_INET, AF_INET6) counts, else its first one. May read what the kernel knows of its devices, waits for
 * nobody. 0; -EINVAL no such device or address here, too many, one twice, and a sentence that names it in why; -ENOMEM.
 */
int tcp_rails_read(const char *list, int family, struct tcp_rails *out, char *why, size_t why_size);

/* Whether the address is in the rail's subnet. */
bool tcp_rail_reaches(const struct tcp_rail *rail, const struct sockaddr_storage *addr);

/* Makes a socket leave by this rail. 0, or a negative errno of bind(2). */
int tcp_rail_bind(const struct tcp_rail *rail, int fd);

#endif
