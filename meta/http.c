/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/http.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CURL_DISABLE_TYPECHECK /* it works on direct calls alone */
#include <curl/curl.h>

#include "lib/clock.h"

#define MAX_HEADER_BYTES (256u << 10) /* of one answer, all together */
#define MAX_SOCKETS 8                 /* open at once: one that is kept, and those that are tried */
#define FIRST_BYTES 4096

struct lw_http {
	CURL *curl;
	size_t max_body;
	int sockets[MAX_SOCKETS]; /* for a forked child; -1: none */
	/* The request under way. */
	char *body;
	size_t size, capacity, header_bytes;
	const char *notice;
	bool noticed;
	int error;
	char text[CURL_ERROR_SIZE];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_open;
static __typeof__(curl_easy_init) *easy_init;
static __typeof__(curl_easy_setopt) *easy_setopt;
static __typeof__(curl_easy_perform) *easy_perform;
static __typeof__(curl_easy_getinfo) *easy_getinfo;
static __typeof__(curl_easy_reset) *easy_reset;
static __typeof__(curl_easy_cleanup) *easy_cleanup;
static __typeof__(curl_slist_append) *list_append;
static __typeof__(curl_slist_free_all) *list_free;

/* It stays loaded and initialised: the host may use the same library, and what it counts is not thread-safe in old
 * versions. */
static void open_library(void)
{
	void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
	__typeof__(curl_global_init) *start;

	if (library == NULL) /* the same, with another TLS library */
		library = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return;
	start = (__typeof__(start))dlsym(library, "curl_global_init");
	easy_init = (__typeof__(easy_init))dlsym(library, "curl_easy_init");
	easy_setopt = (__typeof__(easy_setopt))dlsym(library, "curl_easy_setopt");
	easy_perform = (__typeof__(easy_perform))dlsym(library, "curl_easy_perform");
	easy_getinfo = (__typeof__(easy_getinfo))dlsym(library, "curl_easy_getinfo");
	easy_reset = (__typeof__(easy_reset))dlsym(library, "curl_easy_reset");
	easy_cleanup = (__typeof__(easy_cleanup))dlsym(library, "curl_easy_cleanup");
	list_append = (__typeof__(list_append))dlsym(library, "curl_slist_append");
	list_free = (__typeof__(list_free))dlsym(library, "curl_slist_free_all");
	is_open = start != NULL && easy_init != NULL && easy_setopt != NULL && easy_perform != NULL &&
		  easy_getinfo != NULL && easy_reset != NULL && easy_cleanup != NULL && list_append != NULL &&
		  list_free != NULL && start(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

/* What curl calls ----------------------------------------------------------------------------------------------------
 */

static size_t take_body(char *bytes, size_t one, size_t count, void *arg)
{
	struct lw_http *http = arg;
	size_t size = one * count, capacity = http->capacity;
	char *body;

	if (size > http->max_body - http->size) {
		http->error = -EMSGSIZE;
		return 0;
	}
	while (capacity - http->size <= size) /* a NUL follows */
		capacity = capacity == 0 ? FIRST_BYTES : capacity * 2;
	if (capacity > http->max_body + 1)
		capacity = http->max_body + 1;
	if (capacity != http->capacity) {
		body = realloc(http->body, capacity);
		if (body == NULL) {
			http->error = -ENOMEM;
			return 0;
		}
		http->body = body;
		http->capacity = capacity;
	}
	memcpy(http->body + http->size, bytes, size);
	http->size += size;
	http->body[http->size] = '\0';
	return size;
}

static size_t take_header(char *bytes, size_t one, size_t count, void *arg)
{
	struct lw_http *http = arg;
	size_t size = one * count, length;

	http->header_bytes += size;
	if (http->header_bytes > MAX_HEADER_BYTES) {
		http->error = -EMSGSIZE;
		return 0;
	}
	if (http->notice != NULL) {
		length = strlen(http->notice);
		if (size > length && bytes[length] == ':' && strncasecmp(bytes, http->notice, length) == 0)
			http->noticed = true;
	}
	return size;
}

static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *addr)
{
	struct lw_http *http = arg;
	int fd = socket(addr->family, addr->socktype | SOCK_CLOEXEC, addr->protocol), i;

	(void)purpose;
	if (fd < 0) {
		http->error = errno == EMFILE || errno == ENFILE ? -EMFILE : 0;
		return CURL_SOCKET_BAD;
	}
	for (i = 0; i < MAX_SOCKETS; i++) {
		if (http->sockets[i] < 0) {
			http->sockets[i] = fd;
			break;
		}
	}
	return fd;
}

static int close_socket(void *arg, curl_socket_t fd)
{
	struct lw_http *http = arg;
	int i;

	for (i = 0; i < MAX_SOCKETS; i++)
		if (http->sockets[i] == fd)
			http->sockets[i] = -1;
	return close(fd);
}

/* SIGPIPE, which a TLS library can raise, must not reach the host: blocked around what writes, and taken away if it
 * came meanwhile. */
struct guard {
	sigset_t old;
	bool was_pending;
};

static void guard_begin(struct guard *guard)
{
	sigset_t pipe_only, pending;

	sigemptyset(&pending);
	sigpending(&pending);
	guard->was_pending = sigismember(&pending, SIGPIPE) == 1;
	sigemptyset(&pipe_only);
	sigaddset(&pipe_only, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe_only, &guard->old);
}

static void guard_end(const struct guard *guard)
{
	static const struct timespec no_wait;
	sigset_t pipe_only, pending;

	sigemptyset(&pipe_only);
	sigaddset(&pipe_only, SIGPIPE);
	sigemptyset(&pending);
	sigpending(&pending);
	if (!guard->was_pending && sigismember(&pending, SIGPIPE) == 1)
		while (sigtimedwait(&pipe_only, NULL, &no_wait) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &guard->old, NULL);
}

/* A request -----------------------------------------------------------------------------------------------------------
 */

/* The errors of curl as those that are announced. */
static int from_curl(CURLcode code, long os_error)
{
	switch (code) {
	case CURLE_OK:
		return 0;
	case CURLE_COULDNT_CONNECT:
		if (os_error == ETIMEDOUT)
			return -ETIMEDOUT;
		return os_error == EHOSTUNREACH || os_error == ENETUNREACH || os_error == EACCES ? -EHOSTUNREACH
												 : -ECONNREFUSED;
	case CURLE_COULDNT_RESOLVE_HOST:
		return -EHOSTUNREACH;
	case CURLE_OPERATION_TIMEDOUT:
		return -ETIMEDOUT;
	case CURLE_RECV_ERROR: /* without an error of the system: bad chunks, or TLS */
		return os_error == 0 ? -EPROTO : -ECONNRESET;
	case CURLE_SEND_ERROR:
	case CURLE_GOT_NOTHING:
		return -ECONNRESET;
	case CURLE_FILESIZE_EXCEEDED:
		return -EMSGSIZE;
	case CURLE_OUT_OF_MEMORY:
		return -ENOMEM;
	default: /* no HTTP, a cut body, TLS */
		return -EPROTO;
	}
}

static int add(struct curl_slist **list, const char *line)
{
	struct curl_slist *longer = list_append(*list, line);

	if (longer == NULL)
		return -ENOMEM;
	*list = longer;
	return 0;
}

/* "host:port:address,...", by which curl is told what it would look up itself. None for a host in digits. */
static int resolve(const struct lw_http_request *request, uint64_t now, struct curl_slist **list)
{
	struct in_addr in;
	struct lw_addrs addrs;
	char text[LW_NAME_MAX + 8 * (INET6_ADDRSTRLEN + 16)], address[INET6_ADDRSTRLEN + 16];
	size_t length, host_length;
	uint32_t i;
	int ret;

	*list = NULL;
	if (request->host->v6 || inet_pton(AF_INET, request->host->host, &in) == 1)
		return 0;
	ret = lw_hostport_resolve(request->host, (uint32_t)((request->deadline_ns - now) / 1000000), &addrs);
	if (ret < 0)
		return ret;
	host_length = strlen(request->host->host);
	length = (size_t)snprintf(text, sizeof(text), "%s:%u:", request->host->host, request->host->port);
	for (i = 0; i < addrs.count && length < sizeof(text); i++) {
		lw_sockaddr_set_port(&addrs.addr[i], 0);
		lw_sockaddr_format(&addrs.addr[i], address, sizeof(address));
		*strrchr(address, ':') = '\0'; /* the port */
		length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%s", i == 0 ? "" : ",", address);
	}
	ret = add(list, text);
	if (ret == 0 && request->host->host[host_length - 1] == '.') { /* which some versions drop */
		memmove(text + host_length - 1, text + host_length, strlen(text + host_length) + 1);
		ret = add(list, text);
	}
	if (ret < 0) {
		list_free(*list);
		*list = NULL;
	}
	return ret;
}

static int add_token(struct curl_slist **list, const char *token)
{
	char *line;
	int ret;

	if (token == NULL)
		return 0;
	if (asprintf(&line, "Authorization: Bearer %s", token) < 0)
		return -ENOMEM;
	ret = add(list, line);
	free(line);
	return ret;
}

static bool set_up(struct lw_http *http, const struct lw_http_request *request, struct curl_slist *headers,
		   struct curl_slist *addresses, long left_ms)
{
	CURL *curl = http->curl;
	bool bad = false;

	easy_reset(curl); /* keeps the connection */
#define SET(option, value) bad |= easy_setopt(curl, option, value) != CURLE_OK
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_URL, request->url);
	SET(CURLOPT_PROXY, "");
	SET(CURLOPT_NOPROXY, "*");
	SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_TIMEOUT_MS, left_ms);
	SET(CURLOPT_CONNECTTIMEOUT_MS, left_ms);
	SET(CURLOPT_HTTPHEADER, headers);
	SET(CURLOPT_RESOLVE, addresses);
	SET(CURLOPT_ERRORBUFFER, http->text);
	SET(CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)http->max_body);
	SET(CURLOPT_WRITEFUNCTION, take_body);
	SET(CURLOPT_WRITEDATA, http);
	SET(CURLOPT_HEADERFUNCTION, take_header);
	SET(CURLOPT_HEADERDATA, http);
	SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
	SET(CURLOPT_OPENSOCKETDATA, http);
	SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
	SET(CURLOPT_CLOSESOCKETDATA, http);
	if (request->body != NULL) {
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_size);
		SET(CURLOPT_POSTFIELDS, request->body);
	}
	SET(CURLOPT_CUSTOMREQUEST, request->method);
