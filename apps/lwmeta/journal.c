/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "apps/lwmeta/journal.h"
#include "apps/lwmeta/journal_format.h"

struct journal {
	char *path, *temp;
	int fd, new_fd;
	uint64_t size, new_size;
	bool sync;
	atomic_bool dirty, failed;
};

static int fail(char *why, size_t why_size, int rc, const char *format, ...) __attribute__((format(printf, 4, 5)));

static int fail(char *why, size_t why_size, int rc, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, why_size, format, args);
	va_end(args);
	return rc;
}

/* Appends can't be trusted from here on. */
static int broken(struct journal *journal, const char *what, int error)
{
	if (!atomic_exchange(&journal->failed, true))
		fprintf(stderr, "lwmeta: %s: %s: %s; changes are refused until a new file could be written\n",
			journal->path, what, strerror(error));
	return -EIO;
}

static int write_all(int fd, struct iovec *parts, int count)
{
	ssize_t done;

	while (count > 0) {
		done = writev(fd, parts, count);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -errno;
		while (count > 0 && (size_t)done >= parts->iov_len) {
			done -= (ssize_t)parts->iov_len;
			parts++;
			count--;
		}
		if (count > 0) {
			parts->iov_base = (char *)parts->iov_base + done;
			parts->iov_len -= (size_t)done;
		}
	}
	return 0;
}

/* Copies the bytes from one offset to another to the end of a file. */
static int copy_range(int from, uint64_t start, uint64_t end, int to)
{
	char buffer[65536];
	struct iovec part;
	ssize_t got;
	int rc;

	while (start < end) {
		got = pread(from, buffer, end - start < sizeof(buffer) ? end - start : sizeof(buffer), (off_t)start);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EIO;
		part = (struct iovec){buffer, (size_t)got};
		rc = write_all(to, &part, 1);
		if (rc != 0)
			return rc;
		start += (uint64_t)got;
	}
	return 0;
}

/* Makes a new name in the folder of path last. */
static int sync_folder(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *folder = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
	int fd, rc = 0;

	if (folder == NULL)
		return -ENOMEM;
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	free(folder);
	if (fd < 0)
		return -errno;
	if (fsync(fd) != 0 && errno != EINVAL) /* some file systems have nothing to sync there */
		rc = -errno;
	close(fd);
	return rc;
}

static int put_title(int fd)
{
	struct iovec part = {(char *)(uintptr_t)format_title, FORMAT_TITLE_BYTES};

	return write_all(fd, &part, 1);
}

/* A new file of this name, empty but for its title, and locked. */
static int create_temp(const struct journal *journal)
{
	int fd = open(journal->temp, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600), rc;

	if (fd < 0)
		return -errno;
	rc = flock(fd, LOCK_EX | LOCK_NB) != 0 ? -errno : put_title(fd);
	if (rc == 0)
		return fd;
	close(fd);
	unlink(journal->temp);
	return rc;
}

static int append(int fd, const struct journal_change *change, uint64_t *size)
{
	char head[FORMAT_HEAD_BYTES];
	struct iovec parts[5] = {
		{head, sizeof(head)},
		{(char *)(uintptr_t)change->key.data, change->key.size},
		{(char *)(uintptr_t)change->owner.data, change->owner.size},
		{(char *)(uintptr_t)change->value.data, change->value.size},
		{(char *)(uintptr_t) "\n", 1},
	};
	int rc;

	format_head(change, head);
	rc = write_all(fd, parts, 5);
	if (rc == 0)
		*size += format_bytes(change);
	return rc;
}

static int append_or_take_back(struct journal *journal, const struct journal_change *change)
{
	int rc;

	if (atomic_load(&journal->failed))
		return -EIO;
	rc = append(journal->fd, change, &journal->size);
	if (rc == 0) {
		atomic_store(&journal->dirty, true);
		return journal->sync ? journal_sync(journal) : 0;
	}
	if (ftruncate(journal->fd, (off_t)journal->size) != 0)
		return broken(journal, "a record that was cut off can't be taken back", errno);
	if (rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG)
		return -ENOSPC;
	return broken(journal, "writing failed", -rc);
}

static struct journal_change put_change(const struct record *record, uint64_t lease_ms)
{
	return (struct journal_change){
		.kind = JOURNAL_PUT,
		.key = record_key(record),
		.owner = record_owner(record),
		.value = record_value(record),
		.lease_ms = lease_ms,
	};
}

