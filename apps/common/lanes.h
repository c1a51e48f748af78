/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of an engine, as a table for people and as JSON. */
#ifndef APPS_COMMON_LANES_H
#define APPS_COMMON_LANES_H

#include <stdio.h>

#include <lanewise/lanewise.h>

/* All lanes. The caller frees *out with free(). The number of lanes; negative errno values of lw_stats_lanes; -ENOMEM.
 */
int app_lanes_get(struct lw_engine *engine, struct lw_lane_stats **out);

/* Writes one line a lane under a heading; says so when there is none. */
void app_lanes_print(FILE *to, struct lw_engine *engine);

/* Writes a JSON array with one object a lane. */
void app_lanes_json(FILE *to, struct lw_engine *engine);

/* Writes text as a JSON string with its quotes. */
void app_json_string(FILE *to, const char *text);

#endif
