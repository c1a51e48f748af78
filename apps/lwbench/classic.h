/* SPDX-License-Identifier: Apache-2.0 */
/* What the reference's benchmark prints, on stderr, for scripts that look for it. */
#ifndef LWBENCH_CLASSIC_H
#define LWBENCH_CLASSIC_H

#include <stdbool.h>

#include <lanewise/lanewise.h>

#include "apps/lwbench/options.h"
#include "apps/lwbench/report.h"

/* One line with the prefix that its logger has: severity ('I', 'W', 'E'), date, time, thread, place. */
__attribute__((format(printf, 2, 3))) void classic_log(char severity, const char *format, ...);

/* Whether it is one of GB, GiB, Gb, MB, MiB, Mb, KB, KiB, Kb. */
bool classic_unit_known(const char *unit);

/* The target's line that peers are told from: under which name it listens. */
void classic_listening(const struct options *options, const struct lw_engine *engine);

/* A line for each thread and the last one, "Test completed: ...". failed: something did; mismatch: a byte was wrong. */
void classic_finish(const struct options *options, const struct row *row, bool failed, bool mismatch);

#endif
