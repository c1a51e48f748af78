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
 * One round a second begins at most, so that requests that can't be served are no storm of questions to the peer or the
 * store. A request that misses in between is left to the peer's own check where there is one (lib/sched/driver.h), else
 * it waits.
 *
 *   want   workers, lw-ctrl   lock-free; a system call only if the control thread sleeps
 *   rests  workers            one load
 */
#ifndef LW_REFRESH_H
#define LW_REFRESH_H

#include <stdbool.h>
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

/* Whether a round that is wanted now, at now_ns, has to wait for its turn. */
bool lw_refresh_rests(const struct lw_refresh *refresh, uint64_t now_ns);

#endif
