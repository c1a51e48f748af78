/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the topology_*.c files. */
#ifndef LW_META_TOPOLOGY_PVT_H
#define LW_META_TOPOLOGY_PVT_H

#include "meta/topology.h"

#define PCI_VENDOR_NVIDIA 0x10de
#define PCI_VENDOR_AMD 0x1002

/* A new zeroed device of unknown node at the end of the table; good until the next one. NULL: no memory, or too many.
 */
struct lw_device *lw_topology_add(struct lw_topology *topology, enum lw_device_kind kind, const char *name);

/* Whether PCI class (24 bits) and vendor are those of a GPU that programs compute on. */
bool lw_is_gpu(uint32_t class, uint32_t vendor);

/* Takes the part of a path that is in the PCI tree and sets path, pci and nothing else. */
void lw_device_place(struct lw_device *device, const char *path);

/* Adds a node; numbers may come in any order. 0, -ENOMEM, -ENOSPC. */
int lw_topology_add_node(struct lw_topology *topology, uint32_t number, const char *cpus);

/* GPUs get their names here, when all are known: cuda:0, cuda:1 by PCI address. Their name holds the kind until then.
 */
void lw_topology_name_gpus(struct lw_topology *topology);

/* topology_sysfs.c. 0, -ENOMEM. dev NULL: not asked. */
int lw_topology_sysfs(struct lw_topology *topology, const char *sysfs, const char *dev);

/* topology_hwloc.c: everything from hwloc's xml, or (xml NULL) the nodes of devices that sysfs doesn't know. 0;
 * -ENOTSUP no hwloc; -EINVAL; -ENOMEM. */
int lw_topology_hwloc(struct lw_topology *topology, const char *library, const char *xml);

#endif
