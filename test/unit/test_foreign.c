/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake's variables: what they become here, and which names are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/lanewise.h>

#include "lib/config.h"
#include "lib/foreign.h"
#include "lib/log.h"
#include "lib/words.h"

static unsigned warnings, debugs;
static char warning[1024];

static void note_line(int level, const char *line, void *arg)
{
	(void)arg;
	if (level == LW_LOG_DEBUG)
		debugs++;
	if (level != LW_LOG_WARNING)
		return;
	warnings++;
	snprintf(warning, sizeof(warning), "%s", line);
}

static void load(struct lw_config *config)
{
	warnings = 0;
	debugs = 0;
	warning[0] = '\0';
	lw_log_level_set(LW_LOG_DEBUG);
	lw_log_set(note_line, NULL);
	assert_int_equal(lw_config_load(config, NULL, NULL, 0), 0);
	lw_log_set(NULL, NULL);
}

static void test_lw_foreign_settings_exist(void **state)
{
	struct lw_config config;

	(void)state;
	load(&config);
	for (size_t i = 0; i < lw_foreign_count; i++) {
		char *text, quoted[64];

		assert_int_equal(lw_config_json(&config, &text), 0);
		snprintf(quoted, sizeof(quoted), "\"name\":\"%s\"", lw_foreign[i].setting);
		assert_non_null(strstr(text, quoted));
		free(text);
		assert_int_equal(lw_foreign_use(lw_foreign[i].variable, strlen(lw_foreign[i].variable)),
				 LW_FOREIGN_USED);
	}
}

static void test_lw_config_load_foreign_seconds_become_milliseconds(void **state)
{
	static const char *const bad[] = {"0", "65536", "-1", " 8", "8x", "1e9", "1180591620717411303424", "\xc3\xa9"};
	struct lw_config config;

	(void)state;
	setenv("MC_SLICE_TIMEOUT", "65535", 1);
	setenv("MC_HANDSHAKE_CONNECT_TIMEOUT", "7", 1);
	load(&config);
	assert_int_equal(config.timeout_ms, 65535000);
	assert_int_equal(config.handshake_timeout_ms, 7000);
	assert_int_equal(warnings, 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("MC_SLICE_TIMEOUT", bad[i], 1);
		load(&config);
		assert_int_equal(config.timeout_ms, 30000);
		assert_int_equal(warnings, 1);
		assert_non_null(strstr(warning, "MC_SLICE_TIMEOUT"));
		assert_non_null(strstr(warning, "\"30000\" is used"));
	}
	setenv("MC_SLICE_TIMEOUT", "", 1); /* as if it were not set */
	load(&config);
	assert_int_equal(warnings, 0);
	unsetenv("MC_SLICE_TIMEOUT");
	unsetenv("MC_HANDSHAKE_CONNECT_TIMEOUT");
}

static void test_lw_config_load_foreign_words_and_ports(void **state)
{
	struct lw_config config;

	(void)state;
	setenv("MC_FORCE_TCP", "", 1);
	setenv("MC_LOG_LEVEL", "TRACE", 1);
	setenv("MC_MAX_PRC_PORT", "16100", 1);
	setenv("MC_MIN_RPC_PORT", "16000", 1);
	setenv("MC_MIN_PRC_PORT", "15000", 1); /* the older name counts less */
	load(&config);
	assert_string_equal(config.drivers, "tcp");
	assert_int_equal(config.log_level, LW_LOG_DEBUG);
	assert_int_equal(config.port_min, 16000);
	assert_int_equal(config.port_max, 16100);
	assert_int_equal(warnings, 0);
	setenv("MC_LOG_LEVEL", "debug", 1);
	setenv("LW_DRIVERS", "shm", 1);
	load(&config);
	assert_string_equal(config.drivers, "shm");
	assert_int_equal(config.log_level, LW_LOG_WARNING);
	assert_int_equal(warnings, 1);
	unsetenv("LW_DRIVERS");
	unsetenv("MC_FORCE_TCP");
	unsetenv("MC_LOG_LEVEL");
	unsetenv("MC_MAX_PRC_PORT");
	unsetenv("MC_MIN_RPC_PORT");
	unsetenv("MC_MIN_PRC_PORT");
}

static void test_lw_config_load_foreign_names_that_nobody_knows_are_warned_of(void **state)
{
	struct lw_config config;

	(void)state;
	setenv("MC_TCP_LANE_PER_PEER", "2", 1);
	load(&config);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, "MC_TCP_LANE_PER_PEER"));
	assert_non_null(strstr(warning, "did you mean MC_TCP_LANES_PER_PEER?"));
	unsetenv("MC_TCP_LANE_PER_PEER");
	setenv("MC_A_NAME_THAT_IS_LONGER_THAN_ANY_NAME_OF_A_VARIABLE_EVER_WAS_OR_WILL_BE_ANYWHERE", "2", 1);
	setenv("LW_A_NAME_THAT_IS_LONGER_THAN_ANY_NAME_OF_A_VARIABLE_EVER_WAS_OR_WILL_BE_ANYWHERE", "2", 1);
	setenv("LW_A_NAME_THAT_IS_NOT_SO_LONG_AS_THAT_ONE", "2", 1);
	load(&config);
	assert_int_equal(warnings, 3);
	unsetenv("MC_A_NAME_THAT_IS_LONGER_THAN_ANY_NAME_OF_A_VARIABLE_EVER_WAS_OR_WILL_BE_ANYWHERE");
	unsetenv("LW_A_NAME_THAT_IS_LONGER_THAN_ANY_NAME_OF_A_VARIABLE_EVER_WAS_OR_WILL_BE_ANYWHERE");
	unsetenv("LW_A_NAME_THAT_IS_NOT_SO_LONG_AS_THAT_ONE");
	setenv("MC_RETRY_CNT", "x", 1);
	setenv("MC_HIP_SOMETHING", "x", 1);
	setenv("MCX", "x", 1);
	load(&config);
	assert_int_equal(warnings, 0);
	assert_int_equal(debugs, 2);
	unsetenv("MC_RETRY_CNT");
	unsetenv("MC_HIP_SOMETHING");
	unsetenv("MCX");
}

static void test_lw_word_distance_counts_edits(void **state)
{
	char longest[LW_WORD_FAR + 1];

	(void)state;
	memset(longest, 'a', LW_WORD_FAR);
	longest[LW_WORD_FAR] = '\0';
	assert_int_equal(lw_word_distance("abcd", 3, "abc"), 0);
	assert_int_equal(lw_word_distance("abc", 3, "abd"), 1);
	assert_int_equal(lw_word_distance("", 0, "abd"), 3);
	assert_int_equal(lw_word_distance("kitten", 6, "sitting"), 3);
	assert_int_equal(lw_word_distance(longest, LW_WORD_FAR - 1, longest + 1), 0);
	assert_int_equal(lw_word_distance(longest, LW_WORD_FAR, longest + 1), LW_WORD_FAR);
	assert_int_equal(lw_word_distance(longest, 1, longest), LW_WORD_FAR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lw_foreign_settings_exist),
		cmocka_unit_test(test_lw_config_load_foreign_seconds_become_milliseconds),
		cmocka_unit_test(test_lw_config_load_foreign_words_and_ports),
		cmocka_unit_test(test_lw_config_load_foreign_names_that_nobody_knows_are_warned_of),
		cmocka_unit_test(test_lw_word_distance_counts_edits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
