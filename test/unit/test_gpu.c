/* SPDX-License-Identifier: Apache-2.0 */
/* Runtimes of GPUs, over the stand-in: opening, whose an address is, guards, streams, handles; each entry point
 * failing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/engines.h"
#include "common/gpu.h"
#include "lib/clock.h"

#define MIB ((size_t)1 << 20)

static const struct lw_gpu *open_gpu(enum lw_gpu_vendor vendor)
{
	const struct lw_gpu *gpu;
	char why[300] = "";

	if (lw_gpu_open(vendor, test_gpu_library(), &gpu, why, sizeof(why)) != 0)
		fail_msg("%s", why);
	return gpu;
}

/* Waits for the event, ten seconds at most. Its outcome. */
static int wait_for(const struct lw_gpu_event *event)
{
	uint64_t end_ns = lw_now_ns() + UINT64_C(10000000000);
	int done;

	do
		done = lw_gpu_event_query(event);
	while (done == 0 && lw_now_ns() < end_ns);
	return done;
}

static void test_open_without_a_library_says_what_is_missing(void **state)
{
	const struct lw_gpu *gpu = NULL;
	char why[300] = "";

	(void)state;
	assert_int_equal(lw_gpu_open(LW_GPU_HIP, NULL, &gpu, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, "libamdhip64"));
	assert_non_null(strstr(why, "hip_library"));
	assert_int_equal(lw_gpu_open(LW_GPU_CUDA, "/nowhere/libcudart.so", &gpu, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, "/nowhere/libcudart.so"));
	assert_non_null(strstr(why, "cuda_library"));
	assert_int_equal(lw_gpu_open(LW_GPU_CUDA, "libm.so.6", &gpu, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "GetDeviceCount"));
	assert_null(gpu);
	assert_null(lw_gpu_opened(LW_GPU_CUDA));
}

static void test_open_twice_gives_the_same_and_no_other_file(void **state)
{
	const struct lw_gpu *first = open_gpu(LW_GPU_CUDA), *again = NULL;
	char why[300] = "";

	(void)state;
	assert_int_equal(lw_gpu_open(LW_GPU_CUDA, NULL, &again, why, sizeof(why)), 0);
	assert_ptr_equal(first, again);
	assert_int_equal(lw_gpu_open(LW_GPU_CUDA, "libm.so.6", &again, why, sizeof(why)), -EBUSY);
	assert_string_equal(lw_gpu_library(first), test_gpu_library());
}

/* First of those that use a device: the process has not started the runtime, and registering memory of the host, which
 * asks whose it is, must not do so either. */
static void test_find_in_a_process_without_gpu_starts_nothing(void **state)
{
	const struct lw_gpu *gpu = open_gpu(LW_GPU_CUDA);
	struct lw_gpu_memory memory;
	int here;

	(void)state;
	assert_false(lw_gpu_in_use(gpu));
	assert_int_equal(lw_gpu_find(&here, &memory), -ENOENT);
	assert_int_equal(test_gpu_live("context"), 0);
	assert_false(lw_gpu_in_use(gpu));
}

static void test_find_tells_device_and_whole_allocation(void **state)
{
	int here;

	(void)state;
	for (int v = 0; v < LW_GPU_VENDORS; v++) {
		enum lw_gpu_vendor vendor = (enum lw_gpu_vendor)v;
		const struct lw_gpu *gpu = open_gpu(vendor);
		unsigned char *device = test_gpu_alloc(vendor, 1, MIB);
		struct lw_gpu_memory memory;

		assert_int_equal(lw_gpu_find(device + 12345, &memory), 0);
		assert_ptr_equal(memory.gpu, gpu);
		assert_int_equal(lw_gpu_vendor_of(gpu), v);
		assert_int_equal(memory.device, 1);
		assert_int_equal(memory.base, (uint64_t)(uintptr_t)device);
		assert_int_equal(memory.length, MIB);
		assert_int_equal(lw_gpu_find(&here, &memory), -ENOENT);
		test_gpu_free(vendor, device);
		assert_int_equal(lw_gpu_find(device, &memory), -ENOENT);
	}
}

