/* SPDX-License-Identifier: Apache-2.0 */
#include "common/script.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAIL 8
#define DRIP_MS 50

/* Waits for fd, for ms at most (-1: for ever). False: the server is to stop, or ms is over. */
static bool await(const struct script *script, int fd, short events, int ms)
{
	struct pollfd ready[] = {{.fd = script->stop_fd, .events = POLLIN}, {.fd = fd, .events = events}};

	return poll(ready, 2, ms) > 0 && ready[0].revents == 0;
}

static bool put(const struct script *script, int fd, const char *bytes, size_t size)
{
	ssize_t part;

	while (size > 0) {
		if (!await(script, fd, POLLOUT, -1))
			return false;
		part = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (part < 0 && errno != EAGAIN)
			return false;
		bytes += part > 0 ? part : 0;
		size -= part > 0 ? (size_t)part : 0;
	}
	return true;
}

static bool flood(const struct script *script, int fd)
{
	char block[TAIL * 1024];
	size_t i;

	for (i = 0; i < sizeof(block); i += TAIL)
		memcpy(block + i, script->answer + script->size - TAIL, TAIL);
	while (put(script, fd, block, sizeof(block)))
		;
	return false;
}

static bool drip(const struct script *script, int fd)
{
	size_t i;

	for (i = 0; i < script->size; i++) {
		if (!put(script, fd, script->answer + i, 1))
			return false;
		await(script, -1, 0, DRIP_MS);
	}
	return true;
}

/* Whether the connection goes on. */
static bool answer(const struct script *script, int fd)
{
	if (script->manner == SCRIPT_DRIP)
		return drip(script, fd);
	if (!put(script, fd, script->answer, script->size))
		return false;
	if (script->manner == SCRIPT_FLOOD)
		return flood(script, fd);
	return script->manner == SCRIPT_ANSWER;
}

static void serve(const struct script *script, int fd)
{
	const struct linger reset = {.l_onoff = 1};
	static char question[65536];
	bool goes_on = true;

	if (script->manner == SCRIPT_RESET) {
		if (await(script, fd, POLLIN, -1) && recv(fd, question, 1, 0) == 1)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		goes_on = false;
	}
	while (goes_on && await(script, fd, POLLIN, -1) && recv(fd, question, sizeof(question), 0) > 0)
		goes_on = answer(script, fd);
	shutdown(fd, SHUT_WR);
	if (script->manner == SCRIPT_CLOSE) /* what is unread would make a reset of it */
		while (await(script, fd, POLLIN, 1000) && recv(fd, question, sizeof(question), 0) > 0)
			;
	close(fd);
}

static void *run(void *arg)
{
	struct script *script = arg;
	int fd;

	while (await(script, script->fd, POLLIN, -1)) {
		fd = accept(script->fd, NULL, NULL);
		if (fd < 0)
			continue;
		atomic_fetch_add(&script->connections, 1);
		serve(script, fd);
	}
	return NULL;
}

void script_start(struct script *script)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(addr);
	sigset_t all, old;

	atomic_init(&script->connections, 0);
	script->stop_fd = eventfd(0, EFD_CLOEXEC);
	script->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(script->stop_fd >= 0 && script->fd >= 0);
	assert_int_equal(bind(script->fd, (struct sockaddr *)&addr, size), 0);
	assert_int_equal(listen(script->fd, 16), 0);
	assert_int_equal(getsockname(script->fd, (struct sockaddr *)&addr, &size), 0);
	script->port = ntohs(addr.sin_port);
	sigfillset(&all); /* the test's signals are for the client */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	assert_int_equal(pthread_create(&script->thread, NULL, run, script), 0);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void script_stop(struct script *script)
{
	assert_int_equal(eventfd_write(script->stop_fd, 1), 0);
	pthread_join(script->thread, NULL);
	close(script->fd);
	close(script->stop_fd);
}
