/* SPDX-License-Identifier: Apache-2.0 */
/* The priority matrix: which NICs serve memory of a location, the near ones (preferred) before the others (available).
 * As JSON {"<location>":[["<preferred>",...],["<available>",...]],...}; an empty matrix is null.
 */
#ifndef LW_META_MATRIX_H
#define LW_META_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LW_MATRIX_NAME 64 /* longest location or device with its NUL */
#define LW_MATRIX_DEVICES 256
#define LW_MATRIX_ROWS 4096
#define LW_MATRIX_BYTES 1048576 /* longest text that is read */

struct cJSON;

struct lw_matrix_row {
	char location[LW_MATRIX_NAME];     /* "cpu:0", "cuda:3" */
	uint16_t preferred, available;     /* how many of each */
	uint8_t device[LW_MATRIX_DEVICES]; /* the preferred ones, then the available ones; no device twice */
};

struct lw_matrix {
	char device[LW_MATRIX_DEVICES][LW_MATRIX_NAME]; /* by first appearance */
	size_t device_count;
	struct lw_matrix_row *rows; /* by location, bytewise */
	size_t row_count, rows_room;
};

/* A zeroed matrix is empty. Any thread, each with its own. Nothing here blocks. */

/* Adds a device to a row, behind the others of its kind; makes row and device if they are new. One that the row has
 * already stays where it is. location alone (device NULL) makes an empty row. 0; -EINVAL a text is empty or too long;
 * -ENOSPC too many; -ENOMEM. */
int lw_matrix_add(struct lw_matrix *matrix, const char *location, const char *device, bool preferred);

/* Reads JSON from outside into a new *out. 0; -EPROTO, and why names the field and what is wrong with it; -ENOMEM.
 * lw_matrix_read takes what is parsed already, such as a member of a descriptor. */
int lw_matrix_parse(const char *text, size_t length, struct lw_matrix **out, char *why, size_t why_size);
int lw_matrix_read(const struct cJSON *json, struct lw_matrix **out, char *why, size_t why_size);

/* What is read again as the same: sorted keys, no blanks. An item, or a text that is to be freed with free(). NULL: no
 * memory. */
struct cJSON *lw_matrix_write(const struct lw_matrix *matrix);
char *lw_matrix_print(const struct lw_matrix *matrix);

/* The row of a location. One that is not there, and "*", have the devices of all rows as preferred, in the order of the
 * device table. */
void lw_matrix_find(const struct lw_matrix *matrix, const char *location, struct lw_matrix_row *out);

void lw_matrix_fini(struct lw_matrix *matrix); /* what lw_matrix_add has made */
void lw_matrix_free(struct lw_matrix *matrix); /* what was read; NULL too */

#endif
