/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/files.h"

#define FILES_MAX 256

static char folder[64];
static pid_t owner;
static char *paths[FILES_MAX];
static int count;

/* Also what children and tests themselves have put there. */
static void remove_all(void)
{
	DIR *dir = getpid() == owner ? opendir(folder) : NULL;
	struct dirent *entry;

	for (int i = 0; i < count; i++)
		free(paths[i]);
	count = 0;
	if (dir == NULL)
		return;
	while ((entry = readdir(dir)) != NULL)
		unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	rmdir(folder);
}

const char *test_folder(void)
{
	const char *above = getenv("LW_TEST_FOLDER");

	if (folder[0] != '\0')
		return folder;
	snprintf(folder, sizeof(folder), "%.40s/lwXXXXXX", above != NULL ? above : "/var/tmp");
	if (mkdtemp(folder) == NULL)
		fail_msg("no folder %s: %s", folder, strerror(errno));
	owner = getpid();
	atexit(remove_all);
	return folder;
}

static const char *create(uint64_t bytes, int blocks)
{
	const size_t room = sizeof(folder) + 24;
	char *path = malloc(room);
	int fd;

	assert_non_null(path);
	assert_in_range(count, 0, FILES_MAX - 1);
	snprintf(path, room, "%s/%d.%d", test_folder(), count, (int)getpid() % 100000);
	paths[count++] = path;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	if (ftruncate(fd, (off_t)bytes) != 0 || (blocks && bytes != 0 && posix_fallocate(fd, 0, (off_t)bytes) != 0))
		fail_msg("%s can't have %llu bytes: %s", path, (unsigned long long)bytes, strerror(errno));
	close(fd);
	return path;
}

const char *test_file(uint64_t bytes)
{
	return create(bytes, 1);
}

const char *test_file_sparse(uint64_t bytes)
{
	return create(bytes, 0);
}

void test_file_remove(const char *path)
{
	unlink(path);
}

const char *test_loop(uint64_t bytes, void (*opened)(const char *device, void *arg), void *arg, const char **backing,
		      const char **why)
{
	static char device[32];
	struct loop_info64 info = {.lo_flags = LO_FLAGS_AUTOCLEAR};
	int control, file, loop = -1, number = -1;

	if (getenv("LW_TEST_DEVICE") != NULL) {
		*backing = getenv("LW_TEST_DEVICE");
		*why = NULL;
		opened(*backing, arg);
		return *backing;
	}
	control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	*why = control < 0 ? "there is no /dev/loop-control, or it is not for us" : NULL;
	if (control < 0)
		return NULL;
	*backing = test_file(bytes);
	file = open(*backing, O_RDWR | O_CLOEXEC);
	assert_true(file >= 0);
	for (int tries = 0; tries < 10 && loop < 0; tries++) { /* others look for a free one, too */
		number = ioctl(control, LOOP_CTL_GET_FREE);
		snprintf(device, sizeof(device), "/dev/loop%d", number);
		loop = number >= 0 ? open(device, O_RDWR | O_CLOEXEC) : -1;
		if (loop >= 0 && ioctl(loop, LOOP_SET_FD, file) != 0) {
			close(loop);
			loop = -1;
		}
	}
	close(file);
	close(control);
	if (loop < 0 || ioctl(loop, LOOP_SET_STATUS64, &info) != 0) {
		*why = "no loop device is free, or it is not for us";
		if (loop >= 0) {
			ioctl(loop, LOOP_CLR_FD);
			close(loop);
		}
		return NULL;
	}
	opened(device, arg);
	close(loop);
	return device;
}
