/* SPDX-License-Identifier: Apache-2.0 */
/* Networks of a test's own, with links that can be slowed down and broken. They are bound to processes: nothing is left
 * when these are gone, however they end. */
#ifndef LW_TEST_NET_H
#define LW_TEST_NET_H

#include <stdbool.h>
#include <sys/types.h>

/* Takes this process, which has one thread still, into a network namespace that holds nothing but a loopback device.
 * False, with the reason printed: that can't be done here. */
bool test_net_enter(void);

/* Gives the calling peer (see common/peer.h) a namespace and a link to the process that started it. The link is called
 * lwNUMBER there and eth0 here; the addresses are 10.99.NUMBER.1 there and 10.99.NUMBER.2 here. Ends the peer if that
 * can't be done. */
void test_net_join(unsigned number);

/* Runs a command line, which must succeed; pid: in the network of that process, 0: of this one. */
void test_net_run(pid_t pid, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, and tells whether it succeeded; its errors are not shown. */
bool test_net_can(pid_t pid, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
