/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, sizes and durations of command lines: "4k", "1.5", "64". Units k, m, g, t are powers of 1,024. */
#ifndef APPS_COMMON_UNITS_H
#define APPS_COMMON_UNITS_H

#include <stddef.h>
#include <stdint.h>

/* Reads a whole text as a size in bytes. 0; -EINVAL no number, trailing characters, zero, or more than 2^63. */
int app_size_parse(const char *text, uint64_t *out);

/* Reads a whole text as a decimal number from min to max. 0; -EINVAL. */
int app_number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *out);

/* Reads a whole text as a decimal fraction from 0 to max. 0; -EINVAL. */
int app_fraction_parse(const char *text, double max, double *out);

/* Writes a size the way app_size_parse reads it: "64k", "1m", "1500". Returns out. */
const char *app_size_text(uint64_t bytes, char *out, size_t size);

/* Bytes a second in GB/s (10^9); 0 when no time passed. */
double app_gbps(uint64_t bytes, double seconds);

#endif
