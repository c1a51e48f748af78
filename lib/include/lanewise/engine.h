/* SPDX-License-Identifier: Apache-2.0 */
/* One engine: threads, tables, one local segment. A process may open several; they share nothing but the EAL. */
#ifndef LANEWISE_ENGINE_H
#define LANEWISE_ENGINE_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One setting by name. The names, types, ranges and defaults are printed by `lwinfo --config`. */
struct lw_setting {
	const char *name;  /* as in the table, for example "workers" */
	const char *value; /* as text, for example "2" */
};

/* Set size to sizeof(struct lw_engine_opts), or call lw_engine_opts_init; members beyond size take their defaults. */
struct lw_engine_opts {
	size_t size;
	const char *name;        /* "host" or "host:port" under which peers reach this engine; NULL: the setting
				    address, else the first routable address of this host, else 127.0.0.1. The port is
				    chosen by the engine, one given here is not used: see lw_engine_name. With a
				    metadata store: its key there, any text without control characters. */
	const char *metadata;    /* how peers are found; NULL: the setting "metadata", else "P2PHANDSHAKE" */
	const char *config_file; /* lines "name = value", '#' begins a comment; NULL: the environment's LW_CONFIG, else
				    none */
	const struct lw_setting *settings; /* win over the environment (LW_<NAME>), which wins over the file */
	size_t settings_count;
};

/* Fills *opts with defaults for a structure of size bytes. Any thread. Never blocks. 0, -EINVAL (NULL, size too small).
 */
LW_API int lw_engine_opts_init(struct lw_engine_opts *opts, size_t size);

/* Opens an engine and starts its threads. opts may be NULL. Nothing in *opts is kept after the call.
 * Any thread. Blocks while it binds ports and starts threads (about 0.15 s the first time in a process, since the EAL
 * calibrates its clock); waits for no peer. The caller owns *out and gives it back with lw_engine_close.
 * 0; -EINVAL an option or setting is wrong (named by lw_last_error); -EADDRNOTAVAIL the address is not this host's,
 * or none was given and no interface is up;
 * -EADDRINUSE no port free in the range; -ENOMEM; -EMFILE no descriptor free; -ENFILE too many engines (256);
 * -ENOENT, -EACCES, -EIO the configuration file or topology_file can't be read. A forked child may open engines of its
 * own.
 */
LW_API int lw_engine_open(const struct lw_engine_opts *opts, struct lw_engine **out);

/* Ends every open task with LW_REASON_SHUTDOWN, stops the threads, frees everything. Calls that run meanwhile in other
 * threads get -ESHUTDOWN. Channels, batches and segments of the engine end with it. Any thread, once; not from a
 * worker. Blocks for at most 5 s. 0; -EINVAL NULL or not an open engine; -EBUSY another thread closes it. */
LW_API int lw_engine_close(struct lw_engine *engine);

/* Drives an engine that was opened with poll = caller: one pass over lanes, rings and timers. Peers are served only
 * while somebody drives; lw_channel_poll, lw_channel_wait and lw_batch_wait do it, too. Any thread, one at a time.
 * Never blocks. The number of own tasks that ended (0 also if peers were served); -EBUSY another thread drives it;
 * -EINVAL NULL, or the engine has workers of its own; -ESHUTDOWN. */
LW_API int lw_engine_progress(struct lw_engine *engine);

/* Name under which peers open this engine's segment: lw_engine_address, or with a metadata store the name that the
 * engine was given. Valid until the engine is closed. Any thread. Never blocks. NULL for a NULL or closed engine. */
LW_API const char *lw_engine_name(const struct lw_engine *engine);

/* Where the engine's handshake port is, as peers are told: "host:port" ("[v6]:port"), the port that was chosen. Valid
 * until the engine is closed. Any thread. Never blocks. NULL for a NULL or closed engine. */
LW_API const char *lw_engine_address(const struct lw_engine *engine);

/* The effective configuration as a JSON array of {"name","value","source","unit","default","min","max","help","live"};
 * source is one of default, file, env, code. The caller frees *out with free(). Any thread. 0, -EINVAL, -ENOMEM,
 * -ESHUTDOWN, -EOWNERDEAD. */
LW_API int lw_engine_config_json(const struct lw_engine *engine, char **out);

/* What the engine found on this host: drivers with state and reason, the EAL, CPUs, pages, addresses, as a JSON object.
 * The caller frees *out with free(). Any thread. 0, -EINVAL, -ENOMEM, -ESHUTDOWN, -EOWNERDEAD. */
LW_API int lw_engine_info_json(struct lw_engine *engine, char **out);

/* Receives each log line (level: 0 error, 1 warning, 2 info, 3 debug; no newline). Called from any thread of the
 * engine, never from a worker's data path; must not call the engine. NULL restores standard error. Process-wide.
 * Any thread. Never blocks. */
LW_API void lw_log_set(void (*sink)(int level, const char *line, void *arg), void *arg);

/* Writes a line of the program's own to where the library's lines go, under the same setting log_level; level as for
 * lw_log_set. Cut behind some 1,000 bytes; control characters become '?'. Any thread. Never blocks. */
LW_API void lw_log_line(int level, const char *line);

#ifdef __cplusplus
}
#endif
#endif
