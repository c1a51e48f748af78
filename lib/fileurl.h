/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that are named by their files: file:PATH[,PATH...][?access=r], or by a namespace of an NVMe over Fabrics
 * target (fabric.h). No state: any thread. */
#ifndef LW_FILEURL_H
#define LW_FILEURL_H

#include <stdbool.h>

#include "meta/descriptor.h"

struct lw_fabric;

/* Whether a segment's name is such a one. */
bool lw_is_file_url(const char *name);

/* The name as the segment's: as it is. 0; -EINVAL it is too long, or has control bytes; said in lw_last_error. */
int lw_file_url_name(const char *name, char out[LW_NAME_MAX]);

/* What it means, with the lengths of the files as they are now. Paths are absolute; "%2C", "%3F" and "%25" stand for
 * what would be ',', '?' and '%' in a path. Asks the file system; a target is connected to, for at most timeout_ms. The
 * caller frees *out with lw_desc_free, and lets go of *fabric when the driver has the file. 0; -EINVAL; what stat(2)
 * says; -ENODATA a file has no bytes; errors of lw_fabric_hold; -ENOMEM; said in lw_last_error. */
int lw_file_url_read(const char *name, uint32_t timeout_ms, struct lw_desc **out, struct lw_fabric **fabric);

#endif
