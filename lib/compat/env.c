/* SPDX-License-Identifier: Apache-2.0 */
/* Variables and settings that this library looks at itself; all others are the engine's (lib/foreign.c). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "lib/compat/compat.h"

#define WAIT_VARIABLE "MC_TCP_ADMISSION_TIMEOUT_MS"
#define WAIT_MS 1000
#define WAIT_MAX_MS 600000

size_t te_preferred(struct lw_setting *out)
{
	/* Mooncake's tcp does not look whether local memory is registered. */
	if (getenv("LW_LOCAL_UNREGISTERED") != NULL)
		return 0;
	out[0] = (struct lw_setting){"local_unregistered", "on"};
	return 1;
}

static uint32_t wait_ms(void)
{
	const char *text = getenv(WAIT_VARIABLE);
	unsigned long value;
	char line[200];

	if (text == NULL || *text == '\0')
		return WAIT_MS;
	if (strspn(text, "0123456789") == strlen(text)) {
		errno = 0;
		value = strtoul(text, NULL, 10);
		if (errno == 0 && value >= 1 && value <= WAIT_MAX_MS)
			return (uint32_t)value;
	}
	snprintf(line, sizeof(line),
		 "the environment's " WAIT_VARIABLE "=\"%.64s\" is no whole number of 1 to %d; %d is used", text,
		 WAIT_MAX_MS, WAIT_MS);
	lw_log_line(1, line);
	return WAIT_MS;
}

int te_settings(struct te *te)
{
	const cJSON *key;
	cJSON *config;
	char *text;
	int error = lw_engine_config_json(te->engine, &text);

	if (error != 0)
		return error;
	config = cJSON_Parse(text);
	free(text);
	te->timeout_ms = 0;
	te->caller_driven = false;
	cJSON_ArrayForEach(key, config)
	{
		const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(key, "name"));
		const char *source = cJSON_GetStringValue(cJSON_GetObjectItem(key, "source"));
		const cJSON *value = cJSON_GetObjectItem(key, "value");

		if (name == NULL || source == NULL)
			continue;
		if (strcmp(name, "timeout_ms") == 0 && strcmp(source, "default") == 0)
			te->timeout_ms = (uint32_t)cJSON_GetNumberValue(value);
		if (strcmp(name, "max_buffers") == 0)
			te->max_buffers = (uint64_t)cJSON_GetNumberValue(value);
		if (strcmp(name, "poll") == 0 && cJSON_IsString(value))
			te->caller_driven = strcmp(value->valuestring, "caller") == 0;
	}
	cJSON_Delete(config);
	te->submit_wait_ms = wait_ms();
	text = getenv("MC_SLICE_TIMEOUT");
	te->tells_timeout = text != NULL && *text != '\0';
	return config != NULL ? 0 : -ENOMEM;
}
