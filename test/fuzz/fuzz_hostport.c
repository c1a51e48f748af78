/* SPDX-License-Identifier: Apache-2.0 */
/* Names of engines: what parses is formatted to a text that parses to the same, and a numeric host becomes an address
 * that has the port. An input is one byte for the default port and the name.
 */
#include <arpa/inet.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz/input.h"
#include "meta/hostport.h"

static void check_address(const struct lw_hostport *hp)
{
	struct lw_addrs addrs;
	char text[LW_NAME_MAX + 8];
	struct in_addr v4;

	/* Others would be looked up. So would a scope that is no number. */
	if (inet_pton(AF_INET, hp->host, &v4) != 1 && (!hp->v6 || strchr(hp->host, '%') != NULL))
		return;
	FUZZ_CHECK(lw_hostport_resolve(hp, 1000, &addrs) == 0, "\"%s\" is no address", hp->host);
	FUZZ_CHECK(addrs.count == 1 && lw_sockaddr_port(&addrs.addr[0]) == hp->port &&
			   addrs.addr[0].ss_family == (hp->v6 ? AF_INET6 : AF_INET),
		   "the address of \"%s\" is another one", hp->host);
	lw_sockaddr_format(&addrs.addr[0], text, sizeof(text));
}

static bool same(const struct lw_hostport *a, const struct lw_hostport *b)
{
	return strcmp(a->host, b->host) == 0 && a->port == b->port && a->v6 == b->v6;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint16_t ports[] = {0, 1, 12001, 65535};
	struct fuzz_input input = {.at = data, .left = size};
	uint16_t port = ports[fuzz_u8(&input) % 4];
	char text[2 * LW_NAME_MAX], again[LW_NAME_MAX + 16];
	struct lw_hostport first, second;
	const uint8_t *bytes;
	size_t length;
	int ret;

	length = fuzz_bytes(&input, sizeof(text) - 1, &bytes);
	if (length > 0)
		memcpy(text, bytes, length);
	text[length] = '\0';
	memset(&first, 0x5a, sizeof(first));
	ret = lw_hostport_parse(text, port, &first);
	if (ret != 0) {
		for (size_t i = 0; i < sizeof(first); i++)
			FUZZ_CHECK(((const unsigned char *)&first)[i] == 0x5a, "an output was written without success");
		return 0;
	}
	FUZZ_CHECK(memchr(first.host, '\0', sizeof(first.host)) != NULL && first.host[0] != '\0', "no host");
	ret = lw_hostport_format(&first, again, sizeof(again));
	FUZZ_CHECK(ret > 0 && (size_t)ret == strlen(again), "\"%s\" can't be formatted", text);
	ret = lw_hostport_parse(again, port, &second);
	if (ret != 0) /* it became too long: brackets, or the port, were added */
		FUZZ_CHECK(strlen(again) >= LW_NAME_MAX, "\"%s\" became \"%s\", which does not parse", text, again);
	else
		FUZZ_CHECK(same(&first, &second), "\"%s\" became \"%s\", which is another", text, again);
	check_address(&first);
	return 0;
}