#undef SET
	return !bad;
}

static int say(int error, const char *text, char *why, size_t why_size)
{
	if (why_size > 0)
		snprintf(why, why_size, "%s", text);
	return error;
}

int lw_http_perform(struct lw_http *http, const struct lw_http_request *request, struct lw_http_answer *answer,
		    char *why, size_t why_size)
{
	struct curl_slist *headers = NULL, *addresses = NULL;
	uint64_t now = lw_now_ns();
	struct guard guard;
	long status = 0, os_error = 0;
	CURLcode code;
	int ret;

	if (now >= request->deadline_ns)
		return say(-ETIMEDOUT, "no time is left", why, why_size);
	ret = resolve(request, now, &addresses);
	if (ret < 0)
		return say(ret, ret == -ENOMEM ? "no memory" : "its name can't be looked up", why, why_size);
	now = lw_now_ns();
	http->body = NULL;
	http->size = http->capacity = http->header_bytes = 0;
	http->notice = request->notice;
	http->noticed = false;
	http->error = 0;
	http->text[0] = '\0';
	ret = -ETIMEDOUT;
	if (now >= request->deadline_ns) {
		say(ret, "no time is left", why, why_size);
		goto out;
	}
	ret = -ENOMEM;
	/* Nothing waits for a "100 Continue", which some servers never send. */
	if (add(&headers, "Expect:") < 0 || add(&headers, "Content-Type: application/json") < 0 ||
	    add_token(&headers, request->token) < 0 ||
	    !set_up(http, request, headers, addresses, (long)((request->deadline_ns - now + 999999) / 1000000))) {
		say(ret, "no memory", why, why_size);
		goto out;
	}
	guard_begin(&guard);
	code = easy_perform(http->curl);
	guard_end(&guard);
	easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &status);
	easy_getinfo(http->curl, CURLINFO_OS_ERRNO, &os_error);
	ret = code != CURLE_OK && http->error != 0 ? http->error : from_curl(code, os_error);
	if (ret == -EMSGSIZE)
		say(ret, "the answer is too long", why, why_size);
	else if (ret == -ETIMEDOUT)
		say(ret, "no answer in time", why, why_size);
	else if (ret < 0)
		say(ret, http->text[0] != '\0' ? http->text : "the request failed", why, why_size);
	if (ret == 0 && http->body == NULL)
		take_body(http->text, 1, 0, http); /* an empty one */
	if (ret == 0 && http->body == NULL)
		ret = say(-ENOMEM, "no memory", why, why_size);
	if (ret == 0) {
		answer->status = status;
		answer->body = http->body;
		answer->size = http->size;
		answer->noticed = http->noticed;
		http->body = NULL;
	}
