/* SPDX-License-Identifier: Apache-2.0 */
/* The nvmeof driver: segments that are files or block devices of this host's file systems, NVMe over Fabrics
 * namespaces among them. README.md tells what is always true.
 */
#ifndef LW_DRIVERS_NVMEOF_H
#define LW_DRIVERS_NVMEOF_H

#include "lib/sched/driver.h"

extern const struct lw_driver_ops lw_nvmeof_ops;

#endif
