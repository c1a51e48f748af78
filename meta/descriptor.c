/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing segment descriptors. Writing is by hand: it is one pass and prints all 64 bits of an integer.
 * Reading is a bounded parser (json.h) and a check of every field.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lanewise/types.h>

#include "meta/descriptor_pvt.h"
#include "meta/json.h"
#include "meta/matrix.h"

#define MAX_BUFFERS 1048576u

static const char *const known_protocols[] = {
	"tcp", "rdma",         "efa",  "cxi",  "barex", "ub",      "nccl",         "ascend", "nvlink",
	"hip", "nvlink_intra", "maca", "musa", "cxl",   "ubshmem", "sunrise_link", "nvmeof",
};
/* Their buffers are ranges of files or devices, not addresses. */
static const char *const addressless[] = {"cxl", "nvmeof"};

#define HAS(list, text, length) is_in(list, sizeof(list) / sizeof((list)[0]), text, length)

static bool is_in(const char *const *list, size_t count, const char *text, size_t length)
{
	size_t i;

	for (i = 0; i < count; i++)
		if (strlen(list[i]) == length && memcmp(list[i], text, length) == 0)
			return true;
	return false;
}

/* Of several protocols joined by commas, the one whose buffers we keep: the same memory is listed once for each, and
 * would overlap itself. tcp if there, else the first whose buffers have addresses. *length 0: none. */
static const char *chosen_protocol(const char *joined, size_t *length)
{
	const char *at = joined, *first = joined;
	size_t first_length = 0, part;

	for (;; at += part + 1) {
		part = strcspn(at, ",");
		if (part == 3 && memcmp(at, "tcp", 3) == 0) {
			*length = part;
			return at;
		}
		if (first_length == 0 && !HAS(addressless, at, part)) {
			first = at;
			first_length = part;
		}
		if (at[part] == '\0')
			break;
	}
	*length = first_length;
	return first;
}

/* Writing -------------------------------------------------------------------------------------------------------------
 */

void lw_desc_put_string(FILE *to, const char *text, size_t length)
{
	size_t i, plain = 0; /* from there on nothing needed an escape */

	putc('"', to);
	for (i = 0; i < length; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c != '"' && c != '\\' && c >= 0x20)
			continue;
		fwrite(text + plain, 1, i - plain, to);
		plain = i + 1;
		if (c < 0x20)
			fprintf(to, "\\u%04x", c);
		else
			fprintf(to, "\\%c", c);
	}
	fwrite(text + plain, 1, length - plain, to);
	putc('"', to);
}

static void put_buffers(FILE *to, const struct lw_desc *desc, const char *protocol, size_t protocol_length)
{
	size_t i, kept_length;
	const char *kept = chosen_protocol(desc->protocol, &kept_length);
	int gpu = lw_desc_gpu_of(kept, kept_length);

	for (i = 0; i < desc->buffer_count; i++) {
		const struct lw_desc_buffer *buffer = &desc->buffers[i];

		fprintf(to, "%s{\"addr\":%" PRIu64 ",\"length\":%" PRIu64, i == 0 ? "" : ",", buffer->addr,
			buffer->length);
		if (desc->rdma.device_count != 0)
			lw_desc_put_keys(to, desc, buffer, "lkey");
		fputs(",\"name\":", to);
		lw_desc_put_string(to, buffer->name, strnlen(buffer->name, sizeof(buffer->name)));
		if (protocol_length > 0) {
			fputs(",\"protocol\":", to);
			lw_desc_put_string(to, protocol, protocol_length);
		}
		if (desc->rdma.device_count != 0)
			lw_desc_put_keys(to, desc, buffer, "rkey");
		if (gpu >= 0)
			lw_desc_put_handle(to, &desc->gpu[gpu], buffer);
		putc('}', to);
	}
	lw_desc_put_announced(to, desc);
}

/* In a list of one number a buffer: those of the entries behind them. */
static void put_rest(FILE *to, const struct lw_desc *desc, uint32_t number)
{
	for (size_t i = 0; i < lw_desc_announced(desc); i++)
		fprintf(to, "%s%" PRIu32, i == 0 && desc->buffer_count == 0 ? "" : ",", number);
}

