/* SPDX-License-Identifier: Apache-2.0 */
/* Documents of segments of files in a metadata store: see lanewise/file.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include <lanewise/file.h>

#include "lib/config.h"
#include "lib/error.h"
#include "lib/fabric.h"
#include "lib/filesize.h"
#include "meta/descriptor.h"
#include "meta/directory.h"
#include "meta/json.h"
#include "meta/store.h"

#define WHY_BYTES 320

/* A store, and the key of one document in it. */
struct place {
	struct lw_store *store;
	uint32_t timeout_ms;
	char key[LW_STORE_KEY_MAX];
	const char *name;
};

static int open_place(const struct lw_engine_opts *given, const char *name, struct place *out)
{
	struct lw_engine_opts opts = {.size = sizeof(opts)};
	struct lw_store_options store = {.size = sizeof(store)};
	struct lw_config *config;
	const char *url;
	char why[WHY_BYTES];
	int error;

	if (name == NULL || name[0] == '\0' || strnlen(name, LW_NAME_MAX) == LW_NAME_MAX || !lw_is_printable(name) ||
	    name[0] == '/')
		return lw_fail(-EINVAL, "a segment name has 1 to %d bytes, no control characters, and no '/' in front",
			       LW_NAME_MAX - 1);
	if (given != NULL && (given->size < sizeof(given->size) || given->size > 4096))
		return lw_fail(-EINVAL, "opts->size must be sizeof(struct lw_engine_opts); call lw_engine_opts_init");
	if (given != NULL)
		memcpy(&opts, given, given->size < sizeof(opts) ? given->size : sizeof(opts));
	config = malloc(sizeof(*config));
	if (config == NULL)
		return lw_fail(-ENOMEM, "no memory for the settings");
	error = lw_config_load(config, opts.config_file, opts.settings, opts.settings_count);
	if (error != 0)
		goto out;
	url = opts.metadata != NULL ? opts.metadata : config->metadata;
	if (lw_store_is_p2p(url)) {
		error = lw_fail(-ENOTSUP, "there is no metadata store to keep \"%s\" in: set metadata to its URL",
				name);
		goto out;
	}
	store.redis_db = (uint32_t)config->store_db;
	store.user = config->store_user;
	store.password = config->store_password;
	store.token = config->store_token;
	store.max_value = config->store_max_bytes;
	out->name = name;
	out->timeout_ms = (uint32_t)config->store_timeout_ms;
	lw_directory_segment_key(config->store_cluster, name, out->key);
	error = lw_store_open(url, &store, &out->store, why, sizeof(why));
	if (error != 0)
		lw_fail(error, "the metadata store: %s", why);
out:
	free(config);
	return error;
}

/* The document, parsed and known to be one of files. The caller deletes *json. */
static int get(struct place *place, cJSON **json)
{
	const struct lw_why nobody = {.size = 0};
	struct lw_desc *desc = NULL;
	char why[WHY_BYTES], *text;
	size_t length;
	int error = lw_store_get(place->store, place->key, place->timeout_ms, &text, &length, why, sizeof(why));

	if (error == -ENOENT)
		return lw_fail(error, "the metadata store knows no \"%s\": %s", place->name, why);
	if (error != 0)
		return lw_fail(error, "\"%s\" was not read: %s", place->name, why);
	error = lw_desc_decode(text, length, &desc, why, sizeof(why));
	if (error != 0)
		lw_fail(error, "the document of \"%s\" can't be used: %s", place->name, why);
	else if (desc->file_count == 0)
		error = lw_fail(-EPROTO, "\"%s\" is no segment of files: its protocol is %s", place->name,
				desc->protocol);
	else if (lw_json_read(text, length, json, &nobody) != 0)
		error = lw_fail(-ENOMEM, "no memory for the document of \"%s\"", place->name);
	lw_desc_free(desc);
	free(text);
	return error;
}

/* Takes json over. */
static int put(struct place *place, cJSON *json)
{
	char why[WHY_BYTES], *text;
	int error = lw_json_text(json, &text);

	if (error != 0)
		return lw_fail(error, "no memory for the document of \"%s\"", place->name);
	error = lw_store_put(place->store, place->key, text, strlen(text), LW_STORE_KEEP, place->timeout_ms, why,
			     sizeof(why));
	free(text);
	return error != 0 ? lw_fail(error, "\"%s\" was not written: %s", place->name, why) : 0;
}

