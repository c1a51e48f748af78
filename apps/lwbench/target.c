/* SPDX-License-Identifier: Apache-2.0 */
/* lwbench target: offers one buffer, answers notes, and says at its end what it cost. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "apps/common/host.h"
#include "apps/common/lanes.h"
#include "apps/common/note.h"
#include "apps/lwbench/classic.h"
#include "apps/lwbench/commands.h"

#define POLL_MS 5 /* how long a note may wait */

/* One note: the question for CPU time is answered, others are dropped. Whoever asks still has its lanes: they are noted
 * down, since at our end they will be gone. */
static void answer(struct lw_engine *engine, struct app_lanes *lanes, const struct lw_note *note)
{
	double user, system;
	char text[96];

	if (strcmp(note->name, NOTE_CPU_ASK) != 0)
		return;
	app_lanes_update(lanes, engine);
	app_cpu_seconds(&user, &system);
	snprintf(text, sizeof(text), "{\"user_s\":%.6f,\"system_s\":%.6f}", user, system);
	/* Whoever asked may be gone or not reachable from here; then it does without. */
	(void)app_note_answer(engine, note->text, NOTE_CPU_ANSWER, text, 500);
}

static void serve(struct lw_engine *engine, struct app_lanes *lanes, const struct options *options)
{
	uint64_t end_ns = options->duration_s > 0 ? app_clock_ns() + (uint64_t)(options->duration_s * 1e9) : UINT64_MAX;
	struct lw_note *note;

	do {
		for (unsigned i = 0; options->caller && i < 1000; i++)
			lw_engine_progress(engine);
		while (lw_note_poll(engine, &note) == 1) {
			answer(engine, lanes, note);
			lw_note_free(note);
		}
	} while (!app_ended(options->caller ? 0 : POLL_MS) && app_clock_ns() < end_ns);
}

static void print_json(struct lw_engine *engine, const struct app_lanes *lanes, double user, double system,
		       uint64_t served)
{
	printf("{\"tool\":\"lwbench\",\"version\":\"%s\",\"what\":\"target\",\"name\":", lw_version_string());
	app_json_string(stdout, lw_engine_name(engine));
	printf(",\"user_s\":%.6f,\"system_s\":%.6f,\"served_bytes\":%" PRIu64 ",\"lanes\":", user, system, served);
	app_lanes_json(stdout, lanes);
	printf("}\n");
}

static void print_table(const struct app_lanes *lanes, double user, double system, uint64_t served)
{
	double gib = (double)served / (double)(1u << 30);

	printf("\nCPU: %.3f s user, %.3f s system; served %.3f GiB", user, system, gib);
	if (served)
		printf(", %.3f s/GiB", (user + system) / gib);
	printf("\n\n");
	app_lanes_print(stdout, lanes);
}

int target_run(const struct options *options)
{
	struct lw_engine_opts opts;
	struct lw_engine_stats stats = {.size = sizeof(stats)};
	struct app_lanes lanes = {0};
	struct lw_engine *engine;
	lw_buffer_t buffer;
	double user, system, user_before, system_before;
	int code = EXIT_OPEN;

	void *memory = app_memory_map(options->buffer_bytes);
	if (!memory) {
		fprintf(stderr, "lwbench: no memory for --buffer-size\n");
		return EXIT_OPEN;
	}
	lw_engine_opts_init(&opts, sizeof(opts));
	opts.name = options->listen;
	opts.settings = options->settings;
	opts.settings_count = options->settings_count;
	if (lw_engine_open(&opts, &engine)) {
		fprintf(stderr, "lwbench: %s\n", lw_last_error());
		goto unmap;
	}
	const struct lw_memory list = {.addr = memory, .length = options->buffer_bytes, .access = LW_ACCESS_REMOTE};
	if (lw_memory_register(engine, &list, 1, &buffer)) {
		fprintf(stderr, "lwbench: %s\n", lw_last_error());
		goto close;
	}
	app_cpu_seconds(&user_before, &system_before);
	printf("lwbench: target ready name=%s addr=0x%" PRIxPTR " size=%" PRIu64 "\n", lw_engine_name(engine),
	       (uintptr_t)memory, options->buffer_bytes);
	fflush(stdout);
	if (options->classic)
		classic_listening(options, engine);
	serve(engine, &lanes, options);
	app_cpu_seconds(&user, &system);
	lw_stats_engine(engine, &stats);
	app_lanes_update(&lanes, engine);
	if (options->json)
		print_json(engine, &lanes, user - user_before, system - system_before, stats.served_bytes);
	else
		print_table(&lanes, user - user_before, system - system_before, stats.served_bytes);
	fflush(stdout);
	app_lanes_free(&lanes);
	code = EXIT_OK;
close:
	lw_engine_close(engine);
unmap:
	app_memory_unmap(memory, options->buffer_bytes);
	return code;
}
