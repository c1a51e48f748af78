/* SPDX-License-Identifier: Apache-2.0 */
/* System calls of a child, counted between two marks by tracing it (ptrace). */
#ifndef LW_TEST_TRACED_H
#define LW_TEST_TRACED_H

#include <stdbool.h>
#include <sys/ptrace.h> /* before linux/ptrace.h */
#include <sys/types.h>

#include <linux/ptrace.h>

/* Whether this call of a thread counts; info is that of its entry. */
typedef bool traced_counts(pid_t process, pid_t thread, const struct ptrace_syscall_info *info, void *arg);

/* Forks; the child runs body, which marks begin and end and whose value is its exit status. The number of calls that
 * count; -1 the child did not end with 0, -2 tracing is not allowed here. Blocks until the child has ended. */
int traced_calls(int (*body)(void *arg), traced_counts *counts, void *arg);

/* In the child: what counts begins, or ends. */
void traced_mark(bool begin);

/* What counts usually: calls of the main thread and of workers, but for sched_yield. The control thread is not on the
 * hot path. */
bool traced_hot(pid_t process, pid_t thread, const struct ptrace_syscall_info *info, void *arg);

#endif
