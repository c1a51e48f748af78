/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of real files: every byte is compared with what sha256sum says of the files, and what can be wrong with
 * files has its own error, which names the file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/files.h"

#define MIB ((size_t)1 << 20)
#define GUARD 64
#define AREA (4 * MIB)

static uint64_t seed;

struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *memory;
	lw_segment_t segment;
};

static struct rig set_up(const char *settings)
{
	struct rig rig;
	char text[200];

	snprintf(text, sizeof(text), "drivers=nvmeof %s", settings);
	rig.engine = test_engine(text);
	rig.memory = test_map(AREA, NULL);
	rig.segment = LW_SEGMENT_LOCAL;
	test_register(rig.engine, rig.memory, AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	return rig;
}

static void tear_down(struct rig *rig)
{
	assert_int_equal(lw_engine_close(rig->engine), 0);
	test_unmap(rig->memory, AREA);
}

static int open_files(struct rig *rig, const char *format, ...)
{
	char url[256];
	va_list args;

	va_start(args, format);
	vsnprintf(url, sizeof(url), format, args);
	va_end(args);
	return lw_segment_open(rig->engine, url, 0, &rig->segment);
}

static struct lw_task_status transfer(const struct rig *rig, enum lw_op op, size_t here, uint64_t there, size_t length)
{
	const struct lw_request request = {.local = rig->memory + here,
					   .segment = rig->segment,
					   .offset = there,
					   .length = length,
					   .op = (uint8_t)op};

	return test_transfer(rig->engine, rig->channel, request);
}

static void moves(const struct rig *rig, enum lw_op op, size_t here, uint64_t there, size_t length)
{
	struct lw_task_status status = transfer(rig, op, here, there, length);

	if (status.state != LW_COMPLETED || status.bytes != length)
		fail_msg("%s of %zu bytes at %llu: %s", op == LW_READ ? "READ" : "WRITE", length,
			 (unsigned long long)there, lw_reason_string((int)status.reason));
}

/* Fails for the reason, and the sentence names the file. */
static void fails(const struct rig *rig, enum lw_op op, uint64_t there, size_t length, enum lw_reason reason,
		  const char *named)
{
	const struct lw_request request = {
		.local = rig->memory, .segment = rig->segment, .offset = there, .length = length, .op = (uint8_t)op};
	struct lw_task_status status;
	char why[400];
	lw_batch_t batch;

	assert_int_equal(lw_batch_alloc(rig->channel, 1, 0, NULL, &batch), 0);
	test_submit(rig->channel, batch, &request, 1);
	test_wait(rig->engine, batch);
	assert_int_equal(lw_task_status(rig->engine, batch, 0, &status), 0);
	assert_int_equal(status.state, LW_FAILED);
	assert_int_equal(status.reason, reason);
	assert_true(lw_task_reason(rig->engine, batch, 0, why, sizeof(why)) > 0);
	if (named != NULL && strstr(why, named) == NULL)
		fail_msg("\"%s\" does not name %s", why, named);
	assert_int_equal(lw_batch_free(rig->engine, batch), 0);
}

static void put(const char *path, const unsigned char *bytes, size_t length)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, length), length);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

/* What sha256sum says of a file. */
static void sha256(const char *path, char out[65])
{
	char command[160];
	FILE *pipe;

	snprintf(command, sizeof(command), "sha256sum %s", path);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	assert_int_equal(fread(out, 1, 64, pipe), 64);
	out[64] = '\0';
	assert_int_equal(pclose(pipe), 0);
}

/* Files and a mirror of theirs
 * ----------------------------------------------------------------------------------------*/

#define FILES 4

/* Borders that no block has. */
static const size_t sizes[FILES] = {300001, 4096, 513, 700000};

struct mirror {
	const char *paths[FILES];
	unsigned char *bytes;
	size_t length;
};

static struct mirror make_files(void)
{
	struct mirror mirror = {.length = 0};

