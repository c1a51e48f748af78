/* SPDX-License-Identifier: Apache-2.0 */
/* Priority matrices and locations: what is accepted keeps the reader's promises, and written and read again it is the
 * same. The input is the document, and the text of a location at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/input.h"
#include "meta/location.h"
#include "meta/matrix.h"

static void check_row(const struct lw_matrix *matrix, const struct lw_matrix_row *row)
{
	size_t count = (size_t)row->preferred + row->available;

	FUZZ_CHECK(memchr(row->location, '\0', sizeof(row->location)) != NULL && row->location[0] != '\0',
		   "a row without a location");
	FUZZ_CHECK(count <= matrix->device_count, "%zu of %zu devices", count, matrix->device_count);
	for (size_t i = 0; i < count; i++) {
		FUZZ_CHECK(row->device[i] < matrix->device_count, "device %u", row->device[i]);
		for (size_t k = 0; k < i; k++)
			FUZZ_CHECK(row->device[k] != row->device[i], "device %u is twice in a row", row->device[i]);
	}
}

static void check_matrix(const struct lw_matrix *matrix)
{
	struct lw_matrix_row row;

	for (size_t i = 0; i < matrix->row_count; i++) {
		check_row(matrix, &matrix->rows[i]);
		FUZZ_CHECK(i == 0 || strcmp(matrix->rows[i - 1].location, matrix->rows[i].location) < 0,
			   "rows out of order");
		lw_matrix_find(matrix, matrix->rows[i].location, &row);
		FUZZ_CHECK(memcmp(&row, &matrix->rows[i], sizeof(row)) == 0, "a row is not found");
	}
	lw_matrix_find(matrix, "nowhere", &row);
	check_row(matrix, &row);
}

static void fuzz_matrix(const char *data, size_t size)
{
	struct lw_matrix *first = NULL, *second = NULL;
	char why[200], *text, *again;
	int ret;

	memset(why, 'x', sizeof(why));
	ret = lw_matrix_parse(data, size, &first, why, sizeof(why));
	if (ret != 0) {
		FUZZ_CHECK(ret == -EPROTO && first == NULL, "error %d", ret);
		FUZZ_CHECK(memchr(why, '\0', sizeof(why)) != NULL && why[0] != '\0', "no reason");
		return;
	}
	check_matrix(first);
	text = lw_matrix_print(first);
	FUZZ_CHECK(text != NULL, "can't be written");
	ret = lw_matrix_parse(text, strlen(text), &second, why, sizeof(why));
	FUZZ_CHECK(ret == 0, "what was written is refused: %s: %s", why, text);
	again = lw_matrix_print(second);
	FUZZ_CHECK(again != NULL && strcmp(text, again) == 0, "%s became %s", text, again);
	free(text);
	free(again);
	lw_matrix_free(first);
	lw_matrix_free(second);
}

static void fuzz_location(const uint8_t *data, size_t size)
{
	char text[512], why[200] = "", place[LW_LOCATION_TEXT];
	struct lw_location location;

	if (size >= sizeof(text))
		size = sizeof(text) - 1;
	if (size > 0)
		memcpy(text, data, size);
	text[size] = '\0';
	if (lw_location_parse(text, &location, why, sizeof(why)) != 0) {
		FUZZ_CHECK(why[0] != '\0', "no reason");
		return;
	}
	for (uint64_t offset = 0; offset < 100; offset += 9) {
		lw_location_at(&location, 100, offset, place, sizeof(place));
		FUZZ_CHECK(strcmp(place, "*") == 0 || strchr(place, ':') != NULL, "\"%s\" lies at \"%s\"", text, place);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fuzz_matrix((const char *)data, size);
	fuzz_location(data, size);
	return 0;
}
