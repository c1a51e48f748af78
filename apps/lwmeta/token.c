/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <sodium.h>

#include "apps/lwmeta/token.h"

static const char variable[] = "LWMETA_TOKEN";

static void hash(const char *text, unsigned char out[32])
{
	crypto_generichash(out, 32, (const unsigned char *)text, strlen(text), NULL, 0);
}

/* The visible characters of ASCII without blanks: what a header can carry in one piece. */
static bool token_like(const char *text)
{
	size_t size = strlen(text);

	for (const char *c = text; *c != '\0'; c++)
		if (*c < '!' || *c > '~')
			return false;
	return size > 0 && size <= TOKEN_BYTES_MAX;
}

/* The first line of a file. 0, -errno. */
static int read_line(const char *file, char *line, size_t size)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC), rc = 0;
	size_t used = 0;
	ssize_t got;

	if (fd < 0)
		return -errno;
	while (used < size - 1) {
		got = read(fd, line + used, size - 1 - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			rc = -errno;
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	line[used] = '\0';
	line[strcspn(line, "\r\n")] = '\0';
	return rc;
}

int token_load(struct token *token, const char *file, char *why, size_t why_size)
{
	char line[TOKEN_BYTES_MAX + 3] = "", *set = getenv(variable);
	int rc = 0;

	memset(token, 0, sizeof(*token));
	if (file != NULL) {
		rc = read_line(file, line, sizeof(line));
		if (rc != 0) {
			snprintf(why, why_size, "%s can't be read: %s", file, strerror(-rc));
		} else if (!token_like(line)) {
			rc = -EINVAL;
			snprintf(why, why_size,
				 "the first line of %s is no token: 1 to %d visible characters, no blanks", file,
				 TOKEN_BYTES_MAX);
		} else {
			hash(line, token->hash);
			token->wanted = true;
		}
		sodium_memzero(line, sizeof(line));
	} else if (set != NULL && !token_like(set)) {
		rc = -EINVAL;
		snprintf(why, why_size, "%s holds no token: 1 to %d visible characters, no blanks", variable,
			 TOKEN_BYTES_MAX);
	} else if (set != NULL) {
		hash(set, token->hash);
		token->wanted = true;
	}
	if (set != NULL)
		sodium_memzero(set, strlen(set)); /* others of this user can read the environment */
	unsetenv(variable);
	return rc;
}

bool token_good(const struct token *token, const char *authorization)
{
	static const char scheme[] = "Bearer";
	unsigned char given[sizeof(token->hash)];

	if (!token->wanted)
		return true;
	if (authorization == NULL || strncasecmp(authorization, scheme, strlen(scheme)) != 0 ||
	    authorization[strlen(scheme)] != ' ')
		return false;
	authorization += strlen(scheme);
	authorization += strspn(authorization, " ");
	hash(authorization, given);
	return sodium_memcmp(given, token->hash, sizeof(given)) == 0;
}
