/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "apps/lwmeta/record.h"

bool text_same(struct text a, struct text b)
{
	return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

int text_compare(struct text a, struct text b)
{
	size_t both = a.size < b.size ? a.size : b.size;
	int order = both > 0 ? memcmp(a.data, b.data, both) : 0;

	return order != 0 ? order : (a.size > b.size) - (a.size < b.size);
}

struct record *record_new(struct text key, struct text owner, size_t value_room)
{
	struct record *record = malloc(sizeof(*record) + key.size + owner.size + value_room);

	if (record == NULL)
		return NULL;
	atomic_init(&record->refs, 1);
	record->key_size = (uint32_t)key.size;
	record->owner_size = (uint32_t)owner.size;
	record->value_size = 0;
	record->value_room = value_room;
	if (key.size > 0)
		memcpy(record->bytes, key.data, key.size);
	if (owner.size > 0)
		memcpy(record->bytes + key.size, owner.data, owner.size);
	return record;
}

int record_room(struct record **record, size_t value_room)
{
	struct record *moved;

	if (value_room < (*record)->value_size)
		value_room = (*record)->value_size;
	moved = realloc(*record, sizeof(*moved) + (*record)->key_size + (*record)->owner_size + value_room);
	if (moved == NULL)
		return -ENOMEM;
	moved->value_room = value_room;
	*record = moved;
	return 0;
}

void record_append(struct record *record, const void *data, size_t size)
{
	if (size > 0)
		memcpy(record->bytes + record->key_size + record->owner_size + record->value_size, data, size);
	record->value_size += size;
}

struct text record_key(const struct record *record)
{
	return (struct text){record->bytes, record->key_size};
}

struct text record_owner(const struct record *record)
{
	return (struct text){record->bytes + record->key_size, record->owner_size};
}

struct text record_value(const struct record *record)
{
	return (struct text){record->bytes + record->key_size + record->owner_size, record->value_size};
}

struct record *record_hold(struct record *record)
{
	atomic_fetch_add_explicit(&record->refs, 1, memory_order_relaxed);
	return record;
}

void record_release(struct record *record)
{
	/* The release of each holder pairs with the acquire of the last one, which frees what all have read. */
	if (record != NULL && atomic_fetch_sub_explicit(&record->refs, 1, memory_order_acq_rel) == 1)
		free(record);
}
