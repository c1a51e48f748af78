/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP connection whose every step ends by a deadline (CLOCK_MONOTONIC), for clients that may block. No SIGPIPE; any
 * thread, one at a time for each descriptor. */
#ifndef LW_META_DIAL_H
#define LW_META_DIAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "meta/hostport.h"

/* Looks the host up and connects to its addresses in turn, which share the time evenly. The caller closes *fd, which is
 * nonblocking and close-on-exec. Blocks until deadline_ns at most. 0; -ECONNREFUSED, -ECONNRESET, -EHOSTUNREACH,
 * -ETIMEDOUT, -EMFILE, -ENOMEM. */
int lw_dial(const struct lw_hostport *hp, uint64_t deadline_ns, int *fd);

/* All of it, by the deadline. 0; -ETIMEDOUT, -ECONNRESET. */
int lw_dial_send(int fd, const char *bytes, size_t size, uint64_t deadline_ns);

/* What is there, as soon as something is. Its number; 0: the peer has closed; -ETIMEDOUT, -ECONNRESET. */
ssize_t lw_dial_receive(int fd, char *bytes, size_t size, uint64_t deadline_ns);

#endif
