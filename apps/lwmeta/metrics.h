/* SPDX-License-Identifier: Apache-2.0 */
/* What /metrics tells, in the text format of Prometheus. Any thread. */
#ifndef APPS_LWMETA_METRICS_H
#define APPS_LWMETA_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "apps/lwmeta/conns.h"
#include "apps/lwmeta/store.h"

enum metrics_method {
	METHOD_GET,
	METHOD_HEAD,
	METHOD_PUT,
	METHOD_POST,
	METHOD_DELETE,
	METHOD_OTHER,
	METHODS,
};

enum { METRICS_STATUSES = 12 };

/* Begin with {0}, and started_ns. */
struct metrics {
	_Atomic uint64_t answers[METHODS][METRICS_STATUSES];
	_Atomic uint64_t aborted;         /* requests whose connection ended before their answer was sent */
	_Atomic uint64_t uploading_bytes; /* room of values that are on their way */
	uint64_t started_ns;
};

enum metrics_method metrics_method(const char *name);

/* Counts an answer. A status that the table of metrics.c lacks counts as 500. */
void metrics_answer(struct metrics *metrics, enum metrics_method method, unsigned status);

/* All of it as a text for free(). NULL when there is no memory. */
char *metrics_text(struct metrics *metrics, struct store *store, struct conns *conns, size_t *size);

#endif
