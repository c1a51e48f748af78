/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/engines.h"
#include "lib/config.h"

#define SETTINGS_MAX 32

static const char *const base[] = {"eal=off",         "hugepages=off",   "max_batches=256",   "max_tasks=16384",
				   "max_segments=64", "max_channels=32", "max_slices=1024",   "max_lanes=256",
				   "port_min=20000",  "port_max=30000",  "tcp_max_served=64", "shm_peers=off"};
#define BASE (sizeof(base) / sizeof(base[0]))

int test_engine_try(const char *extra, const char *name, struct lw_engine **out)
{
	struct lw_setting settings[SETTINGS_MAX];
	char text[1024], *word, *rest = NULL;
	struct lw_engine_opts opts;
	size_t count = 0, used = 0;

	for (size_t i = 0; i < BASE; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s ", base[i]);
	snprintf(text + used, sizeof(text) - used, "%s", extra != NULL ? extra : "");
	for (word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
		char *value = strchr(word, '=');

		assert_non_null(value);
		*value++ = '\0';
		assert_in_range(count, 0, SETTINGS_MAX - 1);
		settings[count++] = (struct lw_setting){.name = word, .value = value};
	}
	assert_int_equal(lw_engine_opts_init(&opts, sizeof(opts)), 0);
	opts.name = name;
	opts.settings = settings;
	opts.settings_count = count;
	return lw_engine_open(&opts, out);
}

struct lw_engine *test_engine(const char *extra)
{
	struct lw_engine *engine = NULL;
	int error = test_engine_try(extra, "127.0.0.1", &engine);

	if (error != 0)
		fail_msg("no engine: %s", lw_last_error());
	return engine;
}

uint64_t test_seed(void)
{
	static uint64_t seed;
	const char *given = getenv("LW_TEST_SEED");
	struct timespec now;

	if (seed != 0)
		return seed;
	clock_gettime(CLOCK_MONOTONIC, &now);
	seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)now.tv_nsec * 1000003 + (uint64_t)now.tv_sec;
	seed = seed != 0 ? seed : 1;
	print_message("LW_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed;
}

uint64_t test_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint64_t test_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void test_sleep_ms(uint32_t ms)
{
	struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
		;
}

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count - 2;
}

bool test_setting_known(const char *name)
{
	static struct lw_config config;
	char key[64], *json = NULL;
	bool known;

	snprintf(key, sizeof(key), "\"%s\"", name);
	assert_int_equal(lw_config_load(&config, NULL, NULL, 0), 0);
	assert_int_equal(lw_config_json(&config, &json), 0);
	known = strstr(json, key) != NULL;
	free(json);
	return known;
}

int test_fds(void)
{
	return entries("/proc/self/fd") - 1;
}

int test_threads(void)
{
	return entries("/proc/self/task");
}

lw_buffer_t test_register(struct lw_engine *engine, void *addr, size_t length, uint32_t access)
{
	struct lw_memory memory = {.addr = addr, .length = length, .access = access};
	lw_buffer_t id = 0;

	if (lw_memory_register(engine, &memory, 1, &id) != 0)
		fail_msg("not registered: %s", lw_last_error());
	return id;
}

lw_segment_t test_segment(struct lw_engine *engine, struct lw_engine *peer)
{
	lw_segment_t segment = 0;

	if (lw_segment_open(engine, lw_engine_name(peer), 0, &segment) != 0)
		fail_msg("no segment: %s", lw_last_error());
	return segment;
}

struct lw_batch_status test_wait(struct lw_engine *engine, lw_batch_t batch)
{
	struct lw_batch_status status;
	int error = lw_batch_wait(engine, batch, 20000, &status);

	if (error != 0)
		fail_msg("the batch did not end: %s", lw_last_error());
	assert_int_equal(status.done, status.tasks);
	return status;
}

struct lw_task_status test_transfer(struct lw_engine *engine, struct lw_channel *channel, struct lw_request request)
{
	struct lw_task_status status;
	lw_batch_t batch;

	assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(channel, batch, &request, 1), 0);
	test_wait(engine, batch);
	assert_int_equal(lw_task_status(engine, batch, 0, &status), 0);
	assert_int_equal(lw_batch_free(engine, batch), 0);
	return status;
}