static void test_find_of_pinned_memory_is_the_hosts(void **state)
{
	const struct lw_gpu *gpu = open_gpu(LW_GPU_CUDA);
	struct lw_gpu_memory memory;
	struct lw_gpu_guard guard;
	void *pinned, *mine = malloc(MIB);

	(void)state;
	assert_int_equal(lw_gpu_enter(gpu, 0, &guard), 0);
	assert_int_equal(lw_gpu_host_alloc(gpu, MIB, &pinned), 0);
	assert_int_equal(lw_gpu_host_pin(gpu, mine, MIB), 0);
	assert_int_equal(lw_gpu_host_pin(gpu, mine, MIB), -EEXIST);
	assert_int_equal(lw_gpu_find(pinned, &memory), -ENOENT);
	assert_int_equal(lw_gpu_find(mine, &memory), -ENOENT);
	lw_gpu_host_unpin(gpu, mine);
	lw_gpu_host_free(gpu, pinned);
	lw_gpu_leave(&guard);
	free(mine);
	assert_int_equal(test_gpu_live("host") + test_gpu_live("pinned"), 0);
}

/* The CPU would touch what is taken for the host's memory. */
static void test_find_that_fails_is_no_word_for_the_hosts(void **state)
{
	static const char *const entries[LW_GPU_VENDORS][2] = {{"DeviceGetCount", "PointerGetAttribute"},
							       {"PointerGetAttributes", "MemGetAddressRange"},
							       {"DeviceGetCount", "PointerGetAttribute"},
							       {"PointerGetAttributes", "GetDevice"}};

	(void)state;
	for (int v = 0; v < LW_GPU_VENDORS; v++) {
		unsigned char *device = test_gpu_alloc((enum lw_gpu_vendor)v, 0, MIB);
		struct lw_gpu_memory memory;

		open_gpu((enum lw_gpu_vendor)v);
		for (int i = 0; i < 2; i++) {
			test_gpu_fail(entries[v][i], 1, 999);
			assert_int_not_equal(lw_gpu_find(device, &memory), -ENOENT);
			assert_true(test_gpu_failed());
		}
		assert_int_equal(lw_gpu_find(device, &memory), 0);
		test_gpu_free((enum lw_gpu_vendor)v, device);
	}
}

/* A thread that never named a device must not get a context on device 0 because of us. Threads of their own don't
 * assert, but return what is wrong. */
static void *look_from_a_fresh_thread(void *arg)
{
	const struct lw_gpu *gpu = lw_gpu_opened(LW_GPU_MUSA);
	struct lw_gpu_memory memory;
	struct lw_gpu_guard guard;

	if (lw_gpu_find(arg, &memory) != 0 || lw_gpu_enter(gpu, memory.device, &guard) != 0)
		return "the memory is not found";
	if (test_gpu_device(LW_GPU_MUSA) != 1)
		return "the guard does not hold";
	lw_gpu_leave(&guard);
	return test_gpu_device(LW_GPU_MUSA) == 0 ? NULL : "the thread's device was changed";
}

static void *use_device_1_alone(void *arg)
{
	size_t before;
	pthread_t thread;
	void *device, *wrong;

	(void)arg;
	test_gpu_set_device(LW_GPU_MUSA, 1);
	device = test_gpu_alloc(LW_GPU_MUSA, 1, MIB);
	before = test_gpu_live("context");
	pthread_create(&thread, NULL, look_from_a_fresh_thread, device);
	pthread_join(thread, &wrong);
	if (wrong == NULL && test_gpu_live("context") != before)
		wrong = "a context came into being";
	test_gpu_free(LW_GPU_MUSA, device);
	return wrong;
}

/* Before the tests that use all devices. */
static void test_guard_makes_no_context_elsewhere(void **state)
{
	pthread_t thread;
	void *wrong;

	(void)state;
	open_gpu(LW_GPU_MUSA);
	pthread_create(&thread, NULL, use_device_1_alone, NULL);
	pthread_join(thread, &wrong);
	if (wrong != NULL)
		fail_msg("%s", (const char *)wrong);
}

static void test_guards_nest_and_restore_the_device(void **state)
{
	(void)state;
	for (int v = 0; v < LW_GPU_VENDORS; v++) {
		enum lw_gpu_vendor vendor = (enum lw_gpu_vendor)v;
		const struct lw_gpu *gpu = open_gpu(vendor);
		struct lw_gpu_guard outer, inner;

		test_gpu_set_device(vendor, 0);
		assert_int_equal(lw_gpu_enter(gpu, 1, &outer), 0);
		assert_int_equal(lw_gpu_enter(gpu, 0, &inner), 0);
		assert_int_equal(test_gpu_device(vendor), 0);
		lw_gpu_leave(&inner);
		assert_int_equal(test_gpu_device(vendor), 1);
		lw_gpu_leave(&outer);
		assert_int_equal(test_gpu_device(vendor), 0);
		assert_int_equal(lw_gpu_enter(gpu, 7, &outer), -ENODEV);
		assert_int_equal(lw_gpu_enter(gpu, -1, &outer), -ENODEV);
		assert_int_equal(test_gpu_device(vendor), 0);
	}
}

