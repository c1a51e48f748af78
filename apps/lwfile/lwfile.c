/* SPDX-License-Identifier: Apache-2.0 */
/* lwfile: segments of files in a metadata store. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include <lanewise/lanewise.h>

#include "apps/common/units.h"

#define SETTINGS_MAX 32

static const char usage[] =
	"lwfile looks after segments of files in a metadata store; engines open them by their name.\n"
	"\n"
	"  lwfile publish NAME [options] PATH[=LENGTH]...   the files or block devices, one behind the other\n"
	"  lwfile mount NAME --server S --from A --to B     server S has below B what the storage node has below A\n"
	"  lwfile unmount NAME --server S [--from A]        it has it no more\n"
	"  lwfile show NAME [--json]                        the files, and where each server has them\n"
	"  lwfile withdraw NAME                             removes the segment; the files stay\n"
	"\n"
	"  --metadata URL     the store (the setting metadata)\n"
	"  --set NAME=VALUE   any setting; may be repeated\n"
	"  --server NAME      an engine's name; publish: it has the files under the paths given\n"
	"  --from PATH        a file's path, or a folder above; without it, a segment's one file\n"
	"  --to PATH\n"
	"  --read-only        publish: nobody writes the files\n"
	"  --replace          publish: overwrites a segment of files of that name\n"
	"  --json             show: the document as it is\n"
	"  -h, --help, --version\n"
	"\n"
	"LENGTH takes k, m, g, t (powers of 1,024); without it the file's length now counts. NAME is nvmeof/... by "
	"custom.\n"
	"Exit status: 0 done; 1 it failed, a sentence on stderr says why; 2 wrong usage.\n";

enum { OPT_METADATA = 256, OPT_SET, OPT_SERVER, OPT_FROM, OPT_TO, OPT_READ_ONLY, OPT_REPLACE, OPT_JSON, OPT_VERSION };

static const struct option table[] = {
	{"metadata", required_argument, NULL, OPT_METADATA},
	{"set", required_argument, NULL, OPT_SET},
	{"server", required_argument, NULL, OPT_SERVER},
	{"from", required_argument, NULL, OPT_FROM},
	{"to", required_argument, NULL, OPT_TO},
	{"read-only", no_argument, NULL, OPT_READ_ONLY},
	{"replace", no_argument, NULL, OPT_REPLACE},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

struct options {
	struct lw_engine_opts store;
	struct lw_setting settings[SETTINGS_MAX];
	const char *server, *from, *to;
	bool read_only, replace, json;
};

static int wrong(const char *what)
{
	fprintf(stderr, "lwfile: %s; see lwfile --help\n", what);
	return 2;
}

static int failed(void)
{
	fprintf(stderr, "lwfile: %s\n", lw_last_error());
	return 1;
}

static int publish(const struct options *options, const char *name, char **paths, size_t count)
{
	struct lw_file *files = calloc(count + 1, sizeof(*files));
	int result = 2;

	if (files == NULL || count == 0) {
		free(files);
		return wrong("publish takes the paths of the files");
	}
	for (size_t i = 0; i < count; i++) {
		char *length = strrchr(paths[i], '=');

		files[i] = (struct lw_file){.path = paths[i],
					    .server = options->server,
					    .access = options->read_only ? LW_ACCESS_REMOTE_READ : LW_ACCESS_REMOTE};
		if (length != NULL && length - paths[i] >= 5 && strncmp(length - 5, "?nsid", 5) == 0)
			length = NULL;
		if (length != NULL && app_size_parse(length + 1, &files[i].length) == 0)
			*length = '\0';
	}
	result = lw_file_publish(&options->store, name, files, count, options->replace ? LW_FILE_REPLACE : 0);
	free(files);
	return result == 0 ? 0 : failed();
}

static void print_files(const cJSON *json)
{
	const cJSON *item, *mount;

	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json, "buffers"))
	{
		printf("%s  %.0f bytes\n", cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file_path")),
		       cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(item, "length")));
		cJSON_ArrayForEach(mount, cJSON_GetObjectItemCaseSensitive(item, "local_path_map"))
			printf("    %s  %s\n", mount->string, mount->valuestring);
	}
}

static int show(const struct options *options, const char *name)
{
	cJSON *json = NULL;
	char *text;

	if (lw_file_json(&options->store, name, &text) != 0)
		return failed();
	if (options->json)
		printf("%s\n", text);
	else
		print_files(json = cJSON_Parse(text));
	cJSON_Delete(json);
	free(text);
	return 0;
}

static int mount(const struct options *options, const char *name, const char *to)
{
	int count =
		lw_file_mount(&options->store, name, options->server, options->from != NULL ? options->from : "", to);

	if (count < 0)
		return failed();
	printf("%d file%s\n", count, count == 1 ? "" : "s");
	return 0;
}

static int run(const struct options *options, int count, char **words)
{
	const char *command = words[0], *name = words[1];

	if (count < 2)
		return wrong("a command and the segment's name are needed");
	if (strcmp(command, "publish") == 0)
		return publish(options, name, words + 2, (size_t)count - 2);
	if (count > 2)
		return wrong("there are words too many");
	if (strcmp(command, "show") == 0)
		return show(options, name);
	if (strcmp(command, "withdraw") == 0)
		return lw_file_withdraw(&options->store, name) == 0 ? 0 : failed();
	if (strcmp(command, "mount") == 0)
		return options->server != NULL && options->to != NULL ? mount(options, name, options->to)
								      : wrong("mount takes --server and --to");
	if (strcmp(command, "unmount") == 0)
		return options->server != NULL ? mount(options, name, NULL) : wrong("unmount takes --server");
	return wrong("there is no such command");
}

static bool set(struct options *options, char *text)
{
	char *value = strchr(text, '=');

	if (value == NULL || options->store.settings_count == SETTINGS_MAX)
		return false;
	*value++ = '\0';
	options->settings[options->store.settings_count++] = (struct lw_setting){.name = text, .value = value};
	return true;
}

int main(int argc, char **argv)
{
	struct options options = {.json = false};
	int option;

	lw_engine_opts_init(&options.store, sizeof(options.store));
	options.store.settings = options.settings;
	while ((option = getopt_long(argc, argv, "h", table, NULL)) != -1) {
		switch (option) {
		case OPT_METADATA:
			options.store.metadata = optarg;
			break;
		case OPT_SET:
			if (!set(&options, optarg))
				return wrong("--set takes NAME=VALUE");
			break;
		case OPT_SERVER:
			options.server = optarg;
			break;
		case OPT_FROM:
			options.from = optarg;
			break;
		case OPT_TO:
			options.to = optarg;
			break;
		case OPT_READ_ONLY:
			options.read_only = true;
			break;
		case OPT_REPLACE:
			options.replace = true;
			break;
		case OPT_JSON:
			options.json = true;
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		case OPT_VERSION:
			printf("lwfile %s\n", lw_version_string());
			return 0;
		default:
			return 2;
		}
	}
	return run(&options, argc - optind, argv + optind);
}
