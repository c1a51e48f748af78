/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "apps/lwmeta/journal_format.h"

const char format_title[] = "lwmeta 1\n";
_Static_assert(sizeof(format_title) == FORMAT_TITLE_BYTES + 1, "the title's length");

enum {
	SUM_BYTES = crypto_generichash_BYTES_MIN,
	SUM_DIGITS = 2 * SUM_BYTES,
	HEAD_SUMMED = FORMAT_HEAD_BYTES - SUM_DIGITS - 1, /* the bytes that the head's own checksum covers */
};
_Static_assert((int)FORMAT_SUM_DIGITS == (int)SUM_DIGITS, "a checksum's length");

/* The checksum of texts, one after the other, in digits and a terminating zero. */
static void checksum(const struct text *texts, size_t count, char digits[SUM_DIGITS + 1])
{
	unsigned char sum[SUM_BYTES];
	crypto_generichash_state state;

	crypto_generichash_init(&state, NULL, 0, sizeof(sum));
	for (size_t i = 0; i < count; i++)
		if (texts[i].size > 0)
			crypto_generichash_update(&state, (const unsigned char *)texts[i].data, texts[i].size);
	crypto_generichash_final(&state, sum, sizeof(sum));
	sodium_bin2hex(digits, SUM_DIGITS + 1, sum, sizeof(sum));
}

void format_head(const struct journal_change *change, char head[FORMAT_HEAD_BYTES])
{
	const struct text texts[] = {change->key, change->owner, change->value};
	char line[FORMAT_HEAD_BYTES + 1], sum[SUM_DIGITS + 1];
	struct text summed = {line, HEAD_SUMMED};

	checksum(texts, 3, sum);
	snprintf(line, sizeof(line), "%c %016" PRIx64 " %08" PRIx32 " %08" PRIx32 " %016" PRIx64 " %s ",
		 (char)change->kind, change->lease_ms, (uint32_t)change->key.size, (uint32_t)change->owner.size,
		 (uint64_t)change->value.size, sum);
	checksum(&summed, 1, sum);
	memcpy(head, line, HEAD_SUMMED);
	memcpy(head + HEAD_SUMMED, sum, SUM_DIGITS);
	head[FORMAT_HEAD_BYTES - 1] = '\n';
}

uint64_t format_bytes(const struct journal_change *change)
{
	return FORMAT_HEAD_BYTES + (uint64_t)change->key.size + change->owner.size + change->value.size + 1;
}

int format_title_check(const char *bytes, uint64_t size, uint64_t *next)
{
	if (memcmp(bytes, format_title, size < FORMAT_TITLE_BYTES ? size : FORMAT_TITLE_BYTES) != 0)
		return -EPROTO;
	if (size < FORMAT_TITLE_BYTES)
		return -ENODATA;
	*next = FORMAT_TITLE_BYTES;
	return 0;
}

/* After a power cut the end of a file may have its length but not its bytes. */
static bool all_zero(const char *bytes, uint64_t size)
{
	while (size > 0 && *bytes == '\0') {
		bytes++;
		size--;
	}
	return size == 0;
}

int format_next(const char *bytes, uint64_t size, uint64_t at, struct journal_change *out, uint64_t *next)
{
	char line[FORMAT_HEAD_BYTES + 1], sum[SUM_DIGITS + 1], *end;
	struct text summed = {line, HEAD_SUMMED}, texts[3];
	const char *payload = bytes + at + FORMAT_HEAD_BYTES;
	uint64_t left = size - at;
	struct journal_change change;

	if (left < FORMAT_HEAD_BYTES || all_zero(bytes + at, left))
		return -ENODATA;
	memcpy(line, bytes + at, FORMAT_HEAD_BYTES);
	line[FORMAT_HEAD_BYTES] = '\0';
	checksum(&summed, 1, sum);
	if (memcmp(line + HEAD_SUMMED, sum, SUM_DIGITS) != 0 || line[FORMAT_HEAD_BYTES - 1] != '\n')
		return -EBADMSG;
	/* From here on the head says what was once written. */
	change.kind = (enum journal_kind)line[0];
	change.lease_ms = strtoull(line + 2, &end, 16);
	change.key.size = strtoul(end, &end, 16);
	change.owner.size = strtoul(end, &end, 16);
	change.value.size = strtoull(end, &end, 16);
	left -= FORMAT_HEAD_BYTES;
	if (change.value.size >= left || change.key.size >= left - change.value.size ||
	    change.owner.size >= left - change.value.size - change.key.size)
		return -ENODATA;
	change.key.data = payload;
	change.owner.data = payload + change.key.size;
	change.value.data = change.owner.data + change.owner.size;
	texts[0] = change.key;
	texts[1] = change.owner;
	texts[2] = change.value;
	checksum(texts, 3, sum);
	*next = at + format_bytes(&change);
	if (memcmp(end + 1, sum, SUM_DIGITS) != 0 || bytes[*next - 1] != '\n')
		return *next == size || all_zero(payload, left) ? -ENODATA : -EBADMSG;
	if (change.kind != JOURNAL_PUT && change.kind != JOURNAL_LEASE && change.kind != JOURNAL_DELETE)
		return -EBADMSG;
	*out = change;
	return 0;
}
