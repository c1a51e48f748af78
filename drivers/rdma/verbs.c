/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/rdma/verbs.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libibverbs.so.1"

const struct rdma_verbs *rdma_verbs_instead;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rdma_verbs table;
static bool opened;

/* A function of the library, into the pointer at to. */
static bool find(void *library, const char *name, void *to)
{
	void *symbol = dlsym(library, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static const char *find_all(void *library)
{
#define X(result, name, arguments)                                                                                     \
	if (!find(library, "ibv_" #name, &table.name))                                                                 \
		return "ibv_" #name;
	RDMA_VERBS(X)
#undef X
#define X(result, name, arguments) find(library, "ibv_" #name, &table.name);
	RDMA_VERBS_NEWER(X)
#undef X
	if (!find(library, "_ibv_query_gid_table", &table.query_gid_table))
		return "_ibv_query_gid_table";
	return NULL;
}

static int open_library(char *why, size_t why_size)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *missing;

	if (library == NULL) {
		snprintf(why, why_size, "%s can't be loaded; install libibverbs1 and ibverbs-providers", LIBRARY);
		return -ENOENT;
	}
	missing = find_all(library);
	if (missing != NULL) {
		snprintf(why, why_size, "%s is too old: it has no %s", LIBRARY, missing);
		dlclose(library);
		return -ENOTSUP;
	}
	/* Kernels since 5.12 copy what a child needs, and this does nothing then. Before, a child that wrote to
	 * registered memory would take its pages from the parent. */
	table.fork_init();
	opened = true;
	return 0;
}

int rdma_verbs_open(const struct rdma_verbs **out, char *why, size_t why_size)
{
	int error = 0;

	if (rdma_verbs_instead != NULL) {
		*out = rdma_verbs_instead;
		return 0;
	}
	pthread_mutex_lock(&lock);
	if (!opened)
		error = open_library(why, why_size);
	pthread_mutex_unlock(&lock);
	if (error == 0)
		*out = &table;
	return error;
}

int rdma_verbs_query_port(const struct rdma_verbs *verbs, struct ibv_context *context, uint8_t port,
			  struct ibv_port_attr *attr)
{
	struct verbs_context *provider = verbs_get_ctx_op(context, query_port);

	memset(attr, 0, sizeof(*attr));
	/* As the header's inline function does it: the exported one knows the older, shorter structure only. */
	if (provider != NULL)
		return -provider->query_port(context, port, attr, sizeof(*attr));
	return -verbs->query_port(context, port, (struct _compat_ibv_port_attr *)(void *)attr);
}
