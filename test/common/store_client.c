/* SPDX-License-Identifier: Apache-2.0 */
#include "common/store_client.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "meta/store.h"

#define MAX_WORDS 8
#define MAX_THREADS 64
#define WHY 400
#define STORM_TIMEOUT_MS 20000

static int hex(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
				      : -1;
}

static void decode(char *word)
{
	char *to = word;

	for (; *word != '\0'; word++) {
		if (word[0] == '%' && hex(word[1]) >= 0 && hex(word[2]) >= 0) {
			*to++ = (char)(hex(word[1]) << 4 | hex(word[2]));
			word += 2;
		} else {
			*to++ = *word;
		}
	}
	*to = '\0';
}

static void answer(int result, uint64_t begin_ns, const char *text, size_t length)
{
	size_t i;

	printf("%d %" PRIu64 " ", result, (lw_now_ns() - begin_ns) / 1000000);
	for (i = 0; i < length; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c <= ' ' || c == '%' || c >= 0x7f)
			printf("%%%02X", c);
		else
			putchar(c);
	}
	putchar('\n');
	fflush(stdout);
}

static int split(char *line, char **words)
{
	char *rest;
	int count = 0;

	for (line = strtok_r(line, " \n", &rest); line != NULL && count < MAX_WORDS;
	     line = strtok_r(NULL, " \n", &rest)) {
		decode(line);
		words[count++] = strcmp(line, "-") == 0 ? (char *)"" : line;
	}
	return count;
}

static uint32_t number(const char *word)
{
	return (uint32_t)strtoul(word, NULL, 10);
}

/* One thread with a store of its own ----------------------------------------------------------------------------------
 */

struct rider {
	const char *url;
	uint64_t until_ns;
	unsigned id;
	uint64_t rounds;
	int error;
	char why[WHY];
};

static int ride_once(struct lw_store *store, struct rider *rider, const char *key, uint64_t incarnation)
{
	char value[160], *got = NULL;
	size_t length = 0;
	int size = snprintf(value, sizeof(value), "{\"lw\":{\"incarnation\":\"%016" PRIx64 "\"},\"round\":%" PRIu64 "}",
			    incarnation, rider->rounds);
	int ret = lw_store_put(store, key, value, (size_t)size, rider->rounds % 2 == 0 ? LW_STORE_TAKE : LW_STORE_KEEP,
			       STORM_TIMEOUT_MS, rider->why, WHY);

	if (ret == 0)
		ret = lw_store_get(store, key, STORM_TIMEOUT_MS, &got, &length, rider->why, WHY);
	if (ret < 0 || got == NULL)
		return ret;
	if (length != (size_t)size || memcmp(got, value, length) != 0) {
		snprintf(rider->why, WHY, "thread %u got %.100s", rider->id, got);
		ret = -EBADMSG;
	}
	free(got);
	if (ret == 0)
		ret = lw_store_renew(store, key, STORM_TIMEOUT_MS, rider->why, WHY);
	if (ret == 0 && rider->rounds % 3 == 0)
		ret = lw_store_remove(store, key, incarnation, STORM_TIMEOUT_MS, rider->why, WHY);
	rider->rounds++;
	return ret;
}

static void *ride(void *arg)
{
	struct rider *rider = arg;
	const struct lw_store_options options = {
		.size = sizeof(options), .incarnation = UINT64_C(0xabcdef0000000000) + rider->id, .lease_s = 30};
	struct lw_store *store;
	char key[64];

	snprintf(key, sizeof(key), "mooncake/storm/thread%u", rider->id);
	rider->error = lw_store_open(rider->url, &options, &store, rider->why, WHY);
	if (rider->error < 0)
		return NULL;
	do
		rider->error = ride_once(store, rider, key, options.incarnation);
	while (rider->error == 0 && lw_now_ns() < rider->until_ns);
	lw_store_remove(store, key, options.incarnation, STORM_TIMEOUT_MS, NULL, 0);
	lw_store_close(store);
	return NULL;
}

