/* SPDX-License-Identifier: Apache-2.0 */
/* A program that does with metadata stores what lines on standard input say, for tests in scripts. */
#ifndef LW_TEST_STORE_CLIENT_H
#define LW_TEST_STORE_CLIENT_H

/* Words are separated by blanks and percent-encoded; "-" is none. Each line is answered by one: the result, the
 * milliseconds it took, and the value or the sentence, encoded.
 *
 *   open URL INCARNATION LEASE_S USER PASSWORD DB MAX_VALUE     closes the one before
 *   get KEY TIMEOUT_MS
 *   put KEY VALUE keep|take TIMEOUT_MS
 *   fill KEY BYTES TIMEOUT_MS                                   a put (take) of so many bytes
 *   renew KEY TIMEOUT_MS
 *   remove KEY INCARNATION TIMEOUT_MS
 *   storm URL THREADS SECONDS       threads with a store each, which check that they get what they have put; the sum
 *                                   of their rounds, or an error
 *   fds                             the number of open descriptors
 */
int test_store_client(void);

#endif
