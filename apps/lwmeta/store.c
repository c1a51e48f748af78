/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/common/host.h"
#include "apps/lwmeta/journal.h"
#include "apps/lwmeta/store.h"
#include "apps/lwmeta/table.h"

enum {
	EXPIRE_AT_ONCE = 256,  /* entries that one hold of the lock drops */
	TICK_COUNTS_MS = 1000, /* of the time between two ticks */
	SYNC_EVERY_MS = 1000,
	COMPACT_AGAIN_MS = 10000,    /* after one that failed */
	COMPACT_FROM_BYTES = 1 << 20 /* a file with less that is of no use stays as it is */
};

/* changing is taken before reading. Who holds changing may read the table; who holds both may change it. */
struct store {
	struct store_options options;
	pthread_mutex_t changing, reading;
	struct table table;
	uint64_t expired, compactions;                  /* counted with changing held */
	struct journal *journal;                        /* NULL: none */
	_Atomic uint64_t lease_now_ms;                  /* the time that leases run by; written by store_tick alone */
	uint64_t ticked_ns, synced_ms, compact_from_ms; /* of store_tick */
};

static uint64_t lease_now(const struct store *store)
{
	return atomic_load_explicit(&store->lease_now_ms, memory_order_relaxed);
}

static bool ended(const struct store *store, const struct entry *entry)
{
	return entry->lease_ms != 0 && entry->end_ms <= lease_now(store);
}

/* When a lease that begins now ends. The clock may be one tick behind: never earlier than was promised. */
static uint64_t lease_end(const struct store *store, uint64_t lease_ms)
{
	return lease_now(store) + lease_ms + STORE_TICK_MS;
}

/* An entry whose lease has ended goes whether or not the file takes it: at worst it is back for one lease after a
 * restart. Needs changing. */
static void expire(struct store *store, struct entry *entry)
{
	if (store->journal != NULL)
		journal_delete(store->journal, record_key(entry->record));
	store->expired++;
	pthread_mutex_lock(&store->reading);
	table_drop(&store->table, entry);
	pthread_mutex_unlock(&store->reading);
}

/* Needs changing. */
static struct entry *find_living(struct store *store, struct text key)
{
	struct entry *entry = table_find(&store->table, key);

	if (entry == NULL || !ended(store, entry))
		return entry;
	expire(store, entry);
	return NULL;
}

static bool refused(const struct entry *entry, const struct claim *claim)
{
	static const struct text any = {"*", 1};
	struct text owner = record_owner(entry->record);

	if (claim->match.data != NULL)
		return !text_same(claim->match, any) && !text_same(claim->match, owner);
	return owner.size > 0 && !text_same(claim->owner, owner);
}

static bool is_rpc_meta(struct text key)
{
	return memmem(key.data, key.size, "rpc_meta", strlen("rpc_meta")) != NULL;
}

int store_get(struct store *store, struct text key, struct store_entry *out)
{
	const struct entry *entry;
	uint64_t now = lease_now(store);
	int rc = -ENOENT;

	pthread_mutex_lock(&store->reading);
	entry = table_find(&store->table, key);
	if (entry != NULL && (entry->lease_ms == 0 || entry->end_ms > now)) {
		out->record = record_hold(entry->record);
		out->lease_ms = entry->lease_ms;
		out->left_ms = entry->lease_ms != 0 ? entry->end_ms - now : 0;
		if (out->left_ms > out->lease_ms)
			out->left_ms = out->lease_ms;
		rc = 0;
	}
	pthread_mutex_unlock(&store->reading);
	return rc;
}

/* 0: new or changed; 1: an engine's address as it is there already; -EPERM; -EEXIST. */
static int may_put(const struct store *store, const struct entry *entry, const struct record *record,
		   const struct claim *claim)
{
	bool same;

	if (entry == NULL)
		return 0;
	if (refused(entry, claim))
		return -EPERM;
	if (!is_rpc_meta(record_key(record)))
		return 0;
	same = text_same(record_value(entry->record), record_value(record));
	/* Who proved to know the one that is there may replace it. */
	if (!same && !store->options.replace_rpc_meta && claim->match.data == NULL && entry->record->owner_size == 0)
		return -EEXIST;
	return same ? 1 : 0;
}

static int room_for(const struct store *store, const struct entry *entry, const struct record *record)
{
	uint64_t before = entry == NULL ? 0 : table_cost(entry->record), after = table_cost(record);

	if (entry == NULL && store->table.keys >= store->options.keys_max)
		return -ENOSPC;
	/* What gets smaller is always welcome, also above the limit: limits may be lower than at the last start. */
	return after > before && store->table.bytes - before + after > store->options.bytes_max ? -ENOSPC : 0;
}

