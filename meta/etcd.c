/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/etcd.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "meta/hostport.h"
#include "meta/http.h"

#define DEFAULT_PORT 2379
#define MAX_ENDPOINTS 8
#define MAX_DEPTH 12
#define MAX_JSON_VALUES 1024 /* an answer to us has some thirty */

/* Codes of gRPC, which the gateway passes on. */
enum { INVALID_ARGUMENT = 3, NOT_FOUND = 5, PERMISSION_DENIED = 7, EXHAUSTED = 8, UNAUTHENTICATED = 16 };

struct endpoint {
	struct lw_hostport hp;
	char url[LW_NAME_MAX + 32]; /* http://HOST:PORT */
};

struct lw_etcd {
	struct lw_http *http;
	struct endpoint endpoints[MAX_ENDPOINTS];
	uint32_t count, current;
};

/* Answers -------------------------------------------------------------------------------------------------------------
 */

/* Bounds what the parser, which recurses and allocates a node a value, can be made to do. */
static bool is_modest(const char *text, size_t size)
{
	size_t depth = 0, values = 0, i;
	bool in_string = false;

	for (i = 0; i < size; i++) {
		if (in_string) {
			if (text[i] == '\\')
				i++;
			else if (text[i] == '"')
				in_string = false;
			continue;
		}
		if (text[i] == '"')
			in_string = true;
		else if (text[i] == '{' || text[i] == '[')
			depth++;
		else if ((text[i] == '}' || text[i] == ']') && depth-- == 0)
			return false;
		values += text[i] == ',' || text[i] == '{' || text[i] == '[';
		if (depth > MAX_DEPTH || values > MAX_JSON_VALUES)
			return false;
	}
	return true;
}

static const cJSON *field(const cJSON *object, const char *key)
{
	return cJSON_GetObjectItemCaseSensitive(object, key);
}

static bool has(const char *text, const char *words)
{
	return strstr(text, words) != NULL;
}

/* What etcd says when it refuses, as an error. */
static int from_etcd(int code, const char *message)
{
	if (code == PERMISSION_DENIED || code == UNAUTHENTICATED || has(message, "user name") ||
	    has(message, "permission denied"))
		return -EACCES;
	if (has(message, "database space exceeded"))
		return -ENOSPC;
	if (has(message, "too large") || (code == EXHAUSTED && has(message, "larger than max")))
		return -EMSGSIZE;
	if (has(message, "timed out"))
		return -ETIMEDOUT;
	if (code == NOT_FOUND)
		return -ENOENT;
	return code == INVALID_ARGUMENT ? -EINVAL : -EIO;
}

static const char *remedy(int error)
{
	switch (error) {
	case -ENOSPC:
		return "; compact it, raise its --quota-backend-bytes, disarm the alarm";
	case -EMSGSIZE:
		return "; raise its --max-request-bytes";
	default:
		return "";
	}
}

/* An answer that is not 200. The error stands in {"error","code","message"}; of streams inside {"error":{...}}. */
static int refused(const struct endpoint *endpoint, long status, const cJSON *json, const struct lw_store_call *call)
{
	const cJSON *inner = field(json, "error"), *message, *code;
	char quoted[160];
	int error;

	if (!cJSON_IsObject(inner))
		inner = json;
	message = field(inner, "message");
	code = field(inner, "code");
	if (code == NULL)
		code = field(inner, "grpc_code");
	if (!cJSON_IsString(message) || !cJSON_IsNumber(code))
		return lw_store_fail(call, -EPROTO, "%s: status %ld, which is not an answer of etcd's v3 gateway",
				     endpoint->url, status);
	error = from_etcd(code->valuedouble > 0 && code->valuedouble < 17 ? code->valueint : 0, message->valuestring);
	lw_store_quote(message->valuestring, strlen(message->valuestring), quoted, sizeof(quoted));
	return lw_store_fail(call, error, "%s refuses: %s%s", endpoint->url, quoted, remedy(error));
}

/* One endpoint. *out is the caller's to delete. */
static int ask_one(struct lw_etcd *etcd, const struct endpoint *endpoint, const char *path, const char *body,
		   size_t size, uint64_t deadline_ns, cJSON **out, const struct lw_store_call *call)
{
	char url[LW_NAME_MAX + 80], reason[256];
	const struct lw_http_request request = {.method = "POST",
						.url = url,
						.host = &endpoint->hp,
						.body = body,
						.body_size = size,
						.deadline_ns = deadline_ns};
	struct lw_http_answer answer;
	cJSON *json = NULL;
	int ret;

	snprintf(url, sizeof(url), "%s/v3/%s", endpoint->url, path);
	ret = lw_http_perform(etcd->http, &request, &answer, reason, sizeof(reason));
	if (ret < 0)
		return lw_store_fail(call, ret, "%s: %s", endpoint->url, reason);
	if (is_modest(answer.body, answer.size))
		json = cJSON_ParseWithLength(answer.body, answer.size);
	free(answer.body);
	if (cJSON_IsObject(json) && answer.status == 200 && field(json, "error") == NULL) {
		*out = json;
		return 0;
	}
	ret = refused(endpoint, answer.status, json, call);
	cJSON_Delete(json);
	return ret;
}

