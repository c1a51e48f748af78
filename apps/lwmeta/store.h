/* SPDX-License-Identifier: Apache-2.0 */
/* The entries: a value, perhaps an owner and perhaps a lease for each key, in memory and, if wanted, in a file.
 *
 * Any thread may call any function, except store_open, store_tick and store_close: one thread, and store_close when no
 * other is left. Changes wait for each other and for the file; store_get waits for neither. */
#ifndef APPS_LWMETA_STORE_H
#define APPS_LWMETA_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "apps/lwmeta/record.h"

enum { STORE_TICK_MS = 100 }; /* how often store_tick is wanted */

struct store;

struct store_options {
	const char *file;      /* NULL: none */
	bool recover;          /* a damaged file is kept up to the damage */
	bool sync;             /* a change is on the disk before it is answered */
	bool replace_rpc_meta; /* any PUT may replace a key of an engine's address */
	uint64_t keys_max, bytes_max;
};

/* Who wants to change an entry. It is refused when the entry carries an owner and that is not owner. With match given,
 * it is refused unless the entry carries that owner: empty is none, "*" is any or none. */
struct claim {
	struct text owner, match;
};

struct store_entry {
	struct record *record; /* to be released */
	uint64_t lease_ms;     /* 0: it has none */
	uint64_t left_ms;      /* of the lease */
};

struct store_figures {
	uint64_t keys, leases, bytes, expired, file_bytes, compactions;
	bool file_failed;
};

/* 0 and *out; -errno, with a sentence in why. */
int store_open(const struct store_options *options, struct store **out, char *why, size_t why_size);

/* 0 and *out; -ENOENT. */
int store_get(struct store *store, struct text key, struct store_entry *out);

/* Puts a record, whose owner is the claim's, in the place of what its key had; takes over the caller's reference in any
 * case. lease_ms 0: no lease. 0; 1: it is as it was, as an engine's address may be; -EPERM refused by the claim;
 * -EEXIST an engine's address is there and is another; -ENOSPC no room for it; -ENOMEM; -EIO the file can't be written.
 */
int store_put(struct store *store, struct record *record, struct text match, uint64_t lease_ms);

/* Begins the lease of an entry anew, with lease_ms unless that is 0. An entry without a lease then stays without.
 * 0 and *lease_ms as it now is; -ENOENT; -EPERM; -ENOSPC; -EIO. */
int store_renew(struct store *store, struct text key, const struct claim *claim, uint64_t *lease_ms);

/* 0; -ENOENT; -EPERM; -ENOSPC; -EIO. */
int store_delete(struct store *store, struct text key, const struct claim *claim);

/* Lets lease time go on, drops what has ended, brings changes to the disk each second, and makes the file small again.
 * Time in which this was not called, beyond a second, does not count: owners could not renew while the server stood. */
void store_tick(struct store *store);

void store_figures(struct store *store, struct store_figures *out);

/* Syncs and closes the file, frees everything. NULL is allowed. 0; -EIO what was answered may not be on the disk. */
int store_close(struct store *store);

#endif
