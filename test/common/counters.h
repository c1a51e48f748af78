/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of allocator and lock calls, by functions of the same names, which the calls of all libraries of the process
 * resolve to. For one source file of a program. With a sanitizer, which has such functions itself, SANITIZED is defined
 * and nothing is counted. */
#ifndef LW_TEST_COUNTERS_H
#define LW_TEST_COUNTERS_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Counted while armed is not 0; lock calls from code between foreign_from and foreign_to apart. */
#define COUNTER static __attribute__((unused)) _Atomic
COUNTER int armed;
COUNTER uint64_t allocations, locks, foreign_locks;
COUNTER uintptr_t foreign_from, foreign_to;
#undef COUNTER

#ifndef SANITIZED
#pragma GCC visibility push(default) /* shared libraries are to find them */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): libc's names are not ours */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static void count(_Atomic uint64_t *counter)
{
	if (atomic_load_explicit(&armed, memory_order_relaxed) != 0)
		atomic_fetch_add(counter, 1);
}

static void count_lock(uintptr_t caller)
{
	count(caller >= atomic_load_explicit(&foreign_from, memory_order_relaxed) &&
			      caller < atomic_load_explicit(&foreign_to, memory_order_relaxed)
		      ? &foreign_locks
		      : &locks);
}

void *malloc(size_t size)
{
	count(&allocations);
	return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
	count(&allocations);
	return __libc_calloc(number, size);
}

void *realloc(void *memory, size_t size)
{
	count(&allocations);
	return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	count(&allocations);
	return __libc_memalign(alignment, size);
}

void free(void *memory)
{
	if (memory != NULL)
		count(&allocations);
	__libc_free(memory);
}

/* The lock functions of libc, found before they are needed. */
#define LOCKS(X)                                                                                                       \
	X(pthread_mutex_lock, pthread_mutex_t)                                                                         \
	X(pthread_mutex_trylock, pthread_mutex_t)                                                                      \
	X(pthread_mutex_unlock, pthread_mutex_t)                                                                       \
	X(pthread_cond_signal, pthread_cond_t)                                                                         \
	X(pthread_cond_broadcast, pthread_cond_t)                                                                      \
	X(pthread_rwlock_rdlock, pthread_rwlock_t)                                                                     \
	X(pthread_rwlock_wrlock, pthread_rwlock_t)                                                                     \
	X(pthread_rwlock_unlock, pthread_rwlock_t)                                                                     \
	X(pthread_spin_lock, pthread_spinlock_t)
#define X(name, type)                                                                                                  \
	int name(type *lock)                                                                                           \
	{                                                                                                              \
		static int (*next)(type *);                                                                            \
                                                                                                                       \
		if (next == NULL)                                                                                      \
			*(void **)&next = dlsym(RTLD_NEXT, #name);                                                     \
		count_lock((uintptr_t)__builtin_return_address(0));                                                    \
		return next(lock);                                                                                     \
	}
LOCKS(X)
#undef X
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
#pragma GCC visibility pop
#endif

#endif
