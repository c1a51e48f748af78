/* SPDX-License-Identifier: Apache-2.0 */
/* Names of engines, look-up of hosts, and listening sockets on a random port. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/ring/inbox.h"
#include "meta/hostport.h"

#define RANDOM_TRIES 300

/* An IPv6 literal, with or without "%scope". A scope is not empty and holds none of ":[]%". */
static bool is_v6(const char *text, size_t length)
{
	const char *percent = memchr(text, '%', length);
	size_t bare = percent != NULL ? (size_t)(percent - text) : length;
	char literal[INET6_ADDRSTRLEN];
	struct in6_addr addr;
	size_t i;

	if (bare == 0 || bare >= sizeof(literal) || bare + 1 == length)
		return false;
	for (i = bare + 1; i < length; i++)
		if (strchr(":[]%", text[i]) != NULL)
			return false;
	memcpy(literal, text, bare);
	literal[bare] = '\0';
	return inet_pton(AF_INET6, literal, &addr) == 1;
}

static bool is_plain_host(const char *text, size_t length)
{
	size_t i;

	for (i = 0; i < length; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f || strchr(":[]", text[i]) != NULL)
			return false;
	return length > 0;
}

/* Decimal digits alone, 1 .. 65535. Port 0 can't be connected to, so nobody means it. */
static int parse_port(const char *text, uint16_t *port)
{
	uint32_t value = 0;
	size_t i;

	for (i = 0; text[i] != '\0'; i++) {
		if (i == 5 || text[i] < '0' || text[i] > '9')
			return -EINVAL;
		value = value * 10 + (uint32_t)(text[i] - '0');
	}
	if (value == 0 || value > UINT16_MAX)
		return -EINVAL;
	*port = (uint16_t)value;
	return 0;
}

int lw_hostport_parse(const char *text, uint16_t default_port, struct lw_hostport *out)
{
	const char *host = text, *after; /* after: the ":port" that follows the host, or "" */
	uint16_t port = default_port;
	size_t length, all;
	bool v6 = true;

	if (text == NULL)
		return -EINVAL;
	all = strnlen(text, LW_NAME_MAX);
	if (all == 0 || all == LW_NAME_MAX)
		return -EINVAL;

	if (text[0] == '[') {
		host = text + 1;
		after = strchr(host, ']');
		if (after == NULL || !is_v6(host, (size_t)(after - host)))
			return -EINVAL;
		length = (size_t)(after - host);
		after++;
	} else if (is_v6(text, all)) {
		length = all; /* the whole of it, even where the tail looks like a port */
		after = text + all;
	} else {
		after = strrchr(text, ':');
		if (after == NULL)
			after = text + all;
		length = (size_t)(after - text);
		v6 = is_v6(text, length);
		if (!v6 && !is_plain_host(text, length))
			return -EINVAL;
	}
	if (*after != '\0' && (*after != ':' || parse_port(after + 1, &port) < 0))
		return -EINVAL;

	memset(out, 0, sizeof(*out));
	memcpy(out->host, host, length);
	out->port = port;
	out->v6 = v6;
	return 0;
}

int lw_hostport_format(const struct lw_hostport *hp, char *text, size_t size)
{
	const char *open = hp->v6 ? "[" : "", *close = hp->v6 ? "]" : "";
	int length;

	if (hp->port != 0)
		length = snprintf(text, size, "%s%s%s:%u", open, hp->host, close, hp->port);
	else
		length = snprintf(text, size, "%s%s%s", open, hp->host, close);
	return length < 0 || (size_t)length >= size ? -ENAMETOOLONG : length;
}

void lw_sockaddr_set_port(struct sockaddr_storage *addr, uint16_t port)
{
	if (addr->ss_family == AF_INET)
		((struct sockaddr_in *)addr)->sin_port = htons(port);
	else if (addr->ss_family == AF_INET6)
		((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
}

uint16_t lw_sockaddr_port(const struct sockaddr_storage *addr)
{
	if (addr->ss_family == AF_INET)
		return ntohs(((const struct sockaddr_in *)addr)->sin_port);
	if (addr->ss_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)addr)->sin6_port);
	return 0;
}

socklen_t lw_sockaddr_length(const struct sockaddr_storage *addr)
{
	return addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

void lw_sockaddr_format(const struct sockaddr_storage *addr, char *text, size_t size)
{
	char host[LW_NAME_MAX];

	if (getnameinfo((const struct sockaddr *)addr, lw_sockaddr_length(addr), host, sizeof(host), NULL, 0,
			NI_NUMERICHOST) != 0)
		snprintf(text, size, "an unknown address");
	else
		snprintf(text, size, addr->ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, lw_sockaddr_port(addr));
}

bool lw_sockaddr_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return memcmp(&((const struct sockaddr_in *)a)->sin_addr, &((const struct sockaddr_in *)b)->sin_addr,
			      4) == 0;
	return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16) ==
	       0;
}

bool lw_sockaddr_is_loopback(const struct sockaddr_storage *addr)
{
	if (addr->ss_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24 == 127;
	return addr->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)addr)->sin6_addr);
}

