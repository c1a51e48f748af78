/* SPDX-License-Identifier: Apache-2.0 */
/* Reading sysfs, or a recorded tree that looks like it. Paths are made as by printf and lie below root. */
#ifndef LW_META_SYSFS_H
#define LW_META_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dirent;

/* The first line of a file, without its end; cut to size. 0, or a negative errno value (of a file that the kernel
 * doesn't answer for, too); then text is empty. */
__attribute__((format(printf, 4, 5))) int lw_sysfs_line(const char *root, char *text, size_t size, const char *format,
							...);

/* The number (decimal, or hexadecimal after 0x) at the beginning of a file, or otherwise. */
__attribute__((format(printf, 3, 4))) int64_t lw_sysfs_number(const char *root, int64_t otherwise, const char *format,
							      ...);

/* Where a path leads to, relative to root: "devices/pci0000:00/0000:00:03.0". 0; -ENOENT it leads nowhere, or outside.
 */
__attribute__((format(printf, 4, 5))) int lw_sysfs_real(const char *root, char *text, size_t size, const char *format,
							...);

__attribute__((format(printf, 2, 3))) bool lw_sysfs_has(const char *root, const char *format, ...);

/* The names in a folder, numbers in them in the order of their value; each and the list are to be freed
 * (lw_sysfs_free). A folder that is not there has none. */
__attribute__((format(printf, 3, 4))) int lw_sysfs_list(const char *root, struct dirent ***names, const char *format,
							...);
void lw_sysfs_free(struct dirent **names, int count);

#endif
