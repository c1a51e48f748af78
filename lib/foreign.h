/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake's environment: which of its variables are settings here, and which are known to have no meaning here. */
#ifndef LW_FOREIGN_H
#define LW_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a variable's text becomes the setting's. */
enum lw_foreign_kind {
	LW_FOREIGN_TEXT,    /* as it is */
	LW_FOREIGN_SECONDS, /* whole seconds of min to max, the setting's are milliseconds */
	LW_FOREIGN_NUMBER,  /* a whole number of min to max */
	LW_FOREIGN_LEVEL,   /* TRACE, INFO, WARNING or ERROR */
	LW_FOREIGN_PRESENT, /* any text, also none: the setting becomes value */
};

/* A variable that is a setting here. */
struct lw_foreign {
	const char *variable;
	const char *setting;
	const char *value; /* LW_FOREIGN_PRESENT alone */
	uint32_t min, max; /* of the variable's number */
	enum lw_foreign_kind kind;
};

/* In the order in which they count: of two variables for one setting the first that is set wins. */
extern const struct lw_foreign lw_foreign[];
extern const size_t lw_foreign_count;

/* The text for the setting. Writes to text, of size bytes, if it is not the value itself. 0 and *out; -EINVAL and the
 * rest of a sentence that begins with the value in why. */
int lw_foreign_convert(const struct lw_foreign *foreign, const char *value, char *text, size_t size, const char **out,
		       char *why, size_t why_size);

enum lw_foreign_use {
	LW_FOREIGN_UNKNOWN, /* nobody's variable: misspelt? */
	LW_FOREIGN_USED,    /* a setting here, or read where it is needed */
	LW_FOREIGN_UNUSED,  /* Mooncake's, without a meaning here */
};

/* What a variable "MC_..." of that length is. */
enum lw_foreign_use lw_foreign_use(const char *name, size_t length);

/* The known variable that a misspelt one most likely means, or NULL. */
const char *lw_foreign_similar(const char *name, size_t length);

#endif
