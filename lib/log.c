/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/log.h"
#include "lib/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lanewise/engine.h>

#define LINE_BYTES 1024 /* with the NUL, or the newline */
#define SECOND_NS UINT64_C(1000000000)

typedef void (*sink_fn)(int level, const char *line, void *arg);

/* The sink and its argument, changed together: version is odd while a writer is at work, and a reader that saw it odd
 * or changed reads again. W1 pairs with R2: a reader that sees a new member also sees the odd version. W3 pairs with
 * R1. */
static struct {
	_Atomic uint32_t version;
	_Atomic(sink_fn) fn;
	_Atomic(void *) arg;
} sink;

static _Atomic int log_level = LW_LOG_WARNING;

static const char *const level_names[] = {"error", "warning", "info", "debug"};

void lw_log_set(void (*fn)(int level, const char *line, void *arg), void *arg)
{
	uint32_t version = atomic_load_explicit(&sink.version, memory_order_relaxed);

	for (;;) {
		if (version % 2 == 0 &&
		    atomic_compare_exchange_weak_explicit(&sink.version, &version, version + 1, memory_order_acquire,
							  memory_order_relaxed))
			break;
		sched_yield(); /* another thread is between its three stores */
		version = atomic_load_explicit(&sink.version, memory_order_relaxed);
	}
	atomic_store_explicit(&sink.fn, fn, memory_order_release);               /* W1 */
	atomic_store_explicit(&sink.arg, arg, memory_order_release);             /* W1 */
	atomic_store_explicit(&sink.version, version + 2, memory_order_release); /* W3 */
}

static sink_fn sink_get(void **arg)
{
	uint32_t before, after;
	sink_fn fn;

	for (;;) {
		before = atomic_load_explicit(&sink.version, memory_order_acquire); /* R1 */
		fn = atomic_load_explicit(&sink.fn, memory_order_acquire);          /* R2 */
		*arg = atomic_load_explicit(&sink.arg, memory_order_acquire);       /* R2 */
		after = atomic_load_explicit(&sink.version, memory_order_relaxed);
		if (before == after && before % 2 == 0)
			return fn;
		sched_yield();
	}
}

void lw_log_level_set(int level)
{
	if (level >= LW_LOG_ERROR && level <= LW_LOG_DEBUG)
		atomic_store_explicit(&log_level, level, memory_order_relaxed);
}

static bool enabled(int level)
{
	return level >= LW_LOG_ERROR && level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* Bytes that came from outside must not forge lines or drive a terminal. */
static void clean(char *line)
{
	for (; *line != '\0'; line++)
		if ((unsigned char)*line < ' ' || *line == 0x7f)
			*line = '?';
}

/* One write to standard error. A full pipe loses the line instead of stalling the caller, and a broken one raises no
 * SIGPIPE in the host. */
static void write_stderr(const char *line, size_t length)
{
	static const struct timespec no_wait;
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	sigset_t pipe_only, old, pending;
	ssize_t n;

	if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0)
		return;
	sigemptyset(&pipe_only);
	sigaddset(&pipe_only, SIGPIPE);
	sigemptyset(&pending);
	sigpending(&pending);
	if (pthread_sigmask(SIG_BLOCK, &pipe_only, &old) != 0)
		return;
	n = write(STDERR_FILENO, line, length);
	if (n < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
		while (sigtimedwait(&pipe_only, NULL, &no_wait) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static __attribute__((format(printf, 2, 0))) void emit(int level, const char *format, va_list args)
{
	char line[LINE_BYTES];
	void *arg;
	sink_fn fn = sink_get(&arg);
	size_t length = 0;

	if (fn == NULL)
		length = (size_t)snprintf(line, sizeof(line),
					  "lanewise: %s: ", level_names[level <= LW_LOG_DEBUG ? level : LW_LOG_DEBUG]);
	if (vsnprintf(line + length, sizeof(line) - length, format, args) < 0)
		return;
	clean(line);
	if (fn != NULL) {
		fn(level, line, arg);
		return;
	}
	length = strnlen(line, sizeof(line) - 2);
	line[length] = '\n';
	write_stderr(line, length + 1);
}

void lw_log(int level, const char *format, ...)
{
	int saved = errno;
	va_list args;

	if (!enabled(level))
		return;
	va_start(args, format);
	emit(level, format, args);
	va_end(args);
	errno = saved;
}

void lw_log_limited(struct lw_log_limit *limit, int level, const char *format, ...)
{
	uint64_t next = atomic_load_explicit(&limit->next_ns, memory_order_relaxed);
	char text[LINE_BYTES];
	int saved = errno;
	uint64_t now, dropped;
	va_list args;

	if (!enabled(level))
		return;
	now = lw_now_ns();
	if (now < next || !atomic_compare_exchange_strong_explicit(&limit->next_ns, &next, now + SECOND_NS,
								   memory_order_relaxed, memory_order_relaxed)) {
		atomic_fetch_add_explicit(&limit->dropped, 1, memory_order_relaxed);
		errno = saved;
		return;
	}
	dropped = atomic_exchange_explicit(&limit->dropped, 0, memory_order_relaxed);
	errno = saved; /* for %m */
	va_start(args, format);
	if (vsnprintf(text, sizeof(text), format, args) < 0)
		text[0] = '\0';
	va_end(args);
	if (dropped == 0)
		lw_log(level, "%s", text);
	else
		lw_log(level, "%.960s (and %llu like it not logged)", text, (unsigned long long)dropped);
	errno = saved;
}

void lw_log_line(int level, const char *line)
{
	if (line != NULL)
		lw_log(level, "%s", line);
}
