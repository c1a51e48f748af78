/* SPDX-License-Identifier: Apache-2.0 */
/* What lwbench can do. Each command runs to its end and returns an enum exit_code. */
#ifndef LWBENCH_COMMANDS_H
#define LWBENCH_COMMANDS_H

#include "apps/lwbench/options.h"

/* The notes by which an initiator asks for the target's CPU time, and the answer: {"user_s":..,"system_s":..}. */
#define NOTE_CPU_ASK "lwbench.cpu?"
#define NOTE_CPU_ANSWER "lwbench.cpu"

int target_run(const struct options *options);
int initiator_run(struct options *options);
int raw_run(const struct options *options);

#endif
