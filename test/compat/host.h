/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of libtransfer_engine.so share. They are hosts: they know its headers, and nothing of what is behind.
 */
#ifndef LW_TEST_HOST_H
#define LW_TEST_HOST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <sys/types.h>

#include "transfer_engine_ext.h"

/* The runtimes of the sanitizers may hold a lock of theirs at the time of a fork beside threads, which the child then
 * never gets; ThreadSanitizer's does not know the threads that libc starts to look hosts up, either. */
#if defined(__SANITIZE_THREAD__)
#define HOST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOST_TSAN 1
#endif
#endif
#ifndef HOST_TSAN
#define HOST_TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__)
#define HOST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOST_SANITIZED 1
#endif
#endif
#ifndef HOST_SANITIZED
#define HOST_SANITIZED HOST_TSAN
#endif

/* Plain threads and small pages, so that a test is quick and takes little. For the head of main. */
void host_quiet(void);

/* An engine on 127.0.0.1 without a store, and tcp installed; ends the test if there is none. */
transfer_engine_t host_engine(void);

uint64_t host_now_ms(void);
void host_sleep_ms(unsigned ms);

/* Own name of an engine. */
const char *host_name(transfer_engine_t engine, char text[128]);

/* Polls a task until it is not WAITING, for at most 40 s; its status. */
struct transfer_status host_wait(transfer_engine_t engine, batch_id_t batch, size_t task);

/* One request in a batch of its own, waited for and freed; the task's status. */
struct transfer_status host_transfer(transfer_engine_t engine, int opcode, void *source, segment_id_t target,
				     uint64_t offset, uint64_t length);

/* Another process with an engine: this program again, as "PROGRAM peer BYTES". It offers BYTES bytes of memory full of
 * 'p', and behind them, on the next page, 4096 bytes full of 's' that it registered without remote access. A line on
 * its input says what it does: "sum" (answers the sum of the offered bytes), "notes" (answers the number of
 * notifications so far, and prints the last one as NAME=MSG), "withdraw" (unregisters the offered memory), "end". It
 * dies with the test. */
struct host_peer {
	pid_t pid;
	int to, from;
	char name[128];
	uint64_t addr;   /* of the offered memory */
	uint64_t secret; /* of the other */
	char answer[256];
};

/* For the head of main: does the peer's work if the program was called for it. False: it was not. */
bool host_peer_main(int argc, char **argv, int *status);
void host_peer_start(struct host_peer *peer, size_t bytes);
/* The same with a name in a metadata store ("PROGRAM peer BYTES URL NAME"); peer->name is its address all the same. */
void host_peer_start_in(struct host_peer *peer, size_t bytes, const char *metadata, const char *name);
const char *host_peer_ask(struct host_peer *peer, const char *line);
/* Ends it by its input; by SIGKILL. */
void host_peer_end(struct host_peer *peer);
void host_peer_kill(struct host_peer *peer);

/* Runs this program with one argument, and with variables "NAME=VALUE" up to NULL. Its exit status as of waitpid, and
 * what it wrote to standard error (text, cut to size). number, not 0: the signal that it is sent when it has printed a
 * line. */
int host_run(const char *argument, const char *const *variables, int number, char *text, size_t size);

#endif
