/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "apps/lwmeta/table.h"

static int key_order(const struct entry *a, const struct entry *b)
{
	return text_compare(record_key(a->record), record_key(b->record));
}

static int end_order(const struct entry *a, const struct entry *b)
{
	if (a->end_ms != b->end_ms)
		return a->end_ms < b->end_ms ? -1 : 1;
	return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

RB_GENERATE_INTERNAL(key_tree, entry, by_key, key_order, static __attribute__((unused)))
RB_GENERATE_INTERNAL(end_tree, entry, by_end, end_order, static __attribute__((unused)))

/* The library finds by a whole entry; here is only a key. */
struct entry *table_find(const struct table *table, struct text key)
{
	struct entry *entry = RB_ROOT(&table->by_key);
	int order;

	while (entry != NULL) {
		order = text_compare(key, record_key(entry->record));
		if (order == 0)
			break;
		entry = order < 0 ? RB_LEFT(entry, by_key) : RB_RIGHT(entry, by_key);
	}
	return entry;
}

struct entry *table_ends_first(struct table *table)
{
	return RB_MIN(end_tree, &table->by_end);
}

struct entry *table_first(struct table *table)
{
	return RB_MIN(key_tree, &table->by_key);
}

struct entry *table_next(struct entry *entry)
{
	return RB_NEXT(key_tree, NULL, entry);
}

void table_insert(struct table *table, struct entry *entry, struct record *record)
{
	entry->record = record;
	entry->lease_ms = 0;
	RB_INSERT(key_tree, &table->by_key, entry);
	table->keys++;
	table->bytes += table_cost(record);
}

struct record *table_replace(struct table *table, struct entry *entry, struct record *record)
{
	struct record *before = entry->record;

	table->bytes -= table_cost(before);
	entry->record = record;
	table->bytes += table_cost(record);
	return before;
}

void table_lease(struct table *table, struct entry *entry, uint64_t lease_ms, uint64_t end_ms)
{
	if (entry->lease_ms != 0) {
		RB_REMOVE(end_tree, &table->by_end, entry);
		table->leases--;
	}
	entry->lease_ms = lease_ms;
	entry->end_ms = end_ms;
	if (lease_ms != 0) {
		RB_INSERT(end_tree, &table->by_end, entry);
		table->leases++;
	}
}

void table_drop(struct table *table, struct entry *entry)
{
	table_lease(table, entry, 0, 0);
	RB_REMOVE(key_tree, &table->by_key, entry);
	table->keys--;
	table->bytes -= table_cost(entry->record);
	record_release(entry->record);
	free(entry);
}

uint64_t table_cost(const struct record *record)
{
	return TABLE_ENTRY_BYTES + (uint64_t)record->key_size + record->owner_size + record->value_size;
}