/* In memory; needs changing. entry NULL: spare, from malloc, becomes it. Returns what the key had, or NULL. */
static struct record *place(struct store *store, struct entry *entry, struct entry *spare, struct record *record,
			    uint64_t lease_ms)
{
	struct record *before = NULL;

	pthread_mutex_lock(&store->reading);
	if (entry == NULL) {
		entry = spare;
		table_insert(&store->table, entry, record);
	} else {
		before = table_replace(&store->table, entry, record);
	}
	table_lease(&store->table, entry, lease_ms, lease_end(store, lease_ms));
	pthread_mutex_unlock(&store->reading);
	return before;
}

/* A renewal of what is there needs no line in the file. */
static bool repeats(const struct entry *entry, const struct record *record, uint64_t lease_ms)
{
	return entry != NULL && entry->lease_ms == lease_ms &&
	       text_same(record_owner(entry->record), record_owner(record)) &&
	       text_same(record_value(entry->record), record_value(record));
}

int store_put(struct store *store, struct record *record, struct text match, uint64_t lease_ms)
{
	const struct claim claim = {record_owner(record), match};
	struct entry *spare = malloc(sizeof(*spare)), *entry;
	struct record *before = record;
	int rc, written;

	if (spare == NULL) {
		record_release(record);
		return -ENOMEM;
	}
	pthread_mutex_lock(&store->changing);
	entry = find_living(store, record_key(record));
	rc = may_put(store, entry, record, &claim);
	written = rc < 0 ? rc : room_for(store, entry, record);
	if (written == 0 && store->journal != NULL && !repeats(entry, record, lease_ms))
		written = journal_put(store->journal, record, lease_ms);
	if (written != 0) {
		rc = written;
	} else {
		before = place(store, entry, spare, record, lease_ms);
		if (entry == NULL)
			spare = NULL;
	}
	pthread_mutex_unlock(&store->changing);
	record_release(before);
	free(spare);
	return rc;
}

int store_renew(struct store *store, struct text key, const struct claim *claim, uint64_t *lease_ms)
{
	struct entry *entry;
	uint64_t lease;
	int rc = 0;

	pthread_mutex_lock(&store->changing);
	entry = find_living(store, key);
	if (entry == NULL) {
		rc = -ENOENT;
	} else if (refused(entry, claim)) {
		rc = -EPERM;
	} else {
		lease = *lease_ms != 0 ? *lease_ms : entry->lease_ms;
		if (store->journal != NULL && lease != entry->lease_ms)
			rc = journal_lease(store->journal, key, lease);
		if (rc == 0) {
			pthread_mutex_lock(&store->reading);
			table_lease(&store->table, entry, lease, lease_end(store, lease));
			pthread_mutex_unlock(&store->reading);
			*lease_ms = lease;
		}
	}
	pthread_mutex_unlock(&store->changing);
	return rc;
}

int store_delete(struct store *store, struct text key, const struct claim *claim)
{
	struct entry *entry;
	int rc = 0;

	pthread_mutex_lock(&store->changing);
	entry = find_living(store, key);
	if (entry == NULL)
		rc = -ENOENT;
	else if (refused(entry, claim))
		rc = -EPERM;
	else if (store->journal != NULL)
		rc = journal_delete(store->journal, key);
	if (rc == 0) {
		pthread_mutex_lock(&store->reading);
		table_drop(&store->table, entry);
		pthread_mutex_unlock(&store->reading);
	}
	pthread_mutex_unlock(&store->changing);
	return rc;
}

struct kept {
	struct record *record;
	uint64_t lease_ms;
};

/* All records and the size of the file that they stand for. NULL when there is no memory. */
static struct kept *keep_all(struct store *store, size_t *count, uint64_t *mark)
{
	struct kept *all;
	struct entry *entry;
	size_t n = 0;

	pthread_mutex_lock(&store->changing);
	all = calloc(store->table.keys + 1, sizeof(*all));
	if (all != NULL) {
		for (entry = table_first(&store->table); entry != NULL; entry = table_next(entry))
			all[n++] = (struct kept){record_hold(entry->record), entry->lease_ms};
	}
	*mark = journal_size(store->journal);
	pthread_mutex_unlock(&store->changing);
	*count = n;
	return all;
}

static int compact(struct store *store)
{
	struct kept *all;
	uint64_t mark;
	size_t count;
	int rc;

	all = keep_all(store, &count, &mark);
	if (all == NULL)
		return -ENOMEM;
	rc = journal_rewrite_begin(store->journal);
	for (size_t i = 0; i < count; i++) {
		if (rc == 0)
			rc = journal_rewrite_add(store->journal, all[i].record, all[i].lease_ms);
		record_release(all[i].record);
	}
	free(all);
	if (rc == 0)
		rc = journal_rewrite_sync(store->journal); /* the bulk, while nobody waits */
	if (rc == 0) {
		pthread_mutex_lock(&store->changing);
		rc = journal_switch(store->journal, mark);
		if (rc == 0)
			store->compactions++;
		pthread_mutex_unlock(&store->changing);
	}
	journal_rewrite_drop(store->journal);
	return rc;
}

