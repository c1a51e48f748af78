/* SPDX-License-Identifier: Apache-2.0 */
/* Slices whose memory is a GPU's, on lanes of a driver that moves the host's alone: each goes through a bounce buffer.
 *
 *   WRITE  a copy into the buffer, then the slice is posted, with the buffer as its memory
 *   READ   the slice is posted, with the buffer as its memory, then a copy out of it
 *
 * Several at once, so that copies and the wire overlap. While it is copied a slice is in path->copying and on no lane;
 * a copy can't be taken back, so until it has ended its task stays pending, its memory registered and its path open.
 * What is repeated on another lane is posted again from the buffer. A copy that fails ends the slice with
 * LW_REASON_DEVICE.
 *
 * One worker's thread; nothing blocks or allocates.
 */
#ifndef LW_SCHED_STAGE_H
#define LW_SCHED_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/sched/bounce.h"
#include "lib/sched/lane.h"
#include "lib/sched/path.h"

/* Where the application's bytes of a slice are. */
static inline uint64_t lw_slice_local(const struct lw_slice *slice)
{
	return slice->bounce != NULL ? slice->bounce->device : slice->local;
}

/* Whether a slice that begins at this address could have a bounce buffer now. */
bool lw_stage_has_room(struct lw_worker *worker, const struct lw_path *path, uint64_t local);

/* How much of the next length bytes lies in one buffer of ours: at most that is one slice. */
uint64_t lw_stage_length(const struct lw_worker *worker, uint64_t local, uint64_t length);

/* Takes a slice that was just cut, for which there is room; the lane has credit for it. */
void lw_stage_begin(struct lw_worker *worker, struct lw_path *path, struct lw_lane *lane, struct lw_slice *slice);

/* The bytes of a READ have come, by the lane of that number: they are copied on, unless its task has failed or was
 * aborted meanwhile, whose memory is not to be touched any more. */
void lw_stage_unload(struct lw_worker *worker, struct lw_path *path, struct lw_slice *slice, uint32_t lane);

/* The slice ends: its bounce buffer goes back. */
void lw_stage_give(struct lw_path *path, struct lw_slice *slice);

/* Ends what is being copied still, while the copies go on: the engine has waited long enough for them. */
void lw_stage_forget(struct lw_worker *worker, struct lw_path *path, enum lw_reason reason);

#endif
