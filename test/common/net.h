/* SPDX-License-Identifier: Apache-2.0 */
/* Networks of a test's own, with links that can be slowed down and broken. They are bound to processes: nothing is left
 * when these are gone, however they end. */
#ifndef LW_TEST_NET_H
#define LW_TEST_NET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Takes this process, which has one thread still, into a network namespace that holds nothing but a loopback device.
 * False, with the reason printed: that can't be done here. */
bool test_net_enter(void);

/* Gives the calling peer (see common/peer.h) a namespace and links to the process that started it. numbers: "1", or
 * "1+2" for several. Link N is called lwN at both ends; its addresses are 10.99.N.1 at the starter and 10.99.N.2 here.
 * Ends the peer if that can't be done. */
void test_net_join(const char *numbers);

/* A link, from the starter's side. */
struct test_link {
	unsigned number;
	pid_t peer; /* the process at its other end */
};

/* Lets each direction of the link carry so much and no more, as tc writes it: "200mbit"; NULL: as much as it can.
 * False, with the reason printed: there is no tc with tbf here. */
bool test_net_rate(const struct test_link *link, const char *rate);

enum test_cut {
	TEST_CUT_HERE,   /* the starter's device is down: its kernel says so to who sends */
	TEST_CUT_THERE,  /* the peer's is: the starter's loses its carrier */
	TEST_CUT_SILENT, /* all devices are up, and packets of both directions vanish without a word */
};

/* Breaks the link, and mends what was broken so. Connections survive it if they are patient. */
void test_net_cut(const struct test_link *link, enum test_cut how);
void test_net_mend(const struct test_link *link, enum test_cut how);

/* Bytes that this side has put on the link so far, with their headers. */
uint64_t test_net_sent(const struct test_link *link);

/* Runs a command line, which must succeed; pid: in the network of that process, 0: of this one. */
void test_net_run(pid_t pid, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, and tells whether it succeeded; its errors are not shown. */
bool test_net_can(pid_t pid, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
