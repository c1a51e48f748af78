/* SPDX-License-Identifier: Apache-2.0 */
/* Transports by Mooncake's names, and the topology. A transport is a driver of the engine's that is on; the engine has
 * all of them from its start, and to install one says that the host is ready. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "lib/compat/compat.h"

/* What init installs by itself: the first that is on. */
static const char *const by_itself[] = {"rdma", "tcp", "shm"};

/* Whether the engine has the driver and it is on; if not, why. 0; -ENOTSUP; -ENOMEM; the engine's errors. */
static int check_driver(struct te *te, const char *name, char *why, size_t why_size)
{
	const cJSON *driver;
	int error = -ENOTSUP;
	cJSON *info;
	char *text;

	error = lw_engine_info_json(te->engine, &text);
	if (error != 0)
		return error;
	info = cJSON_Parse(text);
	free(text);
	if (info == NULL)
		return -ENOMEM;
	error = -ENOTSUP;
	snprintf(why, why_size, "this build has no transport \"%.40s\"; lwinfo lists what there is", name);
	cJSON_ArrayForEach(driver, cJSON_GetObjectItem(info, "drivers"))
	{
		const char *driver_name = cJSON_GetStringValue(cJSON_GetObjectItem(driver, "name"));
		const char *note = cJSON_GetStringValue(cJSON_GetObjectItem(driver, "note"));

		if (driver_name == NULL || strcmp(driver_name, name) != 0)
			continue;
		if (cJSON_IsTrue(cJSON_GetObjectItem(driver, "on")))
			error = 0;
		else
			snprintf(why, why_size, "the transport %s is off: %s", name, note != NULL ? note : "");
		break;
	}
	cJSON_Delete(info);
	return error;
}

static struct te_transport *find(struct te *te, const char *proto)
{
	uint32_t count = atomic_load_explicit(&te->transport_count, memory_order_relaxed);

	for (uint32_t i = 0; i < count; i++)
		if (strcmp(te->transports[i].name, proto) == 0)
			return &te->transports[i];
	return NULL;
}

/* Enters a transport that is on. Under the lock. */
static struct te_transport *add(struct te *te, const char *proto)
{
	uint32_t count = atomic_load_explicit(&te->transport_count, memory_order_relaxed);
	struct te_transport *transport = &te->transports[count];

	if (count == TE_TRANSPORTS || strlen(proto) >= sizeof(transport->name))
		return NULL;
	memcpy(transport->name, proto, strlen(proto) + 1);
	atomic_store_explicit(&te->transport_count, count + 1, memory_order_release);
	return transport;
}

int te_install_some(struct te *te)
{
	char why[256];

	for (size_t i = 0; i < sizeof(by_itself) / sizeof(by_itself[0]); i++)
		if (check_driver(te, by_itself[i], why, sizeof(why)) == 0)
			return add(te, by_itself[i]) != NULL ? 0 : -ENOTSUP;
	return -ENOTSUP;
}

/* Why a transport was not installed: to the log, since the caller gets nothing but NULL. */
static transport_t refuse(const char *why)
{
	lw_log_line(1, why);
	te_fail(-1, "the transport was not installed; the log has the reason");
	return NULL;
}

transport_t installTransport(transfer_engine_t engine, const char *proto, void **args)
{
	struct te *te = te_of(engine);
	struct te_transport *transport;
	char why[256];
	int error;

	if (te == NULL)
		return NULL;
	if (proto == NULL) {
		te_fail(-1, "the transport has no name");
		return NULL;
	}
	pthread_mutex_lock(&te->lock);
	transport = find(te, proto);
	pthread_mutex_unlock(&te->lock);
	if (transport != NULL)
		return transport;
	error = check_driver(te, proto, why, sizeof(why));
	if (error == -ENOTSUP)
		return refuse(why);
	if (error == 0 && args != NULL && args[0] != NULL) {
		error = lw_topology_set(te->engine, args[0]);
		if (error == -EINVAL)
			return refuse(lw_last_error());
	}
	if (error != 0) {
		te_error(error);
		return NULL;
	}
	pthread_mutex_lock(&te->lock);
	transport = find(te, proto);
	if (transport == NULL)
		transport = add(te, proto);
	pthread_mutex_unlock(&te->lock);
	return transport;
}

int uninstallTransport(transfer_engine_t engine, const char *proto)
{
	(void)engine;
	(void)proto;
	return 0;
}

int warmupEfaSegment(transfer_engine_t engine, const char *segment_name)
{
	(void)engine;
	(void)segment_name;
	return 0;
}

int discoverTopology(transfer_engine_t engine)
{
	struct te *te = te_of(engine);

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	return te_error(lw_topology_set(te->engine, NULL));
}

/* The report of the topology. NULL: said in te_error's text. */
static cJSON *topology_of(struct te *te)
{
	cJSON *json;
	char *text;
	int error = lw_topology_json(te->engine, &text);

	if (error != 0) {
		te_error(error);
		return NULL;
	}
	json = cJSON_Parse(text);
	free(text);
	if (json == NULL)
		te_fail(-1, "no memory for the topology");
	return json;
}

