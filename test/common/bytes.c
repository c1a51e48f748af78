/* SPDX-License-Identifier: Apache-2.0 */
#include "common/bytes.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/engines.h"

#define PAGE ((size_t)4096)

/* Every byte is touched: ThreadSanitizer would take minutes. */
#define QUICK __attribute__((no_sanitize("thread")))

QUICK void test_fill(void *memory, size_t length, uint64_t seed)
{
	unsigned char *bytes = memory;
	uint64_t state = seed, word;
	size_t i;

	for (i = 0; i + 8 <= length; i += 8) {
		word = test_random(&state);
		memcpy(bytes + i, &word, 8);
	}
	word = test_random(&state);
	memcpy(bytes + i, &word, length - i);
}

QUICK uint32_t test_crc(const void *memory, size_t length)
{
	static uint32_t table[256];
	static atomic_bool made;
	const unsigned char *bytes = memory;
	uint32_t crc = UINT32_MAX;

	if (!atomic_load(&made)) {
		for (uint32_t i = 0; i < 256; i++) {
			uint32_t entry = i;

			for (int k = 0; k < 8; k++)
				entry = (entry & 1) != 0 ? entry >> 1 ^ 0xedb88320u : entry >> 1;
			table[i] = entry;
		}
		atomic_store(&made, true);
	}
	for (size_t i = 0; i < length; i++)
		crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
	return ~crc;
}

static size_t whole_pages(size_t length)
{
	return (length + PAGE - 1) / PAGE * PAGE;
}

unsigned char *test_map(size_t length, void *at)
{
	size_t pages = whole_pages(length);
	char *base = at != NULL ? (char *)at - PAGE : NULL;

	base = mmap(base, pages + 2 * PAGE, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != NULL ? MAP_FIXED_NOREPLACE : 0), -1, 0);
	if (base == MAP_FAILED || mprotect(base + PAGE, pages, PROT_READ | PROT_WRITE) != 0)
		fail_msg("no memory for %zu bytes: %s", length, strerror(errno));
	return (unsigned char *)base + PAGE + (pages - length);
}

void test_unmap(unsigned char *memory, size_t length)
{
	size_t pages = whole_pages(length);

	munmap(memory - (pages - length) - PAGE, pages + 2 * PAGE);
}

uint64_t test_rss_kib(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long long whole = 0, resident = 0;

	if (file == NULL || fscanf(file, "%llu %llu", &whole, &resident) != 2)
		fail_msg("/proc/self/statm can't be read");
	fclose(file);
	return resident * (PAGE / 1024);
}

void test_submit(struct lw_channel *channel, lw_batch_t batch, const struct lw_request *requests, size_t count)
{
	uint64_t begin_ms = test_now_ms();
	struct lw_completion unused;
	int error;

	while ((error = lw_submit(channel, batch, requests, count)) == -EAGAIN) {
		if (test_now_ms() - begin_ms > 10000)
			fail_msg("the ring stayed full for 10 s");
		if (lw_channel_poll(channel, &unused, 0) < 0) /* drives the engine in caller mode */
			fail_msg("poll: %s", lw_last_error());
		test_sleep_ms(1);
	}
	if (error != 0)
		fail_msg("submit: %d: %s", error, lw_last_error());
}
