/* SPDX-License-Identifier: Apache-2.0 */
/* lwinfo: what this build of Lanewise is, what it finds on this host and how it is configured. */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <lanewise/lanewise.h>

enum { EXIT_USAGE = 2 };

static const char usage[] =
	"Usage: lwinfo [--config | --topology] [--json]\n"
	"Opens an engine as the environment and the configuration file say, and prints what it found:\n"
	"version, drivers and how they work or why they are off, host, EAL, and the effective settings with their "
	"sources.\n"
	"\n"
	"  -c, --config    the settings alone, with types, ranges, defaults and help\n"
	"  -t, --topology  the host's devices alone, how near they are, and which NICs serve which memory\n"
	"  -j, --json      the same as JSON, for programs\n"
	"  -h, --help      this text\n"
	"\n"
	"Settings come from the variables LW_<NAME> and from the file that LW_CONFIG names (lines name = value).\n"
	"Exit status: 0 printed; 1 the engine could not be opened, or the output not be written; 2 wrong usage.\n";

/* A table is an array of rows, a row an array of texts. */
static void add_cell(cJSON *row, const char *text)
{
	cJSON_AddItemToArray(row, cJSON_CreateString(text));
}

static cJSON *add_row(cJSON *table)
{
	cJSON *row = cJSON_CreateArray();

	cJSON_AddItemToArray(table, row);
	return row;
}

static size_t column_width(const cJSON *table, int column)
{
	const cJSON *row, *cell;
	size_t width = 0;

	cJSON_ArrayForEach(row, table)
	{
		cell = cJSON_GetArrayItem(row, column);
		if (cJSON_IsString(cell) && strlen(cell->valuestring) > width)
			width = strlen(cell->valuestring);
	}
	return width;
}

/* The last column is not padded. */
static void print_table(const char *title, const cJSON *table)
{
	size_t widths[16] = {0}, column;
	const cJSON *row, *cell;

	if (cJSON_GetArraySize(table) == 0)
		return;
	for (column = 0; column < sizeof(widths) / sizeof(widths[0]); column++)
		widths[column] = column_width(table, (int)column);
	printf("\n%s\n", title);
	cJSON_ArrayForEach(row, table)
	{
		column = 0;
		printf(" ");
		cJSON_ArrayForEach(cell, row)
		{
			if (!cJSON_IsString(cell) || column == sizeof(widths) / sizeof(widths[0]))
				break;
			if (cell->next == NULL)
				printf(" %s", cell->valuestring);
			else
				printf(" %-*s ", (int)widths[column], cell->valuestring);
			column++;
		}
		putchar('\n');
	}
}

/* A value in one line, as people write it. */
static void value_text(const cJSON *value, char *text, size_t size)
{
	const cJSON *item;
	char piece[256], *json;
	size_t used = 0;

	if (value == NULL || cJSON_IsNull(value) || (cJSON_IsArray(value) && value->child == NULL)) {
		snprintf(text, size, "-");
	} else if (cJSON_IsBool(value)) {
		snprintf(text, size, "%s", cJSON_IsTrue(value) ? "on" : "off");
	} else if (cJSON_IsNumber(value)) {
		snprintf(text, size, "%.15g", value->valuedouble);
	} else if (cJSON_IsString(value)) {
		snprintf(text, size, "%s", value->valuestring[0] != '\0' ? value->valuestring : "-");
	} else if (cJSON_IsArray(value)) {
		cJSON_ArrayForEach(item, value)
		{
			value_text(item, piece, sizeof(piece));
			if (used < size)
				used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", piece);
		}
	} else {
		json = cJSON_PrintUnformatted(value);
		snprintf(text, size, "%s", json != NULL ? json : "");
		cJSON_free(json);
	}
}

static const char *member_text(const cJSON *object, const char *name, char *text, size_t size)
{
	value_text(cJSON_GetObjectItemCaseSensitive(object, name), text, size);
	return text;
}

