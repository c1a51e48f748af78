/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP client: GET, PUT and DELETE of BASE?key=KEY, the key percent-encoded, as the reference's servers take them.
 *
 * lwmeta is told more, which the others ignore: "owner" (the incarnation that asks, 16 hex digits), "match" (act only
 * on what that one owns, or, with "*", on anything) and "ttl" (seconds). It answers 412 when another one owns the key,
 * and expires keys; that it does is seen by a header of its answers, and then a POST is a renewal.
 *
 * For the sake of the others a guarded call looks at the value first, and there is nothing to renew. Some refuse to
 * overwrite a key that contains "rpc_meta" (400): there the old one is deleted, which the guard has allowed by then.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/hostport.h"
#include "meta/http.h"
#include "meta/store_pvt.h"

#define BASE_MAX 1024
#define TOKEN_MAX 512
#define LEASE_HEADER "Lanewise-Lease"
#define URL_MAX (BASE_MAX + 3 * LW_STORE_KEY_MAX + 128)

struct http {
	struct lw_store base;
	struct lw_http *http;
	struct lw_hostport hp;
	char url[BASE_MAX];
	char name[BASE_MAX]; /* for messages: without the query, which may hold a secret */
	char token[TOKEN_MAX];
	bool leases; /* the server has them, as far as we know */
};

/* Everything but unreserved characters (RFC 3986) becomes %XX. */
static size_t encode(const char *key, char *to)
{
	static const char hex[] = "0123456789ABCDEF";
	char *at = to;

	for (; *key != '\0'; key++) {
		unsigned char c = (unsigned char)*key;

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		    strchr("-._~", c) != NULL) {
			*at++ = (char)c;
		} else {
			*at++ = '%';
			*at++ = hex[c >> 4];
			*at++ = hex[c & 15];
		}
	}
	*at = '\0';
	return (size_t)(at - to);
}

/* One request, whatever the server says to it. */
static int ask(struct http *http, const char *method, const char *key, const char *parameters,
	       const struct lw_store_value *body, struct lw_http_answer *answer, const struct lw_store_call *call)
{
	char url[URL_MAX], reason[256];
	struct lw_http_request request = {.method = method,
					  .url = url,
					  .host = &http->hp,
					  .notice = LEASE_HEADER,
					  .deadline_ns = call->deadline_ns};
	size_t length =
		(size_t)snprintf(url, sizeof(url), "%s%ckey=", http->url, strchr(http->url, '?') == NULL ? '?' : '&');
	int ret;

	length += encode(key, url + length);
	snprintf(url + length, sizeof(url) - length, "%s", parameters);
	if (body != NULL) {
		request.body = body->text;
		request.body_size = body->length;
	}
	if (http->token[0] != '\0')
		request.token = http->token;
	ret = lw_http_perform(http->http, &request, answer, reason, sizeof(reason));
	return ret == 0 ? 0 : lw_store_fail(call, ret, "%s: %s", http->name, reason);
}

/* The status of an answer that is not the wanted one, as an error; frees the answer. */
static int refused(const struct http *http, const char *key, struct lw_http_answer *answer,
		   const struct lw_store_call *call)
{
	char quoted[120];
	int error;

	switch (answer->status) {
	case 400:
		error = -EINVAL;
		break;
	case 401:
	case 403:
		error = -EACCES;
		break;
	case 404:
	case 410:
		error = -ENOENT;
		break;
	case 405:
		error = -EROFS;
		break;
	case 408:
	case 504:
		error = -ETIMEDOUT;
		break;
	case 409:
	case 412:
		error = -ESTALE;
		break;
	case 413:
		error = -EMSGSIZE;
		break;
	case 507:
		error = -ENOSPC;
		break;
	default:
		error = answer->status == 429 || answer->status >= 500 ? -EIO : -EPROTO;
		break;
	}
	lw_store_quote(answer->body, answer->size, quoted, sizeof(quoted));
	lw_store_fail(call, error, "%s: status %ld for \"%s\"%s%s", http->name, answer->status, key,
		      quoted[0] != '\0' ? ": " : "", quoted);
	free(answer->body);
	return error;
}

/* Whether PUT or DELETE was done. */
static bool is_success(long status)
{
	return status == 200 || status == 201 || status == 204;
}

static int http_get(struct lw_store *store, const char *key, struct lw_store_value *out,
		    const struct lw_store_call *call)
{
	struct http *http = (struct http *)store;
	struct lw_http_answer answer;
	int ret = ask(http, "GET", key, "", NULL, &answer, call);

	if (ret < 0)
		return ret;
	if (answer.status != 200)
		return refused(http, key, &answer, call);
	http->leases |= answer.noticed;
	out->text = answer.body;
	out->length = answer.size;
	return 0;
}