static bool is_one_host(const struct sockaddr_storage *addr)
{
	if (addr->ss_family == AF_INET) {
		uint32_t number = ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr);

		return number != 0 && number >> 28 < 14;
	} else {
		const struct in6_addr *v6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;

		return !IN6_IS_ADDR_UNSPECIFIED(v6) && !IN6_IS_ADDR_MULTICAST(v6) && !IN6_IS_ADDR_LINKLOCAL(v6);
	}
}

int lw_sockaddr_parse(const char *text, struct sockaddr_storage *out)
{
	struct sockaddr_storage addr = {.ss_family = AF_INET};
	struct lw_hostport hp;

	if (lw_hostport_parse(text, 0, &hp) != 0 || hp.port == 0)
		return -EINVAL;
	if (hp.v6)
		addr.ss_family = AF_INET6;
	if (inet_pton(addr.ss_family, hp.host,
		      hp.v6 ? (void *)&((struct sockaddr_in6 *)&addr)->sin6_addr
			    : (void *)&((struct sockaddr_in *)&addr)->sin_addr) != 1 ||
	    !is_one_host(&addr))
		return -EINVAL;
	lw_sockaddr_set_port(&addr, hp.port);
	*out = addr;
	return 0;
}

/* Look-up -------------------------------------------------------------------------------------------------------------
 */

/* One look-up by name. The C library may still be writing to it after we gave up, so it lives on the heap and, where it
 * can't be cancelled, waits among the orphans until a later call finds it finished. There are never more orphans than
 * the C library has helper threads (20), since what none of them has begun can be cancelled. */
struct lookup {
	struct lw_inbox_node node;
	struct gaicb request;
	struct addrinfo hints;
	char host[LW_NAME_MAX];
};

/* Lock-free: a child of fork(2) must not find it locked. */
static struct lw_inbox orphans;

static void lookup_free(struct lookup *lookup)
{
	if (lookup->request.ar_result != NULL)
		freeaddrinfo(lookup->request.ar_result);
	free(lookup);
}

static void sweep_orphans(void)
{
	struct lw_inbox_node *node = lw_inbox_take_all(&orphans), *next;

	for (; node != NULL; node = next) {
		struct lookup *lookup = (struct lookup *)node; /* its first member */

		next = node->next;
		if (gai_error(&lookup->request) == EAI_INPROGRESS)
			lw_inbox_push(&orphans, node);
		else
			lookup_free(lookup);
	}
}

static int from_eai(int eai)
{
	return eai == 0 ? 0 : eai == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH;
}

static int take_results(const struct addrinfo *ai, uint16_t port, struct lw_addrs *out)
{
	struct lw_addrs addrs = {.count = 0};
	uint32_t i;

	for (; ai != NULL && addrs.count < sizeof(addrs.addr) / sizeof(addrs.addr[0]); ai = ai->ai_next) {
		struct sockaddr_storage *slot = &addrs.addr[addrs.count];

		if ((ai->ai_family != AF_INET && ai->ai_family != AF_INET6) || ai->ai_addrlen > sizeof(*slot))
			continue;
		memset(slot, 0, sizeof(*slot));
		memcpy(slot, ai->ai_addr, ai->ai_addrlen);
		lw_sockaddr_set_port(slot, port);
		for (i = 0; i < addrs.count; i++)
			if (memcmp(&addrs.addr[i], slot, sizeof(*slot)) == 0)
				break;
		if (i == addrs.count)
			addrs.count++;
	}
	if (addrs.count == 0)
		return -EHOSTUNREACH;
	*out = addrs;
	return 0;
}

/* The result of a getaddrinfo_a(3) that ended by the deadline, or EAI_INPROGRESS. */
static int await(struct gaicb *request, int64_t deadline_ns)
{
	const struct gaicb *list[1] = {request};
	int64_t left;

	/* A signal ends gai_suspend early; the deadline stays. */
	while (gai_error(request) == EAI_INPROGRESS && (left = deadline_ns - (int64_t)lw_now_ns()) > 0) {
		struct timespec ts = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};

		gai_suspend(list, 1, &ts);
	}
	return gai_error(request);
}

static int lookup_by_name(const struct lw_hostport *hp, uint32_t timeout_ms, struct lw_addrs *out)
{
	int64_t deadline_ns = (int64_t)lw_now_ns() + (int64_t)timeout_ms * 1000000;
	struct gaicb *list[1];
	struct lookup *lookup;
	int ret;

	sweep_orphans();
	lookup = calloc(1, sizeof(*lookup));
	if (lookup == NULL)
		return -ENOMEM;
	memcpy(lookup->host, hp->host, sizeof(lookup->host));
	lookup->hints.ai_socktype = SOCK_STREAM;
	lookup->request.ar_name = lookup->host;
	lookup->request.ar_request = &lookup->hints;
	list[0] = &lookup->request;

	ret = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);
	if (ret != 0) {
		free(lookup);
		return from_eai(ret);
	}
	ret = await(&lookup->request, deadline_ns);
	if (ret == EAI_INPROGRESS) {
		switch (gai_cancel(&lookup->request)) {
		case EAI_NOTCANCELED:
			lw_inbox_push(&orphans, &lookup->node);
			return -ETIMEDOUT;
		case EAI_ALLDONE: /* just in time */
			ret = gai_error(&lookup->request);
			break;
		default:
			lookup_free(lookup);
			return -ETIMEDOUT;
		}
	}
	ret = ret == 0 ? take_results(lookup->request.ar_result, hp->port, out) : from_eai(ret);
	lookup_free(lookup);
	return ret;
}

