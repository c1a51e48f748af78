/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/lanewise.h>

#include "apps/common/units.h"
#include "apps/lwmeta/options.h"

static const char usage[] =
	"Usage: lwmeta [options]\n"
	"Keeps what engines tell about themselves, for peers that find each other by http://HOST:PORT/metadata.\n"
	"When it serves it prints one line: lwmeta: ready url=http://127.0.0.1:8080/metadata\n"
	"\n"
	"  --listen ADDRESS       numeric address; IPv6 in brackets; 0.0.0.0 or [::] for all (127.0.0.1)\n"
	"  --port N               0: any free one (8080)\n"
	"  --threads N            1 to 64 (2)\n"
	"  --file PATH            keep the entries in this file as well\n"
	"  --recover              of a damaged file keep what stands before the damage, and the file as PATH.damaged\n"
	"  --sync                 answer a change when it is on the disk, not up to a second earlier\n"
	"  --token-file PATH      serve only requests with the token in its first line (or set LWMETA_TOKEN)\n"
	"  --rpc-meta MODE        refuse or replace another address under a key with \"rpc_meta\" (refuse)\n"
	"  --max-key SIZE         bytes of a key (1k, up to 8k)\n"
	"  --max-value SIZE       bytes of a value (8m, up to 1g)\n"
	"  --max-keys N           (100000)\n"
	"  --max-bytes SIZE       keys, values and 256 bytes an entry (512m)\n"
	"  --max-connections N    beyond them the one that has waited longest is cut (1000)\n"
	"  --timeout SECONDS      from connection or answer to the next answer (15)\n"
	"  -h, --help             this text\n"
	"  --version\n"
	"\n"
	"Sizes take k, m, g (powers of 1,024). SIGTERM and SIGINT end it.\n"
	"Exit status: 0 ended by a signal, and all is kept; 1 it can't listen, or read or write its file (a sentence "
	"on\n"
	"stderr says why); 2 wrong usage.\n";

enum {
	OPT_LISTEN = 256,
	OPT_PORT,
	OPT_THREADS,
	OPT_FILE,
	OPT_RECOVER,
	OPT_SYNC,
	OPT_TOKEN_FILE,
	OPT_RPC_META,
	OPT_MAX_KEY,
	OPT_MAX_VALUE,
	OPT_MAX_KEYS,
	OPT_MAX_BYTES,
	OPT_MAX_CONNECTIONS,
	OPT_TIMEOUT,
	OPT_VERSION,
};

static const struct option table[] = {
	{"listen", required_argument, NULL, OPT_LISTEN},
	{"port", required_argument, NULL, OPT_PORT},
	{"threads", required_argument, NULL, OPT_THREADS},
	{"file", required_argument, NULL, OPT_FILE},
	{"recover", no_argument, NULL, OPT_RECOVER},
	{"sync", no_argument, NULL, OPT_SYNC},
	{"token-file", required_argument, NULL, OPT_TOKEN_FILE},
	{"rpc-meta", required_argument, NULL, OPT_RPC_META},
	{"max-key", required_argument, NULL, OPT_MAX_KEY},
	{"max-value", required_argument, NULL, OPT_MAX_VALUE},
	{"max-keys", required_argument, NULL, OPT_MAX_KEYS},
	{"max-bytes", required_argument, NULL, OPT_MAX_BYTES},
	{"max-connections", required_argument, NULL, OPT_MAX_CONNECTIONS},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

static int number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	return app_number_parse(text, min, max, out);
}

static int size(const char *text, uint64_t max, uint64_t *out)
{
	uint64_t value;

	if (app_size_parse(text, &value) != 0 || value > max)
		return -1;
	*out = value;
	return 0;
}