/* Who frees has no other occasion: what fails once is tried again. */
static void test_fault_that_passes_does_not_keep_from_freeing(void **state)
{
	(void)state;
	for (int v = 0; v < LW_GPU_VENDORS; v++) {
		enum lw_gpu_vendor vendor = (enum lw_gpu_vendor)v;
		const char *entry = vendor == LW_GPU_CUDA || vendor == LW_GPU_MUSA ? "CtxPushCurrent" : "GetDevice";
		const struct lw_gpu *gpu = open_gpu(vendor);
		struct lw_gpu_guard guard;

		assert_int_equal(lw_gpu_enter(gpu, 1, &guard), 0); /* its context is there */
		lw_gpu_leave(&guard);
		test_gpu_fail(entry, 1, 1);
		assert_true(lw_gpu_enter(gpu, 1, &guard) < 0);
		test_gpu_fail(entry, 1, 1);
		assert_int_equal(lw_gpu_enter_to_free(gpu, 1, &guard), 0);
		assert_true(test_gpu_failed());
		lw_gpu_leave(&guard);
		test_gpu_fail(entry, 0, 1);
		assert_true(lw_gpu_enter_to_free(gpu, 1, &guard) < 0);
		test_gpu_fail(entry, 0, 0);
	}
}

static void test_copies_move_bytes_between_devices_and_host(void **state)
{
	(void)state;
	test_gpu_delay(50);
	for (int v = 0; v < LW_GPU_VENDORS; v++) {
		enum lw_gpu_vendor vendor = (enum lw_gpu_vendor)v;
		const struct lw_gpu *gpu = open_gpu(vendor);
		unsigned char *a = test_gpu_alloc(vendor, 0, MIB), *b = test_gpu_alloc(vendor, 1, MIB);
		struct lw_gpu_stream stream;
		struct lw_gpu_event event;
		struct lw_gpu_guard guard;
		unsigned char *host;
		void *pinned;

		assert_int_equal(lw_gpu_enter(gpu, 0, &guard), 0);
		assert_int_equal(lw_gpu_host_alloc(gpu, MIB, &pinned), 0);
		assert_int_equal(lw_gpu_stream_create(gpu, 0, &stream), 0);
		assert_int_equal(lw_gpu_event_create(gpu, &event), 0);
		assert_int_equal(lw_gpu_peer_enable(gpu, 0, 1), 0);
		assert_int_equal(lw_gpu_peer_enable(gpu, 0, 1), 0);
		host = pinned;
		for (size_t i = 0; i < MIB; i++)
			host[i] = (unsigned char)(i * 7 + i / 256);
		assert_int_equal(lw_gpu_copy(&stream, a, host, MIB), 0);
		assert_int_equal(lw_gpu_copy(&stream, b, a, MIB), 0);
		assert_int_equal(lw_gpu_event_record(&event, &stream), 0);
		assert_int_equal(wait_for(&event), 1);
		assert_memory_equal(test_gpu_peek(b), host, MIB);
		memset(host, 0, MIB);
		assert_int_equal(lw_gpu_copy(&stream, host, b + 1, MIB - 1), 0);
		assert_int_equal(lw_gpu_event_record(&event, &stream), 0);
		assert_int_equal(wait_for(&event), 1);
		assert_memory_equal(test_gpu_peek(b + 1), host, MIB - 1);
		assert_int_equal(lw_gpu_copy(&stream, a, b, MIB + 1), -EINVAL);
		lw_gpu_event_destroy(&event);
		lw_gpu_stream_destroy(&stream);
		lw_gpu_host_free(gpu, pinned);
		lw_gpu_leave(&guard);
		test_gpu_free(vendor, a);
		test_gpu_free(vendor, b);
	}
	test_gpu_delay(0);
	assert_int_equal(test_gpu_blocked(), 0);
	assert_int_equal(test_gpu_live("stream") + test_gpu_live("event") + test_gpu_live("memory"), 0);
}

