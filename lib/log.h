/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: to a sink of the host's (lw_log_set), else to standard error. Never called on the data path. */
#ifndef LW_LOG_H
#define LW_LOG_H

#include <stdint.h>

enum lw_log_level {
	LW_LOG_ERROR = 0,
	LW_LOG_WARNING = 1,
	LW_LOG_INFO = 2,
	LW_LOG_DEBUG = 3,
};

/* Lines above the level are dropped. Process-wide, as the sink is. Any thread. */
void lw_log_level_set(int level);

/* One line, at most 1,023 bytes, in one write(2). Any thread; keeps errno; takes no lock. */
__attribute__((format(printf, 2, 3))) void lw_log(int level, const char *format, ...);

/* At most one line per second and caller, for what an outsider can provoke; tells how many were dropped meanwhile. */
struct lw_log_limit {
	_Atomic uint64_t next_ns;
	_Atomic uint64_t dropped;
};
__attribute__((format(printf, 3, 4))) void lw_log_limited(struct lw_log_limit *limit, int level, const char *format,
							  ...);

#endif
