/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a journal. No function touches a file. */
#ifndef APPS_LWMETA_JOURNAL_FORMAT_H
#define APPS_LWMETA_JOURNAL_FORMAT_H

#include <stdint.h>

#include "apps/lwmeta/journal.h"

/* kind, lease, sizes of key, owner and value, checksums of these three and of the head; a newline */
enum {
	FORMAT_TITLE_BYTES = 9,
	FORMAT_SUM_DIGITS = 32,
	FORMAT_HEAD_BYTES = 2 + 17 + 9 + 9 + 17 + 2 * (FORMAT_SUM_DIGITS + 1),
};

extern const char format_title[];

/* Writes the head of a record, without a terminating zero. */
void format_head(const struct journal_change *change, char head[FORMAT_HEAD_BYTES]);

/* Bytes that a record takes in the file. */
uint64_t format_bytes(const struct journal_change *change);

/* 0 and *next behind the title; -ENODATA the file is empty or its title cut off; -EPROTO it is something else. */
int format_title_check(const char *bytes, uint64_t size, uint64_t *next);

/* Reads the record at an offset of a file of size bytes. The texts of *out point into bytes.
 * 0, *out and *next; -ENODATA the file ends here, or in a record that was cut off or never reached the
 * disk as a whole; -EBADMSG damage: other bytes follow. */
int format_next(const char *bytes, uint64_t size, uint64_t at, struct journal_change *out, uint64_t *next);

#endif