static void put_shm(FILE *to, const struct lw_desc *desc, const char *comma)
{
	const struct lw_desc_shm *shm = &desc->shm;
	size_t i;

	fprintf(to, "%s\"shm\":{\"changes\":%" PRIu64 ",\"fd\":%" PRId32 ",\"grants\":[", comma, shm->changes, shm->fd);
	for (i = 0; i < desc->buffer_count; i++)
		fprintf(to, "%s%" PRIu64, i == 0 ? "" : ",", desc->buffers[i].grant);
	put_rest(to, desc, 0);
	fputs("],\"host\":", to);
	lw_desc_put_string(to, shm->host, strlen(shm->host));
	fputs(",\"nonce\":", to);
	lw_desc_put_string(to, shm->nonce, strlen(shm->nonce));
	fprintf(to, ",\"pid\":%" PRIu32 "}", shm->pid);
}

static void put_data(FILE *to, const struct lw_desc *desc, const char *comma)
{
	char text[80];

	fprintf(to, "%s\"data\":[", comma);
	for (uint32_t i = 0; i < desc->data.count; i++) {
		lw_sockaddr_format(&desc->data.addr[i], text, sizeof(text));
		fprintf(to, "%s\"%s\"", i == 0 ? "" : ",", text);
	}
	putc(']', to);
}

static void put_ours(FILE *to, const struct lw_desc *desc)
{
	bool restricted = false, devices = false, gpus = false;
	const char *comma = "";
	size_t i;

	for (i = 0; i < desc->buffer_count; i++) {
		restricted |= desc->buffers[i].access != LW_ACCESS_REMOTE;
		devices |= desc->buffers[i].device;
	}
	for (i = 0; i < LW_DESC_GPUS; i++)
		gpus |= desc->gpu[i].pid != 0;
	if (!restricted && !devices && !gpus && desc->incarnation == 0 && desc->tcp_options == 0 &&
	    desc->shm.pid == 0 && desc->data.count == 0)
		return;
	fputs("\"lw\":{", to);
	if (restricted) {
		fputs("\"access\":[", to);
		for (i = 0; i < desc->buffer_count; i++)
			fprintf(to, "%s%" PRIu32, i == 0 ? "" : ",", desc->buffers[i].access);
		put_rest(to, desc, LW_ACCESS_LOCAL);
		putc(']', to);
		comma = ",";
	}
	if ((desc->tcp_options & LW_TCP_AUTH) != 0) {
		fprintf(to, "%s\"auth\":true", comma);
		comma = ",";
	}
	if ((desc->tcp_options & LW_TCP_CHECKSUM) != 0) {
		fprintf(to, "%s\"checksum\":true", comma);
		comma = ",";
	}
	if (desc->data.count != 0) {
		put_data(to, desc, comma);
		comma = ",";
	}
	if (devices) {
		fprintf(to, "%s\"device\":[", comma);
		for (i = 0; i < desc->buffer_count; i++)
			fprintf(to, "%s%d", i == 0 ? "" : ",", desc->buffers[i].device);
		put_rest(to, desc, 1);
		putc(']', to);
		comma = ",";
	}
	comma = lw_desc_put_gpu(to, desc, 1, comma);
	if (desc->incarnation != 0) {
		fprintf(to, "%s\"incarnation\":\"%016" PRIx64 "\"", comma, desc->incarnation);
		comma = ",";
	}
	comma = lw_desc_put_gpu(to, desc, 3, comma);
	comma = lw_desc_put_gpu(to, desc, 2, comma);
	comma = lw_desc_put_gpu(to, desc, 0, comma);
	if (desc->shm.pid != 0)
		put_shm(to, desc, comma);
	fputs("},", to);
}

static void put_protocol(FILE *to, const char *joined, bool several)
{
	const char *at = joined;
	size_t part;

	fputs(several ? "\"protocol\":[" : "\"protocol\":", to);
	for (;; at += part + 1) {
		part = strcspn(at, ",");
		lw_desc_put_string(to, at, part);
		if (at[part] == '\0')
			break;
		putc(',', to);
	}
	fputs(several ? "]," : ",", to);
}

static void put_timestamp(FILE *to)
{
	struct timespec now;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &now);
	if (localtime_r(&now.tv_sec, &tm) == NULL)
		memset(&tm, 0, sizeof(tm));
	fprintf(to, "\"timestamp\":\"%04d-%02d-%02d %02d:%02d:%02d.%06ld\"", tm.tm_year + 1900, tm.tm_mon + 1,
		tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000);
}

