/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "apps/common/host.h"
#include "apps/common/lanes.h"
#include "apps/common/units.h"
#include "apps/lwbench/report.h"

void failures_collect(struct failures *failures, struct lw_engine *engine, lw_batch_t batch, uint32_t tasks)
{
	for (uint32_t task = 0; task < tasks; task++) {
		struct lw_task_status status;

		if (lw_task_status(engine, batch, task, &status) || status.state == LW_COMPLETED)
			continue;
		uint32_t reason = status.reason < LW_REASON_COUNT ? status.reason : LW_REASON_NONE;
		if (failures->count[reason]++ == 0 &&
		    lw_task_reason(engine, batch, task, failures->text[reason], sizeof(failures->text[reason])) < 0)
			snprintf(failures->text[reason], sizeof(failures->text[reason]), "%s",
				 lw_reason_string((int)reason));
	}
}

void failures_merge(struct failures *failures, const struct failures *from)
{
	for (unsigned reason = 0; reason < LW_REASON_COUNT; reason++) {
		if (from->count[reason] && !failures->count[reason])
			memcpy(failures->text[reason], from->text[reason], sizeof(failures->text[reason]));
		failures->count[reason] += from->count[reason];
	}
}

int report_begin(struct report *report, const struct options *options, const char *what)
{
	char host[256] = "";

	memset(report, 0, sizeof(*report));
	report->tables = stdout;
	report->open_us = report->first_us = -1;
	if (!options->json)
		return 0;
	if (strcmp(options->json, "-") == 0) {
		report->json = stdout;
		report->tables = stderr;
	} else {
		report->json = fopen(options->json, "w");
		if (!report->json) {
			int error = errno;
			fprintf(stderr, "lwbench: %s can't be written: %s\n", options->json, strerror(error));
			return -error;
		}
	}
	gethostname(host, sizeof(host) - 1);
	fprintf(report->json, "{\"tool\":\"lwbench\",\"version\":\"%s\",\"what\":", lw_version_string());
	app_json_string(report->json, what);
	fprintf(report->json, ",\"host\":");
	app_json_string(report->json, host);
	fprintf(report->json, ",\"cpus\":%u,\"time\":%lld,\"target\":", app_cpus(), (long long)time(NULL));
	app_json_string(report->json, options->target ? options->target : "");
	fprintf(report->json, ",\"settings\":{");
	for (size_t i = 0; i < options->settings_count; i++) {
		fprintf(report->json, "%s", i ? "," : "");
		app_json_string(report->json, options->settings[i].name);
		fputc(':', report->json);
		app_json_string(report->json, options->settings[i].value);
	}
	fprintf(report->json, "},\"results\":[");
	return 0;
}

/* A number of the table, or "-" when it is not known. */
static const char *text_of(double value, int digits, char *out, size_t size)
{
	if (value < 0)
		snprintf(out, size, "-");
	else
		snprintf(out, size, "%.*f", digits, value);
	return out;
}

/* The same in JSON. */
static void json_number(FILE *to, const char *name, double value)
{
	if (value < 0)
		fprintf(to, ",\"%s\":null", name);
	else
		fprintf(to, ",\"%s\":%.6g", name, value);
}

static double quantile_us(const struct hist *hist, double share)
{
	return hist->count ? (double)hist_quantile(hist, share) / 1e3 : -1;
}

