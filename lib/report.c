/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine tells of itself, as JSON. */
#include <errno.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "lib/asym.h"
#include "lib/engine.h"
#include "lib/error.h"
#include "lib/host.h"
#include "meta/json.h"

const char *lw_engine_address(const struct lw_engine *engine)
{
	return engine != NULL && atomic_load(&engine->state) == LW_ENGINE_OPEN ? engine->where : NULL;
}

int lw_engine_config_json(const struct lw_engine *engine, char **out)
{
	int error;

	if (engine == NULL || out == NULL)
		return lw_fail(-EINVAL, "engine and out must not be NULL");
	error = lw_engine_check(engine);
	return error != 0 ? error : lw_config_json(&engine->config, out);
}

static void add_drivers(const struct lw_engine *engine, cJSON *info)
{
	cJSON *list = cJSON_AddArrayToObject(info, "drivers");

	for (size_t i = 0; i < lw_drivers_count; i++) {
		cJSON *driver = cJSON_CreateObject();

		cJSON_AddStringToObject(driver, "name", lw_drivers[i]->name);
		cJSON_AddBoolToObject(driver, "on", engine->driver_on[i]);
		cJSON_AddStringToObject(driver, "note", engine->driver_note[i]);
		cJSON_AddItemToArray(list, driver);
	}
}

static void add_workers(const struct lw_engine *engine, cJSON *info)
{
	cJSON *list = cJSON_AddArrayToObject(info, "workers");

	for (uint32_t i = 0; i < engine->worker_count; i++) {
		const struct lw_worker *worker = &engine->workers[i];
		cJSON *entry = cJSON_CreateObject();

		cJSON_AddNumberToObject(entry, "index", i);
		cJSON_AddStringToObject(entry, "runs_on",
					lw_engine_caller_driven(engine) ? "the caller"
					: worker->on_lcore              ? "EAL lcore"
									: "plain thread");
		cJSON_AddNumberToObject(entry, "cpu", worker->cpu);
		cJSON_AddItemToArray(list, entry);
	}
}

int lw_engine_info_json(struct lw_engine *engine, char **out)
{
	struct lw_host_facts facts;
	cJSON *info, *host;
	char text[80];
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	info = cJSON_CreateObject();
	lw_host_facts_get(&facts);
	cJSON_AddStringToObject(info, "name", engine->name);
	snprintf(text, sizeof(text), "%016llx", (unsigned long long)engine->incarnation);
	cJSON_AddStringToObject(info, "incarnation", text);
	lw_sockaddr_format(&engine->address.addr[0], text, sizeof(text));
	cJSON_AddStringToObject(info, "handshake", text);
	add_drivers(engine, info);
	add_workers(engine, info);
	host = cJSON_AddObjectToObject(info, "host");
	cJSON_AddNumberToObject(host, "cpus", facts.cpus);
	cJSON_AddBoolToObject(host, "eal", facts.eal);
	cJSON_AddStringToObject(host, "eal_why", facts.why);
	cJSON_AddNumberToObject(host, "eal_lcores", facts.lcores);
	cJSON_AddBoolToObject(host, "hugepages", engine->task_pages.huge);
	cJSON_AddBoolToObject(host, "membarrier", lw_fence_asymmetric);
	error = lw_json_text(info, out);
	lw_engine_leave(engine);
	return error == 0 ? 0 : lw_fail(error, "no memory for the report");
}
