/* SPDX-License-Identifier: Apache-2.0 */
/* Files for tests, in a folder of the program's own that goes with it; and loop devices on them. Failures end the test.
 */
#ifndef LW_TEST_FILES_H
#define LW_TEST_FILES_H

#include <stddef.h>
#include <stdint.h>

/* The folder: under LW_TEST_FOLDER, or /var/tmp, which is a file system with direct requests nearly everywhere. */
const char *test_folder(void);

/* A new file of that many bytes with blocks of its own, all zero. The path is valid until the program ends. */
const char *test_file(uint64_t bytes);
/* The same without blocks: they come when it is written. */
const char *test_file_sparse(uint64_t bytes);
void test_file_remove(const char *path);

/* A loop device on a new file, *backing, or NULL and the reason why there is none. It ends by itself with the last one
 * who has it open; opened is called before that begins. LW_TEST_DEVICE names another block device to take in its place,
 * long enough, whose contents are lost; *backing is that device then. */
const char *test_loop(uint64_t bytes, void (*opened)(const char *device, void *arg), void *arg, const char **backing,
		      const char **why);

#endif
