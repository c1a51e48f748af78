/* SPDX-License-Identifier: Apache-2.0 */
/* Connection strings of metadata stores, as the setting metadata and Mooncake's callers give them: what is accepted
 * opens a client that closes again, without a packet; what is refused says what is accepted, in printable text, and
 * tells no password. An input is one byte of options and the string.
 */
#include <errno.h>
#include <string.h>

#include "fuzz/input.h"
#include "meta/store.h"

#define PASSWORD "open-sesame"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {.at = data, .left = size};
	uint8_t flags = fuzz_u8(&input);
	const struct lw_store_options options = {.size = sizeof(options),
						 .incarnation = flags & 1,
						 .lease_s = flags & 2 ? 30 : 0,
						 .redis_db = flags >> 4,
						 .user = flags & 4 ? "ali" : NULL,
						 .password = flags & 8 ? PASSWORD : NULL,
						 .token = flags & 8 ? PASSWORD : NULL};
	struct lw_store *store = NULL;
	char url[600], why[400];
	const uint8_t *bytes;
	size_t length = fuzz_bytes(&input, sizeof(url) - 1, &bytes);
	int ret;

	if (length > 0)
		memcpy(url, bytes, length);
	url[length] = '\0';
	memset(why, 'x', sizeof(why));
	if (lw_store_is_p2p(url))
		return 0;
	ret = lw_store_open(url, &options, &store, why, sizeof(why));
	if (ret == 0) {
		FUZZ_CHECK(store != NULL, "no store");
		lw_store_close(store);
		return 0;
	}
	FUZZ_CHECK(ret == -EINVAL && store == NULL, "\"%s\" gives %d", url, ret);
	FUZZ_CHECK(memchr(why, '\0', sizeof(why)) != NULL && why[0] != '\0', "no reason");
	FUZZ_CHECK(strstr(why, PASSWORD) == NULL || strstr(url, PASSWORD) != NULL, "a password is told: %s", why);
	for (const char *at = why; *at != '\0'; at++)
		FUZZ_CHECK((unsigned char)*at >= ' ' && *at != 0x7f, "a control character in: %s", why);
	/* A reason that is not wanted is not written. */
	FUZZ_CHECK(lw_store_open(url, &options, &store, NULL, 0) == ret,
		   "another answer without a place for the reason");
	return 0;
}
