/* SPDX-License-Identifier: Apache-2.0 */
/* lwbench initiator: opens the target and runs one case for each block size. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/common/host.h"
#include "apps/common/note.h"
#include "apps/common/units.h"
#include "apps/lwbench/classic.h"
#include "apps/lwbench/commands.h"
#include "apps/lwbench/load.h"

#define CPU_WAIT_MS 1000
#define RANGES 256

/* What the run holds from its begin to its end. */
struct initiator {
	struct options *options;
	struct lw_engine *engine;
	lw_segment_t segment;
	unsigned char *memory;
	uint64_t remote;
	uint64_t remote_bytes;
	bool null;
	bool silent; /* the target did not answer a question: don't ask again */
	double open_us;
};

/* CPU seconds of the target so far; below 0 when it does not say. */
static double target_cpu(struct initiator *self)
{
	double user, system;
	struct lw_note *note;

	if (self->null || self->silent)
		return -1;
	if (app_note_ask(self->engine, self->segment, NOTE_CPU_ASK, NOTE_CPU_ANSWER, self->options->caller, CPU_WAIT_MS,
			 &note)) {
		self->silent = true;
		return -1;
	}
	bool ok = sscanf(note->text, "{\"user_s\":%lf,\"system_s\":%lf}", &user, &system) == 2;
	lw_note_free(note);
	return ok ? user + system : -1;
}

/* The longest range that allows what we do. false: there is none. */
static bool find_range(struct initiator *self)
{
	const struct options *options = self->options;
	uint32_t need = options->validate         ? LW_ACCESS_REMOTE
			: options->op == LW_WRITE ? LW_ACCESS_REMOTE_WRITE
						  : LW_ACCESS_REMOTE_READ;
	struct lw_segment_range ranges[RANGES];

	if (self->null) {
		self->remote = (uintptr_t)self->memory;
		self->remote_bytes = options->buffer_bytes;
		return true;
	}
	int count = lw_segment_ranges(self->engine, self->segment, ranges, RANGES);
	if (count < 0) {
		fprintf(stderr, "lwbench: %s\n", lw_last_error());
		return false;
	}
	for (int i = 0; i < count && i < RANGES; i++) {
		if ((ranges[i].access & need) == need && ranges[i].length > self->remote_bytes) {
			self->remote = ranges[i].addr;
			self->remote_bytes = ranges[i].length;
		}
	}
	if (!self->remote_bytes)
		fprintf(stderr, "lwbench: %s offers no memory for this operation (%d ranges in all)\n", options->target,
			count);
	return self->remote_bytes > 0;
}

/* Bytes of one thread's part: of the smaller memory, whole pages when it is longer than one. */
static uint64_t part_of(const struct initiator *self)
{
	const struct options *options = self->options;
	uint64_t bytes = options->buffer_bytes < self->remote_bytes ? options->buffer_bytes : self->remote_bytes;
	uint64_t part = bytes / options->threads;

	return part > PART_ALIGN ? part - part % PART_ALIGN : part;
}

static bool check_parts(const struct initiator *self)
{
	const struct options *options = self->options;
	uint64_t part = part_of(self), under_way = 0;
	char have[32], want[32];

	for (size_t i = 0; i < options->block_count; i++) {
		uint64_t block = options->blocks[i];

		if (block > part) {
			fprintf(stderr,
				"lwbench: a block of %s does not fit: each of %" PRIu32
				" threads has %s; give both sides a larger --buffer-size\n",
				app_size_text(block, want, sizeof(want)), options->threads,
				app_size_text(part, have, sizeof(have)));
			return false;
		}
		if (block * options->batch * options->depth > under_way)
			under_way = block * options->batch * options->depth;
	}
	if (under_way > part)
		fprintf(stderr, "lwbench: note: %s under way in a part of %s: %s\n",
			app_size_text(under_way, want, sizeof(want)), app_size_text(part, have, sizeof(have)),
			options->validate ? "fewer requests are used" : "bytes are moved again before they arrived");
	return true;
}

/* Raises the engine's limits where the options need more than its defaults. texts must outlive the engine's opening. */
static void raise_limits(struct options *options, char texts[3][24])
{
	const struct {
		const char *name;
		uint64_t need;
		uint64_t preset;
	} limits[3] = {
		{"max_tasks", (uint64_t)options->threads * options->depth * options->batch, 524288},
		{"max_batches", (uint64_t)options->threads * options->depth, 4096},
		{"max_channels", options->threads + 8u, 256},
	};

	for (int i = 0; i < 3; i++) {
		if (limits[i].need <= limits[i].preset || options_get(options, limits[i].name))
			continue;
		snprintf(texts[i], 24, "%" PRIu64, limits[i].need);
		options_set(options, limits[i].name, texts[i]);
	}
}

