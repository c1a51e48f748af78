/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/common/units.h"

int app_size_parse(const char *text, uint64_t *out)
{
	static const char units[] = "kmgt";
	unsigned shift = 0;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	if (*end) {
		const char *unit = strchr(units, tolower((unsigned char)*end));
		if (!unit || end[1])
			return -EINVAL;
		shift = 10 * (unsigned)(unit - units + 1);
	}
	if (value == 0 || value > (UINT64_C(1) << 63) >> shift)
		return -EINVAL;
	*out = (uint64_t)value << shift;
	return 0;
}

int app_number_parse(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno || *end || value < min || value > max)
		return -EINVAL;
	*out = value;
	return 0;
}

int app_fraction_parse(const char *text, double max, double *out)
{
	char *end;

	if (!isdigit((unsigned char)text[0]) && text[0] != '.')
		return -EINVAL;
	double value = strtod(text, &end);
	if (end == text || *end || !(value >= 0 && value <= max))
		return -EINVAL;
	*out = value;
	return 0;
}

const char *app_size_text(uint64_t bytes, char *out, size_t size)
{
	static const char units[] = "\0kmgt";
	size_t unit = 0;

	while (unit < 4 && bytes && bytes % 1024 == 0) {
		bytes /= 1024;
		unit++;
	}
	snprintf(out, size, "%" PRIu64 "%.1s", bytes, &units[unit]);
	return out;
}

double app_gbps(uint64_t bytes, double seconds)
{
	return seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
}
