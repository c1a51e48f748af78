/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/topology.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "meta/address.h"
#include "meta/topology_pvt.h"

#define HOST_ADDRESSES 256

static const char *const distance_names[] = {"card", "switch", "root", "node", "other"};
static const char *const kind_names[] = {"hca", "net", "gpu", "nvme"};

const char *lw_distance_name(enum lw_distance distance)
{
	return distance_names[distance];
}

bool lw_is_gpu(uint32_t class, uint32_t vendor)
{
	if (vendor != PCI_VENDOR_NVIDIA && vendor != PCI_VENDOR_AMD)
		return false;
	return class >> 16 == 0x03 || class >> 8 == 0x1200; /* displays and 3D; processing accelerators */
}

struct lw_device *lw_topology_add(struct lw_topology *topology, enum lw_device_kind kind, const char *name)
{
	struct lw_device *device;

	if (topology->device_count == LW_DEVICES_MAX)
		return NULL;
	if (topology->device_count == topology->devices_room) {
		size_t room = topology->devices_room != 0 ? topology->devices_room * 2 : 32;
		struct lw_device *devices = realloc(topology->devices, room * sizeof(*devices));

		if (devices == NULL)
			return NULL;
		topology->devices = devices;
		topology->devices_room = room;
	}
	device = &topology->devices[topology->device_count++];
	memset(device, 0, sizeof(*device));
	device->kind = kind;
	device->node = -1;
	snprintf(device->name, sizeof(device->name), "%s", name);
	return device;
}

int lw_topology_add_node(struct lw_topology *topology, uint32_t number, const char *cpus)
{
	struct lw_node *nodes;
	size_t at;

	if (topology->node_count == LW_NODES_MAX)
		return -ENOSPC;
	nodes = realloc(topology->nodes, (topology->node_count + 1) * sizeof(*nodes));
	if (nodes == NULL)
		return -ENOMEM;
	topology->nodes = nodes;
	for (at = topology->node_count; at > 0 && nodes[at - 1].number > number; at--)
		;
	memmove(&nodes[at + 1], &nodes[at], (topology->node_count - at) * sizeof(*nodes));
	memset(&nodes[at], 0, sizeof(nodes[at]));
	nodes[at].number = number;
	snprintf(nodes[at].cpus, sizeof(nodes[at].cpus), "%s", cpus);
	topology->node_count++;
	return 0;
}

/* "0000:3b:00.0", also with a longer domain. */
static bool is_function(const char *text, size_t length)
{
	const char *form = "xxxx:xx:xx.x";
	size_t extra = length >= 12 ? length - 12 : 0;

	if (length < 12 || extra > 4)
		return false;
	for (size_t i = 0; i < length; i++) {
		char want = i < extra ? 'x' : form[i - extra];

		if (want == 'x' ? !isxdigit((unsigned char)text[i]) : text[i] != want)
			return false;
	}
	return true;
}

void lw_device_place(struct lw_device *device, const char *path)
{
	const char *begin = NULL, *end = NULL, *at = path;
	size_t length;

	for (;; at += length + 1) {
		length = strcspn(at, "/");
		if (begin == NULL && length > 7 && strncmp(at, "pci", 3) == 0 && isxdigit((unsigned char)at[3]))
			begin = at;
		if (begin != NULL && is_function(at, length)) {
			end = at + length;
			snprintf(device->pci, sizeof(device->pci), "%.*s", (int)length, at);
		}
		if (at[length] == '\0')
			break;
	}
	if (end != NULL)
		snprintf(device->path, sizeof(device->path), "%.*s", (int)(end - begin), begin);
}

/* The length of a PCI address without its function, as two ports of one card have it. */
static size_t card_length(const char *pci)
{
	return strcspn(pci, ".");
}

/* Components of path; *common: how many of them both have in front. */
static uint32_t depth_of(const char *path, const char *other, uint32_t *common)
{
	uint32_t depth = 0;
	bool same = true;

	*common = 0;
	while (*path != '\0') {
		size_t length = strcspn(path, "/"), other_length = strcspn(other, "/");

		same = same && length == other_length && memcmp(path, other, length) == 0;
		*common += same;
		depth++;
		path += length + (path[length] == '/');
		if (same)
			other += other_length + (other[other_length] == '/');
	}
	return depth;
}

enum lw_distance lw_topology_distance(const struct lw_device *a, const struct lw_device *b, uint32_t *hops)
{
	uint32_t common, deep_a = depth_of(a->path, b->path, &common), deep_b = depth_of(b->path, a->path, &common);