out:
	free(http->body);
	http->body = NULL;
	list_free(headers);
	list_free(addresses);
	return ret;
}

/* The object ----------------------------------------------------------------------------------------------------------
 */

int lw_http_open(size_t max_body, struct lw_http **out, char *why, size_t why_size)
{
	struct lw_http *http;
	int i;

	pthread_once(&once, open_library);
	if (!is_open)
		return say(-ENOTSUP, "etcd and http need libcurl.so.4, which is not there; install libcurl4", why,
			   why_size);
	http = calloc(1, sizeof(*http));
	if (http == NULL)
		return say(-ENOMEM, "no memory for the HTTP client", why, why_size);
	http->curl = easy_init();
	if (http->curl == NULL) {
		free(http);
		return say(-ENOMEM, "no memory for the HTTP client", why, why_size);
	}
	http->max_body = max_body;
	for (i = 0; i < MAX_SOCKETS; i++)
		http->sockets[i] = -1;
	*out = http;
	return 0;
}

void lw_http_close(struct lw_http *http)
{
	struct guard guard;

	if (http == NULL)
		return;
	guard_begin(&guard);
	easy_cleanup(http->curl); /* with its connection; asks close_socket */
	guard_end(&guard);
	free(http);
}

void lw_http_forked(struct lw_http *http)
{
	int i;

	for (i = 0; i < MAX_SOCKETS; i++) {
		if (http->sockets[i] >= 0)
			close(http->sockets[i]);
		http->sockets[i] = -1;
	}
}
