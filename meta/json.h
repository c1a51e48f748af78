/* SPDX-License-Identifier: Apache-2.0 */
/* What readers and writers of JSON share. No state: any thread. */
#ifndef LW_META_JSON_H
#define LW_META_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

/* Where a reader says what is wrong; size 0: nobody wants to know. */
struct lw_why {
	char *text;
	size_t size;
};

/* Says it, and returns -EPROTO. */
int lw_bad(const struct lw_why *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* No control characters in it. */
bool lw_is_printable(const char *text);

/* Numbers arrive as doubles, which tell integers apart up to here. */
#define LW_JSON_INTEGER_MAX UINT64_C(9007199254740991)

/* Parses a document from outside. First it is scanned: its size (128 MiB), depth (16) and number of values are bounded,
 * control bytes and NULs in texts refused. 0, and *root is the caller's to free with cJSON_Delete; -EPROTO, with the
 * rest of a sentence in why; an allocation that failed counts as such, too. */
int lw_json_read(const char *text, size_t length, struct cJSON **root, const struct lw_why *why);

/* A member of an object, or NULL; object may be NULL. */
const struct cJSON *lw_json_field(const struct cJSON *object, const char *key);

/* Whether item is a whole number from min to max, at most LW_JSON_INTEGER_MAX; then *out is it. */
bool lw_json_integer(const struct cJSON *item, uint64_t min, uint64_t max, uint64_t *out);

/* The incarnation among what Lanewise adds to a document (its "lw", or NULL); *out stays if there is none. 0; -EPROTO.
 */
int lw_json_incarnation(const struct cJSON *ours, uint64_t *out, const struct lw_why *why);
/* The same of another key that names a life of an engine. */
int lw_json_life(const struct cJSON *ours, const char *key, uint64_t *out, const struct lw_why *why);

/* The document as text without blanks, which the caller frees with free(), whatever allocator the host gave cJSON.
 * Takes json over; NULL is one for which there was no memory. 0 and *out; -ENOMEM. */
int lw_json_text(struct cJSON *json, char **out);

#endif