char *getLocalTopologyString(transfer_engine_t engine)
{
	struct te *te = te_of(engine);
	cJSON *topology = te != NULL ? topology_of(te) : NULL;
	char *printed, *text;

	if (topology == NULL)
		return NULL;
	printed = cJSON_PrintUnformatted(cJSON_GetObjectItem(topology, "matrix"));
	text = printed != NULL ? strdup(printed) : NULL; /* whatever allocator the host gave cJSON */
	cJSON_free(printed);
	cJSON_Delete(topology);
	if (text == NULL)
		te_fail(-1, "no memory for the topology");
	return text;
}

static bool is_nic(const cJSON *device)
{
	const char *kind = cJSON_GetStringValue(cJSON_GetObjectItem(device, "kind"));

	return kind != NULL && (strcmp(kind, "hca") == 0 || strcmp(kind, "net") == 0);
}

static double number_of(const cJSON *device, const char *name, double otherwise)
{
	const cJSON *item = cJSON_GetObjectItem(device, name);

	return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

static const char *text_of(const cJSON *device, const char *name)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(device, name));

	return text != NULL ? text : "";
}

/* As one JSON object, which is printed. NULL: no memory. */
static char *links_json(cJSON *topology)
{
	cJSON *json = cJSON_CreateObject(), *nics = cJSON_AddArrayToObject(json, "local_nics");
	const cJSON *device;
	char *text;

	cJSON_ArrayForEach(device, cJSON_GetObjectItem(topology, "devices"))
	{
		cJSON *nic;

		if (!is_nic(device))
			continue;
		nic = cJSON_CreateObject();
		cJSON_AddStringToObject(nic, "device", text_of(device, "name"));
		cJSON_AddNumberToObject(nic, "numa", number_of(device, "node", -1));
		cJSON_AddStringToObject(nic, "gid", "");
		cJSON_AddNumberToObject(nic, "gid_index", -1);
		cJSON_AddNumberToObject(nic, "port", 1);
		cJSON_AddNumberToObject(nic, "speed_gbps", number_of(device, "speed_mbps", 0) / 1000);
		cJSON_AddStringToObject(nic, "source", "topology");
		cJSON_AddItemToArray(nics, nic);
	}
	cJSON_AddItemReferenceToObject(json, "topology", cJSON_GetObjectItem(topology, "matrix"));
	text = cJSON_PrintUnformatted(json);
	cJSON_Delete(json);
	return text;
}

/* A text that grows by printing into the caller's buffer; length is what it would be without an end. */
struct page {
	char *text;
	size_t size, length;
};

__attribute__((format(printf, 2, 3))) static void print(struct page *page, const char *format, ...)
{
	size_t at = page->length < page->size ? page->length : page->size - 1;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(page->text + at, page->size - at, format, args);
	va_end(args);
	page->length += n > 0 ? (size_t)n : 0;
}

static void print_names(struct page *page, const char *title, const cJSON *names)
{
	const cJSON *name;
	const char *comma = "";

	print(page, "%s: [", title);
	cJSON_ArrayForEach(name, names)
	{
		print(page, "%s%s", comma, cJSON_IsString(name) ? name->valuestring : "");
		comma = ", ";
	}
	print(page, "]");
}

static void links_text(struct page *page, const cJSON *topology)
{
	const cJSON *device, *row;

	print(page, "=== Local NICs ===\n");
	cJSON_ArrayForEach(device, cJSON_GetObjectItem(topology, "devices")) if (is_nic(device))
		print(page, "%s  numa: %d  speed: %g Gbps\n", text_of(device, "name"),
		      (int)number_of(device, "node", -1), number_of(device, "speed_mbps", 0) / 1000);
	print(page, "=== Topology (NIC Selection) ===\n");
	cJSON_ArrayForEach(row, cJSON_GetObjectItem(topology, "matrix"))
	{
		print(page, "%s -> ", row->string);
		print_names(page, "preferred", cJSON_GetArrayItem(row, 0));
		print_names(page, "  available", cJSON_GetArrayItem(row, 1));
		print(page, "\n");
	}
}

int showLinks(transfer_engine_t engine, char *buf, size_t len, int json)
{
	struct te *te = te_of(engine);
	struct page page = {.text = buf, .size = len};
	cJSON *topology;
	char *text;

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	if (buf == NULL || len == 0)
		return te_fail(TE_ERR_INVALID_ARGUMENT, "there is no buffer for the report");
	topology = topology_of(te);
	if (topology == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	if (json != 0) {
		text = links_json(topology);
		print(&page, "%s", text != NULL ? text : "");
		cJSON_free(text);
	} else {
		links_text(&page, topology);
	}
	cJSON_Delete(topology);
	return te_fits(page.length < INT32_MAX ? (int)page.length : -1, len);
}

int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count)
{
	if (te_of(engine) == NULL)
		return -1;
	if (stats == NULL || count == NULL)
		return te_fail(-1, "stats and count must not be NULL");
	*count = 0;
	return TE_STATUS_OK;
}
