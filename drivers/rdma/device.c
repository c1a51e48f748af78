/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: which there are, what they can do, and the address that each uses. */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/rdma/gid.h"
#include "drivers/rdma/rdma.h"
#include "lib/engine.h"
#include "lib/log.h"

#define GIDS_MAX 1024
#define GID_AUTO 256 /* the setting rdma_gid_index: choose */
#define READS_MAX 16 /* READs under way of one queue pair, the reference's number */

/* Whether name is among those of a list with commas, blanks around them; an empty list has all. */
static bool is_wanted(const char *list, const char *name)
{
	bool any = false;

	while (*list != '\0') {
		size_t length, blank = strspn(list, " ,");

		list += blank;
		length = strcspn(list, " ,");
		any |= length != 0;
		if (length == strlen(name) && memcmp(list, name, length) == 0)
			return true;
		list += length;
	}
	return !any;
}

static enum ibv_mtu mtu_of(uint64_t bytes)
{
	enum ibv_mtu mtu = IBV_MTU_256;

	while (mtu < IBV_MTU_4096 && (UINT64_C(256) << (mtu - IBV_MTU_256 + 1)) <= bytes)
		mtu++;
	return mtu;
}

static enum rdma_gid_type type_of(uint32_t type)
{
	return type == IBV_GID_TYPE_ROCE_V2   ? RDMA_GID_ROCE_V2
	       : type == IBV_GID_TYPE_ROCE_V1 ? RDMA_GID_ROCE_V1
					      : RDMA_GID_IB;
}

/* The rows of the port's table. Their number, or a negative errno. */
static int read_gids(const struct rdma_device *device, struct rdma_gid_row *rows, size_t max)
{
	struct ibv_gid_entry *entries = calloc(GIDS_MAX, sizeof(*entries));
	ssize_t found;
	size_t count = 0;

	if (entries == NULL)
		return -ENOMEM;
	found = device->rdma->verbs->query_gid_table(device->context, entries, GIDS_MAX, 0, sizeof(*entries));
	for (ssize_t i = 0; i < found && count < max; i++) {
		struct rdma_gid_row *row = &rows[count];

		if (entries[i].port_num != device->port)
			continue;
		*row = (struct rdma_gid_row){.index = entries[i].gid_index, .type = type_of(entries[i].gid_type)};
		memcpy(row->raw, entries[i].gid.raw, sizeof(row->raw));
		if (entries[i].ndev_ifindex == 0 || if_indextoname(entries[i].ndev_ifindex, row->netdev) == NULL)
			row->netdev[0] = '\0';
		count++;
	}
	free(entries);
	return found < 0 ? (int)found : (int)count;
}

static int choose_gid(struct rdma_device *device, char *why, size_t why_size)
{
	uint64_t wanted = device->rdma->engine->config.rdma_gid_index;
	struct rdma_gid_row *rows = calloc(GIDS_MAX, sizeof(*rows));
	int count, best = -1;

	if (rows == NULL)
		return -ENOMEM;
	count = read_gids(device, rows, GIDS_MAX);
	if (wanted == GID_AUTO) {
		best = count > 0 ? rdma_gid_choose(rows, (size_t)count) : -1;
	} else {
		for (int i = 0; i < count; i++)
			if (rows[i].index == wanted && rdma_gid_class(&rows[i]) != RDMA_GID_NULL)
				best = i;
	}
	if (best >= 0) {
		memcpy(device->gid, rows[best].raw, sizeof(device->gid));
		device->gid_index = (uint8_t)rows[best].index;
	} else if (wanted == GID_AUTO) {
		snprintf(why, why_size, "port %u has no GID; give its interface an address", device->port);
	} else {
		snprintf(why, why_size, "port %u has no GID %llu (rdma_gid_index)", device->port,
			 (unsigned long long)wanted);
	}
	free(rows);
	return best >= 0 ? 0 : -EADDRNOTAVAIL;
}

static uint32_t least(uint64_t a, uint64_t b)
{
	return (uint32_t)(a < b ? a : b);
}

