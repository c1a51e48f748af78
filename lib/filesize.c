/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/filesize.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

int lw_file_size(int fd, uint64_t *out)
{
	struct stat st;
	uint64_t bytes;

	if (fstat(fd, &st) != 0)
		return -errno;
	if (S_ISREG(st.st_mode)) {
		*out = (uint64_t)st.st_size;
		return 0;
	}
	if (!S_ISBLK(st.st_mode))
		return -EINVAL;
	if (ioctl(fd, BLKGETSIZE64, &bytes) != 0)
		return -errno;
	*out = bytes;
	return 0;
}

int lw_file_size_of(const char *path, uint64_t *out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), error;

	if (fd < 0)
		return -errno;
	error = lw_file_size(fd, out);
	close(fd);
	return error;
}
