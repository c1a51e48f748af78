/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/lwbench/classic.h"
#include "apps/lwbench/flags.h"

#define NAME_MAX_BYTES 32
#define VALIDATOR "transfer_engine_validator"
#define BENCH "transfer_engine_bench"

/* The values as they were given, or the reference's defaults. */
struct values {
	const char *local_server_name;
	const char *metadata_server;
	const char *mode;
	const char *operation;
	const char *protocol;
	const char *device_name;
	const char *nic_priority_matrix;
	const char *segment_id;
	const char *report_unit;
	const char *backend;
	uint64_t buffer_size;
	uint64_t batch_size;
	uint64_t block_size;
	uint64_t duration;
	uint64_t threads;
	uint64_t report_precision;
	int64_t gpu_id;
	bool auto_discovery;
	bool use_vram;
	bool init_mem;
	bool validate;
};

enum kind { TEXT, NUMBER, SIGNED, SWITCH };

#define FLAG(name, kind)                                                                                               \
	{                                                                                                              \
#name, kind, offsetof(struct values, name)                                                             \
	}
static const struct flag {
	const char *name;
	enum kind kind;
	size_t offset;
} flags[] = {
	FLAG(local_server_name, TEXT),
	FLAG(metadata_server, TEXT),
	FLAG(mode, TEXT),
	FLAG(operation, TEXT),
	FLAG(protocol, TEXT),
	FLAG(device_name, TEXT),
	FLAG(nic_priority_matrix, TEXT),
	FLAG(segment_id, TEXT),
	FLAG(report_unit, TEXT),
	FLAG(backend, TEXT),
	FLAG(buffer_size, NUMBER),
	FLAG(batch_size, NUMBER),
	FLAG(block_size, NUMBER),
	FLAG(duration, NUMBER),
	FLAG(threads, NUMBER),
	FLAG(report_precision, NUMBER),
	FLAG(gpu_id, SIGNED),
	FLAG(auto_discovery, SWITCH),
	FLAG(use_vram, SWITCH),
	FLAG(init_mem, SWITCH),
	FLAG(validate, SWITCH),
};
#define FLAGS (sizeof(flags) / sizeof(flags[0]))

/* What --protocol may be. Which way bytes go is chosen by what both sides have; "tcp" alone leaves no choice. */
static const char *const protocols[] = {
	"rdma", "tcp",  "barex",        "efa", "cxi",    "nvlink",  "nvlink_intra", "hip",
	"musa", "maca", "sunrise_link", "ub",  "ascend", "ubshmem", "cxl",          "nvmeof",
};

static const char *program_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

bool flags_meant(int argc, char **argv)
{
	const char *name = program_name(argv[0]);

	if (strcmp(name, VALIDATOR) == 0 || strcmp(name, BENCH) == 0)
		return true;
	return argc > 1 && argv[1][0] == '-' && argv[1][1] != '\0';
}

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("lwbench: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return EXIT_FAILED;
}

/* The flag of that name, which may have dashes for underscores; NULL: there is none. */
static const struct flag *find_flag(const char *name, size_t length)
{
	char plain[NAME_MAX_BYTES];

	if (length >= sizeof(plain))
		return NULL;
	for (size_t i = 0; i < length; i++)
		plain[i] = name[i];
	plain[length] = '\0';
	for (char *c = plain; *c != '\0'; c++)
		if (*c == '-')
			*c = '_';
	for (size_t i = 0; i < FLAGS; i++)
		if (strcmp(flags[i].name, plain) == 0)
			return &flags[i];
	return NULL;
}

static bool read_switch(const char *text, bool *out)
{
	static const char *const yes[] = {"1", "t", "true", "y", "yes"}, *const no[] = {"0", "f", "false", "n", "no"};

	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
			*out = strcasecmp(text, yes[i]) == 0;
			return true;
		}
	}
	return false;
}

/* A whole decimal or hexadecimal number. */
static bool read_number(const char *text, uint64_t *out)
{
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	*out = strtoull(text, &end, text[1] == 'x' || text[1] == 'X' ? 16 : 10);
	return *end == '\0' && errno == 0;
}

/* false: the value is none for the flag. */
static bool set_flag(struct values *values, const struct flag *flag, const char *text)
{
	void *at = (char *)values + flag->offset;
	uint64_t number;

	switch (flag->kind) {
	case TEXT:
		*(const char **)at = text;
		return true;
	case NUMBER:
		return read_number(text, at);
	case SIGNED:
		if (!read_number(text + (text[0] == '-'), &number) || number > INT32_MAX)
			return false;
		*(int64_t *)at = text[0] == '-' ? -(int64_t)number : (int64_t)number;
		return true;
	case SWITCH:
		return read_switch(text, at);
	}
	return false;
}

/* One argument, and the next one if it is the flag's value: "--x=y", "-x=y", "--x y", "-x y"; switches: "--x", "--nox",
 * "--x=true". -1 or the exit code. */
