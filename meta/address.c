/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADDRESSES_MAX 4096
#define NAMED_MAX 16 /* addresses in a message */
#define TRIED_MAX 64

/* What software gives its own bridges, tunnels and pairs. The kernel tells bridges alone. */
static const char *const bridge_names[] = {"docker",  "br-",    "virbr", "veth",   "cni",     "cali",
					   "flannel", "vxlan",  "kube",  "lxc",    "lxdbr",   "incus",
					   "weave",   "cilium", "tunl",  "podman", "nerdctl", "dummy"};

/* An address as its bytes, to compare. */
struct bare {
	int family;
	unsigned char bytes[16];
	uint32_t scope;
};

static bool is_bridge(const char *sysfs, const char *name)
{
	char path[512];

	for (size_t i = 0; i < sizeof(bridge_names) / sizeof(bridge_names[0]); i++)
		if (strncmp(name, bridge_names[i], strlen(bridge_names[i])) == 0)
			return true;
	snprintf(path, sizeof(path), "%s/class/net/%s/bridge", sysfs != NULL ? sysfs : "/sys", name);
	return access(path, F_OK) == 0;
}

static bool is_link_local(const struct bare *bare)
{
	if (bare->family == AF_INET)
		return bare->bytes[0] == 169 && bare->bytes[1] == 254;
	return bare->bytes[0] == 0xfe && (bare->bytes[1] & 0xc0) == 0x80;
}

static enum lw_address_rank rank_of(const char *sysfs, const struct ifaddrs *at, const struct bare *bare)
{
	const unsigned int ready = IFF_UP | IFF_RUNNING;

	if ((at->ifa_flags & ready) != ready)
		return LW_ADDRESS_DOWN;
	if ((at->ifa_flags & IFF_LOOPBACK) != 0)
		return LW_ADDRESS_LOOPBACK;
	if (bare->family == AF_INET6 && is_link_local(bare))
		return LW_ADDRESS_LINK_LOCAL;
	if (is_bridge(sysfs, at->ifa_name))
		return LW_ADDRESS_BRIDGE;
	return is_link_local(bare) ? LW_ADDRESS_SELF_MADE : LW_ADDRESS_ROUTABLE;
}

/* False: not an IP address. */
static bool bare_of(const struct sockaddr *addr, struct bare *out)
{
	memset(out, 0, sizeof(*out));
	if (addr == NULL || (addr->sa_family != AF_INET && addr->sa_family != AF_INET6))
		return false;
	out->family = addr->sa_family;
	if (addr->sa_family == AF_INET) {
		memcpy(out->bytes, &((const struct sockaddr_in *)(const void *)addr)->sin_addr, 4);
	} else {
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)addr;

		memcpy(out->bytes, &v6->sin6_addr, 16);
		out->scope = is_link_local(out) ? v6->sin6_scope_id : 0;
	}
	return true;
}

static void fill(const char *sysfs, const struct ifaddrs *at, const struct bare *bare, struct lw_address *out)
{
	char number[INET6_ADDRSTRLEN] = "";

	memset(out, 0, sizeof(*out));
	out->v6 = bare->family == AF_INET6;
	out->rank = rank_of(sysfs, at, bare);
	snprintf(out->interface, sizeof(out->interface), "%s", at->ifa_name);
	inet_ntop(bare->family, bare->bytes, number, sizeof(number));
	if (out->v6 && is_link_local(bare))
		snprintf(out->text, sizeof(out->text), "%s%%%s", number, out->interface);
	else
		snprintf(out->text, sizeof(out->text), "%s", number);
}

static bool is_before(const struct lw_address *a, const struct lw_address *b, bool prefer_v6)
{
	if (a->rank != b->rank)
		return a->rank < b->rank;
	return a->v6 != b->v6 && a->v6 == prefer_v6;
}

/* Puts one behind all that are as good. Of more than max the worst falls out. */
static void insert(struct lw_address *list, size_t max, size_t have, const struct lw_address *one, bool prefer_v6)
{
	size_t used = have < max ? have : max, at = used;

	while (at > 0 && is_before(one, &list[at - 1], prefer_v6))
		at--;
	if (at == max)
		return;
	if (used == max)
		used--;
	memmove(&list[at + 1], &list[at], (used - at) * sizeof(*list));
	list[at] = *one;
}

static size_t collect(const struct lw_address_opts *opts, const struct ifaddrs *at, struct lw_address *list, size_t max)
{
	struct lw_address one;
	struct bare bare;
	size_t count = 0;

	for (; at != NULL && count < ADDRESSES_MAX; at = at->ifa_next) {
		if (at->ifa_name == NULL || !bare_of(at->ifa_addr, &bare))
			continue;
		fill(opts->sysfs, at, &bare, &one);
		insert(list, max, count++, &one, opts->prefer_v6);
	}
	return count;
}

int lw_address_list(const struct lw_address_opts *opts, struct lw_address *list, size_t max)
{
	struct ifaddrs *own;
	size_t count;

	if (opts->addrs != NULL)
		return (int)collect(opts, opts->addrs, list, max);
	if (getifaddrs(&own) != 0)
		return -errno;
	count = collect(opts, own, list, max);
	freeifaddrs(own);
	return (int)count;
}

