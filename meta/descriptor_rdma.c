/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA part of segment descriptors. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <lanewise/types.h>

#include "meta/descriptor_pvt.h"
#include "meta/handshake.h"
#include "meta/json.h"
#include "meta/matrix.h"

#define DEVICES_MAX LW_MATRIX_DEVICES

/* Writing -------------------------------------------------------------------------------------------------------------
 */

void lw_desc_put_keys(FILE *to, const struct lw_desc *desc, const struct lw_desc_buffer *buffer, const char *which)
{
	size_t count = buffer->key != 0 ? desc->rdma.device_count : 0;

	fprintf(to, ",\"%s\":[", which);
	for (size_t i = 0; i < count; i++) {
		const struct lw_desc_key *key = &desc->rdma.keys[buffer->key - 1 + i];

		fprintf(to, "%s%" PRIu32, i == 0 ? "" : ",", which[0] == 'l' ? key->lkey : key->rkey);
	}
	putc(']', to);
}

void lw_desc_put_devices(FILE *to, const struct lw_desc *desc)
{
	char gid[LW_GID_TEXT];

	if (desc->rdma.device_count == 0)
		return;
	fputs("\"devices\":[", to);
	for (size_t i = 0; i < desc->rdma.device_count; i++) {
		const struct lw_desc_device *device = &desc->rdma.devices[i];

		lw_gid_format(device->gid, gid);
		fprintf(to, "%s{\"gid\":\"%s\",\"lid\":%u,\"name\":", i == 0 ? "" : ",", gid, device->lid);
		lw_desc_put_string(to, device->name, strlen(device->name));
		putc('}', to);
	}
	fputs("],", to);
}

void lw_desc_put_matrix(FILE *to, const struct lw_desc *desc)
{
	char *text;

	if (desc->rdma.device_count == 0)
		return;
	text = desc->rdma.matrix != NULL && desc->rdma.matrix->row_count != 0 ? lw_matrix_print(desc->rdma.matrix)
									      : NULL;
	fprintf(to, "\"priority_matrix\":%s,", text != NULL ? text : "{}");
	free(text);
}

void lw_desc_put_server(FILE *to, const struct lw_desc *desc)
{
	if (desc->rdma.device_count == 0 || desc->rdma.name[0] == '\0')
		return;
	fputs("\"rdma_server_name\":", to);
	lw_desc_put_string(to, desc->rdma.name, strlen(desc->rdma.name));
	putc(',', to);
}

/* Reading -------------------------------------------------------------------------------------------------------------
 */

static int read_text(const cJSON *item, char *out, size_t size)
{
	if (!cJSON_IsString(item) || item->valuestring[0] == '\0' || strlen(item->valuestring) >= size ||
	    !lw_is_printable(item->valuestring))
		return -EPROTO;
	memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
	return 0;
}

static int read_device(const cJSON *item, struct lw_desc_device *device)
{
	const cJSON *gid = lw_json_field(item, "gid"), *lid = lw_json_field(item, "lid");
	uint64_t number = 0;

	if (read_text(lw_json_field(item, "name"), device->name, sizeof(device->name)) != 0 || !cJSON_IsString(gid) ||
	    gid->valuestring[0] == '\0' || (lid != NULL && !lw_json_integer(lid, 0, UINT16_MAX, &number)))
		return -EPROTO;
	device->lid = (uint16_t)number;
	device->has_gid = lw_gid_parse(gid->valuestring, device->gid);
	return 0;
}

static int read_devices(const cJSON *root, struct lw_desc_rdma *rdma, const struct lw_why *why)
{
	const cJSON *list = lw_json_field(root, "devices"), *item;
	size_t count = 0;

	if (!cJSON_IsArray(list))
		return lw_bad(why, "devices is missing, or not a list");
	cJSON_ArrayForEach(item, list) count++;
	if (count == 0 || count > DEVICES_MAX)
		return lw_bad(why, "devices has %zu entries; 1 to %d are possible", count, DEVICES_MAX);
	rdma->devices = calloc(count, sizeof(*rdma->devices));
	if (rdma->devices == NULL)
		return -ENOMEM;
	cJSON_ArrayForEach(item, list)
	{
		if (read_device(item, &rdma->devices[rdma->device_count]) != 0)
			return lw_bad(why, "devices[%zu] has no name, gid or lid that can be", rdma->device_count);
		rdma->device_count++;
	}
	return 0;
}

