/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/lanewise.h>

#include "apps/common/host.h"
#include "apps/lwmeta/metrics.h"

static const unsigned statuses[METRICS_STATUSES] = {200, 400, 401, 404, 405, 412, 413, 414, 500, 503, 507};
static const char *const methods[METHODS] = {"GET", "HEAD", "PUT", "POST", "DELETE", "other"};

enum metrics_method metrics_method(const char *name)
{
	for (int method = 0; method < METHOD_OTHER; method++)
		if (strcmp(name, methods[method]) == 0)
			return (enum metrics_method)method;
	return METHOD_OTHER;
}

void metrics_answer(struct metrics *metrics, enum metrics_method method, unsigned status)
{
	size_t i, other = 0;

	for (i = 0; i < METRICS_STATUSES; i++) {
		if (statuses[i] == status)
			break;
		if (statuses[i] == 500)
			other = i;
	}
	atomic_fetch_add_explicit(&metrics->answers[method][i < METRICS_STATUSES ? i : other], 1, memory_order_relaxed);
}

static void requests(FILE *to, struct metrics *metrics)
{
	fputs("# HELP lwmeta_requests_total Answers by method and status.\n# TYPE lwmeta_requests_total counter\n", to);
	for (int method = 0; method < METHODS; method++) {
		for (size_t i = 0; i < METRICS_STATUSES; i++) {
			uint64_t count = atomic_load_explicit(&metrics->answers[method][i], memory_order_relaxed);

			if (count > 0)
				fprintf(to, "lwmeta_requests_total{method=\"%s\",status=\"%u\"} %" PRIu64 "\n",
					methods[method], statuses[i], count);
		}
	}
}

char *metrics_text(struct metrics *metrics, struct store *store, struct conns *conns, size_t *size)
{
	struct store_figures stored;
	struct conns_figures peers;
	char *text = NULL;
	FILE *to = open_memstream(&text, size);

	if (to == NULL)
		return NULL;
	store_figures(store, &stored);
	conns_figures(conns, &peers);
	const struct {
		const char *name, *type, *help;
		double value;
	} table[] = {
		{"keys", "gauge", "Entries.", (double)stored.keys},
		{"leases", "gauge", "Entries with a lease.", (double)stored.leases},
		{"bytes", "gauge", "Keys, owners, values and 256 bytes an entry.", (double)stored.bytes},
		{"leases_expired_total", "counter", "Entries that went with their lease.", (double)stored.expired},
		{"connections", "gauge", "Open connections.", (double)peers.open},
		{"connections_total", "counter", "Connections since the start.", (double)peers.made},
		{"connections_slow_total", "counter", "Cut: no answer within --timeout.", (double)peers.cut_slow},
		{"connections_crowded_total", "counter", "Cut: more than --max-connections.", (double)peers.cut_many},
		{"requests_aborted_total", "counter", "Requests whose connection ended first.",
		 (double)atomic_load(&metrics->aborted)},
		{"uploading_bytes", "gauge", "Room for values on their way.",
		 (double)atomic_load(&metrics->uploading_bytes)},
		{"file_bytes", "gauge", "Size of the file.", (double)stored.file_bytes},
		{"file_rewrites_total", "counter", "How often the file was made small again.",
		 (double)stored.compactions},
		{"file_failed", "gauge", "1: the file can't be written, changes are refused.",
		 (double)stored.file_failed},
		{"uptime_seconds", "gauge", "Time since the start.",
		 (double)(app_clock_ns() - metrics->started_ns) / 1e9},
	};
	requests(to, metrics);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		fprintf(to, "# HELP lwmeta_%s %s\n# TYPE lwmeta_%s %s\nlwmeta_%s %.15g\n", table[i].name, table[i].help,
			table[i].name, table[i].type, table[i].name, table[i].value);
	fprintf(to,
		"# HELP lwmeta_build_info Version.\n# TYPE lwmeta_build_info gauge\nlwmeta_build_info{version=\"%s\"} "
		"1\n",
		LW_VERSION_STRING);
	if (fclose(to) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
