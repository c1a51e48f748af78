/* SPDX-License-Identifier: Apache-2.0 */
/* Refreshes of one segment: what the peer offers is asked for again, in the background and without the application's
 * help, when a request points outside of what was offered before, when the peer refuses one, and when it can't be
 * reached.
 *
 * Refreshes come in rounds, one at a time. A request that misses waits for the end of a round that begins after it
 * (lw_refresh_want tells its number); then it is decided by what the peer offers now. A peer that turns out to live
 * another life makes the segment stale: its requests end with LW_REASON_RESTARTED, and an open by name gets a new
 * handle.
 *
 * Rounds are paced: after one that took t the next begins 10 t later, at least 1 ms and at most 1 s, so that requests
 * that can't be served cost the peer and the control thread a tenth of their time at most.
 *
 *   want   workers, lw-ctrl   lock-free; a system call only if the control thread sleeps
 *   ended  workers            one load
 */
#ifndef LW_REFRESH_H
#define LW_REFRESH_H

#include <stdint.h>

struct lw_engine;
struct lw_refresh;
struct lw_segment_slot;

/* For a slot of the engine's table. The owner frees it with lw_refresh_free after the workers and the control thread
 * have ended. NULL: no memory. */
struct lw_refresh *lw_refresh_new(struct lw_engine *engine, struct lw_segment_slot *slot);
void lw_refresh_free(struct lw_refresh *refresh);

/* Asks for a round. The number of the one that is decisive for what the caller has met; numbers wrap. */
uint32_t lw_refresh_want(struct lw_refresh *refresh);

#endif
