/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/handshake.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "meta/json.h"

void lw_gid_format(const uint8_t gid[16], char text[LW_GID_TEXT])
{
	for (size_t i = 0; i < 16; i++)
		snprintf(text + 3 * i, LW_GID_TEXT - 3 * i, i + 1 < 16 ? "%02x:" : "%02x", gid[i]);
}

static int hex_digit(char c)
{
	const char *digits = "0123456789abcdef", *at = strchr(digits, tolower((unsigned char)c));

	return c != '\0' && at != NULL ? (int)(at - digits) : -1;
}

bool lw_gid_parse(const char *text, uint8_t gid[16])
{
	uint8_t raw[16];

	if (strlen(text) != LW_GID_TEXT - 1)
		return false;
	for (size_t i = 0; i < 16; i++, text += 3) {
		int high = hex_digit(text[0]), low = hex_digit(text[1]);

		if (high < 0 || low < 0 || text[2] != (i + 1 < 16 ? ':' : '\0'))
			return false;
		raw[i] = (uint8_t)(high << 4 | low);
	}
	memcpy(gid, raw, sizeof(raw));
	return true;
}

bool lw_nic_path(char out[LW_NIC_PATH], const char *name, const char *device, uint32_t mark)
{
	int length = mark == 0 ? snprintf(out, LW_NIC_PATH, "%s@%s", name, device)
			       : snprintf(out, LW_NIC_PATH, "%s@%s#%" PRIu32, name, device, mark);

	return length > 0 && length < LW_NIC_PATH;
}

/* Writing -------------------------------------------------------------------------------------------------------------
 */

static bool add_number(cJSON *ours, const char *key, uint64_t number)
{
	char text[17];

	snprintf(text, sizeof(text), "%016" PRIx64, number);
	return number == 0 || cJSON_AddStringToObject(ours, key, text) != NULL;
}

static bool add_ours(cJSON *json, const struct lw_handshake *handshake)
{
	cJSON *ours;

	if (handshake->incarnation == 0 && handshake->meant == 0 && !handshake->over)
		return true;
	ours = cJSON_AddObjectToObject(json, "lw");
	return ours != NULL && add_number(ours, "for", handshake->meant) &&
	       add_number(ours, "incarnation", handshake->incarnation) &&
	       (!handshake->over || cJSON_AddTrueToObject(ours, "over") != NULL);
}

static bool add_qps(cJSON *json, const struct lw_handshake *handshake)
{
	cJSON *list = cJSON_AddArrayToObject(json, "qp_num");

	for (uint32_t i = 0; list != NULL && i < handshake->qp_count; i++) {
		cJSON *number = cJSON_CreateNumber(handshake->qp[i]);

		if (!cJSON_AddItemToArray(list, number)) {
			cJSON_Delete(number);
			return false;
		}
	}
	return list != NULL;
}

int lw_handshake_encode(const struct lw_handshake *handshake, char **text)
{
	cJSON *json = cJSON_CreateObject();
	char gid[LW_GID_TEXT] = "";

	if (handshake->has_gid)
		lw_gid_format(handshake->gid, gid);
	if (cJSON_AddStringToObject(json, "local_gid", gid) == NULL ||
	    cJSON_AddNumberToObject(json, "local_lid", handshake->lid) == NULL ||
	    cJSON_AddStringToObject(json, "local_nic_path", handshake->local_path) == NULL ||
	    !add_ours(json, handshake) || cJSON_AddStringToObject(json, "payload", "") == NULL ||
	    cJSON_AddStringToObject(json, "peer_nic_path", handshake->peer_path) == NULL || !add_qps(json, handshake) ||
	    (handshake->has_ready && cJSON_AddBoolToObject(json, "ready_ack", handshake->ready) == NULL) ||
	    cJSON_AddStringToObject(json, "reply_msg", handshake->reply) == NULL) {
		cJSON_Delete(json);
		return -ENOMEM;
	}
	return lw_json_text(json, text);
}

/* Reading -------------------------------------------------------------------------------------------------------------
 */