	if (hops != NULL)
		*hops = deep_a == 0 || deep_b == 0 ? UINT32_MAX : deep_a + deep_b - 2 * common;
	if (common >= 1 && card_length(a->pci) == card_length(b->pci) && deep_a == deep_b &&
	    strncmp(a->pci, b->pci, card_length(a->pci)) == 0)
		return LW_DISTANCE_CARD;
	if (common >= 2)
		return LW_DISTANCE_SWITCH;
	if (common == 1)
		return LW_DISTANCE_ROOT;
	return a->node >= 0 && a->node == b->node ? LW_DISTANCE_NODE : LW_DISTANCE_OTHER;
}

/* Discovery -----------------------------------------------------------------------------------------------------------
 */

static int by_kind_and_name(const void *left, const void *right)
{
	const struct lw_device *a = left, *b = right;
	int order;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	order = strverscmp(a->name, b->name);
	return order != 0 ? order : strcmp(a->pci, b->pci);
}

void lw_topology_name_gpus(struct lw_topology *topology)
{
	unsigned int cuda = 0, hip = 0;

	if (topology->device_count != 0)
		qsort(topology->devices, topology->device_count, sizeof(*topology->devices), by_kind_and_name);
	for (size_t i = 0; i < topology->device_count; i++) {
		struct lw_device *device = &topology->devices[i];

		if (device->kind != LW_DEVICE_GPU)
			continue;
		if (strcmp(device->name, "cuda") == 0)
			snprintf(device->name, sizeof(device->name), "cuda:%u", cuda++);
		else
			snprintf(device->name, sizeof(device->name), "hip:%u", hip++);
	}
}

static void add_addresses(struct lw_topology *topology)
{
	struct lw_address *list = calloc(HOST_ADDRESSES, sizeof(*list));
	const struct lw_address_opts opts = {.wanted = NULL};
	int count = list != NULL ? lw_address_list(&opts, list, HOST_ADDRESSES) : 0;

	for (int i = 0; i < count && i < HOST_ADDRESSES; i++) {
		for (size_t k = 0; k < topology->device_count; k++) {
			struct lw_device *device = &topology->devices[k];

			if (device->kind != LW_DEVICE_NET || device->address_count == LW_DEVICE_ADDRESSES ||
			    strcmp(device->name, list[i].interface) != 0)
				continue;
			memcpy(device->address[device->address_count++], list[i].text, sizeof(list[i].text));
		}
	}
	free(list);
}

/* Whether name is in a list such as "mlx5_0, mlx5_1". */
static bool is_listed(const char *list, const char *name)
{
	for (;;) {
		size_t length;

		list += strspn(list, ", \t");
		if (*list == '\0')
			return false;
		length = strcspn(list, ", \t");
		if (length == strlen(name) && memcmp(list, name, length) == 0)
			return true;
		list += length;
	}
}

static void filter(struct lw_topology *topology, const char *hcas)
{
	for (size_t i = 0; hcas != NULL && i < topology->device_count; i++) {
		struct lw_device *device = &topology->devices[i];

		if (device->kind != LW_DEVICE_HCA || is_listed(hcas, device->name))
			continue;
		device->usable = false;
		snprintf(device->why, sizeof(device->why), "not among those that may be used");
	}
}

/* Nodes that are still unknown: with one node there is no choice; else hwloc may know. */
static void find_nodes(struct lw_topology *topology, const char *hwloc)
{
	size_t unknown = 0;

	for (size_t i = 0; i < topology->device_count; i++) {
		struct lw_device *device = &topology->devices[i];

		if (device->node >= 0 || device->pci[0] == '\0')
			continue;
		if (topology->node_count == 1)
			device->node = (int32_t)topology->nodes[0].number;
		else
			unknown++;
	}
	snprintf(topology->note, sizeof(topology->note), "from sysfs");
	if (unknown == 0)
		return;
	if (lw_topology_hwloc(topology, hwloc, NULL) == 0)
		snprintf(topology->note, sizeof(topology->note), "from sysfs; hwloc was asked for %zu NUMA nodes",
			 unknown);
	else
		snprintf(topology->note, sizeof(topology->note),
			 "from sysfs, which doesn't tell the NUMA node of %zu devices; hwloc might, but %s can't be "
			 "used",
			 unknown, hwloc);
}

