/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "apps/common/units.h"
#include "apps/lwmeta/request.h"

enum {
	OWNER_BYTES_MAX = 64,
	VALUE_ROOM = 16 << 10, /* to begin with, for each connection */
	UPLOADS_AT_ONCE = 8,   /* of the largest value, beside that */
	LEASE_SECONDS_MAX = 31536000,
	LEASE_MS_MIN = 100,
};

/* Everything that is answered by a fixed text. The first eight stand in the reference's servers, too. */
#define ANSWERS(X)                                                                                                     \
	X(UPDATED, 200, "metadata updated")                                                                            \
	X(UNCHANGED, 200, "metadata unchanged")                                                                        \
	X(DELETED, 200, "metadata deleted")                                                                            \
	X(NO_KEY, 400, "metadata key is required")                                                                     \
	X(DUPLICATE, 400, "Duplicate rpc_meta key not allowed")                                                        \
	X(ABSENT, 404, "metadata not found")                                                                           \
	X(NO_METHOD, 405, "Method not allowed")                                                                        \
	X(HEALTHY, 200, "ok")                                                                                          \
	X(RENEWED, 200, "metadata renewed")                                                                            \
	X(BAD_KEY, 400, "key may not hold control characters")                                                         \
	X(BAD_OWNER, 400, "owner and match are 1 to 64 of A-Z a-z 0-9 . _ : -, match also * or nothing")               \
	X(BAD_TTL, 400, "ttl is seconds from 0.1 to 31536000")                                                         \
	X(TWICE, 400, "key, ttl, owner and match may be given once")                                                   \
	X(RENEWAL_BODY, 400, "a renewal has no body")                                                                  \
	X(NO_TOKEN, 401, "a token is required")                                                                        \
	X(NO_PATH, 404, "not found")                                                                                   \
	X(HELD, 412, "metadata is held by another owner")                                                              \
	X(LARGE_VALUE, 413, "value is too large")                                                                      \
	X(LONG_KEY, 414, "key is too long")                                                                            \
	X(FILE_FAILED, 500, "metadata can't be written")                                                               \
	X(BUSY, 503, "too many values are on their way")                                                               \
	X(FULL, 507, "there is no room for it")

#define X(name, status, text) ANSWER_##name,
enum answer { ANSWER_LATER, ANSWERS(X) };
#undef X

#define X(name, status, text) {status, text},
static const struct {
	unsigned status;
	const char *text;
} answers[] = {{0, ""}, ANSWERS(X)};
#undef X

enum route { ROUTE_METADATA, ROUTE_HEALTH, ROUTE_METRICS, ROUTE_NONE };

struct request {
	enum metrics_method method;
	enum route route;
	enum answer answer; /* ANSWER_LATER: the body decides */
	struct text key, ttl;
	struct claim claim;
	uint64_t lease_ms;
	struct record *record;        /* of a PUT; NULL once it is not wanted */
	uint64_t charged, body_bytes; /* room counted as uploading; length announced */
};

static const char json[] = "application/json; charset=utf-8", plain[] = "text/plain; charset=utf-8",
		  prometheus[] = "text/plain; version=0.0.4; charset=utf-8", lease_header[] = "Lanewise-Lease",
		  owner_header[] = "Lanewise-Owner";

/* The answer takes over the response. */
static enum MHD_Result send_response(struct service *service, struct MHD_Connection *connection,
				     const struct request *request, unsigned status, const char *type,
				     struct MHD_Response *response)
{
	enum MHD_Result done;

	if (response == NULL)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (status == MHD_HTTP_UNAUTHORIZED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW,
					request->route == ROUTE_METADATA ? "GET, PUT, POST, DELETE" : "GET, HEAD");
	if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
		MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
	done = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	if (done == MHD_YES)
		metrics_answer(&service->metrics, request->method, status);
	return done;
}

static void add_lease(struct MHD_Response *response, uint64_t lease_ms)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64 ".%03u", lease_ms / 1000, (unsigned)(lease_ms % 1000));
	MHD_add_response_header(response, lease_header, text);
}

