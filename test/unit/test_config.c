/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "lib/config.h"
#include "lib/error.h"
#include "lib/log.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int warnings;
static char warning[1100];
static char path[] = "/tmp/lw_test_config_XXXXXX";

/* Name and range of every number; and texts that are none. */
static const struct {
	const char *name;
	uint64_t min, max;
} numbers[] = {
#define ROW_N(name, def, min, max) {#name, min, max},
#define ROW_B(name, def, min, max)
#define ROW_E(name, def, min, max)
#define ROW_T(name, def, min, max)
#define ROW_S(name, def, min, max)
#define ROW_L(name, def, min, max)
#define X(kind, name, def, min, max, unit, help) ROW_##kind(name, def, min, max)
	LW_CONFIG_KEYS(X)
#undef X
};
static const char *const never[] = {"",
				    "abc",
				    "-1",
				    " 8",
				    "8 ",
				    "8x",
				    "1e9",
				    "0x10",
				    "+8",
				    "8.0",
				    "1180591620717411303424",
				    "18446744073709551616",
				    "99999999999999999999999999",
				    "\xc3\xa9",
				    "8\n",
				    "1,000"};

static void collect(int level, const char *line, void *arg)
{
	(void)arg;
	assert_int_equal(level, LW_LOG_WARNING);
	snprintf(warning, sizeof(warning), "%s", line);
	warnings++;
}

/* Variables of the surroundings that the library knows or would warn about must not disturb. */
static void clear_environment(void)
{
	size_t i;

	for (i = 0; environ[i] != NULL;) {
		if (strncmp(environ[i], "LW_", 3) == 0) {
			char *name = strndup(environ[i], strcspn(environ[i], "="));

			unsetenv(name);
			free(name);
		} else {
			i++;
		}
	}
}

static int setup(void **state)
{
	(void)state;
	clear_environment();
	warnings = 0;
	warning[0] = '\0';
	lw_log_set(collect, NULL);
	return 0;
}

static int setup_file(void **state)
{
	int fd;

	setup(state);
	strcpy(path + sizeof(path) - 7, "XXXXXX");
	fd = mkstemp(path);
	return fd < 0 ? -1 : close(fd);
}

static int teardown_file(void **state)
{
	(void)state;
	return unlink(path);
}

static void write_file(const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* Sets LW_<NAME>. */
static void set_variable(const char *name, const char *value)
{
	char variable[64] = "LW_";
	size_t i;

	for (i = 0; i <= strlen(name); i++)
		variable[3 + i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
	assert_int_equal(setenv(variable, value, 1), 0);
}

static int load_one(struct lw_config *config, const char *name, const char *value)
{
	struct lw_setting setting = {name, value};

	return lw_config_load(config, NULL, &setting, 1);
}

static void test_lw_config_load_nothing_set_defaults(void **state)
{
	struct lw_config config;
	size_t i;

	(void)state;
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_string_equal(config.metadata, "P2PHANDSHAKE");
	assert_string_equal(config.drivers, "shm,nvlink,hip,musa,maca,rdma,tcp,nvmeof,null");
	assert_string_equal(config.cpus, "");
	assert_int_equal(config.workers, 1);
	assert_int_equal(config.poll, LW_POLL_ADAPTIVE);
	assert_true(config.eal);
	assert_int_equal(config.port_min, 15000);
	assert_int_equal(config.port_max, 17000);
	assert_int_equal(config.log_level, LW_LOG_WARNING);
	for (i = 0; i < sizeof(config.source); i++)
		assert_int_equal(config.source[i], LW_SOURCE_DEFAULT);
	assert_int_equal(warnings, 0);
}

static void test_lw_config_load_null_refused(void **state)
{
	struct lw_config config;
	struct lw_setting no_name = {NULL, "1"}, no_value = {"workers", NULL};

	(void)state;
	assert_int_equal(lw_config_load(NULL, NULL, NULL, 0), -EINVAL);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 1), -EINVAL);
	assert_int_equal(lw_config_load(&config, NULL, &no_name, 1), -EINVAL);
	assert_int_equal(lw_config_load(&config, NULL, &no_value, 1), -EINVAL);
}

