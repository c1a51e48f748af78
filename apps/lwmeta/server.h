/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket and the threads that serve it. One thread calls these functions. */
#ifndef APPS_LWMETA_SERVER_H
#define APPS_LWMETA_SERVER_H

#include <stddef.h>

#include "apps/lwmeta/request.h"

struct server;

/* Listens and serves. The service stays the caller's and is used until server_stop. Raises the limit of open files.
 * 0 and *out; -errno, with a sentence in why. */
int server_start(struct service *service, struct server **out, char *why, size_t why_size);

/* Writes the URL that engines take: "http://127.0.0.1:8080/metadata". */
void server_url(const struct server *server, char *url, size_t size);

/* Takes no more connections, waits a moment for requests under way, and ends. NULL is allowed. */
void server_stop(struct server *server);

#endif
