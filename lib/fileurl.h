/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that are named by their files: file:PATH[,PATH...][?access=r]. No state: any thread. */
#ifndef LW_FILEURL_H
#define LW_FILEURL_H

#include <stdbool.h>

#include "meta/descriptor.h"

/* Whether a segment's name is such a one. */
bool lw_is_file_url(const char *name);

/* The name as the segment's: as it is. 0; -EINVAL it is too long, or has control bytes; said in lw_last_error. */
int lw_file_url_name(const char *name, char out[LW_NAME_MAX]);

/* What it means, with the lengths of the files as they are now. Paths are absolute; "%2C", "%3F" and "%25" stand for
 * what would be ',', '?' and '%' in a path. Asks the file system. The caller frees *out with lw_desc_free. 0; -EINVAL;
 * what stat(2) says; -ENODATA a file has no bytes; -ENOMEM; said in lw_last_error. */
int lw_file_url_read(const char *name, struct lw_desc **out);

#endif
