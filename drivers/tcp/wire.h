/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of the data connection: Mooncake's TCP framing v1 and v2, and one operation of ours.
 *
 * Request header, 24 bytes, little-endian: size (8), address in the server (8), operation (1), zeroes (7).
 *   v1 READ   header ->            <- size bytes
 *   v1 WRITE  header, size bytes -> (no answer)
 *   v2 READ   header ->            <- status, then size bytes if it is OK
 *   v2 WRITE  header, size bytes ->  <- status after the last byte was stored
 *   HELLO     header with a token as size and the peer's incarnation as address ->  <- status; sent to Lanewise peers
 *             only, first on a connection. The token's upper 56 bits are a random number that a lane keeps over its
 *             connections, the lower 8 count them. Before the status says OK, older connections of that lane have
 *             ended; one that finds a newer one is closed. Token 0: there are no others
 *
 * Status, 8 bytes: magic in the high half, code in the low half. After a code other than OK the server
 * closes, and has looked at nothing that came behind the request.
 */
#ifndef LW_TCP_WIRE_H
#define LW_TCP_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TCP_HEADER_BYTES 24u
#define TCP_STATUS_BYTES 8u

#define TCP_OP_READ 0x00u
#define TCP_OP_WRITE 0x01u
#define TCP_OP_HELLO 0x02u
#define TCP_OP_V2 0x80u

#define TCP_STATUS_MAGIC UINT64_C(0x4d435456)

enum tcp_status {
	TCP_STATUS_OK = 0,
	TCP_STATUS_REFUSED = 1,     /* the range is not registered, or not offered */
	TCP_STATUS_INCARNATION = 2, /* HELLO: another life of this engine is meant */
};

struct tcp_header {
	uint64_t size;
	uint64_t addr;
	uint8_t op;
};

static inline void tcp_header_put(unsigned char *bytes, struct tcp_header header)
{
	uint64_t size = htole64(header.size), addr = htole64(header.addr);

	memset(bytes, 0, TCP_HEADER_BYTES);
	memcpy(bytes, &size, 8);
	memcpy(bytes + 8, &addr, 8);
	bytes[16] = header.op;
}

static inline struct tcp_header tcp_header_get(const unsigned char *bytes)
{
	uint64_t size, addr;

	memcpy(&size, bytes, 8);
	memcpy(&addr, bytes + 8, 8);
	return (struct tcp_header){.size = le64toh(size), .addr = le64toh(addr), .op = bytes[16]};
}

static inline bool tcp_token_same_lane(uint64_t a, uint64_t b)
{
	return (a ^ b) >> 8 == 0;
}

/* Of two connections of one lane. */
static inline bool tcp_token_newer(uint64_t a, uint64_t b)
{
	return (int8_t)(uint8_t)(a - b) > 0;
}

static inline uint64_t tcp_token_next(uint64_t token)
{
	return (token & ~UINT64_C(0xff)) | ((token + 1) & 0xff);
}

static inline uint64_t tcp_status_word(enum tcp_status code)
{
	return htole64(TCP_STATUS_MAGIC << 32 | (uint64_t)code);
}

#endif
