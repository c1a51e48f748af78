/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of GPUs over the stand-in, in one process: what it shows to peers, and what it believes of theirs. What
 * moves the bytes right is the conformance suite's, what goes wrong between processes sys/test_nvlink's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/gpu.h"
#include "drivers/nvlink/nvlink.h"
#include "drivers/nvlink/peer.h"
#include "lib/engine.h"

#define MIB ((size_t)1 << 20)

static struct lw_engine *open_engine(const char *settings)
{
	char text[1024];

	snprintf(text, sizeof(text), "drivers=shm,nvlink,tcp cuda_library=%s %s", test_gpu_library(), settings);
	return test_engine(text);
}

static struct lw_desc *document(struct lw_engine *engine)
{
	struct lw_desc *desc;
	char *text, why[200] = "";
	size_t size;

	assert_int_equal(lw_segment_document(engine, &text, &size), 0);
	if (lw_desc_decode(text, size, &desc, why, sizeof(why)) != 0)
		fail_msg("%s: %s", why, text);
	free(text);
	return desc;
}

static void *context_of(struct lw_engine *engine)
{
	return engine->driver_context[lw_driver_index(engine, "nvlink", 6)];
}

/* Nothing of a GPU is told before the process uses one, and nothing that was not offered. */
static void test_document_tells_allocations_that_are_offered_once(void **state)
{
	struct lw_engine *engine = open_engine("");
	struct lw_desc *desc = document(engine);
	unsigned char *a, *b, *c;
	lw_buffer_t ids[4];

	(void)state;
	assert_int_equal(desc->gpu[0].pid, 0);
	lw_desc_free(desc);
	a = test_gpu_alloc(LW_GPU_CUDA, 1, 4 * MIB);
	b = test_gpu_alloc(LW_GPU_CUDA, 0, MIB);
	c = test_gpu_alloc(LW_GPU_CUDA, 0, MIB);
	ids[0] = test_register(engine, a + 4096, 100, LW_ACCESS_REMOTE);
	ids[1] = test_register(engine, a + 2 * MIB, MIB, LW_ACCESS_REMOTE_READ);
	ids[2] = test_register(engine, b, MIB, LW_ACCESS_REMOTE);
	ids[3] = test_register(engine, c, MIB, LW_ACCESS_LOCAL);
	assert_int_equal(test_gpu_calls("IpcGetMemHandle"), 2);
	desc = document(engine);
	assert_int_equal(desc->buffer_count, 3);
	assert_int_equal(desc->gpu[0].pid, getpid());
	assert_int_equal(desc->gpu[0].count, 2);
	for (size_t i = 0; i < 2; i++) {
		const struct lw_desc_allocation *memory = &desc->gpu[0].memory[i];
		bool first = memory->addr == (uint64_t)(uintptr_t)a;

		assert_true(first || memory->addr == (uint64_t)(uintptr_t)b);
		assert_int_equal(memory->length, first ? 4 * MIB : MIB);
		assert_int_equal(memory->device, first ? 1 : 0);
		assert_true(memory->id != 0);
	}
	lw_desc_free(desc);
	assert_int_equal(lw_memory_unregister(engine, &ids[0], 2, 0), 0);
	desc = document(engine);
	assert_int_equal(desc->gpu[0].count, 1);
	lw_desc_free(desc);
	assert_int_equal(lw_engine_close(engine), 0);
	test_gpu_free(LW_GPU_CUDA, a);
	test_gpu_free(LW_GPU_CUDA, b);
	test_gpu_free(LW_GPU_CUDA, c);
}

static void test_setting_protocol_names_what_others_import_by(void **state)
{
	struct lw_engine *engine = open_engine("gpu_protocol=nvlink_intra");
	unsigned char *a = test_gpu_alloc(LW_GPU_CUDA, 1, MIB);
	struct lw_desc *desc;

	(void)state;
	test_register(engine, a, 4096, LW_ACCESS_REMOTE);
	desc = document(engine);
	assert_string_equal(desc->protocol, "nvlink_intra");
	assert_int_equal(desc->buffer_count, 1);
	assert_int_equal(desc->buffers[0].length, 4096);
	assert_int_equal(desc->gpu[0].memory[0].length, MIB);
	lw_desc_free(desc);
	assert_int_equal(lw_engine_close(engine), 0);
	test_gpu_free(LW_GPU_CUDA, a);
}

/* A document as one of Mooncake's engines makes it, on this host or another. */
static struct lw_desc theirs(const char *name, unsigned char *device, size_t length, struct lw_desc_buffer *buffer,
			     struct lw_desc_allocation *memory)
{
	const struct lw_gpu *gpu = lw_gpu_opened(LW_GPU_CUDA);
	struct lw_desc desc = {.protocol = "nvlink_intra", .buffer_count = 1, .buffers = buffer};
	struct lw_gpu_handle handle;
	struct lw_gpu_guard guard;

