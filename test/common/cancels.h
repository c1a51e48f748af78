/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests that are canceled at random moments, and a look for bytes that move after an end.
 *
 * READs and WRITEs of random sizes, some with deadlines of a few ms, are under way in batches. Tasks, batches and, by
 * closing the segment, all requests to the peer are canceled. As soon as a task is seen to have ended, in whatever
 * state, its memory on both sides is filled with a poison of its own; at the latest when the memory is used again, and
 * after a rest at the end, all of the poison must still be there. What completed must be exact, what did not may be
 * stored in part, and nothing but the request's own range may have changed.
 *
 * Both sides' memory is looked at from here: the peer's by process_vm_readv and process_vm_writev. */
#ifndef LW_TEST_CANCELS_H
#define LW_TEST_CANCELS_H

#include <stdbool.h>
#include <stdint.h>

struct test_cancels {
	const char *settings;       /* of both engines */
	const char *const *options; /* more of the peer, see common/peer.h; NULL: none */
	uint64_t count;             /* cancels of what was not yet seen to have ended */
	uint32_t limit_ms;          /* a busy machine does fewer in this time; less than a tenth is a failure */
	bool inside;                /* the peer is another engine of this process */
	bool freeze;                /* the peer stands still now and then, longer than a cancel waits */
};

void test_cancels_run(const struct test_cancels *how);

#endif