void report_row(struct report *report, const struct row *row)
{
	double gib = (double)row->bytes / (double)(1u << 30);
	double cpu = gib > 0 ? row->cpu_s / gib : -1;
	double target_cpu = gib > 0 && row->target_cpu_s >= 0 ? row->target_cpu_s / gib : -1;
	double rate = row->seconds > 0 ? (double)row->requests / row->seconds : 0;
	double gbps = app_gbps(row->bytes, row->seconds);
	double p50 = quantile_us(&row->latency, 0.5);
	double p99 = quantile_us(&row->latency, 0.99);
	double p999 = quantile_us(&row->latency, 0.999);
	char a[32], b[32], c[32], d[32], e[32], block[32];

	if (!report->heading)
		fprintf(report->tables, "%-9s %7s %6s %7s %6s %8s %11s %9s %9s %9s %10s %10s %7s\n", "op", "block",
			"batch", "threads", "depth", "GB/s", "requests/s", "p50 us", "p99 us", "p99.9 us", "cpu-s/GiB",
			"target", "failed");
	report->heading = true;
	fprintf(report->tables,
		"%-9s %7s %6" PRIu32 " %7" PRIu32 " %6" PRIu32 " %8.3f %11.0f %9s %9s %9s %10s %10s %7" PRIu64 "\n",
		row->op, app_size_text(row->block, block, sizeof(block)), row->batch, row->threads, row->depth, gbps,
		rate, text_of(p50, 1, a, sizeof(a)), text_of(p99, 1, b, sizeof(b)), text_of(p999, 1, c, sizeof(c)),
		text_of(cpu, 3, d, sizeof(d)), text_of(target_cpu, 3, e, sizeof(e)), row->failed);
	fflush(report->tables);
	if (!report->json)
		return;
	fprintf(report->json,
		"%s{\"op\":\"%s\",\"block\":%" PRIu64 ",\"batch\":%" PRIu32 ",\"threads\":%" PRIu32
		",\"depth\":%" PRIu32 ",\"seconds\":%.6f,\"requests\":%" PRIu64 ",\"bytes\":%" PRIu64
		",\"failed\":%" PRIu64,
		report->rows++ ? "," : "", row->op, row->block, row->batch, row->threads, row->depth, row->seconds,
		row->requests, row->bytes, row->failed);
	json_number(report->json, "gbps", gbps);
	json_number(report->json, "requests_per_s", rate);
	json_number(report->json, "batch_p50_us", p50);
	json_number(report->json, "batch_p99_us", p99);
	json_number(report->json, "batch_p999_us", p999);
	json_number(report->json, "batch_max_us", row->latency.count ? (double)row->latency.max / 1e3 : -1);
	json_number(report->json, "cpu_s_per_gib", cpu);
	json_number(report->json, "target_cpu_s_per_gib", target_cpu);
	fputc('}', report->json);
}

int report_end(struct report *report, struct lw_engine *engine, const struct failures *failures)
{
	struct app_lanes lanes = {0};
	bool first = true;
	int rc = 0;

	for (unsigned reason = 0; failures && reason < LW_REASON_COUNT; reason++)
		if (failures->count[reason])
			fprintf(stderr, "lwbench: %" PRIu64 " requests failed: %s\n", failures->count[reason],
				failures->text[reason]);
	if (engine) {
		fputc('\n', report->tables);
		app_lanes_update(&lanes, engine);
		app_lanes_print(report->tables, &lanes);
	}
	fflush(report->tables);
	if (!report->json)
		goto out;
	fprintf(report->json, "],\"failures\":[");
	for (unsigned reason = 0; failures && reason < LW_REASON_COUNT; reason++) {
		if (!failures->count[reason])
			continue;
		fprintf(report->json, "%s{\"count\":%" PRIu64 ",\"text\":", first ? "" : ",", failures->count[reason]);
		app_json_string(report->json, failures->text[reason]);
		fputc('}', report->json);
		first = false;
	}
	fputc(']', report->json);
	if (report->first_us >= 0) {
		json_number(report->json, "open_us", report->open_us);
		json_number(report->json, "first_us", report->first_us);
	}
	fprintf(report->json, ",\"lanes\":");
	app_lanes_json(report->json, &lanes);
	fprintf(report->json, "}\n");
	if (fflush(report->json) || ferror(report->json))
		rc = -EIO;
	if (report->json != stdout && fclose(report->json))
		rc = -EIO;
	if (rc)
		fprintf(stderr, "lwbench: the JSON could not be written completely\n");
	report->json = NULL;
out:
	app_lanes_free(&lanes);
	return rc;
}
