/* SPDX-License-Identifier: Apache-2.0 */
/* The null driver: ends each slice at once and moves nothing. For measuring the engine itself. */
#ifndef LW_DRIVERS_NULL_H
#define LW_DRIVERS_NULL_H

#include "lib/sched/driver.h"

extern const struct lw_driver_ops lw_null_ops;

#endif
