/* SPDX-License-Identifier: Apache-2.0 */
/* What the store clients share; private to store.c and store_*.c. */
#ifndef LW_META_STORE_PVT_H
#define LW_META_STORE_PVT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/store.h"

/* One call: until when, and where its sentence goes. */
struct lw_store_call {
	uint64_t deadline_ns; /* CLOCK_MONOTONIC */
	char *why;
	size_t why_size;
};

/* A value on its way out. */
struct lw_store_value {
	char *text; /* malloc'ed */
	size_t length;
};

/* One a scheme, in the table of store.c. Each member is called by one thread at a time for a store. Those that block do
 * so until call->deadline_ns at most and return what store.h lists, with a sentence in call->why. Keys are neither
 * empty nor too long, values neither empty nor longer than max_value. */
struct lw_store_ops {
	size_t size; /* of this structure */
	const char *scheme;
	const char *form; /* of the URL, for messages */
	bool newline;     /* values have a newline at their end in the store */
	/* rest: the URL behind "://". Loads the library; does not block on the network. */
	int (*open)(const char *url, const char *rest, const struct lw_store_options *options, struct lw_store **out,
		    const struct lw_store_call *call);
	/* Blocks. Writes *out on success. */
	int (*get)(struct lw_store *store, const char *key, struct lw_store_value *out,
		   const struct lw_store_call *call);
	/* Blocks. */
	int (*put)(struct lw_store *store, const char *key, const char *value, size_t length, enum lw_store_put how,
		   const struct lw_store_call *call);
	/* Blocks. */
	int (*renew)(struct lw_store *store, const char *key, const struct lw_store_call *call);
	/* Blocks. */
	int (*remove)(struct lw_store *store, const char *key, uint64_t incarnation, const struct lw_store_call *call);
	/* Doesn't wait for the network. */
	void (*close)(struct lw_store *store);
	/* Never blocks; async-signal-safe, as it runs in a forked child. */
	void (*forked)(struct lw_store *store);
};

/* The first member of each client. */
struct lw_store {
	const struct lw_store_ops *ops;
	uint64_t incarnation;
	uint32_t lease_s;
	size_t max_value;
};

extern const struct lw_store_ops lw_store_etcd_ops, lw_store_redis_ops, lw_store_http_ops, lw_store_https_ops;

/* Writes the sentence and returns error. */
__attribute__((format(printf, 3, 4))) int lw_store_fail(const struct lw_store_call *call, int error, const char *format,
							...);

#if defined(__clang_analyzer__) && !defined(LW_STORE_SOURCE)
/* The analyzer does not look into other files: tell it that a failure is a negative number. */
#include <stdio.h>
static inline int lw_store_failed(int error)
{
	return error < 0 ? error : -1;
}
#define lw_store_fail(call, error, ...) ((void)(call), (void)(0 ? printf(__VA_ARGS__) : 0), lw_store_failed(error))
#endif

/* The words by which a document is told to carry an incarnation (0: any), for a server that looks itself. */
#define LW_STORE_MARK_MAX 40
void lw_store_mark(uint64_t incarnation, char mark[LW_STORE_MARK_MAX]);

/* Whether the value carries that incarnation; of 0: none. */
bool lw_store_held(const char *value, size_t length, uint64_t incarnation);

/* A copy of bytes that came from outside, for a sentence: printable, at most size - 1 of them. Returns text. */
const char *lw_store_quote(const char *bytes, size_t length, char *text, size_t size);

#endif
