/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a descriptor that tells of files. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/types.h>

#include "meta/descriptor_pvt.h"

static int copy_text(const cJSON *item, const char *what, size_t at, char **out, const struct lw_why *why)
{
	if (!cJSON_IsString(item) || item->valuestring[0] == '\0' || strlen(item->valuestring) >= LW_DESC_PATH_MAX ||
	    !lw_is_printable(item->valuestring))
		return lw_bad(why, "buffers[%zu].%s is missing, empty, no text, has control bytes or is too long", at,
			      what);
	*out = strdup(item->valuestring);
	return *out != NULL ? 0 : -ENOMEM;
}

static int read_mounts(const cJSON *map, size_t at, size_t *total, struct lw_desc_file *file, const struct lw_why *why)
{
	const cJSON *item;
	size_t count = 0;
	int ret;

	if (map == NULL)
		return 0;
	if (!cJSON_IsObject(map))
		return lw_bad(why, "buffers[%zu].local_path_map is not an object", at);
	cJSON_ArrayForEach(item, map) count++;
	*total += count;
	if (*total > LW_DESC_MOUNTS_MAX)
		return lw_bad(why, "more than %u entries in local_path_map", LW_DESC_MOUNTS_MAX);
	file->mounts = calloc(count + 1, sizeof(*file->mounts));
	if (file->mounts == NULL)
		return -ENOMEM;
	cJSON_ArrayForEach(item, map)
	{
		struct lw_desc_mount *mount = &file->mounts[file->mount_count++];

		ret = copy_text(item, "local_path_map", at, &mount->path, why);
		if (ret < 0)
			return ret;
		mount->server = strdup(item->string != NULL ? item->string : "");
		if (mount->server == NULL)
			return -ENOMEM;
	}
	return 0;
}

int lw_desc_read_files(const cJSON *root, const cJSON *ours, struct lw_desc *desc, const struct lw_why *why)
{
	const cJSON *list = lw_json_field(root, "buffers"), *access = lw_json_field(ours, "access"), *item;
	size_t count = 0, mounts = 0, at = 0;
	int ret;

	if (!cJSON_IsArray(list))
		return lw_bad(why, "buffers is %s", list == NULL ? "missing" : "not a list");
	cJSON_ArrayForEach(item, list) count++;
	if (count == 0 || count > LW_DESC_FILES_MAX)
		return lw_bad(why, "%zu files, not 1 to %u", count, LW_DESC_FILES_MAX);
	if (access != NULL && (!cJSON_IsArray(access) || (size_t)cJSON_GetArraySize(access) != count))
		return lw_bad(why, "lw.access is not a list of %zu numbers, one a file", count);
	access = access != NULL ? access->child : NULL;
	desc->files = calloc(count, sizeof(*desc->files));
	if (desc->files == NULL)
		return -ENOMEM;
	cJSON_ArrayForEach(item, list)
	{
		struct lw_desc_file *file = &desc->files[desc->file_count++];

		if (!cJSON_IsObject(item))
			return lw_bad(why, "buffers[%zu] is not an object", at);
		if (!lw_json_integer(lw_json_field(item, "length"), 1, LW_JSON_INTEGER_MAX, &file->length))
			return lw_bad(why, "buffers[%zu].length is missing, or not a whole number from 1 to %" PRIu64,
				      at, LW_JSON_INTEGER_MAX);
		ret = copy_text(lw_json_field(item, "file_path"), "file_path", at, &file->path, why);
		if (ret == 0)
			ret = lw_desc_read_access(&access, at, &file->access, why);
		if (ret == 0)
			ret = read_mounts(lw_json_field(item, "local_path_map"), at, &mounts, file, why);
		if (ret < 0)
			return ret;
		at++;
	}
	return 0;
}

void lw_desc_free_files(struct lw_desc_file *files, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		for (size_t k = 0; k < files[i].mount_count; k++) {
			free(files[i].mounts[k].server);
			free(files[i].mounts[k].path);
		}
		free(files[i].mounts);
		free(files[i].path);
	}
	free(files);
}
