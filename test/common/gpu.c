/* SPDX-License-Identifier: Apache-2.0 */
#include "common/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const prefixes[LW_GPU_VENDORS] = {"cuda", "hip", "musa", "mc"};

static void *library;
static char path[512];
static void *(*peek)(const void *addr);

void (*test_gpu_fail)(const char *entry, unsigned int nth, int code);
bool (*test_gpu_failed)(void);
unsigned int (*test_gpu_calls)(const char *entry);
const char *(*test_gpu_entry)(size_t number);
size_t (*test_gpu_live)(const char *kind);
unsigned int (*test_gpu_blocked)(void);
void (*test_gpu_delay)(unsigned int us);
void (*test_gpu_slow)(unsigned int us);
void (*test_gpu_hold)(bool hold);
void (*test_gpu_own_imports)(bool allowed);

static void end(const char *what)
{
	fprintf(stderr, "the stand-in for GPU runtimes: %s\n", what);
	abort();
}

static void find(const char *name, void *to)
{
	void *symbol = dlsym(library, name);

	if (symbol == NULL)
		end(dlerror());
	memcpy(to, &symbol, sizeof(symbol));
}

const char *test_gpu_library(void)
{
	const char *build = getenv("LW_BUILD_DIR");

	if (library != NULL)
		return path;
	if (build == NULL)
		end("LW_BUILD_DIR does not say where it was built");
	snprintf(path, sizeof(path), "%s/test/standin/libgpu_standin.so", build);
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (library == NULL)
		end(dlerror());
	find("standin_peek", &peek);
	find("standin_fail", &test_gpu_fail);
	find("standin_failed", &test_gpu_failed);
	find("standin_calls", &test_gpu_calls);
	find("standin_entry", &test_gpu_entry);
	find("standin_live", &test_gpu_live);
	find("standin_blocked", &test_gpu_blocked);
	find("standin_delay", &test_gpu_delay);
	find("standin_slow", &test_gpu_slow);
	find("standin_hold", &test_gpu_hold);
	find("standin_own_imports", &test_gpu_own_imports);
	return path;
}

static void find_of(enum lw_gpu_vendor vendor, const char *name, void *to)
{
	char symbol[64];

	test_gpu_library();
	snprintf(symbol, sizeof(symbol), "%s%s", prefixes[vendor], name);
	find(symbol, to);
}

void test_gpu_set_device(enum lw_gpu_vendor vendor, int device)
{
	int (*set)(int device);

	find_of(vendor, "SetDevice", &set);
	if (set(device) != 0)
		end("there is no such device");
}

int test_gpu_device(enum lw_gpu_vendor vendor)
{
	int (*get)(int *device);
	int device;

	find_of(vendor, "GetDevice", &get);
	if (get(&device) != 0)
		end("it knows no device");
	return device;
}

void *test_gpu_alloc(enum lw_gpu_vendor vendor, int device, size_t size)
{
	int (*allocate)(void **out, size_t bytes);
	int before = test_gpu_device(vendor);
	void *memory;

	find_of(vendor, "Malloc", &allocate);
	if (before != device)
		test_gpu_set_device(vendor, device);
	if (allocate(&memory, size) != 0)
		end("no memory");
	if (before != device)
		test_gpu_set_device(vendor, before);
	return memory;
}

void test_gpu_free(enum lw_gpu_vendor vendor, void *memory)
{
	int (*release)(void *addr);

	find_of(vendor, "Free", &release);
	if (release(memory) != 0)
		end("memory is freed that is none");
}

unsigned char *test_gpu_peek(const void *memory)
{
	test_gpu_library();
	return peek(memory);
}
