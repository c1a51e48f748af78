/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/neighbour.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lib/door.h"

static int read_link(const char *path, char *text, size_t size)
{
	ssize_t got = readlink(path, text, size - 1);

	if (got <= 0)
		return got < 0 ? -errno : -EIO;
	text[got] = '\0';
	return 0;
}

int lw_neighbour_host(char *text, size_t size)
{
	char boot[40] = "", pid[32], time[32] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC), error;
	ssize_t got;

	if (fd < 0)
		return -errno;
	got = read(fd, boot, sizeof(boot) - 1);
	close(fd);
	if (got <= 0)
		return -EIO;
	boot[strcspn(boot, "\n")] = '\0';
	error = read_link("/proc/self/ns/pid", pid, sizeof(pid));
	if (error != 0)
		return error;
	(void)read_link("/proc/self/ns/time", time, sizeof(time)); /* older kernels have none */
	snprintf(text, size, "%s %s %s", boot, pid, time);
	return 0;
}

/* First without opening it in earnest: it could be anything, and opening some devices has effects. */
int lw_neighbour_memory(pid_t pid, int32_t fd)
{
	char path[64];
	struct statfs system;
	struct stat stat;
	int found, opened;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, (int)fd);
	found = open(path, O_PATH | O_CLOEXEC);
	if (found < 0)
		return -errno;
	if (fstat(found, &stat) != 0 || !S_ISREG(stat.st_mode) || fstatfs(found, &system) != 0 ||
	    (system.f_type != TMPFS_MAGIC && system.f_type != HUGETLBFS_MAGIC)) {
		close(found);
		return -EPROTO;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", found);
	opened = open(path, O_RDWR | O_CLOEXEC);
	if (opened < 0)
		opened = -errno;
	close(found);
	return opened;
}

void lw_neighbour_denied(int error, pid_t pid, char *why, size_t why_size)
{
	if (error == -EACCES || error == -EPERM)
		snprintf(why, why_size,
			 "the kernel does not let us into process %d: %s (another user, a sandbox, or Yama's "
			 "ptrace_scope)",
			 (int)pid, strerror(-error));
	else if (error == -ENOENT || error == -ESRCH)
		snprintf(why, why_size, "process %d is gone, or another one now", (int)pid);
	else
		snprintf(why, why_size, "process %d can't be reached: %s", (int)pid, strerror(-error));
}

bool lw_neighbour_ended(int pid_fd)
{
	struct pollfd poll_fd = {.fd = pid_fd, .events = POLLIN};

	return poll(&poll_fd, 1, 0) != 0;
}

void lw_neighbour_nonce(const char *hex, unsigned char *nonce, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		char byte[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

		nonce[i] = (unsigned char)strtoul(byte, NULL, 16);
	}
}

int lw_neighbour_is(const char *own, const char *host, char *why, size_t why_size)
{
	size_t kernel = strcspn(own, " ");

	if (strcmp(own, host) == 0)
		return 0;
	if (strncmp(own, host, kernel + 1) != 0)
		return -ENOTSUP;
	snprintf(why, why_size, "it lives in another PID namespace of this host");
	return -EXDEV;
}

/* The pidfd is of the process that had the number first, and does not tell its end last. */
int lw_neighbour_meet(pid_t pid, int32_t fd, const unsigned char *nonce, struct door **door, int *pid_fd, char *why,
		      size_t why_size)
{
	int process = (int)syscall(SYS_pidfd_open, pid, 0), memory, error;
	struct door *found = NULL;

	if (process < 0) {
		error = -errno;
		lw_neighbour_denied(error, pid, why, why_size);
		return error;
	}
	memory = lw_neighbour_memory(pid, fd);
	if (memory < 0) {
		error = memory;
		lw_neighbour_denied(error, pid, why, why_size);
		goto fail;
	}
	error = door_attach(memory, nonce, &found, why, why_size);
	close(memory);
	if (error != 0)
		goto fail;
	if (lw_neighbour_ended(process)) {
		error = -ESRCH;
		lw_neighbour_denied(error, pid, why, why_size);
		door_drop(found);
		goto fail;
	}
	*door = found;
	*pid_fd = process;
	return 0;
fail:
	close(process);
	return error;
}
