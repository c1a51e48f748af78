/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of an engine, as a table for people and as JSON. */
#ifndef APPS_COMMON_LANES_H
#define APPS_COMMON_LANES_H

#include <stdio.h>

#include <lanewise/lanewise.h>

/* Lanes that were seen. Start with {0}. */
struct app_lanes {
	struct lw_lane_stats *list;
	size_t count;
};

/* Brings lanes up to date: figures of those that live, new ones added. Lanes that are gone stay with the figures they
 * had when last seen, as down; lanes that live come first. 0; negative errno values of lw_stats_lanes; -ENOMEM. */
int app_lanes_update(struct app_lanes *lanes, struct lw_engine *engine);

/* Frees what app_lanes_update took. */
void app_lanes_free(struct app_lanes *lanes);

/* Writes one line a lane under a heading; says so when there is none. */
void app_lanes_print(FILE *to, const struct app_lanes *lanes);

/* Writes a JSON array with one object a lane. */
void app_lanes_json(FILE *to, const struct app_lanes *lanes);

/* Writes text as a JSON string with its quotes. */
void app_json_string(FILE *to, const char *text);

#endif
