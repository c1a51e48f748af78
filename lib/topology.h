/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix that an engine goes by: given as JSON, in a file, or discovered. */
#ifndef LW_TOPOLOGY_H
#define LW_TOPOLOGY_H

#include "lib/config.h"
#include "meta/matrix.h"

/* The matrix that the settings topology or topology_file give, for the caller to free; NULL in *out: they give none, it
 * is to be discovered. A wrong file of the environment is warned of and counts as none. Any thread. Blocks on the file.
 * 0; -EINVAL not a matrix, the sentence names the field; -ENOENT, -EACCES, -EIO the file; -ENOMEM. */
int lw_topology_given(const struct lw_config *config, struct lw_matrix **out);

#endif