static enum MHD_Result send_answer(struct service *service, struct MHD_Connection *connection,
				   const struct request *request, enum answer answer, uint64_t lease_ms)
{
	const char *text = answers[answer].text;
	struct MHD_Response *response =
		MHD_create_response_from_buffer(strlen(text), (char *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);

	if (response != NULL && lease_ms > 0)
		add_lease(response, lease_ms);
	return send_response(service, connection, request, answers[answer].status,
			     request->route == ROUTE_METADATA ? json : plain, response);
}

static void give_back(void *record)
{
	record_release(record);
}

static enum MHD_Result send_entry(struct service *service, struct MHD_Connection *connection,
				  const struct request *request)
{
	struct MHD_Response *response;
	struct store_entry entry;
	struct text value, owner;
	char text[OWNER_BYTES_MAX + 1];

	if (store_get(service->store, request->key, &entry) != 0)
		return send_answer(service, connection, request, ANSWER_ABSENT, 0);
	value = record_value(entry.record);
	response = MHD_create_response_from_buffer_with_free_callback_cls(value.size, (char *)(uintptr_t)value.data,
									  give_back, entry.record);
	if (response == NULL) {
		record_release(entry.record);
		return MHD_NO;
	}
	owner = record_owner(entry.record);
	if (owner.size > 0 && owner.size < sizeof(text)) {
		snprintf(text, sizeof(text), "%.*s", (int)owner.size, owner.data);
		MHD_add_response_header(response, owner_header, text);
	}
	if (entry.lease_ms > 0)
		add_lease(response, entry.left_ms);
	return send_response(service, connection, request, MHD_HTTP_OK, json, response);
}

static enum MHD_Result send_metrics(struct service *service, struct MHD_Connection *connection,
				    const struct request *request)
{
	struct MHD_Response *response;
	size_t size = 0;
	char *text = metrics_text(&service->metrics, service->store, service->conns, &size);

	if (text == NULL)
		return MHD_NO;
	response = MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
	if (response == NULL)
		free(text);
	return send_response(service, connection, request, MHD_HTTP_OK, prometheus, response);
}

/* An argument of the URL, unescaped. Those that are not known are ignored, as the reference's servers do. */
static enum MHD_Result take_argument(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_size,
				     const char *value, size_t value_size)
{
	struct request *request = cls;
	const struct {
		struct text name, *to;
	} known[] = {
		{{"key", 3}, &request->key},
		{{"ttl", 3}, &request->ttl},
		{{"owner", 5}, &request->claim.owner},
		{{"match", 5}, &request->claim.match},
	};

	(void)kind;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (!text_same(known[i].name, (struct text){name, name_size}))
			continue;
		if (known[i].to->data != NULL)
			request->answer = ANSWER_TWICE;
		*known[i].to = value != NULL ? (struct text){value, value_size} : (struct text){"", 0};
	}
	return MHD_YES;
}

static bool owner_like(struct text owner)
{
	static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";

	for (size_t i = 0; i < owner.size; i++)
		if (memchr(good, owner.data[i], sizeof(good) - 1) == NULL)
			return false;
	return owner.size <= OWNER_BYTES_MAX;
}

/* Seconds with a fraction to milliseconds. 0; -EINVAL. */
static int lease_parse(struct text ttl, uint64_t *lease_ms)
{
	double seconds;
	char text[32];

	if (ttl.size >= sizeof(text))
		return -EINVAL;
	snprintf(text, sizeof(text), "%.*s", (int)ttl.size, ttl.data);
	if (strlen(text) != ttl.size || strspn(text, "0123456789.") != ttl.size ||
	    app_fraction_parse(text, LEASE_SECONDS_MAX, &seconds) != 0)
		return -EINVAL;
	*lease_ms = (uint64_t)(seconds * 1000 + 0.5);
	return *lease_ms < LEASE_MS_MIN ? -EINVAL : 0;
}

static enum answer check_arguments(const struct service *service, struct request *request)
{
	static const struct text any = {"*", 1};