/* The parameters of a change in the name of an incarnation. */
#define PARAMETERS_MAX 128
static void claim(uint64_t incarnation, bool anybodys, uint32_t lease_s, char text[PARAMETERS_MAX])
{
	char owner[24] = "";
	int length = 0;

	if (incarnation != 0)
		snprintf(owner, sizeof(owner), "%016" PRIx64, incarnation);
	if (lease_s != 0)
		length = snprintf(text, PARAMETERS_MAX, "&ttl=%" PRIu32, lease_s);
	length += snprintf(text + length, PARAMETERS_MAX - (size_t)length, "&match=%s", anybodys ? "*" : owner);
	if (incarnation != 0)
		snprintf(text + length, PARAMETERS_MAX - (size_t)length, "&owner=%s", owner);
}

/* DELETE in the name of an incarnation, after a look at the value. */
static int delete_as(struct http *http, const char *key, uint64_t incarnation, const struct lw_store_call *call)
{
	struct lw_http_answer answer;
	char parameters[PARAMETERS_MAX];
	int ret;

	claim(incarnation, false, 0, parameters);
	ret = ask(http, "DELETE", key, parameters, NULL, &answer, call);
	if (ret < 0)
		return ret;
	if (!is_success(answer.status))
		return refused(http, key, &answer, call);
	free(answer.body);
	return 0;
}

/* PUT in our name. 0 with the server's status in *status, of which 400 and 412 are the caller's to judge; the sentence
 * for these is written. */
static int put_once(struct http *http, const char *key, const struct lw_store_value *value, enum lw_store_put how,
		    long *status, const struct lw_store_call *call)
{
	struct lw_http_answer answer;
	char parameters[PARAMETERS_MAX];
	int ret;

	claim(http->base.incarnation, how == LW_STORE_TAKE, http->base.lease_s, parameters);
	ret = ask(http, "PUT", key, parameters, value, &answer, call);
	if (ret < 0)
		return ret;
	*status = answer.status;
	if (!is_success(answer.status)) {
		ret = refused(http, key, &answer, call);
		return answer.status == 400 || answer.status == 412 ? 0 : ret;
	}
	http->leases = answer.noticed; /* it may be another server by now */
	free(answer.body);
	return 0;
}

static int belongs_to_another(const struct http *http, const char *key, const struct lw_store_call *call)
{
	return lw_store_fail(call, -ESTALE, "%s: \"%s\" belongs to another engine", http->name, key);
}

/* Whether the key may be overwritten: 0 if it is gone or ours, or anybody's and may be taken; -ESTALE. */
static int look(struct http *http, const char *key, enum lw_store_put how, uint64_t *owner,
		const struct lw_store_call *call)
{
	struct lw_store_value old = {.text = NULL};
	bool held;
	int ret = http_get(&http->base, key, &old, call);

	*owner = http->base.incarnation;
	if (ret < 0)
		return ret == -ENOENT ? 0 : ret;
	held = lw_store_held(old.text, old.length, http->base.incarnation);
	*owner = lw_store_owner(old.text, old.length);
	free(old.text);
	return held || how == LW_STORE_TAKE ? 0 : belongs_to_another(http, key, call);
}

static int http_put(struct lw_store *store, const char *key, const char *text, size_t length, enum lw_store_put how,
		    const struct lw_store_call *call)
{
	const struct lw_store_value value = {.text = (char *)text, .length = length};
	struct http *http = (struct http *)store;
	uint64_t owner;
	long status = 0;
	int ret = 0;

	if (how != LW_STORE_TAKE && !http->leases)
		ret = look(http, key, how, &owner, call);
	if (ret == 0)
		ret = put_once(http, key, &value, how, &status, call);
	if (ret == 0 && status == 400 && strstr(key, "rpc_meta") != NULL) {
		ret = look(http, key, how, &owner, call);
		if (ret == 0)
			ret = delete_as(http, key, owner, call);
		if (ret == 0 || ret == -ENOENT)
			ret = put_once(http, key, &value, how, &status, call);
	}
	if (ret < 0 || is_success(status))
		return ret;
	return status == 412 ? -ESTALE : -EINVAL;
}

/* 0: renewed; 1: there is nothing like that here. */
static int post(struct http *http, const char *key, const struct lw_store_call *call)
{
	struct lw_http_answer answer;
	char parameters[PARAMETERS_MAX];
	int ret;

	claim(http->base.incarnation, false, http->base.lease_s, parameters);
	ret = ask(http, "POST", key, parameters, NULL, &answer, call);
	if (ret < 0)
		return ret;
	if (answer.status == 405 || answer.status == 501) {
		http->leases = false; /* another server by now */
		free(answer.body);
		return 1;
	}
	if (answer.status != 200)
		return refused(http, key, &answer, call);
	free(answer.body);
	return 0;
}

