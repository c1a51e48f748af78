/* SPDX-License-Identifier: Apache-2.0 */
/* Notes as JSON documents, the layout of Mooncake's classic Transfer Engine: {"name":text,"notify_msg":text}. Where one
 * of the two has a NUL, which a JSON text can't hold for most readers, {"lw":{"name":base64,"text":base64}} has all
 * bytes, and the two are cut there. No state: any thread.
 */
#ifndef LW_META_NOTE_H
#define LW_META_NOTE_H

#include <stdbool.h>
#include <stddef.h>

#include <lanewise/notify.h>

/* Whether every reader of such documents gets all bytes. */
bool lw_note_is_plain(const struct lw_note *note);

/* The document, which the caller frees. 0, -ENOMEM. */
int lw_note_encode(const struct lw_note *note, char **body);

/* Reads a document from outside. The note and its bytes are one allocation, which begins head bytes before *out, for
 * the caller's own use and his to free. 0, -EPROTO, -ENOMEM. */
int lw_note_decode(const char *body, size_t size, size_t head, struct lw_note **out);

#endif
