/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fileurl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/types.h>

#include "lib/error.h"
#include "lib/fabric.h"
#include "lib/filesize.h"
#include "meta/json.h"

#define SCHEME "file:"

bool lw_is_file_url(const char *name)
{
	return strncmp(name, SCHEME, strlen(SCHEME)) == 0 || lw_is_fabric_url(name);
}

int lw_file_url_name(const char *name, char out[LW_NAME_MAX])
{
	size_t length = strnlen(name, LW_NAME_MAX);

	if (length == LW_NAME_MAX || !lw_is_printable(name))
		return lw_fail(-EINVAL,
			       "the segment %.60s... has more than %d bytes, or control characters; publish its files "
			       "under a name in a metadata store",
			       name, LW_NAME_MAX - 1);
	memcpy(out, name, length + 1);
	return 0;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A path of the name as it is spelt in the file system; NULL: no memory, or not one. */
static char *decode(const char *text, size_t length)
{
	char *path = malloc(length + 1);
	size_t to = 0;

	for (size_t i = 0; path != NULL && i < length; i++) {
		int high = 0, low = 0;

		if (text[i] != '%') {
			path[to++] = text[i];
			continue;
		}
		high = i + 2 < length ? hex(text[i + 1]) : -1;
		low = i + 2 < length ? hex(text[i + 2]) : -1;
		if (high < 0 || low < 0 || (high | low) == 0) {
			free(path);
			return NULL;
		}
		path[to++] = (char)(high << 4 | low);
		i += 2;
	}
	if (path != NULL)
		path[to] = '\0';
	return path;
}

static int add_file(struct lw_desc *desc, char *path, uint32_t access)
{
	struct lw_desc_file *file = &desc->files[desc->file_count++];
	int error;

	*file = (struct lw_desc_file){.path = path, .access = access};
	if (path == NULL || path[0] != '/')
		return lw_fail(-EINVAL, "\"%s\": a path has to begin with '/', and '%%' with two hexadecimal digits",
			       desc->name);
	error = lw_file_size_of(path, &file->length);
	if (error == 0 && file->length == 0)
		return lw_fail(-ENODATA, "%s has no bytes; give it the size that it is to have, with truncate(1)",
			       path);
	return error != 0 ? lw_fail(error, "%s: %s", path, strerror(-error)) : 0;
}

/* The namespace that the name is, held so that it is not connected to twice. */
static int add_namespace(struct lw_desc *desc, uint32_t timeout_ms, struct lw_fabric **fabric)
{
	char device[64], why[400] = "no memory";
	int error = lw_fabric_hold(desc->name, timeout_ms, fabric, device, why, sizeof(why));

	if (error != 0)
		return lw_fail(error, "%s", why);
	desc->files[desc->file_count++] = (struct lw_desc_file){.path = strdup(desc->name), .access = LW_ACCESS_REMOTE};
	error = desc->files[0].path != NULL ? lw_file_size_of(device, &desc->files[0].length) : -ENOMEM;
	if (error == 0 && desc->files[0].length == 0)
		error = -ENODATA;
	if (error == 0)
		return 0;
	lw_fail(error, "%s (%s): %s", desc->name, device, strerror(-error));
	lw_fabric_drop(*fabric, 0);
	*fabric = NULL;
	return error;
}

static int add_files(struct lw_desc *desc)
{
	const char *at = desc->name + strlen(SCHEME), *end = at + strcspn(at, "?");
	uint32_t access = LW_ACCESS_REMOTE;
	int error = 0;

	if (strcmp(end, "?access=r") == 0)
		access = LW_ACCESS_REMOTE_READ;
	else if (*end != '\0')
		error = lw_fail(-EINVAL, "\"%s\": behind '?' there may be access=r", desc->name);
	if (strncmp(at, "///", 3) == 0) /* an empty host */
		at += 2;
	while (error == 0) {
		size_t length = strcspn(at, ",?");

		error = add_file(desc, decode(at, length), access);
		at += length;
		if (*at != ',')
			break;
		at++;
	}
	return error;
}

int lw_file_url_read(const char *name, uint32_t timeout_ms, struct lw_desc **out, struct lw_fabric **fabric)
{
	struct lw_desc *desc = calloc(1, sizeof(*desc));
	int error;

	if (desc != NULL)
		desc->files = calloc(LW_NAME_MAX, sizeof(*desc->files)); /* a file takes a byte of the name, or more */
	if (desc == NULL || desc->files == NULL) {
		free(desc);
		return lw_fail(-ENOMEM, "no memory for \"%s\"", name);
	}
	snprintf(desc->name, sizeof(desc->name), "%s", name);
	desc->origin = LW_DESC_OWN;
	snprintf(desc->protocol, sizeof(desc->protocol), "nvmeof");
	error = lw_is_fabric_url(name) ? add_namespace(desc, timeout_ms, fabric) : add_files(desc);
	if (error != 0) {
		lw_desc_free(desc);
		return error;
	}
	*out = desc;
	return 0;
}
