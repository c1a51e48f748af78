/* SPDX-License-Identifier: Apache-2.0 */
/* Another process with an engine: the test's own program, run again as "PROGRAM peer BYTES [OPTION ...]". It offers one
 * area of memory, and does what the lines on its standard input say, one line of answer each. It ends with status 0
 * when its input ends, and dies with the test. Tests in other languages drive it likewise.
 *
 *   OPTION   a setting "name=value", or uid=N (become that user), cpu=N (run on that CPU alone), at=ADDRESS (of the
 *            memory), offer=OFFSET:LENGTH:ACCESS,... (several buffers, not all of the memory, or none), as=NAME (of the
 *            engine; 127.0.0.1 if none is given), alarm=MICROSECONDS (a signal so often, as long as a command is
 *            carried out), nice=N (how gladly it yields the CPU), link=N (a network of its own, see common/net.h;
 *            link=N+M: with several links), alloc=1 (memory of lw_mem_alloc), deny=1 (a sandbox without
 *            process_vm_readv and process_vm_writev), gpu=N (memory of that GPU, of the stand-in's)
 *   at start ready NAME ADDRESS BYTES
 *   fill OFFSET LENGTH SEED                                     -> ok
 *   sum OFFSET LENGTH                                           -> sum CRC-32
 *   withdraw OFFSET                                             -> ok; the buffer there is not registered any more
 *   open NAME [TIMEOUT_MS]                                      -> segment HANDLE
 *   close HANDLE                                                -> ok
 *   run read|write HANDLE OFFSET ADDRESS LENGTH COUNT TIMEOUT_MS
 *       -> ran COMPLETED FAILED CANCELED TIMEOUT MS REASON sentence on the first that did not complete
 *       COUNT requests side by side in one batch; REASON is its number, 0 if all completed
 *   stream read|write HANDLE OFFSET ADDRESS LENGTH DEPTH        -> ok; until stop, beside other commands
 *       DEPTH ranges side by side, one request over each at a time
 *   count                                                       -> counted COMPLETED FAILED; of the stream so far
 *   stop                                                        -> streamed COMPLETED FAILED
 *   state                                                       -> state FDS THREADS RSS_KIB NOTES LANES
 *   drivers                                                     -> drivers SHM TCP; slices that its lanes carried
 *   again                                                       -> as at start; its engine ends, another one begins
 *   and what peer_meta.h lists
 *   anything that fails                                         -> error NUMBER sentence
 */
#ifndef LW_TEST_PEER_H
#define LW_TEST_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct peer {
	pid_t pid;
	int to, from;
	char name[128];
	uint64_t addr;
	uint64_t length;
	char line[512]; /* the last answer */
	size_t have;
	char pending[512];
};

/* For the head of main: does the peer's work if the program was called for it. False: it was not. */
bool peer_main(int argc, char **argv, int *status);

/* Starts a peer with so much memory and options, the last one NULL. */
void peer_start(struct peer *peer, uint64_t length, const char *const *options);
/* Sends a line. */
void peer_tell(struct peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The answer to a line, for which it waits at most 20 s. */
const char *peer_answer(struct peer *peer);
/* Both. */
const char *peer_ask(struct peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, and the answer must begin with what is expected. */
const char *peer_expect(struct peer *peer, const char *expected, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Ends its input and waits for its end, which must be in order. */
void peer_end(struct peer *peer);
/* SIGSTOP, and waits until all of its threads stand still. SIGCONT lets it go on. */
void peer_freeze(struct peer *peer);
/* SIGKILL, and waits. */
void peer_kill(struct peer *peer);

#endif
