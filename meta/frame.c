/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/frame.h"

#define HEAD_SIZE 8
#define FIRST_CAPACITY 4096

void lw_frame_reader_init(struct lw_frame_reader *reader, size_t max_payload)
{
	memset(reader, 0, sizeof(*reader));
	reader->max_payload = max_payload;
}

void lw_frame_reader_fini(struct lw_frame_reader *reader)
{
	free(reader->payload);
	lw_frame_reader_init(reader, reader->max_payload);
}

static uint64_t get_le64(const uint8_t *bytes)
{
	uint64_t value = 0;
	int i;

	for (i = HEAD_SIZE - 1; i >= 0; i--)
		value = value << 8 | bytes[i];
	return value;
}

static bool is_whole(const struct lw_frame_reader *reader)
{
	return reader->have >= HEAD_SIZE && reader->payload != NULL && reader->have - HEAD_SIZE >= reader->length;
}

/* Room for size bytes and a NUL: twice what was there, or what has arrived, but not more than the frame needs. */
static int reserve(struct lw_frame_reader *reader, size_t size)
{
	size_t capacity = reader->capacity == 0 ? FIRST_CAPACITY : reader->capacity * 2;
	char *payload;

	if (size < reader->capacity)
		return 0;
	if (capacity <= size)
		capacity = size + 1;
	if (capacity > reader->length + 1)
		capacity = (size_t)reader->length + 1;
	payload = realloc(reader->payload, capacity);
	if (payload == NULL)
		return -ENOMEM;
	reader->payload = payload;
	reader->capacity = capacity;
	return 0;
}

int lw_frame_reader_feed(struct lw_frame_reader *reader, const char *bytes, size_t count, size_t *used)
{
	size_t taken = 0, part, at;

	*used = 0;
	if (is_whole(reader))
		return 1;
	while (reader->have < HEAD_SIZE && taken < count)
		reader->head[reader->have++] = (uint8_t)bytes[taken++];
	*used = taken;
	if (reader->have < HEAD_SIZE)
		return 0;

	reader->length = get_le64(reader->head);
	if (reader->length == 0 || reader->length > reader->max_payload)
		return -EPROTO;
	at = reader->have - HEAD_SIZE;
	part = count - taken;
	if (part > reader->length - at)
		part = (size_t)reader->length - at;
	if (part == 0)
		return 0;
	if (reserve(reader, at + part) < 0)
		return -ENOMEM;
	memcpy(reader->payload + at, bytes + taken, part);
	reader->have += part;
	*used = taken + part;
	if (!is_whole(reader))
		return 0;

	/* The newline at the end is not part of the text. */
	if (reader->payload[reader->length - 1] == '\n')
		reader->length--;
	reader->payload[reader->length] = '\0';
	return 1;
}

void lw_frame_reader_get(const struct lw_frame_reader *reader, int *type, const char **body, size_t *body_size,
			 bool *legacy)
{
	unsigned char first = (unsigned char)reader->payload[0];
	size_t skip;

	/* A length of 0 is a payload that was a lone newline. It has no type byte. */
	*legacy = reader->length == 0 || first > LW_FRAME_PROBE;
	skip = *legacy ? 0 : 1;
	*type = *legacy ? LW_FRAME_CONNECTION : first;
	*body = reader->payload + skip;
	*body_size = (size_t)reader->length - skip;
}

int lw_frame_encode(int type, bool legacy, const char *body, size_t body_size, char **frame, size_t *frame_size)
{
	size_t skip = legacy ? 0 : 1, length, i;
	char *bytes;

	if (body_size > SIZE_MAX - HEAD_SIZE - 2)
		return -ENOMEM;
	length = skip + body_size + 1;
	bytes = malloc(HEAD_SIZE + length);
	if (bytes == NULL)
		return -ENOMEM;
	for (i = 0; i < HEAD_SIZE; i++)
		bytes[i] = (char)(unsigned char)((uint64_t)length >> (8 * i) & 0xff);
	if (!legacy)
		bytes[HEAD_SIZE] = (char)type;
	if (body_size > 0)
		memcpy(bytes + HEAD_SIZE + skip, body, body_size);
	bytes[HEAD_SIZE + length - 1] = '\n';
	*frame = bytes;
	*frame_size = HEAD_SIZE + length;
	return 0;
}
