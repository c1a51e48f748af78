/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by GPUs: between devices, and between devices and memory of the host. One driver over the runtimes of four
 * vendors (lib/gpu), each with a table of its own. */
#ifndef LW_DRIVERS_NVLINK_H
#define LW_DRIVERS_NVLINK_H

#include "lib/sched/driver.h"

extern const struct lw_driver_ops lw_nvlink_ops; /* CUDA */
extern const struct lw_driver_ops lw_hip_ops;
extern const struct lw_driver_ops lw_musa_ops;
extern const struct lw_driver_ops lw_maca_ops;

#endif
