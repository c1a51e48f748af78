/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "apps/common/host.h"
#include "apps/lwmeta/conns.h"

struct conn {
	TAILQ_ENTRY(conn) link;
	uint64_t since_ns;
	int fd;
	bool cut; /* no longer in the list; its end is on its way */
};

struct conns {
	pthread_mutex_t lock;
	TAILQ_HEAD(conn_list, conn) waiting; /* the oldest first */
	struct conns_figures figures;
	uint64_t listed, most, timeout_ns;
};

struct conns *conns_new(uint64_t most, uint64_t timeout_ms)
{
	struct conns *conns = calloc(1, sizeof(*conns));

	if (conns == NULL)
		return NULL;
	pthread_mutex_init(&conns->lock, NULL);
	TAILQ_INIT(&conns->waiting);
	conns->most = most;
	conns->timeout_ns = timeout_ms * 1000000;
	return conns;
}

/* Needs the lock. The socket is open as long as its connection is not removed, so no other can have its number. */
static void cut(struct conns *conns, struct conn *conn, uint64_t *counter)
{
	TAILQ_REMOVE(&conns->waiting, conn, link);
	conns->listed--;
	conn->cut = true;
	shutdown(conn->fd, SHUT_RDWR); /* its thread sees the end and closes it */
	(*counter)++;
}

struct conn *conns_add(struct conns *conns, int fd)
{
	struct conn *conn = calloc(1, sizeof(*conn));

	if (conn == NULL)
		return NULL;
	conn->fd = fd;
	conn->since_ns = app_clock_ns();
	pthread_mutex_lock(&conns->lock);
	if (conns->listed >= conns->most)
		cut(conns, TAILQ_FIRST(&conns->waiting), &conns->figures.cut_many);
	TAILQ_INSERT_TAIL(&conns->waiting, conn, link);
	conns->listed++;
	conns->figures.open++;
	conns->figures.made++;
	pthread_mutex_unlock(&conns->lock);
	return conn;
}

void conns_answered(struct conns *conns, struct conn *conn)
{
	if (conn == NULL)
		return;
	pthread_mutex_lock(&conns->lock);
	if (!conn->cut) {
		TAILQ_REMOVE(&conns->waiting, conn, link);
		conn->since_ns = app_clock_ns();
		TAILQ_INSERT_TAIL(&conns->waiting, conn, link);
	}
	pthread_mutex_unlock(&conns->lock);
}

void conns_remove(struct conns *conns, struct conn *conn)
{
	if (conn == NULL)
		return;
	pthread_mutex_lock(&conns->lock);
	if (!conn->cut) {
		TAILQ_REMOVE(&conns->waiting, conn, link);
		conns->listed--;
	}
	conns->figures.open--;
	pthread_mutex_unlock(&conns->lock);
	free(conn);
}

void conns_tick(struct conns *conns)
{
	uint64_t now_ns = app_clock_ns();
	struct conn *conn;

	pthread_mutex_lock(&conns->lock);
	/* One that came after now_ns was taken is younger than that. */
	while ((conn = TAILQ_FIRST(&conns->waiting)) != NULL && conn->since_ns < now_ns &&
	       now_ns - conn->since_ns >= conns->timeout_ns)
		cut(conns, conn, &conns->figures.cut_slow);
	pthread_mutex_unlock(&conns->lock);
}

void conns_figures(struct conns *conns, struct conns_figures *out)
{
	pthread_mutex_lock(&conns->lock);
	*out = conns->figures;
	pthread_mutex_unlock(&conns->lock);
}

void conns_free(struct conns *conns)
{
	if (conns == NULL)
		return;
	pthread_mutex_destroy(&conns->lock);
	free(conns);
}
