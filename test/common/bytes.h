/* SPDX-License-Identifier: Apache-2.0 */
/* What tests that move bytes share: contents, checksums, guarded memory. Failures end the test. */
#ifndef LW_TEST_BYTES_H
#define LW_TEST_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

/* Bytes that depend on the seed and on the place. */
void test_fill(void *memory, size_t length, uint64_t seed);
/* CRC-32 as in zlib. */
uint32_t test_crc(const void *memory, size_t length);

/* Zeroed pages between two inaccessible ones; at: the wanted address of the pages, or NULL. length is rounded up to
 * whole pages, and the memory begins so that it ends where the pages end. */
unsigned char *test_map(size_t length, void *at);
void test_unmap(unsigned char *memory, size_t length);

/* Memory that this process holds. */
uint64_t test_rss_kib(void);

/* Submits into a batch, again while the ring is full, at most 10 s. */
void test_submit(struct lw_channel *channel, lw_batch_t batch, const struct lw_request *requests, size_t count);

#endif