int rdma_device_query(struct rdma_device *device, char *why, size_t why_size)
{
	const struct lw_config *config = &device->rdma->engine->config;
	const struct rdma_verbs *verbs = device->rdma->verbs;
	struct ibv_device_attr limits;
	struct ibv_port_attr port;
	int error = verbs->query_device(device->context, &limits);

	if (error != 0) {
		snprintf(why, why_size, "it can't be queried: %s", strerrordesc_np(error));
		return -error;
	}
	error = rdma_verbs_query_port(verbs, device->context, device->port, &port);
	if (error != 0) {
		snprintf(why, why_size, "it has no port %u", device->port);
		return error;
	}
	device->mtu = mtu_of(config->rdma_mtu);
	if (port.active_mtu != 0 && port.active_mtu < device->mtu)
		device->mtu = port.active_mtu;
	device->lid = port.lid;
	device->max_message_bytes = port.max_msg_sz != 0 ? port.max_msg_sz : UINT32_C(1) << 30;
	if (device->max_message_bytes > UINT32_C(1) << 30)
		device->max_message_bytes = UINT32_C(1) << 30;
	device->max_mr_bytes = limits.max_mr_size != 0 && limits.max_mr_size < config->rdma_max_mr_bytes
				       ? limits.max_mr_size
				       : config->rdma_max_mr_bytes;
	device->max_wr = least(config->rdma_wr, limits.max_qp_wr > 0 ? (uint64_t)limits.max_qp_wr : 16);
	if (limits.max_cqe > 0)
		device->max_wr = least(device->max_wr, (uint64_t)limits.max_cqe);
	device->max_sge = least(4, limits.max_sge > 0 ? (uint64_t)limits.max_sge : 1);
	device->max_reads_out =
		least(READS_MAX, limits.max_qp_init_rd_atom > 0 ? (uint64_t)limits.max_qp_init_rd_atom : 1);
	device->max_reads_in = least(READS_MAX, limits.max_qp_rd_atom > 0 ? (uint64_t)limits.max_qp_rd_atom : 1);
	if (port.state != IBV_PORT_ACTIVE) {
		snprintf(why, why_size, "port %u is not active", device->port);
		return -ENETDOWN;
	}
	return choose_gid(device, why, why_size);
}

static void close_device(struct rdma_device *device)
{
	const struct rdma_verbs *verbs = device->rdma->verbs;

	if (device->pd != NULL)
		verbs->dealloc_pd(device->pd);
	if (device->context != NULL)
		verbs->close_device(device->context);
	device->pd = NULL;
	device->context = NULL;
}

static int open_device(struct rdma_engine *rdma, struct ibv_device *found, char *why, size_t why_size)
{
	struct rdma_device *device = &rdma->device[rdma->device_count];
	int error;

	*device = (struct rdma_device){
		.rdma = rdma, .index = rdma->device_count, .port = (uint8_t)rdma->engine->config.rdma_port};
	snprintf(device->name, sizeof(device->name), "%s", rdma->verbs->get_device_name(found));
	device->context = rdma->verbs->open_device(found);
	if (device->context == NULL) {
		error = errno != 0 ? -errno : -EIO;
		snprintf(why, why_size, "it can't be opened: %s", strerrordesc_np(-error));
		return error;
	}
	error = rdma_device_query(device, why, why_size);
	if (error == 0) {
		device->pd = rdma->verbs->alloc_pd(device->context);
		if (device->pd == NULL) {
			error = errno != 0 ? -errno : -ENOMEM;
			snprintf(why, why_size, "no protection domain: %s", strerrordesc_np(-error));
		}
	}
	if (error != 0) {
		close_device(device);
		return error;
	}
	atomic_init(&device->up, true);
	rdma->device_count++;
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	const struct rdma_device *left = a, *right = b;

	return strcmp(left->name, right->name);
}

int rdma_devices_open(struct rdma_engine *rdma, char *why, size_t why_size)
{
	const char *wanted = rdma->engine->config.rdma_devices;
	struct ibv_device **list;
	bool told = false;
	char one[120];
	int count = 0;

	snprintf(why, why_size, "there is no RDMA device");
	list = rdma->verbs->get_device_list(&count);
	if (list == NULL) {
		snprintf(why, why_size, "there is no RDMA device: %s", strerrordesc_np(errno));
		return -ENODEV;
	}
	for (int i = 0; i < count && rdma->device_count < RDMA_DEVICES; i++) {
		const char *name = rdma->verbs->get_device_name(list[i]);

		if (!is_wanted(wanted, name)) {
			if (!told)
				snprintf(why, why_size, "no RDMA device is among rdma_devices");
			continue;
		}
		if (open_device(rdma, list[i], one, sizeof(one)) == 0)
			continue;
		lw_log(LW_LOG_INFO, "driver rdma: %s is not used: %s", name, one);
		snprintf(why, why_size, "%s: %s", name, one);
		told = true;
	}
	rdma->verbs->free_device_list(list);
	if (rdma->device_count == 0)
		return -ENODEV;
	/* The same order on every host of a kind, whatever order the kernel found them in. */
	qsort(rdma->device, rdma->device_count, sizeof(rdma->device[0]), compare_names);
	for (uint32_t i = 0; i < rdma->device_count; i++)
		rdma->device[i].index = i;
	return 0;
}

void rdma_devices_close(struct rdma_engine *rdma)
{
	while (rdma->device_count > 0)
		close_device(&rdma->device[--rdma->device_count]);
}