static void test_lw_config_load_wrong_numbers_in_environment_warned_once(void **state)
{
	struct lw_config config, defaults;
	char used[64];
	size_t i, j;

	(void)state;
	assert_int_equal(lw_config_load(&defaults, NULL, NULL, 0), 0);
	for (i = 0; i < COUNT(numbers); i++) {
		for (j = 0; j < COUNT(never); j++) {
			setup(NULL);
			set_variable(numbers[i].name, never[j]);
			assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
			assert_memory_equal(&config, &defaults, sizeof(config));
			assert_int_equal(warnings, 1);
			assert_non_null(strstr(warning, "LW_"));
			snprintf(used, sizeof(used), "%s = \"", numbers[i].name);
			assert_non_null(strstr(warning, used)); /* name and value that are used */
			if (strchr(never[j], '\n') == NULL)
				assert_non_null(strstr(warning, never[j]));
		}
	}
}

static void test_lw_config_load_wrong_numbers_in_code_refused(void **state)
{
	struct lw_config config, before;
	size_t i, j;

	(void)state;
	memset(&config, 0x5a, sizeof(config));
	before = config;
	for (i = 0; i < COUNT(numbers); i++) {
		for (j = 0; j < COUNT(never); j++) {
			assert_int_equal(load_one(&config, numbers[i].name, never[j]), -EINVAL);
			assert_non_null(strstr(lw_last_error(), numbers[i].name));
		}
	}
	assert_memory_equal(&config, &before, sizeof(config)); /* written on success only */
	assert_int_equal(warnings, 0);
}

static void test_lw_config_load_range_edges_taken_beyond_refused(void **state)
{
	struct lw_config config;
	struct lw_setting settings[3];
	char text[32];
	size_t i;

	(void)state;
	settings[1] = (struct lw_setting){"port_min", "1024"};
	settings[2] = (struct lw_setting){"port_max", "65535"};
	for (i = 0; i < COUNT(numbers); i++) {
		settings[0] = (struct lw_setting){numbers[i].name, text};
		/* the edge, with ports that fit each other */
		snprintf(text, sizeof(text), "%llu", (unsigned long long)numbers[i].min);
		if (strncmp(numbers[i].name, "port", 4) != 0)
			assert_int_equal(lw_config_load(&config, NULL, settings, 3), 0);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)numbers[i].max);
		if (strncmp(numbers[i].name, "port", 4) != 0)
			assert_int_equal(lw_config_load(&config, NULL, settings, 3), 0);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)numbers[i].max + 1);
		assert_int_equal(lw_config_load(&config, NULL, settings, 1), -EINVAL);
		if (numbers[i].min == 0)
			continue;
		snprintf(text, sizeof(text), "%llu", (unsigned long long)numbers[i].min - 1);
		assert_int_equal(lw_config_load(&config, NULL, settings, 1), -EINVAL);
	}
}

static void test_lw_config_load_words_and_switches_checked(void **state)
{
	struct lw_config config;

	(void)state;
	assert_int_equal(load_one(&config, "poll", "caller"), 0);
	assert_int_equal(config.poll, LW_POLL_CALLER);
	assert_int_equal(load_one(&config, "poll", "busy"), 0);
	assert_int_equal(config.poll, LW_POLL_BUSY);
	assert_int_equal(load_one(&config, "poll", "bus"), -EINVAL);
	assert_int_equal(load_one(&config, "poll", "busy|adaptive"), -EINVAL);
	assert_int_equal(load_one(&config, "poll", ""), -EINVAL);
	assert_int_equal(load_one(&config, "poll", "BUSY"), -EINVAL);
	assert_int_equal(load_one(&config, "log_level", "debug"), 0);
	assert_int_equal(config.log_level, LW_LOG_DEBUG);
	assert_int_equal(load_one(&config, "eal", "off"), 0);
	assert_false(config.eal);
	assert_int_equal(load_one(&config, "eal", "1"), 0);
	assert_true(config.eal);
	assert_int_equal(load_one(&config, "eal", "2"), -EINVAL);
	assert_int_equal(load_one(&config, "eal", ""), -EINVAL);
}

