/* SPDX-License-Identifier: Apache-2.0 */
/* What readers and writers of JSON share. No state: any thread. */
#ifndef LW_META_JSON_H
#define LW_META_JSON_H

#include <stdbool.h>
#include <stddef.h>

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

/* The document as text without blanks, which the caller frees with free(), whatever allocator the host gave cJSON.
 * Takes json over; NULL is one for which there was no memory. 0 and *out; -ENOMEM. */
int lw_json_text(struct cJSON *json, char **out);

#endif