	if (request->answer != ANSWER_LATER)
		return request->answer;
	if (request->key.size == 0)
		return ANSWER_NO_KEY;
	if (request->key.size > service->options->key_bytes_max)
		return ANSWER_LONG_KEY;
	for (size_t i = 0; i < request->key.size; i++)
		if ((unsigned char)request->key.data[i] < ' ' || request->key.data[i] == 0x7f)
			return ANSWER_BAD_KEY;
	if (!owner_like(request->claim.owner) ||
	    (!owner_like(request->claim.match) && !text_same(request->claim.match, any)))
		return ANSWER_BAD_OWNER;
	if (request->ttl.data != NULL && lease_parse(request->ttl, &request->lease_ms) != 0)
		return ANSWER_BAD_TTL;
	return ANSWER_LATER;
}

/* More room for the value, charged to all that are on their way. */
static enum answer make_room(struct service *service, struct request *request, size_t room)
{
	uint64_t limit =
		UPLOADS_AT_ONCE * service->options->value_bytes_max + VALUE_ROOM * service->options->connections_max;
	uint64_t more = room - request->charged;

	request->charged += more;
	if (atomic_fetch_add(&service->metrics.uploading_bytes, more) + more > limit)
		return ANSWER_BUSY;
	if (request->record == NULL)
		request->record = record_new(request->key, request->claim.owner, room);
	else if (record_room(&request->record, room) != 0)
		return ANSWER_FULL;
	return request->record == NULL ? ANSWER_FULL : ANSWER_LATER;
}

static void drop_body(struct service *service, struct request *request)
{
	record_release(request->record);
	request->record = NULL;
	atomic_fetch_sub(&service->metrics.uploading_bytes, request->charged);
	request->charged = 0;
}

static enum answer check_head(struct service *service, struct request *request, struct MHD_Connection *connection)
{
	enum answer answer;
	const char *length;

	if (request->route == ROUTE_NONE)
		return ANSWER_NO_PATH;
	if (request->route != ROUTE_HEALTH &&
	    !token_good(service->token,
			MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION)))
		return ANSWER_NO_TOKEN;
	if (request->route != ROUTE_METADATA)
		return request->method == METHOD_GET || request->method == METHOD_HEAD ? ANSWER_LATER
										       : ANSWER_NO_METHOD;
	MHD_get_connection_values_n(connection, MHD_GET_ARGUMENT_KIND, take_argument, request);
	answer = check_arguments(service, request);
	if (answer != ANSWER_LATER)
		return answer;
	if (request->method == METHOD_HEAD || request->method == METHOD_OTHER)
		return ANSWER_NO_METHOD;
	if (request->method != METHOD_PUT)
		return ANSWER_LATER;
	length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
	if (length != NULL) /* the library has refused what is no number */
		request->body_bytes = strtoull(length, NULL, 10);
	if (request->body_bytes > service->options->value_bytes_max)
		return ANSWER_LARGE_VALUE;
	return make_room(service, request,
			 length != NULL && request->body_bytes < VALUE_ROOM ? request->body_bytes : VALUE_ROOM);
}

static enum MHD_Result begin(struct service *service, struct MHD_Connection *connection, const char *url,
			     const char *method, void **req_cls)
{
	struct request *request = calloc(1, sizeof(*request));

	if (request == NULL)
		return MHD_NO;
	*req_cls = request;
	atomic_fetch_add(&service->under_way, 1);
	request->method = metrics_method(method);
	request->route = strcmp(url, "/metadata") == 0 || strcmp(url, "/metadata/") == 0 ? ROUTE_METADATA
			 : strcmp(url, "/health") == 0                                   ? ROUTE_HEALTH
			 : strcmp(url, "/metrics") == 0                                  ? ROUTE_METRICS
											 : ROUTE_NONE;
	request->answer = check_head(service, request, connection);
	/* Who asked first whether to send the body need not send it. Of all others it is read and dropped: an answer
	 * in its middle would be lost with the connection. */
	if (request->answer != ANSWER_LATER &&
	    MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT) != NULL)
		return send_answer(service, connection, request, request->answer, 0);
	return MHD_YES;
}