static int read_flag(struct values *values, int *at, int argc, char **argv)
{
	const char *name = argv[*at], *value;
	const struct flag *flag;
	size_t length;

	if (name[0] != '-' || name[1] == '\0')
		return fail("what is '%s'? Flags begin with --; try lwbench --help", name);
	name += name[1] == '-' ? 2 : 1;
	length = strcspn(name, "=");
	value = name[length] == '=' ? name + length + 1 : NULL;
	flag = find_flag(name, length);
	if (flag == NULL && value == NULL && strncmp(name, "no", 2) == 0) {
		flag = find_flag(name + 2, length - 2);
		if (flag != NULL && flag->kind != SWITCH)
			flag = NULL;
		value = "false";
	}
	if (flag == NULL)
		return fail("unknown flag '%s'; try lwbench --help", argv[*at]);
	if (value == NULL && flag->kind == SWITCH)
		value = "true";
	if (value == NULL) {
		if (*at + 1 == argc)
			return fail("flag --%s needs a value", flag->name);
		value = argv[++*at];
	}
	if (!set_flag(values, flag, value))
		return fail("flag --%s can't be '%s'", flag->name, value);
	return -1;
}

static bool is_protocol(const char *name)
{
	for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++)
		if (strcmp(protocols[i], name) == 0)
			return true;
	return false;
}

/* What the values say in the terms of our options. -1 or the exit code. */
static int translate(struct options *out, const struct values *values)
{
	if (strcmp(values->mode, "target") != 0 && strcmp(values->mode, "initiator") != 0)
		return fail("--mode is 'initiator' or 'target', not '%s'", values->mode);
	if (strcmp(values->operation, "read") != 0 && strcmp(values->operation, "write") != 0)
		return fail("--operation is 'read' or 'write', not '%s'", values->operation);
	if (!is_protocol(values->protocol))
		return fail("--protocol '%s' is unknown", values->protocol);
	options_defaults(out, strcmp(values->mode, "target") == 0 ? COMMAND_TARGET : COMMAND_INITIATOR);
	if (out->command == COMMAND_INITIATOR && values->segment_id == NULL)
		return fail("--segment_id is missing: the name that the target is listening on");
	if (values->block_size == 0 || values->batch_size == 0 || values->threads == 0 || values->buffer_size == 0)
		return fail("--block_size, --batch_size, --threads and --buffer_size are above 0");
	if (values->batch_size > LW_BATCH_MAX_TASKS || values->threads > 1024 || values->duration > 1000000000 ||
	    values->report_precision > 17)
		return fail("--batch_size is at most %u, --threads 1024, --duration 10^9, --report_precision 17",
			    LW_BATCH_MAX_TASKS);
	if (values->block_size > SIZE_MAX / 4 / values->batch_size / values->threads ||
	    values->buffer_size > SIZE_MAX / 2)
		return fail("--buffer_size, or --block_size times --batch_size times --threads, is too large");
	out->target = values->segment_id;
	out->listen = values->local_server_name;
	out->op = strcmp(values->operation, "read") == 0 ? LW_READ : LW_WRITE;
	out->blocks[0] = values->block_size;
	out->batch = (uint32_t)values->batch_size;
	out->threads = (uint32_t)values->threads;
	out->depth = 1;
	out->duration_s = out->command == COMMAND_TARGET ? 0 : (double)values->duration;
	out->validate = values->validate && out->command == COMMAND_INITIATOR;
	out->buffer_bytes = values->buffer_size;
	out->classic = true;
	out->unit = values->report_unit;
	out->precision = (int)values->report_precision;
	if (values->metadata_server != NULL)
		options_set(out, "metadata", values->metadata_server);
	if (strcmp(values->protocol, "tcp") == 0)
		options_set(out, "drivers", "tcp,null");
	if (values->nic_priority_matrix != NULL && values->nic_priority_matrix[0] != '\0')
		options_set(out, "topology_file", values->nic_priority_matrix);
	return -1;
}

/* What is not as it is there, said once. */
static void tell(struct options *out, const struct values *values)
{
	/* A thread's part is whole pages. */
	uint64_t part = (values->block_size * values->batch_size + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
	uint64_t need = part * values->threads;

	if (need > out->buffer_bytes) {
		classic_log('W',
			    "--buffer_size is raised to what --block_size, --batch_size and --threads need: %" PRIu64,
			    need);
		out->buffer_bytes = need;
	}
	if (!classic_unit_known(out->unit)) {
		classic_log('W', "--report_unit '%s' is unknown; GB is taken", out->unit);
		out->unit = "GB";
	}
	if (strcmp(values->backend, "classic") != 0)
		classic_log('W', "--backend '%s' is not here: this is Lanewise's own engine", values->backend);
	if (values->gpu_id != 0)
		classic_log('W', "--gpu_id has no effect: the buffers are in host memory");
}

int flags_parse(struct options *out, int argc, char **argv)
{
	struct values values = {
		.mode = "initiator",
		.operation = "read",
		.protocol = "rdma",
		.report_unit = "GB",
		.backend = "classic",
		.buffer_size = UINT64_C(1) << 30,
		.batch_size = 128,
		.block_size = 65536,
		.duration = 10,
		.threads = 12,
		.report_precision = 2,
		.use_vram = true,
		.init_mem = true,
		.validate = strcmp(program_name(argv[0]), VALIDATOR) == 0,
	};
	int code = -1;

	options_defaults(out, COMMAND_INITIATOR);
	for (int at = 1; at < argc && code < 0; at++) {
		if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-help") == 0 || strcmp(argv[at], "-h") == 0)
			return EXIT_OK;
		code = read_flag(&values, &at, argc, argv);
	}
	if (code < 0)
		code = translate(out, &values);
	if (code >= 0)
		return code;
	tell(out, &values);
	return options_check(out) < 0 ? -1 : EXIT_FAILED;
}