int journal_put(struct journal *journal, const struct record *record, uint64_t lease_ms)
{
	struct journal_change change = put_change(record, lease_ms);

	return append_or_take_back(journal, &change);
}

int journal_lease(struct journal *journal, struct text key, uint64_t lease_ms)
{
	struct journal_change change = {.kind = JOURNAL_LEASE, .key = key, .lease_ms = lease_ms};

	return append_or_take_back(journal, &change);
}

int journal_delete(struct journal *journal, struct text key)
{
	struct journal_change change = {.kind = JOURNAL_DELETE, .key = key};

	return append_or_take_back(journal, &change);
}

int journal_sync(struct journal *journal)
{
	if (atomic_exchange(&journal->dirty, false) && fdatasync(journal->fd) != 0)
		return broken(journal, "what was written can't be brought to the disk", errno);
	return 0;
}

uint64_t journal_size(const struct journal *journal)
{
	return journal->size;
}

bool journal_failed(const struct journal *journal)
{
	return atomic_load(&journal->failed);
}

int journal_rewrite_begin(struct journal *journal)
{
	int fd = create_temp(journal);

	if (fd < 0)
		return fd;
	journal->new_fd = fd;
	journal->new_size = FORMAT_TITLE_BYTES;
	return 0;
}

int journal_rewrite_add(struct journal *journal, const struct record *record, uint64_t lease_ms)
{
	struct journal_change change = put_change(record, lease_ms);

	return append(journal->new_fd, &change, &journal->new_size);
}

int journal_rewrite_sync(struct journal *journal)
{
	return fdatasync(journal->new_fd) != 0 ? -errno : 0;
}

int journal_switch(struct journal *journal, uint64_t mark)
{
	int rc = copy_range(journal->fd, mark, journal->size, journal->new_fd);

	if (rc == 0 && fsync(journal->new_fd) != 0)
		rc = -errno;
	if (rc == 0 && rename(journal->temp, journal->path) != 0)
		rc = -errno;
	if (rc != 0)
		return rc;
	close(journal->fd);
	journal->fd = journal->new_fd;
	journal->new_fd = -1;
	journal->size = journal->new_size + (journal->size - mark);
	atomic_store(&journal->dirty, false);
	atomic_store(&journal->failed, false);
	rc = sync_folder(journal->path);
	return rc == 0 ? 0 : broken(journal, "its folder can't be brought to the disk", -rc);
}

void journal_rewrite_drop(struct journal *journal)
{
	if (journal->new_fd < 0)
		return;
	close(journal->new_fd);
	journal->new_fd = -1;
	unlink(journal->temp);
}