/* "10.0.0.5", "::1", "[::1]", "fe80::1%eth0", "fe80::1%2". 0, -EINVAL. */
static int parse(const char *text, struct bare *out)
{
	size_t length = strlen(text);
	char host[LW_ADDRESS_TEXT];
	char *percent;

	memset(out, 0, sizeof(*out));
	if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
		text++;
		length -= 2;
	}
	if (length == 0 || length >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, length);
	host[length] = '\0';
	out->family = AF_INET;
	if (inet_pton(AF_INET, host, out->bytes) == 1)
		return 0;
	percent = strchr(host, '%');
	if (percent != NULL) {
		char *end;

		*percent++ = '\0';
		out->scope = if_nametoindex(percent);
		if (out->scope == 0) {
			out->scope = (uint32_t)strtoul(percent, &end, 10);
			if (end == percent || *end != '\0')
				out->scope = UINT32_MAX; /* of no interface here */
		}
	}
	out->family = AF_INET6;
	return inet_pton(AF_INET6, host, out->bytes) == 1 ? 0 : -EINVAL;
}

/* The wanted address among those of this host. An IPv6 link-local one without a scope is none. */
static bool find(const struct lw_address_opts *opts, const struct ifaddrs *at, const struct bare *wanted,
		 struct lw_address *out)
{
	struct bare bare;

	for (; at != NULL; at = at->ifa_next) {
		bool same;

		if (at->ifa_name == NULL || !bare_of(at->ifa_addr, &bare) || bare.family != wanted->family)
			continue;
		same = memcmp(bare.bytes, wanted->bytes, sizeof(bare.bytes)) == 0 && bare.scope == wanted->scope;
		if (!same && bare.family == AF_INET && (at->ifa_flags & IFF_LOOPBACK) != 0 && bare.bytes[0] == 127 &&
		    wanted->bytes[0] == 127) {
			same = true;
			bare = *wanted;
		}
		if (same) {
			fill(opts->sysfs, at, &bare, out);
			return true;
		}
	}
	return false;
}

/* " 10.0.0.5 (eth0), ..." at the end of a sentence. */
static void name_all(const struct lw_address_opts *opts, char *text, size_t size)
{
	struct lw_address list[NAMED_MAX] = {{.rank = LW_ADDRESS_DOWN}};
	int count = lw_address_list(opts, list, NAMED_MAX);
	size_t used = strlen(text);

	for (int i = 0; i < count && i < NAMED_MAX && used < size; i++)
		used += (size_t)snprintf(text + used, size - used, "%s %s (%s%s)", i == 0 ? "" : ",", list[i].text,
					 list[i].interface, list[i].rank == LW_ADDRESS_DOWN ? ", down" : "");
	if (used < size)
		snprintf(text + used, size - used, "%s", count <= 0 ? " none" : count > NAMED_MAX ? ", ..." : "");
}

static int choose_wanted(const struct lw_address_opts *opts, struct lw_address *out, char *why, size_t why_size)
{
	struct ifaddrs *own = NULL;
	struct bare wanted;
	bool found;

	if (parse(opts->wanted, &wanted) != 0) {
		snprintf(why, why_size, "\"%.64s\" is no numeric address; this host has", opts->wanted);
		name_all(opts, why, why_size);
		return -EINVAL;
	}
	if (opts->addrs == NULL && getifaddrs(&own) != 0) {
		int error = -errno;

		snprintf(why, why_size, "the addresses of this host can't be listed: %s", strerrordesc_np(-error));
		return error;
	}
	found = find(opts, opts->addrs != NULL ? opts->addrs : own, &wanted, out);
	if (own != NULL)
		freeifaddrs(own);
	if (found)
		return 0;
	snprintf(why, why_size, "\"%.64s\" is no address of this host; there are", opts->wanted);
	name_all(opts, why, why_size);
	return -EADDRNOTAVAIL;
}

/* Whether a socket can be bound to an address now. An IPv6 one that is being probed for a second owner can't be yet. */
static bool can_bind(const struct lw_address *address)
{
	struct sockaddr_storage at;
	struct bare bare;
	bool bound;
	int fd;

	memset(&at, 0, sizeof(at));
	if (parse(address->text, &bare) != 0)
		return false;
	at.ss_family = (sa_family_t)bare.family;
	if (bare.family == AF_INET) {
		memcpy(&((struct sockaddr_in *)&at)->sin_addr, bare.bytes, 4);
	} else {
		memcpy(&((struct sockaddr_in6 *)&at)->sin6_addr, bare.bytes, 16);
		((struct sockaddr_in6 *)&at)->sin6_scope_id = bare.scope;
	}
	fd = socket(bare.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	bound = bind(fd, (const struct sockaddr *)&at,
		     bare.family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) == 0;
	close(fd);
	return bound;
}

int lw_address_choose(const struct lw_address_opts *opts, struct lw_address *out, char *why, size_t why_size)
{
	struct lw_address list[TRIED_MAX] = {{.rank = LW_ADDRESS_DOWN}};
	int count;

	if (opts->wanted != NULL && opts->wanted[0] != '\0')
		return choose_wanted(opts, out, why, why_size);
	count = lw_address_list(opts, list, TRIED_MAX);
	if (count < 0) {
		snprintf(why, why_size, "the addresses of this host can't be listed: %s", strerrordesc_np(-count));
		return count;
	}
	for (int i = 0; i < count && i < TRIED_MAX && list[i].rank != LW_ADDRESS_DOWN; i++) {
		if (opts->addrs == NULL && !can_bind(&list[i]))
			continue;
		*out = list[i];
		return 0;
	}
	snprintf(why, why_size, "no interface of this host is up and running; there are");
	name_all(opts, why, why_size);
	return -EADDRNOTAVAIL;
}
