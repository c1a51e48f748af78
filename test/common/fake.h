/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that opens like any other and then never answers a request: its data port is listened on, not served. */
#ifndef LW_TEST_FAKE_H
#define LW_TEST_FAKE_H

#include <stdint.h>

struct test_fake;

#define TEST_FAKE_ADDR UINT64_C(0x100000000) /* what it claims to offer */
#define TEST_FAKE_LENGTH (UINT64_C(1) << 40)

struct test_fake *test_fake_open(void);
void test_fake_close(struct test_fake *fake);

/* Name for lw_segment_open. */
const char *test_fake_name(const struct test_fake *fake);

/* The listening socket of its data port, for a test that wants to answer after all. */
int test_fake_listener(const struct test_fake *fake);

#endif
