/* SPDX-License-Identifier: Apache-2.0 */
/* The redis client: requests and answers by resp.c, the connection by dial.c, so that every wait ends in time. One
 * request is under way at a time. Whatever goes wrong on a connection ends it: an answer that comes late can't be taken
 * for the next one's.
 *
 * What looks at a value before it acts is a script, which redis runs in one step. KEYS[1] is the key, ARGV[1] the mark
 * of an incarnation, ARGV[2] "held" or "free" for whether a value with it or one without it is the owner's, ARGV[3] the
 * lease in seconds ("0": none), ARGV[4] the value. It answers -1 there is no key, 0 it is another one's, 1 done.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "meta/dial.h"
#include "meta/hostport.h"
#include "meta/resp.h"
#include "meta/store_pvt.h"

#define DEFAULT_PORT 6379
#define CREDENTIAL_MAX 512

#define GUARD                                                                                                          \
	"local v=redis.call('GET',KEYS[1]) if not v then %s end "                                                      \
	"if (string.find(v,ARGV[1],1,true)~=nil)~=(ARGV[2]=='held') then return 0 end %s return 1"

enum script { SCRIPT_PUT, SCRIPT_RENEW, SCRIPT_REMOVE };

#define SET                                                                                                            \
	"if ARGV[3]=='0' then redis.call('SET',KEYS[1],ARGV[4]) else redis.call('SET',KEYS[1],ARGV[4],'EX',ARGV[3]) "  \
	"end"
/* What it does without a key, and with one of the owner's. */
static const char *const script_parts[][2] = {
	[SCRIPT_PUT] = {SET " return 1", SET},
	[SCRIPT_RENEW] = {"return -1", "if ARGV[3]~='0' then redis.call('EXPIRE',KEYS[1],ARGV[3]) end"},
	[SCRIPT_REMOVE] = {"return -1", "redis.call('DEL',KEYS[1])"},
};

struct redis {
	struct lw_store base;
	struct lw_hostport hp;
	char name[LW_NAME_MAX + 32]; /* for messages */
	char user[CREDENTIAL_MAX], password[CREDENTIAL_MAX];
	uint32_t db;
	int fd; /* -1: not connected */
};

static void disconnect(struct redis *redis)
{
	if (redis->fd >= 0)
		close(redis->fd);
	redis->fd = -1;
}