int lw_desc_encode(const struct lw_desc *desc, char **text, size_t *length)
{
	bool several = strchr(desc->protocol, ',') != NULL, failed;
	const char *protocol = NULL;
	size_t protocol_length = 0, size = 0;
	char *memory = NULL;
	FILE *to = open_memstream(&memory, &size);

	if (to == NULL)
		return -ENOMEM;
	__fsetlocking(to, FSETLOCKING_BYCALLER); /* ours alone */
	if (several)
		protocol = chosen_protocol(desc->protocol, &protocol_length);
	fputs("{\"buffers\":[", to);
	put_buffers(to, desc, protocol, protocol_length);
	fputs("],", to);
	lw_desc_put_devices(to, desc);
	put_ours(to, desc);
	fputs("\"name\":", to);
	lw_desc_put_string(to, desc->name, strnlen(desc->name, sizeof(desc->name)));
	putc(',', to);
	lw_desc_put_matrix(to, desc);
	put_protocol(to, desc->protocol, several);
	lw_desc_put_server(to, desc);
	fprintf(to, "\"tcp_data_port\":%u,\"tcp_proto_version\":%u,", desc->tcp_port, desc->tcp_version);
	put_timestamp(to);
	putc('}', to);
	failed = ferror(to) != 0;
	if (fclose(to) != 0 || failed) {
		free(memory);
		return -ENOMEM;
	}
	*text = memory;
	*length = size;
	return 0;
}

/* Reading -------------------------------------------------------------------------------------------------------------
 */

static int read_name(const cJSON *root, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *item = lw_json_field(root, "name");
	size_t length;

	if (!cJSON_IsString(item))
		return lw_bad(why, "name is %s", item == NULL ? "missing" : "not a text");
	length = strlen(item->valuestring);
	if (length == 0 || length >= sizeof(desc->name) || !lw_is_printable(item->valuestring))
		return lw_bad(why, "name is empty, longer than %zu bytes, or has control bytes",
			      sizeof(desc->name) - 1);
	memcpy(desc->name, item->valuestring, length);
	return 0;
}

static int add_protocol(const cJSON *item, struct lw_desc *desc, const struct lw_why *why)
{
	size_t have = strlen(desc->protocol), length;

	if (!cJSON_IsString(item))
		return lw_bad(why, "protocol is not a text, or a list of texts");
	length = strlen(item->valuestring);
	if (!HAS(known_protocols, item->valuestring, length))
		return lw_bad(why, "protocol \"%.40s\" is unknown",
			      lw_is_printable(item->valuestring) ? item->valuestring : "?");
	if (have + length + 2 > sizeof(desc->protocol))
		return lw_bad(why, "protocol lists too many protocols");
	if (have > 0)
		desc->protocol[have++] = ',';
	memcpy(desc->protocol + have, item->valuestring, length + 1);
	return 0;
}

static int read_protocol(const cJSON *root, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *item = lw_json_field(root, "protocol"), *each;
	int ret;

	if (item == NULL)
		return lw_bad(why, "protocol is missing");
	if (!cJSON_IsArray(item))
		return add_protocol(item, desc, why);
	cJSON_ArrayForEach(each, item)
	{
		ret = add_protocol(each, desc, why);
		if (ret < 0)
			return ret;
	}
	return desc->protocol[0] != '\0' ? 0 : lw_bad(why, "protocol is an empty list");
}

static int read_tcp(const cJSON *root, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *port = lw_json_field(root, "tcp_data_port"), *version = lw_json_field(root, "tcp_proto_version");
	uint64_t number = 0;
	size_t length;
	bool tcp = memcmp(chosen_protocol(desc->protocol, &length), "tcp", 3) == 0;

	if (port == NULL && tcp)
		return lw_bad(why, "tcp_data_port is missing");
	if (port != NULL && !lw_json_integer(port, 0, UINT16_MAX, &number))
		return lw_bad(why, "tcp_data_port is not a whole number from 0 to 65535");
	desc->tcp_port = (uint16_t)number;
	number = 1;
	if (version != NULL && !lw_json_integer(version, 1, LW_JSON_INTEGER_MAX, &number))
		return lw_bad(why, "tcp_proto_version is not a whole number above 0");
	desc->tcp_version = number > 1 ? 2 : 1; /* a newer peer takes version 2 as well */
	return 0;
}

