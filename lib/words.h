/* SPDX-License-Identifier: Apache-2.0 */
/* Words and numbers that people write, in settings and variables. Any thread. */
#ifndef LW_WORDS_H
#define LW_WORDS_H

#include <stddef.h>
#include <stdint.h>

#define LW_WORD_FAR 64 /* the distance of words that long, or longer */

/* Digits only: no sign, blank, base or exponent. 0 and *out; -EINVAL; -ERANGE digits, but more than 64 bits. */
int lw_parse_number(const char *text, size_t length, uint64_t *out);

/* Edits (insert, delete, replace) that make b of the first length bytes of a; LW_WORD_FAR when one is that long. */
size_t lw_word_distance(const char *a, size_t length, const char *b);

#endif
