/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata stores: where engines leave the documents by which peers find them. One interface over etcd, redis and HTTP.
 *
 * A key holds one JSON text. An engine's own documents carry its incarnation ("incarnation":"16 hex digits"), and that
 * is how their owner is told: without LW_STORE_TAKE nothing is overwritten, renewed or removed that carries another
 * incarnation, or none. etcd and redis look and act in one step; of HTTP servers those that know the parameter "owner"
 * do, for others the client looks first and then acts.
 *
 * With a lease the keys vanish that many seconds after their last put or renewal: by a lease in etcd, by expiry in
 * redis, by the parameter "ttl" with HTTP servers that know it. Other HTTP servers keep them for ever.
 *
 * One thread at a time for each store; different stores share nothing. Every call but open and close blocks, for at
 * most timeout_ms, whatever the server does. Memory grows with what has arrived and never beyond what max_value allows.
 * No signal is raised, no proxy of the environment is used, nothing runs between calls. A connection that was lost, or
 * is in doubt after a failed call, is made again by the next call.
 *
 * Errors, the same for all schemes; why gets a sentence with the store, the cause and, where there is one, the remedy
 * (nothing is written if why_size is 0; it is empty after a success):
 *   -ENOENT        there is no such key
 *   -ESTALE        the key carries another incarnation, or none
 *   -ETIMEDOUT     not done in time (a put may have been applied nevertheless)
 *   -ECONNREFUSED, -EHOSTUNREACH, -ECONNRESET
 *   -EACCES        user, password or permission
 *   -EPROTO        the answer is not one of such a store, or was cut
 *   -EMSGSIZE      a value that is longer than max_value or than the store takes
 *   -ENOSPC        the store is full: redis' maxmemory, etcd's quota, HTTP 507
 *   -EROFS         the store is read-only: a redis replica, HTTP 405
 *   -EIO           it failed in another way: HTTP 500, redis that is still loading
 *   -EINVAL        it refuses the request; here: an empty key, a put that does not carry the incarnation
 *   -EMFILE, -ENOMEM, -ENOTSUP (the library is missing)
 */
#ifndef LW_META_STORE_H
#define LW_META_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lw_store;

#define LW_STORE_KEY_MAX 1024               /* longest key with its NUL, bytes */
#define LW_STORE_VALUE_DEFAULT (16u << 20)  /* longest value if the options say nothing, bytes */
#define LW_STORE_VALUE_LIMIT (128u << 20)   /* the most that options may allow */
#define LW_STORE_LEASE_LIMIT (86400u * 365) /* longest lease, seconds */

struct lw_store_options {
	size_t size;          /* of this structure */
	uint64_t incarnation; /* whose documents are put and renewed; 0: such as carry none */
	uint32_t lease_s;     /* 0: keys stay until they are removed */
	uint32_t redis_db;    /* 0 .. 255 */
	const char *user;     /* redis alone. NULL or "": none; all three are copied, and never shown */
	const char *password; /* redis alone */
	const char *token;    /* HTTP alone: the bearer token */
	size_t max_value;     /* bytes; 0: LW_STORE_VALUE_DEFAULT */
};

enum lw_store_put {
	LW_STORE_KEEP, /* refuse with -ESTALE where the key carries another incarnation */
	LW_STORE_TAKE, /* overwrite: the first put of an engine, whose predecessor may have died */
};

/* Whether url is the word P2PHANDSHAKE: no store, peers ask each other. Any thread. */
bool lw_store_is_p2p(const char *url);

/* Makes the client of a store; the store itself is first asked by the first call. url is one of
 *
 *   etcd://HOST[:PORT][,HOST[:PORT]...]   endpoints of one cluster, tried in turn; also HOST:PORT[,...]
 *   redis://HOST[:PORT]
 *   http://HOST[:PORT]/PATH, https://...  the key is added as the parameter "key"
 *
 * with the default ports 2379, 6379, 80 and 443. May block on the file system, for the library. Any thread. 0; -EINVAL
 * a wrong URL or option; -ENOTSUP the library is missing; -ENOMEM. why tells what is accepted. */
int lw_store_open(const char *url, const struct lw_store_options *options, struct lw_store **out, char *why,
		  size_t why_size);

/* The value without the newline that etcd and redis have behind it, and with a NUL; the caller frees it. */
int lw_store_get(struct lw_store *store, const char *key, uint32_t timeout_ms, char **value, size_t *length, char *why,
		 size_t why_size);

/* 0: the store has confirmed it. The value must carry the store's incarnation. */
int lw_store_put(struct lw_store *store, const char *key, const char *value, size_t length, enum lw_store_put how,
		 uint32_t timeout_ms, char *why, size_t why_size);

/* Another lease for a key of ours. -ENOENT: it is gone, put it again. -ESTALE: another one has it now. Without a lease
 * it only looks. */
int lw_store_renew(struct lw_store *store, const char *key, uint32_t timeout_ms, char *why, size_t why_size);

/* Removes the key if it carries that incarnation (0: if it carries none), which need not be the store's: so the keys of
 * a dead engine are purged. -ENOENT: it is gone, be it by a first try whose answer was lost. */
int lw_store_remove(struct lw_store *store, const char *key, uint64_t incarnation, uint32_t timeout_ms, char *why,
		    size_t why_size);

/* Whose a value is; 0: it carries no incarnation. Any thread. */
uint64_t lw_store_owner(const char *value, size_t length);

/* Frees the client and closes its connection; keys stay until they expire. NULL is fine. Does not wait for the store.
 */
void lw_store_close(struct lw_store *store);

/* In a forked child: closes its copy of the connection, and does nothing else. The store is of no use there. */
void lw_store_forked(struct lw_store *store);

#endif