static int read_option(const cJSON *ours, const char *name, uint8_t bit, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *item = lw_json_field(ours, name);

	if (item != NULL && !cJSON_IsBool(item))
		return lw_bad(why, "lw.auth or lw.checksum is neither true nor false");
	if (cJSON_IsTrue(item))
		desc->tcp_options |= bit;
	return 0;
}

static int read_data(const cJSON *ours, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *list = lw_json_field(ours, "data"), *item;
	struct lw_addrs *data = &desc->data;

	if (list == NULL)
		return 0;
	if (!cJSON_IsArray(list) || (size_t)cJSON_GetArraySize(list) > sizeof(data->addr) / sizeof(data->addr[0]))
		return lw_bad(why, "lw.data is not a list of at most %zu addresses",
			      sizeof(data->addr) / sizeof(data->addr[0]));
	cJSON_ArrayForEach(item, list)
	{
		if (!cJSON_IsString(item) || lw_sockaddr_parse(item->valuestring, &data->addr[data->count]) != 0)
			return lw_bad(why, "lw.data[%u] is not the numeric address and port of a host", data->count);
		data->count++;
	}
	return 0;
}

static int read_buffer(const cJSON *item, size_t at, struct lw_desc_buffer *buffer, const struct lw_why *why)
{
	const cJSON *name = lw_json_field(item, "name");
	size_t length;

	if (!lw_json_integer(lw_json_field(item, "addr"), 1, LW_JSON_INTEGER_MAX, &buffer->addr))
		return lw_bad(why, "buffers[%zu].addr is missing, or not a whole number from 1 to %" PRIu64, at,
			      LW_JSON_INTEGER_MAX);
	if (!lw_json_integer(lw_json_field(item, "length"), 1, LW_JSON_INTEGER_MAX, &buffer->length))
		return lw_bad(why, "buffers[%zu].length is missing, or not a whole number from 1 to %" PRIu64, at,
			      LW_JSON_INTEGER_MAX);
	if (buffer->addr + buffer->length > LW_JSON_INTEGER_MAX + 1) /* can't wrap: both are below 2^53 */
		return lw_bad(why, "buffers[%zu] ends beyond the last address that can be told", at);
	if (!cJSON_IsString(name) || name->valuestring[0] == '\0' || !lw_is_printable(name->valuestring))
		return lw_bad(why, "buffers[%zu].name is missing, empty, not a text, or has control bytes", at);
	length = strnlen(name->valuestring, sizeof(buffer->name) - 1);
	memcpy(buffer->name, name->valuestring, length);
	return 0;
}

int lw_desc_read_access(const cJSON **access, size_t at, uint32_t *out, const struct lw_why *why)
{
	uint64_t number = LW_ACCESS_REMOTE;

	if (*access != NULL && !lw_json_integer(*access, 0, LW_ACCESS_REMOTE, &number))
		return lw_bad(why, "lw.access[%zu] is not a whole number from 0 to %d", at, LW_ACCESS_REMOTE);
	if (*access != NULL)
		*access = (*access)->next;
	*out = (uint32_t)number;
	return 0;
}

bool lw_desc_is_kept(const cJSON *item, const char *protocol, size_t length)
{
	const cJSON *own = lw_json_field(item, "protocol");

	if (length == 0)
		return false; /* no protocol of this segment has addresses */
	return !cJSON_IsString(own) ||
	       (strlen(own->valuestring) == length && memcmp(own->valuestring, protocol, length) == 0);
}

/* A text of ours in the document. */
static bool get_text(const cJSON *item, char *out, size_t size)
{
	if (!cJSON_IsString(item) || strlen(item->valuestring) >= size || item->valuestring[0] == '\0' ||
	    !lw_is_printable(item->valuestring))
		return false;
	memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
	return true;
}

static int read_shm(const cJSON *ours, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *item = lw_json_field(ours, "shm");
	struct lw_desc_shm *shm = &desc->shm;
	uint64_t pid = 0, fd = 0;

	if (item == NULL)
		return 0;
	if (!cJSON_IsObject(item) || !lw_json_integer(lw_json_field(item, "pid"), 1, INT32_MAX, &pid) ||
	    !lw_json_integer(lw_json_field(item, "fd"), 0, INT32_MAX, &fd))
		return lw_bad(why, "lw.shm is not an object with pid and fd");
	if (!lw_json_integer(lw_json_field(item, "changes"), 0, LW_JSON_INTEGER_MAX, &shm->changes))
		return lw_bad(why, "lw.shm.changes is missing, or not a whole number");
	if (!get_text(lw_json_field(item, "host"), shm->host, sizeof(shm->host)) ||
	    !get_text(lw_json_field(item, "nonce"), shm->nonce, sizeof(shm->nonce)) || strlen(shm->nonce) != 32 ||
	    strspn(shm->nonce, "0123456789abcdef") != 32)
		return lw_bad(why, "lw.shm.host or lw.shm.nonce is missing, or no such text");
	shm->pid = (uint32_t)pid;
	shm->fd = (int32_t)fd;
	return 0;
}

