/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/shm/copy.h"

#include <string.h>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <immintrin.h>

#define LINE 64u
#define AHEAD 2048u /* bytes that are asked for before they are needed */

/* Whole lines from any address to an aligned one. Asking ahead into the cache pays; asking ahead past it (NTA) costs,
 * and wider stores are no faster: `./dev bench shm` has shm_alloc_vs_memcpy_1m to weigh it with. */
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
