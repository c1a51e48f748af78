/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/matrix.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "meta/json.h"

_Static_assert(LW_MATRIX_DEVICES <= UINT8_MAX + 1, "a device is a byte of a row");

/* Place of the row of a location, or where it belongs. */
static size_t row_place(const struct lw_matrix *matrix, const char *location, bool *found)
{
	size_t low = 0, high = matrix->row_count;

	*found = false;
	while (low < high && !*found) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(matrix->rows[middle].location, location);

		*found = order == 0;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return high;
}

static int get_row(struct lw_matrix *matrix, const char *location, struct lw_matrix_row **out)
{
	bool found;
	size_t at = row_place(matrix, location, &found);

	if (!found) {
		if (matrix->row_count == LW_MATRIX_ROWS)
			return -ENOSPC;
		if (matrix->row_count == matrix->rows_room) {
			size_t room = matrix->rows_room != 0 ? matrix->rows_room * 2 : 8;
			struct lw_matrix_row *rows = realloc(matrix->rows, room * sizeof(*rows));

			if (rows == NULL)
				return -ENOMEM;
			matrix->rows = rows;
			matrix->rows_room = room;
		}
		memmove(&matrix->rows[at + 1], &matrix->rows[at], (matrix->row_count - at) * sizeof(*matrix->rows));
		memset(&matrix->rows[at], 0, sizeof(matrix->rows[at]));
		memcpy(matrix->rows[at].location, location, strlen(location));
		matrix->row_count++;
	}
	*out = &matrix->rows[at];
	return 0;
}

static int get_device(struct lw_matrix *matrix, const char *name, uint8_t *out)
{
	size_t i;

	for (i = 0; i < matrix->device_count; i++)
		if (strcmp(matrix->device[i], name) == 0)
			break;
	if (i == matrix->device_count) {
		if (i == LW_MATRIX_DEVICES)
			return -ENOSPC;
		memset(matrix->device[i], 0, LW_MATRIX_NAME);
		memcpy(matrix->device[i], name, strlen(name));
		matrix->device_count++;
	}
	*out = (uint8_t)i;
	return 0;
}

static bool is_name(const char *text)
{
	return text[0] != '\0' && strnlen(text, LW_MATRIX_NAME) < LW_MATRIX_NAME;
}

int lw_matrix_add(struct lw_matrix *matrix, const char *location, const char *device, bool preferred)
{
	struct lw_matrix_row *row;
	size_t count, at;
	uint8_t number;
	int ret;

	if (!is_name(location) || (device != NULL && !is_name(device)))
		return -EINVAL;
	ret = get_row(matrix, location, &row);
	if (ret != 0 || device == NULL)
		return ret;
	ret = get_device(matrix, device, &number);
	if (ret != 0)
		return ret;
	count = (size_t)row->preferred + row->available;
	if (count != 0 && memchr(row->device, number, count) != NULL)
		return 0;
	at = preferred ? row->preferred : count; /* count < LW_MATRIX_DEVICES, since none is in it twice */
	memmove(&row->device[at + 1], &row->device[at], count - at);
	row->device[at] = number;
	if (preferred)
		row->preferred++;
	else
		row->available++;
	return 0;
}

/* Reading -------------------------------------------------------------------------------------------------------------
 */

static int add(struct lw_matrix *matrix, const char *location, const char *device, bool preferred,
	       const struct lw_why *why)
{
	int ret = lw_matrix_add(matrix, location, device, preferred);

	if (ret != -ENOSPC)
		return ret;
	return lw_bad(why, "more than %d locations, or more than %d devices", LW_MATRIX_ROWS, LW_MATRIX_DEVICES);
}

static int read_list(struct lw_matrix *matrix, const char *location, const cJSON *list, bool preferred,
		     const struct lw_why *why)
{
	const cJSON *item;
	size_t at = 0;
	int ret;

	if (!cJSON_IsArray(list))
		return lw_bad(why, "\"%s\"[%d] is not a list of device names", location, preferred ? 0 : 1);
	cJSON_ArrayForEach(item, list)
	{
		if (!cJSON_IsString(item) || !is_name(item->valuestring) || !lw_is_printable(item->valuestring))
			return lw_bad(why, "\"%s\"[%d][%zu] is not a device name of 1 to %d bytes", location,
				      preferred ? 0 : 1, at, LW_MATRIX_NAME - 1);
		ret = add(matrix, location, item->valuestring, preferred, why);
		if (ret != 0)
			return ret;
		at++;
	}
	return 0;
}