int lw_hostport_resolve(const struct lw_hostport *hp, uint32_t timeout_ms, struct lw_addrs *out)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *list;
	int ret = getaddrinfo(hp->host, NULL, &hints, &list);

	if (ret == 0) {
		ret = take_results(list, hp->port, out);
		freeaddrinfo(list);
		return ret;
	}
	/* An IPv6 literal that is not numeric has a scope that this host does not have. */
	if (ret != EAI_NONAME || hp->v6)
		return from_eai(ret);
	return lookup_by_name(hp, timeout_ms, out);
}

/* Listening -----------------------------------------------------------------------------------------------------------
 */

static int socket_for(const struct sockaddr_storage *addr)
{
	int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	return fd < 0 ? -errno : fd;
}

/* 0, or a negative errno. A socket that was bound but may not listen (somebody else listens there) can't be bound
 * again: it is replaced. */
static int try_port(int *fd, struct sockaddr_storage *addr, uint16_t port, int backlog)
{
	int ret;

	lw_sockaddr_set_port(addr, port);
	if (bind(*fd, (const struct sockaddr *)addr, lw_sockaddr_length(addr)) < 0)
		return -errno;
	if (listen(*fd, backlog) == 0)
		return 0;
	ret = -errno;
	close(*fd);
	*fd = socket_for(addr);
	return *fd < 0 ? *fd : ret;
}

static void set_reuse(int fd, int on)
{
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

void lw_accepted_reuse(int fd)
{
	set_reuse(fd, 1);
}

int lw_listen_random(const struct sockaddr_storage *addr, uint16_t min, uint16_t max, int backlog, int *fd,
		     uint16_t *port)
{
	uint32_t range = (uint32_t)max - min + 1, draws[RANDOM_TRIES + 1], i;
	struct sockaddr_storage at = *addr;
	uint32_t candidate = min;
	int sock, ret;

	if (min == 0 || min > max)
		return -EINVAL;
	memset(draws, 0, sizeof(draws));
	if (getrandom(draws, sizeof(draws), GRND_NONBLOCK) < (ssize_t)sizeof(draws))
		draws[RANDOM_TRIES] ^=
			(uint32_t)getpid() ^ (uint32_t)lw_now_ns(); /* no luck, the sweep starts somewhere */

	sock = socket_for(&at);
	if (sock < 0)
		return sock;
	ret = -EADDRINUSE;
	for (i = 0; i < RANDOM_TRIES && ret == -EADDRINUSE; i++) {
		candidate = min + draws[i] % range;
		ret = try_port(&sock, &at, (uint16_t)candidate, backlog);
	}
	/* The range is nearly full, or very small: ask for each port once. */
	for (i = 0; i < range && ret == -EADDRINUSE; i++) {
		candidate = min + (draws[RANDOM_TRIES] % range + i) % range;
		ret = try_port(&sock, &at, (uint16_t)candidate, backlog);
	}
	/* None is free. Those that are held by the rest of old connections will do; listen() refuses the others. */
	for (i = 0; i < range && ret == -EADDRINUSE; i++) {
		candidate = min + (draws[RANDOM_TRIES] % range + i) % range;
		set_reuse(sock, 1);
		ret = try_port(&sock, &at, (uint16_t)candidate, backlog);
	}
	if (ret < 0) {
		if (sock >= 0)
			close(sock);
		return ret;
	}
	set_reuse(sock, 0);
	*fd = sock;
	*port = (uint16_t)candidate;
	return 0;
}

int lw_socket_error(int error)
{
	switch (error) {
	case ECONNREFUSED:
	case ETIMEDOUT:
	case EMFILE:
	case ENOMEM:
		return -error;
	case ENFILE:
		return -EMFILE;
	case ENOBUFS:
	case ENOSPC:
		return -ENOMEM;
	case ECONNRESET:
	case EPIPE:
		return -ECONNRESET;
	default:
		return -EHOSTUNREACH;
	}
}

bool lw_socket_met_itself(int fd)
{
	struct sockaddr_storage own, peer;
	socklen_t own_size = sizeof(own), peer_size = sizeof(peer);

	memset(&own, 0, sizeof(own));
	memset(&peer, 0, sizeof(peer));
	return getsockname(fd, (struct sockaddr *)&own, &own_size) == 0 &&
	       getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0 && own_size == peer_size &&
	       memcmp(&own, &peer, own_size) == 0;
}