int lw_topology_discover(const struct lw_topology_opts *given, struct lw_topology **out)
{
	struct lw_topology_opts opts = {.sysfs = NULL};
	struct lw_topology *topology = calloc(1, sizeof(*topology));
	int ret;

	if (topology == NULL)
		return -ENOMEM;
	if (given != NULL)
		opts = *given;
	if (opts.hwloc == NULL)
		opts.hwloc = "libhwloc.so.15";
	if (opts.xml != NULL)
		ret = lw_topology_hwloc(topology, opts.hwloc, opts.xml);
	else if (opts.sysfs != NULL)
		ret = lw_topology_sysfs(topology, opts.sysfs, opts.dev);
	else
		ret = lw_topology_sysfs(topology, "/sys", opts.dev != NULL ? opts.dev : "/dev");
	if (ret == 0 && topology->node_count == 0)
		ret = lw_topology_add_node(topology, 0, "");
	if (ret != 0) {
		lw_topology_free(topology);
		return ret;
	}
	lw_topology_name_gpus(topology);
	if (opts.xml == NULL)
		find_nodes(topology, opts.hwloc);
	else
		snprintf(topology->note, sizeof(topology->note), "from hwloc's XML");
	if (opts.xml == NULL && opts.sysfs == NULL)
		add_addresses(topology);
	filter(topology, opts.hcas);
	*out = topology;
	return 0;
}

void lw_topology_free(struct lw_topology *topology)
{
	if (topology == NULL)
		return;
	free(topology->nodes);
	free(topology->devices);
	free(topology);
}

/* Matrix --------------------------------------------------------------------------------------------------------------
 */

/* Whether the HCA is a virtual function of another HCA that is usable. */
static bool is_shadow(const struct lw_topology *topology, const struct lw_device *hca)
{
	for (size_t i = 0; hca->of[0] != '\0' && i < topology->device_count; i++) {
		const struct lw_device *other = &topology->devices[i];

		if (other->kind == LW_DEVICE_HCA && other->usable && strcmp(other->pci, hca->of) == 0)
			return true;
	}
	return false;
}

static const struct lw_device *next_hca(const struct lw_topology *topology, size_t *at)
{
	while (*at < topology->device_count) {
		const struct lw_device *device = &topology->devices[(*at)++];

		if (device->kind == LW_DEVICE_HCA && device->usable)
			return device;
	}
	return NULL;
}

static int fill_row(const struct lw_topology *topology, struct lw_matrix *matrix, const char *location, int32_t node,
		    const struct lw_device *gpu)
{
	uint32_t least = UINT32_MAX, hops;
	const struct lw_device *hca;
	bool near = false;
	int ret;

	for (size_t at = 0; gpu != NULL && (hca = next_hca(topology, &at)) != NULL;)
		near |= node >= 0 && hca->node == node && !is_shadow(topology, hca);
	for (size_t at = 0; gpu != NULL && (hca = next_hca(topology, &at)) != NULL;) {
		lw_topology_distance(gpu, hca, &hops);
		if ((!near || hca->node == node) && !is_shadow(topology, hca) && hops < least)
			least = hops;
	}
	ret = lw_matrix_add(matrix, location, NULL, false);
	for (size_t at = 0; ret == 0 && (hca = next_hca(topology, &at)) != NULL;) {
		bool preferred = hca->node == node && node >= 0;

		if (gpu != NULL) {
			lw_topology_distance(gpu, hca, &hops);
			preferred = (preferred || !near) && hops == least;
		}
		ret = lw_matrix_add(matrix, location, hca->name, preferred && !is_shadow(topology, hca));
	}
	return ret;
}

int lw_topology_matrix(const struct lw_topology *topology, struct lw_matrix *matrix)
{
	char location[32];
	int ret = 0;

	for (size_t i = 0; i < topology->node_count && ret == 0; i++) {
		snprintf(location, sizeof(location), "cpu:%u", topology->nodes[i].number);
		ret = fill_row(topology, matrix, location, (int32_t)topology->nodes[i].number, NULL);
	}
	for (size_t i = 0; i < topology->device_count && ret == 0; i++) {
		const struct lw_device *device = &topology->devices[i];

		if (device->kind == LW_DEVICE_GPU)
			ret = fill_row(topology, matrix, device->name, device->node, device);
	}
	return ret;
}

/* JSON ----------------------------------------------------------------------------------------------------------------
 */