	mirror.bytes = malloc(AREA);
	assert_non_null(mirror.bytes);
	test_fill(mirror.bytes, AREA, 5);
	for (int i = 0; i < FILES; i++) {
		mirror.paths[i] = test_file(sizes[i]);
		put(mirror.paths[i], mirror.bytes + mirror.length, sizes[i]);
		mirror.length += sizes[i];
	}
	return mirror;
}

/* The files outside of the engine are what they should be. */
static void check_files(const struct mirror *mirror)
{
	const char *expected = test_file(0);
	char want[65], have[65];
	size_t at = 0;

	for (int i = 0; i < FILES; at += sizes[i++]) {
		put(expected, mirror->bytes + at, sizes[i]);
		sha256(expected, want);
		sha256(mirror->paths[i], have);
		assert_string_equal(have, want);
	}
	test_file_remove(expected);
}

static void open_mirror(struct rig *rig, const struct mirror *mirror)
{
	if (open_files(rig, "file:%s,%s,%s,%s", mirror->paths[0], mirror->paths[1], mirror->paths[2],
		       mirror->paths[3]) != 0)
		fail_msg("no segment: %s", lw_last_error());
}

static void check_range(const struct rig *rig, const struct mirror *mirror, enum lw_op op, size_t here, size_t there,
			size_t length)
{
	unsigned char *memory = rig->memory + here;
	unsigned char before[2 * GUARD];

	test_fill(memory - GUARD, length + 2 * GUARD, test_random(&seed));
	memcpy(before, memory - GUARD, GUARD);
	memcpy(before + GUARD, memory + length, GUARD);
	moves(rig, op, here, there, length);
	if (op == LW_WRITE)
		memcpy(mirror->bytes + there, memory, length);
	else if (memcmp(memory, mirror->bytes + there, length) != 0)
		fail_msg("READ of %zu bytes at %zu: other bytes", length, there);
	assert_memory_equal(before, memory - GUARD, GUARD);
	assert_memory_equal(before + GUARD, memory + length, GUARD);
}

static void check_borders(const char *settings)
{
	static const size_t lengths[] = {1, 511, 512, 513, 4095, 4096, 4097, 65536, 300000};
	struct mirror mirror = make_files();
	struct rig rig = set_up(settings);
	struct lw_segment_range ranges[FILES];
	size_t border = 0;

	open_mirror(&rig, &mirror);
	assert_int_equal(lw_segment_ranges(rig.engine, rig.segment, ranges, FILES), FILES);
	for (int i = 0; i <= FILES; border += i < FILES ? sizes[i] : 0, i++) {
		if (i < FILES) {
			assert_int_equal(ranges[i].addr, border);
			assert_int_equal(ranges[i].length, sizes[i]);
		}
		for (size_t k = 0; k < 3 * sizeof(lengths) / sizeof(lengths[0]); k++) {
			size_t length = lengths[k / 3];
			size_t back = k % 3 == 0   ? length
				      : k % 3 == 1 ? length / 2
						   : 0; /* up to it, over it, from it */

			if (back > border || border - back + length > mirror.length)
				continue;
			for (int op = 0; op < 2; op++)
				check_range(&rig, &mirror, (enum lw_op)op, 4096 + test_random(&seed) % 2 * 77,
					    border - back, length);
		}
	}
	for (int i = 0; i < 500; i++) {
		size_t length = 1 + test_random(&seed) % (i % 10 == 0 ? mirror.length : 9000);

		check_range(&rig, &mirror, (enum lw_op)(i % 2), GUARD + test_random(&seed) % 10000,
			    test_random(&seed) % (mirror.length - length + 1), length);
	}
	check_files(&mirror);
	fails(&rig, LW_READ, mirror.length, 1, LW_REASON_REMOTE_RANGE, "file:");
	fails(&rig, LW_READ, mirror.length - 1, 2, LW_REASON_REMOTE_RANGE, mirror.paths[3]);
	fails(&rig, LW_WRITE, UINT64_MAX - 10, 5, LW_REASON_REMOTE_RANGE, "file:");
	tear_down(&rig);
	check_files(&mirror);
	free(mirror.bytes);
}

static void test_ranges_at_all_borders_exact(void **state)
{
	(void)state;
	check_borders("");
}

