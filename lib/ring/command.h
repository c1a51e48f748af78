/* SPDX-License-Identifier: Apache-2.0 */
/* A command: what any thread sends to a worker by its inbox. */
#ifndef LW_RING_COMMAND_H
#define LW_RING_COMMAND_H

#include "lib/ring/inbox.h"

struct lw_worker;

/* Something for a worker to do between two passes. The memory is the sender's until run was called. */
struct lw_command {
	struct lw_inbox_node node;
	void (*run)(struct lw_worker *worker, struct lw_command *command);
};

#endif
