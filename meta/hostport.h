/* SPDX-License-Identifier: Apache-2.0 */
/* Names of engines, "host:port", and the socket addresses behind them. */
#ifndef LW_META_HOSTPORT_H
#define LW_META_HOSTPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define LW_NAME_MAX 256 /* longest name with its NUL */

struct lw_hostport {
	char host[LW_NAME_MAX]; /* without brackets; an IPv6 scope stays ("fe80::1%eth0") */
	uint16_t port;          /* host byte order; 0: none given */
	bool v6;                /* host is an IPv6 literal: it gets brackets when formatted */
};

struct lw_addrs {
	uint32_t count;
	struct sockaddr_storage addr[8];
};

/* "host", "host:port", "[v6]", "[v6]:port", "v6", "v6%scope:port". 0; -EINVAL empty, too long, bad brackets, bad port.
 */
int lw_hostport_parse(const char *text, uint16_t default_port, struct lw_hostport *out);

/* The text that parses to the same. Length without NUL, or -ENAMETOOLONG. Port 0 is left out. */
int lw_hostport_format(const struct lw_hostport *hp, char *text, size_t size);

/* Numeric hosts are converted at once; others are looked up, which blocks for at most timeout_ms. Not on a worker or
 * the control thread. 0; -EHOSTUNREACH unknown host; -ETIMEDOUT; -ENOMEM. */
int lw_hostport_resolve(const struct lw_hostport *hp, uint32_t timeout_ms, struct lw_addrs *out);

/* The port inside an address (host byte order), for IPv4 and IPv6. */
void lw_sockaddr_set_port(struct sockaddr_storage *addr, uint16_t port);
uint16_t lw_sockaddr_port(const struct sockaddr_storage *addr);
socklen_t lw_sockaddr_length(const struct sockaddr_storage *addr);
/* "1.2.3.4:5" or "[::1]:5" for messages. */
void lw_sockaddr_format(const struct sockaddr_storage *addr, char *text, size_t size);

/* What lw_sockaddr_format writes, read again: a numeric address with its port. 0; -EINVAL anything else, also an
 * address that nobody can be reached by (of no host, of many, or of a link without telling which). Never blocks. */
int lw_sockaddr_parse(const char *text, struct sockaddr_storage *out);
/* Whether the addresses are the same, whatever their ports. */
bool lw_sockaddr_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
/* Whether only this host is behind it. */
bool lw_sockaddr_is_loopback(const struct sockaddr_storage *addr);

/* Binds and listens on addr with a port drawn at random from [min, max], nonblocking, close-on-exec. The socket stays
 * bound from choice to listen. SO_REUSEADDR is for the case alone that no other port is free: so a process that is
 * started again finds its port if only connections of its earlier life hold it (see lw_accepted_reuse). *fd and *port
 * on success. 0; -EADDRINUSE no port free; -EADDRNOTAVAIL; -EMFILE; another negative errno of socket(2), bind(2),
 * listen(2). */
int lw_listen_random(const struct sockaddr_storage *addr, uint16_t min, uint16_t max, int backlog, int *fd,
		     uint16_t *port);

/* The error of a connect or of a connection as one of those that callers are told of: -ECONNREFUSED, -ETIMEDOUT,
 * -EMFILE, -ENOMEM, -ECONNRESET; anything else is -EHOSTUNREACH. */
int lw_socket_error(int error);

/* Whether a connect to a local port of the ephemeral range on which nobody listens met itself: the kernel can choose
 * that very port as ours. We would read our own request as the answer. */
bool lw_socket_met_itself(int fd);

/* Lets a connection that was accepted outlive the process without keeping the port from the next one. */
void lw_accepted_reuse(int fd);

#endif
