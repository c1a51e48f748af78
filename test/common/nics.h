/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA devices that exist in this process alone: what libibverbs would say and do, by mutexes and memcpy. Requests are
 * carried out when their completion queue is polled, with the checks that hardware makes: states, domains, keys,
 * bounds, rights. Engines that are opened while they are there use them in the place of the host's. What real devices
 * do besides, the lab shows.
 */
#ifndef LW_TEST_NICS_H
#define LW_TEST_NICS_H

#include <stdbool.h>
#include <stdint.h>

/* So many devices nic0, nic1 ... with one port each; 0: the host's own again. While no engine is open. */
void test_nics(uint32_t count);

/* The port of a device goes down or comes up. Down, requests on its queue pairs never complete until those are broken,
 * and those of its peers fail. */
void test_nic_port(uint32_t device, bool up);

/* Requests that devices carry out from now on before they stand still; UINT64_MAX: no end. */
void test_nics_budget(uint64_t requests);

/* The queue pairs that have something to do do nothing any more, until they are broken. */
void test_nics_stuck(void);

/* Requests with bytes that queue pairs of this device have carried out so far. */
uint64_t test_nic_carried(uint32_t device);

/* What there is of queue pairs and memory regions. */
uint32_t test_nics_qps(void);
uint32_t test_nics_regions(void);

/* The rights (IBV_ACCESS_...) of the first region that begins at addr; -1: there is none. */
int test_nics_rights(const void *addr);

/* The next registration of memory but skip fails. */
void test_nics_refuse(uint32_t skip);

#endif
