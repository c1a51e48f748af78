/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/resp.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "meta/dial.h"

#define CHUNK_BYTES 65536
#define SLACK_BYTES 4096 /* what an answer has beside its text */

_Static_assert(LW_RESP_STRING == REDIS_REPLY_STRING && LW_RESP_INTEGER == REDIS_REPLY_INTEGER &&
		       LW_RESP_NIL == REDIS_REPLY_NIL && LW_RESP_STATUS == REDIS_REPLY_STATUS &&
		       LW_RESP_ERROR == REDIS_REPLY_ERROR,
	       "a type is the library's");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_open;
static __typeof__(redisReaderCreateWithFunctions) *reader_create;
static __typeof__(redisReaderFree) *reader_free;
static __typeof__(redisReaderFeed) *reader_feed;
static __typeof__(redisReaderGetReply) *reader_get;
static __typeof__(redisFormatCommandArgv) *format_argv;
static __typeof__(redisFreeCommand) *free_command;

static void open_library(void)
{
	void *library = dlopen("libhiredis.so.0.14", RTLD_NOW | RTLD_LOCAL);

	if (library == NULL)
		return;
	reader_create = (__typeof__(reader_create))dlsym(library, "redisReaderCreateWithFunctions");
	reader_free = (__typeof__(reader_free))dlsym(library, "redisReaderFree");
	reader_feed = (__typeof__(reader_feed))dlsym(library, "redisReaderFeed");
	reader_get = (__typeof__(reader_get))dlsym(library, "redisReaderGetReply");
	format_argv = (__typeof__(format_argv))dlsym(library, "redisFormatCommandArgv");
	free_command = (__typeof__(free_command))dlsym(library, "redisFreeCommand");
	is_open = reader_create != NULL && reader_free != NULL && reader_feed != NULL && reader_get != NULL &&
		  format_argv != NULL && free_command != NULL;
}

int lw_resp_open(void)
{
	pthread_once(&once, open_library);
	return is_open ? 0 : -ENOTSUP;
}

/* The reader makes what it has read with these. One answer is one reply, which privdata points to; a text is whole when
 * it is made, so nothing is allocated for what is merely announced. */
static struct lw_resp *slot(const redisReadTask *task)
{
	struct lw_resp *reply = task->privdata;

	if (reply->type != 0)
		return NULL;
	reply->type = task->type;
	return reply;
}

static void *make_string(const redisReadTask *task, char *text, size_t length)
{
	struct lw_resp *reply = slot(task);

	if (reply == NULL)
		return NULL;
	reply->text = malloc(length + 1);
	if (reply->text == NULL)
		return NULL;
	memcpy(reply->text, text, length);
	reply->text[length] = '\0';
	reply->length = length;
	return reply;
}

static void *make_array(const redisReadTask *task, int count)
{
	(void)task;
	(void)count;
	return NULL;
}

static void *make_integer(const redisReadTask *task, long long value)
{
	struct lw_resp *reply = slot(task);

	if (reply != NULL)
		reply->integer = value;
	return reply;
}

static void *make_nil(const redisReadTask *task)
{
	struct lw_resp *reply = slot(task);

	if (reply != NULL)
		reply->type = LW_RESP_NIL; /* the task's is that of the string which is not there */
	return reply;
}

static void free_nothing(void *object)
{
	(void)object;
}

static redisReplyObjectFunctions functions = {
	.createString = make_string,
	.createArray = make_array,
	.createInteger = make_integer,
	.createNil = make_nil,
	.freeObject = free_nothing,
};

/* One answer. Bytes that follow it belong to nobody. */
static int receive(int fd, size_t max_text, uint64_t deadline_ns, struct lw_resp *reply)
{
	redisReader *reader = reader_create(&functions);
	char *chunk = malloc(CHUNK_BYTES);
	void *object = NULL;
	size_t total = 0;
	ssize_t part;
	int ret = -ENOMEM;

	if (reader == NULL || chunk == NULL)
		goto out;
	reader->privdata = reply;
	do {
		part = lw_dial_receive(fd, chunk, CHUNK_BYTES, deadline_ns);
		if (part == 0) /* closed: at once, or within the answer */
			part = total == 0 ? -ECONNRESET : -EPROTO;
		if (part < 0) {
			ret = (int)part;
			goto out;
		}
		total += (size_t)part;
		ret = -EMSGSIZE;
		if (total > max_text + SLACK_BYTES)
			goto out;
		ret = -EPROTO;
		if (reader_feed(reader, chunk, (size_t)part) != REDIS_OK || reader_get(reader, &object) != REDIS_OK)
			goto out;
	} while (object == NULL);
	ret = reader->len > reader->pos ? -EPROTO : 0;
out:
	free(chunk);
	if (reader != NULL)
		reader_free(reader);
	return ret;
}

int lw_resp_exchange(int fd, int argc, const char **argv, const size_t *lengths, size_t max_text, uint64_t deadline_ns,
		     struct lw_resp *reply)
{
	char *command = NULL;
	int size = format_argv(&command, argc, argv, lengths), ret;

	if (size < 0)
		return -ENOMEM;
	memset(reply, 0, sizeof(*reply));
	ret = lw_dial_send(fd, command, (size_t)size, deadline_ns);
	free_command(command);
	if (ret == 0)
		ret = receive(fd, max_text, deadline_ns, reply);
	if (ret < 0) {
		free(reply->text);
		reply->text = NULL;
	}
	return ret;
}