static void test_ranges_at_all_borders_in_short_slices_exact(void **state)
{
	(void)state;
	check_borders("slice_bytes=4096");
}

static void test_ranges_at_all_borders_through_the_page_cache_exact(void **state)
{
	(void)state;
	check_borders("file_direct=off");
}

/* Neighbours that share blocks and pages, all at once: nobody undoes another one's bytes. */
static void test_writes_side_by_side_do_not_touch_each_other(void **state)
{
	enum { COUNT = 800 };
	struct mirror mirror = make_files();
	struct rig rig = set_up("workers=2");
	struct lw_request *list = calloc(COUNT, sizeof(*list));
	struct lw_batch_status status;

	(void)state;
	assert_non_null(list);
	open_mirror(&rig, &mirror);
	test_fill(rig.memory, AREA, 77);
	for (int round = 0; round < 5; round++) {
		size_t at = 0;
		uint32_t count = 0;
		lw_batch_t batch;

		for (; count < COUNT && at < mirror.length; count++) {
			size_t length = 1 + test_random(&seed) % (count % 3 == 0 ? 9000 : 700);

			length = length < mirror.length - at ? length : mirror.length - at;
			list[count] = (struct lw_request){.local = rig.memory + at + (size_t)round,
							  .segment = rig.segment,
							  .offset = at,
							  .length = length,
							  .op = LW_WRITE};
			memcpy(mirror.bytes + at, rig.memory + at + round, length);
			at += length;
		}
		assert_int_equal(lw_batch_alloc(rig.channel, count, 0, NULL, &batch), 0);
		test_submit(rig.channel, batch, list, count);
		status = test_wait(rig.engine, batch);
		assert_int_equal(status.state, LW_COMPLETED);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
		check_files(&mirror);
	}
	free(list);
	tear_down(&rig);
	free(mirror.bytes);
}

/* What can be wrong with files
 * ----------------------------------------------------------------------------------------*/

static void open_fails(struct rig *rig, int error, const char *named, const char *url)
{
	assert_int_equal(open_files(rig, "%s", url), error);
	if (strstr(lw_last_error(), named) == NULL)
		fail_msg("\"%s\" does not name %s", lw_last_error(), named);
}

static void test_open_of_wrong_paths_refused_by_name(void **state)
{
	struct rig rig = set_up("");
	char url[200], fifo[100], longest[400];
	int fds;

	(void)state;
	fds = test_fds();
	open_fails(&rig, -ENOENT, "/nowhere/kv.bin", "file:/nowhere/kv.bin");
	snprintf(url, sizeof(url), "file:%s,/nowhere/2", test_file(4096));
	open_fails(&rig, -ENOENT, "/nowhere/2", url);
	snprintf(url, sizeof(url), "file:%s", test_folder());
	open_fails(&rig, -EINVAL, test_folder(), url);
	snprintf(fifo, sizeof(fifo), "%s/fifo", test_folder());
	assert_int_equal(mkfifo(fifo, 0600), 0);
	snprintf(url, sizeof(url), "file:%s", fifo);
	open_fails(&rig, -EINVAL, fifo, url);
	unlink(fifo);
	snprintf(url, sizeof(url), "file:%s", test_file(0));
	open_fails(&rig, -ENODATA, url + 5, url);
	open_fails(&rig, -EINVAL, "/dev/null", "file:/dev/null");
	open_fails(&rig, -EINVAL, "path", "file:relative");
	open_fails(&rig, -EINVAL, "path", "file:");
	open_fails(&rig, -EINVAL, "path", "file:/a%2");
	open_fails(&rig, -EINVAL, "path", "file:/a%00");
	open_fails(&rig, -EINVAL, "access=r", "file:/a?write=yes");
	snprintf(longest, sizeof(longest), "file:/%0300d", 1);
	assert_int_equal(lw_segment_open(rig.engine, longest, 0, &rig.segment), -EINVAL);
	assert_int_equal(test_fds(), fds);
	tear_down(&rig);
}

