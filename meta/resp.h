/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to a redis server and its answers (its protocol, RESP): written and read by hiredis, which is opened at run
 * time. The connection is the caller's, so that every wait ends in time. */
#ifndef LW_META_RESP_H
#define LW_META_RESP_H

#include <stddef.h>
#include <stdint.h>

/* As hiredis numbers them; arrays are in no answer that we ask for. */
enum lw_resp_type {
	LW_RESP_STRING = 1,
	LW_RESP_INTEGER = 3,
	LW_RESP_NIL = 4,
	LW_RESP_STATUS = 5,
	LW_RESP_ERROR = 6,
};

struct lw_resp {
	int type; /* enum lw_resp_type */
	long long integer;
	char *text; /* of a string, a status or an error: malloc'ed, with a NUL */
	size_t length;
};

/* Opens the library; more than once is fine. Any thread. May block on the file system. 0, -ENOTSUP it is missing. */
int lw_resp_open(void);

/* Sends one request and takes its answer; the caller frees its text. After an error the connection is of no use any
 * more. Memory grows with what has arrived, not with what is announced. Blocks until deadline_ns (CLOCK_MONOTONIC) at
 * most. 0; -ETIMEDOUT; -ECONNRESET closed before the answer; -EPROTO it was cut, or is none; -EMSGSIZE its text has
 * more than max_text bytes; -ENOMEM. */
int lw_resp_exchange(int fd, int argc, const char **argv, const size_t *lengths, size_t max_text, uint64_t deadline_ns,
		     struct lw_resp *reply);

#endif
