/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the handshake port (the reference's layout): 8 bytes length L, little-endian, then L bytes: a type byte and
 * L - 1 bytes of JSON that end in a newline. A legacy frame has no type byte: its first byte is above 3 and the L bytes
 * are JSON.
 */
#ifndef LW_META_FRAME_H
#define LW_META_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lw_frame_type {
	LW_FRAME_CONNECTION = 0, /* RDMA queue pairs; also what a legacy frame means */
	LW_FRAME_METADATA = 1,   /* segment descriptor */
	LW_FRAME_NOTIFY = 2,
	LW_FRAME_PROBE = 3,
};

/* Reads one frame from pieces of a stream. Memory grows with what has arrived, never with what the length claims. */
struct lw_frame_reader {
	uint64_t length; /* of the payload, once 8 bytes are here */
	size_t have;     /* bytes of the frame seen so far, the 8 included */
	size_t capacity;
	size_t max_payload;
	uint8_t head[8];
	char *payload;
};

void lw_frame_reader_init(struct lw_frame_reader *reader, size_t max_payload);
void lw_frame_reader_fini(struct lw_frame_reader *reader);

/* Takes bytes; *used of them belonged to this frame. 1 the frame is whole; 0 more is needed; -EPROTO length 0 or above
 * max_payload; -ENOMEM. */
int lw_frame_reader_feed(struct lw_frame_reader *reader, const char *bytes, size_t count, size_t *used);

/* Of a whole frame: type, body (NUL-terminated, without a trailing newline) and whether it is a legacy one. */
void lw_frame_reader_get(const struct lw_frame_reader *reader, int *type, const char **body, size_t *body_size,
			 bool *legacy);

/* A frame around body (a newline is added). The caller frees *frame. 0, -ENOMEM. */
int lw_frame_encode(int type, bool legacy, const char *body, size_t body_size, char **frame, size_t *frame_size);

#endif