	assert_int_equal(lw_gpu_enter(gpu, 1, &guard), 0);
	assert_int_equal(lw_gpu_ipc_get(gpu, device, &handle), 0);
	lw_gpu_leave(&guard);
	snprintf(desc.name, sizeof(desc.name), "%s", name);
	*buffer = (struct lw_desc_buffer){
		.addr = (uint64_t)(uintptr_t)device, .length = length, .access = LW_ACCESS_REMOTE, .device = true};
	*memory = (struct lw_desc_allocation){.addr = buffer->addr, .length = length};
	memcpy(memory->handle, handle.bytes, sizeof(memory->handle));
	desc.gpu[0].count = 1;
	desc.gpu[0].memory = memory;
	return desc;
}

static void test_reach_of_another_kind_of_engine_goes_by_its_name(void **state)
{
	struct lw_engine *engine = open_engine("");
	unsigned char *device = test_gpu_alloc(LW_GPU_CUDA, 1, MIB);
	struct lw_desc_allocation memory;
	struct lw_desc_buffer buffer;
	const struct nvlink_mapping *mapping;
	char why[200] = "", host[64];
	struct lw_desc desc;
	void *reach = NULL;

	(void)state;
	test_gpu_own_imports(true);
	snprintf(host, sizeof(host), "%.*s:17", (int)strcspn(engine->name, ":"), engine->name);
	desc = theirs(host, device, MIB, &buffer, &memory);
	assert_int_equal(lw_nvlink_ops.reach(context_of(engine), &desc, &reach, why, sizeof(why)), 0);
	assert_int_equal(test_gpu_live("import"), 1);
	mapping = nvlink_reach_find(reach, buffer.addr + 10, MIB - 10);
	assert_non_null(mapping);
	assert_int_equal(mapping->device, 1);
	assert_ptr_not_equal((void *)(uintptr_t)mapping->here, device);
	assert_null(nvlink_reach_find(reach, buffer.addr + 10, MIB - 9));
	assert_null(nvlink_reach_find(reach, buffer.addr - 1, 1));
	assert_false(lw_nvlink_ops.offer_seen(reach));
	lw_nvlink_ops.forget(reach);
	assert_int_equal(test_gpu_live("import"), 0);
	desc = theirs("another.host:17", device, MIB, &buffer, &memory);
	assert_int_equal(lw_nvlink_ops.reach(context_of(engine), &desc, &reach, why, sizeof(why)), -ENOTSUP);
	test_gpu_own_imports(false);
	assert_int_equal(lw_engine_close(engine), 0);
	test_gpu_free(LW_GPU_CUDA, device);
}

/* An allocation that is shorter than its document says, a stale handle, a buffer that is in none. */
static void test_reach_of_what_is_not_true_is_refused_and_leaves_nothing(void **state)
{
	struct lw_engine *engine = open_engine("");
	unsigned char *device = test_gpu_alloc(LW_GPU_CUDA, 1, MIB);
	struct lw_desc_allocation memory;
	struct lw_desc_buffer buffer;
	char why[200] = "";
	struct lw_desc desc = theirs(engine->name, device, 2 * MIB, &buffer, &memory);
	void *reach = NULL;

	(void)state;
	test_gpu_own_imports(true);
	assert_int_equal(lw_nvlink_ops.reach(context_of(engine), &desc, &reach, why, sizeof(why)), -EPROTO);
	assert_non_null(strstr(why, "2097152 bytes"));
	desc = theirs(engine->name, device, MIB, &buffer, &memory);
	buffer.length++;
	assert_int_equal(lw_nvlink_ops.reach(context_of(engine), &desc, &reach, why, sizeof(why)), -EXDEV);
	memory.handle[24] ^= 1; /* of the stand-in's the number of the file */
	buffer.length--;
	assert_int_equal(lw_nvlink_ops.reach(context_of(engine), &desc, &reach, why, sizeof(why)), -EIO);
	assert_null(reach);
	assert_int_equal(test_gpu_live("import"), 0);
	test_gpu_own_imports(false);
	assert_int_equal(lw_engine_close(engine), 0);
	test_gpu_free(LW_GPU_CUDA, device);
}

/* Each vendor's switch turns its driver off, and says so. */
static void test_switches_turn_drivers_off_with_a_reason(void **state)
{
	static const char *const names[] = {"hip", "musa", "maca"};

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		char settings[600], reason[80];
		struct lw_engine *engine;
		char *info;

		snprintf(settings, sizeof(settings), "drivers=tcp,%s %s=off %s_library=%s log_level=error", names[i],
			 names[i], names[i], test_gpu_library());
		engine = test_engine(settings);
		assert_int_equal(lw_driver_index(engine, names[i], strlen(names[i])), -1);
		assert_int_equal(lw_engine_info_json(engine, &info), 0);
		snprintf(reason, sizeof(reason), "switched off by the setting %s", names[i]);
		assert_non_null(strstr(info, reason));
		free(info);
		assert_int_equal(lw_engine_close(engine), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_document_tells_allocations_that_are_offered_once),
		cmocka_unit_test(test_setting_protocol_names_what_others_import_by),
		cmocka_unit_test(test_reach_of_another_kind_of_engine_goes_by_its_name),
		cmocka_unit_test(test_reach_of_what_is_not_true_is_refused_and_leaves_nothing),
		cmocka_unit_test(test_switches_turn_drivers_off_with_a_reason),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
