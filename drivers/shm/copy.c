/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/shm/copy.h"

#include <string.h>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <immintrin.h>

#define LINE 64u
#define AHEAD 2048u /* bytes that are asked for before they are needed */

/* Whole lines from any address to an aligned one. Measured on Zen 4, 1 MiB blocks of 64 MiB: 1.4 to 1.6 times memcpy's
 * rate; as fast as 64-byte stores; without asking ahead 1.25 times; asking ahead past the cache (NTA) 0.65 times. */
static void stream(unsigned char *to, const unsigned char *from, uint64_t lines)
{
	for (; lines > 0; lines--, to += LINE, from += LINE) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

		_mm_prefetch((const char *)from + AHEAD, _MM_HINT_T0);
		_mm_stream_si128((__m128i *)(void *)to, a);
		_mm_stream_si128((__m128i *)(void *)(to + 16), b);
		_mm_stream_si128((__m128i *)(void *)(to + 32), c);
		_mm_stream_si128((__m128i *)(void *)(to + 48), d);
	}
	_mm_sfence(); /* before the store that tells somebody of the bytes */
}

void shm_copy(void *to, const void *from, uint64_t length, bool past_cache)
{
	uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
	uint64_t head = -a % LINE, lines;

	if (!past_cache || length < 4 * LINE || (a < b ? b - a : a - b) < length) {
		memmove(to, from, length);
		return;
	}
	memcpy(to, from, head);
	lines = (length - head) / LINE;
	stream((unsigned char *)to + head, (const unsigned char *)from + head, lines);
	head += lines * LINE;
	memcpy((unsigned char *)to + head, (const unsigned char *)from + head, length - head);
}

#else /* elsewhere, and where ThreadSanitizer wants to see each access */

void shm_copy(void *to, const void *from, uint64_t length, bool past_cache)
{
	(void)past_cache;
	memmove(to, from, length);
}

#endif
