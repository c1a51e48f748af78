/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for GPU runtimes (test/standin), as tests use it: what an application would call of its vendor's, and
 * the stand-in's own controls. Ends the test if it can't be loaded.
 */
#ifndef LW_TEST_GPU_H
#define LW_TEST_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/gpu/runtime.h"

/* Its file, for the settings cuda_library and so on. */
const char *test_gpu_library(void);

/* Memory of a device; ends the test if there is none. The thread's current device is as before. */
void *test_gpu_alloc(enum lw_gpu_vendor vendor, int device, size_t size);
void test_gpu_free(enum lw_gpu_vendor vendor, void *memory);
/* The bytes of memory of a device, for the CPU; NULL: it is none. */
unsigned char *test_gpu_peek(const void *memory);
/* The calling thread's device, for the application. */
void test_gpu_set_device(enum lw_gpu_vendor vendor, int device);
int test_gpu_device(enum lw_gpu_vendor vendor);

/* As in test/standin/standin.h. */
extern void (*test_gpu_fail)(const char *entry, unsigned int nth, int code);
extern bool (*test_gpu_failed)(void);
extern unsigned int (*test_gpu_calls)(const char *entry);
extern const char *(*test_gpu_entry)(size_t number);
extern size_t (*test_gpu_live)(const char *kind);
extern unsigned int (*test_gpu_blocked)(void);
extern void (*test_gpu_delay)(unsigned int us);
extern void (*test_gpu_slow)(unsigned int us);
extern void (*test_gpu_hold)(bool hold);
extern void (*test_gpu_own_imports)(bool allowed);

#endif
