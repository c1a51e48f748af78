/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/common/host.h"
#include "apps/common/units.h"
#include "apps/lwbench/options.h"

enum {
	OPT_TARGET = 256,
	OPT_LISTEN,
	OPT_BUFFER,
	OPT_DURATION,
	OPT_JSON,
	OPT_OP,
	OPT_BLOCK,
	OPT_BATCH,
	OPT_THREADS,
	OPT_DEPTH,
	OPT_LANES,
	OPT_WORKERS,
	OPT_POLL,
	OPT_COUNT,
	OPT_RATE,
	OPT_PRIORITY,
	OPT_VALIDATE,
	OPT_SEED,
	OPT_SET,
	OPT_PIN,
	OPT_PROGRESS,
	OPT_FIRST,
	OPT_WAIT,
	OPT_GATHER,
};

/* Which options a command takes, one letter each: t target, i initiator, r raw. */
static const struct {
	struct option option;
	const char *commands;
} table[] = {
	{{"target", required_argument, NULL, OPT_TARGET}, "i"},
	{{"listen", required_argument, NULL, OPT_LISTEN}, "ti"},
	{{"buffer-size", required_argument, NULL, OPT_BUFFER}, "tir"},
	{{"duration", required_argument, NULL, OPT_DURATION}, "tir"},
	{{"json", required_argument, NULL, OPT_JSON}, "ir"},
	{{"json", no_argument, NULL, OPT_JSON}, "t"},
	{{"op", required_argument, NULL, OPT_OP}, "ir"},
	{{"block-size", required_argument, NULL, OPT_BLOCK}, "ir"},
	{{"batch", required_argument, NULL, OPT_BATCH}, "ir"},
	{{"threads", required_argument, NULL, OPT_THREADS}, "i"},
	{{"depth", required_argument, NULL, OPT_DEPTH}, "ir"},
	{{"lanes", required_argument, NULL, OPT_LANES}, "ti"},
	{{"workers", required_argument, NULL, OPT_WORKERS}, "ti"},
	{{"poll", required_argument, NULL, OPT_POLL}, "ti"},
	{{"count", required_argument, NULL, OPT_COUNT}, "ir"},
	{{"rate", required_argument, NULL, OPT_RATE}, "i"},
	{{"priority", required_argument, NULL, OPT_PRIORITY}, "i"},
	{{"validate", no_argument, NULL, OPT_VALIDATE}, "i"},
	{{"seed", required_argument, NULL, OPT_SEED}, "i"},
	{{"set", required_argument, NULL, OPT_SET}, "ti"},
	{{"pin", no_argument, NULL, OPT_PIN}, "ir"},
	{{"progress", no_argument, NULL, OPT_PROGRESS}, "i"},
	{{"first", no_argument, NULL, OPT_FIRST}, "i"},
	{{"wait", required_argument, NULL, OPT_WAIT}, "r"},
	{{"gather", required_argument, NULL, OPT_GATHER}, "r"},
	{{"help", no_argument, NULL, 'h'}, "tir"},
};
#define TABLE_SIZE (sizeof(table) / sizeof(table[0]))

bool options_set(struct options *options, const char *name, const char *value)
{
	if (options->settings_count == OPTIONS_SETTINGS)
		return false;
	options->settings[options->settings_count++] = (struct lw_setting){.name = name, .value = value};
	return true;
}

const char *options_get(const struct options *options, const char *name)
{
	for (size_t i = options->settings_count; i-- > 0;)
		if (strcmp(options->settings[i].name, name) == 0)
			return options->settings[i].value;
	return NULL;
}

void options_free(struct options *options)
{
	for (size_t i = 0; i < options->split_count; i++)
		free(options->split[i]);
	options->split_count = 0;
}

static bool add_block(struct options *options, uint64_t bytes)
{
	if (options->block_count == OPTIONS_BLOCKS)
		return false;
	options->blocks[options->block_count++] = bytes;
	return true;
}