/* Whether another endpoint may do better. */
static bool is_endpoints_fault(int error)
{
	switch (error) {
	case -ECONNREFUSED:
	case -EHOSTUNREACH:
	case -ECONNRESET:
	case -ETIMEDOUT:
	case -EPROTO:
	case -EIO:
		return true;
	default:
		return false;
	}
}

int lw_etcd_ask(struct lw_etcd *etcd, const char *path, const char *body, size_t size, cJSON **out,
		const struct lw_store_call *call)
{
	int ret = -ETIMEDOUT;
	uint32_t i, at;
	uint64_t now;

	lw_store_fail(call, ret, "%s: no time is left", etcd->endpoints[etcd->current].url);
	for (i = 0; i < etcd->count; i++) {
		now = lw_now_ns();
		if (now >= call->deadline_ns)
			break;
		at = (etcd->current + i) % etcd->count;
		ret = ask_one(etcd, &etcd->endpoints[at], path, body, size,
			      now + (call->deadline_ns - now) / (etcd->count - i), out, call);
		if (!is_endpoints_fault(ret)) {
			etcd->current = at;
			break;
		}
	}
	return ret;
}

const char *lw_etcd_name(const struct lw_etcd *etcd)
{
	return etcd->endpoints[etcd->current].url;
}

/* Endpoints -----------------------------------------------------------------------------------------------------------
 */

static bool is_host(const char *host)
{
	for (; *host != '\0'; host++)
		if ((unsigned char)*host <= ' ' || (unsigned char)*host >= 0x7f || strchr("/?#@%", *host) != NULL)
			return false;
	return true;
}

/* The endpoint's URL. A scope of an IPv6 address is written with "%25" in it. */
static void write_url(struct endpoint *endpoint)
{
	char host[LW_NAME_MAX];
	const char *percent;
	int bare;

	memcpy(host, endpoint->hp.host, sizeof(host));
	percent = strchr(host, '%');
	bare = percent != NULL ? (int)(percent - host) : (int)strlen(host);
	snprintf(endpoint->url, sizeof(endpoint->url), "http://%s%.*s%s%s%s:%u", endpoint->hp.v6 ? "[" : "", bare, host,
		 percent != NULL ? "%25" : "", percent != NULL ? percent + 1 : "", endpoint->hp.v6 ? "]" : "",
		 endpoint->hp.port);
}

static int add_endpoint(struct lw_etcd *etcd, const char *text, size_t length, const struct lw_store_call *call)
{
	struct endpoint *endpoint = &etcd->endpoints[etcd->count];
	char address[LW_NAME_MAX], quoted[96];

	while (length > 0 && *text == ' ') {
		text++;
		length--;
	}
	while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '/'))
		length--;
	if (etcd->count == MAX_ENDPOINTS)
		return lw_store_fail(call, -EINVAL, "more than %d etcd endpoints", MAX_ENDPOINTS);
	if (length < sizeof(address)) {
		memcpy(address, text, length);
		address[length] = '\0';
		if (lw_hostport_parse(address, DEFAULT_PORT, &endpoint->hp) == 0 &&
		    (endpoint->hp.v6 || is_host(endpoint->hp.host))) {
			write_url(endpoint);
			etcd->count++;
			return 0;
		}
	}
	return lw_store_fail(call, -EINVAL, "\"%s\" is no HOST[:PORT] of an etcd endpoint",
			     lw_store_quote(text, length, quoted, sizeof(quoted)));
}

int lw_etcd_open(const char *list, size_t max_body, struct lw_etcd **out, const struct lw_store_call *call)
{
	struct lw_etcd *etcd = calloc(1, sizeof(*etcd));
	size_t length;
	int ret;

	if (etcd == NULL)
		return lw_store_fail(call, -ENOMEM, "no memory for the etcd client");
	do {
		length = strcspn(list, ",;");
		ret = add_endpoint(etcd, list, length, call);
		list += length;
	} while (ret == 0 && *list++ != '\0');
	if (ret == 0)
		ret = lw_http_open(max_body, &etcd->http, call->why, call->why_size);
	if (ret < 0) {
		lw_etcd_close(etcd);
		return ret;
	}
	*out = etcd;
	return 0;
}

void lw_etcd_close(struct lw_etcd *etcd)
{
	if (etcd == NULL)
		return;
	lw_http_close(etcd->http);
	free(etcd);
}

void lw_etcd_forked(struct lw_etcd *etcd)
{
	lw_http_forked(etcd->http);
}
