/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs in segment descriptors: handles of allocations, with which other processes reach it. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <lanewise/types.h>

#include "meta/descriptor_pvt.h"

#define HANDLE_TEXT (2 * LW_DESC_HANDLE)

const char *const lw_desc_gpu_names[LW_DESC_GPUS] = {"nvlink", "hip", "musa", "maca"};
/* What the name of such memory begins with in documents. */
static const char *const places[LW_DESC_GPUS] = {"cuda", "hip", "musa", "maca"};

int lw_desc_gpu_of(const char *protocol, size_t length)
{
	if (length == 12 && memcmp(protocol, "nvlink_intra", 12) == 0)
		return 0;
	for (int i = 0; i < LW_DESC_GPUS; i++)
		if (strlen(lw_desc_gpu_names[i]) == length && memcmp(lw_desc_gpu_names[i], protocol, length) == 0)
			return i;
	return -1;
}

/* Writing -------------------------------------------------------------------------------------------------------------
 */

static void put_handle(FILE *to, const struct lw_desc_allocation *allocation)
{
	putc('"', to);
	for (int i = 0; i < LW_DESC_HANDLE; i++)
		fprintf(to, "%02X", allocation->handle[i]);
	putc('"', to);
}

size_t lw_desc_announced(const struct lw_desc *desc)
{
	int gpu = lw_desc_gpu_of(desc->protocol, strlen(desc->protocol));

	return gpu >= 0 && desc->gpu[gpu].pid != 0 ? desc->gpu[gpu].count : 0;
}

void lw_desc_put_handle(FILE *to, const struct lw_desc_gpu *gpu, const struct lw_desc_buffer *buffer)
{
	fputs(",\"shm_name\":", to);
	for (size_t i = 0; gpu->pid == 0 && i < gpu->count; i++)
		if (gpu->memory[i].addr == buffer->addr && gpu->memory[i].length == buffer->length) {
			put_handle(to, &gpu->memory[i]);
			return;
		}
	fputs("\"\"", to);
}

void lw_desc_put_announced(FILE *to, const struct lw_desc *desc)
{
	int gpu = lw_desc_gpu_of(desc->protocol, strlen(desc->protocol));

	for (size_t i = 0; i < lw_desc_announced(desc); i++) {
		const struct lw_desc_allocation *allocation = &desc->gpu[gpu].memory[i];

		fprintf(to, "%s{\"addr\":%" PRIu64 ",\"length\":%" PRIu64 ",\"name\":\"%s:%" PRIu32 "\",\"shm_name\":",
			i == 0 && desc->buffer_count == 0 ? "" : ",", allocation->addr, allocation->length, places[gpu],
			allocation->device);
		put_handle(to, allocation);
		putc('}', to);
	}
}

const char *lw_desc_put_gpu(FILE *to, const struct lw_desc *desc, size_t number, const char *comma)
{
	const struct lw_desc_gpu *gpu = &desc->gpu[number];

	if (gpu->pid == 0)
		return comma;
	fprintf(to, "%s\"%s\":{\"changes\":%" PRIu64 ",%s\"fd\":%" PRId32 ",\"grants\":[", comma,
		lw_desc_gpu_names[number], gpu->changes, gpu->fabric ? "\"fabric\":true," : "", gpu->fd);
	for (size_t i = 0; i < desc->buffer_count; i++)
		fprintf(to, "%s%" PRIu64, i == 0 ? "" : ",", desc->buffers[i].grant);
	for (size_t i = 0; i < lw_desc_announced(desc); i++)
		fputs(i == 0 && desc->buffer_count == 0 ? "0" : ",0", to);
	fputs("],\"host\":", to);
	lw_desc_put_string(to, gpu->host, strlen(gpu->host));
	fputs(",\"memory\":[", to);
	for (size_t i = 0; i < gpu->count; i++) {
		const struct lw_desc_allocation *allocation = &gpu->memory[i];

		fprintf(to, "%s{\"addr\":%" PRIu64 ",\"device\":%" PRIu32 ",\"handle\":", i == 0 ? "" : ",",
			allocation->addr, allocation->device);
		put_handle(to, allocation);
		fprintf(to, ",\"id\":%" PRIu64 ",\"length\":%" PRIu64 "}", allocation->id, allocation->length);
	}
	fputs("],\"nonce\":", to);
	lw_desc_put_string(to, gpu->nonce, strlen(gpu->nonce));
	fprintf(to, ",\"pid\":%" PRIu32 "}", gpu->pid);
	return ",";
}