/* "4k", "4k,64k,1m", "4k-4m" (each four times the one before), and lists of both. */
static bool parse_blocks(struct options *options, const char *list)
{
	options->block_count = 0;
	for (;;) {
		size_t length = strcspn(list, ",");
		char item[64];
		uint64_t from, to;

		if (length >= sizeof(item))
			return false;
		memcpy(item, list, length);
		item[length] = 0;
		char *dash = strchr(item, '-');
		if (dash)
			*dash++ = 0;
		if (app_size_parse(item, &from) || app_size_parse(dash ? dash : item, &to) || from > to)
			return false;
		for (uint64_t bytes = from; bytes <= to; bytes *= 4)
			if (!add_block(options, bytes) || bytes > UINT64_MAX / 4)
				return false;
		if (!list[length])
			return true;
		list += length + 1;
	}
}

static bool parse_number32(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
	uint64_t value;

	if (app_number_parse(text, min, max, &value))
		return false;
	*out = (uint32_t)value;
	return true;
}

static bool parse_op(const char *text, uint8_t *out)
{
	if (strcmp(text, "read") == 0)
		*out = LW_READ;
	else if (strcmp(text, "write") == 0)
		*out = LW_WRITE;
	else
		return false;
	return true;
}

static bool parse_priority(const char *text, uint8_t *out)
{
	if (strcmp(text, "foreground") == 0)
		*out = LW_FOREGROUND;
	else if (strcmp(text, "bulk") == 0)
		*out = LW_BULK;
	else
		return false;
	return true;
}

static bool parse_wait(const char *text, enum raw_wait *out)
{
	static const char *const words[] = {[RAW_POLL] = "poll", [RAW_SPIN] = "spin", [RAW_BLOCK] = "block"};

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(text, words[i]) == 0) {
			*out = (enum raw_wait)i;
			return true;
		}
	}
	return false;
}

static bool parse_setting(struct options *options, const char *text)
{
	char *copy, *equal;

	if (options->split_count == OPTIONS_SETTINGS || !strchr(text, '=') || text[0] == '=')
		return false;
	copy = strdup(text);
	if (!copy)
		return false;
	options->split[options->split_count++] = copy;
	equal = strchr(copy, '=');
	*equal = 0;
	return options_set(options, copy, equal + 1);
}

/* false: the value is wrong. */
static bool take(struct options *options, int option, const char *value)
{
	switch (option) {
	case OPT_TARGET:
		options->target = value;
		return value[0] != 0;
	case OPT_LISTEN:
		options->listen = value;
		return value[0] != 0;
	case OPT_BUFFER:
		return app_size_parse(value, &options->buffer_bytes) == 0 && options->buffer_bytes <= SIZE_MAX / 2;
	case OPT_DURATION:
		return app_fraction_parse(value, 1e9, &options->duration_s) == 0;
	case OPT_JSON:
		options->json = value ? value : "-";
		return options->json[0] != 0;
	case OPT_OP:
		return parse_op(value, &options->op);
	case OPT_BLOCK:
		return parse_blocks(options, value);
	case OPT_BATCH:
		return parse_number32(value, 1, LW_BATCH_MAX_TASKS, &options->batch);
	case OPT_THREADS:
		return parse_number32(value, 1, 1024, &options->threads);
	case OPT_DEPTH:
		return parse_number32(value, 1, 65536, &options->depth);
	case OPT_LANES:
		return options_set(options, "tcp_lanes", value);
	case OPT_WORKERS:
		return options_set(options, "workers", value);
	case OPT_POLL:
		return options_set(options, "poll", value);
	case OPT_COUNT:
		return app_number_parse(value, 1, UINT64_MAX / 2, &options->count) == 0;
	case OPT_RATE:
		return app_fraction_parse(value, 1e9, &options->rate) == 0 && options->rate > 0;
	case OPT_PRIORITY:
		return parse_priority(value, &options->priority);
	case OPT_VALIDATE:
		options->validate = true;
		return true;
	case OPT_SEED:
		return app_number_parse(value, 0, UINT64_MAX, &options->seed) == 0;
	case OPT_SET:
		return parse_setting(options, value);
	case OPT_PIN:
		options->pin = true;
		return true;
	case OPT_PROGRESS:
		options->progress = true;
		return true;
	case OPT_FIRST:
		options->first = true;
		return true;
	case OPT_WAIT:
		return parse_wait(value, &options->wait);
	case OPT_GATHER:
		return parse_number32(value, 1, OPTIONS_GATHER, &options->gather);
	default:
		return false;
	}
}