static void test_lw_config_load_texts_checked(void **state)
{
	static const char *const good[] = {"", "0", "0-3,8", "0-0", "7,7", "65535"};
	static const char *const bad[] = {
		",", "1,", "-1", "3-1", "0-", "a", "0 1", "65536", "99999999999999999999999", "1--2", "1-2-3"};
	struct lw_config config;
	char text[300];
	size_t i;

	(void)state;
	for (i = 0; i < COUNT(good); i++)
		assert_int_equal(load_one(&config, "cpus", good[i]), 0);
	for (i = 0; i < COUNT(bad); i++)
		assert_int_equal(load_one(&config, "cpus", bad[i]), -EINVAL);
	memset(text, 'd', sizeof(text));
	text[255] = '\0';
	assert_int_equal(load_one(&config, "drivers", text), 0);
	assert_string_equal(config.drivers, text);
	text[255] = 'd';
	text[256] = '\0';
	assert_int_equal(load_one(&config, "drivers", text), -EINVAL);
	assert_int_equal(load_one(&config, "metadata", ""), -EINVAL);
	assert_int_equal(load_one(&config, "drivers", "tcp\nnull"), -EINVAL);
}

static void test_lw_config_load_ring_size_only_power_of_two(void **state)
{
	struct lw_config config;

	(void)state;
	assert_int_equal(load_one(&config, "ring_size", "4096"), 0);
	assert_int_equal(config.ring_size, 4096);
	assert_int_equal(load_one(&config, "ring_size", "1000"), -EINVAL);
}

static void test_lw_config_load_ports_crossed_in_environment_warned(void **state)
{
	struct lw_config config;

	(void)state;
	set_variable("port_min", "20000");
	set_variable("port_max", "19000");
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(config.port_min, 15000);
	assert_int_equal(config.port_max, 17000);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, "LW_PORT_MIN"));
	assert_non_null(strstr(warning, "20000"));

	setup(NULL);
	set_variable("port_min", "20000"); /* above the default of port_max */
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(config.port_min, 15000);
	assert_int_equal(config.source[0], LW_SOURCE_DEFAULT);
	assert_int_equal(warnings, 1);
}

static void test_lw_config_load_ports_crossed_in_code_refused(void **state)
{
	struct lw_setting settings[] = {{"port_min", "20000"}, {"port_max", "19000"}};
	struct lw_config config;

	(void)state;
	assert_int_equal(lw_config_load(&config, NULL, settings, 2), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "port_min"));
	settings[1].value = "20000";
	assert_int_equal(lw_config_load(&config, NULL, settings, 2), 0);
	set_variable("port_min", "18000"); /* fits what the code says */
	assert_int_equal(lw_config_load(&config, NULL, settings + 1, 1), 0);
	assert_int_equal(config.port_min, 18000);
	assert_int_equal(warnings, 0);
}

static void test_lw_config_load_unknown_variables_one_warning_each(void **state)
{
	struct lw_config config;

	(void)state;
	setenv("LW_WORKER", "2", 1);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, "LW_WORKER "));
	assert_non_null(strstr(warning, "did you mean workers?"));

	setup(NULL);
	setenv("LW_workers", "2", 1);
	setenv("LW_", "2", 1);
	setenv("LW_NOTHING_OF_THE_KIND_IS_KNOWN_TO_US_AND_IT_IS_LONG", "2", 1);
	setenv("LW_CONFIGURATION", "2", 1);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(warnings, 4);
	assert_int_equal(config.workers, 1);
}

