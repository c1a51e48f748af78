/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "lib/error.h"
#include "lib/foreign.h"
#include "lib/log.h"
#include "lib/words.h"
#include "meta/json.h"
#include "meta/matrix.h"

#define ENV_PREFIX "LW_"
#define FOREIGN_PREFIX "MC_"
#define FILE_MAX_BYTES (1u << 20)
#define WHY_BYTES 256
#define CPU_MAX 65535 /* highest CPU number in a list */

enum kind { KIND_N, KIND_B, KIND_E, KIND_T, KIND_L, KIND_S };

struct key {
	const char *name;
	const char *def;
	const char *unit; /* E: the words, joined by '|' */
	const char *help;
	uint64_t min, max; /* N: of the value; T, L: of its length in bytes */
	size_t offset;     /* in struct lw_config */
	enum kind kind;
};

static const struct key keys[] = {
#define X(kind, name, def, min, max, unit, help)                                                                       \
	{#name, def, unit, help, min, max, offsetof(struct lw_config, name), KIND_##kind},
	LW_CONFIG_KEYS(X)
#undef X
};
#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

_Static_assert(KEY_COUNT <= sizeof(((struct lw_config *)0)->source), "a place for the source of every key");

/* Positions of the keys that have a rule of their own. */
enum {
#define X(kind, name, def, min, max, unit, help) KEY_##name,
	LW_CONFIG_KEYS(X)
#undef X
};

/* Room of a value, by kind. */
static const size_t sizes[] = {sizeof(uint64_t), sizeof(bool),   sizeof(uint32_t),
			       LW_CONFIG_TEXT,   LW_CONFIG_LONG, LW_CONFIG_TEXT};

static const char *const source_names[] = {"default", "file", "env", "code"};

static void *field(const struct lw_config *config, const struct key *key)
{
	return (char *)config + key->offset;
}

static int parse_bool(const char *text, bool *out)
{
	static const char *const words[2][4] = {{"off", "0", "no", "false"}, {"on", "1", "yes", "true"}};
	size_t i;

	for (i = 0; i < 8; i++) {
		if (strcmp(text, words[i / 4][i % 4]) == 0) {
			*out = i >= 4;
			return 0;
		}
	}
	return -EINVAL;
}

/* Position of text among words "a|b|c". */
static int parse_word(const char *text, const char *words, uint32_t *out)
{
	size_t length = strlen(text), n;
	uint32_t i;

	for (i = 0;; i++, words += n + 1) {
		n = strcspn(words, "|");
		if (n == length && memcmp(words, text, n) == 0) {
			*out = i;
			return 0;
		}
		if (words[n] == '\0')
			return -EINVAL;
	}
}

/* A list of CPUs, "0-3,8", or nothing. */
static int check_cpus(const char *text)
{
	uint64_t first, last;
	size_t n;

	if (*text == '\0')
		return 0;
	for (;; text++) {
		n = strspn(text, "0123456789");
		if (lw_parse_number(text, n, &first) != 0)
			return -EINVAL;
		last = first;
		text += n;
		if (*text == '-') {
			n = strspn(++text, "0123456789");
			if (lw_parse_number(text, n, &last) != 0)
				return -EINVAL;
			text += n;
		}
		if (first > last || last > CPU_MAX)
			return -EINVAL;
		if (*text == '\0')
			return 0;
		if (*text != ',')
			return -EINVAL;
	}
}

static int check_topology(const char *text, size_t length, char *why)
{
	struct lw_matrix *matrix;
	char field_why[WHY_BYTES - 32];
	int rc = lw_matrix_parse(text, length, &matrix, field_why, sizeof(field_why));

	if (rc == 0)
		lw_matrix_free(matrix);
	else
		snprintf(why, WHY_BYTES, "is no priority matrix: %s", rc == -EPROTO ? field_why : "no memory");
	return rc == 0 ? 0 : -EINVAL;
}

static int check_text(const struct key *key, const char *text, char *why)
{
	size_t length = strlen(text), i;

	if (length < key->min || length > key->max) {
		snprintf(why, WHY_BYTES, "is %zu bytes long; %" PRIu64 " to %" PRIu64 " are allowed", length, key->min,
			 key->max);
		return -EINVAL;
	}
	for (i = 0; i < length; i++) {
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) {
			snprintf(why, WHY_BYTES, "has a control character in it");
			return -EINVAL;
		}
	}
	if (key == &keys[KEY_cpus] && check_cpus(text) != 0) {
		snprintf(why, WHY_BYTES, "is no list of CPUs such as 0-3,8");
		return -EINVAL;
	}
	if (key == &keys[KEY_topology] && length > 0)
		return check_topology(text, length, why);
	return 0;
}

