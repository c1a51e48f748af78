/* SPDX-License-Identifier: Apache-2.0 */
/* What this host is made of, as far as transfers care: NUMA nodes, NICs, GPUs, NVMe devices, and how near they are to
 * each other. sysfs tells nearly all of it; where it doesn't know the node of a PCI device, hwloc is asked if it is
 * there. A host without any of this hardware has a topology, too: one node and no devices.
 */
#ifndef LW_META_TOPOLOGY_H
#define LW_META_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/matrix.h"

#define LW_DEVICES_MAX 65536
#define LW_NODES_MAX 1024
#define LW_DEVICE_ADDRESSES 8

enum lw_device_kind {
	LW_DEVICE_HCA, /* a verbs device: mlx5_0, rxe0 */
	LW_DEVICE_NET, /* a network interface: eth0 */
	LW_DEVICE_GPU, /* named as its location: cuda:0, hip:0 */
	LW_DEVICE_NVME,
};

/* How near two devices are, the nearest first. */
enum lw_distance {
	LW_DISTANCE_CARD,   /* functions of one card */
	LW_DISTANCE_SWITCH, /* below one PCI bridge */
	LW_DISTANCE_ROOT,   /* below one root complex */
	LW_DISTANCE_NODE,   /* at one NUMA node */
	LW_DISTANCE_OTHER,  /* at two nodes, or nobody knows */
};

struct lw_node {
	uint32_t number;
	char cpus[256]; /* "0-15,32-47"; empty: memory without CPUs */
};

struct lw_device {
	enum lw_device_kind kind;
	char name[64];
	char pci[32];   /* "0000:3b:00.0"; empty: not on PCI */
	char path[512]; /* of the PCI tree, from the root complex to the device: "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
			 */
	int32_t node;   /* NUMA node, or -1: nobody knows */
	bool usable;    /* HCA: a port is active and has an address, and we may open it; NET: up and running */
	bool bridge, loopback; /* NET */
	char of[32];           /* PCI address of the card whose virtual function it is; empty: none */
	char why[96];          /* why it is not usable */
	uint64_t speed_mbps;   /* 0: unknown */
	uint32_t address_count;
	char address[LW_DEVICE_ADDRESSES][64]; /* NET: of this host, not of a recorded tree */
};

struct lw_topology {
	struct lw_node *nodes;     /* by number; never empty */
	struct lw_device *devices; /* by kind, then by name, numbers in it by value */
	size_t node_count, device_count, devices_room;
	char note[160]; /* what was used, or is missing */
};

struct lw_topology_opts {
	const char *sysfs; /* NULL: /sys; else a recorded tree, of a host without addresses */
	const char *dev;   /* NULL: /dev with /sys, else nothing: then nobody asks whether a device may be opened */
	const char *hwloc; /* NULL: libhwloc.so.15; what dlopen(3) finds or not */
	const char *xml;   /* hwloc's description of a host, which then stands in for sysfs */
	const char
		*hcas; /* names of HCAs joined by commas, blanks around them: the others are not used; NULL: all are */
};

/* Looks around. given may be NULL. Any thread. Reads some hundred small files, waits for nobody; opens hwloc only if it
 * is needed, and then tells it to leave binding, GPUs and displays alone. The caller frees *out. 0; -ENOMEM; -EINVAL
 * the xml can't be read; -ENOTSUP it needs hwloc, which is not there. */
int lw_topology_discover(const struct lw_topology_opts *given, struct lw_topology **out);

void lw_topology_free(struct lw_topology *topology);

/* hops: parts of both paths behind what they have in common, which is how the matrix compares; UINT32_MAX: one of them
 * has none. May be NULL. */
enum lw_distance lw_topology_distance(const struct lw_device *a, const struct lw_device *b, uint32_t *hops);
const char *lw_distance_name(enum lw_distance distance);

/* Fills an empty matrix with the HCAs that are usable. "cpu:N": those at the node are preferred, the rest is available.
 * "cuda:N" and "hip:N", GPUs in the order of their PCI addresses: of the HCAs at the GPU's node, or of all if there is
 * none, those nearest on the PCI tree are preferred. A virtual function is never preferred if its card is here, since
 * they share a port. 0; -ENOMEM; -ENOSPC. */
int lw_topology_matrix(const struct lw_topology *topology, struct lw_matrix *matrix);

/* The report of lw_topology_json: devices, distances, the matrix and where that comes from. NULL: no memory. */
struct cJSON *lw_topology_write(const struct lw_topology *topology, const struct lw_matrix *matrix, const char *source);

#endif