static void test_spelling_of_paths(void **state)
{
	struct rig rig = set_up("");
	char odd[100], url[300];
	unsigned char page[4096];

	(void)state;
	test_fill(page, sizeof(page), 9);
	snprintf(odd, sizeof(odd), "%s/a,b?c%%d e", test_folder());
	put(odd, page, sizeof(page));
	snprintf(url, sizeof(url), "file://%s/a%%2Cb%%3fc%%25d e", test_folder());
	assert_int_equal(open_files(&rig, "%s", url), 0);
	moves(&rig, LW_READ, 0, 0, 4096);
	assert_memory_equal(rig.memory, page, 4096);
	unlink(odd);
	tear_down(&rig);
}

static void test_file_for_reading_alone_is_not_written(void **state)
{
	struct rig rig = set_up("");
	const char *path = test_file(8192);
	struct lw_segment_range range;

	(void)state;
	assert_int_equal(open_files(&rig, "file:%s?access=r", path), 0);
	assert_int_equal(lw_segment_ranges(rig.engine, rig.segment, &range, 1), 1);
	assert_int_equal(range.access, LW_ACCESS_REMOTE_READ);
	moves(&rig, LW_READ, 0, 0, 8192);
	fails(&rig, LW_WRITE, 0, 4096, LW_REASON_REMOTE_RANGE, path);
	tear_down(&rig);
}

/* The segment says more than there is: what there is can be used. */
static void test_file_that_was_cut_is_short(void **state)
{
	struct rig rig = set_up("");
	const char *path = test_file(3 * 4096 + 100);
	lw_segment_t before;

	(void)state;
	assert_int_equal(open_files(&rig, "file:%s", path), 0);
	moves(&rig, LW_READ, 0, 0, 3 * 4096 + 100);
	assert_int_equal(truncate(path, 5000), 0);
	fails(&rig, LW_READ, 8192, 4096, LW_REASON_FILE_SHORT, path);
	fails(&rig, LW_READ, 4000, 4096, LW_REASON_FILE_SHORT, path);
	fails(&rig, LW_READ, 8192, 100, LW_REASON_FILE_SHORT, path);
	moves(&rig, LW_READ, 0, 0, 5000);
	/* Opened again it is as long as it is now, and the handle is the same. */
	before = rig.segment;
	assert_int_equal(open_files(&rig, "file:%s", path), 0);
	assert_int_equal(rig.segment, before);
	moves(&rig, LW_READ, 0, 1000, 4000);
	fails(&rig, LW_READ, 4999, 2, LW_REASON_REMOTE_RANGE, path);
	assert_int_equal(truncate(path, 9000), 0);
	assert_int_equal(lw_segment_refresh(rig.engine, rig.segment, 0), 0);
	moves(&rig, LW_READ, 0, 4999, 4001);
	tear_down(&rig);
}

/* Another file under the same path: the lanes go over to it. */
static void test_file_that_was_replaced_is_followed(void **state)
{
	struct rig rig = set_up("");
	const char *path = test_file(8192), *other = test_file(8192);
	unsigned char page[8192];
	int fds = 0;

	(void)state;
	for (int round = 0; round < 20; round++) {
		assert_int_equal(open_files(&rig, "file:%s", path), 0);
		moves(&rig, LW_READ, 0, 0, 8192);
		test_fill(page, sizeof(page), (uint64_t)round);
		put(other, page, sizeof(page));
		assert_int_equal(rename(other, path), 0);
		assert_int_equal(lw_segment_refresh(rig.engine, rig.segment, 0), 0);
		moves(&rig, LW_READ, 0, 0, 8192);
		assert_memory_equal(rig.memory, page, 8192);
		TEST_EVENTUALLY(fds == 0 || test_fds() <= fds + 8); /* what was replaced goes with the next change */
		fds = fds == 0 ? test_fds() : fds;
	}
	tear_down(&rig);
}

/* A child whose first failure ends it. */
static pid_t fork_test(void)
{
	pid_t child;

	fflush(NULL);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		setenv("CMOCKA_TEST_ABORT", "1", 1);
	return child;
}