static void tend_file(struct store *store, uint64_t now_ms)
{
	uint64_t size, kept;
	int rc;

	if (now_ms >= store->synced_ms + SYNC_EVERY_MS) {
		journal_sync(store->journal);
		store->synced_ms = now_ms;
	}
	pthread_mutex_lock(&store->changing);
	size = journal_size(store->journal);
	kept = store->table.bytes;
	pthread_mutex_unlock(&store->changing);
	if (now_ms < store->compact_from_ms ||
	    (!journal_failed(store->journal) && size < 2 * kept + COMPACT_FROM_BYTES))
		return;
	rc = compact(store);
	if (rc != 0) {
		fprintf(stderr, "lwmeta: %s can't be written anew: %s\n", store->options.file, strerror(-rc));
		store->compact_from_ms = now_ms + COMPACT_AGAIN_MS;
	}
}

void store_tick(struct store *store)
{
	uint64_t now_ns = app_clock_ns(), passed_ms = (now_ns - store->ticked_ns) / 1000000;
	struct entry *entry;
	int left;

	store->ticked_ns += passed_ms * 1000000;
	if (passed_ms > TICK_COUNTS_MS)
		passed_ms = TICK_COUNTS_MS;
	atomic_store_explicit(&store->lease_now_ms, lease_now(store) + passed_ms, memory_order_relaxed);
	do {
		pthread_mutex_lock(&store->changing);
		for (left = EXPIRE_AT_ONCE; left > 0; left--) {
			entry = table_ends_first(&store->table);
			if (entry == NULL || !ended(store, entry))
				break;
			expire(store, entry);
		}
		pthread_mutex_unlock(&store->changing);
	} while (left == 0);
	if (store->journal != NULL)
		tend_file(store, now_ns / 1000000);
}

void store_figures(struct store *store, struct store_figures *out)
{
	pthread_mutex_lock(&store->changing);
	*out = (struct store_figures){
		.keys = store->table.keys,
		.leases = store->table.leases,
		.bytes = store->table.bytes,
		.expired = store->expired,
		.compactions = store->compactions,
	};
	if (store->journal != NULL) {
		out->file_bytes = journal_size(store->journal);
		out->file_failed = journal_failed(store->journal);
	}
	pthread_mutex_unlock(&store->changing);
}

/* Leases begin anew: an owner could not renew while the server was away. */
static int replay(void *arg, const struct journal_change *change)
{
	struct store *store = arg;
	struct entry *entry = table_find(&store->table, change->key), *spare = NULL;
	struct record *record;

	switch (change->kind) {
	case JOURNAL_PUT:
		record = record_new(change->key, change->owner, change->value.size);
		if (entry == NULL)
			spare = malloc(sizeof(*spare));
		if (record == NULL || (entry == NULL && spare == NULL)) {
			record_release(record);
			free(spare);
			return -ENOMEM;
		}
		record_append(record, change->value.data, change->value.size);
		record_release(place(store, entry, spare, record, change->lease_ms));
		break;
	case JOURNAL_LEASE:
		if (entry != NULL)
			table_lease(&store->table, entry, change->lease_ms, lease_end(store, change->lease_ms));
		break;
	case JOURNAL_DELETE:
		if (entry != NULL)
			table_drop(&store->table, entry);
		break;
	}
	return 0;
}

int store_open(const struct store_options *options, struct store **out, char *why, size_t why_size)
{
	struct store *store = calloc(1, sizeof(*store));
	int rc = 0;

	if (store == NULL) {
		snprintf(why, why_size, "no memory");
		return -ENOMEM;
	}
	store->options = *options;
	pthread_mutex_init(&store->changing, NULL);
	pthread_mutex_init(&store->reading, NULL);
	store->ticked_ns = app_clock_ns();
	if (options->file != NULL)
		rc = journal_open(options->file, options->recover, options->sync, replay, store, &store->journal, why,
				  why_size);
	if (rc == 0)
		*out = store;
	else
		store_close(store);
	return rc;
}

int store_close(struct store *store)
{
	struct entry *entry;
	int rc;

	if (store == NULL)
		return 0;
	rc = journal_close(store->journal);
	while ((entry = table_first(&store->table)) != NULL)
		table_drop(&store->table, entry);
	pthread_mutex_destroy(&store->reading);
	pthread_mutex_destroy(&store->changing);
	free(store);
	return rc;
}