/* The number that lw.shm.grants has for one buffer. *grant is the element, or NULL if there is no list. */
static int read_grant(const cJSON **grant, size_t at, uint64_t *out, const struct lw_why *why)
{
	if (*grant == NULL)
		return 0;
	if (!lw_json_integer(*grant, 0, LW_JSON_INTEGER_MAX, out))
		return lw_bad(why, "lw.shm.grants[%zu] is not a whole number", at);
	*grant = (*grant)->next;
	return 0;
}

/* What lw.device has for one buffer. *device is the element, or NULL if there is no list. */
static int read_device(const cJSON **device, size_t at, bool *out, const struct lw_why *why)
{
	uint64_t number = 0;

	if (*device != NULL && !lw_json_integer(*device, 0, 1, &number))
		return lw_bad(why, "lw.device[%zu] is neither 0 nor 1", at);
	if (*device != NULL)
		*device = (*device)->next;
	*out = number != 0;
	return 0;
}

/* The numbers of slots that some driver needs: they are the same for each. */
static const cJSON *grants_of(const cJSON *ours)
{
	const cJSON *grants = lw_json_field(lw_json_field(ours, "shm"), "grants");

	for (int i = 0; grants == NULL && i < LW_DESC_GPUS; i++)
		grants = lw_json_field(lw_json_field(ours, lw_desc_gpu_names[i]), "grants");
	return grants;
}

/* Of a protocol of GPUs some entries are handles of allocations. With ours beside them our own lists tell more of
 * those; of others' they are all that is offered. */
static bool is_range(const cJSON *item, const cJSON *ours, int gpu)
{
	if (gpu < 0)
		return true;
	return lw_desc_has_handle(item) != (lw_json_field(ours, lw_desc_gpu_names[gpu]) != NULL);
}

static int read_buffers(const cJSON *root, const cJSON *ours, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *list = lw_json_field(root, "buffers"), *access = lw_json_field(ours, "access"), *item;
	const cJSON *grant = grants_of(ours), *device = lw_json_field(ours, "device");
	size_t count = 0, at = 0, protocol_length;
	const char *protocol = chosen_protocol(desc->protocol, &protocol_length);
	int ret, gpu = lw_desc_gpu_of(protocol, protocol_length);

	if (!cJSON_IsArray(list))
		return lw_bad(why, "buffers is %s", list == NULL ? "missing" : "not a list");
	cJSON_ArrayForEach(item, list) count++;
	if (count > MAX_BUFFERS)
		return lw_bad(why, "%zu buffers, more than %u", count, MAX_BUFFERS);
	if (access != NULL) {
		if (!cJSON_IsArray(access) || (size_t)cJSON_GetArraySize(access) != count)
			return lw_bad(why, "lw.access is not a list of %zu numbers, one a buffer", count);
		access = access->child;
	}
	if (device != NULL) {
		if (!cJSON_IsArray(device) || (size_t)cJSON_GetArraySize(device) != count)
			return lw_bad(why, "lw.device is not a list of %zu numbers, one a buffer", count);
		device = device->child;
	}
	if (desc->shm.pid != 0 || grant != NULL) {
		if (!cJSON_IsArray(grant) || (size_t)cJSON_GetArraySize(grant) != count)
			return lw_bad(why, "lw.shm.grants is not a list of %zu numbers, one a buffer", count);
		grant = grant->child;
	}
	if (count == 0)
		return 0;
	desc->buffers = calloc(count, sizeof(*desc->buffers));
	if (desc->buffers == NULL)
		return -ENOMEM;

	cJSON_ArrayForEach(item, list)
	{
		struct lw_desc_buffer *buffer = &desc->buffers[desc->buffer_count];

		if (!cJSON_IsObject(item))
			return lw_bad(why, "buffers[%zu] is not an object", at);
		ret = lw_desc_read_access(&access, at, &buffer->access, why);
		buffer->grant = 0;
		if (ret == 0)
			ret = read_device(&device, at, &buffer->device, why);
		if (ret == 0)
			ret = read_grant(&grant, at, &buffer->grant, why);
		if (ret == 0 && lw_desc_is_kept(item, protocol, protocol_length) && is_range(item, ours, gpu)) {
			ret = read_buffer(item, at, buffer, why);
			desc->buffer_count++;
		}
		if (ret < 0)
			return ret;
		at++;
	}
	return 0;
}

