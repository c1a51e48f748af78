/* SPDX-License-Identifier: Apache-2.0 */
/* The front of the store clients: which one a URL means, checks of what goes in, and who owns a value. */
#define LW_STORE_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "meta/hostport.h"
#include "meta/store_pvt.h"

#define MARK_HEAD "\"incarnation\":\""
#define MARK_DIGITS 16

static const struct lw_store_ops *const stores[] = {
	&lw_store_etcd_ops,
	&lw_store_redis_ops,
	&lw_store_http_ops,
	&lw_store_https_ops,
};
#define STORE_COUNT (sizeof(stores) / sizeof(stores[0]))

int lw_store_fail(const struct lw_store_call *call, int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (call->why_size > 0)
		vsnprintf(call->why, call->why_size, format, args);
	va_end(args);
	return error;
}

const char *lw_store_quote(const char *bytes, size_t length, char *text, size_t size)
{
	size_t i;

	for (i = 0; i < length && i + 1 < size; i++)
		text[i] = (unsigned char)bytes[i] < ' ' || bytes[i] == 0x7f ? ' ' : bytes[i];
	while (i > 0 && text[i - 1] == ' ')
		i--;
	text[i] = '\0';
	return text;
}

/* Owners --------------------------------------------------------------------------------------------------------------
 */

void lw_store_mark(uint64_t incarnation, char mark[LW_STORE_MARK_MAX])
{
	if (incarnation == 0)
		snprintf(mark, LW_STORE_MARK_MAX, MARK_HEAD);
	else
		snprintf(mark, LW_STORE_MARK_MAX, MARK_HEAD "%016" PRIx64 "\"", incarnation);
}

/* Plain text is enough: these words can't stand inside a JSON string, where the quotes would be escaped, and the
 * documents they decide about were written by an engine, without blanks. */
