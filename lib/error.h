/* SPDX-License-Identifier: Apache-2.0 */
/* The text behind lw_last_error: one per thread. */
#ifndef LW_ERROR_H
#define LW_ERROR_H

#include <lanewise/error.h>

/* Stores the sentence for this thread and returns error, so that a function can end with `return lw_fail(...)`. */
__attribute__((format(printf, 2, 3))) int lw_fail(int error, const char *format, ...);

/* The same for the data path: keeps the pointer, copies and formats nothing. text has static storage. */
int lw_fail_static(int error, const char *text);

#if defined(__clang_analyzer__) && !defined(LW_ERROR_SOURCE)
/* The analyzer does not look into other files: tell it that a failure is a negative number. */
#include <stdio.h>
static inline int lw_fail_known(int error)
{
	return error < 0 ? error : -1;
}
#define lw_fail(error, ...) ((void)(0 ? printf(__VA_ARGS__) : 0), lw_fail_known(error))
#define lw_fail_static(error, text) ((void)(text), lw_fail_known(error))
#endif

/* The negative errno value that belongs to a task's reason; 0 for LW_REASON_NONE. */
int lw_reason_errno(int reason);

#endif