static int fail(const char *text)
{
	fprintf(stderr, "lwbench: %s\n", text);
	return EXIT_USAGE;
}

int options_check(struct options *options)
{
	const char *poll = options_get(options, "poll");
	const char *timeout = options_get(options, "timeout_ms");
	uint64_t timeout_ms = 30000;

	/* The engine takes them from the environment, too. */
	poll = poll ? poll : getenv("LW_POLL");
	timeout = timeout ? timeout : getenv("LW_TIMEOUT_MS");
	if (options->command == COMMAND_INITIATOR && !options->target)
		return fail("--target is missing: the name that `lwbench target` printed");
	if (options->validate && options->rate > 0)
		return fail("--validate takes no --rate");
	if (options->validate && options->target && strncmp(options->target, "null:", 5) == 0)
		return fail("the null driver moves no bytes: nothing to validate");
	if ((uint64_t)options->batch * options->depth * options->threads > 16777216)
		return fail("--batch times --depth times --threads is more than 16777216 requests");
	if (options->command != COMMAND_TARGET && !options->count && options->duration_s <= 0)
		return fail("--duration is 0 and there is no --count: nothing to do");
	options->spin = poll && strcmp(poll, "busy") == 0;
	options->caller = poll && strcmp(poll, "caller") == 0;
	if (timeout)
		app_number_parse(timeout, 1, 86400000, &timeout_ms);
	options->timeout_ms = (uint32_t)timeout_ms;
	return -1;
}

void options_defaults(struct options *options, enum command command)
{
	memset(options, 0, sizeof(*options));
	options->command = command;
	options->blocks[options->block_count++] = 65536;
	options->buffer_bytes = UINT64_C(256) << 20;
	options->seed = app_clock_ns() ^ (uint64_t)getpid() << 32;
	options->batch = 16;
	options->threads = 1;
	options->depth = 4;
	options->gather = 1;
	options->duration_s = command == COMMAND_TARGET ? 0 : 5;
	options->op = LW_WRITE;
	options->progress = isatty(STDERR_FILENO);
}

int options_parse(struct options *out, int argc, char **argv)
{
	static const struct {
		const char *name;
		enum command command;
		char letter;
	} commands[] = {
		{"target", COMMAND_TARGET, 't'},
		{"initiator", COMMAND_INITIATOR, 'i'},
		{"null", COMMAND_INITIATOR, 'i'},
		{"raw", COMMAND_RAW, 'r'},
	};
	struct option list[TABLE_SIZE + 1];
	size_t which = 0, count = 0;
	int option;

	options_defaults(out, COMMAND_TARGET);
	while (which < 4 && strcmp(argv[1], commands[which].name) != 0)
		which++;
	if (which == 4) {
		fprintf(stderr, "lwbench: no command '%s'; try lwbench --help\n", argv[1]);
		return EXIT_USAGE;
	}
	options_defaults(out, commands[which].command);
	if (strcmp(argv[1], "null") == 0)
		out->target = "null://";
	for (size_t i = 0; i < TABLE_SIZE; i++)
		if (strchr(table[i].commands, commands[which].letter))
			list[count++] = table[i].option;
	list[count] = (struct option){0};
	argv[1] = argv[0]; /* the name in getopt_long's messages */
	while ((option = getopt_long(argc - 1, argv + 1, "h", list, NULL)) != -1) {
		if (option == 'h')
			return EXIT_OK;
		if (option == '?')
			return EXIT_USAGE; /* getopt_long named it */
		if (take(out, option, optarg))
			continue;
		for (size_t i = 0; i < count; i++)
			if (list[i].val == option)
				fprintf(stderr, "lwbench: --%s can't be '%s'; try lwbench --help\n", list[i].name,
					optarg ? optarg : "");
		return EXIT_USAGE;
	}
	if (optind < argc - 1) {
		fprintf(stderr, "lwbench: what is '%s'? Try lwbench --help\n", argv[1 + optind]);
		return EXIT_USAGE;
	}
	/* An address alone is no name: in a metadata store all of a host's would have the same. */
	if (!out->listen && !options_get(out, "address") && !options_set(out, "address", "127.0.0.1"))
		return fail("too many settings");
	return options_check(out);
}
