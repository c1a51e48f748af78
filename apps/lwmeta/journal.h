/* SPDX-License-Identifier: Apache-2.0 */
/* The file behind --file: a line that names the format, then one record for each change, in order. A record is a head
 * of fixed length in readable hexadecimal, then key, owner and value as they are, then a newline. The head has a
 * checksum of its own, so that a length that was damaged is told from a write that was cut off.
 *
 * One thread at a time, except journal_sync and journal_rewrite_*, which may run beside the functions that append. */
#ifndef APPS_LWMETA_JOURNAL_H
#define APPS_LWMETA_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apps/lwmeta/record.h"

struct journal;

enum journal_kind {
	JOURNAL_PUT = 'P',
	JOURNAL_LEASE = 'L', /* another lease for a key that is there */
	JOURNAL_DELETE = 'D',
};

/* What one record of the file says. */
struct journal_change {
	enum journal_kind kind;
	struct text key, owner, value;
	uint64_t lease_ms;
};

/* Called for each record of the file, in order. 0 goes on; -errno ends the opening with that. */
typedef int journal_replay_fn(void *arg, const struct journal_change *change);

/* Opens or creates the file, locks it against a second server, and replays it. What a write that was cut off has left
 * at the end is dropped with a line on stderr. Any other damage is an error; with recover what stands before it is
 * kept, and the damaged file stays beside it as PATH.damaged. sync: each append is on the disk before it returns.
 * 0 and *out; -errno, with a sentence in why. */
int journal_open(const char *path, bool recover, bool sync, journal_replay_fn *replay, void *arg, struct journal **out,
		 char *why, size_t why_size);

/* Appends. Nothing is appended when it fails: -ENOSPC no room; -EIO any other reason, told once on stderr; then every
 * append fails until journal_switch has made a new file. */
int journal_put(struct journal *journal, const struct record *record, uint64_t lease_ms);
int journal_lease(struct journal *journal, struct text key, uint64_t lease_ms);
int journal_delete(struct journal *journal, struct text key);

/* Brings what was appended to the disk, if anything was. 0; -EIO, told once on stderr. */
int journal_sync(struct journal *journal);

uint64_t journal_size(const struct journal *journal);
bool journal_failed(const struct journal *journal);

/* Compaction. Begin a new file beside the old one; add what was there when the old one had mark bytes; sync; then, with
 * nobody appending, switch: what was appended since mark is copied, and the new file takes the old one's place in one
 * step. Each returns 0 or -errno; after an error call journal_rewrite_drop, and the old file goes on. */
int journal_rewrite_begin(struct journal *journal);
int journal_rewrite_add(struct journal *journal, const struct record *record, uint64_t lease_ms);
int journal_rewrite_sync(struct journal *journal);
int journal_switch(struct journal *journal, uint64_t mark);
void journal_rewrite_drop(struct journal *journal);

/* Syncs and closes. NULL is allowed. 0, -EIO. */
int journal_close(struct journal *journal);

#endif
