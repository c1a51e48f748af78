/* SPDX-License-Identifier: Apache-2.0 */
/* How many bytes a file or block device has. No state: any thread; may block on the file system. */
#ifndef LW_FILESIZE_H
#define LW_FILESIZE_H

#include <stdint.h>

/* Of an open one. 0; -EINVAL it is neither a regular file nor a block device; what fstat(2) or ioctl(2) says. */
int lw_file_size(int fd, uint64_t *out);

/* The same by its path; it is not waited for, should it be a pipe. Also what open(2) says. */
int lw_file_size_of(const char *path, uint64_t *out);

#endif
