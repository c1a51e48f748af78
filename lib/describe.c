/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine knows of a segment, as JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "meta/json.h"

/* What is copied under the lock. */
struct known {
	char name[LW_NAME_MAX];
	const char *driver; /* NULL: none reaches it */
	uint64_t incarnation;
	struct lw_addrs data, handshake;
	struct lw_range *ranges;
	size_t count;
};

static int copy_known(struct lw_engine *engine, lw_segment_t segment, struct known *out)
{
	const struct lw_segment_slot *slot;
	const struct lw_rangemap *map;
	const struct lw_view *view;
	int error = 0;

	pthread_mutex_lock(&engine->lock);
	slot = lw_segment_of(engine, segment);
	if (slot == NULL) {
		error = lw_fail(-EBADF, "the segment handle 0x%llx is stale, made up or another engine's",
				(unsigned long long)segment);
		goto out;
	}
	view = atomic_load(&slot->view);
	map = segment == LW_SEGMENT_LOCAL ? atomic_load(&engine->memory) : view != NULL ? view->ranges : NULL;
	snprintf(out->name, sizeof(out->name), "%s", slot->name);
	out->handshake = slot->rpc;
	if (view != NULL) {
		out->driver = lw_drivers[view->routes[0].driver]->name;
		out->incarnation = view->incarnation;
		out->data = view->data;
	}
	if (segment == LW_SEGMENT_LOCAL)
		out->incarnation = engine->incarnation;
	out->count = lw_rangemap_count(map);
	out->ranges = malloc((out->count + 1) * sizeof(*out->ranges));
	if (out->ranges == NULL)
		error = lw_fail(-ENOMEM, "no memory for the description of %s", out->name);
	else
		lw_rangemap_list(map, out->ranges, out->count);
out:
	pthread_mutex_unlock(&engine->lock);
	return error;
}

/* Not as a double: it would lose bits, and be written with an exponent. */
static bool add_number(cJSON *object, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	return cJSON_AddRawToObject(object, name, text) != NULL;
}

static bool add_buffers(cJSON *json, const struct known *known)
{
	static const char *const words[] = {"", "r", "w", "rw"};
	cJSON *list = cJSON_AddArrayToObject(json, "buffers");

	for (size_t i = 0; i < known->count; i++) {
		cJSON *buffer;

		if ((known->ranges[i].access & LW_RANGE_OWN) != 0)
			continue;
		buffer = cJSON_CreateObject();
		if (!cJSON_AddItemToArray(list, buffer)) {
			cJSON_Delete(buffer);
			return false;
		}
		if (cJSON_AddStringToObject(buffer, "access", words[known->ranges[i].access & 3]) == NULL ||
		    !add_number(buffer, "addr", known->ranges[i].addr) ||
		    !add_number(buffer, "length", known->ranges[i].end - known->ranges[i].addr))
			return false;
	}
	return list != NULL;
}

static bool add_addresses(cJSON *json, const char *name, const struct lw_addrs *addrs)
{
	cJSON *list = cJSON_AddArrayToObject(json, name);
	char text[80];

	for (uint32_t i = 0; i < addrs->count; i++) {
		cJSON *item;

		lw_sockaddr_format(&addrs->addr[i], text, sizeof(text));
		item = cJSON_CreateString(text);
		if (!cJSON_AddItemToArray(list, item)) {
			cJSON_Delete(item);
			return false;
		}
	}
	return list != NULL;
}

int lw_segment_json(struct lw_engine *engine, lw_segment_t segment, char **out)
{
	struct known known = {.driver = NULL};
	char incarnation[20] = "";
	cJSON *json;
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	error = copy_known(engine, segment, &known);
	lw_engine_leave(engine);
	if (error != 0)
		goto out;
	if (known.incarnation != 0)
		snprintf(incarnation, sizeof(incarnation), "%016" PRIx64, known.incarnation);
	json = cJSON_CreateObject();
	if (!add_buffers(json, &known) || !add_addresses(json, "data", &known.data) ||
	    cJSON_AddStringToObject(json, "driver", known.driver != NULL ? known.driver : "") == NULL ||
	    !add_addresses(json, "handshake", &known.handshake) ||
	    cJSON_AddStringToObject(json, "incarnation", incarnation) == NULL ||
	    cJSON_AddStringToObject(json, "name", known.name) == NULL) {
		cJSON_Delete(json);
		json = NULL;
	}
	if (lw_json_text(json, out) != 0)
		error = lw_fail(-ENOMEM, "no memory for the description of %s", known.name);
out:
	free(known.ranges);
	return error;
}
