/* SPDX-License-Identifier: Apache-2.0 */
/* The address of this host that an engine announces when its caller names none. */
#ifndef LW_META_ADDRESS_H
#define LW_META_ADDRESS_H

#include <ifaddrs.h>
#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>

#define LW_ADDRESS_TEXT 64 /* an IPv6 address with its scope and NUL */

/* In the order of choice. */
enum lw_address_rank {
	LW_ADDRESS_ROUTABLE,   /* of an ordinary interface */
	LW_ADDRESS_SELF_MADE,  /* of an ordinary interface, 169.254/16: it found nobody to get an address from */
	LW_ADDRESS_BRIDGE,     /* of a bridge or tunnel of containers and virtual machines: peers have the same one */
	LW_ADDRESS_LINK_LOCAL, /* IPv6, means something with its scope alone */
	LW_ADDRESS_LOOPBACK,
	LW_ADDRESS_DOWN, /* of an interface that is not up and running; never chosen */
};

struct lw_address {
	char text[LW_ADDRESS_TEXT]; /* numeric, without brackets; "fe80::1%eth0" */
	char interface[IF_NAMESIZE];
	enum lw_address_rank rank;
	bool v6;
};

struct lw_address_opts {
	const char *wanted;          /* an address of this host ("[v6]" too); NULL or "": chosen */
	bool prefer_v6;              /* of one rank, IPv6 before IPv4 */
	const char *sysfs;           /* NULL: /sys; tells bridges */
	const struct ifaddrs *addrs; /* NULL: getifaddrs(3) is asked */
};

/* The addresses of this host, best first: by rank, then the preferred family, then as getifaddrs lists them. At most
 * max are written to list. Any thread. Reads a few files, waits for nobody. The number there are (it may exceed max);
 * -ENOMEM; another negative errno value of getifaddrs. */
int lw_address_list(const struct lw_address_opts *opts, struct lw_address *list, size_t max);

/* The one to announce. One that is wanted must be this host's, whatever state its interface is in; any of 127/8 is.
 * Else it is the first of the list that a socket can be
 * bound to (of a list that was given, the first). Threads and blocking as above. 0; -EADDRNOTAVAIL the wanted one is
 * not this host's, or there is none at all; -EINVAL what is wanted is no numeric address; -ENOMEM; errors of
 * getifaddrs. On an error why has a sentence that names the addresses there are. */
int lw_address_choose(const struct lw_address_opts *opts, struct lw_address *out, char *why, size_t why_size);

#endif
