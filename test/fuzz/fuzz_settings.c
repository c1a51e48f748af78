/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from everywhere: a configuration file, the environment (ours and Mooncake's), the program. What is accepted
 * keeps the table's promises, can be shown, is the same when it is given back, and tells no secret; what is refused
 * leaves everything as it was and says why. An input is lines; the first byte of each says where the rest stands:
 *
 *   F text         a line of the file        E NAME=VALUE   a variable, if it is LW_... or MC_...
 *   S name=value   a setting of the program  D list         its drivers: an engine is opened with them
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <lanewise/lanewise.h>

#include "fuzz/input.h"
#include "lib/config.h"

#define LINES 64
#define SETTINGS_MAX 128 /* the compiler says if there are more */
#define TRIED 256
#define UNTOUCHED 0x5a
#define SECRET_LEAST 6 /* shorter ones stand in texts by chance */

struct script {
	char *text; /* the input, lines ended by NULs */
	struct lw_setting settings[LINES];
	size_t settings_count;
	char *variables[LINES]; /* names */
	size_t variables_count;
	const char *drivers; /* NULL: no engine is opened */
	const char *secrets[LINES];
	size_t secrets_count;
	int file;
};

static char lines[1 << 16]; /* logged */
static size_t lines_length;

static void keep_line(int level, const char *line, void *arg)
{
	size_t length = strlen(line);

	(void)level;
	(void)arg;
	if (lines_length + length + 2 > sizeof(lines))
		return;
	memcpy(lines + lines_length, line, length);
	lines_length += length;
	lines[lines_length++] = '\n';
	lines[lines_length] = '\0';
}

/* The values of those settings that are never shown. */
static void note_secret(struct script *script, const char *name, const char *value)
{
	static const char *const secret[] = {"store_password", "store_token",   "tcp_secret",       "LW_STORE_PASSWORD",
					     "LW_STORE_TOKEN", "LW_TCP_SECRET", "MC_REDIS_PASSWORD"};

	for (size_t i = 0; i < sizeof(secret) / sizeof(secret[0]); i++)
		if (strcmp(name, secret[i]) == 0 && strlen(value) >= SECRET_LEAST && script->secrets_count < LINES)
			script->secrets[script->secrets_count++] = value;
}

static void add_variable(struct script *script, char *line)
{
	char *value = strchr(line, '=');

	if (value == NULL || (strncmp(line, "LW_", 3) != 0 && strncmp(line, "MC_", 3) != 0) ||
	    strncmp(line, "LW_CONFIG=", 10) == 0 || script->variables_count == LINES)
		return;
	*value++ = '\0';
	if (setenv(line, value, 1) != 0)
		return;
	note_secret(script, line, value);
	script->variables[script->variables_count++] = line;
}

static void add_setting(struct script *script, char *line)
{
	char *value = strchr(line, '=');

	if (value == NULL || script->settings_count == LINES)
		return;
	*value++ = '\0';
	note_secret(script, line, value);
	script->settings[script->settings_count++] = (struct lw_setting){.name = line, .value = value};
}

static void add_file_line(struct script *script, const char *line)
{
	size_t length = strlen(line);

	if (write(script->file, line, length) != (ssize_t)length || write(script->file, "\n", 1) != 1)
		abort();
}

static void read_script(const uint8_t *data, size_t size, struct script *script)
{
	char *line, *next;

	*script = (struct script){.text = malloc(size + 1), .file = memfd_create("settings", MFD_CLOEXEC)};
	if (script->text == NULL || script->file < 0)
		abort();
	if (size > 0)
		memcpy(script->text, data, size);
	script->text[size] = '\0';
	for (line = script->text; line != NULL; line = next) {
		next = memchr(line, '\n', size - (size_t)(line - script->text));
		if (next != NULL)
			*next++ = '\0';
		if (line[0] == 'F')
			add_file_line(script, line + 1);
		else if (line[0] == 'E')
			add_variable(script, line + 1);
		else if (line[0] == 'S')
			add_setting(script, line + 1);
		else if (line[0] == 'D')
			script->drivers = line + 1;
	}
}

static void drop_script(struct script *script)
{
	for (size_t i = 0; i < script->variables_count; i++)
		unsetenv(script->variables[i]);
	close(script->file);
	free(script->text);
}

/* A value that is given elsewhere, too, or is part of what is said anyway, is no secret. */
static bool is_secret(const struct script *script, const char *value)
{
	for (size_t i = 0; i < script->settings_count; i++)
		if ((script->settings[i].value != value && strstr(script->settings[i].value, value) != NULL) ||
		    strstr(script->settings[i].name, value) != NULL)
			return false;
	for (size_t i = 0; i < script->variables_count; i++) {
		const char *other = getenv(script->variables[i]);

		if ((other != NULL && strcmp(other, value) != 0 && strstr(other, value) != NULL) ||
		    strstr(script->variables[i], value) != NULL)
			return false;
	}
	return true;
}

static void check_secrets(const struct script *script, const char *text, const char *plain)
{
	for (size_t i = 0; i < script->secrets_count; i++)
		FUZZ_CHECK(strstr(text, script->secrets[i]) == NULL || !is_secret(script, script->secrets[i]) ||
				   strstr(plain, script->secrets[i]) != NULL,
			   "the secret \"%s\" is told: %s", script->secrets[i], text);
}

static uint32_t words_in(const char *list)
{
	uint32_t count = 1;

	for (; *list != '\0'; list++)
		count += *list == '|';
	return count;
}

static bool in_range(uint64_t value, uint64_t min, uint64_t max)
{
	return value >= min && value <= max;
}

static void check_values(const struct lw_config *config)
{
#define CHECK_N(name, min, max, unit) FUZZ_CHECK(in_range(config->name, min, max), #name " is out of its range");
#define CHECK_B(name, min, max, unit) FUZZ_CHECK(*(const unsigned char *)&config->name <= 1, #name " is no bool");
#define CHECK_E(name, min, max, unit) FUZZ_CHECK(config->name < words_in(unit), #name " is no word of its list");
#define CHECK_T(name, min, max, unit)                                                                                  \
	FUZZ_CHECK(in_range(strnlen(config->name, sizeof(config->name)), min, max), #name " has a wrong length");
#define CHECK_S CHECK_T
#define CHECK_L CHECK_T
#define X(kind, name, def, min, max, unit, help) CHECK_##kind(name, min, max, unit)
	LW_CONFIG_KEYS(X)
#undef X
	FUZZ_CHECK(config->port_min <= config->port_max, "port_min is above port_max");
}

/* What is shown is JSON. Without secrets it is also what can be given back. */
static char *show(const struct lw_config *config)
{
	char *text = NULL;
	cJSON *json;

	FUZZ_CHECK(lw_config_json(config, &text) == 0, "can't be shown");
	json = cJSON_Parse(text);
	FUZZ_CHECK(cJSON_IsArray(json), "not shown as JSON: %s", text);
	cJSON_Delete(json);
	return text;
}

static void check_again(const struct lw_config *config)
{
	static char number[SETTINGS_MAX][24];
	struct lw_setting settings[SETTINGS_MAX];
	struct lw_config second;
	size_t count = 0;
	char *text;

#define GIVE(key, text_of) settings[count] = (struct lw_setting){.name = key, .value = text_of}, count++
#define GIVE_N(name, unit)                                                                                             \
	snprintf(number[count], sizeof(number[0]), "%llu", (unsigned long long)config->name);                          \
	GIVE(#name, number[count]);
#define GIVE_B(name, unit) GIVE(#name, config->name ? "on" : "off");
#define GIVE_E(name, unit)                                                                                             \
	{                                                                                                              \
		const char *word = unit;                                                                               \
		for (uint32_t i = 0; i < config->name; i++)                                                            \
			word = strchr(word, '|') + 1;                                                                  \
		snprintf(number[count], sizeof(number[0]), "%.*s", (int)strcspn(word, "|"), word);                     \
		GIVE(#name, number[count]);                                                                            \
	}
#define GIVE_T(name, unit) GIVE(#name, config->name);
#define GIVE_S GIVE_T
#define GIVE_L GIVE_T
#define X(kind, name, def, min, max, unit, help) GIVE_##kind(name, unit)
	LW_CONFIG_KEYS(X)
#undef X
	if (lw_config_load(&second, "/dev/null", settings, count) != 0) {
		FUZZ_CHECK(false, "what was accepted is refused: %s", lw_last_error());
		return;
	}
#define SAME_N(name) FUZZ_CHECK(second.name == config->name, #name " is another when given back");
#define SAME_B SAME_N
#define SAME_E SAME_N
#define SAME_T(name) FUZZ_CHECK(strcmp(second.name, config->name) == 0, #name " is another when given back");
#define SAME_S SAME_T
#define SAME_L SAME_T
#define X(kind, name, def, min, max, unit, help) SAME_##kind(name)
	LW_CONFIG_KEYS(X)
#undef X
	text = show(&second);
	free(text);
}

/* As the setting says it: words of the list, separated by commas. */
static bool are_drivers(const char *list)
{
	static const char *const names[] = {"shm", "tcp", "null"};

	for (;; list++) {
		size_t length = strcspn(list, ",");
		bool known = length == 0;

		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
			known |= strlen(names[i]) == length && memcmp(names[i], list, length) == 0;
		if (!known)
			return false;
		list += length;
		if (*list == '\0')
			return true;
	}
}

/* An engine takes milliseconds: a list that opens one is tried once. */
static bool was_tried(const char *drivers)
{
	static char tried[TRIED][LW_CONFIG_TEXT];
	static size_t next;

	for (size_t i = 0; i < TRIED; i++)
		if (strcmp(tried[i], drivers) == 0)
			return true;
	snprintf(tried[next++ % TRIED], sizeof(tried[0]), "%s", drivers);
	return false;
}

static void try_drivers(const char *drivers)
{
	const struct lw_setting settings[] = {
		{.name = "poll", .value = "caller"},     {.name = "drivers", .value = drivers},
		{.name = "hugepages", .value = "off"},   {.name = "max_tasks", .value = "1024"},
		{.name = "max_batches", .value = "16"},  {.name = "max_segments", .value = "4"},
		{.name = "max_lanes", .value = "16"},    {.name = "max_slices", .value = "64"},
		{.name = "tcp_max_served", .value = "2"}};
	struct lw_engine *engine = NULL;
	struct lw_engine_opts opts;
	bool fits = strlen(drivers) < LW_CONFIG_TEXT;
	int ret;

	for (const char *at = drivers; *at != '\0'; at++)
		fits = fits && (unsigned char)*at >= ' ' && *at != 0x7f;
	if (are_drivers(drivers) && fits && was_tried(drivers))
		return;
	lw_engine_opts_init(&opts, sizeof(opts));
	opts.name = "127.0.0.1";
	opts.settings = settings;
	opts.settings_count = sizeof(settings) / sizeof(settings[0]);
	ret = lw_engine_open(&opts, &engine);
	if (!are_drivers(drivers) || !fits) {
		FUZZ_CHECK(ret == -EINVAL && engine == NULL, "drivers \"%s\" gives %d", drivers, ret);
		FUZZ_CHECK(strstr(lw_last_error(), "drivers") != NULL, "not named: %s", lw_last_error());
		return;
	}
	FUZZ_CHECK(ret == 0, "drivers \"%s\": %s", drivers, lw_last_error());
	FUZZ_CHECK(lw_engine_close(engine) == 0, "not closed");
}

static bool is_untouched(const void *memory, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (((const unsigned char *)memory)[i] != UNTOUCHED)
			return false;
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct lw_config config;
	struct script script;
	char file[32], *text;
	int ret;

	lines_length = 0;
	lines[0] = '\0';
	lw_log_set(keep_line, NULL);
	read_script(data, size, &script);
	snprintf(file, sizeof(file), "/proc/self/fd/%d", script.file);
	memset(&config, UNTOUCHED, sizeof(config));
	ret = lw_config_load(&config, file, script.settings, script.settings_count);
	if (ret != 0) {
		FUZZ_CHECK(ret == -EINVAL, "error %d: %s", ret, lw_last_error());
		FUZZ_CHECK(lw_last_error()[0] != '\0', "no reason");
		FUZZ_CHECK(is_untouched(&config, sizeof(config)), "an output was written without success");
		check_secrets(&script, lw_last_error(), "");
	} else {
		check_values(&config);
		text = show(&config);
		check_secrets(&script, text, config.drivers);
		free(text);
	}
	check_secrets(&script, lines, "");
	for (size_t i = 0; i < script.variables_count; i++)
		unsetenv(script.variables[i]); /* of what is given back they are none of the business */
	if (ret == 0)
		check_again(&config);
	if (script.drivers != NULL)
		try_drivers(script.drivers);
	drop_script(&script);
	return 0;
}
