/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base64.h"

#include <errno.h>
#include <stdint.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *lw_base64_encode(const void *bytes, size_t size, char *text)
{
	const uint8_t *from = bytes;
	uint32_t group;
	size_t left;

	for (; size > 0; size -= left, from += left) {
		left = size < 3 ? size : 3;
		group = (uint32_t)from[0] << 16 | (left > 1 ? (uint32_t)from[1] << 8 : 0) | (left > 2 ? from[2] : 0);
		*text++ = digits[group >> 18];
		*text++ = digits[group >> 12 & 63];
		*text++ = left > 1 ? digits[group >> 6 & 63] : '=';
		*text++ = left > 2 ? digits[group & 63] : '=';
	}
	return text;
}

static int value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int lw_base64_decode(const char *text, size_t length, void *bytes, size_t *size)
{
	uint8_t *to = bytes;
	size_t i, pad = 0, have = 0;
	uint32_t group;
	int part, j;

	if (length % 4 != 0)
		return -EPROTO;
	if (length > 0 && text[length - 1] == '=')
		pad = text[length - 2] == '=' ? 2 : 1;
	for (i = 0; i < length; i += 4) {
		group = 0;
		for (j = 0; j < 4; j++) {
			part = i + (size_t)j >= length - pad ? 0 : value(text[i + (size_t)j]);
			if (part < 0)
				return -EPROTO;
			group = group << 6 | (uint32_t)part;
		}
		to[have++] = (uint8_t)(group >> 16);
		to[have++] = (uint8_t)(group >> 8);
		to[have++] = (uint8_t)group;
	}
	*size = have - pad;
	return 0;
}
