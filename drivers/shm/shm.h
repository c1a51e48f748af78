/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by the worker, without a socket. This version reaches the engine's own segment (LW_SEGMENT_LOCAL). */
#ifndef LW_DRIVERS_SHM_H
#define LW_DRIVERS_SHM_H

#include "lib/sched/driver.h"

extern const struct lw_driver_ops lw_shm_ops;

#endif
