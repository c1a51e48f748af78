/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of descriptors share. No state: any thread. */
#ifndef LW_META_DESCRIPTOR_PVT_H
#define LW_META_DESCRIPTOR_PVT_H

#include "meta/descriptor.h"
#include "meta/json.h"

/* The access that lw.access gives to one buffer or file. *access is the element, or NULL if the list is left out; it
 * moves on to the next one. 0, -EPROTO. */
int lw_desc_read_access(const struct cJSON **access, size_t at, uint32_t *out, const struct lw_why *why);

/* The buffers of a document with the protocol "nvmeof": desc->files. 0, -EPROTO, -ENOMEM. */
int lw_desc_read_files(const struct cJSON *root, const struct cJSON *ours, struct lw_desc *desc,
		       const struct lw_why *why);

void lw_desc_free_files(struct lw_desc_file *files, size_t count);

#endif