/* Calls what on a tmpfs of that size; skips without the right to mount. */
static void with_tmpfs(const char *size, unsigned long flags, void (*what)(const char *folder, unsigned long flags))
{
	char folder[100], options[40];
	pid_t child;
	int status;

	snprintf(folder, sizeof(folder), "%s/mntXXXXXX", test_folder());
	assert_non_null(mkdtemp(folder));
	snprintf(options, sizeof(options), "size=%s", size);
	if (mount("tmpfs", folder, "tmpfs", 0, options) != 0) {
		rmdir(folder);
		print_message("skipped: no mount here: %s\n", strerror(errno));
		skip();
	}
	/* In a child: whatever happens, the mount goes. */
	child = fork_test();
	if (child == 0) {
		what(folder, flags);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(umount2(folder, MNT_DETACH), 0);
	rmdir(folder);
	assert_int_equal(status, 0);
}

static void fill_up(const char *folder, unsigned long flags)
{
	struct rig rig = set_up("");
	char path[120];
	int fd;

	(void)flags;
	snprintf(path, sizeof(path), "%s/kv", folder);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)AREA), 0);
	close(fd);
	assert_int_equal(open_files(&rig, "file:%s", path), 0);
	test_fill(rig.memory, AREA, 1);
	moves(&rig, LW_WRITE, 0, 0, MIB / 2);
	fails(&rig, LW_WRITE, 0, AREA, LW_REASON_FILE_FULL, path);
	assert_int_equal(open_files(&rig, "file:%s", path), 0);
	moves(&rig, LW_READ, 0, 0, MIB / 2);
	tear_down(&rig);
}

static void test_full_disk_says_so(void **state)
{
	(void)state;
	with_tmpfs("1m", 0, fill_up);
}

static void read_only(const char *folder, unsigned long flags)
{
	unsigned char page[4096];
	char path[120];
	struct rig rig;

	snprintf(path, sizeof(path), "%s/kv", folder);
	test_fill(page, sizeof(page), 4);
	put(path, page, sizeof(page));
	assert_int_equal(mount("none", folder, NULL, MS_REMOUNT | flags, NULL), 0);
	rig = set_up("log_level=error");
	assert_int_equal(open_files(&rig, "file:%s", path), 0);
	moves(&rig, LW_READ, 0, 0, 4096);
	assert_memory_equal(rig.memory, page, 4096);
	fails(&rig, LW_WRITE, 0, 4096, LW_REASON_FILE_READ_ONLY, path);
	fails(&rig, LW_WRITE, 5, 7, LW_REASON_FILE_READ_ONLY, path);
	tear_down(&rig);
}

static void test_read_only_mount_is_read(void **state)
{
	(void)state;
	with_tmpfs("1m", MS_RDONLY, read_only);
}

/* A loop device whose file loses its blocks and gets them back: as one that goes and returns. */
static struct rig *device_rig;

static void use_device(const char *device, void *arg)
{
	(void)arg;
	assert_int_equal(open_files(device_rig, "file:%s", device), 0);
}

static void test_device_that_fails_and_returns_works_again(void **state)
{
	struct rig rig = set_up("");
	const char *device, *backing, *why;

	(void)state;
	device_rig = &rig;
	device = test_loop(AREA, use_device, NULL, &backing, &why);
	if (device == NULL) {
		tear_down(&rig);
		print_message("skipped: %s\n", why);
		skip();
	}
	test_fill(rig.memory, AREA, 8);
	moves(&rig, LW_WRITE, 0, 0, MIB);
	assert_int_equal(truncate(backing, 4096), 0);
	fails(&rig, LW_READ, MIB / 2, 4096, LW_REASON_FILE_IO, device);
	moves(&rig, LW_READ, 0, 0, 4096);
	assert_int_equal(truncate(backing, (off_t)AREA), 0);
	moves(&rig, LW_WRITE, 0, 0, MIB);
	moves(&rig, LW_READ, 2 * MIB, 0, MIB);
	assert_memory_equal(rig.memory, rig.memory + 2 * MIB, MIB);
	tear_down(&rig);
}

/* The host process
 * -----------------------------------------------------------------------------------------------------*/