static void test_lw_config_load_variables_of_tests_ignored(void **state)
{
	struct lw_config config;

	(void)state;
	setenv("LW_BUILD_DIR", "/nowhere", 1);
	setenv("LW_TEST_SEED", "7", 1);
	setenv("LW_DEMO_MIB", "7", 1);
	setenv("LW_LAB_DIR", "/nowhere", 1);
	setenv("LW_CONFIG", "", 1);
	setenv("LWX", "7", 1);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(warnings, 0);
}

static void test_lw_config_load_unknown_setting_refused(void **state)
{
	struct lw_config config;

	(void)state;
	assert_int_equal(load_one(&config, "time_out_ms", "5"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "did you mean timeout_ms?"));
	assert_int_equal(load_one(&config, "", "5"), -EINVAL);
	assert_int_equal(load_one(&config, "WORKERS", "5"), -EINVAL);
}

/* Mooncake's variables are for settings that nobody has given. */
static void test_lw_config_load_foreign_variable_fills_what_nobody_set(void **state)
{
	struct lw_config config;

	(void)state;
	setenv("MC_TCP_BIND_ADDRESS", "10.0.0.7", 1);
	setenv("MC_CUSTOM_TOPO_JSON", "/etc/matrix.json", 1);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_string_equal(config.address, "10.0.0.7");
	assert_string_equal(config.topology_file, "/etc/matrix.json");
	assert_int_equal(lw_config_source(&config, "address"), LW_SOURCE_ENV);
	write_file("address = 10.0.0.8");
	assert_int_equal(lw_config_load(&config, path, NULL, 0), 0);
	assert_string_equal(config.address, "10.0.0.8");
	assert_int_equal(load_one(&config, "address", "10.0.0.9"), 0);
	assert_string_equal(config.address, "10.0.0.9");
	assert_int_equal(warnings, 0);
	setenv("MC_TCP_BIND_ADDRESS", "10.0.0.7 but much longer than any address of any host ever was, or will be", 1);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_string_equal(config.address, "");
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, "MC_TCP_BIND_ADDRESS"));
	unsetenv("MC_TCP_BIND_ADDRESS");
	unsetenv("MC_CUSTOM_TOPO_JSON");
}

static void test_lw_config_load_long_text_is_kept_whole_up_to_its_limit(void **state)
{
	struct lw_config config;
	char text[LW_CONFIG_LONG + 1];

	(void)state;
	for (size_t extra = 0; extra < 2; extra++) {
		memset(text, ' ', sizeof(text));
		memcpy(text, "{\"cpu:0\":[[\"a\"],", 16);
		memcpy(text + LW_CONFIG_LONG - 5 + extra, "[]]}", 5);
		assert_int_equal(load_one(&config, "topology", text), extra == 0 ? 0 : -EINVAL);
		if (extra == 0)
			assert_string_equal(config.topology, text);
	}
	assert_non_null(strstr(lw_last_error(), "is 16384 bytes long"));
}

static void test_lw_config_load_code_over_environment_over_file(void **state)
{
	struct lw_setting setting = {"workers", "4"};
	struct lw_config config;

	(void)state;
	write_file("# a comment\n\n  workers = 2  # two\r\nidle_us=7\n\ttimeout_ms\t=\t9\ncpus =\npoll = busy");
	setenv("LW_CONFIG", path, 1);
	set_variable("workers", "3");
	set_variable("idle_us", "8");
	assert_int_equal(lw_config_load(&config, NULL, &setting, 1), 0);
	assert_int_equal(config.workers, 4);
	assert_int_equal(config.idle_us, 8);
	assert_int_equal(config.timeout_ms, 9);
	assert_int_equal(config.poll, LW_POLL_BUSY);
	assert_int_equal(lw_config_source(&config, "workers"), LW_SOURCE_CODE);
	assert_int_equal(warnings, 0);

	set_variable("idle_us", "wrong"); /* the file's value is used */
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(config.idle_us, 7);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, "idle_us = \"7\" is used"));
}

