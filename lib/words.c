/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/words.h"

#include <errno.h>
#include <string.h>

int lw_parse_number(const char *text, size_t length, uint64_t *out)
{
	uint64_t value = 0;
	int rc = 0;
	size_t i;

	if (length == 0)
		return -EINVAL;
	for (i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
		if (__builtin_mul_overflow(value, 10u, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
			rc = -ERANGE;
	}
	if (rc == 0)
		*out = value;
	return rc;
}

size_t lw_word_distance(const char *a, size_t length, const char *b)
{
	size_t row[LW_WORD_FAR], b_length = strlen(b), i, j, diagonal, above;

	if (length >= LW_WORD_FAR || b_length >= LW_WORD_FAR)
		return LW_WORD_FAR;
	for (j = 0; j <= b_length; j++)
		row[j] = j;
	for (i = 1; i <= length; i++) {
		diagonal = row[0];
		row[0] = i;
		for (j = 1; j <= b_length; j++) {
			above = row[j];
			row[j] = diagonal + (a[i - 1] != b[j - 1]);
			if (above + 1 < row[j])
				row[j] = above + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			diagonal = above;
		}
	}
	return row[b_length];
}
