/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the descriptor's code share: descriptor.c, descriptor_files.c, descriptor_rdma.c. Private to them.
 * No state: any thread. */
#ifndef LW_META_DESCRIPTOR_PVT_H
#define LW_META_DESCRIPTOR_PVT_H

#include <stdio.h>

#include "meta/descriptor.h"
#include "meta/json.h"

/* descriptor.c */
void lw_desc_put_string(FILE *to, const char *text, size_t length);
/* The access that lw.access gives to one buffer or file. *access is the element, or NULL if the list is left out; it
 * moves on to the next one. 0, -EPROTO. */
int lw_desc_read_access(const struct cJSON **access, size_t at, uint32_t *out, const struct lw_why *why);

/* Whether an entry of the list is one of that protocol. */
bool lw_desc_is_kept(const struct cJSON *item, const char *protocol, size_t length);

/* descriptor_gpu.c */
/* "nvlink":{...} and so on, after comma; nothing where there is none. What comes before the next member. */
const char *lw_desc_put_gpu(FILE *to, const struct lw_desc *desc, size_t number, const char *comma);
/* The entries for readers that know Mooncake's documents alone, behind the buffers, and how many they are. */
void lw_desc_put_announced(FILE *to, const struct lw_desc *desc);
size_t lw_desc_announced(const struct lw_desc *desc);
/* ,"shm_name":"..." of a buffer, in a document of such a protocol: empty in ours. */
void lw_desc_put_handle(FILE *to, const struct lw_desc_gpu *gpu, const struct lw_desc_buffer *buffer);
/* Whether an entry has a handle that can be one. */
bool lw_desc_has_handle(const struct cJSON *item);
/* After the buffers were read. 0, -EPROTO, -ENOMEM. */
int lw_desc_read_gpus(const struct cJSON *root, const struct cJSON *ours, struct lw_desc *desc,
		      const struct lw_why *why);

/* descriptor_files.c */
/* The buffers of a document with the protocol "nvmeof": desc->files. 0, -EPROTO, -ENOMEM. */
int lw_desc_read_files(const struct cJSON *root, const struct cJSON *ours, struct lw_desc *desc,
		       const struct lw_why *why);
void lw_desc_free_files(struct lw_desc_file *files, size_t count);

/* descriptor_rdma.c: members of the document, with the comma that belongs to them; nothing where there is no RDMA. */
/* ,"lkey":[...] or ,"rkey":[...] of a buffer. */
void lw_desc_put_keys(FILE *to, const struct lw_desc *desc, const struct lw_desc_buffer *buffer, const char *which);
void lw_desc_put_devices(FILE *to, const struct lw_desc *desc);
void lw_desc_put_matrix(FILE *to, const struct lw_desc *desc);
void lw_desc_put_server(FILE *to, const struct lw_desc *desc);
/* Reads the RDMA part of a document whose buffers were read. 0; -ENOMEM. What is wrong with it is said in why of the
 * part, which is left out then. */
int lw_desc_read_rdma(const struct cJSON *root, struct lw_desc *desc);

#endif