static int add_file(cJSON *list, const struct lw_file *file, size_t at)
{
	cJSON *item = cJSON_CreateObject(), *map;
	uint64_t bytes = file->length;
	char number[24];
	int error = 0;

	if (!cJSON_AddItemToArray(list, item)) {
		cJSON_Delete(item);
		return lw_fail(-ENOMEM, "no memory for file %zu", at);
	}
	if (file->path == NULL || (file->path[0] != '/' && !lw_is_fabric_url(file->path)) ||
	    strnlen(file->path, LW_DESC_PATH_MAX) == LW_DESC_PATH_MAX || !lw_is_printable(file->path) ||
	    (file->server != NULL && !lw_is_printable(file->server)))
		return lw_fail(-EINVAL, "file %zu, \"%.100s\": a path begins with '/' and has at most %d bytes", at,
			       file->path != NULL ? file->path : "", LW_DESC_PATH_MAX - 1);
	if (file->reserved != 0 || (file->access != LW_ACCESS_REMOTE && file->access != LW_ACCESS_REMOTE_READ))
		return lw_fail(-EINVAL, "%s: access is to read, or to read and write; reserved is 0", file->path);
	if (bytes == 0 && lw_is_fabric_url(file->path))
		return lw_fail(-EINVAL, "%s: give its length", file->path);
	if (bytes == 0)
		error = lw_file_size_of(file->path, &bytes);
	if (error != 0)
		return lw_fail(error, "%s: %s; give its length if this host does not have it", file->path,
			       strerror(-error));
	if (bytes == 0)
		return lw_fail(-ENODATA, "%s has no bytes; give it the size that it is to have, with truncate(1)",
			       file->path);
	if (bytes > LW_JSON_INTEGER_MAX)
		return lw_fail(-EINVAL, "%s: a length is at most %" PRIu64, file->path, LW_JSON_INTEGER_MAX);
	snprintf(number, sizeof(number), "%" PRIu64, bytes);
	cJSON_AddStringToObject(item, "file_path", file->path);
	cJSON_AddRawToObject(item, "length", number);
	map = cJSON_AddObjectToObject(item, "local_path_map");
	if (map == NULL || (file->server != NULL && cJSON_AddStringToObject(map, file->server, file->path) == NULL))
		return lw_fail(-ENOMEM, "no memory for file %zu", at);
	return 0;
}

/* lw.access, if not all may be written. */
static void add_access(cJSON *json, const struct lw_file *files, size_t count)
{
	cJSON *list;
	size_t i = 0;

	while (i < count && files[i].access == LW_ACCESS_REMOTE)
		i++;
	if (i == count)
		return;
	list = cJSON_AddArrayToObject(cJSON_AddObjectToObject(json, "lw"), "access");
	for (i = 0; i < count; i++)
		cJSON_AddItemToArray(list, cJSON_CreateNumber(files[i].access));
}

int lw_file_publish(const struct lw_engine_opts *opts, const char *name, const struct lw_file *files, size_t count,
		    uint32_t flags)
{
	struct place place;
	cJSON *json, *list, *before = NULL;
	int error;

	if (files == NULL || count == 0 || count > LW_FILES_MAX || (flags & ~LW_FILE_REPLACE) != 0)
		return lw_fail(-EINVAL, "a segment has 1 to %u files; flags is 0 or LW_FILE_REPLACE", LW_FILES_MAX);
	error = open_place(opts, name, &place);
	if (error != 0)
		return error;
	json = cJSON_CreateObject();
	list = cJSON_AddArrayToObject(json, "buffers");
	for (size_t i = 0; i < count && error == 0; i++)
		error = add_file(list, &files[i], i);
	add_access(json, files, count);
	if (error == 0 && (cJSON_AddStringToObject(json, "name", name) == NULL ||
			   cJSON_AddStringToObject(json, "protocol", "nvmeof") == NULL))
		error = lw_fail(-ENOMEM, "no memory for the document of \"%s\"", name);
	if (error != 0)
		goto out;
	error = get(&place, &before);
	cJSON_Delete(before);
	if (error == 0 && (flags & LW_FILE_REPLACE) == 0)
		error = lw_fail(-EEXIST, "there is a segment of files \"%s\"; withdraw it, or ask to replace it", name);
	else if (error == 0 || error == -ENOENT) {
		error = put(&place, json);
		json = NULL;
	} else if (error == -EPROTO) {
		error = lw_fail(-ESTALE, "\"%s\" has a document that is no segment of files; choose another name",
				name);
	}
out:
	cJSON_Delete(json);
	lw_store_close(place.store);
	return error;
}