static int http_renew(struct lw_store *store, const char *key, const struct lw_store_call *call)
{
	struct http *http = (struct http *)store;
	int ret = 1;

	if (store->lease_s != 0 && http->leases)
		ret = post(http, key, call);
	if (ret == 1) {
		struct lw_store_value value = {.text = NULL};

		ret = http_get(store, key, &value, call);
		if (ret < 0)
			return ret;
		if (!lw_store_held(value.text, value.length, store->incarnation))
			ret = belongs_to_another(http, key, call);
		else if (store->lease_s != 0 && http->leases) /* as we have just learned */
			ret = post(http, key, call);
		free(value.text);
	}
	return ret < 0 ? ret : 0;
}

static int http_remove(struct lw_store *store, const char *key, uint64_t incarnation, const struct lw_store_call *call)
{
	struct http *http = (struct http *)store;
	struct lw_store_value value = {.text = NULL};
	bool held;
	int ret = http_get(store, key, &value, call);

	if (ret < 0)
		return ret;
	held = lw_store_held(value.text, value.length, incarnation);
	free(value.text);
	return held ? delete_as(http, key, incarnation, call) : belongs_to_another(http, key, call);
}

/* The client ----------------------------------------------------------------------------------------------------------
 */

/* "fe80::1%25eth0" is how a URL writes "fe80::1%eth0". */
static void unescape_scope(char *host)
{
	char *percent = strstr(host, "%25");

	if (percent != NULL)
		memmove(percent + 1, percent + 3, strlen(percent + 3) + 1);
}

static bool is_host(const struct lw_hostport *hp)
{
	const char *at;

	for (at = hp->host; *at != '\0' && !hp->v6; at++)
		if (!isascii((unsigned char)*at) || (!isalnum((unsigned char)*at) && strchr("-._", *at) == NULL))
			return false;
	return true;
}

static int parse_url(struct http *http, const char *url, const char *rest, const struct lw_store_call *call)
{
	size_t length = strlen(url), authority = strcspn(rest, "/?#"), i;
	bool bad = length >= sizeof(http->url) || strchr(rest, '#') != NULL || authority >= LW_NAME_MAX;
	char address[LW_NAME_MAX], quoted[96];

	for (i = 0; i < length; i++)
		bad |= (unsigned char)url[i] <= ' ' || url[i] == 0x7f;
	if (memchr(rest, '@', authority) != NULL)
		return lw_store_fail(call, -EINVAL, "a user does not belong in the URL of a metadata store");
	if (!bad) {
		memcpy(address, rest, authority);
		address[authority] = '\0';
		unescape_scope(address);
		bad = lw_hostport_parse(address, strncmp(url, "https:", 6) == 0 ? 443 : 80, &http->hp) < 0 ||
		      !is_host(&http->hp) || (http->hp.v6 && rest[0] != '[');
	}
	if (bad)
		return lw_store_fail(call, -EINVAL, "\"%s\" is no http://HOST[:PORT]/PATH",
				     lw_store_quote(url, length, quoted, sizeof(quoted)));
	memcpy(http->url, url, length + 1);
	memcpy(http->name, url, strcspn(url, "?"));
	return 0;
}

static int take_token(struct http *http, const char *token, const struct lw_store_call *call)
{
	size_t length = token != NULL ? strlen(token) : 0, i;

	if (length >= sizeof(http->token))
		return lw_store_fail(call, -EINVAL, "the token has more than %d bytes", TOKEN_MAX - 1);
	for (i = 0; i < length; i++)
		if ((unsigned char)token[i] <= ' ' || (unsigned char)token[i] >= 0x7f)
			return lw_store_fail(call, -EINVAL, "the token has other than printable characters");
	if (length > 0)
		memcpy(http->token, token, length + 1);
	return 0;
}

static void http_close(struct lw_store *store)
{
	struct http *http = (struct http *)store;

	explicit_bzero(http->token, sizeof(http->token));
	lw_http_close(http->http);
	free(http);
}

static int http_open(const char *url, const char *rest, const struct lw_store_options *options, struct lw_store **out,
		     const struct lw_store_call *call)
{
	struct http *http = calloc(1, sizeof(*http));
	int ret;

	if (http == NULL)
		return lw_store_fail(call, -ENOMEM, "no memory for the HTTP client");
	ret = parse_url(http, url, rest, call);
	if (ret == 0)
		ret = take_token(http, options->token, call);
	if (ret == 0)
		ret = lw_http_open(options->max_value, &http->http, call->why, call->why_size);
	if (ret < 0) {
		http_close(&http->base);
		return ret;
	}
	*out = &http->base;
	return 0;
}

static void http_forked(struct lw_store *store)
{
	lw_http_forked(((struct http *)store)->http);
}

#define OPS(word, text)                                                                                                \
	{                                                                                                              \
		.size = sizeof(struct lw_store_ops), .scheme = word, .form = text, .open = http_open, .get = http_get, \
		.put = http_put, .renew = http_renew, .remove = http_remove, .close = http_close,                      \
		.forked = http_forked                                                                                  \
	}

const struct lw_store_ops lw_store_http_ops = OPS("http", "http://HOST[:PORT]/PATH");
const struct lw_store_ops lw_store_https_ops = OPS("https", "https://HOST[:PORT]/PATH");