/* This process may not have an io_uring from now on. */
static void forbid_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static int threads_named(const char *name)
{
	char command[100], text[20] = "";
	FILE *pipe;

	snprintf(command, sizeof(command), "cat /proc/%d/task/*/comm 2>/dev/null | grep -c '^%s$'", (int)getpid(),
		 name);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	assert_non_null(fgets(text, sizeof(text), pipe));
	pclose(pipe);
	return atoi(text);
}

static void test_without_io_uring_a_helper_thread_moves_the_bytes(void **state)
{
	pid_t child = fork_test();
	int status;

	(void)state;
	if (child == 0) {
		struct rig rig;
		char *info;

		forbid_io_uring();
		rig = set_up("");
		assert_int_equal(lw_engine_info_json(rig.engine, &info), 0);
		assert_non_null(strstr(info, "helper thread"));
		free(info);
		assert_int_equal(threads_named("lw-file"), 0); /* there is no segment of files yet */
		tear_down(&rig);
		check_borders("");
		rig = set_up("");
		assert_int_equal(open_files(&rig, "file:%s", test_file(4096)), 0);
		assert_int_equal(threads_named("lw-file"), 1);
		assert_int_equal(lw_segment_close(rig.engine, rig.segment), 0);
		TEST_EVENTUALLY(threads_named("lw-file") == 0);
		tear_down(&rig);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* Opening and closing leaves nothing; files are closed with their segment. */
static void test_open_and_close_leave_no_descriptors(void **state)
{
	struct rig rig = set_up("workers=2");
	const char *path = test_file(8192);
	int fds = test_fds();

	(void)state;
	for (int i = 0; i < 200; i++) {
		assert_int_equal(open_files(&rig, "file:%s", path), 0);
		if (i % 2 == 0)
			moves(&rig, LW_READ, 0, 0, 8192);
		assert_int_equal(lw_segment_close(rig.engine, rig.segment), 0);
		if (i % 3 == 0) /* the other times the next open comes first */
			TEST_EVENTUALLY(test_fds() == fds);
	}
	TEST_EVENTUALLY(test_fds() == fds);
	tear_down(&rig);
}

/* A child has none of the files, and the parent goes on. */
static void test_fork_child_lets_go_of_the_files(void **state)
{
	struct rig rig = set_up("");
	const char *path = test_file(MIB);
	char command[160];
	pid_t child;
	int status;

	(void)state;
	assert_int_equal(open_files(&rig, "file:%s", path), 0);
	moves(&rig, LW_WRITE, 0, 0, MIB);
	child = fork();
	if (child == 0) {
		snprintf(command, sizeof(command), "! ls -l /proc/%d/fd | grep -q %s", (int)getpid(), path);
		_exit(system(command) != 0); /* flawfinder: ignore */
	}
	for (int i = 0; i < 50; i++)
		moves(&rig, i % 2 == 0 ? LW_READ : LW_WRITE, 0, 0, MIB);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	moves(&rig, LW_READ, 0, 0, MIB);
	tear_down(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranges_at_all_borders_exact),
		cmocka_unit_test(test_ranges_at_all_borders_in_short_slices_exact),
		cmocka_unit_test(test_ranges_at_all_borders_through_the_page_cache_exact),
		cmocka_unit_test(test_writes_side_by_side_do_not_touch_each_other),
		cmocka_unit_test(test_open_of_wrong_paths_refused_by_name),
		cmocka_unit_test(test_spelling_of_paths),
		cmocka_unit_test(test_file_for_reading_alone_is_not_written),
		cmocka_unit_test(test_file_that_was_cut_is_short),
		cmocka_unit_test(test_file_that_was_replaced_is_followed),
		cmocka_unit_test(test_full_disk_says_so),
		cmocka_unit_test(test_read_only_mount_is_read),
		cmocka_unit_test(test_device_that_fails_and_returns_works_again),
		cmocka_unit_test(test_without_io_uring_a_helper_thread_moves_the_bytes),
		cmocka_unit_test(test_open_and_close_leave_no_descriptors),
		cmocka_unit_test(test_fork_child_lets_go_of_the_files),
	};

	seed = test_seed();
	return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
