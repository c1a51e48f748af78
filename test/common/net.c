/* SPDX-License-Identifier: Apache-2.0 */
#include "common/net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 512

static int run(pid_t pid, const char *line, bool quiet)
{
	char whole[LINE * 2], inside[64] = "";

	if (pid != 0)
		snprintf(inside, sizeof(inside), "nsenter -t %d -n ", (int)pid);
	snprintf(whole, sizeof(whole), "PATH=$PATH:/usr/sbin:/sbin; %s%s%s", inside, line, quiet ? " 2>/dev/null" : "");
	fflush(NULL);
	return system(whole); /* NOLINT(cert-env33-c): our own words */
}

void test_net_run(pid_t pid, const char *format, ...)
{
	char line[LINE];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (run(pid, line, false) != 0)
		fail_msg("\"%s\" failed", line);
}

bool test_net_can(pid_t pid, const char *format, ...)
{
	char line[LINE];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	return run(pid, line, true) == 0;
}

bool test_net_enter(void)
{
	if (geteuid() != 0) {
		print_message("skipped: only root can make a network of its own\n");
		return false;
	}
	if (!test_net_can(0, "command -v ip nsenter >/dev/null")) {
		print_message("skipped: ip and nsenter are needed\n");
		return false;
	}
	if (unshare(CLONE_NEWNET) != 0) {
		print_message("skipped: no network namespace: %s\n", strerror(errno));
		return false;
	}
	if (!test_net_can(0, "ip link set lo up") || !test_net_can(0, "ip link add lwtry type veth peer name lwtry2") ||
	    !test_net_can(0, "ip link del lwtry")) {
		print_message("skipped: no veth devices can be made here\n");
		return false;
	}
	return true;
}

void test_net_join(unsigned number)
{
	pid_t starter = getppid();

	if (unshare(CLONE_NEWNET) != 0)
		fail_msg("no network namespace: %s", strerror(errno));
	test_net_run(0, "ip link set lo up");
	test_net_run(0, "ip link add eth0 type veth peer name lw%u netns %d", number, (int)starter);
	test_net_run(0, "ip addr add 10.99.%u.2/24 dev eth0", number);
	test_net_run(0, "ip link set eth0 up");
	test_net_run(starter, "ip addr add 10.99.%u.1/24 dev lw%u", number, number);
	test_net_run(starter, "ip link set lw%u up", number);
}
