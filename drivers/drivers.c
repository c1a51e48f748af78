/* SPDX-License-Identifier: Apache-2.0 */
/* The table of drivers: all there are, in order of preference. */
#include "drivers/null/null.h"
#include "drivers/nvlink/nvlink.h"
#include "drivers/nvmeof/nvmeof.h"
#include "drivers/rdma/rdma.h"
#include "drivers/shm/shm.h"
#include "drivers/tcp/tcp.h"
#include "lib/sched/driver.h"

const struct lw_driver_ops *const lw_drivers[] = {
	&lw_shm_ops,  &lw_rdma_ops, &lw_nvlink_ops, &lw_hip_ops,  &lw_musa_ops,
	&lw_maca_ops, &lw_tcp_ops,  &lw_nvmeof_ops, &lw_null_ops,
};
const size_t lw_drivers_count = sizeof(lw_drivers) / sizeof(lw_drivers[0]);
_Static_assert(sizeof(lw_drivers) / sizeof(lw_drivers[0]) <= LW_MAX_DRIVERS, "raise LW_MAX_DRIVERS");
