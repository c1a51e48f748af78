/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of files in a metadata store: what an operator does once, so that engines can open them by name.
 *
 * A segment is a list of files or block devices; its offsets count through them, one behind the other. Its document
 * says under which path each server (an engine, by its name) has each file. No engine is needed here: opts tell where
 * the store is, as for lw_engine_open (metadata, config_file, settings; NULL: the environment), and nothing of the
 * engine's name is used. Without a store a program opens files directly: lw_segment_open(engine, "file:/PATH").
 *
 * All calls: any thread. They block for the store, each of at most two operations for the setting store_timeout_ms at
 * most. Changes of one document by several at once may lose one: operators do them in turn. Errors that all have,
 * beside their own: -EINVAL an argument, a setting or the store's URL; -ENOTSUP there is no store, or its library is
 * missing; -ENOMEM; those of the store as lw_segment_open.
 */
#ifndef LANEWISE_FILE_H
#define LANEWISE_FILE_H

#include <lanewise/engine.h>
#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LW_FILES_MAX 1024u /* of one segment */

/* A file, or block device, of a segment. */
struct lw_file {
	const char *path; /* absolute, or nvme+tcp://... (lw_segment_open), at most 4,095 bytes, where the storage node
			     has it */
	const char *server; /* an engine's name: it has the file under this path; NULL: no engine has it yet */
	uint64_t length;    /* bytes, 1 .. 2^53 - 1; 0: as long as it is now, which this host has to see under path */
	uint32_t access;    /* LW_ACCESS_REMOTE, or LW_ACCESS_REMOTE_READ: nobody writes it */
	uint32_t reserved;  /* 0 */
};

#define LW_FILE_REPLACE 1u /* a segment of files of that name is overwritten */

/* Puts the document of a segment of count files (1 .. LW_FILES_MAX) into the store. It stays until it is withdrawn.
 * name: 1 to 255 bytes, "nvmeof/kv1" by custom. 0; -EEXIST there is one of that name; -ESTALE an engine has the name;
 * what stat(2) says of a file without a length; -ENODATA it has no bytes. */
LW_API int lw_file_publish(const struct lw_engine_opts *opts, const char *name, const struct lw_file *files,
			   size_t count, uint32_t flags);

/* Says where a server has the segment's files: those whose path is from, or lies below it, it has under to instead of
 * from; from = "" with one to is for a segment of one file. to = NULL takes the server's entries for them away. The
 * number of files that were meant, at least 1; -ENOENT there is no such segment, or no such file in it; -EPROTO the
 * document is no segment of files; -ENAMETOOLONG. */
LW_API int lw_file_mount(const struct lw_engine_opts *opts, const char *name, const char *server, const char *from,
			 const char *to);

/* The document as it is in the store, checked. The caller frees *out with free(). 0; -ENOENT; -EPROTO. */
LW_API int lw_file_json(const struct lw_engine_opts *opts, const char *name, char **out);

/* Removes a segment of files from the store; the files stay, and engines that have it open keep it. 0; -ENOENT;
 * -EPROTO; -ESTALE it is an engine's. */
LW_API int lw_file_withdraw(const struct lw_engine_opts *opts, const char *name);

#ifdef __cplusplus
}
#endif
#endif