static int storm(const char *url, unsigned count, unsigned seconds, char *why)
{
	uint64_t until_ns = lw_now_ns() + seconds * UINT64_C(1000000000), rounds = 0;
	static struct rider riders[MAX_THREADS];
	pthread_t threads[MAX_THREADS];
	unsigned i, started;
	int error = 0;

	for (started = 0; started < count && started < MAX_THREADS; started++) {
		riders[started] = (struct rider){.url = url, .until_ns = until_ns, .id = started};
		if (pthread_create(&threads[started], NULL, ride, &riders[started]) != 0)
			break;
	}
	for (i = 0; i < started; i++) {
		pthread_join(threads[i], NULL);
		rounds += riders[i].rounds;
		if (riders[i].error < 0) {
			error = riders[i].error;
			snprintf(why, WHY, "%s", riders[i].why);
		}
	}
	if (error == 0)
		snprintf(why, WHY, "%" PRIu64, rounds);
	return error;
}

/* Lines ---------------------------------------------------------------------------------------------------------------
 */

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	if (dir == NULL)
		return -errno;
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

static int open_store(char **words, struct lw_store **store, char *why)
{
	const struct lw_store_options options = {.size = sizeof(options),
						 .incarnation = strtoull(words[2], NULL, 16),
						 .lease_s = number(words[3]),
						 .user = words[4],
						 .password = words[5],
						 .token = words[5],
						 .redis_db = number(words[6]),
						 .max_value = number(words[7])};

	lw_store_close(*store);
	*store = NULL;
	return lw_store_open(words[1], &options, store, why, WHY);
}

/* A text of so many bytes that carries no incarnation. */
static int fill(struct lw_store *store, const char *key, size_t size, uint32_t timeout_ms, char *why)
{
	char *value = size < 2 ? NULL : malloc(size);
	int ret;

	if (value == NULL)
		return -ENOMEM;
	memset(value, 'x', size);
	value[0] = value[size - 1] = '"';
	ret = lw_store_put(store, key, value, size, LW_STORE_TAKE, timeout_ms, why, WHY);
	free(value);
	return ret;
}

static void obey(char **words, int count, struct lw_store **store)
{
	uint64_t begin_ns = lw_now_ns();
	char why[WHY] = "", *value;
	size_t length;
	int ret = -EDOM;

	if (strcmp(words[0], "open") == 0 && count == 8)
		ret = open_store(words, store, why);
	else if (strcmp(words[0], "storm") == 0 && count == 4)
		ret = storm(words[1], number(words[2]), number(words[3]), why);
	else if (strcmp(words[0], "fds") == 0)
		ret = count_fds();
	else if (*store == NULL)
		ret = -EBADF;
	else if (strcmp(words[0], "put") == 0 && count == 5)
		ret = lw_store_put(*store, words[1], words[2], strlen(words[2]),
				   strcmp(words[3], "take") == 0 ? LW_STORE_TAKE : LW_STORE_KEEP, number(words[4]), why,
				   WHY);
	else if (strcmp(words[0], "fill") == 0 && count == 4)
		ret = fill(*store, words[1], number(words[2]), number(words[3]), why);
	else if (strcmp(words[0], "renew") == 0 && count == 3)
		ret = lw_store_renew(*store, words[1], number(words[2]), why, WHY);
	else if (strcmp(words[0], "remove") == 0 && count == 4)
		ret = lw_store_remove(*store, words[1], strtoull(words[2], NULL, 16), number(words[3]), why, WHY);
	else if (strcmp(words[0], "get") == 0 && count == 3) {
		ret = lw_store_get(*store, words[1], number(words[2]), &value, &length, why, WHY);
		if (ret == 0) {
			answer(ret, begin_ns, value, length);
			free(value);
			return;
		}
	}
	answer(ret, begin_ns, why, strlen(why));
}

int test_store_client(void)
{
	struct lw_store *store = NULL;
	char *line = NULL, *words[MAX_WORDS];
	size_t capacity = 0;
	int count;

	while (getline(&line, &capacity, stdin) > 0) {
		count = split(line, words);
		if (count > 0)
			obey(words, count, &store);
	}
	free(line);
	lw_store_close(store);
	return 0;
}
