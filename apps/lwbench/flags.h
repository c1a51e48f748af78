/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of Mooncake's transfer_engine_bench and transfer_engine_validator, for scripts that have it. */
#ifndef LWBENCH_FLAGS_H
#define LWBENCH_FLAGS_H

#include "apps/lwbench/options.h"

/* Whether this is such a command line: it has flags and no command, or the program is called by one of those names. */
bool flags_meant(int argc, char **argv);

/* Reads it. -1: go on; else the exit code to end with, which is 1 for every mistake, as there; a sentence was printed.
 * *out as from options_parse. */
int flags_parse(struct options *out, int argc, char **argv);

#endif