/* Whether path is from, or lies below it; then *rest is what follows. */
static bool is_below(const char *path, const char *from, const char **rest)
{
	size_t length = strlen(from);

	while (length > 0 && from[length - 1] == '/')
		length--;
	if (strncmp(path, from, length) != 0 || (path[length] != '/' && path[length] != '\0'))
		return false;
	*rest = path + length;
	return true;
}

/* One file's entry. 1 if it is meant. */
static int mount_one(cJSON *item, bool alone, const char *server, const char *from, const char *to)
{
	const char *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file_path")), *rest = "";
	cJSON *map = cJSON_GetObjectItemCaseSensitive(item, "local_path_map");
	char *there;
	int error;

	if (path == NULL || !(from[0] == '\0' ? alone : is_below(path, from, &rest)))
		return 0;
	if (map == NULL)
		map = cJSON_AddObjectToObject(item, "local_path_map");
	cJSON_DeleteItemFromObjectCaseSensitive(map, server);
	if (to == NULL)
		return 1;
	if (strlen(to) + strlen(rest) >= LW_DESC_PATH_MAX)
		return lw_fail(-ENAMETOOLONG, "%s%s is too long for a path", to, rest);
	there = malloc(strlen(to) + strlen(rest) + 1);
	error = there != NULL ? 1 : -ENOMEM;
	if (there != NULL) {
		size_t length = strlen(to);

		while (length > 1 && rest[0] == '/' && to[length - 1] == '/')
			length--;
		memcpy(there, to, length);
		strcpy(there + length, rest);
		if (cJSON_AddStringToObject(map, server, there) == NULL)
			error = -ENOMEM;
	}
	free(there);
	return error == -ENOMEM ? lw_fail(error, "no memory for the entry of %s", path) : error;
}

int lw_file_mount(const struct lw_engine_opts *opts, const char *name, const char *server, const char *from,
		  const char *to)
{
	struct place place;
	cJSON *json, *list, *item;
	int error, count = 0;

	if (server == NULL || server[0] == '\0' || !lw_is_printable(server) || from == NULL ||
	    (to != NULL && ((to[0] != '/' && !lw_is_fabric_url(to)) || !lw_is_printable(to))))
		return lw_fail(-EINVAL, "a server's name and from must be given; to is an absolute path, or NULL");
	error = open_place(opts, name, &place);
	if (error != 0)
		return error;
	error = get(&place, &json);
	if (error != 0)
		goto out;
	list = cJSON_GetObjectItemCaseSensitive(json, "buffers");
	cJSON_ArrayForEach(item, list)
	{
		error = mount_one(item, cJSON_GetArraySize(list) == 1, server, from, to);
		if (error < 0)
			break;
		count += error;
	}
	if (error >= 0 && count == 0)
		error = lw_fail(-ENOENT, "\"%s\" has no file that is, or lies below, \"%s\"", name, from);
	if (error >= 0)
		error = put(&place, json);
	else
		cJSON_Delete(json);
out:
	lw_store_close(place.store);
	return error < 0 ? error : count;
}

int lw_file_json(const struct lw_engine_opts *opts, const char *name, char **out)
{
	struct place place;
	cJSON *json;
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = open_place(opts, name, &place);
	if (error != 0)
		return error;
	error = get(&place, &json);
	if (error == 0 && lw_json_text(json, out) != 0)
		error = lw_fail(-ENOMEM, "no memory for the document of \"%s\"", name);
	lw_store_close(place.store);
	return error;
}

int lw_file_withdraw(const struct lw_engine_opts *opts, const char *name)
{
	struct place place;
	char why[WHY_BYTES];
	cJSON *json = NULL;
	int error = open_place(opts, name, &place);

	if (error != 0)
		return error;
	error = get(&place, &json); /* whether it is ours to remove */
	cJSON_Delete(json);
	if (error == 0) {
		error = lw_store_remove(place.store, place.key, 0, place.timeout_ms, why, sizeof(why));
		if (error != 0)
			lw_fail(error, "\"%s\" was not removed: %s", name, why);
	}
	lw_store_close(place.store);
	return error;
}
