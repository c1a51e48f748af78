/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

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