/* 0; anything else: no good value. */
static int take(struct options *options, int option, char *value, const char **listen_on, uint64_t *port)
{
	uint64_t seconds;

	switch (option) {
	case OPT_LISTEN:
		*listen_on = value;
		return 0;
	case OPT_PORT:
		return number(value, 0, 65535, port);
	case OPT_THREADS:
		return number(value, 1, 64, &options->threads);
	case OPT_FILE:
		options->store.file = value;
		return value[0] == '\0';
	case OPT_RECOVER:
		options->store.recover = true;
		return 0;
	case OPT_SYNC:
		options->store.sync = true;
		return 0;
	case OPT_TOKEN_FILE:
		options->token_file = value;
		return value[0] == '\0';
	case OPT_RPC_META:
		options->store.replace_rpc_meta = strcmp(value, "replace") == 0;
		return !options->store.replace_rpc_meta && strcmp(value, "refuse") != 0;
	case OPT_MAX_KEY:
		return size(value, 8 << 10, &options->key_bytes_max);
	case OPT_MAX_VALUE:
		return size(value, 1 << 30, &options->value_bytes_max);
	case OPT_MAX_KEYS:
		return number(value, 1, UINT32_MAX, &options->store.keys_max);
	case OPT_MAX_BYTES:
		return size(value, UINT64_C(1) << 40, &options->store.bytes_max);
	case OPT_MAX_CONNECTIONS:
		return number(value, 1, 100000, &options->connections_max);
	case OPT_TIMEOUT:
		if (number(value, 1, 3600, &seconds) != 0)
			return -1;
		options->timeout_ms = seconds * 1000;
		return 0;
	default:
		return -1;
	}
}

static const char *option_name(int option)
{
	for (size_t i = 0; table[i].name != NULL; i++)
		if (table[i].val == option)
			return table[i].name;
	return "";
}

/* A numeric address, IPv6 with or without brackets. */
static int resolve(struct options *options, const char *listen_on, uint64_t port)
{
	const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV,
				       .ai_socktype = SOCK_STREAM};
	size_t length = strlen(listen_on);
	struct addrinfo *found = NULL;
	char host[256], service[8];
	int rc;

	if (length > 1 && listen_on[0] == '[' && listen_on[length - 1] == ']')
		snprintf(host, sizeof(host), "%.*s", (int)(length - 2), listen_on + 1);
	else
		snprintf(host, sizeof(host), "%s", listen_on);
	snprintf(service, sizeof(service), "%" PRIu64, port);
	rc = host[0] == '\0' ? EAI_NONAME : getaddrinfo(host, service, &hints, &found);
	if (rc == 0 && found->ai_addrlen <= sizeof(options->address)) {
		memcpy(&options->address, found->ai_addr, found->ai_addrlen);
		options->address_size = found->ai_addrlen;
	}
	if (found != NULL)
		freeaddrinfo(found);
	return rc;
}

int options_parse(struct options *options, int argc, char **argv)
{
	const char *listen_on = "127.0.0.1";
	uint64_t port = 8080;
	int option;

	*options = (struct options){
		.store = {.keys_max = 100000, .bytes_max = UINT64_C(512) << 20},
		.key_bytes_max = 1 << 10,
		.value_bytes_max = 8 << 20,
		.connections_max = 1000,
		.timeout_ms = 15000,
		.threads = 2,
	};
	while ((option = getopt_long(argc, argv, "h", table, NULL)) != -1) {
		if (option == 'h') {
			fputs(usage, stdout);
			return EXIT_SUCCESS;
		}
		if (option == OPT_VERSION) {
			printf("lwmeta %s\n", LW_VERSION_STRING);
			return EXIT_SUCCESS;
		}
		if (option == '?') {
			fputs("lwmeta: --help tells the options\n", stderr);
			return EXIT_USAGE;
		}
		if (take(options, option, optarg, &listen_on, &port) != 0) {
			fprintf(stderr, "lwmeta: --%s can't be \"%s\"; --help tells what it can\n", option_name(option),
				optarg);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "lwmeta: unexpected argument \"%s\"; --help tells the options\n", argv[optind]);
		return EXIT_USAGE;
	}
	if (options->store.recover && options->store.file == NULL) {
		fputs("lwmeta: --recover needs --file\n", stderr);
		return EXIT_USAGE;
	}
	if (resolve(options, listen_on, port) != 0) {
		fprintf(stderr, "lwmeta: --listen can't be \"%s\": give a numeric address, such as 0.0.0.0 or [::1]\n",
			listen_on);
		return EXIT_USAGE;
	}
	return -1;
}
