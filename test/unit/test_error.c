/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

#include <lanewise/version.h>

#include "lib/error.h"

static void *first_error_of_thread(void *arg)
{
	*(const char **)arg = lw_last_error();
	return NULL;
}

static void test_lw_last_error_none_failed_empty(void **state)
{
	const char *text = NULL;
	pthread_t thread;

	(void)state;
	lw_fail(-EINVAL, "of another thread");
	assert_int_equal(pthread_create(&thread, NULL, first_error_of_thread, &text), 0);
	pthread_join(thread, NULL);
	assert_string_equal(text, "");
}

static void test_lw_fail_formats_and_returns_error(void **state)
{
	(void)state;
	errno = EXDEV;
	assert_int_equal(lw_fail(-EBUSY, "batch %d is %s", 3, "busy"), -EBUSY);
	assert_int_equal(errno, EXDEV);
	assert_string_equal(lw_last_error(), "batch 3 is busy");
}

static void test_lw_fail_last_sentence_as_argument_kept(void **state)
{
	(void)state;
	lw_fail(-EIO, "inner");
	lw_fail(-EIO, "outer: %s", lw_last_error());
	assert_string_equal(lw_last_error(), "outer: inner");
}

static void test_lw_fail_long_sentence_cut(void **state)
{
	char text[5000];

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	lw_fail(-EINVAL, "%s", text);
	assert_int_equal(strlen(lw_last_error()), 511);
}

static void test_lw_fail_static_keeps_pointer(void **state)
{
	static const char text[] = "the ring is full";

	(void)state;
	assert_int_equal(lw_fail_static(-EAGAIN, text), -EAGAIN);
	assert_ptr_equal(lw_last_error(), text);
}

static void test_lw_strerror_documented_values_differ(void **state)
{
	static const int errors[] = {EINVAL,       EBADF,         EAGAIN,     EBUSY,        EALREADY,  EEXIST,
				     ENOENT,       ENOSPC,        ENOBUFS,    ENOMEM,       EMFILE,    ENFILE,
				     EACCES,       EIO,           EADDRINUSE, ECONNRESET,   EPROTO,    ECONNREFUSED,
				     EHOSTUNREACH, EADDRNOTAVAIL, EILSEQ,     ENAMETOOLONG, ETIMEDOUT, EMSGSIZE,
				     ERANGE,       EFAULT,        ENOTSUP,    ESTALE,       ECANCELED, 0,
				     ESHUTDOWN,    EOWNERDEAD};
	const char *unknown = lw_strerror(-4095);
	size_t i, j, count = sizeof(errors) / sizeof(errors[0]);

	(void)state;
	for (i = 0; i < count; i++) {
		assert_string_not_equal(lw_strerror(-errors[i]), unknown);
		for (j = 0; j < i; j++)
			assert_string_not_equal(lw_strerror(-errors[i]), lw_strerror(-errors[j]));
	}
}

static void test_lw_strerror_unknown_value_general(void **state)
{
	(void)state;
	assert_string_equal(lw_strerror(EINVAL), lw_strerror(INT_MIN)); /* positive values are none of ours */
	assert_non_null(lw_strerror(INT_MAX));
}

static void test_lw_reason_string_every_reason_named(void **state)
{
	int i;

	(void)state;
	assert_string_equal(lw_reason_string(LW_REASON_NONE), "no error");
	for (i = 0; i < LW_REASON_COUNT; i++)
		assert_true(strlen(lw_reason_string(i)) > 5);
	assert_string_equal(lw_reason_string(-1), lw_reason_string(LW_REASON_COUNT));
	assert_non_null(lw_reason_string(INT_MIN));
}

static void test_lw_reason_errno_every_reason_has_one(void **state)
{
	int i;

	(void)state;
	assert_int_equal(lw_reason_errno(LW_REASON_NONE), 0);
	assert_int_equal(lw_reason_errno(LW_REASON_RESTARTED), -ESTALE);
	for (i = LW_REASON_NONE + 1; i < LW_REASON_COUNT; i++)
		assert_string_not_equal(lw_strerror(lw_reason_errno(i)), lw_strerror(-4095));
	assert_int_equal(lw_reason_errno(LW_REASON_COUNT), -EINVAL);
	assert_int_equal(lw_reason_errno(-1), -EINVAL);
}

static void test_lw_version_matches_header(void **state)
{
	(void)state;
	assert_int_equal(lw_version(), LW_VERSION_MAJOR << 16 | LW_VERSION_MINOR << 8 | LW_VERSION_PATCH);
	assert_string_equal(lw_version_string(), LW_VERSION_STRING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lw_last_error_none_failed_empty),
		cmocka_unit_test(test_lw_fail_formats_and_returns_error),
		cmocka_unit_test(test_lw_fail_last_sentence_as_argument_kept),
		cmocka_unit_test(test_lw_fail_long_sentence_cut),
		cmocka_unit_test(test_lw_fail_static_keeps_pointer),
		cmocka_unit_test(test_lw_strerror_documented_values_differ),
		cmocka_unit_test(test_lw_strerror_unknown_value_general),
		cmocka_unit_test(test_lw_reason_string_every_reason_named),
		cmocka_unit_test(test_lw_reason_errno_every_reason_has_one),
		cmocka_unit_test(test_lw_version_matches_header),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
