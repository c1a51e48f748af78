/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP request after another, through libcurl, which is opened at run time. What it does not do: follow redirects,
 * use the environment's proxies, look names up on its own (that would not end in time), raise signals, or take more of
 * an answer than was allowed. */
#ifndef LW_META_HTTP_H
#define LW_META_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/hostport.h"

struct lw_http;

struct lw_http_request {
	const char *method;
	const char *url;                /* http:// or https:// */
	const struct lw_hostport *host; /* of the URL, with its port */
	const char *body;               /* JSON; NULL: none */
	size_t body_size;
	const char *token;    /* "Authorization: Bearer TOKEN"; NULL: none */
	const char *notice;   /* name of a header to look for in the answer; NULL: none */
	uint64_t deadline_ns; /* CLOCK_MONOTONIC */
};

struct lw_http_answer {
	long status;
	char *body; /* malloc'ed, with a NUL */
	size_t size;
	bool noticed; /* the header was there */
};

/* Opens the library. max_body: longest body taken, bytes. Any thread; may block on the file system. 0; -ENOTSUP with
 * the reason in why; -ENOMEM. */
int lw_http_open(size_t max_body, struct lw_http **out, char *why, size_t why_size);

/* Asks, on the connection that was kept or a new one, and waits for the answer, for its status any. One thread at a
 * time. Blocks until the deadline at most. 0, the caller frees answer->body; else with the reason in why:
 * -ECONNREFUSED, -EHOSTUNREACH, -ECONNRESET, -ETIMEDOUT, -EPROTO no HTTP, a cut body, TLS; -EMSGSIZE; -EMFILE;
 * -ENOMEM. */
int lw_http_perform(struct lw_http *http, const struct lw_http_request *request, struct lw_http_answer *answer,
		    char *why, size_t why_size);

void lw_http_close(struct lw_http *http);

/* In a forked child: closes its copies of the descriptors. Async-signal-safe. */
void lw_http_forked(struct lw_http *http);

#endif
