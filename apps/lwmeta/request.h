/* SPDX-License-Identifier: Apache-2.0 */
/* One request, from its head to its answer; called by the threads of libmicrohttpd. */
#ifndef APPS_LWMETA_REQUEST_H
#define APPS_LWMETA_REQUEST_H

#include <stdatomic.h>

#include <microhttpd.h>

#include "apps/lwmeta/conns.h"
#include "apps/lwmeta/metrics.h"
#include "apps/lwmeta/options.h"
#include "apps/lwmeta/store.h"
#include "apps/lwmeta/token.h"

/* What all requests share. */
struct service {
	const struct options *options;
	const struct token *token;
	struct store *store;
	struct conns *conns;
	struct metrics metrics;
	atomic_uint under_way; /* requests */
};

/* An MHD_AccessHandlerCallback; cls is the service. */
enum MHD_Result request_handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
			       const char *version, const char *upload_data, size_t *upload_data_size, void **req_cls);

/* An MHD_RequestCompletedCallback; cls is the service. */
void request_completed(void *cls, struct MHD_Connection *connection, void **req_cls,
		       enum MHD_RequestTerminationCode why);

#endif