static void test_lw_config_load_wrong_lines_refused_with_place(void **state)
{
	static const char *const lines[] = {"workers = 8x",  "worker = 8",  "workers",         "= 8",
					    "workers = 1 2", "poll = fast", "port_min = 40000"};
	struct lw_config config;
	char text[128];
	size_t i;

	(void)state;
	for (i = 0; i < COUNT(lines); i++) {
		snprintf(text, sizeof(text), "eal = on\n%s\n", lines[i]);
		write_file(text);
		assert_int_equal(lw_config_load(&config, path, NULL, 0), -EINVAL);
		if (i + 1 < COUNT(lines)) {
			snprintf(text, sizeof(text), "%s:2: ", path);
			assert_non_null(strstr(lw_last_error(), text));
		}
	}
	assert_int_equal(warnings, 0);
}

static void test_lw_config_load_unreadable_file_refused(void **state)
{
	struct lw_config config;
	FILE *file;
	int i;

	(void)state;
	assert_int_equal(lw_config_load(&config, "/nowhere/lanewise.conf", NULL, 0), -ENOENT);
	assert_non_null(strstr(lw_last_error(), "/nowhere/lanewise.conf"));
	assert_int_equal(lw_config_load(&config, "/tmp", NULL, 0), -EINVAL);
	assert_int_equal(lw_config_load(&config, "/dev/zero", NULL, 0), -EINVAL);
	assert_int_equal(lw_config_load(&config, "/dev/null", NULL, 0), 0);
	if (geteuid() != 0) {
		assert_int_equal(chmod(path, 0), 0);
		assert_int_equal(lw_config_load(&config, path, NULL, 0), -EACCES);
		assert_int_equal(chmod(path, 0600), 0);
	}
	file = fopen(path, "w");
	assert_non_null(file);
	for (i = 0; i < 70000; i++)
		fputs("# a line of 16 b\n", file);
	fclose(file);
	assert_int_equal(lw_config_load(&config, path, NULL, 0), -EINVAL);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(lw_config_load(&config, path, NULL, 0), 0); /* nobody writes: empty, and no waiting */
}

static void test_lw_config_load_mooncakes_variables_count_last(void **state)
{
	struct lw_config config;

	(void)state;
	assert_int_equal(setenv("MC_TCP_LANES_PER_PEER", "4", 1), 0);
	assert_int_equal(setenv("MC_TCP_MAX_CONNECTIONS_PER_PEER", "7", 1), 0);
	assert_int_equal(setenv("MC_TCP_PROTO", "1", 1), 0);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(config.tcp_lanes, 4);
	assert_int_equal(config.tcp_proto, 1);
	/* Not 0, which is a setting of ours alone. */
	assert_int_equal(setenv("MC_TCP_LANES_PER_PEER", "0", 1), 0);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(config.tcp_lanes, 7);
	assert_int_equal(warnings, 1);
	warnings = 0;
	set_variable("tcp_lanes", "2");
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(config.tcp_lanes, 2);
	assert_int_equal(load_one(&config, "tcp_proto", "2"), 0);
	assert_int_equal(config.tcp_proto, 2);
	assert_int_equal(setenv("MC_TCP_PROTO", "x", 1), 0);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(config.tcp_proto, 2);
	assert_int_equal(warnings, 1);
	unsetenv("MC_TCP_LANES_PER_PEER");
	unsetenv("MC_TCP_MAX_CONNECTIONS_PER_PEER");
	unsetenv("MC_TCP_PROTO");
}

static void test_lw_config_json_secret_is_hidden(void **state)
{
	const struct lw_setting right = {"tcp_secret", "sesame"}, wrong = {"tcp_secret", "sesa\nme"};
	struct lw_config config;
	char *text = NULL;

	(void)state;
	assert_int_equal(lw_config_load(&config, NULL, &right, 1), 0);
	assert_string_equal(config.tcp_secret, "sesame");
	assert_int_equal(lw_config_json(&config, &text), 0);
	assert_null(strstr(text, "sesame"));
	assert_non_null(strstr(text, "(hidden)"));
	free(text);
	assert_int_equal(lw_config_load(&config, NULL, &wrong, 1), -EINVAL);
	assert_null(strstr(lw_last_error(), "sesa"));
}

