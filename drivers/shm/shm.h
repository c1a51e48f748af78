/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by the worker, without a socket: to the own segment, and to other engines of the host. */
#ifndef LW_DRIVERS_SHM_H
#define LW_DRIVERS_SHM_H

#include "lib/sched/driver.h"

extern const struct lw_driver_ops lw_shm_ops;

#endif
