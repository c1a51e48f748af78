/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the GPU vendors' runtimes: one shared library with the entry points of all four (vendor.h has them),
 * over memory of the host. For tests; nothing of it is in the product.
 *
 * It is meant to be less forgiving than the real ones:
 *   - memory of a device can't be touched by the CPU: its pages have no rights, and copies go through another mapping;
 *   - copies are done by a thread of its own, late, and out of order between streams;
 *   - whoever copies from or to memory of the host that is not pinned, which a real runtime would wait for, is counted;
 *   - a copy that is still under way when its memory or its import goes ends the process with a message;
 *   - an allocation can be imported once at a time, never by its own process, and not after it was freed;
 *   - contexts come into being when a thread without one calls the runtime, on its current device, and are counted;
 *   - any entry point can be made to fail.
 *
 * STANDIN_GPU in the environment sets the same for a program: "devices=4,delay=200,fail=IpcOpenMemHandle:1:2".
 * All functions: any thread.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdbool.h>
#include <stddef.h>

/* The CPU's view of memory of a device; NULL: it is none. */
void *standin_peek(const void *addr);

/* From the nth call from now on of this entry point (its name after the vendor's prefix, or "Copy": a copy under way),
 * one call returns code; nth 0: every call. code 0: none. One fault at a time. */
void standin_fail(const char *entry, unsigned int nth, int code);
/* Whether the fault was met. */
bool standin_failed(void);
/* How often an entry point was called. */
unsigned int standin_calls(const char *entry);
/* The entry points, by number; NULL: no more. */
const char *standin_entry(size_t number);

/* How many there are of: memory, import, stream, event, host (pinned allocations), pinned (registered ranges), context.
 */
size_t standin_live(const char *kind);
/* Copies from or to memory of the host that is not pinned. */
unsigned int standin_blocked(void);

/* Some pieces of work take up to so many microseconds. */
void standin_delay(unsigned int us);
/* Each piece of work takes just so long, and shows no effect before. In the environment "slow=". */
void standin_slow(unsigned int us);
/* Nothing under way goes on until it is let go. */
void standin_hold(bool hold);
/* A process may import what it has exported itself, for tests that play two in one. */
void standin_own_imports(bool allowed);

#endif
