/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of one case: each owns a channel and a part of both memories, and keeps batches under way.
 *
 *   main thread                      load threads
 *   load_run: starts them       ->   warm-up: depth batches that are not counted
 *   barrier                     <->  barrier
 *   progress, signals, stop     ->   look at stop between two polls
 *   joins them                  <-   all their batches have ended
 */
#ifndef LWBENCH_LOAD_H
#define LWBENCH_LOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "apps/lwbench/report.h"

/* What the threads of a case share. */
struct load {
	const struct options *options;
	struct lw_engine *engine;
	lw_segment_t segment;
	unsigned char *local; /* parts * part_bytes of local memory */
	uint64_t remote;      /* the same in the segment */
	uint64_t part_bytes;  /* of one thread */
	uint64_t block;
	pthread_barrier_t barrier;
	atomic_bool stop;
	atomic_uint running;
};

/* One thread. Counters are written by the thread alone and read by anybody. */
struct load_thread {
	struct load *load;
	pthread_t thread;
	unsigned index;
	struct lw_channel *channel;
	struct lw_request *requests; /* options->batch of them */
	uint64_t cursor;             /* next block of the part */
	uint64_t start_ns;
	uint64_t end_ns;
	uint64_t moving_ns; /* validation: time in transfers; else end - start */
	uint64_t failed;
	bool mismatch;
	bool broken; /* a call failed, or batches never ended: a message was printed */
	_Atomic uint64_t done;
	_Atomic uint64_t bytes;
	struct hist latency;
	struct failures failures;
};

/* Runs one case to its end. 0; -ENOMEM. ended is set when a signal ended it. */
int load_run(struct load *load, struct row *row, struct failures *failures, bool *mismatch, bool *broken, bool *ended);

/* Fills the next count requests of the thread: op, block after block of its part. The cursor stays. */
void load_fill(struct load_thread *thread, uint32_t count, uint8_t op);

/* Prints what a call had to say and marks the thread broken. */
void load_broken(struct load_thread *thread, const char *call, int rc);

/* Adds count ended requests of the case's block size to the counters. */
void load_count(struct load_thread *thread, uint64_t count);

/* validate.c: rounds of write, clear, read back, compare, until end_ns, stop or the count. */
void validate_loop(struct load_thread *thread, uint64_t end_ns);

#endif
