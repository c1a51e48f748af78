/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of memory for sendmsg and recvmsg, of which a part may be through already. */
#ifndef LW_TCP_PIECE_H
#define LW_TCP_PIECE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

static inline uint64_t tcp_minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* Adds what is left of a piece of which done bytes are through. */
static inline void tcp_add_piece(struct iovec *iov, int *count, const void *memory, uint64_t length, uint64_t done)
{
	if (done >= length)
		return;
	iov[*count].iov_base = (char *)(uintptr_t)memory + done;
	iov[(*count)++].iov_len = length - done;
}

/* Whether memory has bytes in [from, to). */
static inline bool tcp_overlaps(uint64_t addr, uint64_t length, uint64_t from, uint64_t to)
{
	return length != 0 && addr < to && addr + length > from;
}

static inline uint64_t tcp_pieces_bytes(const struct iovec *iov, int count)
{
	uint64_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

#endif
