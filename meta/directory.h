/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's place in a metadata store: its two documents, put there and kept alive, and the look-up of others' ones.
 *
 *   <prefix>rpc_meta/<name>   where its handshake port is (contact.h)
 *   <prefix>ram/<name>        its segment (descriptor.h); <prefix><name> if the name has a '/'
 *
 * with the prefix "mooncake/", or "mooncake/<cluster>/" (as Mooncake's classic Transfer Engine has it).
 *
 * All calls to the store are made by one thread, "lw-store", one after another; others hand it jobs. A job has a
 * deadline, and who waits for it waits no longer, whatever the store does. While nobody asks, the thread renews the
 * lease of both keys, three times a lease, and puts them again where they have vanished or a put has failed: so a store
 * that was away, or came back empty, has them soon after. A key that another engine of the same name has taken is left
 * alone, and said once in the log; it is taken back when it vanishes.
 *
 * Errors are those of store.h; why gets a sentence. Any thread but lw-store may call, beside each other; open and begin
 * come first, close last.
 */
#ifndef LW_META_DIRECTORY_H
#define LW_META_DIRECTORY_H

#include <stdint.h>

#include "meta/contact.h"
#include "meta/store.h"

struct lw_directory;

struct lw_directory_opts {
	const char *url;               /* see lw_store_open; not P2PHANDSHAKE */
	struct lw_store_options store; /* with the incarnation, which must not be 0 */
	const char *cluster;           /* part of the prefix; "": none */
	struct lw_contact contact;
	uint32_t timeout_ms; /* of an operation that nobody waits for */
	/* The segment's document as it is now, which the directory frees; lw-store's thread. Must not wait. Not called
	 * any more when lw_directory_close returns. 0, -ENOMEM. */
	int (*document)(void *arg, char **text, size_t *length);
	void *arg;
};

/* What a look-up finds. */
struct lw_directory_entry {
	struct lw_contact contact; /* with an empty host: there is none, as for a segment of files */
	char *document;            /* with a NUL; the receiver frees it */
	size_t length;
};

/* Prepares the store's client. Strings are copied. Waits for no network. 0; -EINVAL a wrong URL, option or name;
 * -ENOTSUP the library is missing; -ENOMEM. */
int lw_directory_open(const struct lw_directory_opts *opts, struct lw_directory **out, char *why, size_t why_size);

/* Starts the thread and puts both documents of the segment of that name for the first time, which takes the keys over,
 * whoever had them. Once, before all other calls. Blocks for at most timeout_ms of the options. 0; -EINVAL the name;
 * -EAGAIN no thread; -ENOMEM; errors of the store. */
int lw_directory_begin(struct lw_directory *directory, const char *name, const struct lw_contact *contact, char *why,
		       size_t why_size);

/* The segment's document has changed. Blocks until the store has confirmed a document that was made after the call
 * began, at most timeout_ms. Calls of several threads share one put. 0; after an error the thread goes on trying by
 * itself. */
int lw_directory_publish(struct lw_directory *directory, uint32_t timeout_ms, char *why, size_t why_size);

/* The same without waiting for it. */
void lw_directory_touch(struct lw_directory *directory);

/* Looks both documents of an engine up; they are of one life of it, as far as they tell. Without a contact the
 * segment's alone is found, too. Blocks for at most timeout_ms. 0; -ENOENT there is no such name. */
int lw_directory_find(struct lw_directory *directory, const char *name, uint32_t timeout_ms,
		      struct lw_directory_entry *out, char *why, size_t why_size);

/* The same without waiting: done runs once on lw-store's thread, also with -ESHUTDOWN; it must not wait, and owns
 * entry->document after 0. 0, or -ENOMEM, -ESHUTDOWN: done does not run. */
typedef void (*lw_directory_done)(void *arg, int result, const struct lw_directory_entry *entry, const char *why);
int lw_directory_find_async(struct lw_directory *directory, const char *name, uint32_t timeout_ms,
			    lw_directory_done done, void *arg);

/* Removes both documents of an engine where they carry that incarnation (0: where they carry none). Blocks for at most
 * timeout_ms. 0; -ENOENT neither is there; -ESTALE another life has them. */
int lw_directory_purge(struct lw_directory *directory, const char *name, uint64_t incarnation, uint32_t timeout_ms,
		       char *why, size_t why_size);

/* Begins the end: calls return -ESHUTDOWN from now on, also those that wait, and the thread removes our documents,
 * unless another engine has the keys, for which it has timeout_ms. Never blocks. Once; lw_directory_close has to
 * follow. NULL is fine. */
void lw_directory_refuse(struct lw_directory *directory, uint32_t timeout_ms);

/* Waits for the thread, at most as long as lw_directory_refuse gave it; one that is then still inside a call to the
 * store ends by itself when that does. No other thread may be inside a call. NULL is fine. */
void lw_directory_close(struct lw_directory *directory);

/* The key of a segment's document, for those who look after segments that are no engine's. cluster as in the options,
 * at most 127 bytes; name at most LW_NAME_MAX. Any thread; needs no directory. */
void lw_directory_segment_key(const char *cluster, const char *name, char key[LW_STORE_KEY_MAX]);

/* In a forked child: closes its copy of the connection, and does nothing else. */
void lw_directory_forked(struct lw_directory *directory);

#endif
