/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/sysfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Root and the rest, in path (PATH_MAX). False: too long. */
static bool make_path(char *path, const char *root, const char *format, va_list args)
{
	int used = snprintf(path, PATH_MAX, "%s/", root), more;

	if (used < 0 || used >= PATH_MAX)
		return false;
	more = vsnprintf(path + used, (size_t)(PATH_MAX - used), format, args);
	return more >= 0 && more < PATH_MAX - used;
}

#define MAKE_PATH(ok)                                                                                                  \
	char path[PATH_MAX];                                                                                           \
	va_list args;                                                                                                  \
	bool ok;                                                                                                       \
	va_start(args, format);                                                                                        \
	ok = make_path(path, root, format, args);                                                                      \
	va_end(args)

static int read_line(const char *path, char *text, size_t size)
{
	ssize_t n;
	int fd, error;

	text[0] = '\0';
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	do {
		n = read(fd, text, size - 1);
	} while (n < 0 && errno == EINTR);
	error = n < 0 ? -errno : 0;
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return error;
}

int lw_sysfs_line(const char *root, char *text, size_t size, const char *format, ...)
{
	MAKE_PATH(ok);

	text[0] = '\0';
	return ok ? read_line(path, text, size) : -ENAMETOOLONG;
}

int64_t lw_sysfs_number(const char *root, int64_t otherwise, const char *format, ...)
{
	MAKE_PATH(ok);
	char text[32], *end;
	long long value;

	if (!ok || read_line(path, text, sizeof(text)) != 0)
		return otherwise;
	errno = 0;
	value = strtoll(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
	return end == text || errno != 0 ? otherwise : value;
}

int lw_sysfs_real(const char *root, char *text, size_t size, const char *format, ...)
{
	MAKE_PATH(ok);
	char *real_root, *real = NULL;
	size_t length;
	int ret = -ENOENT;

	real_root = realpath(root, NULL);
	if (ok && real_root != NULL)
		real = realpath(path, NULL);
	if (real != NULL) {
		length = strlen(real_root);
		if (strncmp(real, real_root, length) == 0 && real[length] == '/' && strlen(real + length) <= size) {
			snprintf(text, size, "%s", real + length + 1);
			ret = 0;
		}
	}
	free(real);
	free(real_root);
	return ret;
}

bool lw_sysfs_has(const char *root, const char *format, ...)
{
	MAKE_PATH(ok);

	return ok && access(path, F_OK) == 0;
}

/* Recorded trees have to keep empty folders somehow: a name that begins with a dot is none. */
static int is_name(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

int lw_sysfs_list(const char *root, struct dirent ***names, const char *format, ...)
{
	MAKE_PATH(ok);
	int count;

	*names = NULL;
	if (!ok)
		return 0;
	count = scandir(path, names, is_name, versionsort); /* which knows no locale */
	return count < 0 ? 0 : count;
}

void lw_sysfs_free(struct dirent **names, int count)
{
	for (int i = 0; i < count; i++)
		free(names[i]);
	free(names);
}