static int transport_failed(const struct redis *redis, int error, const struct lw_store_call *call)
{
	switch (error) {
	case -ETIMEDOUT:
		return lw_store_fail(call, error, "%s: no answer in time", redis->name);
	case -EPROTO:
		return lw_store_fail(call, error, "%s: the answer was cut, or is not one of redis", redis->name);
	case -EMSGSIZE:
		return lw_store_fail(call, error, "%s: the answer has more than %zu bytes", redis->name,
				     redis->base.max_value);
	default:
		return lw_store_fail(call, error, "%s: %s", redis->name, strerror(-error));
	}
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* What redis says, as an error. Words from inside a script may stand behind others. */
static int refused(const struct redis *redis, const struct lw_resp *reply, const struct lw_store_call *call)
{
	static const struct {
		const char *words;
		bool anywhere;
		int error;
		const char *remedy;
	} known[] = {
		{"NOAUTH", false, -EACCES, "; set its password"},
		{"WRONGPASS", false, -EACCES, ""},
		{"ERR invalid password", false, -EACCES, ""},
		{"ERR invalid username-password", false, -EACCES, ""},
		{"ERR AUTH", false, -EACCES, "; it wants no password"},
		{"ERR Client sent AUTH", false, -EACCES, "; it wants no password"},
		{"DENIED", false, -EACCES, ""},
		{"NOPERM", true, -EACCES, ""},
		{"user executing the script can't run", true, -EACCES, ""},
		{"OOM command not allowed", true, -ENOSPC, "; raise its maxmemory"},
		{"READONLY", true, -EROFS, "; name the master"},
		{"ERR DB index", false, -EINVAL, ""},
		{"ERR invalid DB index", false, -EINVAL, ""},
		{"ERR value is not an integer", false, -EINVAL, ""},
		{"ERR Protocol error: invalid bulk length", false, -EMSGSIZE, "; raise its proto-max-bulk-len"},
		{"ERR string exceeds", true, -EMSGSIZE, ""},
		{"WRONGTYPE", true, -EPROTO, ""},
	};
	char quoted[200];
	size_t i, count = sizeof(known) / sizeof(known[0]);

	lw_store_quote(reply->text, reply->length, quoted, sizeof(quoted));
	for (i = 0; i < count; i++)
		if (begins(reply->text, known[i].words) ||
		    (known[i].anywhere && strstr(reply->text, known[i].words) != NULL))
			return lw_store_fail(call, known[i].error, "%s refuses: %s%s", redis->name, quoted,
					     known[i].remedy);
	return lw_store_fail(call, -EIO, "%s refuses: %s", redis->name, quoted);
}

/* Requests ------------------------------------------------------------------------------------------------------------
 */

/* One request on the connection there is; an error reply is an error. Only after a whole answer is the connection used
 * again. */
static int exchange(struct redis *redis, int argc, const char **argv, const size_t *lengths, struct lw_resp *reply,
		    const struct lw_store_call *call)
{
	int ret = lw_resp_exchange(redis->fd, argc, argv, lengths, redis->base.max_value + 1, call->deadline_ns, reply);

	if (ret != 0) {
		disconnect(redis);
		return transport_failed(redis, ret, call);
	}
	if (reply->type == LW_RESP_ERROR) {
		ret = refused(redis, reply, call);
		free(reply->text);
		reply->text = NULL;
	}
	return ret;
}

/* A request whose answer has to be +OK. */
static int command(struct redis *redis, int argc, const char **argv, const struct lw_store_call *call)
{
	struct lw_resp reply = {.type = 0};
	size_t lengths[3];
	int ret, i;

	for (i = 0; i < argc; i++)
		lengths[i] = strlen(argv[i]);
	ret = exchange(redis, argc, argv, lengths, &reply, call);
	if (ret < 0)
		return ret;
	if (reply.type != LW_RESP_STATUS)
		ret = lw_store_fail(call, -EPROTO, "%s: an odd answer to %s", redis->name, argv[0]);
	free(reply.text);
	return ret;
}

static int connect_and_greet(struct redis *redis, const struct lw_store_call *call)
{
	const char *auth[3] = {"AUTH"}, *select[2] = {"SELECT"};
	char db[16];
	int ret = lw_dial(&redis->hp, call->deadline_ns, &redis->fd), argc = 1;

	if (ret < 0) {
		redis->fd = -1;
		return transport_failed(redis, ret, call);
	}
	if (redis->password[0] != '\0') {
		if (redis->user[0] != '\0')
			auth[argc++] = redis->user;
		auth[argc++] = redis->password;
		ret = command(redis, argc, auth, call);
	}
	if (ret == 0 && redis->db != 0) {
		snprintf(db, sizeof(db), "%u", redis->db);
		select[1] = db;
		ret = command(redis, 2, select, call);
	}
	if (ret < 0) /* else the next call would go on without */
		disconnect(redis);
	return ret;
}

/* A request on the connection, which is made if there is none. One that was kept may have been closed by the server
 * since (a restart, its idle limit): then there is a second try, since every request here may be made twice. */
static int request(struct redis *redis, int argc, const char **argv, const size_t *lengths, struct lw_resp *reply,
		   const struct lw_store_call *call)
{
	bool kept = redis->fd >= 0;
	int ret = 0;

	if (!kept)
		ret = connect_and_greet(redis, call);
	if (ret == 0)
		ret = exchange(redis, argc, argv, lengths, reply, call);
	if (ret == -ECONNRESET && kept) {
		ret = connect_and_greet(redis, call);
		if (ret == 0)
			ret = exchange(redis, argc, argv, lengths, reply, call);
	}
	return ret;
}

static int odd_answer(const struct redis *redis, struct lw_resp *reply, const struct lw_store_call *call)
{
	free(reply->text);
	return lw_store_fail(call, -EPROTO, "%s: an odd answer", redis->name);
}

static int redis_get(struct lw_store *store, const char *key, struct lw_store_value *out,
		     const struct lw_store_call *call)
{
	struct redis *redis = (struct redis *)store;
	const char *argv[] = {"GET", key};
	const size_t lengths[] = {3, strlen(key)};
	struct lw_resp reply = {.type = 0};
	int ret = request(redis, 2, argv, lengths, &reply, call);

	if (ret < 0)
		return ret;
	if (reply.type == LW_RESP_NIL)
		return lw_store_fail(call, -ENOENT, "%s has no key \"%s\"", redis->name, key);
	if (reply.type != LW_RESP_STRING)
		return odd_answer(redis, &reply, call);
	out->text = reply.text;
	out->length = reply.length;
	return 0;
}

static int run(struct redis *redis, enum script script, const char *key, uint64_t incarnation, const char *value,
	       size_t length, const struct lw_store_call *call)
{
	char text[1024], mark[LW_STORE_MARK_MAX], lease[16];
	const char *argv[] = {"EVAL", text, "1", key, mark, incarnation != 0 ? "held" : "free", lease, value};
	size_t lengths[8];
	struct lw_resp reply = {.type = 0};
	int ret, i;

	lw_store_mark(incarnation, mark);
	snprintf(lease, sizeof(lease), "%u", redis->base.lease_s);
	snprintf(text, sizeof(text), GUARD, script_parts[script][0], script_parts[script][1]);
	for (i = 0; i < 7; i++)
		lengths[i] = strlen(argv[i]);
	lengths[7] = length;
	ret = request(redis, 8, argv, lengths, &reply, call);
	if (ret < 0)
		return ret;
	if (reply.type != LW_RESP_INTEGER)
		return odd_answer(redis, &reply, call);
	switch (reply.integer) {
	case 1:
		return 0;
	case 0:
		return lw_store_fail(call, -ESTALE, "%s: \"%s\" belongs to another engine", redis->name, key);
	case -1:
		return lw_store_fail(call, -ENOENT, "%s has no key \"%s\"", redis->name, key);
	default:
		return odd_answer(redis, &reply, call);
	}
}

static int redis_put(struct lw_store *store, const char *key, const char *value, size_t length, enum lw_store_put how,
		     const struct lw_store_call *call)
{
	struct redis *redis = (struct redis *)store;
	char lease[16];
	const char *argv[] = {"SET", key, value, "EX", lease};
	size_t lengths[] = {3, strlen(key), length, 2, 0};
	struct lw_resp reply = {.type = 0};
	int ret;

	if (how != LW_STORE_TAKE)
		return run(redis, SCRIPT_PUT, key, store->incarnation, value, length, call);
	lengths[4] = (size_t)snprintf(lease, sizeof(lease), "%u", store->lease_s);
	ret = request(redis, store->lease_s != 0 ? 5 : 3, argv, lengths, &reply, call);
	if (ret < 0)
		return ret;
	if (reply.type != LW_RESP_STATUS)
		return odd_answer(redis, &reply, call);
	free(reply.text);
	return 0;
}

static int redis_renew(struct lw_store *store, const char *key, const struct lw_store_call *call)
{
	return run((struct redis *)store, SCRIPT_RENEW, key, store->incarnation, "", 0, call);
}

static int redis_remove(struct lw_store *store, const char *key, uint64_t incarnation, const struct lw_store_call *call)
{
	return run((struct redis *)store, SCRIPT_REMOVE, key, incarnation, "", 0, call);
}

/* The client ----------------------------------------------------------------------------------------------------------
 */

static int take_credential(char *to, const char *text, const char *what, const struct lw_store_call *call)
{
	if (text == NULL)
		return 0;
	if (strlen(text) >= CREDENTIAL_MAX)
		return lw_store_fail(call, -EINVAL, "the %s has more than %d bytes", what, CREDENTIAL_MAX - 1);
	strcpy(to, text);
	return 0;
}

static int parse_url(struct redis *redis, const char *rest, const struct lw_store_call *call)
{
	size_t length = strlen(rest);
	char address[LW_NAME_MAX], quoted[96];

	if (length > 0 && rest[length - 1] == '/')
		length--;
	if (memchr(rest, '@', length) != NULL)
		return lw_store_fail(call, -EINVAL,
				     "user and password don't belong in a redis URL; there are settings for them");
	if (length < sizeof(address)) {
		memcpy(address, rest, length);
		address[length] = '\0';
		if (memchr(rest, '/', length) == NULL && lw_hostport_parse(address, DEFAULT_PORT, &redis->hp) == 0) {
			snprintf(redis->name, sizeof(redis->name), "redis://%s", address);
			return 0;
		}
	}
	return lw_store_fail(call, -EINVAL, "\"%s\" is no HOST[:PORT] of a redis server",
			     lw_store_quote(rest, strlen(rest), quoted, sizeof(quoted)));
}

static void redis_close(struct lw_store *store)
{
	struct redis *redis = (struct redis *)store;

	disconnect(redis);
	explicit_bzero(redis->password, sizeof(redis->password));
	free(redis);
}

static int redis_open(const char *url, const char *rest, const struct lw_store_options *options, struct lw_store **out,
		      const struct lw_store_call *call)
{
	struct redis *redis;
	int ret;

	(void)url;
	if (lw_resp_open() < 0)
		return lw_store_fail(call, -ENOTSUP,
				     "redis needs libhiredis.so.0.14, which is not there; install libhiredis0.14");
	redis = calloc(1, sizeof(*redis));
	if (redis == NULL)
		return lw_store_fail(call, -ENOMEM, "no memory for the redis client");
	redis->fd = -1;
	redis->db = options->redis_db;
	ret = parse_url(redis, rest, call);
	if (ret == 0)
		ret = take_credential(redis->user, options->user, "user", call);
	if (ret == 0)
		ret = take_credential(redis->password, options->password, "password", call);
	if (ret < 0) {
		redis_close(&redis->base);
		return ret;
	}
	*out = &redis->base;
	return 0;
}

static void redis_forked(struct lw_store *store)
{
	disconnect((struct redis *)store);
}

const struct lw_store_ops lw_store_redis_ops = {
	.size = sizeof(struct lw_store_ops),
	.scheme = "redis",
	.form = "redis://HOST[:PORT]",
	.newline = true,
	.open = redis_open,
	.get = redis_get,
	.put = redis_put,
	.renew = redis_renew,
	.remove = redis_remove,
	.close = redis_close,
	.forked = redis_forked,
};