static void test_event_query_waits_for_nobody(void **state)
{
	const struct lw_gpu *gpu = open_gpu(LW_GPU_CUDA);
	unsigned char *a = test_gpu_alloc(LW_GPU_CUDA, 0, MIB);
	struct lw_gpu_stream stream;
	struct lw_gpu_event event;
	struct lw_gpu_guard guard;

	(void)state;
	assert_int_equal(lw_gpu_enter(gpu, 0, &guard), 0);
	assert_int_equal(lw_gpu_stream_create(gpu, 0, &stream), 0);
	assert_int_equal(lw_gpu_event_create(gpu, &event), 0);
	test_gpu_hold(true);
	assert_int_equal(lw_gpu_copy(&stream, a, a + MIB / 2, MIB / 2), 0);
	assert_int_equal(lw_gpu_event_record(&event, &stream), 0);
	assert_int_equal(lw_gpu_event_query(&event), 0);
	test_gpu_hold(false);
	assert_int_equal(wait_for(&event), 1);
	test_gpu_fail("Copy", 1, 700);
	assert_int_equal(lw_gpu_copy(&stream, a, a + MIB / 2, MIB / 2), 0);
	assert_int_equal(lw_gpu_event_record(&event, &stream), 0);
	assert_int_equal(wait_for(&event), -EIO);
	lw_gpu_event_destroy(&event);
	lw_gpu_stream_destroy(&stream);
	lw_gpu_leave(&guard);
	test_gpu_free(LW_GPU_CUDA, a);
}

/* In a child, which shares nothing of the runtime: it opens what the parent has exported. */
static int import_in_child(const struct lw_gpu_handle *handle)
{
	char text[2 * LW_GPU_HANDLE_BYTES + 1], command[1024];

	for (int i = 0; i < LW_GPU_HANDLE_BYTES; i++)
		snprintf(text + 2 * i, 3, "%02x", handle->bytes[i]);
	snprintf(command, sizeof(command), "GPU_TEST_HANDLE=%s exec %s", text, "/proc/$PPID/exe");
	return system(command);
}

static int be_the_child(const char *text)
{
	const struct lw_gpu *gpu = open_gpu(LW_GPU_CUDA);
	struct lw_gpu_handle handle;
	struct lw_gpu_memory memory;
	struct lw_gpu_guard guard;
	void *base, *again;
	unsigned int byte;
	int count;

	for (int i = 0; i < LW_GPU_HANDLE_BYTES; i++) {
		if (sscanf(text + 2 * (size_t)i, "%2x", &byte) != 1)
			return 2;
		handle.bytes[i] = (unsigned char)byte;
	}
	if (lw_gpu_devices(gpu, &count) != 0 || lw_gpu_enter(gpu, 1, &guard) != 0)
		return 3;
	if (lw_gpu_ipc_open(gpu, &handle, &base) != 0)
		return 4;
	if (lw_gpu_ipc_open(gpu, &handle, &again) == 0) /* the stand-in says so, the real one counts */
		return 5;
	if (test_gpu_peek(base)[777] != 77)
		return 6;
	test_gpu_peek(base)[778] = 78;
	if (lw_gpu_find(base, &memory) != 0 || memory.device != 1)
		return 7;
	lw_gpu_ipc_close(gpu, base);
	lw_gpu_leave(&guard);
	return test_gpu_live("import") == 0 ? 0 : 8;
}

static void test_handle_opens_in_another_process_until_the_memory_is_freed(void **state)
{
	const struct lw_gpu *gpu = open_gpu(LW_GPU_CUDA);
	unsigned char *device = test_gpu_alloc(LW_GPU_CUDA, 1, MIB);
	struct lw_gpu_handle handle;
	struct lw_gpu_guard guard;
	void *base;
	int status;

	(void)state;
	assert_int_equal(lw_gpu_enter(gpu, 1, &guard), 0);
	assert_int_equal(lw_gpu_ipc_get(gpu, device, &handle), 0);
	assert_int_equal(lw_gpu_ipc_open(gpu, &handle, &base), -EIO); /* in its own process */
	assert_int_equal(lw_gpu_ipc_get(gpu, &base, &handle), -ENOTSUP);
	assert_int_equal(lw_gpu_ipc_get(gpu, device, &handle), 0);
	lw_gpu_leave(&guard);
	test_gpu_peek(device)[777] = 77;
	status = import_in_child(&handle);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(test_gpu_peek(device)[778], 78);
	test_gpu_free(LW_GPU_CUDA, device);
	status = import_in_child(&handle);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 4);
}

