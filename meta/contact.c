/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/contact.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "meta/json.h"

int lw_contact_encode(const struct lw_contact *contact, char **text, size_t *length)
{
	cJSON *json = cJSON_CreateObject(), *ours;
	char incarnation[17];
	bool whole;
	int error;

	snprintf(incarnation, sizeof(incarnation), "%016" PRIx64, contact->incarnation);
	whole = cJSON_AddStringToObject(json, "ip_or_host_name", contact->where.host) != NULL;
	if (contact->incarnation != 0) {
		ours = cJSON_AddObjectToObject(json, "lw");
		whole = whole && cJSON_AddStringToObject(ours, "incarnation", incarnation) != NULL;
	}
	whole = whole && cJSON_AddNumberToObject(json, "rpc_port", contact->where.port) != NULL;
	if (!whole) {
		cJSON_Delete(json);
		return -ENOMEM;
	}
	error = lw_json_text(json, text);
	if (error == 0)
		*length = strlen(*text);
	return error;
}

static int read_contact(const cJSON *root, struct lw_contact *out, const struct lw_why *why)
{
	const cJSON *host = lw_json_field(root, "ip_or_host_name"), *ours = lw_json_field(root, "lw");
	uint64_t port;

	if (!cJSON_IsObject(root))
		return lw_bad(why, "not an object");
	if (ours != NULL && !cJSON_IsObject(ours))
		return lw_bad(why, "lw is not an object");
	if (!cJSON_IsString(host) || !lw_is_printable(host->valuestring) ||
	    lw_hostport_parse(host->valuestring, 0, &out->where) != 0 || out->where.port != 0)
		return lw_bad(why, "ip_or_host_name is missing, or not the name or address of a host");
	if (!lw_json_integer(lw_json_field(root, "rpc_port"), 1, UINT16_MAX, &port))
		return lw_bad(why, "rpc_port is missing, or not a whole number from 1 to 65535");
	out->where.port = (uint16_t)port;
	out->incarnation = 0;
	return lw_json_incarnation(ours, &out->incarnation, why);
}

int lw_contact_decode(const char *text, size_t length, struct lw_contact *out, char *why_text, size_t why_size)
{
	const struct lw_why why = {.text = why_text, .size = why_text != NULL ? why_size : 0};
	struct lw_contact contact;
	cJSON *root;
	int ret = lw_json_read(text, length, &root, &why);

	if (ret < 0)
		return ret;
	ret = read_contact(root, &contact, &why);
	cJSON_Delete(root);
	if (ret == 0)
		*out = contact;
	return ret;
}
