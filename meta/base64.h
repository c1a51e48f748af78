/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 (RFC 4648, with padding), as etcd's gateway writes bytes. Any thread. */
#ifndef LW_META_BASE64_H
#define LW_META_BASE64_H

#include <stddef.h>

/* Bytes of the text of size bytes, without a NUL. */
#define LW_BASE64_LENGTH(size) (((size) + 2) / 3 * 4)

/* Writes LW_BASE64_LENGTH(size) characters and no NUL. Returns their end. */
char *lw_base64_encode(const void *bytes, size_t size, char *text);

/* Writes at most length / 4 * 3 bytes. Their number in *size. 0; -EPROTO not such a text. */
int lw_base64_decode(const char *text, size_t length, void *bytes, size_t *size);

#endif
