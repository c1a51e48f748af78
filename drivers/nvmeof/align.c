/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's answer to how direct requests have to be aligned. Its structure is not in every C library. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/stat.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "drivers/nvmeof/align.h"

#define BLOCK_MAX 65536u
#define BLOCK_GUESS 4096u /* enough for every device of today */
#define BLOCK_MIN 512u

static bool is_power(uint32_t n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

/* What statx(2) says since Linux 6.1. False: nothing. */
static bool ask_statx(int fd, uint32_t *block, uint32_t *memory)
{
#ifdef STATX_DIOALIGN
	struct statx st;

	memset(&st, 0, sizeof(st));
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) != 0 || (st.stx_mask & STATX_DIOALIGN) == 0)
		return false;
	*block = st.stx_dio_offset_align;
	*memory = st.stx_dio_mem_align;
	return true;
#else
	(void)fd;
	(void)block;
	(void)memory;
	return false;
#endif
}

/* Whether a direct read of one block works. A short answer, or none, is an answer. */
static bool reads(int fd, uint32_t block)
{
	void *buffer = NULL;
	bool ok;

	if (posix_memalign(&buffer, BLOCK_MAX, BLOCK_MAX) != 0)
		return false;
	ok = pread(fd, buffer, block, 0) >= 0 || errno != EINVAL;
	free(buffer);
	return ok;
}

bool nvmeof_alignment(int fd, uint32_t *block, uint32_t *memory)
{
	uint32_t size = 0, address = 0;
	int sector = 0;

	if (ask_statx(fd, &size, &address)) {
		if (size == 0) /* it has no direct requests */
			return false;
	} else if (ioctl(fd, BLKSSZGET, &sector) == 0 && sector > 0) {
		size = (uint32_t)sector;
		address = size;
	} else {
		size = reads(fd, BLOCK_MIN) ? BLOCK_MIN : BLOCK_GUESS;
		address = size;
	}
	if (size < BLOCK_MIN)
		size = BLOCK_MIN;
	if (address == 0)
		address = 1;
	if (!is_power(size) || !is_power(address) || size > BLOCK_MAX || address > BLOCK_MAX || !reads(fd, size))
		return false;
	*block = size;
	*memory = address;
	return true;
}
