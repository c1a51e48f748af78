/* SPDX-License-Identifier: Apache-2.0 */
/* Watches: one a segment at most, on the control thread, which probes the peer every quarter of the time after which it
 * counts as gone. See lw_segment_watch.
 */
#ifndef LW_WATCH_H
#define LW_WATCH_H

struct lw_segment_slot;

/* Frees the slot's watch. After the control thread has ended. */
void lw_watch_free(struct lw_segment_slot *slot);

#endif
