/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "apps/lwbench/classic.h"

static const struct unit {
	const char *name;
	double bytes;
} units[] = {
	{"GB", 1e9},     {"GiB", 1073741824}, {"Gb", 1e9 / 8}, {"MB", 1e6},     {"MiB", 1048576},
	{"Mb", 1e6 / 8}, {"KB", 1e3},         {"KiB", 1024},   {"Kb", 1e3 / 8},
};
#define UNITS (sizeof(units) / sizeof(units[0]))

static const struct unit *find_unit(const char *name)
{
	for (size_t i = 0; i < UNITS; i++)
		if (strcmp(units[i].name, name) == 0)
			return &units[i];
	return NULL;
}

bool classic_unit_known(const char *unit)
{
	return find_unit(unit) != NULL;
}

void classic_log(char severity, const char *format, ...)
{
	char text[512], stamp[32];
	struct timespec now;
	struct tm local;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &local);
	strftime(stamp, sizeof(stamp), "%Y%m%d %H:%M:%S", &local);
	/* One call, so that lines of several threads stay whole. */
	fprintf(stderr, "%c%s.%06ld %5d lwbench:0] %s\n", severity, stamp, now.tv_nsec / 1000, (int)gettid(), text);
}

void classic_listening(const struct options *options, const struct lw_engine *engine)
{
	const char *metadata = options_get(options, "metadata");
	bool p2p = metadata == NULL || strcmp(metadata, "P2PHANDSHAKE") == 0;

	classic_log('I', "Transfer Engine RPC using %s, listening on %s", p2p ? "P2P handshake" : "new RPC mapping",
		    lw_engine_address(engine));
}

void classic_finish(const struct options *options, const struct row *row, bool failed, bool mismatch)
{
	/* A batch of the validator is written and read: once each in what was counted. */
	uint64_t batches = row->requests / row->batch / (options->validate ? 2 : 1);
	double bytes = (double)batches * row->batch * (double)row->block;

	if (mismatch)
		classic_log('E', "Detect data integrity problem");
	for (uint32_t i = 0; i < row->threads; i++)
		classic_log('I', "Worker %" PRIu32 " stopped!%s", i,
			    options->validate && !failed ? " Data validation passed" : "");
	classic_log('I', "Test completed: duration %.2f, batch count %" PRIu64 ", throughput %.*f %s/s", row->elapsed_s,
		    batches, options->precision,
		    row->elapsed_s > 0 ? bytes / row->elapsed_s / find_unit(options->unit)->bytes : 0, options->unit);
}
