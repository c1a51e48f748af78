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

static void add_link(pid_t starter, unsigned number)
{
	/* The network of a process that ended, and what links it, is there until the kernel comes to take it away. */
	test_net_can(starter, "ip link del lw%u", number);
	test_net_run(0, "ip link add lw%u type veth peer name lw%u netns %d", number, number, (int)starter);
	test_net_run(0, "ip addr add 10.99.%u.2/24 dev lw%u", number, number);
	test_net_run(0, "ip link set lw%u up", number);
	test_net_run(starter, "ip addr add 10.99.%u.1/24 dev lw%u", number, number);
	test_net_run(starter, "ip link set lw%u up", number);
}

void test_net_join(const char *numbers)
{
	pid_t starter = getppid();
	char *end;

	if (unshare(CLONE_NEWNET) != 0)
		fail_msg("no network namespace: %s", strerror(errno));
	test_net_run(0, "ip link set lo up");
	for (;; numbers = end + 1) {
		unsigned long number = strtoul(numbers, &end, 10);

		if (number == 0 || number > 254 || (*end != '\0' && *end != '+'))
			fail_msg("\"%s\" does not begin with the number of a link", numbers);
		add_link(starter, (unsigned)number);
		if (*end == '\0')
			return;
	}
}

bool test_net_rate(const struct test_link *link, const char *rate)
{
	const pid_t ends[] = {0, link->peer};

	for (int i = 0; i < 2; i++) {
		if (rate == NULL) {
			test_net_run(ends[i], "tc qdisc del dev lw%u root", link->number);
		} else if (!test_net_can(ends[i], "tc qdisc replace dev lw%u root tbf rate %s burst 128k latency 50ms",
					 link->number, rate)) {
			print_message("skipped: no tc with tbf\n");
			return false;
		}
	}
	return true;
}

/* In the network of pid: where the other end of the link is sought. */
static void mislead(const struct test_link *link, pid_t pid, bool wrong)
{
	unsigned other = pid == 0 ? 2 : 1;

	if (wrong)
		test_net_run(pid, "ip neigh replace 10.99.%u.%u lladdr 02:00:00:00:00:99 dev lw%u nud permanent",
			     link->number, other, link->number);
	else
		test_net_run(pid, "ip neigh del 10.99.%u.%u dev lw%u", link->number, other, link->number);
}

static void change(const struct test_link *link, enum test_cut how, bool cut)
{
	switch (how) {
	case TEST_CUT_HERE:
	case TEST_CUT_THERE:
		test_net_run(how == TEST_CUT_HERE ? 0 : link->peer, "ip link set lw%u %s", link->number,
			     cut ? "down" : "up");
		return;
	case TEST_CUT_SILENT:
		mislead(link, link->peer, cut);
		mislead(link, 0, cut);
		return;
	}
}

void test_net_cut(const struct test_link *link, enum test_cut how)
{
	change(link, how, true);
}

void test_net_mend(const struct test_link *link, enum test_cut how)
{
	change(link, how, false);
}

/* The kernel's table of this network's devices: "name: received bytes, packets and six more, sent bytes ...". */
uint64_t test_net_sent(const struct test_link *link)
{
	FILE *file = fopen("/proc/thread-self/net/dev", "re");
	unsigned long long sent = 0;
	char line[LINE], name[16];

	if (file == NULL) {
		fail_msg("no table of devices: %s", strerror(errno));
		return 0;
	}
	snprintf(name, sizeof(name), "lw%u:", link->number);
	while (fgets(line, sizeof(line), file) != NULL) {
		const char *at = strstr(line, name);

		if (at != NULL)
			sscanf(at + strlen(name), "%*u %*u %*u %*u %*u %*u %*u %*u %llu", &sent);
	}
	fclose(file);
	return sent;
}
