/* SPDX-License-Identifier: Apache-2.0 */
/* The peer's commands about names, offers and notes, beside those of peer.h. Bytes and names are written as in URLs:
 * %41.
 *
 *   register OFFSET LENGTH ACCESS   -> buffer HANDLE
 *   many COUNT LENGTH               -> registered MICROSECONDS; COUNT buffers of LENGTH bytes side by side in one call
 *   unregister HANDLE               -> ok
 *   ranges HANDLE                   -> ranges COUNT
 *   refresh HANDLE [TIMEOUT_MS]     -> ok
 *   probe HANDLE [TIMEOUT_MS]       -> ok
 *   purge NAME [TIMEOUT_MS]         -> ok
 *   notify HANDLE NAME TEXT         -> ok; "-" is an empty one
 *   write HANDLE OFFSET ADDRESS LENGTH NAME TEXT
 *                                   -> ok; one request, with a note for its end; error -5 if it did not complete
 *   tell PEER NAME TEXT             -> ok; the same by the peer's name
 *   note                            -> note NAME TEXT, or none
 *   watch HANDLE MS                 -> ok
 *   event                           -> event KIND ERROR NAME, or none
 *   wait MS                         -> ready, or none: whether the descriptor of events and notes becomes readable
 */
#ifndef LW_TEST_PEER_META_H
#define LW_TEST_PEER_META_H

#include <stdbool.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

/* Does what the line says, and gives its answer to say. False: it is none of these. */
bool peer_meta_line(struct lw_engine *engine, unsigned char *memory, uint64_t length, const char *line,
		    void (*say)(const char *text));

/* What a text with %XX stands for, and a NUL. Its length. */
size_t peer_meta_decode(const char *text, char *to, size_t size);

#endif