/* Sets one key. 0; -EINVAL and the rest of a sentence that begins with the value in why (WHY_BYTES). */
static int set_key(struct lw_config *config, const struct key *key, const char *text, enum lw_config_source source,
		   char *why)
{
	void *dst = field(config, key);
	uint64_t number = 0;
	int rc = -EINVAL;

	switch (key->kind) {
	case KIND_N:
		rc = lw_parse_number(text, strlen(text), &number);
		if (rc == -EINVAL) {
			snprintf(why, WHY_BYTES, "is not a whole number; it may be %" PRIu64 " to %" PRIu64 " (%s)",
				 key->min, key->max, key->unit);
			return rc;
		}
		if (rc != 0 || number < key->min || number > key->max) {
			snprintf(why, WHY_BYTES, "is out of range; it may be %" PRIu64 " to %" PRIu64 " (%s)", key->min,
				 key->max, key->unit);
			return -EINVAL;
		}
		if (key == &keys[KEY_ring_size] && (number & (number - 1)) != 0) {
			snprintf(why, WHY_BYTES, "is not a power of two");
			return -EINVAL;
		}
		*(uint64_t *)dst = number;
		break;
	case KIND_B:
		if (parse_bool(text, dst) != 0) {
			snprintf(why, WHY_BYTES, "is neither on nor off");
			return rc;
		}
		break;
	case KIND_E:
		if (parse_word(text, key->unit, dst) != 0) {
			snprintf(why, WHY_BYTES, "is none of %s", key->unit);
			return rc;
		}
		break;
	case KIND_T:
	case KIND_S:
	case KIND_L:
		if (check_text(key, text, why) != 0)
			return rc;
		memset(dst, 0, sizes[key->kind]);
		memcpy(dst, text, strlen(text));
		break;
	}
	config->source[key - keys] = (uint8_t)source;
	return 0;
}

static void copy_key(struct lw_config *dst, const struct lw_config *src, const struct key *key)
{
	memcpy(field(dst, key), field(src, key), sizes[key->kind]);
	dst->source[key - keys] = src->source[key - keys];
}

/* A text, or what stands for one that nobody may see. */
static const char *shown(const struct key *key, const char *text)
{
	return key->kind == KIND_S && *text != '\0' ? "(hidden)" : text;
}

/* The value as text, in buffer if it is a number. */
static const char *value_text(const struct lw_config *config, const struct key *key, char *buffer, size_t size)
{
	const void *src = field(config, key);
	const char *words = key->unit;
	uint32_t i;

	switch (key->kind) {
	case KIND_N:
		snprintf(buffer, size, "%" PRIu64, *(const uint64_t *)src);
		return buffer;
	case KIND_B:
		return *(const bool *)src ? "on" : "off";
	case KIND_E:
		for (i = *(const uint32_t *)src; i > 0; i--)
			words += strcspn(words, "|") + 1;
		snprintf(buffer, size, "%.*s", (int)strcspn(words, "|"), words);
		return buffer;
	case KIND_T:
	case KIND_S:
	case KIND_L:
		return shown(key, src);
	}
	return "";
}

static const struct key *find_key(const char *name, size_t length)
{
	size_t i;

	for (i = 0; i < KEY_COUNT; i++)
		if (strlen(keys[i].name) == length && memcmp(keys[i].name, name, length) == 0)
			return &keys[i];
	return NULL;
}

/* The key that a misspelt name most likely means, or NULL. */
static const struct key *similar_key(const char *name, size_t length)
{
	const struct key *best = NULL;
	size_t i, d, least = 3;

	for (i = 0; i < KEY_COUNT; i++) {
		d = lw_word_distance(name, length, keys[i].name);
		if (d < least) {
			least = d;
			best = &keys[i];
		}
	}
	return best;
}

static const char *remedy(const char *name, size_t length, char *text, size_t size)
{
	const struct key *key = similar_key(name, length);

	if (key != NULL)
		snprintf(text, size, "did you mean %s?", key->name);
	else
		snprintf(text, size, "`lwinfo --config` prints the names");
	return text;
}

