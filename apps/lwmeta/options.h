/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. */
#ifndef APPS_LWMETA_OPTIONS_H
#define APPS_LWMETA_OPTIONS_H

#include <stdint.h>
#include <sys/socket.h>

#include "apps/lwmeta/store.h"

enum { EXIT_USAGE = 2 };

struct options {
	struct sockaddr_storage address; /* with the port */
	socklen_t address_size;
	const char *token_file; /* NULL: none */
	struct store_options store;
	uint64_t key_bytes_max, value_bytes_max, connections_max, timeout_ms, threads;
};

/* Reads the command line. Texts point into argv. -1: go on; else the exit status: --help and --version have printed, or
 * a sentence stands on stderr. */
int options_parse(struct options *options, int argc, char **argv);

#endif
