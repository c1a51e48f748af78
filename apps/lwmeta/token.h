/* SPDX-License-Identifier: Apache-2.0 */
/* The token that requests carry when the server wants one. Only its hash is kept. */
#ifndef APPS_LWMETA_TOKEN_H
#define APPS_LWMETA_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

enum { TOKEN_BYTES_MAX = 4096 };

struct token {
	bool wanted;
	unsigned char hash[32];
};

/* Takes the token from the first line of a file, or where file is NULL from the variable LWMETA_TOKEN, which is wiped;
 * without both none is wanted. 0; -errno, with a sentence in why, which never shows the token. */
int token_load(struct token *token, const char *file, char *why, size_t why_size);

/* Whether the value of a header "Authorization" (NULL: there is none) is good. Its time does not depend on how much of
 * the token is right. */
bool token_good(const struct token *token, const char *authorization);

#endif