/* A list of objects becomes a table with the members of the first one as columns. */
static void print_objects(const char *title, const cJSON *list)
{
	cJSON *table = cJSON_CreateArray(), *row = add_row(table);
	const cJSON *object, *member;
	char text[1024];

	cJSON_ArrayForEach(member, list->child) add_cell(row, member->string);
	cJSON_ArrayForEach(object, list)
	{
		row = add_row(table);
		cJSON_ArrayForEach(member, list->child)
			add_cell(row, member_text(object, member->string, text, sizeof(text)));
	}
	print_table(title, table);
	cJSON_Delete(table);
}

static void print_members(const char *title, const cJSON *object)
{
	cJSON *table = cJSON_CreateArray(), *row;
	const cJSON *member;
	char text[1024];

	cJSON_ArrayForEach(member, object)
	{
		row = add_row(table);
		add_cell(row, member->string);
		value_text(member, text, sizeof(text));
		add_cell(row, text);
	}
	print_table(title, table);
	cJSON_Delete(table);
}

/* Single values first, then a section for each list and object. */
static void print_info(const cJSON *info)
{
	cJSON *single = cJSON_CreateObject();
	const cJSON *member;

	cJSON_ArrayForEach(member, info) if (!cJSON_IsObject(member) &&
					     !(cJSON_IsArray(member) && cJSON_IsObject(member->child)))
		cJSON_AddItemToObject(single, member->string, cJSON_Duplicate(member, true));
	print_members("engine", single);
	cJSON_Delete(single);
	cJSON_ArrayForEach(member, info)
	{
		if (cJSON_IsObject(member))
			print_members(member->string, member);
		else if (cJSON_IsArray(member) && cJSON_IsObject(member->child))
			print_objects(member->string, member);
	}
}

/* The priority matrix as a table. */
static void print_matrix(const cJSON *matrix)
{
	cJSON *table = cJSON_CreateArray(), *row = add_row(table);
	const cJSON *location;
	char text[1024];

	add_cell(row, "location");
	add_cell(row, "preferred");
	add_cell(row, "available");
	cJSON_ArrayForEach(location, matrix)
	{
		row = add_row(table);
		add_cell(row, location->string);
		for (int i = 0; i < 2; i++) {
			const cJSON *list = cJSON_GetArrayItem(location, i);

			value_text(list, text, sizeof(text));
			add_cell(row, text);
		}
	}
	print_table("matrix", table);
	cJSON_Delete(table);
}

static void print_topology(const cJSON *topology)
{
	const cJSON *member;

	print_objects("nodes", cJSON_GetObjectItemCaseSensitive(topology, "nodes"));
	cJSON_ArrayForEach(member, topology)
	{
		if (cJSON_IsArray(member) && cJSON_IsObject(member->child) && strcmp(member->string, "nodes") != 0)
			print_objects(member->string, member);
	}
	print_matrix(cJSON_GetObjectItemCaseSensitive(topology, "matrix"));
	printf("\n%s; the matrix: %s\n", cJSON_GetStringValue(cJSON_GetObjectItem(topology, "note")),
	       cJSON_GetStringValue(cJSON_GetObjectItem(topology, "source")));
}

static const char *type_of(const cJSON *key)
{
	const cJSON *value = cJSON_GetObjectItemCaseSensitive(key, "value");
	const char *unit = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(key, "unit"));

	if (cJSON_IsNumber(value))
		return "number";
	if (cJSON_IsBool(value))
		return "on|off";
	return unit != NULL && unit[0] != '\0' ? unit : "text";
}

