/* SPDX-License-Identifier: Apache-2.0 */
/* One version of one entry: key, owner and value in one piece of memory. It is filled by one thread; once it has been
 * given to the store it never changes, and whoever holds a reference reads it without a lock. */
#ifndef APPS_LWMETA_RECORD_H
#define APPS_LWMETA_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of somebody else's. data is NULL when there are none, which is not the same as an empty text. */
struct text {
	const char *data;
	size_t size;
};

struct record {
	atomic_uint refs;
	uint32_t key_size, owner_size;
	size_t value_size, value_room;
	char bytes[]; /* key, owner, value */
};

bool text_same(struct text a, struct text b);

/* Orders bytewise, the shorter first. Negative, 0, positive. */
int text_compare(struct text a, struct text b);

/* A record with one reference, an empty value and room for value_room bytes. Key and owner are at most UINT32_MAX
 * bytes. NULL when there is no memory. */
struct record *record_new(struct text key, struct text owner, size_t value_room);

/* Makes the room for the value larger or smaller; never smaller than the value. *record may move. Only before others
 * know it. 0, -ENOMEM. */
int record_room(struct record **record, size_t value_room);

/* Adds to the value, for which there is room. Only before others know it. */
void record_append(struct record *record, const void *data, size_t size);

struct text record_key(const struct record *record);
struct text record_owner(const struct record *record);
struct text record_value(const struct record *record);

/* Takes one more reference. Returns record. */
struct record *record_hold(struct record *record);

/* Gives one back; the last one frees. NULL is allowed. */
void record_release(struct record *record);

#endif
