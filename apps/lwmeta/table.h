/* SPDX-License-Identifier: Apache-2.0 */
/* Records by key, and those with a lease also by its end: two trees of the same entries (libbsd's, which neither hash
 * what strangers choose nor stop to grow). One thread at a time. */
#ifndef APPS_LWMETA_TABLE_H
#define APPS_LWMETA_TABLE_H

#include <stdint.h>

#include <bsd/sys/tree.h>

#include "apps/lwmeta/record.h"

enum { TABLE_ENTRY_BYTES = 256 }; /* what an entry costs beside its texts, as it is counted */

struct entry {
	RB_ENTRY(entry) by_key, by_end;
	struct record *record;
	uint64_t lease_ms, end_ms; /* lease_ms 0: no lease, and no end */
};

RB_HEAD(key_tree, entry);
RB_HEAD(end_tree, entry);

/* Begin with {0}. */
struct table {
	struct key_tree by_key;
	struct end_tree by_end;
	uint64_t keys, leases, bytes;
};

/* NULL when there is none. */
struct entry *table_find(const struct table *table, struct text key);

/* The entry whose lease ends first; NULL when there is no lease. */
struct entry *table_ends_first(struct table *table);

/* In the order of keys: the first one, the one after entry; NULL at the end. */
struct entry *table_first(struct table *table);
struct entry *table_next(struct entry *entry);

/* Puts a record of a new key (a reference goes over) into entry, which comes from malloc. It has no lease. */
void table_insert(struct table *table, struct entry *entry, struct record *record);

/* Puts another record of its key into an entry. Returns the one that was there. */
struct record *table_replace(struct table *table, struct entry *entry, struct record *record);

/* Gives an entry a lease, or none with lease_ms 0. */
void table_lease(struct table *table, struct entry *entry, uint64_t lease_ms, uint64_t end_ms);

/* Takes an entry out and frees it. */
void table_drop(struct table *table, struct entry *entry);

/* What a record counts in table.bytes. */
uint64_t table_cost(const struct record *record);

#endif