/* Adds a buffer's keys. *first: 1 + the position of the first. */
static int read_keys(const cJSON *item, struct lw_desc_rdma *rdma, uint32_t *first, const struct lw_why *why)
{
	const cJSON *rkeys = lw_json_field(item, "rkey"), *lkeys = lw_json_field(item, "lkey"), *rkey, *lkey;
	struct lw_desc_key *keys;
	uint64_t number, mine;

	*first = 0;
	if (!cJSON_IsArray(rkeys) || rkeys->child == NULL)
		return 0;
	if ((size_t)cJSON_GetArraySize(rkeys) != rdma->device_count || !cJSON_IsArray(lkeys) ||
	    (size_t)cJSON_GetArraySize(lkeys) != rdma->device_count)
		return lw_bad(why, "a buffer has not one rkey and lkey for each of %zu devices", rdma->device_count);
	/* Room for twice as many, when the number of buffers with keys is a power of two. */
	if ((rdma->key_count / rdma->device_count & (rdma->key_count / rdma->device_count - 1)) == 0 ||
	    rdma->key_count == 0) {
		size_t room = rdma->key_count != 0 ? rdma->key_count * 2 : rdma->device_count;

		keys = realloc(rdma->keys, room * sizeof(*keys));
		if (keys == NULL)
			return -ENOMEM;
		rdma->keys = keys;
	}
	*first = (uint32_t)rdma->key_count + 1;
	for (rkey = rkeys->child, lkey = lkeys->child; rkey != NULL; rkey = rkey->next, lkey = lkey->next) {
		if (!lw_json_integer(rkey, 0, UINT32_MAX, &number) || !lw_json_integer(lkey, 0, UINT32_MAX, &mine))
			return lw_bad(why, "an rkey or lkey is not a whole number of 32 bits");
		rdma->keys[rdma->key_count++] = (struct lw_desc_key){.rkey = (uint32_t)number, .lkey = (uint32_t)mine};
	}
	return 0;
}

static bool is_of(const cJSON *item, const char *protocol)
{
	const cJSON *own = lw_json_field(item, "protocol");

	return !cJSON_IsString(own) || strcmp(own->valuestring, protocol) == 0;
}

/* The buffers of the document that are RDMA's have keys; those that were kept may be another protocol's entries for the
 * same memory. Both lists have the document's order, so each is walked once. */
static int read_all_keys(const cJSON *root, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *item;
	size_t at = 0;
	int ret = 0;

	cJSON_ArrayForEach(item, lw_json_field(root, "buffers"))
	{
		uint64_t addr = 0, length = 0;
		uint32_t first;
		bool found = false;

		if (!is_of(item, "rdma"))
			continue;
		ret = read_keys(item, &desc->rdma, &first, why);
		if (ret != 0)
			return ret;
		lw_json_integer(lw_json_field(item, "addr"), 1, LW_JSON_INTEGER_MAX, &addr);
		lw_json_integer(lw_json_field(item, "length"), 1, LW_JSON_INTEGER_MAX, &length);
		for (; at < desc->buffer_count && !found; at++) {
			struct lw_desc_buffer *buffer = &desc->buffers[at];

			if (buffer->addr != addr || buffer->length != length)
				continue;
			found = true;
			buffer->key = first;
		}
		if (!found)
			return lw_bad(why, "buffers lists rdma's in another order than the other protocol's");
	}
	return 0;
}

static bool speaks_rdma(const char *joined)
{
	for (size_t part;; joined += part + 1) {
		part = strcspn(joined, ",");
		if (part == 4 && memcmp(joined, "rdma", 4) == 0)
			return true;
		if (joined[part] == '\0')
			return false;
	}
}

int lw_desc_read_rdma(const cJSON *root, struct lw_desc *desc)
{
	struct lw_desc_rdma *rdma = &desc->rdma;
	const struct lw_why why = {.text = rdma->why, .size = sizeof(rdma->why)};
	const cJSON *server = lw_json_field(root, "rdma_server_name"), *matrix = lw_json_field(root, "priority_matrix");
	int ret;

	if (!speaks_rdma(desc->protocol))
		return 0;
	if (server != NULL && read_text(server, rdma->name, sizeof(rdma->name)) != 0)
		ret = lw_bad(&why, "rdma_server_name is no name");
	else
		ret = read_devices(root, rdma, &why);
	if (ret == 0)
		ret = read_all_keys(root, desc, &why);
	/* A matrix that can't be read costs the choice of the nearest device alone. */
	if (ret == 0 && cJSON_IsObject(matrix) && lw_matrix_read(matrix, &rdma->matrix, NULL, 0) == -ENOMEM)
		ret = -ENOMEM;

	/* Without keys a buffer is the peer's local side alone; or a GPU's memory, to which there are other ways. */
	for (size_t i = 0; i < desc->buffer_count && ret == 0 && strcmp(desc->protocol, "rdma") == 0; i++)
		if (desc->buffers[i].key == 0 && !desc->buffers[i].device)
			desc->buffers[i].access = LW_ACCESS_LOCAL;
	if (ret == -EPROTO) {
		char said[sizeof(rdma->why)];

		memcpy(said, rdma->why, sizeof(said));
		lw_desc_drop_rdma(rdma);
		memcpy(rdma->why, said, sizeof(said));
		for (size_t i = 0; i < desc->buffer_count; i++)
			desc->buffers[i].key = 0;
		return 0;
	}
	return ret;
}

void lw_desc_drop_rdma(struct lw_desc_rdma *rdma)
{
	free(rdma->devices);
	free(rdma->keys);
	lw_matrix_free(rdma->matrix);
	*rdma = (struct lw_desc_rdma){.device_count = 0};
}
