/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "apps/common/lanes.h"

#define KEPT_MAX 1024 /* lanes that are gone and still remembered */

static const char *state_name(uint32_t state)
{
	switch (state) {
	case LW_LANE_DOWN:
		return "down";
	case LW_LANE_CONNECTING:
		return "connecting";
	case LW_LANE_UP:
		return "up";
	default:
		return "?";
	}
}

/* All lanes that live. The caller frees *out. Their number; negative errno values of lw_stats_lanes; -ENOMEM. */
static int lanes_get(struct lw_engine *engine, struct lw_lane_stats **out)
{
	size_t room = 64;
	struct lw_lane_stats *list = NULL;

	for (;;) {
		struct lw_lane_stats *longer = realloc(list, room * sizeof(*list));
		if (!longer) {
			free(list);
			return -ENOMEM;
		}
		list = longer;
		int count = lw_stats_lanes(engine, list, room);
		if (count < 0) {
			free(list);
			return count;
		}
		if ((size_t)count <= room) {
			*out = list;
			return count;
		}
		room = (size_t)count + 16; /* lanes may come while we ask again */
	}
}

static bool lanes_have(const struct lw_lane_stats *list, size_t count, const struct lw_lane_stats *lane)
{
	for (size_t i = 0; i < count; i++)
		if (list[i].lane == lane->lane && strcmp(list[i].peer, lane->peer) == 0)
			return true;
	return false;
}

int app_lanes_update(struct app_lanes *lanes, struct lw_engine *engine)
{
	struct lw_lane_stats *live;
	int rc = lanes_get(engine, &live);

	if (rc < 0)
		return rc;
	size_t count = (size_t)rc, all = count;
	struct lw_lane_stats *list = realloc(live, (count + lanes->count + 1) * sizeof(*list));
	if (!list) {
		free(live);
		return -ENOMEM;
	}
	for (size_t i = 0; i < lanes->count && all < count + KEPT_MAX; i++) {
		if (lanes_have(list, count, &lanes->list[i]))
			continue;
		list[all] = lanes->list[i];
		list[all++].state = LW_LANE_DOWN;
	}
	free(lanes->list);
	lanes->list = list;
	lanes->count = all;
	return 0;
}

void app_lanes_free(struct app_lanes *lanes)
{
	free(lanes->list);
	*lanes = (struct app_lanes){0};
}

void app_lanes_print(FILE *to, const struct app_lanes *lanes)
{
	if (!lanes->count) {
		fprintf(to, "lanes: none\n");
		return;
	}
	fprintf(to, "%5s  %-7s %-28s %6s  %-10s %10s %14s %7s %7s %10s %10s %7s %7s  %s\n", "lane", "driver", "peer",
		"worker", "state", "slices", "bytes", "errors", "retries", "calls", "bytes/call", "stalls", "moves",
		"way");
	for (size_t i = 0; i < lanes->count; i++) {
		const struct lw_lane_stats *lane = &lanes->list[i];
		uint64_t bytes = lane->tx_bytes + lane->rx_bytes;
		char peer[160];

		snprintf(peer, sizeof(peer), "%s %s", lane->target ? "from" : "to", lane->peer);
		fprintf(to, "%5" PRIu32 "  %-7s %-28s %6" PRIu32 "  %-10s %10" PRIu64 " %14" PRIu64, lane->lane,
			lane->driver, peer, lane->worker, state_name(lane->state), lane->slices, bytes);
		fprintf(to, " %7" PRIu64 " %7" PRIu64 " %10" PRIu64, lane->errors, lane->retries, lane->calls);
		if (lane->calls)
			fprintf(to, " %10" PRIu64, bytes / lane->calls);
		else
			fprintf(to, " %10s", "-");
		fprintf(to, " %7" PRIu64 " %7" PRIu64 "  %s\n", lane->stalls, lane->moves,
			lane->way[0] != '\0' ? lane->way : "-");
	}
}

void app_lanes_json(FILE *to, const struct app_lanes *lanes)
{
	fputc('[', to);
	for (size_t i = 0; i < lanes->count; i++) {
		const struct lw_lane_stats *lane = &lanes->list[i];

		fprintf(to, "%s{\"lane\":%" PRIu32 ",\"worker\":%" PRIu32 ",\"state\":\"%s\",\"served\":%s,\"driver\":",
			i ? "," : "", lane->lane, lane->worker, state_name(lane->state),
			lane->target ? "true" : "false");
		app_json_string(to, lane->driver);
		fprintf(to, ",\"peer\":");
		app_json_string(to, lane->peer);
		fprintf(to, ",\"way\":");
		app_json_string(to, lane->way);
		fprintf(to, ",\"rate\":%" PRIu64, lane->rate);
#define X(name, unit, help) fprintf(to, ",\"" #name "\":%" PRIu64, lane->name);
		LW_LANE_COUNTERS(X)
#undef X
		fputc('}', to);
	}
	fputc(']', to);
}

void app_json_string(FILE *to, const char *text)
{
	fputc('"', to);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(to, "\\%c", c);
		else if (c < 0x20)
			fprintf(to, "\\u%04x", c);
		else
			fputc(c, to);
	}
	fputc('"', to);
}