/* Everything that there is, once. */
static void use_everything(const struct lw_gpu *gpu, void *device)
{
	struct lw_gpu_stream stream = {0};
	struct lw_gpu_event event = {0};
	struct lw_gpu_handle handle = {{0}};
	struct lw_gpu_memory memory;
	struct lw_gpu_guard guard;
	void *pinned = NULL, *import = NULL, *mine = malloc(4096);
	int count;

	lw_gpu_devices(gpu, &count);
	lw_gpu_find(device, &memory);
	if (lw_gpu_enter(gpu, 1, &guard) != 0) {
		free(mine);
		return;
	}
	lw_gpu_peer_enable(gpu, 1, 0);
	if (lw_gpu_host_alloc(gpu, 4096, &pinned) == 0)
		memset(pinned, 1, 4096);
	if (lw_gpu_host_pin(gpu, mine, 4096) == 0)
		lw_gpu_host_unpin(gpu, mine);
	lw_gpu_ipc_get(gpu, device, &handle);
	if (lw_gpu_ipc_open(gpu, &handle, &import) == 0)
		lw_gpu_ipc_close(gpu, import);
	if (lw_gpu_stream_create(gpu, 1, &stream) == 0 && lw_gpu_event_create(gpu, &event) == 0 && pinned != NULL &&
	    lw_gpu_copy(&stream, device, pinned, 4096) == 0 && lw_gpu_event_record(&event, &stream) == 0) {
		wait_for(&event); /* if the query fails, that says nothing of the copy */
		wait_for(&event);
	}
	lw_gpu_event_destroy(&event);
	lw_gpu_stream_destroy(&stream);
	for (uint64_t end_ns = lw_now_ns() + UINT64_C(10000000000);
	     test_gpu_live("stream") != 0 && lw_now_ns() < end_ns;)
		usleep(100);
	lw_gpu_host_free(gpu, pinned);
	lw_gpu_leave(&guard);
	free(mine);
}

static void test_a_fault_anywhere_leaks_nothing_and_keeps_the_device(void **state)
{
	(void)state;
	for (int v = 0; v < LW_GPU_VENDORS; v++) {
		enum lw_gpu_vendor vendor = (enum lw_gpu_vendor)v;
		const struct lw_gpu *gpu = open_gpu(vendor);
		void *device = test_gpu_alloc(vendor, 1, MIB);
		const char *entry;

		test_gpu_set_device(vendor, 0);
		for (size_t i = 0; (entry = test_gpu_entry(i)) != NULL; i++) {
			test_gpu_fail(entry, 1, 2);
			use_everything(gpu, device);
			test_gpu_fail(entry, 0, 0);
			assert_int_equal(test_gpu_device(vendor), 0);
			if (test_gpu_live("stream") + test_gpu_live("event") + test_gpu_live("host") +
				    test_gpu_live("pinned") + test_gpu_live("import") !=
			    0)
				fail_msg("%s: a fault of %s leaks", lw_gpu_vendor_name(vendor), entry);
		}
		test_gpu_free(vendor, device);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_without_a_library_says_what_is_missing),
		cmocka_unit_test(test_open_twice_gives_the_same_and_no_other_file),
		cmocka_unit_test(test_find_in_a_process_without_gpu_starts_nothing),
		cmocka_unit_test(test_guard_makes_no_context_elsewhere),
		cmocka_unit_test(test_find_tells_device_and_whole_allocation),
		cmocka_unit_test(test_find_that_fails_is_no_word_for_the_hosts),
		cmocka_unit_test(test_find_of_pinned_memory_is_the_hosts),
		cmocka_unit_test(test_guards_nest_and_restore_the_device),
		cmocka_unit_test(test_fault_that_passes_does_not_keep_from_freeing),
		cmocka_unit_test(test_copies_move_bytes_between_devices_and_host),
		cmocka_unit_test(test_event_query_waits_for_nobody),
		cmocka_unit_test(test_handle_opens_in_another_process_until_the_memory_is_freed),
		cmocka_unit_test(test_a_fault_anywhere_leaks_nothing_and_keeps_the_device),
	};

	if (getenv("GPU_TEST_HANDLE") != NULL)
		return be_the_child(getenv("GPU_TEST_HANDLE"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