bool lw_store_held(const char *value, size_t length, uint64_t incarnation)
{
	char mark[LW_STORE_MARK_MAX];

	lw_store_mark(incarnation, mark);
	return (memmem(value, length, mark, strlen(mark)) != NULL) == (incarnation != 0);
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

uint64_t lw_store_owner(const char *value, size_t length)
{
	const char *at = memmem(value, length, MARK_HEAD, strlen(MARK_HEAD));
	uint64_t owner = 0;
	size_t i;

	if (at == NULL)
		return 0;
	at += strlen(MARK_HEAD);
	if ((size_t)(value + length - at) < MARK_DIGITS)
		return 0;
	for (i = 0; i < MARK_DIGITS; i++) {
		if (digit(at[i]) < 0)
			return 0;
		owner = owner << 4 | (uint64_t)digit(at[i]);
	}
	return owner;
}

/* Opening -------------------------------------------------------------------------------------------------------------
 */

bool lw_store_is_p2p(const char *url)
{
	return url != NULL && strcmp(url, "P2PHANDSHAKE") == 0;
}

static int unknown(const char *url, const struct lw_store_call *call)
{
	char forms[256] = "", quoted[96];
	size_t i, length = 0;

	for (i = 0; i < STORE_COUNT && length < sizeof(forms); i++)
		length += (size_t)snprintf(forms + length, sizeof(forms) - length, ", %s", stores[i]->form);
	return lw_store_fail(call, -EINVAL, "\"%s\" names no metadata store; accepted are P2PHANDSHAKE%s",
			     lw_store_quote(url, strlen(url), quoted, sizeof(quoted)), forms);
}

/* "host:port[,...]" without a scheme means etcd. With the ports, so that a misspelt word does not become a host. */
static bool is_bare_etcd(const char *url)
{
	struct lw_hostport hp;
	char part[LW_NAME_MAX];
	size_t length;

	for (;;) {
		url += strspn(url, " ");
		length = strcspn(url, ",;");
		if (length >= sizeof(part))
			return false;
		memcpy(part, url, length);
		part[length] = '\0';
		while (length > 0 && part[length - 1] == ' ')
			part[--length] = '\0';
		if (lw_hostport_parse(part, 0, &hp) < 0 || hp.port == 0)
			return false;
		url += strcspn(url, ",;");
		if (*url == '\0')
			return true;
		url++;
	}
}

static int check_options(const struct lw_store_options *options, const struct lw_store_call *call)
{
	if (options->size != sizeof(*options))
		return lw_store_fail(call, -EINVAL, "options of %zu bytes are not known", options->size);
	if (options->lease_s > LW_STORE_LEASE_LIMIT)
		return lw_store_fail(call, -EINVAL, "a lease of %u s is too long", options->lease_s);
	if (options->max_value > LW_STORE_VALUE_LIMIT)
		return lw_store_fail(call, -EINVAL, "values of %zu bytes are too long", options->max_value);
	if (options->redis_db > 255)
		return lw_store_fail(call, -EINVAL, "redis database %u is not in 0 .. 255", options->redis_db);
	return 0;
}

int lw_store_open(const char *url, const struct lw_store_options *options, struct lw_store **out, char *why,
		  size_t why_size)
{
	const struct lw_store_call call = {.why = why, .why_size = why_size};
	const struct lw_store_ops *ops = NULL;
	const char *rest = strstr(url, "://");
	struct lw_store_options opts;
	struct lw_store *store;
	size_t i;
	int ret = check_options(options, &call);

	if (ret < 0)
		return ret;
	opts = *options;
	if (opts.max_value == 0)
		opts.max_value = LW_STORE_VALUE_DEFAULT;
	for (i = 0; i < STORE_COUNT && rest != NULL; i++)
		if (strlen(stores[i]->scheme) == (size_t)(rest - url) &&
		    strncmp(url, stores[i]->scheme, (size_t)(rest - url)) == 0)
			ops = stores[i];
	if (rest == NULL && is_bare_etcd(url))
		ops = &lw_store_etcd_ops;
	if (ops == NULL)
		return unknown(url, &call);
	ret = ops->open(url, rest != NULL ? rest + 3 : url, &opts, &store, &call);
	if (ret < 0)
		return ret;
	store->ops = ops;
	store->incarnation = opts.incarnation;
	store->lease_s = opts.lease_s;
	store->max_value = opts.max_value;
	*out = store;
	return 0;
}

/* Calls ---------------------------------------------------------------------------------------------------------------
 */

static struct lw_store_call call_until(uint32_t timeout_ms, char *why, size_t why_size)
{
	const struct lw_store_call call = {
		.deadline_ns = lw_now_ns() + (uint64_t)timeout_ms * 1000000u, .why = why, .why_size = why_size};

	return call;
}

/* A first try may have left its sentence. */
static int end_call(int ret, const struct lw_store_call *call)
{
	if (ret == 0 && call->why_size > 0)
		call->why[0] = '\0';
	return ret;
}

static int check_key(const char *key, const struct lw_store_call *call)
{
	size_t length = strnlen(key, LW_STORE_KEY_MAX);

	if (length == 0)
		return lw_store_fail(call, -EINVAL, "the key is empty");
	if (length == LW_STORE_KEY_MAX)
		return lw_store_fail(call, -EINVAL, "the key has more than %d bytes", LW_STORE_KEY_MAX - 1);
	return 0;
}

int lw_store_get(struct lw_store *store, const char *key, uint32_t timeout_ms, char **value, size_t *length, char *why,
		 size_t why_size)
{
	const struct lw_store_call call = call_until(timeout_ms, why, why_size);
	struct lw_store_value out = {.text = NULL};
	int ret = check_key(key, &call);

	if (ret == 0)
		ret = store->ops->get(store, key, &out, &call);
	if (end_call(ret, &call) < 0)
		return ret;
	if (store->ops->newline && out.length > 0 && out.text[out.length - 1] == '\n')
		out.text[--out.length] = '\0';
	*value = out.text;
	*length = out.length;
	return 0;
}

int lw_store_put(struct lw_store *store, const char *key, const char *value, size_t length, enum lw_store_put how,
		 uint32_t timeout_ms, char *why, size_t why_size)
{
	const struct lw_store_call call = call_until(timeout_ms, why, why_size);
	char *line = NULL;
	int ret = check_key(key, &call);

	if (ret < 0)
		return ret;
	if (length == 0)
		return lw_store_fail(&call, -EINVAL, "the value of \"%s\" is empty", key);
	if (length > store->max_value)
		return lw_store_fail(&call, -EMSGSIZE, "the value of \"%s\" has %zu bytes, of at most %zu", key, length,
				     store->max_value);
	if (!lw_store_held(value, length, store->incarnation))
		return lw_store_fail(&call, -EINVAL, "the value of \"%s\" does not carry incarnation %016" PRIx64, key,
				     store->incarnation);
	if (store->ops->newline) {
		line = malloc(length + 1);
		if (line == NULL)
			return lw_store_fail(&call, -ENOMEM, "no memory for the value of \"%s\"", key);
		memcpy(line, value, length);
		line[length] = '\n';
		value = line;
		length++;
	}
	ret = store->ops->put(store, key, value, length, how, &call);
	free(line);
	return end_call(ret, &call);
}

int lw_store_renew(struct lw_store *store, const char *key, uint32_t timeout_ms, char *why, size_t why_size)
{
	const struct lw_store_call call = call_until(timeout_ms, why, why_size);
	int ret = check_key(key, &call);

	return ret < 0 ? ret : end_call(store->ops->renew(store, key, &call), &call);
}

int lw_store_remove(struct lw_store *store, const char *key, uint64_t incarnation, uint32_t timeout_ms, char *why,
		    size_t why_size)
{
	const struct lw_store_call call = call_until(timeout_ms, why, why_size);
	int ret = check_key(key, &call);

	return ret < 0 ? ret : end_call(store->ops->remove(store, key, incarnation, &call), &call);
}

void lw_store_close(struct lw_store *store)
{
	if (store != NULL)
		store->ops->close(store);
}

void lw_store_forked(struct lw_store *store)
{
	store->ops->forked(store);
}
