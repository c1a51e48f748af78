/* SPDX-License-Identifier: Apache-2.0 */
/* The main of a fuzzer that is built without libFuzzer: runs it once over each file that is named, or that lies in a
 * folder that is named. No file at all is a failure.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz/input.h"

static int run_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	unsigned char *bytes = NULL;
	long size = -1;
	int error = -1;

	if (file != NULL && fseek(file, 0, SEEK_END) == 0)
		size = ftell(file);
	/* Exactly as long as the input: a look beyond its end shows. */
	if (size >= 0)
		bytes = malloc(size != 0 ? (size_t)size : 1);
	if (bytes != NULL && fseek(file, 0, SEEK_SET) == 0 && fread(bytes, 1, (size_t)size, file) == (size_t)size) {
		/* If it ends the program, the last line names the input. */
		printf("%s\n", path);
		fflush(stdout);
		LLVMFuzzerTestOneInput(bytes, (size_t)size);
		error = 0;
	}
	if (error != 0)
		perror(path);
	free(bytes);
	if (file != NULL)
		fclose(file);
	return error;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* The number of files that ran, or -1. */
static int run_folder(const char *path)
{
	struct dirent **entries;
	int count = scandir(path, &entries, NULL, by_name), ran = 0;
	char name[4096];

	if (count < 0)
		perror(path);
	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
		if (entries[i]->d_name[0] != '.' && ran >= 0)
			ran = run_file(name) == 0 ? ran + 1 : -1;
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
	return count < 0 ? -1 : ran;
}

int main(int argc, char **argv)
{
	int ran = 0;

	for (int i = 1; i < argc; i++) {
		struct stat stat_of;
		int here;

		if (stat(argv[i], &stat_of) == 0 && S_ISDIR(stat_of.st_mode))
			here = run_folder(argv[i]);
		else
			here = run_file(argv[i]) == 0 ? 1 : -1;
		if (here < 0)
			return 1;
		ran += here;
	}
	printf("%d inputs\n", ran);
	return ran > 0 ? 0 : 1;
}