/* One line of the file; it is cut into pieces. */
static int apply_line(struct lw_config *config, const char *file, unsigned line, char *text)
{
	static const char blanks[] = " \t\r\v\f";
	char *name, *value, *end, hint[96], why[WHY_BYTES];
	const struct key *key;

	text[strcspn(text, "#")] = '\0';
	name = text + strspn(text, blanks);
	if (*name == '\0')
		return 0;
	value = strchr(name, '=');
	if (value == NULL)
		return lw_fail(-EINVAL, "%s:%u: \"%.64s\" is no line of the form name = value", file, line, name);
	for (end = value; end > name && strchr(blanks, end[-1]) != NULL; end--)
		;
	value += 1 + strspn(value + 1, blanks);
	key = find_key(name, (size_t)(end - name));
	if (key == NULL)
		return lw_fail(-EINVAL, "%s:%u: there is no setting \"%.*s\"; %s", file, line,
			       (int)(end - name > 64 ? 64 : end - name), name,
			       remedy(name, (size_t)(end - name), hint, sizeof(hint)));
	for (end = value + strlen(value); end > value && strchr(blanks, end[-1]) != NULL; end--)
		;
	*end = '\0';
	if (set_key(config, key, value, LW_SOURCE_FILE, why) != 0)
		return lw_fail(-EINVAL, "%s:%u: %s = \"%.64s\" %s", file, line, key->name, shown(key, value), why);
	return 0;
}

/* Reads the whole file; the caller frees *out. Neither a fifo nor an endless device stalls it. */
static int read_file(const char *file, char **out)
{
	char *text = NULL;
	size_t length = 0;
	ssize_t n;
	int fd, rc;

	fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		rc = errno == ENOENT || errno == ENOTDIR ? -ENOENT : errno == EACCES || errno == EPERM ? -EACCES : -EIO;
		return lw_fail(rc, "the configuration file %s can't be opened: %s", file, strerrordesc_np(errno));
	}
	text = malloc(FILE_MAX_BYTES + 1);
	if (text == NULL) {
		rc = lw_fail(-ENOMEM, "no memory to read the configuration file %s", file);
		goto close_fd;
	}
	for (;;) {
		n = read(fd, text + length, FILE_MAX_BYTES + 1 - length);
		if (n == 0)
			break;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			rc = lw_fail(errno == EISDIR ? -EINVAL : -EIO, "the configuration file %s can't be read: %s",
				     file, strerrordesc_np(errno));
			goto free_text;
		}
		length += (size_t)n;
		if (length > FILE_MAX_BYTES) {
			rc = lw_fail(-EINVAL, "the configuration file %s is longer than %u bytes", file,
				     FILE_MAX_BYTES);
			goto free_text;
		}
	}
	if (memchr(text, '\0', length) != NULL) {
		rc = lw_fail(-EINVAL, "the configuration file %s has a NUL byte in it; it is to be text", file);
		goto free_text;
	}
	text[length] = '\0';
	close(fd);
	*out = text;
	return 0;

free_text:
	free(text);
close_fd:
	close(fd);
	return rc;
}

static int apply_file(struct lw_config *config, const char *file)
{
	char *text = NULL, *line, *next;
	unsigned number = 0;
	int rc;

	rc = read_file(file, &text);
	if (rc != 0)
		return rc;
	for (line = text; rc == 0 && line != NULL; line = next) {
		next = strchr(line, '\n');
		if (next != NULL)
			*next++ = '\0';
		rc = apply_line(config, file, ++number, line);
	}
	free(text);
	return rc;
}

/* One variable of the environment, "LW_NAME=value". */
static void apply_variable(struct lw_config *config, const char *entry)
{
	static const char *const ours[] = {"LW_CONFIG", "LW_BUILD_DIR"};
	static const char *const of_tests[] = {"LW_TEST_", "LW_DEMO_", "LW_LAB_"};
	char lower[LW_WORD_FAR], hint[96], buffer[32], why[WHY_BYTES];
	const char *value = strchr(entry, '='), *name = entry + strlen(ENV_PREFIX);
	const struct key *key = NULL;
	size_t length, i;

	if (value == NULL)
		return;
	length = (size_t)(value - name);
	value++;
	for (i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (strncmp(entry, ours[i], strlen(ours[i])) == 0 && entry[strlen(ours[i])] == '=')
			return;
	for (i = 0; i < sizeof(of_tests) / sizeof(of_tests[0]); i++)
		if (strncmp(entry, of_tests[i], strlen(of_tests[i])) == 0)
			return;
	for (i = 0; i < length && i < sizeof(lower); i++) /* A-Z alone, whatever the locale */
		lower[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]);
	if (length <= sizeof(lower)) {
		key = find_key(lower, length);
		for (i = 0; key != NULL && i < length; i++)
			if (name[i] >= 'a' && name[i] <= 'z')
				key = NULL;
	}
	if (key == NULL) {
		lw_log(LW_LOG_WARNING, "the environment's %.*s is no setting and has no effect; %s",
		       (int)(value - 1 - entry > 64 ? 64 : value - 1 - entry), entry,
		       remedy(lower, length, hint, sizeof(hint)));
		return;
	}
	if (config->source[key - keys] == LW_SOURCE_ENV) /* the first of two wins, as in getenv */
		return;
	if (set_key(config, key, value, LW_SOURCE_ENV, why) != 0)
		lw_log(LW_LOG_WARNING, "the environment's %.*s=\"%.64s\" %s; %s = \"%s\" is used",
		       (int)(value - 1 - entry), entry, shown(key, value), why, key->name,
		       value_text(config, key, buffer, sizeof(buffer)));
}