static bool write_device(cJSON *list, const struct lw_device *device)
{
	cJSON *object = cJSON_CreateObject(), *addresses;
	bool ok = true;

	if (!cJSON_AddItemToArray(list, object)) {
		cJSON_Delete(object);
		return false;
	}
	addresses = cJSON_AddArrayToObject(object, "addresses");
	for (uint32_t i = 0; i < device->address_count && ok; i++) {
		cJSON *text = cJSON_CreateString(device->address[i]);

		ok = cJSON_AddItemToArray(addresses, text) != 0;
		if (!ok)
			cJSON_Delete(text);
	}
	return ok && addresses != NULL && cJSON_AddBoolToObject(object, "bridge", device->bridge) != NULL &&
	       cJSON_AddStringToObject(object, "kind", kind_names[device->kind]) != NULL &&
	       cJSON_AddStringToObject(object, "name", device->name) != NULL &&
	       (device->node >= 0 ? cJSON_AddNumberToObject(object, "node", device->node)
				  : cJSON_AddNullToObject(object, "node")) != NULL &&
	       cJSON_AddStringToObject(object, "pci", device->pci) != NULL &&
	       cJSON_AddNumberToObject(object, "speed_mbps", (double)device->speed_mbps) != NULL &&
	       cJSON_AddBoolToObject(object, "usable", device->usable) != NULL &&
	       cJSON_AddStringToObject(object, "virtual_function_of", device->of) != NULL &&
	       cJSON_AddStringToObject(object, "why", device->why) != NULL;
}

static bool write_distance(cJSON *list, const struct lw_device *gpu, const struct lw_device *to)
{
	cJSON *object = cJSON_CreateObject();
	enum lw_distance distance;
	uint32_t hops;

	if (!cJSON_AddItemToArray(list, object)) {
		cJSON_Delete(object);
		return false;
	}
	distance = lw_topology_distance(gpu, to, &hops);
	return cJSON_AddStringToObject(object, "distance", lw_distance_name(distance)) != NULL &&
	       cJSON_AddStringToObject(object, "from", gpu->name) != NULL &&
	       (hops != UINT32_MAX ? cJSON_AddNumberToObject(object, "hops", hops)
				   : cJSON_AddNullToObject(object, "hops")) != NULL &&
	       cJSON_AddStringToObject(object, "to", to->name) != NULL;
}

static bool write_matrix(cJSON *json, const struct lw_matrix *matrix)
{
	cJSON *rows = lw_matrix_write(matrix);

	if (cJSON_AddItemToObject(json, "matrix", rows))
		return true;
	cJSON_Delete(rows);
	return false;
}

static bool write_all(cJSON *json, const struct lw_topology *topology, const struct lw_matrix *matrix,
		      const char *source)
{
	cJSON *devices = cJSON_AddArrayToObject(json, "devices"), *distances, *nodes;
	bool ok = devices != NULL;

	for (size_t i = 0; i < topology->device_count && ok; i++)
		ok = write_device(devices, &topology->devices[i]);
	distances = cJSON_AddArrayToObject(json, "distances");
	for (size_t i = 0; i < topology->device_count && ok; i++) {
		const struct lw_device *gpu = &topology->devices[i];

		for (size_t k = 0; gpu->kind == LW_DEVICE_GPU && k < topology->device_count && ok; k++) {
			const struct lw_device *to = &topology->devices[k];

			if (to->kind == LW_DEVICE_HCA || to->kind == LW_DEVICE_NVME)
				ok = write_distance(distances, gpu, to);
		}
	}
	ok = ok && write_matrix(json, matrix);
	nodes = cJSON_AddArrayToObject(json, "nodes");
	for (size_t i = 0; i < topology->node_count && ok; i++) {
		cJSON *object = cJSON_CreateObject();

		ok = cJSON_AddItemToArray(nodes, object) != 0;
		if (!ok)
			cJSON_Delete(object);
		ok = ok && cJSON_AddStringToObject(object, "cpus", topology->nodes[i].cpus) != NULL &&
		     cJSON_AddNumberToObject(object, "number", topology->nodes[i].number) != NULL;
	}
	return ok && cJSON_AddStringToObject(json, "note", topology->note) != NULL &&
	       cJSON_AddStringToObject(json, "source", source) != NULL;
}

struct cJSON *lw_topology_write(const struct lw_topology *topology, const struct lw_matrix *matrix, const char *source)
{
	cJSON *json = cJSON_CreateObject();

	if (json != NULL && write_all(json, topology, matrix, source))
		return json;
	cJSON_Delete(json);
	return NULL;
}
