/* SPDX-License-Identifier: Apache-2.0 */
/* What a run found, as tables for people and one JSON object for programs. */
#ifndef LWBENCH_REPORT_H
#define LWBENCH_REPORT_H

#include <stdio.h>

#include "apps/lwbench/hist.h"
#include "apps/lwbench/options.h"

/* Failed tasks by reason. */
struct failures {
	uint64_t count[LW_REASON_COUNT];
	char text[LW_REASON_COUNT][320]; /* the first sentence of each */
};

/* One case: a line of the table. */
struct row {
	const char *op;
	uint64_t block;
	uint32_t batch;
	uint32_t threads;
	uint32_t depth;
	double seconds;    /* that count: of a validation those in transfers */
	double elapsed_s;  /* all of them */
	uint64_t requests; /* that ended well */
	uint64_t failed;
	uint64_t bytes; /* of those that ended well */
	double cpu_s;
	double target_cpu_s; /* below 0: not known */
	struct hist latency; /* of batches, ns */
};

struct report {
	FILE *tables;
	FILE *json; /* NULL: none is wanted */
	bool heading;
	unsigned rows;
	double open_us;  /* of the target; below 0: not asked for */
	double first_us; /* of the first request to it, its connection included */
};

/* Adds the failed tasks of a batch that ended. */
void failures_collect(struct failures *failures, struct lw_engine *engine, lw_batch_t batch, uint32_t tasks);
void failures_merge(struct failures *failures, const struct failures *from);

/* Opens the JSON file, if one is wanted, and begins the object. 0; -errno, with a message printed. */
int report_begin(struct report *report, const struct options *options, const char *what);

/* Prints one line of the table and adds it to the JSON. */
void report_row(struct report *report, const struct row *row);

/* Prints the failures and the lanes, and ends the JSON. engine may be NULL: no lanes. 0; -errno of the JSON file. */
int report_end(struct report *report, struct lw_engine *engine, const struct failures *failures);

#endif
