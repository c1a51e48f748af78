/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA devices of the lab (devices.sh) and engines over them. */
#ifndef LW_TEST_LAB_RAILS_H
#define LW_TEST_LAB_RAILS_H

#include <stdbool.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

#include "common/peer.h"

#define RAILS 4 /* rxe0 to rxe3, on one wire */

/* Whether a test of the driver can be made here: this is the lab, and the driver is part of the build. If not, the
 * reason is printed. */
bool rails_here(void);

/* Sets the link of rxe<rail> down, or up again; the device has noticed when the call returns. */
void rail_down(unsigned rail);
void rail_heal(unsigned rail);

/* Packets that rxe<rail> has sent so far. */
uint64_t rail_packets(unsigned rail);

/* Settings of an engine that moves bytes over these devices and by nothing else, behind them more of its settings. */
#define OVER(devices) "drivers=rdma poll=adaptive timeout_ms=20000 rdma_devices=" devices

/* Opens the peer's segment; the test fails if that can't be done. */
lw_segment_t rail_open(struct lw_engine *engine, const struct peer *peer);

/* So many requests side by side over one range each, in one batch, waited for. The test fails, with the first reason,
 * if not all complete. */
void rail_move(struct lw_engine *engine, const struct lw_request *first, uint32_t count);

#endif
