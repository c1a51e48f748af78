/* SPDX-License-Identifier: Apache-2.0 */
/* enableGracefulShutdown: engines are destroyed when the process ends, also by a signal. The handler does no more than
 * to write the signal's number to a pipe, which a thread reads. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/compat/compat.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool at_exit;
static _Atomic pid_t installed_in; /* the process whose watcher reads the pipe */
static _Atomic int pipe_end = -1;

static void on_signal(int number)
{
	unsigned char byte = (unsigned char)number;
	int saved = errno;

	/* A forked child has no watcher. */
	if (getpid() != atomic_load(&installed_in))
		_exit(128 + number);
	while (write(atomic_load(&pipe_end), &byte, 1) < 0 && errno == EINTR)
		;
	errno = saved;
}

static void *watch(void *arg)
{
	int fd = *(int *)arg;
	unsigned char number;
	ssize_t n;

	free(arg);
	do {
		n = read(fd, &number, 1);
	} while (n < 0 && errno == EINTR);
	if (n != 1)
		return NULL;
	te_destroy_graceful();
	_exit(128 + number);
}

static void destroy_at_exit(void)
{
	if (getpid() == atomic_load(&installed_in))
		te_destroy_graceful();
}

/* Not where the host has it ignored, as a shell has for its background jobs. */
static void take_signal(int number)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;

	if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN)
		return;
	sigfillset(&action.sa_mask);
	sigaction(number, &action, NULL);
}

/* Under the lock. False: no descriptor, thread or memory. */
static bool install(void)
{
	int *arg = malloc(sizeof(*arg)), ends[2];
	sigset_t all, old;
	pthread_t thread;
	int error;

	if (arg == NULL || pipe2(ends, O_CLOEXEC) != 0)
		goto no_pipe;
	*arg = ends[0];
	atomic_store(&pipe_end, ends[1]);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&thread, NULL, watch, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error != 0)
		goto no_thread;
	pthread_setname_np(thread, "te-shutdown");
	pthread_detach(thread);
	if (!at_exit)
		at_exit = atexit(destroy_at_exit) == 0;
	atomic_store(&installed_in, getpid());
	take_signal(SIGTERM);
	take_signal(SIGINT);
	return true;
no_thread:
	close(ends[0]);
	close(ends[1]);
no_pipe:
	free(arg);
	return false;
}

void enableGracefulShutdown(transfer_engine_t engine)
{
	struct te *te = te_of(engine);

	if (te == NULL)
		return;
	pthread_mutex_lock(&lock);
	te->graceful = true;
	if (atomic_load(&installed_in) != getpid() && !install())
		lw_log_line(0, "the engine will not be destroyed by a signal: no descriptor, thread or memory is left");
	pthread_mutex_unlock(&lock);
}
