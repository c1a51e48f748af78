/* SPDX-License-Identifier: Apache-2.0 */
/* The topology, or what sysfs leaves open, as hwloc tells it. The library is opened when it is needed and closed again:
 * it brings others with it (libudev, libxml2), and sysfs alone nearly always suffices.
 */
#include <dlfcn.h>
#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/topology_pvt.h"

/* What is used of it. hwloc's inline functions are not, since they would have to be linked. */
#define HWLOC_FUNCTIONS(X)                                                                                             \
	X(topology_init)                                                                                               \
	X(topology_set_xml)                                                                                            \
	X(topology_set_flags)                                                                                          \
	X(topology_set_components)                                                                                     \
	X(topology_set_io_types_filter)                                                                                \
	X(topology_load)                                                                                               \
	X(topology_destroy)                                                                                            \
	X(get_obj_by_depth)                                                                                            \
	X(bitmap_list_snprintf)                                                                                        \
	X(bitmap_first)                                                                                                \
	X(bitmap_weight)

struct hwloc {
	void *library;
	hwloc_topology_t topology;
#define X(name) __typeof__(hwloc_##name) *name;
	HWLOC_FUNCTIONS(X)
#undef X
};

static int open_library(struct hwloc *hwloc, const char *library)
{
	bool whole = true;

	hwloc->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (hwloc->library == NULL)
		return -ENOTSUP;
#define X(name)                                                                                                        \
	hwloc->name = (__typeof__(hwloc->name))dlsym(hwloc->library, "hwloc_" #name);                                  \
	whole = whole && hwloc->name != NULL;
	HWLOC_FUNCTIONS(X)
#undef X
	if (whole)
		return 0;
	dlclose(hwloc->library);
	return -ENOTSUP;
}

/* Leaves the caller's binding alone, starts no GPU runtime and opens no display. */
static int load(struct hwloc *hwloc, const char *xml)
{
	static const char *const unwanted[] = {"x86", "cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"};

	if (hwloc->topology_init(&hwloc->topology) != 0)
		return -ENOMEM;
	if (xml != NULL && hwloc->topology_set_xml(hwloc->topology, xml) != 0)
		goto destroy;
	for (size_t i = 0; xml == NULL && i < sizeof(unwanted) / sizeof(unwanted[0]); i++)
		hwloc->topology_set_components(hwloc->topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unwanted[i]);
	hwloc->topology_set_flags(hwloc->topology, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
	hwloc->topology_set_io_types_filter(hwloc->topology, HWLOC_TYPE_FILTER_KEEP_ALL);
	if (hwloc->topology_load(hwloc->topology) == 0)
		return 0;
destroy:
	hwloc->topology_destroy(hwloc->topology);
	return -EINVAL;
}

/* The one NUMA node that an object is at, or -1. */
static int32_t node_of(const struct hwloc *hwloc, const struct hwloc_obj *object)
{
	while (object != NULL && object->nodeset == NULL) /* PCI and OS devices have none */
		object = object->parent;
	if (object == NULL || hwloc->bitmap_weight(object->nodeset) != 1)
		return -1;
	return hwloc->bitmap_first(object->nodeset);
}

static void function_name(const struct hwloc_obj *pci, char *text, size_t size)
{
	const struct hwloc_pcidev_attr_s *at = &pci->attr->pcidev;

	snprintf(text, size, "%04x:%02x:%02x.%x", at->domain, at->bus, at->dev, at->func);
}

/* The PCI device that an object is, or is on. */
static const struct hwloc_obj *pci_of(const struct hwloc_obj *object)
{
	while (object != NULL && object->type != HWLOC_OBJ_PCI_DEVICE)
		object = object->parent;
	return object;
}

/* "pci0000:3a/0000:3a:00.0/0000:3b:00.0", as in sysfs. */
static void write_path(const struct hwloc_obj *pci, char *text, size_t size)
{
	char above[512] = "", piece[32];

	if (pci->parent != NULL && pci->parent->type == HWLOC_OBJ_BRIDGE)
		write_path(pci->parent, above, sizeof(above));
	if (pci->type == HWLOC_OBJ_BRIDGE && pci->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
		snprintf(piece, sizeof(piece), "pci%04x:%02x", pci->attr->bridge.downstream.pci.domain,
			 pci->attr->bridge.downstream.pci.secondary_bus);
	else
		function_name(pci, piece, sizeof(piece)); /* a bridge's attributes begin with those of its own device */
	snprintf(text, size, "%s%s%s", above, above[0] != '\0' ? "/" : "", piece);
}

static const char *info(const struct hwloc_obj *object, const char *name)
{
	for (unsigned int i = 0; i < object->infos_count; i++)
		if (strcmp(object->infos[i].name, name) == 0)
			return object->infos[i].value;
	return "";
}

static int add_device(const struct hwloc *hwloc, struct lw_topology *topology, enum lw_device_kind kind,
		      const char *name, const struct hwloc_obj *object)
{
	const struct hwloc_obj *pci = pci_of(object);
	struct lw_device *device = lw_topology_add(topology, kind, name);
	char path[512];

	if (device == NULL)
		return -ENOMEM;
	device->usable = true;
	device->node = node_of(hwloc, object);
	if (pci != NULL) {
		write_path(pci, path, sizeof(path));
		lw_device_place(device, path);
	}
	if (kind == LW_DEVICE_HCA && strcmp(info(object, "Port1State"), "4") != 0) {
		device->usable = false;
		snprintf(device->why, sizeof(device->why), "port 1 is not active");
	}
	device->loopback = kind == LW_DEVICE_NET && strcmp(name, "lo") == 0;
	return 0;
}

/* "nvme0" of the disk "nvme0n1". */
static bool controller_name(const char *disk, char *text, size_t size)
{
	size_t digits = strncmp(disk, "nvme", 4) == 0 ? strspn(disk + 4, "0123456789") : 0;

	if (digits == 0)
		return false;
	snprintf(text, size, "%.*s", (int)(4 + digits), disk);
	for (size_t i = 0; i < 4 + digits; i++)
		if (text[i] == '\0')
			return false;
	return true;
}

static bool is_known(const struct lw_topology *topology, const char *name)
{
	for (size_t i = 0; i < topology->device_count; i++)
		if (strcmp(topology->devices[i].name, name) == 0)
			return true;
	return false;
}

static int take_os_device(const struct hwloc *hwloc, struct lw_topology *topology, const struct hwloc_obj *object)
{
	char name[64];

	if (object->name == NULL)
		return 0;
	switch (object->attr->osdev.type) {
	case HWLOC_OBJ_OSDEV_OPENFABRICS:
		return add_device(hwloc, topology, LW_DEVICE_HCA, object->name, object);
	case HWLOC_OBJ_OSDEV_NETWORK:
		return add_device(hwloc, topology, LW_DEVICE_NET, object->name, object);
	case HWLOC_OBJ_OSDEV_BLOCK:
		if (!controller_name(object->name, name, sizeof(name)) || is_known(topology, name))
			return 0;
		return add_device(hwloc, topology, LW_DEVICE_NVME, name, object);
	default:
		return 0;
	}
}

static int take_all(const struct hwloc *hwloc, struct lw_topology *topology)
{
	const struct hwloc_obj *object;
	char cpus[256];
	unsigned int i;
	int ret = 0;

	for (i = 0;
	     ret == 0 && (object = hwloc->get_obj_by_depth(hwloc->topology, HWLOC_TYPE_DEPTH_NUMANODE, i)) != NULL;
	     i++) {
		hwloc->bitmap_list_snprintf(cpus, sizeof(cpus), object->cpuset);
		ret = lw_topology_add_node(topology, object->os_index, cpus);
	}
	for (i = 0;
	     ret == 0 && (object = hwloc->get_obj_by_depth(hwloc->topology, HWLOC_TYPE_DEPTH_OS_DEVICE, i)) != NULL;
	     i++)
		ret = take_os_device(hwloc, topology, object);
	for (i = 0;
	     ret == 0 && (object = hwloc->get_obj_by_depth(hwloc->topology, HWLOC_TYPE_DEPTH_PCI_DEVICE, i)) != NULL;
	     i++) {
		uint32_t class = (uint32_t)object->attr->pcidev.class_id << 8, vendor = object->attr->pcidev.vendor_id;

		if (lw_is_gpu(class, vendor))
			ret = add_device(hwloc, topology, LW_DEVICE_GPU, vendor == PCI_VENDOR_NVIDIA ? "cuda" : "hip",
					 object);
	}
	return ret;
}

/* The nodes of devices that have a PCI address and no node. */
static void take_nodes(const struct hwloc *hwloc, struct lw_topology *topology)
{
	const struct hwloc_obj *object;
	char name[32];

	for (unsigned int i = 0;
	     (object = hwloc->get_obj_by_depth(hwloc->topology, HWLOC_TYPE_DEPTH_PCI_DEVICE, i)) != NULL; i++) {
		function_name(object, name, sizeof(name));
		for (size_t k = 0; k < topology->device_count; k++)
			if (topology->devices[k].node < 0 && strcmp(topology->devices[k].pci, name) == 0)
				topology->devices[k].node = node_of(hwloc, object);
	}
}

int lw_topology_hwloc(struct lw_topology *topology, const char *library, const char *xml)
{
	struct hwloc hwloc;
	int ret = open_library(&hwloc, library);

	if (ret != 0)
		return ret;
	ret = load(&hwloc, xml);
	if (ret != 0)
		goto close_library;
	if (xml != NULL)
		ret = take_all(&hwloc, topology);
	else
		take_nodes(&hwloc, topology);
	hwloc.topology_destroy(hwloc.topology);
close_library:
	dlclose(hwloc.library);
	return ret;
}