static void test_lw_config_json_all_keys_typed(void **state)
{
	struct lw_config config;
	cJSON *array, *item;
	char *text = NULL;
	int keys = 0;

	(void)state;
	set_variable("max_tasks", "16777216");
	assert_int_equal(load_one(&config, "poll", "caller"), 0);
	assert_int_equal(lw_config_json(&config, &text), 0);
	array = cJSON_Parse(text);
	free(text);
	assert_true(cJSON_IsArray(array));
	cJSON_ArrayForEach(item, array)
	{
		const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(item, "name"));

		assert_non_null(name);
		assert_int_equal(cJSON_GetArraySize(item), 9);
		assert_non_null(cJSON_GetStringValue(cJSON_GetObjectItem(item, "help")));
		assert_true(cJSON_IsFalse(cJSON_GetObjectItem(item, "live")));
		if (strcmp(name, "max_tasks") == 0) {
			assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(item, "value")) == 16777216);
			assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(item, "default")) == 524288);
			assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(item, "source")), "env");
		} else if (strcmp(name, "poll") == 0) {
			assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(item, "value")), "caller");
			assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(item, "default")), "adaptive");
			assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(item, "source")), "code");
			assert_true(cJSON_IsNull(cJSON_GetObjectItem(item, "min")));
		} else if (strcmp(name, "eal") == 0) {
			assert_true(cJSON_IsTrue(cJSON_GetObjectItem(item, "value")));
		}
		keys++;
	}
#define X(kind, name, def, min, max, unit, help) keys--;
	LW_CONFIG_KEYS(X)
#undef X
	assert_int_equal(keys, 0);
	cJSON_Delete(array);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_lw_config_load_nothing_set_defaults, setup),
		cmocka_unit_test_setup(test_lw_config_load_null_refused, setup),
		cmocka_unit_test_setup(test_lw_config_load_wrong_numbers_in_environment_warned_once, setup),
		cmocka_unit_test_setup(test_lw_config_load_wrong_numbers_in_code_refused, setup),
		cmocka_unit_test_setup(test_lw_config_load_range_edges_taken_beyond_refused, setup),
		cmocka_unit_test_setup(test_lw_config_load_words_and_switches_checked, setup),
		cmocka_unit_test_setup(test_lw_config_load_texts_checked, setup),
		cmocka_unit_test_setup(test_lw_config_load_ring_size_only_power_of_two, setup),
		cmocka_unit_test_setup(test_lw_config_load_ports_crossed_in_environment_warned, setup),
		cmocka_unit_test_setup(test_lw_config_load_ports_crossed_in_code_refused, setup),
		cmocka_unit_test_setup(test_lw_config_load_unknown_variables_one_warning_each, setup),
		cmocka_unit_test_setup(test_lw_config_load_variables_of_tests_ignored, setup),
		cmocka_unit_test_setup(test_lw_config_load_unknown_setting_refused, setup),
		cmocka_unit_test_setup_teardown(test_lw_config_load_foreign_variable_fills_what_nobody_set, setup_file,
						teardown_file),
		cmocka_unit_test_setup_teardown(test_lw_config_load_long_text_is_kept_whole_up_to_its_limit, setup_file,
						teardown_file),
		cmocka_unit_test_setup_teardown(test_lw_config_load_code_over_environment_over_file, setup_file,
						teardown_file),
		cmocka_unit_test_setup_teardown(test_lw_config_load_wrong_lines_refused_with_place, setup_file,
						teardown_file),
		cmocka_unit_test_setup_teardown(test_lw_config_load_unreadable_file_refused, setup_file, teardown_file),
		cmocka_unit_test_setup(test_lw_config_load_mooncakes_variables_count_last, setup),
		cmocka_unit_test_setup(test_lw_config_json_secret_is_hidden, setup),
		cmocka_unit_test_setup(test_lw_config_json_all_keys_typed, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
