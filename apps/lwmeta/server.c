/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "apps/lwmeta/server.h"

enum {
	BACKLOG = 1024,
	SPARE_CONNECTIONS = 64,       /* that were cut and are not closed yet, for each thread */
	SPARE_FILES = 64,             /* beside connections */
	CONNECTION_MEMORY = 32 << 10, /* head of a request and buffers, without the key */
	ESCAPED = 3,                  /* bytes of a URL for a byte of a key */
	END_MS = 2000,                /* that requests under way have at the end */
};

struct server {
	struct service *service;
	struct MHD_Daemon *daemon;
	int fd;
};

static int fail(char *why, size_t why_size, int rc, const char *what)
{
	snprintf(why, why_size, "%s: %s", what, strerror(-rc));
	return rc;
}

static int raise_files(const struct options *options, char *why, size_t why_size)
{
	rlim_t need = options->connections_max + options->threads * (SPARE_CONNECTIONS + 4) + SPARE_FILES;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return fail(why, why_size, -errno, "the limit of open files can't be read");
	if (limit.rlim_cur >= need)
		return 0;
	if (limit.rlim_max < need) {
		snprintf(why, why_size,
			 "%llu connections need a limit of %llu open files, which is %llu here (ulimit -Hn)",
			 (unsigned long long)options->connections_max, (unsigned long long)need,
			 (unsigned long long)limit.rlim_max);
		return -EMFILE;
	}
	limit.rlim_cur = need;
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		return fail(why, why_size, -errno, "the limit of open files can't be raised");
	return 0;
}

static int listen_at(const struct options *options)
{
	const struct sockaddr *address = (const struct sockaddr *)&options->address;
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, off = 0, rc;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (address->sa_family == AF_INET6) /* [::] takes both kinds */
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, address, options->address_size) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
			  enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *info;
	struct service *service = cls;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
		*socket_context = info != NULL ? conns_add(service->conns, info->connect_fd) : NULL;
	} else {
		conns_remove(service->conns, *socket_context);
		*socket_context = NULL;
	}
}

int server_start(struct service *service, struct server **out, char *why, size_t why_size)
{
	const struct options *options = service->options;
	/* What is cut may still be open for a moment, and all connections may meet in one thread. */
	unsigned limit = (unsigned)(options->threads * (options->connections_max + SPARE_CONNECTIONS));
	struct server *server = calloc(1, sizeof(*server));
	int rc;

	if (server == NULL)
		return fail(why, why_size, -ENOMEM, "the server can't start");
	server->service = service;
	server->fd = -1;
	rc = raise_files(options, why, why_size);
	if (rc != 0)
		goto free_server;
	server->fd = listen_at(options);
	if (server->fd < 0) {
		rc = fail(why, why_size, server->fd, "can't listen at this address and port");
		goto free_server;
	}
	struct MHD_OptionItem items[] = {
		{MHD_OPTION_LISTEN_SOCKET, server->fd, NULL},
		{MHD_OPTION_CONNECTION_LIMIT, (intptr_t)limit, NULL},
		{MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		 (intptr_t)(CONNECTION_MEMORY + 2 * ESCAPED * options->key_bytes_max), NULL},
		{MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
		{options->threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, (intptr_t)options->threads, NULL},
		{MHD_OPTION_END, 0, NULL},
	};
	errno = 0;
	server->daemon =
		MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC, 0, NULL, NULL, request_handle, service,
				 MHD_OPTION_NOTIFY_COMPLETED, request_completed, service, MHD_OPTION_NOTIFY_CONNECTION,
				 on_connection, service, MHD_OPTION_ARRAY, items, MHD_OPTION_END);
	if (server->daemon == NULL) {
		rc = fail(why, why_size, errno != 0 ? -errno : -ENOMEM, "the server's threads can't start");
		goto close_socket;
	}
	*out = server;
	return 0;

close_socket:
	close(server->fd);
free_server:
	free(server);
	return rc;
}

void server_url(const struct server *server, char *url, size_t size)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);
	char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
	bool v6;

	memset(&address, 0, sizeof(address));
	getsockname(server->fd, (struct sockaddr *)&address, &length);
	getnameinfo((struct sockaddr *)&address, length, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV);
	v6 = address.ss_family == AF_INET6;
	snprintf(url, size, "http://%s%s%s:%s/metadata", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

void server_stop(struct server *server)
{
	const struct timespec moment = {.tv_nsec = 10000000};

	if (server == NULL)
		return;
	MHD_quiesce_daemon(server->daemon);
	for (int waited_ms = 0; waited_ms < END_MS && atomic_load(&server->service->under_way) > 0; waited_ms += 10)
		nanosleep(&moment, NULL);
	MHD_stop_daemon(server->daemon);
	close(server->fd);
	free(server);
}