static enum answer take_body(struct service *service, struct request *request, const char *data, size_t size)
{
	enum answer answer = ANSWER_LATER;
	uint64_t need, room;

	if (request->method == METHOD_POST)
		return ANSWER_RENEWAL_BODY;
	if (request->record == NULL)
		return ANSWER_LATER;
	need = request->record->value_size + (uint64_t)size;
	if (need > service->options->value_bytes_max)
		return ANSWER_LARGE_VALUE;
	if (need > request->record->value_room) {
		room = 2 * (uint64_t)request->record->value_room;
		if (room > request->body_bytes && request->body_bytes > 0)
			room = request->body_bytes;
		answer = make_room(service, request, room > need ? room : need);
	}
	if (answer == ANSWER_LATER)
		record_append(request->record, data, size);
	return answer;
}

static enum answer failure(int rc)
{
	switch (rc) {
	case -ENOENT:
		return ANSWER_ABSENT;
	case -EPERM:
		return ANSWER_HELD;
	case -EEXIST:
		return ANSWER_DUPLICATE;
	case -ENOSPC:
	case -ENOMEM:
		return ANSWER_FULL;
	default:
		return ANSWER_FILE_FAILED;
	}
}

static enum MHD_Result finish_metadata(struct service *service, struct MHD_Connection *connection,
				       struct request *request)
{
	enum answer done = ANSWER_UPDATED;
	struct record *record;
	uint64_t lease_ms = request->lease_ms;
	int rc;

	switch (request->method) {
	case METHOD_PUT:
		if (request->record->value_room > request->record->value_size)
			record_room(&request->record, 0);
		record = request->record;
		request->record = NULL; /* the store's from here on */
		drop_body(service, request);
		rc = store_put(service->store, record, request->claim.match, lease_ms);
		if (rc == 1)
			done = ANSWER_UNCHANGED;
		break;
	case METHOD_POST:
		rc = store_renew(service->store, request->key, &request->claim, &lease_ms);
		done = ANSWER_RENEWED;
		break;
	case METHOD_DELETE:
		rc = store_delete(service->store, request->key, &request->claim);
		done = ANSWER_DELETED;
		lease_ms = 0;
		break;
	default:
		return send_entry(service, connection, request);
	}
	if (rc < 0)
		return send_answer(service, connection, request, failure(rc), 0);
	return send_answer(service, connection, request, done, lease_ms);
}

enum MHD_Result request_handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
			       const char *version, const char *upload_data, size_t *upload_data_size, void **req_cls)
{
	struct service *service = cls;
	struct request *request = *req_cls;

	(void)version;
	if (request == NULL)
		return begin(service, connection, url, method, req_cls);
	if (*upload_data_size > 0) {
		if (request->answer == ANSWER_LATER)
			request->answer = take_body(service, request, upload_data, *upload_data_size);
		if (request->answer != ANSWER_LATER)
			drop_body(service, request);
		*upload_data_size = 0;
		return MHD_YES;
	}
	if (request->answer != ANSWER_LATER)
		return send_answer(service, connection, request, request->answer, 0);
	if (request->route == ROUTE_HEALTH)
		return send_answer(service, connection, request, ANSWER_HEALTHY, 0);
	if (request->route == ROUTE_METRICS)
		return send_metrics(service, connection, request);
	return finish_metadata(service, connection, request);
}

void request_completed(void *cls, struct MHD_Connection *connection, void **req_cls,
		       enum MHD_RequestTerminationCode why)
{
	const union MHD_ConnectionInfo *info;
	struct service *service = cls;
	struct request *request = *req_cls;

	if (request == NULL)
		return;
	drop_body(service, request);
	free(request);
	*req_cls = NULL;
	if (why == MHD_REQUEST_TERMINATED_COMPLETED_OK) {
		info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
		if (info != NULL)
			conns_answered(service->conns, info->socket_context);
	} else {
		atomic_fetch_add(&service->metrics.aborted, 1);
	}
	atomic_fetch_sub(&service->under_way, 1);
}
