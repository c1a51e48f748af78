/* SPDX-License-Identifier: Apache-2.0 */
/* The topology as sysfs tells it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "meta/sysfs.h"
#include "meta/topology_pvt.h"

#define GIDS_LOOKED_AT 16
#define IFF_UP_BIT 0x1
#define IFF_LOOPBACK_BIT 0x8

static int scan_nodes(struct lw_topology *topology, const char *sysfs)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "devices/system/node"), ret = 0;

	for (int i = 0; i < count && ret == 0; i++) {
		const char *name = names[i]->d_name;
		char cpus[256], *end;
		unsigned long number;

		if (strncmp(name, "node", 4) != 0 || name[4] < '0' || name[4] > '9')
			continue;
		number = strtoul(name + 4, &end, 10);
		if (*end != '\0' || number >= INT32_MAX)
			continue;
		lw_sysfs_line(sysfs, cpus, sizeof(cpus), "devices/system/node/%s/cpulist", name);
		ret = lw_topology_add_node(topology, (uint32_t)number, cpus);
	}
	lw_sysfs_free(names, count);
	if (ret == 0 && topology->node_count == 0) { /* a kernel without NUMA */
		char cpus[256];

		lw_sysfs_line(sysfs, cpus, sizeof(cpus), "devices/system/cpu/online");
		ret = lw_topology_add_node(topology, 0, cpus);
	}
	return ret;
}

/* What the link "device" of a class's entry tells: place on PCI, node, virtual function. */
static void place(struct lw_device *device, const char *sysfs, const char *entry)
{
	char path[512], of[512];

	if (lw_sysfs_real(sysfs, path, sizeof(path), "%s/device", entry) != 0)
		return;
	lw_device_place(device, path);
	if (device->pci[0] == '\0')
		return;
	device->node = (int32_t)lw_sysfs_number(sysfs, -1, "bus/pci/devices/%s/numa_node", device->pci);
	if (lw_sysfs_real(sysfs, of, sizeof(of), "bus/pci/devices/%s/physfn", device->pci) == 0) {
		struct lw_device card = {.pci = ""};

		lw_device_place(&card, of);
		memcpy(device->of, card.pci, sizeof(device->of));
	}
}

/* Speed in Mbit/s of "200 Gb/sec (4X HDR)"; in tenths for 2.5. */
static uint64_t rate_of(const char *text)
{
	char *end;
	double rate = strtod(text, &end);

	return end != text && rate > 0 && rate < 1e6 && strncmp(end, " Gb/sec", 7) == 0 ? (uint64_t)(rate * 1000) : 0;
}

static bool has_gid(const char *sysfs, const char *name, const char *port)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "class/infiniband/%s/ports/%s/gids", name, port);
	bool found = false;

	for (int i = 0; i < count && i < GIDS_LOOKED_AT && !found; i++) {
		char gid[64];

		/* An entry that is empty reads as zeroes, or not at all. */
		found = lw_sysfs_line(sysfs, gid, sizeof(gid), "class/infiniband/%s/ports/%s/gids/%s", name, port,
				      names[i]->d_name) == 0 &&
			strspn(gid, "0:") != strlen(gid);
	}
	lw_sysfs_free(names, count);
	return found;
}

/* A port is active and has an address. */
static bool scan_ports(struct lw_device *device, const char *sysfs)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "class/infiniband/%s/ports", device->name);
	bool active = false, addressed = false;

	for (int i = 0; i < count; i++) {
		const char *port = names[i]->d_name;
		char text[64];

		lw_sysfs_line(sysfs, text, sizeof(text), "class/infiniband/%s/ports/%s/state", device->name, port);
		if (strncmp(text, "4:", 2) != 0)
			continue;
		active = true;
		addressed = addressed || has_gid(sysfs, device->name, port);
		lw_sysfs_line(sysfs, text, sizeof(text), "class/infiniband/%s/ports/%s/rate", device->name, port);
		if (rate_of(text) > device->speed_mbps)
			device->speed_mbps = rate_of(text);
	}
	lw_sysfs_free(names, count);
	if (!active)
		snprintf(device->why, sizeof(device->why), count == 0 ? "it has no port" : "no port is active");
	else if (!addressed)
		snprintf(device->why, sizeof(device->why), "no active port has a GID");
	return active && addressed;
}

/* The file under dev/infiniband through which programs use the device. */
static bool may_open(struct lw_device *device, const char *sysfs, const char *dev)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "class/infiniband_verbs");
	char of[64], path[512];
	bool found = false, ok = false;
	struct stat st;

	for (int i = 0; i < count && !found; i++) {
		lw_sysfs_line(sysfs, of, sizeof(of), "class/infiniband_verbs/%s/ibdev", names[i]->d_name);
		found = strcmp(of, device->name) == 0;
		if (!found)
			continue;
		snprintf(path, sizeof(path), "%s/infiniband/%s", dev, names[i]->d_name);
		ok = stat(path, &st) == 0 && S_ISCHR(st.st_mode) && access(path, R_OK | W_OK) == 0;
		if (!ok)
			snprintf(device->why, sizeof(device->why), "%.64s is no device that may be read and written",
				 path);
	}
	lw_sysfs_free(names, count);
	if (!found)
		snprintf(device->why, sizeof(device->why), "the kernel module ib_uverbs has no device for it");
	return ok;
}