static int open_all(struct initiator *self)
{
	struct options *options = self->options;
	struct lw_engine_opts opts;
	char limits[3][24];
	lw_buffer_t buffer;

	self->null = strncmp(options->target, "null:", 5) == 0;
	self->memory = app_memory_map(options->buffer_bytes);
	if (!self->memory) {
		fprintf(stderr, "lwbench: no memory for --buffer-size\n");
		return EXIT_OPEN;
	}
	size_t given = options->settings_count;
	raise_limits(options, limits);
	lw_engine_opts_init(&opts, sizeof(opts));
	opts.name = options->listen;
	opts.settings = options->settings;
	opts.settings_count = options->settings_count;
	int rc = lw_engine_open(&opts, &self->engine);
	options->settings_count = given; /* the others point into this frame */
	if (rc) {
		fprintf(stderr, "lwbench: %s\n", lw_last_error());
		return EXIT_OPEN;
	}
	const struct lw_memory list = {
		.addr = self->memory, .length = options->buffer_bytes, .access = LW_ACCESS_LOCAL};
	if (lw_memory_register(self->engine, &list, 1, &buffer)) {
		fprintf(stderr, "lwbench: %s\n", lw_last_error());
		return EXIT_OPEN;
	}
	uint64_t before_ns = app_clock_ns();
	if (lw_segment_open(self->engine, options->target, 0, &self->segment)) {
		fprintf(stderr, "lwbench: %s\n", lw_last_error());
		return EXIT_OPEN;
	}
	self->open_us = (double)(app_clock_ns() - before_ns) / 1e3;
	if (!find_range(self))
		return EXIT_OPEN;
	return check_parts(self) ? EXIT_OK : EXIT_USAGE;
}

/* One line of the table. -1: go on; else how to end. */
static int run_case(struct initiator *self, struct report *report, struct failures *failures, uint64_t block)
{
	struct options *options = self->options;
	struct load load = {.options = options,
			    .engine = self->engine,
			    .segment = self->segment,
			    .local = self->memory,
			    .remote = self->remote,
			    .part_bytes = part_of(self),
			    .block = block};
	struct row *row = calloc(1, sizeof(*row));
	bool mismatch = false, broken = false, ended = false;

	if (!row) {
		fprintf(stderr, "lwbench: no memory\n");
		return EXIT_OPEN;
	}
	row->op = options->validate ? "validate" : options->op == LW_WRITE ? "write" : "read";
	row->block = block;
	row->batch = options->batch;
	row->threads = options->threads;
	row->depth = options->depth;
	double before = target_cpu(self);
	int rc = load_run(&load, row, failures, &mismatch, &broken, &ended);
	double after = before < 0 || row->failed ? -1 : target_cpu(self); /* a target that failed may be gone */
	row->target_cpu_s = after < 0 ? -1 : after - before;
	if (rc)
		fprintf(stderr, "lwbench: no memory for the threads\n");
	else
		report_row(report, row);
	bool failed = row->failed > 0 || mismatch || broken;
	if (!rc && options->classic)
		classic_finish(options, row, failed, mismatch);
	free(row);
	if (rc)
		return EXIT_OPEN;
	if (mismatch || broken)
		return EXIT_FAILED;
	return ended ? (failed ? EXIT_FAILED : EXIT_OK) : -1;
}

/* One request before anything else, so that its time has the connection in it. false: it failed. */
static bool first_request(struct initiator *self, double *us)
{
	const struct options *options = self->options;
	const struct lw_request request = {.local = self->memory,
					   .segment = self->segment,
					   .offset = self->remote,
					   .length = options->blocks[0],
					   .op = options->op};
	struct lw_batch_status status = {0};
	struct lw_channel *channel;
	lw_batch_t batch;
	bool ok = false;

	if (lw_channel_open(self->engine, &channel)) {
		fprintf(stderr, "lwbench: %s\n", lw_last_error());
		return false;
	}
	uint64_t before_ns = app_clock_ns();
	if (lw_batch_alloc(channel, 1, 0, NULL, &batch) == 0) {
		ok = lw_submit(channel, batch, &request, 1) == 0 &&
		     lw_batch_wait(self->engine, batch, options->timeout_ms, &status) == 0 && !status.failed;
		*us = (double)(app_clock_ns() - before_ns) / 1e3;
		lw_batch_free(self->engine, batch);
	}
	if (!ok)
		fprintf(stderr, "lwbench: the first request failed%s%s\n", status.failed ? "" : ": ",
			status.failed ? "" : lw_last_error());
	lw_channel_close(channel);
	return ok;
}

static int run_cases(struct initiator *self)
{
	struct options *options = self->options;
	struct failures *failures = calloc(1, sizeof(*failures));
	struct report report;
	int code = -1;

	if (!failures || report_begin(&report, options, self->null ? "null" : "initiator")) {
		free(failures);
		return EXIT_USAGE;
	}
	fprintf(report.tables, "lwbench: %s, %" PRIu64 " bytes at 0x%" PRIx64,
		self->null ? "null driver" : options->target, self->remote_bytes, self->remote);
	if (options->validate)
		fprintf(report.tables, ", --seed %" PRIu64, options->seed);
	fprintf(report.tables, "\n");
	if (options->first) {
		report.open_us = self->open_us;
		if (!first_request(self, &report.first_us))
			code = EXIT_FAILED;
		else
			fprintf(report.tables, "opened in %.1f us, first request done in %.1f us\n", self->open_us,
				report.first_us);
	}
	for (size_t i = 0; i < options->block_count && code < 0; i++)
		code = run_case(self, &report, failures, options->blocks[i]);
	for (unsigned reason = 0; reason < LW_REASON_COUNT; reason++)
		if (failures->count[reason] && code <= EXIT_OK)
			code = EXIT_FAILED;
	if (code < 0)
		code = EXIT_OK;
	if (report_end(&report, self->engine, failures) && code == EXIT_OK)
		code = EXIT_FAILED;
	free(failures);
	return code;
}

int initiator_run(struct options *options)
{
	struct initiator self = {.options = options};
	int code = open_all(&self);

	if (code == EXIT_OK)
		code = run_cases(&self);
	if (self.engine)
		lw_engine_close(self.engine);
	app_memory_unmap(self.memory, options->buffer_bytes);
	return code;
}
