/* SPDX-License-Identifier: Apache-2.0 */
/* drivers/tcp/pipe: what goes in comes out, once; what can't go says so; what is dropped holds no memory. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "drivers/tcp/pipe.h"

#define BYTES ((size_t)3 << 20) /* more than a pipe holds */

struct rig {
	struct tcp_pipes pipes;
	struct tcp_pipe *pipe;
	int ours, theirs;
	unsigned char *memory, *got;
};

static int set_up(void **state)
{
	static struct rig rig;
	int sockets[2];

	tcp_pipes_init(&rig.pipes);
	rig.pipe = tcp_pipe_take(&rig.pipes);
	assert_non_null(rig.pipe);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
	rig.ours = sockets[0];
	rig.theirs = sockets[1];
	rig.memory = test_map(BYTES, NULL);
	rig.got = test_map(BYTES, NULL);
	test_fill(rig.memory, BYTES, 7);
	*state = &rig;
	return 0;
}

static int tear_down(void **state)
{
	struct rig *rig = *state;

	tcp_pipe_give(rig->pipe, 0);
	tcp_pipes_fini(&rig->pipes);
	close(rig->ours);
	close(rig->theirs);
	test_unmap(rig->memory, BYTES);
	test_unmap(rig->got, BYTES);
	return 0;
}

static void test_probe_here_works(void **state)
{
	(void)state;
	assert_int_equal(tcp_pipes_probe(), 0);
}

static void test_send_more_than_a_pipe_and_a_socket_hold_exact(void **state)
{
	struct rig *rig = *state;
	size_t start = 12345, sent = start, got = start; /* not at the beginning of a page */
	ssize_t first;

	while ((first = tcp_pipe_send(rig->pipe, rig->ours, rig->memory + sent, BYTES - sent)) >= 0)
		sent += (size_t)first;
	assert_int_equal(first, -EAGAIN);
	assert_true(rig->pipe->held > 0);
	while (got < BYTES) {
		ssize_t moved =
			sent < BYTES ? tcp_pipe_send(rig->pipe, rig->ours, rig->memory + sent, BYTES - sent) : 0;

		assert_true(moved >= 0 || moved == -EAGAIN);
		sent += moved > 0 ? (size_t)moved : 0;
		assert_true(sent + rig->pipe->held <= BYTES);
		moved = recv(rig->theirs, rig->got + got, 100000, MSG_DONTWAIT);
		got += moved > 0 ? (size_t)moved : 0;
	}
	assert_int_equal(rig->pipe->held, 0);
	assert_memory_equal(rig->got + start, rig->memory + start, BYTES - start);
	assert_int_equal(recv(rig->theirs, rig->got, 1, MSG_DONTWAIT), -1);
}

static void test_send_of_memory_that_is_not_there_efault(void **state)
{
	struct rig *rig = *state;

	/* The page behind is inaccessible. */
	assert_int_equal(tcp_pipe_send(rig->pipe, rig->ours, rig->memory + BYTES, 4096), -EFAULT);
	assert_int_equal(rig->pipe->held, 0);
	assert_int_equal(tcp_pipe_send(rig->pipe, rig->ours, rig->memory, 4096), 4096);
}

static void test_send_to_a_closed_peer_epipe_and_the_process_lives(void **state)
{
	struct rig *rig = *state;
	sigset_t blocked, old;

	/* As in the workers' threads. */
	sigfillset(&blocked);
	pthread_sigmask(SIG_SETMASK, &blocked, &old);
	shutdown(rig->theirs, SHUT_RDWR);
	assert_int_equal(tcp_pipe_send(rig->pipe, rig->ours, rig->memory, 4096), -EPIPE);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGPIPE);
	while (sigtimedwait(&blocked, NULL, &(struct timespec){0}) == SIGPIPE)
		;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void test_give_with_bytes_in_it_next_taker_finds_it_empty(void **state)
{
	struct rig *rig = *state;
	ssize_t moved = 0;

	while (moved >= 0)
		moved = tcp_pipe_send(rig->pipe, rig->ours, rig->memory, BYTES);
	assert_int_equal(moved, -EAGAIN);
	assert_true(rig->pipe->held > 0);
	tcp_pipe_give(rig->pipe, 0);
	while (recv(rig->theirs, rig->got, BYTES, MSG_DONTWAIT) > 0)
		;
	rig->pipe = tcp_pipe_take(&rig->pipes);
	assert_non_null(rig->pipe);
	assert_int_equal(rig->pipe->held, 0);
	memset(rig->memory, 0x5a, 4096);
	assert_int_equal(tcp_pipe_send(rig->pipe, rig->ours, rig->memory, 4096), 4096);
	assert_int_equal(recv(rig->theirs, rig->got, BYTES, MSG_DONTWAIT), 4096);
	assert_memory_equal(rig->got, rig->memory, 4096);
}

static void test_take_when_all_are_taken_null_and_fini_leaves_no_descriptor(void **state)
{
	struct tcp_pipes pipes;
	int fds = test_fds();

	(void)state;
	tcp_pipes_init(&pipes);
	assert_int_equal(test_fds(), fds); /* made when they are needed */
	for (int i = 0; i < TCP_PIPES; i++)
		assert_non_null(tcp_pipe_take(&pipes));
	assert_null(tcp_pipe_take(&pipes));
	tcp_pipe_give(&pipes.pipe[3], 0);
	assert_ptr_equal(tcp_pipe_take(&pipes), &pipes.pipe[3]);
	tcp_pipe_give(&pipes.pipe[3], 5000);
	tcp_pipes_tick(&pipes, 5900);
	assert_int_equal(test_fds(), fds + 2 * TCP_PIPES);
	tcp_pipes_tick(&pipes, 6100); /* the taken ones stay */
	assert_int_equal(test_fds(), fds + 2 * TCP_PIPES - 2);
	tcp_pipes_fini(&pipes);
	assert_int_equal(test_fds(), fds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_probe_here_works, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_send_more_than_a_pipe_and_a_socket_hold_exact, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_send_of_memory_that_is_not_there_efault, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_send_to_a_closed_peer_epipe_and_the_process_lives, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_give_with_bytes_in_it_next_taker_finds_it_empty, set_up,
						tear_down),
		cmocka_unit_test(test_take_when_all_are_taken_null_and_fini_leaves_no_descriptor),
	};

	return cmocka_run_group_tests_name("pipe", tests, NULL, NULL);
}
