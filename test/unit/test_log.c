/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lanewise/engine.h>

#include "lib/log.h"

struct seen {
	_Atomic int lines;
	int level;
	char line[2048];
};

static void collect(int level, const char *line, void *arg)
{
	struct seen *seen = arg;

	seen->level = level;
	snprintf(seen->line, sizeof(seen->line), "%s", line);
	atomic_fetch_add(&seen->lines, 1);
	errno = EXDEV; /* a careless sink */
}

static int teardown(void **state)
{
	(void)state;
	lw_log_set(NULL, NULL);
	lw_log_level_set(LW_LOG_WARNING);
	return 0;
}

/* Standard error goes into a pipe from begin to end; what was written comes back in text. */
static int saved_stderr, pipe_out;

static void stderr_begin(void)
{
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	saved_stderr = dup(STDERR_FILENO);
	dup2(ends[1], STDERR_FILENO);
	close(ends[1]);
	pipe_out = ends[0];
}

static void stderr_end(char *text, size_t size)
{
	ssize_t n = read(pipe_out, text, size - 1);

	text[n > 0 ? n : 0] = '\0';
	dup2(saved_stderr, STDERR_FILENO);
	close(saved_stderr);
	close(pipe_out);
}

static void test_lw_log_sink_gets_level_and_line(void **state)
{
	struct seen seen = {0};

	(void)state;
	lw_log_set(collect, &seen);
	lw_log(LW_LOG_WARNING, "lane %d is down", 7);
	assert_int_equal(seen.lines, 1);
	assert_int_equal(seen.level, LW_LOG_WARNING);
	assert_string_equal(seen.line, "lane 7 is down");
}

static void test_lw_log_above_level_dropped(void **state)
{
	struct seen seen = {0};

	(void)state;
	lw_log_set(collect, &seen);
	lw_log(LW_LOG_INFO, "not wanted");
	assert_int_equal(seen.lines, 0);
	lw_log_level_set(LW_LOG_DEBUG);
	lw_log(LW_LOG_DEBUG, "wanted");
	assert_int_equal(seen.lines, 1);
	lw_log_level_set(99); /* no level: no effect */
	lw_log(LW_LOG_DEBUG, "wanted");
	assert_int_equal(seen.lines, 2);
	lw_log_level_set(LW_LOG_ERROR);
	lw_log(LW_LOG_WARNING, "not wanted");
	assert_int_equal(seen.lines, 2);
}

static void test_lw_log_keeps_errno_and_takes_it(void **state)
{
	struct seen seen = {0};

	(void)state;
	lw_log_set(collect, &seen);
	errno = ENOENT;
	lw_log(LW_LOG_ERROR, "%m");
	assert_int_equal(errno, ENOENT);
	assert_string_equal(seen.line, "No such file or directory");
}

static void test_lw_log_control_bytes_cleaned(void **state)
{
	struct seen seen = {0};

	(void)state;
	lw_log_set(collect, &seen);
	lw_log(LW_LOG_ERROR, "name \"%s\"", "a\nlanewise: error: forged\x1b[2J");
	assert_null(strchr(seen.line, '\n'));
	assert_null(strchr(seen.line, 0x1b));
}

static void test_lw_log_stderr_one_prefixed_line(void **state)
{
	char text[4096];

	(void)state;
	stderr_begin();
	lw_log(LW_LOG_WARNING, "pages are short");
	stderr_end(text, sizeof(text));
	assert_string_equal(text, "lanewise: warning: pages are short\n");
}

static void test_lw_log_long_line_cut(void **state)
{
	char text[4096], longest[3000];

	(void)state;
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	stderr_begin();
	lw_log(LW_LOG_ERROR, "%s", longest);
	stderr_end(text, sizeof(text));
	assert_int_equal(strlen(text), 1023);
	assert_int_equal(text[1022], '\n');
}

static void test_lw_log_full_pipe_returns(void **state)
{
	char text[70000];

	(void)state;
	memset(text, 'x', sizeof(text));
	stderr_begin();
	while (write(STDERR_FILENO, text, 4096) > 0)
		;
	fcntl(STDERR_FILENO, F_SETFL, 0); /* blocking: a write would hang */
	lw_log(LW_LOG_ERROR, "lost");
	stderr_end(text, sizeof(text));
}

static void test_lw_log_broken_pipe_raises_nothing(void **state)
{
	char text[16];
	sigset_t pending;

	(void)state;
	assert_ptr_equal(signal(SIGPIPE, SIG_DFL), SIG_DFL);
	stderr_begin();
	close(pipe_out);
	lw_log(LW_LOG_ERROR, "nobody reads");
	pipe_out = open("/dev/null", O_RDONLY);
	stderr_end(text, sizeof(text));
	sigpending(&pending);
	assert_int_equal(sigismember(&pending, SIGPIPE), 0);
}

static void test_lw_log_limited_burst_one_line(void **state)
{
	struct lw_log_limit limit = {0};
	struct seen seen = {0};
	int i;

	(void)state;
	lw_log_set(collect, &seen);
	for (i = 0; i < 1000; i++)
		lw_log_limited(&limit, LW_LOG_WARNING, "bad frame %d", i);
	assert_int_equal(seen.lines, 1);
	assert_string_equal(seen.line, "bad frame 0");
	atomic_store(&limit.next_ns, 0); /* as if the second were over */
	lw_log_limited(&limit, LW_LOG_WARNING, "bad frame again");
	assert_int_equal(seen.lines, 2);
	assert_string_equal(seen.line, "bad frame again (and 999 like it not logged)");
}

static void even(int level, const char *line, void *arg)
{
	(void)level;
	(void)line;
	assert_int_equal((uintptr_t)arg, 2);
}

static void odd(int level, const char *line, void *arg)
{
	(void)level;
	(void)line;
	assert_int_equal((uintptr_t)arg, 1);
}

static _Atomic int stop;

static void *change_sinks(void *arg)
{
	while (!atomic_load(&stop)) {
		lw_log_set(even, (void *)2);
		lw_log_set(odd, (void *)1);
	}
	return arg;
}

static void test_lw_log_set_beside_lines_pair_kept(void **state)
{
	pthread_t threads[2];
	int i;

	(void)state;
	lw_log_set(odd, (void *)1);
	for (i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, change_sinks, NULL), 0);
	for (i = 0; i < 20000; i++)
		lw_log(LW_LOG_ERROR, "x");
	atomic_store(&stop, 1);
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_lw_log_sink_gets_level_and_line, teardown),
		cmocka_unit_test_teardown(test_lw_log_above_level_dropped, teardown),
		cmocka_unit_test_teardown(test_lw_log_keeps_errno_and_takes_it, teardown),
		cmocka_unit_test_teardown(test_lw_log_control_bytes_cleaned, teardown),
		cmocka_unit_test_teardown(test_lw_log_stderr_one_prefixed_line, teardown),
		cmocka_unit_test_teardown(test_lw_log_long_line_cut, teardown),
		cmocka_unit_test_teardown(test_lw_log_full_pipe_returns, teardown),
		cmocka_unit_test_teardown(test_lw_log_broken_pipe_raises_nothing, teardown),
		cmocka_unit_test_teardown(test_lw_log_limited_burst_one_line, teardown),
		cmocka_unit_test_teardown(test_lw_log_set_beside_lines_pair_kept, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
