/* SPDX-License-Identifier: Apache-2.0 */
/* lw_mem_alloc and lw_mem_free: arguments, what the memory is, who may free it, and that nothing stays behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/engines.h"
#include "lib/engine.h"

#define MIB ((size_t)1 << 20)

static void test_mem_alloc_gives_zeroed_memory_that_can_be_registered(void **state)
{
	struct lw_engine *engine = test_engine(NULL);
	unsigned char *memory = NULL;
	lw_buffer_t id;

	(void)state;
	assert_int_equal(lw_mem_alloc(engine, 3 * MIB + 1, NULL, 0, (void **)&memory), 0);
	assert_int_equal((uintptr_t)memory % 4096, 0);
	for (size_t i = 0; i < 3 * MIB + 1; i++)
		assert_int_equal(memory[i], 0);
	memory[3 * MIB] = 7;
	id = test_register(engine, memory + 4096, MIB, LW_ACCESS_REMOTE);
	assert_int_equal(lw_mem_free(engine, memory), -EBUSY);
	assert_non_null(strstr(lw_last_error(), "still registered"));
	assert_int_equal(memory[3 * MIB], 7);
	assert_int_equal(lw_memory_unregister(engine, &id, 1, 0), 0);
	assert_int_equal(lw_mem_free(engine, memory), 0);
	assert_int_equal(lw_mem_free(engine, memory), -EINVAL);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_mem_alloc_memory_cant_be_shrunk(void **state)
{
	struct lw_engine *engine = test_engine(NULL);
	void *memory = NULL;

	(void)state;
	assert_int_equal(lw_mem_alloc(engine, 8192, "*", 0, &memory), 0);
	assert_int_equal(fcntl(engine->areas->fd, F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
	assert_int_equal(ftruncate(engine->areas->fd, 0), -1);
	assert_int_equal(fcntl(engine->areas->fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_mem_alloc_wrong_arguments_refused(void **state)
{
	struct lw_engine *engine = test_engine(NULL), *other = test_engine(NULL);
	void *memory = &engine;

	(void)state;
	assert_int_equal(lw_mem_alloc(NULL, 1, NULL, 0, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 1, NULL, 0, NULL), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 0, NULL, 0, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, SIZE_MAX, NULL, 0, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 1, NULL, 2, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 1, "cuda:0", 0, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 1, "cpu:", 0, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 1, "cpu:-1", 0, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 1, "cpu:0x", 0, &memory), -EINVAL);
	assert_int_equal(lw_mem_alloc(engine, 1, "cpu:99999999999999999999", 0, &memory), -EINVAL);
	assert_ptr_equal(memory, &engine); /* written on success alone */
	/* More than there is: an error, and no SIGBUS later. */
	assert_int_equal(lw_mem_alloc(engine, (size_t)1 << 46, NULL, LW_MEM_SMALL_PAGES, &memory), -ENOMEM);
	assert_non_null(strstr(lw_last_error(), "shared memory"));
	assert_int_equal(lw_mem_alloc(engine, 1, "cpu:0", LW_MEM_SMALL_PAGES, &memory), 0);
	assert_int_equal(lw_mem_free(engine, NULL), -EINVAL);
	assert_int_equal(lw_mem_free(engine, (char *)memory + 1), -EINVAL);
	assert_int_equal(lw_mem_free(other, memory), -EINVAL);
	assert_int_equal(lw_mem_free(NULL, memory), -EINVAL);
	assert_int_equal(lw_mem_free(engine, memory), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(lw_mem_alloc(engine, 1, NULL, 0, &memory), -ESHUTDOWN);
	assert_int_equal(lw_mem_free(engine, memory), -ESHUTDOWN);
	assert_int_equal(lw_engine_close(other), 0);
}

static int mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int count = 0;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps) != NULL)
		count += strstr(line, "memfd:lanewise") != NULL;
	fclose(maps);
	return count;
}

static void test_mem_alloc_leaves_nothing_behind(void **state)
{
	struct lw_engine *engine = test_engine("hugepages=on shm_peers=on");
	int fds = test_fds(), maps = mapped();
	void *memory[8];

	(void)state;
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 8; i++)
			assert_int_equal(lw_mem_alloc(engine, (size_t)(i + 1) * MIB, NULL, 0, &memory[i]), 0);
		for (int i = 0; i < 8; i++)
			assert_int_equal(lw_mem_free(engine, memory[(i + round) % 8]), 0);
	}
	assert_int_equal(test_fds(), fds);
	assert_int_equal(mapped(), maps);
	/* What the application forgets goes with the engine. */
	assert_int_equal(lw_mem_alloc(engine, MIB, NULL, 0, &memory[0]), 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(mapped(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mem_alloc_gives_zeroed_memory_that_can_be_registered),
		cmocka_unit_test(test_mem_alloc_memory_cant_be_shrunk),
		cmocka_unit_test(test_mem_alloc_wrong_arguments_refused),
		cmocka_unit_test(test_mem_alloc_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