/* A text that may be missing. */
static int read_text(const cJSON *json, const char *key, char *out, size_t size, const struct lw_why *why)
{
	const cJSON *item = lw_json_field(json, key);

	out[0] = '\0';
	if (item == NULL || cJSON_IsNull(item))
		return 0;
	if (!cJSON_IsString(item) || strlen(item->valuestring) >= size || !lw_is_printable(item->valuestring))
		return lw_bad(why, "%s is not a text of less than %zu bytes without control characters", key, size);
	memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
	return 0;
}

static int read_address(const cJSON *json, struct lw_handshake *out, const struct lw_why *why)
{
	const cJSON *lid = lw_json_field(json, "local_lid");
	char gid[LW_GID_TEXT + 1];
	uint64_t number = 0;
	int ret = read_text(json, "local_gid", gid, sizeof(gid), why);

	if (ret != 0)
		return ret;
	if (lid != NULL && !lw_json_integer(lid, 0, UINT16_MAX, &number))
		return lw_bad(why, "local_lid is not a whole number from 0 to 65535");
	out->lid = (uint16_t)number;
	out->has_gid = gid[0] != '\0';
	if (out->has_gid && !lw_gid_parse(gid, out->gid))
		return lw_bad(why, "local_gid is not 16 pairs of hex digits joined by colons");
	return 0;
}

static int read_qps(const cJSON *json, struct lw_handshake *out, const struct lw_why *why)
{
	const cJSON *list = lw_json_field(json, "qp_num"), *item;

	if (list == NULL || cJSON_IsNull(list))
		return 0;
	if (!cJSON_IsArray(list))
		return lw_bad(why, "qp_num is not a list");
	cJSON_ArrayForEach(item, list)
	{
		uint64_t number;

		if (out->qp_count == LW_HANDSHAKE_QPS || !lw_json_integer(item, 0, UINT32_MAX, &number))
			return lw_bad(why, "qp_num is not a list of at most %d queue pair numbers", LW_HANDSHAKE_QPS);
		out->qp[out->qp_count++] = (uint32_t)number;
	}
	return 0;
}

static int read_ours(const cJSON *json, struct lw_handshake *out, const struct lw_why *why)
{
	const cJSON *ours = lw_json_field(json, "lw");
	int ret;

	if (ours != NULL && !cJSON_IsObject(ours))
		return lw_bad(why, "lw is not an object");
	out->over = cJSON_IsTrue(lw_json_field(ours, "over"));
	ret = lw_json_incarnation(ours, &out->incarnation, why);
	return ret == 0 ? lw_json_life(ours, "for", &out->meant, why) : ret;
}

static int read_document(const cJSON *json, struct lw_handshake *out, const struct lw_why *why)
{
	const cJSON *ready = lw_json_field(json, "ready_ack");
	int ret;

	if (!cJSON_IsObject(json))
		return lw_bad(why, "not an object");
	if (ready != NULL && !cJSON_IsBool(ready))
		return lw_bad(why, "ready_ack is neither true nor false");
	out->has_ready = ready != NULL;
	out->ready = cJSON_IsTrue(ready);
	ret = read_text(json, "local_nic_path", out->local_path, sizeof(out->local_path), why);
	if (ret == 0)
		ret = read_text(json, "peer_nic_path", out->peer_path, sizeof(out->peer_path), why);
	if (ret == 0)
		ret = read_text(json, "reply_msg", out->reply, sizeof(out->reply), why);
	if (ret == 0)
		ret = read_address(json, out, why);
	if (ret == 0)
		ret = read_qps(json, out, why);
	if (ret == 0)
		ret = read_ours(json, out, why);
	return ret;
}

int lw_handshake_decode(const char *text, size_t length, struct lw_handshake *out, char *why_text, size_t why_size)
{
	const struct lw_why why = {.text = why_text, .size = why_text != NULL ? why_size : 0};
	struct lw_handshake read = {.qp_count = 0};
	cJSON *json = NULL;
	int ret = lw_json_read(text, length, &json, &why);

	if (ret != 0)
		return ret;
	ret = read_document(json, &read, &why);
	cJSON_Delete(json);
	if (ret == 0)
		*out = read;
	return ret;
}
