/* SPDX-License-Identifier: Apache-2.0 */
/* lwmeta: a metadata server over HTTP. See README.md. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <sodium.h>

#include "apps/common/host.h"
#include "apps/lwmeta/options.h"
#include "apps/lwmeta/server.h"

static int serve(const struct options *options, const struct token *token, struct store *store)
{
	struct service service = {
		.options = options,
		.token = token,
		.store = store,
		.conns = conns_new(options->connections_max, options->timeout_ms),
		.metrics = {.started_ns = app_clock_ns()},
	};
	struct server *server = NULL;
	char text[512] = "";
	int status = EXIT_SUCCESS;

	if (service.conns == NULL) {
		fputs("lwmeta: no memory\n", stderr);
		return EXIT_FAILURE;
	}
	if (server_start(&service, &server, text, sizeof(text)) != 0) {
		fprintf(stderr, "lwmeta: %s\n", text);
		status = EXIT_FAILURE;
	} else {
		server_url(server, text, sizeof(text));
		printf("lwmeta: ready url=%s\n", text);
		fflush(stdout);
		while (!app_ended(STORE_TICK_MS)) {
			store_tick(store);
			conns_tick(service.conns);
		}
		server_stop(server);
	}
	conns_free(service.conns);
	return status;
}

int main(int argc, char **argv)
{
	struct store *store = NULL;
	struct options options;
	struct token token;
	char why[4096] = "";
	int status = options_parse(&options, argc, argv);

	if (status >= 0)
		return status;
	app_signals_block();
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an answer, not the end */
	if (sodium_init() < 0) {
		fputs("lwmeta: libsodium can't start\n", stderr);
		return EXIT_FAILURE;
	}
	if (token_load(&token, options.token_file, why, sizeof(why)) != 0 ||
	    store_open(&options.store, &store, why, sizeof(why)) != 0) {
		fprintf(stderr, "lwmeta: %s\n", why);
		return EXIT_FAILURE;
	}
	status = serve(&options, &token, store);
	if (store_close(store) != 0) {
		fprintf(stderr, "lwmeta: %s may lack the last changes\n", options.store.file);
		status = EXIT_FAILURE;
	}
	return status;
}