static int scan_hcas(struct lw_topology *topology, const char *sysfs, const char *dev)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "class/infiniband"), ret = 0;

	for (int i = 0; i < count && ret == 0; i++) {
		struct lw_device *device = lw_topology_add(topology, LW_DEVICE_HCA, names[i]->d_name);
		char entry[300], parent[64];

		if (device == NULL) {
			ret = -ENOMEM;
			break;
		}
		snprintf(entry, sizeof(entry), "class/infiniband/%s", names[i]->d_name);
		place(device, sysfs, entry);
		/* A software device lies where its interface does. */
		if (device->pci[0] == '\0' && lw_sysfs_line(sysfs, parent, sizeof(parent), "%s/parent", entry) == 0) {
			snprintf(entry, sizeof(entry), "class/net/%s", parent);
			place(device, sysfs, entry);
		}
		device->usable = scan_ports(device, sysfs) && (dev == NULL || may_open(device, sysfs, dev));
	}
	lw_sysfs_free(names, count);
	return ret;
}

static void scan_link(struct lw_device *device, const char *sysfs)
{
	int64_t flags = lw_sysfs_number(sysfs, 0, "class/net/%s/flags", device->name);
	int64_t speed = lw_sysfs_number(sysfs, -1, "class/net/%s/speed", device->name);
	char state[32];

	device->bridge = lw_sysfs_has(sysfs, "class/net/%s/bridge", device->name);
	device->loopback = (flags & IFF_LOOPBACK_BIT) != 0;
	if (speed > 0 && speed < INT32_MAX)
		device->speed_mbps = (uint64_t)speed;
	lw_sysfs_line(sysfs, state, sizeof(state), "class/net/%s/operstate", device->name);
	/* Those that don't report a state, such as lo, are "unknown" and run if they have a carrier. */
	device->usable =
		(flags & IFF_UP_BIT) != 0 &&
		(strcmp(state, "up") == 0 || (strcmp(state, "unknown") == 0 &&
					      lw_sysfs_number(sysfs, 0, "class/net/%s/carrier", device->name) == 1));
	if ((flags & IFF_UP_BIT) == 0)
		snprintf(device->why, sizeof(device->why), "it is not up");
	else if (!device->usable)
		snprintf(device->why, sizeof(device->why), "its link is %s", state[0] != '\0' ? state : "unknown");
}

static int scan_nets(struct lw_topology *topology, const char *sysfs)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "class/net"), ret = 0;

	for (int i = 0; i < count && ret == 0; i++) {
		struct lw_device *device;
		char entry[300];

		snprintf(entry, sizeof(entry), "class/net/%s", names[i]->d_name);
		if (!lw_sysfs_has(sysfs, "%s/flags", entry)) /* bonding_masters */
			continue;
		device = lw_topology_add(topology, LW_DEVICE_NET, names[i]->d_name);
		if (device == NULL) {
			ret = -ENOMEM;
			break;
		}
		place(device, sysfs, entry);
		scan_link(device, sysfs);
	}
	lw_sysfs_free(names, count);
	return ret;
}

static int scan_gpus(struct lw_topology *topology, const char *sysfs)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "bus/pci/devices"), ret = 0;

	for (int i = 0; i < count && ret == 0; i++) {
		const char *name = names[i]->d_name;
		uint32_t class = (uint32_t)lw_sysfs_number(sysfs, 0, "bus/pci/devices/%s/class", name);
		uint32_t vendor = (uint32_t)lw_sysfs_number(sysfs, 0, "bus/pci/devices/%s/vendor", name);
		struct lw_device *device;
		char path[512];

		/* One that was given to a virtual machine is not counted by the vendor's runtime. */
		if (!lw_is_gpu(class, vendor) ||
		    (lw_sysfs_real(sysfs, path, sizeof(path), "bus/pci/devices/%s/driver", name) == 0 &&
		     (strcmp(path, "bus/pci/drivers/vfio-pci") == 0 || strcmp(path, "bus/pci/drivers/pci-stub") == 0)))
			continue;
		device = lw_topology_add(topology, LW_DEVICE_GPU, vendor == PCI_VENDOR_NVIDIA ? "cuda" : "hip");
		if (device == NULL) {
			ret = -ENOMEM;
			break;
		}
		device->usable = true;
		if (lw_sysfs_real(sysfs, path, sizeof(path), "bus/pci/devices/%s", name) == 0)
			lw_device_place(device, path);
		device->node = (int32_t)lw_sysfs_number(sysfs, -1, "bus/pci/devices/%s/numa_node", name);
	}
	lw_sysfs_free(names, count);
	return ret;
}

static int scan_nvmes(struct lw_topology *topology, const char *sysfs)
{
	struct dirent **names;
	int count = lw_sysfs_list(sysfs, &names, "class/nvme"), ret = 0;

	for (int i = 0; i < count && ret == 0; i++) {
		struct lw_device *device = lw_topology_add(topology, LW_DEVICE_NVME, names[i]->d_name);
		char entry[300], state[32];

		if (device == NULL) {
			ret = -ENOMEM;
			break;
		}
		snprintf(entry, sizeof(entry), "class/nvme/%s", names[i]->d_name);
		place(device, sysfs, entry);
		lw_sysfs_line(sysfs, state, sizeof(state), "%s/state", entry);
		device->usable = state[0] == '\0' || strcmp(state, "live") == 0;
		if (!device->usable)
			snprintf(device->why, sizeof(device->why), "its state is %s", state);
	}
	lw_sysfs_free(names, count);
	return ret;
}

int lw_topology_sysfs(struct lw_topology *topology, const char *sysfs, const char *dev)
{
	int ret = scan_nodes(topology, sysfs);

	if (ret == 0)
		ret = scan_hcas(topology, sysfs, dev);
	if (ret == 0)
		ret = scan_nets(topology, sysfs);
	if (ret == 0)
		ret = scan_gpus(topology, sysfs);
	if (ret == 0)
		ret = scan_nvmes(topology, sysfs);
	return ret;
}