static int read_rows(struct lw_matrix *matrix, const cJSON *json, const struct lw_why *why)
{
	const cJSON *item;
	bool found;
	int ret;

	if (cJSON_IsNull(json))
		return 0;
	if (!cJSON_IsObject(json))
		return lw_bad(why, "the matrix is not an object of locations");
	cJSON_ArrayForEach(item, json)
	{
		if (!is_name(item->string) || !lw_is_printable(item->string))
			return lw_bad(why, "a location is empty, longer than %d bytes, or has control bytes",
				      LW_MATRIX_NAME - 1);
		row_place(matrix, item->string, &found);
		if (found)
			return lw_bad(why, "\"%s\" is there twice", item->string);
		if (!cJSON_IsArray(item) || item->child == NULL || item->child->next == NULL ||
		    item->child->next->next != NULL)
			return lw_bad(why, "\"%s\" is not a list of two lists, [[preferred],[available]]",
				      item->string);
		ret = add(matrix, item->string, NULL, false, why);
		if (ret == 0)
			ret = read_list(matrix, item->string, item->child, true, why);
		if (ret == 0)
			ret = read_list(matrix, item->string, item->child->next, false, why);
		if (ret != 0)
			return ret;
	}
	return 0;
}

int lw_matrix_read(const struct cJSON *json, struct lw_matrix **out, char *why, size_t why_size)
{
	struct lw_matrix *matrix = calloc(1, sizeof(*matrix));
	int ret;

	if (matrix == NULL)
		return -ENOMEM;
	ret = read_rows(matrix, json, &(struct lw_why){why, why_size});
	if (ret != 0) {
		lw_matrix_free(matrix);
		return ret;
	}
	*out = matrix;
	return 0;
}

/* What the parser would let through: control bytes inside a text, and NULs that would cut one short. */
static int scan(const char *text, size_t length, const struct lw_why *why)
{
	bool in_string = false;

	if (length > LW_MATRIX_BYTES)
		return lw_bad(why, "longer than %d bytes", LW_MATRIX_BYTES);
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c == '\0' || (in_string && c < ' '))
			return lw_bad(why, "not JSON: a control byte at byte %zu", i);
		if (in_string && c == '\\') {
			if (length - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
				return lw_bad(why, "a NUL inside a text at byte %zu", i);
			i++;
		} else if (c == '"') {
			in_string = !in_string;
		}
	}
	return 0;
}

int lw_matrix_parse(const char *text, size_t length, struct lw_matrix **out, char *why_text, size_t why_size)
{
	const struct lw_why why = {why_text, why_size};
	const char *end = NULL;
	cJSON *json;
	int ret;

	ret = scan(text, length, &why);
	if (ret != 0)
		return ret;
	json = cJSON_ParseWithLengthOpts(text, length, &end, 0);
	if (json == NULL)
		return lw_bad(&why, "not JSON: %s at byte %zu", length == 0 ? "empty" : "unexpected text",
			      end != NULL ? (size_t)(end - text) : 0);
	while ((size_t)(end - text) < length && strchr(" \t\r\n", *end) != NULL)
		end++;
	if ((size_t)(end - text) != length)
		ret = lw_bad(&why, "not JSON: more text after the end, at byte %zu", (size_t)(end - text));
	else
		ret = lw_matrix_read(json, out, why_text, why_size);
	cJSON_Delete(json);
	return ret;
}

/* Writing -------------------------------------------------------------------------------------------------------------
 */

static bool write_list(const struct lw_matrix *matrix, const uint8_t *devices, size_t count, cJSON *pair)
{
	cJSON *list = cJSON_CreateArray();

	if (!cJSON_AddItemToArray(pair, list)) {
		cJSON_Delete(list);
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		cJSON *name = cJSON_CreateString(matrix->device[devices[i]]);

		if (!cJSON_AddItemToArray(list, name)) {
			cJSON_Delete(name);
			return false;
		}
	}
	return true;
}

struct cJSON *lw_matrix_write(const struct lw_matrix *matrix)
{
	cJSON *json = matrix->row_count != 0 ? cJSON_CreateObject() : cJSON_CreateNull();
	bool ok = json != NULL;

	for (size_t i = 0; i < matrix->row_count && ok; i++) {
		const struct lw_matrix_row *row = &matrix->rows[i];
		cJSON *pair = cJSON_AddArrayToObject(json, row->location);

		ok = pair != NULL && write_list(matrix, row->device, row->preferred, pair) &&
		     write_list(matrix, row->device + row->preferred, row->available, pair);
	}
	if (ok)
		return json;
	cJSON_Delete(json);
	return NULL;
}

char *lw_matrix_print(const struct lw_matrix *matrix)
{
	char *text = NULL;

	(void)lw_json_text(lw_matrix_write(matrix), &text);
	return text;
}

void lw_matrix_find(const struct lw_matrix *matrix, const char *location, struct lw_matrix_row *out)
{
	bool found;
	size_t at = row_place(matrix, location, &found);

	if (found) {
		*out = matrix->rows[at];
		return;
	}
	memset(out, 0, sizeof(*out));
	out->location[0] = '*';
	out->preferred = (uint16_t)matrix->device_count;
	for (size_t i = 0; i < matrix->device_count; i++)
		out->device[i] = (uint8_t)i;
}

void lw_matrix_fini(struct lw_matrix *matrix)
{
	free(matrix->rows);
	memset(matrix, 0, sizeof(*matrix));
}

void lw_matrix_free(struct lw_matrix *matrix)
{
	if (matrix != NULL)
		lw_matrix_fini(matrix);
	free(matrix);
}