/* Opens and locks the file that has this name: another server may just have put a new one in its place. */
static int open_locked(struct journal *journal, char *why, size_t why_size)
{
	struct stat opened, named;
	int error;

	for (;;) {
		journal->fd =
			open(journal->path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
		if (journal->fd < 0)
			return fail(why, why_size, -errno, "%s can't be opened: %s", journal->path, strerror(errno));
		if (fstat(journal->fd, &opened) != 0 || !S_ISREG(opened.st_mode))
			return fail(why, why_size, -EINVAL, "%s is not a plain file", journal->path);
		if (flock(journal->fd, LOCK_EX | LOCK_NB) != 0) {
			error = errno;
			return fail(why, why_size, -error, "%s %s", journal->path,
				    error == EWOULDBLOCK ? "is in use by another server" : "can't be locked");
		}
		if (stat(journal->path, &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev)
			break;
		close(journal->fd);
	}
	journal->size = (uint64_t)opened.st_size;
	return 0;
}

/* Puts the first good bytes of the file in its place, and keeps all of it as PATH.damaged. */
static int set_aside(struct journal *journal, uint64_t good, char *why, size_t why_size)
{
	char *damaged = NULL;
	int rc = asprintf(&damaged, "%s.damaged", journal->path) < 0 ? -ENOMEM : journal_rewrite_begin(journal);

	if (rc == 0) {
		if (good > FORMAT_TITLE_BYTES)
			rc = copy_range(journal->fd, FORMAT_TITLE_BYTES, good, journal->new_fd);
		if (rc == 0 && rename(journal->path, damaged) != 0)
			rc = -errno;
		if (rc == 0) {
			journal->new_size = good > FORMAT_TITLE_BYTES ? good : FORMAT_TITLE_BYTES;
			rc = journal_switch(journal, journal->size);
		}
		journal_rewrite_drop(journal);
	}
	if (rc == 0)
		fprintf(stderr,
			"lwmeta: %s is damaged from byte %" PRIu64 " on: kept what stands before; all of it is in %s\n",
			journal->path, good, damaged);
	else
		fail(why, why_size, rc, "%s is damaged and can't be set aside: %s", journal->path, strerror(-rc));
	free(damaged);
	return rc;
}

/* Nothing of the file beyond its first good bytes is worth keeping. */
static int cut_off(struct journal *journal, uint64_t good, char *why, size_t why_size)
{
	int rc = 0;

	if (journal->size > good && good > 0)
		fprintf(stderr, "lwmeta: %s: dropped its last %" PRIu64 " bytes, of a write that was cut off\n",
			journal->path, journal->size - good);
	if (good < FORMAT_TITLE_BYTES)
		good = 0;
	if (ftruncate(journal->fd, (off_t)good) != 0)
		rc = -errno;
	if (rc == 0 && good == 0) {
		rc = put_title(journal->fd);
		good = FORMAT_TITLE_BYTES;
	}
	if (rc == 0 && fdatasync(journal->fd) != 0)
		rc = -errno;
	if (rc == 0)
		rc = sync_folder(journal->path);
	if (rc != 0)
		return fail(why, why_size, rc, "%s can't be written: %s", journal->path, strerror(-rc));
	journal->size = good;
	return 0;
}

static int replay_all(struct journal *journal, bool recover, journal_replay_fn *replay, void *arg, char *why,
		      size_t why_size)
{
	const char *bytes = NULL;
	struct journal_change change;
	uint64_t at = 0, next;
	int rc = -ENODATA;

	if (journal->size > 0) {
		bytes = mmap(NULL, journal->size, PROT_READ, MAP_PRIVATE, journal->fd, 0);
		if (bytes == MAP_FAILED)
			return fail(why, why_size, -errno, "%s can't be read: %s", journal->path, strerror(errno));
		rc = format_title_check(bytes, journal->size, &at);
		while (rc == 0) {
			rc = format_next(bytes, journal->size, at, &change, &next);
			if (rc != 0)
				break;
			rc = replay(arg, &change);
			if (rc != 0) {
				munmap((char *)(uintptr_t)bytes, journal->size);
				return fail(why, why_size, rc, "%s can't be taken in: %s", journal->path,
					    strerror(-rc));
			}
			at = next;
		}
		munmap((char *)(uintptr_t)bytes, journal->size);
	}
	if (rc == -EPROTO)
		return fail(why, why_size, rc, "%s is no file of lwmeta; give another name", journal->path);
	if (rc == -ENODATA)
		return cut_off(journal, at, why, why_size);
	if (recover)
		return set_aside(journal, at, why, why_size);
	return fail(why, why_size, rc,
		    "%s is damaged at byte %" PRIu64
		    "; bring back a copy, or start with --recover to keep what stands before",
		    journal->path, at);
}

int journal_open(const char *path, bool recover, bool sync, journal_replay_fn *replay, void *arg, struct journal **out,
		 char *why, size_t why_size)
{
	struct journal *journal = calloc(1, sizeof(*journal));
	int rc;

	if (journal == NULL)
		return fail(why, why_size, -ENOMEM, "no memory");
	journal->fd = journal->new_fd = -1;
	journal->sync = sync;
	journal->path = strdup(path);
	if (asprintf(&journal->temp, "%s.tmp", path) < 0)
		journal->temp = NULL;
	if (journal->path == NULL || journal->temp == NULL) {
		journal_close(journal);
		return fail(why, why_size, -ENOMEM, "no memory");
	}
	rc = open_locked(journal, why, why_size);
	if (rc == 0)
		rc = replay_all(journal, recover, replay, arg, why, why_size);
	if (rc == 0) {
		unlink(journal->temp); /* of a compaction that was cut off */
		*out = journal;
	} else {
		journal_close(journal);
	}
	return rc;
}

int journal_close(struct journal *journal)
{
	int rc = 0;

	if (journal == NULL)
		return 0;
	if (journal->fd >= 0) {
		rc = journal_sync(journal);
		if (atomic_load(&journal->failed))
			rc = -EIO;
		close(journal->fd);
	}
	free(journal->path);
	free(journal->temp);
	free(journal);
	return rc;
}