struct span {
	uint64_t addr, end;
};

static int compare_spans(const void *left, const void *right)
{
	const struct span *a = left, *b = right;

	return a->addr < b->addr ? -1 : a->addr > b->addr;
}

/* Sorts a copy: the buffers stay in the document's order. */
static int check_overlap(const struct lw_desc *desc, const struct lw_why *why)
{
	struct span *spans;
	size_t i;
	int ret = 0;

	if (desc->buffer_count < 2)
		return 0;
	spans = malloc(desc->buffer_count * sizeof(*spans));
	if (spans == NULL)
		return -ENOMEM;
	for (i = 0; i < desc->buffer_count; i++) {
		spans[i].addr = desc->buffers[i].addr;
		spans[i].end = desc->buffers[i].addr + desc->buffers[i].length;
	}
	qsort(spans, desc->buffer_count, sizeof(*spans), compare_spans);
	for (i = 1; i < desc->buffer_count && ret == 0; i++)
		if (spans[i].addr < spans[i - 1].end)
			ret = lw_bad(why, "the buffers at %" PRIu64 " and %" PRIu64 " overlap", spans[i - 1].addr,
				     spans[i].addr);
	free(spans);
	return ret;
}

static int read_document(const cJSON *root, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *ours;
	int ret;

	if (cJSON_IsNull(root))
		return lw_bad(why, "null: the peer has no segment yet");
	if (!cJSON_IsObject(root))
		return lw_bad(why, "not an object");
	ours = lw_json_field(root, "lw");
	if (ours != NULL && !cJSON_IsObject(ours))
		return lw_bad(why, "lw is not an object");
	ret = read_name(root, desc, why);
	if (ret == 0)
		ret = read_protocol(root, desc, why);
	if (ret == 0)
		ret = read_tcp(root, desc, why);
	if (ret == 0)
		ret = lw_json_incarnation(ours, &desc->incarnation, why);
	if (ret == 0)
		ret = read_option(ours, "auth", LW_TCP_AUTH, desc, why);
	if (ret == 0)
		ret = read_option(ours, "checksum", LW_TCP_CHECKSUM, desc, why);
	if (ret == 0)
		ret = read_data(ours, desc, why);
	if (ret == 0)
		ret = read_shm(ours, desc, why);
	if (ret == 0 && strcmp(desc->protocol, "nvmeof") == 0)
		return lw_desc_read_files(root, ours, desc, why);
	if (ret == 0)
		ret = read_buffers(root, ours, desc, why);
	if (ret == 0)
		ret = check_overlap(desc, why);
	if (ret == 0)
		ret = lw_desc_read_gpus(root, ours, desc, why);
	if (ret == 0)
		ret = lw_desc_read_rdma(root, desc);
	return ret;
}

int lw_desc_decode(const char *text, size_t length, struct lw_desc **out, char *why_text, size_t why_size)
{
	const struct lw_why why = {.text = why_text, .size = why_text != NULL ? why_size : 0};
	struct lw_desc *desc;
	cJSON *root = NULL;
	int ret;

	ret = lw_json_read(text, length, &root, &why);
	if (ret < 0)
		return ret;
	desc = calloc(1, sizeof(*desc));
	ret = desc != NULL ? read_document(root, desc, &why) : -ENOMEM;
	cJSON_Delete(root);
	if (ret < 0) {
		lw_desc_free(desc);
		return ret;
	}
	*out = desc;
	return 0;
}

void lw_desc_free(struct lw_desc *desc)
{
	if (desc == NULL)
		return;
	lw_desc_drop_rdma(&desc->rdma);
	lw_desc_drop_gpus(desc);
	free(desc->buffers);
	lw_desc_free_files(desc->files, desc->file_count);
	free(desc);
}
