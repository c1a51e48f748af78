/* SPDX-License-Identifier: Apache-2.0 */
#include "common/traced.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK 0x4c57 /* a prctl that does not exist */

void traced_mark(bool begin)
{
	prctl(MARK, begin, 0, 0, 0);
}

bool traced_hot(pid_t process, pid_t thread, const struct ptrace_syscall_info *info, void *arg)
{
	char path[64], name[32] = "";
	FILE *file;

	(void)arg;
	if (info->entry.nr == SYS_sched_yield)
		return false;
	if (process == thread)
		return true;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", process, thread);
	file = fopen(path, "r");
	if (file == NULL)
		return false;
	if (fgets(name, sizeof(name), file) == NULL)
		name[0] = '\0';
	fclose(file);
	return strncmp(name, "lw-w", 4) == 0;
}

int traced_calls(int (*body)(void *arg), traced_counts *counts, void *arg)
{
	pid_t process = fork();
	bool marked = false;
	int calls = 0, status;

	assert_true(process >= 0);
	if (process == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
			_exit(77);
		raise(SIGSTOP);
		_exit(body(arg));
	}
	waitpid(process, &status, WUNTRACED);
	if (WIFEXITED(status))
		return -2;
	ptrace(PTRACE_SETOPTIONS, process, NULL, PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
	ptrace(PTRACE_SYSCALL, process, NULL, 0);
	for (;;) {
		pid_t thread = waitpid(-1, &status, __WALL);
		struct ptrace_syscall_info info;
		int signal = 0;

		if (thread < 0)
			return -1;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == process)
				return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? calls : -1;
			continue;
		}
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) > 0 &&
			    info.op == PTRACE_SYSCALL_INFO_ENTRY) {
				if (info.entry.nr == SYS_prctl && info.entry.args[0] == MARK)
					marked = info.entry.args[1] != 0;
				else if (marked && counts(process, thread, &info, arg))
					calls++;
			}
		} else if (status >> 16 == 0 && WSTOPSIG(status) != SIGSTOP && WSTOPSIG(status) != SIGTRAP) {
			signal = WSTOPSIG(status);
		}
		ptrace(PTRACE_SYSCALL, thread, NULL, signal);
	}
}