/* A variable "MC_NAME=value" that is nobody's is misspelt, most likely. */
static void check_foreign(const char *entry)
{
	size_t length = strcspn(entry, "=");
	enum lw_foreign_use use = lw_foreign_use(entry, length);
	const char *similar;

	if (use == LW_FOREIGN_UNUSED)
		lw_log(LW_LOG_DEBUG, "the environment's %.*s has no meaning here", (int)length, entry);
	if (use != LW_FOREIGN_UNKNOWN)
		return;
	similar = lw_foreign_similar(entry, length);
	lw_log(LW_LOG_WARNING, "the environment's %.*s is no variable of Mooncake's engine and has no effect%s%s%s",
	       (int)(length > 64 ? 64 : length), entry, similar != NULL ? "; did you mean " : "",
	       similar != NULL ? similar : "", similar != NULL ? "?" : "");
}

static void apply_environment(struct lw_config *config)
{
	char **entry;

	for (entry = environ; entry != NULL && *entry != NULL; entry++) {
		if (strncmp(*entry, ENV_PREFIX, strlen(ENV_PREFIX)) == 0)
			apply_variable(config, *entry);
		else if (strncmp(*entry, FOREIGN_PREFIX, strlen(FOREIGN_PREFIX)) == 0)
			check_foreign(*entry);
	}
}

/* Mooncake's variables for what is a setting here, too. They count where nothing of ours says otherwise. */
static void apply_foreign(struct lw_config *config)
{
	char buffer[32], text[32], why[WHY_BYTES];
	const char *converted;

	for (size_t i = 0; i < lw_foreign_count; i++) {
		const struct lw_foreign *foreign = &lw_foreign[i];
		const struct key *key = find_key(foreign->setting, strlen(foreign->setting));
		const char *value = getenv(foreign->variable);

		if (value == NULL || (*value == '\0' && foreign->kind != LW_FOREIGN_PRESENT) || key == NULL ||
		    config->source[key - keys] != LW_SOURCE_DEFAULT)
			continue;
		if (lw_foreign_convert(foreign, value, text, sizeof(text), &converted, why, sizeof(why)) != 0 ||
		    set_key(config, key, converted, LW_SOURCE_ENV, why) != 0)
			lw_log(LW_LOG_WARNING, "the environment's %s=\"%.64s\" %s; %s = \"%s\" is used",
			       foreign->variable, shown(key, value), why, key->name,
			       value_text(config, key, buffer, sizeof(buffer)));
	}
}

static int apply_settings(struct lw_config *config, const struct lw_setting *settings, size_t count)
{
	char hint[96], why[WHY_BYTES];
	const struct key *key;
	size_t i;

	if (count > 0 && settings == NULL)
		return lw_fail(-EINVAL, "settings is NULL, but settings_count is %zu", count);
	for (i = 0; i < count; i++) {
		if (settings[i].name == NULL || settings[i].value == NULL)
			return lw_fail(-EINVAL, "settings[%zu] has no name or no value", i);
		key = find_key(settings[i].name, strlen(settings[i].name));
		if (key == NULL)
			return lw_fail(-EINVAL, "there is no setting \"%.64s\"; %s", settings[i].name,
				       remedy(settings[i].name, strlen(settings[i].name), hint, sizeof(hint)));
		if (set_key(config, key, settings[i].value, LW_SOURCE_CODE, why) != 0)
			return lw_fail(-EINVAL, "the setting %s = \"%.64s\" %s", key->name,
				       shown(key, settings[i].value), why);
	}
	return 0;
}

