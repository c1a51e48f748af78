/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tcp/rails.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "meta/hostport.h"

#define WORD 64

/* The bytes of an address; their number. */
static size_t bytes_of(const struct sockaddr_storage *addr, const unsigned char **bytes)
{
	if (addr->ss_family == AF_INET) {
		*bytes = (const unsigned char *)&((const struct sockaddr_in *)addr)->sin_addr;
		return 4;
	}
	*bytes = (const unsigned char *)&((const struct sockaddr_in6 *)addr)->sin6_addr;
	return 16;
}

/* An address of the kernel's list. False: none of IP, or one that means something on its link alone. */
static bool take(const struct sockaddr *from, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof(*out));
	if (from == NULL || (from->sa_family != AF_INET && from->sa_family != AF_INET6))
		return false;
	memcpy(out, from, from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	return from->sa_family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)out)->sin6_addr);
}

static uint32_t count_bits(const struct sockaddr *mask)
{
	struct sockaddr_storage copy;
	const unsigned char *bytes;
	uint32_t bits = 0;
	size_t count;

	if (!take(mask, &copy))
		return 0;
	count = bytes_of(&copy, &bytes);
	for (size_t i = 0; i < count; i++)
		bits += (uint32_t)__builtin_popcount(bytes[i]);
	return bits;
}

/* The numeric address that the word is. False: it is none. */
static bool is_address(const char *word, struct sockaddr_storage *out)
{
	char text[WORD + 8];

	/* With a port, as the reader wants it. */
	snprintf(text, sizeof(text), strchr(word, ':') != NULL ? "[%s]:1" : "%s:1", word);
	if (lw_sockaddr_parse(text, out) != 0)
		return false;
	lw_sockaddr_set_port(out, 0);
	return true;
}

/* Finds what the word means. False: nothing here. */
static bool find(const struct ifaddrs *list, const char *word, int family, struct tcp_rail *out)
{
	struct sockaddr_storage wanted, addr;
	bool by_address = is_address(word, &wanted), found = false;

	for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
		if (at->ifa_name == NULL || !take(at->ifa_addr, &addr))
			continue;
		if (by_address ? !lw_sockaddr_same_host(&addr, &wanted)
			       : strcmp(at->ifa_name, word) != 0 || (found && addr.ss_family != family))
			continue;
		memset(out, 0, sizeof(*out));
		out->addr = addr;
		out->prefix_bits = count_bits(at->ifa_netmask);
		if (!by_address)
			snprintf(out->device, sizeof(out->device), "%s", at->ifa_name);
		if (by_address || addr.ss_family == family)
			return true;
		found = true;
	}
	/* All of 127/8 is this host's. */
	if (by_address && !found && lw_sockaddr_is_loopback(&wanted)) {
		*out = (struct tcp_rail){.addr = wanted, .prefix_bits = wanted.ss_family == AF_INET ? 8 : 128};
		return true;
	}
	return found;
}

static int add(const struct ifaddrs *here, const char *word, int family, struct tcp_rails *out, char *why,
	       size_t why_size)
{
	struct tcp_rail rail;

	if (out->count == TCP_RAILS) {
		snprintf(why, why_size, "setting tcp_bind: more than %d addresses", TCP_RAILS);
		return -EINVAL;
	}
	if (!find(here, word, family, &rail)) {
		snprintf(why, why_size, "setting tcp_bind: \"%s\" is no address of this host, and no device with one",
			 word);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < out->count; i++) {
		if (lw_sockaddr_same_host(&out->rail[i].addr, &rail.addr)) {
			snprintf(why, why_size, "setting tcp_bind: \"%s\" is there twice", word);
			return -EINVAL;
		}
	}
	out->rail[out->count++] = rail;
	return 0;
}

int tcp_rails_read(const char *list, int family, struct tcp_rails *out, char *why, size_t why_size)
{
	struct ifaddrs *here = NULL;
	int error = 0;

	memset(out, 0, sizeof(*out));
	if (*list == '\0')
		return 0;
	if (getifaddrs(&here) != 0) {
		error = errno == ENOMEM ? -ENOMEM : -EINVAL;
		snprintf(why, why_size, "setting tcp_bind: the addresses of this host can't be listed: %s",
			 strerrordesc_np(errno));
		return error;
	}
	while (*list != '\0' && error == 0) {
		size_t length = strcspn(list, ",");
		char word[WORD] = "";

		snprintf(word, sizeof(word), "%.*s", (int)length, list);
		list += length + (list[length] == ',');
		if (length >= WORD) {
			snprintf(why, why_size, "setting tcp_bind: \"%s...\" is no address and no device", word);
			error = -EINVAL;
		} else if (length > 0) {
			error = add(here, word, family, out, why, why_size);
		}
	}
	freeifaddrs(here);
	return error;
}

bool tcp_rail_reaches(const struct tcp_rail *rail, const struct sockaddr_storage *addr)
{
	const unsigned char *own, *other;
	uint32_t bits = rail->prefix_bits;
	size_t whole = bits / 8;

	if (rail->addr.ss_family != addr->ss_family || bits == 0)
		return false;
	bytes_of(&rail->addr, &own);
	bytes_of(addr, &other);
	return memcmp(own, other, whole) == 0 && (bits % 8 == 0 || (own[whole] ^ other[whole]) >> (8 - bits % 8) == 0);
}

int tcp_rail_bind(const struct tcp_rail *rail, int fd)
{
	int on = 1;

	/* Where the system does not allow it, the address alone has to do. */
	if (rail->device[0] != '\0')
		(void)setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, rail->device, (socklen_t)strlen(rail->device));
	/* The port is chosen in connect, where all four numbers of the connection are known. */
	(void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
	if (bind(fd, (const struct sockaddr *)&rail->addr, lw_sockaddr_length(&rail->addr)) != 0)
		return -errno;
	return 0;
}
