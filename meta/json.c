/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define MAX_TEXT_BYTES 134217728u /* the longest frame that can be set */
#define MAX_DEPTH 16
/* A parsed value costs some 80 bytes, and can take two in the text. Honest documents use seven and more. */
#define FREE_VALUES 1024u
#define BYTES_PER_VALUE 4u

int lw_bad(const struct lw_why *why, const char *format, ...)
{
	va_list args;

	if (why->size > 0) {
		va_start(args, format);
		vsnprintf(why->text, why->size, format, args);
		va_end(args);
	}
	return -EPROTO;
}

bool lw_is_printable(const char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			return false;
	return true;
}

/* Bounds what the parser, which recurses and allocates a node a value, can be made to do. It also refuses what the
 * parser would let through: control bytes, and NULs that would cut a text short. */
static int scan(const char *text, size_t length, const struct lw_why *why)
{
	size_t depth = 0, values = 0, i;
	bool in_string = false;

	if (length > MAX_TEXT_BYTES)
		return lw_bad(why, "the document has %zu bytes, more than %u", length, MAX_TEXT_BYTES);
	for (i = 0; i < length; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c == '\0' || (in_string && c < 0x20))
			return lw_bad(why, "not JSON: a control byte at byte %zu", i);
		if (in_string) {
			if (c == '\\') {
				if (length - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
					return lw_bad(why, "a NUL inside a text at byte %zu", i);
				i++;
			} else if (c == '"') {
				in_string = false;
			}
			continue;
		}
		switch (c) {
		case '"':
			in_string = true;
			break;
		case '{':
		case '[':
			values++;
			if (++depth > MAX_DEPTH)
				return lw_bad(why, "nested deeper than %d levels", MAX_DEPTH);
			break;
		case '}':
		case ']':
			if (depth-- == 0)
				return lw_bad(why, "not JSON: an unmatched '%c' at byte %zu", c, i);
			break;
		case ',':
			values++;
			break;
		}
	}
	if (in_string || depth > 0)
		return lw_bad(why, "not JSON: cut short after %zu bytes", length);
	if (values > FREE_VALUES + length / BYTES_PER_VALUE)
		return lw_bad(why, "%zu values in %zu bytes are no document of an engine", values, length);
	return 0;
}

int lw_json_read(const char *text, size_t length, cJSON **root, const struct lw_why *why)
{
	const char *end = NULL;
	cJSON *parsed;
	int ret = scan(text, length, why);

	if (ret < 0)
		return ret;
	parsed = cJSON_ParseWithLengthOpts(text, length, &end, 0);
	if (parsed == NULL)
		return lw_bad(why, "not JSON: %s at byte %zu", length == 0 ? "empty" : "unexpected text",
			      end != NULL ? (size_t)(end - text) : 0);
	while ((size_t)(end - text) < length && strchr(" \t\r\n", *end) != NULL)
		end++;
	if ((size_t)(end - text) != length) {
		cJSON_Delete(parsed);
		return lw_bad(why, "not JSON: more text after the end, at byte %zu", (size_t)(end - text));
	}
	*root = parsed;
	return 0;
}

const cJSON *lw_json_field(const cJSON *object, const char *key)
{
	return cJSON_GetObjectItemCaseSensitive(object, key);
}

bool lw_json_integer(const cJSON *item, uint64_t min, uint64_t max, uint64_t *out)
{
	double number;
	uint64_t value;

	if (!cJSON_IsNumber(item))
		return false;
	number = item->valuedouble;
	if (!(number >= 0 && number <= (double)LW_JSON_INTEGER_MAX)) /* false for NaN too */
		return false;
	value = (uint64_t)number;
	if ((double)value < number || value < min || value > max)
		return false;
	*out = value;
	return true;
}

int lw_json_life(const cJSON *ours, const char *key, uint64_t *out, const struct lw_why *why)
{
	const cJSON *item = lw_json_field(ours, key);

	if (item == NULL)
		return 0;
	if (!cJSON_IsString(item) || strlen(item->valuestring) != 16 ||
	    strspn(item->valuestring, "0123456789abcdefABCDEF") != 16)
		return lw_bad(why, "lw.%s is not a text of 16 hexadecimal digits", key);
	*out = strtoull(item->valuestring, NULL, 16);
	return 0;
}

int lw_json_incarnation(const cJSON *ours, uint64_t *out, const struct lw_why *why)
{
	return lw_json_life(ours, "incarnation", out, why);
}

int lw_json_text(cJSON *json, char **out)
{
	char *text = json != NULL ? cJSON_PrintUnformatted(json) : NULL;
	char *copy = text != NULL ? strdup(text) : NULL;

	cJSON_free(text);
	cJSON_Delete(json);
	if (copy == NULL)
		return -ENOMEM;
	*out = copy;
	return 0;
}