/* Settings that must fit each other. What the environment broke falls back to what it was before, with a warning. */
static int check_ports(struct lw_config *config, const struct lw_config *before_env)
{
	const struct key *pair[] = {&keys[KEY_port_min], &keys[KEY_port_max]};
	uint64_t min = config->port_min, max = config->port_max;
	bool changed = false;
	size_t i;

	if (min <= max)
		return 0;
	for (i = 0; i < 2; i++) {
		if (config->source[pair[i] - keys] != LW_SOURCE_ENV)
			continue;
		copy_key(config, before_env, pair[i]);
		changed = true;
	}
	if (changed)
		lw_log(LW_LOG_WARNING,
		       "with the environment's variables (LW_PORT_MIN, LW_PORT_MAX or Mooncake's) port_min = %" PRIu64
		       " is above port_max = %" PRIu64 "; %" PRIu64 " to %" PRIu64 " is used",
		       min, max, config->port_min, config->port_max);
	if (config->port_min <= config->port_max)
		return 0;
	return lw_fail(-EINVAL, "port_min = %" PRIu64 " (%s) is above port_max = %" PRIu64 " (%s); set both",
		       config->port_min, source_names[config->source[KEY_port_min]], config->port_max,
		       source_names[config->source[KEY_port_max]]);
}

int lw_config_load(struct lw_config *config, const char *file, const struct lw_setting *settings, size_t count)
{
	struct lw_config made, before_env;
	char why[WHY_BYTES];
	size_t i;
	int rc;

	if (config == NULL)
		return lw_fail(-EINVAL, "config is NULL");
	memset(&made, 0, sizeof(made));
	for (i = 0; i < KEY_COUNT; i++) {
		rc = set_key(&made, &keys[i], keys[i].def, LW_SOURCE_DEFAULT, why);
		if (rc != 0)
			return lw_fail(rc, "the default of %s %s", keys[i].name, why);
	}
	if (file == NULL)
		file = getenv("LW_CONFIG");
	if (file != NULL && *file != '\0') {
		rc = apply_file(&made, file);
		if (rc != 0)
			return rc;
	}
	before_env = made;
	apply_environment(&made);
	rc = apply_settings(&made, settings, count);
	apply_foreign(&made);
	if (rc == 0)
		rc = check_ports(&made, &before_env);
	if (rc == 0)
		*config = made;
	return rc;
}

enum lw_config_source lw_config_source(const struct lw_config *config, const char *name)
{
	const struct key *key = find_key(name, strlen(name));

	return key != NULL ? (enum lw_config_source)config->source[key - keys] : LW_SOURCE_DEFAULT;
}

static bool add_value(cJSON *object, const char *name, const struct lw_config *config, const struct key *key)
{
	char buffer[32];

	switch (key->kind) {
	case KIND_N:
		return cJSON_AddNumberToObject(object, name, (double)*(const uint64_t *)field(config, key)) != NULL;
	case KIND_B:
		return cJSON_AddBoolToObject(object, name, *(const bool *)field(config, key)) != NULL;
	case KIND_E:
	case KIND_T:
	case KIND_S:
	case KIND_L:
		break;
	}
	return cJSON_AddStringToObject(object, name, value_text(config, key, buffer, sizeof(buffer))) != NULL;
}

static bool add_limit(cJSON *object, const char *name, const struct key *key, uint64_t limit)
{
	if (key->kind == KIND_N)
		return cJSON_AddNumberToObject(object, name, (double)limit) != NULL;
	return cJSON_AddNullToObject(object, name) != NULL;
}

static bool add_key(cJSON *array, const struct lw_config *config, const struct lw_config *defaults,
		    const struct key *key)
{
	cJSON *object = cJSON_CreateObject();

	if (object == NULL)
		return false;
	if (!cJSON_AddItemToArray(array, object)) {
		cJSON_Delete(object);
		return false;
	}
	return cJSON_AddStringToObject(object, "name", key->name) != NULL && add_value(object, "value", config, key) &&
	       cJSON_AddStringToObject(object, "source", source_names[config->source[key - keys]]) != NULL &&
	       cJSON_AddStringToObject(object, "unit", key->unit) != NULL &&
	       add_value(object, "default", defaults, key) && add_limit(object, "min", key, key->min) &&
	       add_limit(object, "max", key, key->max) && cJSON_AddStringToObject(object, "help", key->help) != NULL &&
	       cJSON_AddFalseToObject(object, "live") != NULL; /* no key may change while the engine runs yet */
}

int lw_config_json(const struct lw_config *config, char **out)
{
	struct lw_config defaults;
	char why[WHY_BYTES];
	bool ok = true;
	cJSON *array;
	size_t i;

	memset(&defaults, 0, sizeof(defaults));
	array = cJSON_CreateArray();
	if (array == NULL)
		return -ENOMEM;
	for (i = 0; i < KEY_COUNT && ok; i++)
		ok = set_key(&defaults, &keys[i], keys[i].def, LW_SOURCE_DEFAULT, why) == 0 &&
		     add_key(array, config, &defaults, &keys[i]);
	if (!ok) {
		cJSON_Delete(array);
		return -ENOMEM;
	}
	return lw_json_text(array, out);
}