static void print_config(const cJSON *config, bool all)
{
	cJSON *table = cJSON_CreateArray(), *row = add_row(table);
	const cJSON *key;
	char text[1024], most[64];

	add_cell(row, "name");
	add_cell(row, "value");
	add_cell(row, "source");
	if (all) {
		add_cell(row, "default");
		add_cell(row, "type");
		add_cell(row, "range");
		add_cell(row, "help");
	} else {
		add_cell(row, "unit");
	}
	cJSON_ArrayForEach(key, config)
	{
		row = add_row(table);
		add_cell(row, member_text(key, "name", text, sizeof(text)));
		add_cell(row, member_text(key, "value", text, sizeof(text)));
		add_cell(row, member_text(key, "source", text, sizeof(text)));
		if (!all) {
			add_cell(row, cJSON_IsNumber(cJSON_GetObjectItem(key, "value"))
					      ? member_text(key, "unit", text, sizeof(text))
					      : "");
			continue;
		}
		add_cell(row, member_text(key, "default", text, sizeof(text)));
		add_cell(row, type_of(key));
		member_text(key, "min", text, 64);
		if (strcmp(text, "-") != 0) {
			member_text(key, "max", most, sizeof(most));
			snprintf(text + strlen(text), sizeof(text) - strlen(text), " to %s ", most);
			member_text(key, "unit", text + strlen(text), sizeof(text) - strlen(text));
		}
		add_cell(row, text);
		add_cell(row, member_text(key, "help", text, sizeof(text)));
	}
	print_table("settings", table);
	cJSON_Delete(table);
}

/* One document; info NULL: the other one alone. */
static void print_json(cJSON *info, cJSON *config)
{
	cJSON *all = config;
	char *text;

	if (info != NULL) {
		all = cJSON_CreateObject();
		cJSON_AddStringToObject(all, "version", lw_version_string());
		cJSON_AddItemReferenceToObject(all, "info", info);
		cJSON_AddItemReferenceToObject(all, "config", config);
	}
	text = cJSON_Print(all);
	if (text != NULL)
		puts(text);
	cJSON_free(text);
	if (all != config)
		cJSON_Delete(all);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"config", no_argument, NULL, 'c'},
		{"topology", no_argument, NULL, 't'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	char *info_text = NULL, *config_text = NULL, *topology_text = NULL;
	bool only_config = false, only_topology = false, json = false;
	cJSON *info = NULL, *config = NULL, *topology = NULL;
	struct lw_engine *engine = NULL;
	int option, rc;

	while ((option = getopt_long(argc, argv, "ctjh", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			only_config = true;
			break;
		case 't':
			only_topology = true;
			break;
		case 'j':
			json = true;
			break;
		case 'h':
			fputs(usage, stdout);
			return EXIT_SUCCESS;
		default:
			fputs(usage, stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc || (only_config && only_topology)) {
		fprintf(stderr, "lwinfo: unexpected argument \"%s\"\n%s",
			optind < argc ? argv[optind] : "--topology beside --config", usage);
		return EXIT_USAGE;
	}

	rc = lw_engine_open(NULL, &engine);
	if (rc != 0) {
		fprintf(stderr, "lwinfo: no engine could be opened: %s\n", lw_last_error());
		return EXIT_FAILURE;
	}
	if (only_topology)
		rc = lw_topology_json(engine, &topology_text);
	else
		rc = lw_engine_config_json(engine, &config_text);
	if (rc == 0 && !only_config && !only_topology)
		rc = lw_engine_info_json(engine, &info_text);
	lw_engine_close(engine);
	if (rc != 0) {
		fprintf(stderr, "lwinfo: %s\n", lw_strerror(rc));
		goto free_texts;
	}

	config = config_text != NULL ? cJSON_Parse(config_text) : NULL;
	info = info_text != NULL ? cJSON_Parse(info_text) : NULL;
	topology = topology_text != NULL ? cJSON_Parse(topology_text) : NULL;
	if (json) {
		print_json(info, only_topology ? topology : config);
	} else {
		printf("Lanewise %s\n", lw_version_string());
		if (only_topology) {
			print_topology(topology);
		} else {
			print_info(info);
			print_config(config, only_config);
		}
	}
	/* What is longer than the buffer may have failed before. */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "lwinfo: writing failed: %s\n", strerror(errno));
		rc = -EIO;
	}
	cJSON_Delete(info);
	cJSON_Delete(config);
	cJSON_Delete(topology);
free_texts:
	free(info_text);
	free(config_text);
	free(topology_text);
	return rc == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