/* Reading -------------------------------------------------------------------------------------------------------------
 */

static int digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
				      : -1;
}

static bool read_handle(const cJSON *item, unsigned char *out)
{
	if (!cJSON_IsString(item) || strlen(item->valuestring) != HANDLE_TEXT)
		return false;
	for (int i = 0; i < LW_DESC_HANDLE; i++) {
		int high = digit(item->valuestring[2 * i]), low = digit(item->valuestring[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		out[i] = (unsigned char)(high << 4 | low);
	}
	return true;
}

static bool read_range(const cJSON *item, struct lw_desc_allocation *out)
{
	return lw_json_integer(lw_json_field(item, "addr"), 1, LW_JSON_INTEGER_MAX, &out->addr) &&
	       lw_json_integer(lw_json_field(item, "length"), 1, LW_JSON_INTEGER_MAX, &out->length) &&
	       out->addr + out->length <= LW_JSON_INTEGER_MAX + 1; /* can't wrap: both are below 2^53 */
}

static int compare(const void *a, const void *b)
{
	const struct lw_desc_allocation *left = a, *right = b;

	return left->addr < right->addr ? -1 : left->addr > right->addr;
}

static bool in_order(struct lw_desc_gpu *gpu)
{
	if (gpu->count > 1)
		qsort(gpu->memory, gpu->count, sizeof(*gpu->memory), compare);
	for (size_t i = 1; i < gpu->count; i++)
		if (gpu->memory[i].addr < gpu->memory[i - 1].addr + gpu->memory[i - 1].length)
			return false;
	return true;
}

static int read_memory(const cJSON *list, struct lw_desc_gpu *gpu, const char *name, const struct lw_why *why)
{
	const cJSON *item;
	size_t count = 0;

	if (!cJSON_IsArray(list))
		return lw_bad(why, "lw.%s.memory is missing, or not a list", name);
	cJSON_ArrayForEach(item, list) count++;
	if (count > LW_DESC_ALLOCATIONS_MAX)
		return lw_bad(why, "lw.%s.memory has %zu entries, more than %u", name, count, LW_DESC_ALLOCATIONS_MAX);
	if (count == 0)
		return 0;
	gpu->memory = calloc(count, sizeof(*gpu->memory));
	if (gpu->memory == NULL)
		return -ENOMEM;
	cJSON_ArrayForEach(item, list)
	{
		struct lw_desc_allocation *out = &gpu->memory[gpu->count];
		uint64_t device;

		if (!read_range(item, out) || !lw_json_integer(lw_json_field(item, "device"), 0, 65535, &device) ||
		    !lw_json_integer(lw_json_field(item, "id"), 0, LW_JSON_INTEGER_MAX, &out->id) ||
		    !read_handle(lw_json_field(item, "handle"), out->handle))
			return lw_bad(why,
				      "lw.%s.memory[%zu] is no allocation with addr, length, device, id and handle",
				      name, gpu->count);
		out->device = (uint32_t)device;
		gpu->count++;
	}
	return in_order(gpu) ? 0 : lw_bad(why, "lw.%s.memory has allocations that overlap", name);
}

static bool read_word(const cJSON *item, char *out, size_t size)
{
	if (!cJSON_IsString(item) || strlen(item->valuestring) >= size || item->valuestring[0] == '\0' ||
	    !lw_is_printable(item->valuestring))
		return false;
	memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
	return true;
}

static int read_ours(const cJSON *item, struct lw_desc_gpu *gpu, const char *name, const struct lw_why *why)
{
	const cJSON *fabric = lw_json_field(item, "fabric");
	uint64_t pid = 0, fd = 0;

	if (!cJSON_IsObject(item) || !lw_json_integer(lw_json_field(item, "pid"), 1, INT32_MAX, &pid) ||
	    !lw_json_integer(lw_json_field(item, "fd"), 0, INT32_MAX, &fd) ||
	    !lw_json_integer(lw_json_field(item, "changes"), 0, LW_JSON_INTEGER_MAX, &gpu->changes) ||
	    (fabric != NULL && !cJSON_IsBool(fabric)))
		return lw_bad(why, "lw.%s is not an object with pid, fd and changes", name);
	if (!read_word(lw_json_field(item, "host"), gpu->host, sizeof(gpu->host)) ||
	    !read_word(lw_json_field(item, "nonce"), gpu->nonce, sizeof(gpu->nonce)) || strlen(gpu->nonce) != 32 ||
	    strspn(gpu->nonce, "0123456789abcdef") != 32)
		return lw_bad(why, "lw.%s.host or lw.%s.nonce is missing, or no such text", name, name);
	gpu->pid = (uint32_t)pid;
	gpu->fd = (int32_t)fd;
	gpu->fabric = cJSON_IsTrue(fabric);
	return read_memory(lw_json_field(item, "memory"), gpu, name, why);
}

bool lw_desc_has_handle(const cJSON *item)
{
	unsigned char handle[LW_DESC_HANDLE];

	return read_handle(lw_json_field(item, "shm_name"), handle);
}

/* The number of the device that a location such as "cuda:3" names; 0 if it names none. */
static uint32_t device_of(const cJSON *item)
{
	const cJSON *name = lw_json_field(item, "name");
	const char *colon = cJSON_IsString(name) ? strrchr(name->valuestring, ':') : NULL;
	unsigned long number = colon != NULL && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, NULL, 10) : 0;

	return number <= 65535 ? (uint32_t)number : 0;
}

/* Entries of another engine's for this protocol. What is no handle we could use is left out, as if it were not offered
 * that way. */
static int read_theirs(const cJSON *root, const char *protocol, size_t length, struct lw_desc_gpu *gpu)
{
	const cJSON *list = lw_json_field(root, "buffers"), *item;
	size_t room = 0;

	cJSON_ArrayForEach(item, list) room += lw_desc_has_handle(item);
	if (room == 0 || room > LW_DESC_ALLOCATIONS_MAX)
		return 0;
	gpu->memory = calloc(room, sizeof(*gpu->memory));
	if (gpu->memory == NULL)
		return -ENOMEM;
	cJSON_ArrayForEach(item, list)
	{
		struct lw_desc_allocation found = {.device = device_of(item)};

		if (lw_desc_is_kept(item, protocol, length) && read_range(item, &found) &&
		    read_handle(lw_json_field(item, "shm_name"), found.handle))
			gpu->memory[gpu->count++] = found;
	}
	if (!in_order(gpu))
		gpu->count = 0;
	return 0;
}

static bool is_inside(const struct lw_desc_gpu *gpu, const struct lw_desc_buffer *buffer)
{
	for (size_t low = 0, high = gpu->count; low < high;) {
		size_t middle = (low + high) / 2;
		const struct lw_desc_allocation *at = &gpu->memory[middle];

		if (buffer->addr < at->addr)
			high = middle;
		else if (buffer->addr - at->addr >= at->length)
			low = middle + 1;
		else
			return buffer->length <= at->length - (buffer->addr - at->addr);
	}
	return false;
}

int lw_desc_read_gpus(const cJSON *root, const cJSON *ours, struct lw_desc *desc, const struct lw_why *why)
{
	const char *at = desc->protocol;
	size_t part;
	int ret = 0;

	for (int i = 0; i < LW_DESC_GPUS && ret == 0; i++) {
		const cJSON *item = lw_json_field(ours, lw_desc_gpu_names[i]);

		if (item != NULL)
			ret = read_ours(item, &desc->gpu[i], lw_desc_gpu_names[i], why);
	}
	/* Of an engine that is not ours. */
	for (; ret == 0; at += part + 1) {
		int number;

		part = strcspn(at, ",");
		number = lw_desc_gpu_of(at, part);
		if (number >= 0 && desc->gpu[number].pid == 0 && desc->gpu[number].count == 0) {
			struct lw_desc_gpu *gpu = &desc->gpu[number];

			ret = read_theirs(root, at, part, gpu);
			for (size_t i = 0; i < desc->buffer_count && ret == 0; i++)
				desc->buffers[i].device |= is_inside(gpu, &desc->buffers[i]);
		}
		if (at[part] == '\0')
			break;
	}
	return ret;
}

void lw_desc_drop_gpus(struct lw_desc *desc)
{
	for (int i = 0; i < LW_DESC_GPUS; i++) {
		free(desc->gpu[i].memory);
		desc->gpu[i] = (struct lw_desc_gpu){.pid = 0};
	}
}
