/* SPDX-License-Identifier: Apache-2.0 */
/* Segment descriptors: whatever comes in, what is accepted keeps the reader's promises, and written and read again it
 * is the same. The input is the document.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lanewise/types.h>

#include "fuzz/input.h"
#include "meta/descriptor.h"

#define INTEGERS_END (UINT64_C(1) << 53)

static void check_promises(const struct lw_desc *desc)
{
	FUZZ_CHECK(memchr(desc->name, '\0', sizeof(desc->name)) != NULL && desc->name[0] != '\0', "no name");
	FUZZ_CHECK(memchr(desc->protocol, '\0', sizeof(desc->protocol)) != NULL && desc->protocol[0] != '\0',
		   "no protocol");
	FUZZ_CHECK(desc->tcp_version == 1 || desc->tcp_version == 2, "version %u", desc->tcp_version);
	for (size_t i = 0; i < desc->buffer_count; i++) {
		const struct lw_desc_buffer *a = &desc->buffers[i];

		FUZZ_CHECK(a->addr != 0 && a->length != 0 && a->addr < INTEGERS_END &&
				   a->length <= INTEGERS_END - a->addr,
			   "buffer %zu has a range that can't be", i);
		FUZZ_CHECK((a->access & ~(uint32_t)LW_ACCESS_REMOTE) == 0, "buffer %zu has access %u", i, a->access);
		FUZZ_CHECK(memchr(a->name, '\0', sizeof(a->name)) != NULL, "buffer %zu has a name without an end", i);
		for (size_t k = 0; k < i && i < 64; k++)
			FUZZ_CHECK(a->addr >= desc->buffers[k].addr + desc->buffers[k].length ||
					   desc->buffers[k].addr >= a->addr + a->length,
				   "buffers %zu and %zu overlap", k, i);
	}
}

static void check_gpus(const struct lw_desc *desc)
{
	for (size_t i = 0; i < LW_DESC_GPUS; i++) {
		const struct lw_desc_gpu *gpu = &desc->gpu[i];

		for (size_t k = 0; k < gpu->count; k++)
			FUZZ_CHECK(gpu->memory[k].addr != 0 && gpu->memory[k].length != 0 &&
					   gpu->memory[k].addr + gpu->memory[k].length <= INTEGERS_END &&
					   (k == 0 ||
					    gpu->memory[k].addr >= gpu->memory[k - 1].addr + gpu->memory[k - 1].length),
				   "allocation %zu of GPU %zu can't be", k, i);
	}
}

static void check_files(const struct lw_desc *desc)
{
	size_t mounts = 0;

	FUZZ_CHECK(desc->buffer_count == 0 && desc->file_count <= LW_DESC_FILES_MAX, "%zu files", desc->file_count);
	for (size_t i = 0; i < desc->file_count; i++) {
		const struct lw_desc_file *file = &desc->files[i];

		FUZZ_CHECK(file->length != 0 && file->length < INTEGERS_END, "file %zu has a length that can't be", i);
		FUZZ_CHECK((file->access & ~(uint32_t)LW_ACCESS_REMOTE) == 0, "file %zu has access %u", i,
			   file->access);
		FUZZ_CHECK(file->path[0] != '\0' && strlen(file->path) < LW_DESC_PATH_MAX, "file %zu has no path", i);
		for (size_t k = 0; k < file->mount_count; k++)
			FUZZ_CHECK(file->mounts[k].server != NULL && file->mounts[k].path[0] != '\0',
				   "file %zu has an empty mount", i);
		mounts += file->mount_count;
	}
	FUZZ_CHECK(mounts <= LW_DESC_MOUNTS_MAX, "%zu mounts", mounts);
}

static void check_same(const struct lw_desc *a, const struct lw_desc *b)
{
	FUZZ_CHECK(strcmp(a->name, b->name) == 0 && strcmp(a->protocol, b->protocol) == 0, "another name or protocol");
	FUZZ_CHECK(a->tcp_port == b->tcp_port && a->tcp_version == b->tcp_version && a->incarnation == b->incarnation,
		   "another port, version or incarnation");
	FUZZ_CHECK(a->buffer_count == b->buffer_count, "%zu buffers became %zu", a->buffer_count, b->buffer_count);
	for (size_t i = 0; i < a->buffer_count; i++) {
		const struct lw_desc_buffer *left = &a->buffers[i], *right = &b->buffers[i];

		FUZZ_CHECK(left->addr == right->addr && left->length == right->length &&
				   left->access == right->access && left->device == right->device &&
				   strcmp(left->name, right->name) == 0,
			   "buffer %zu became another", i);
	}
	for (size_t i = 0; i < LW_DESC_GPUS; i++)
		FUZZ_CHECK(a->gpu[i].pid == b->gpu[i].pid && (a->gpu[i].pid == 0 || a->gpu[i].count == b->gpu[i].count),
			   "another GPU %zu", i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct lw_desc *first = NULL, *second = NULL;
	char *text = NULL;
	size_t length = 0;
	char why[200];
	int ret;

	memset(why, 'x', sizeof(why));
	ret = lw_desc_decode((const char *)data, size, &first, why, sizeof(why));
	if (ret != 0) {
		FUZZ_CHECK(ret == -EPROTO && first == NULL, "error %d", ret);
		FUZZ_CHECK(memchr(why, '\0', sizeof(why)) != NULL && why[0] != '\0', "no reason");
		return 0;
	}
	check_promises(first);
	check_gpus(first);
	if (first->file_count != 0) { /* no engine writes such a one */
		check_files(first);
		lw_desc_free(first);
		return 0;
	}
	FUZZ_CHECK(lw_desc_encode(first, &text, &length) == 0 && strlen(text) == length, "can't be written");
	ret = lw_desc_decode(text, length, &second, why, sizeof(why));
	FUZZ_CHECK(ret == 0, "what was written is refused: %s: %s", why, text);
	check_same(first, second);
	lw_desc_free(first);
	lw_desc_free(second);
	free(text);
	return 0;
}
