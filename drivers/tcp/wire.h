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
 * Status, 8 bytes: magic in the high half, code in the low half. After a code other than OK or CHALLENGE the server
 * closes, and has looked at nothing that came behind the request. LEAVING comes by itself, to a peer that said HELLO on
 * this connection: the server needs its place for another one, and has looked at nothing that it has not answered.
 *
 * HELLO has options at byte 17: what the initiator will do. They must be what the target's descriptor announces.
 *   AUTH      the proof of auth.h is part of the greeting: 32 bytes behind HELLO, 64 behind the status CHALLENGE,
 *             32 more from the initiator; then the status that ends the greeting
 *   CHECKSUM  from then on each header has the CRC32C of its first 20 bytes in its last 4, and each body is followed by
 *             its own, 4 bytes, little-endian (READ and WRITE, version 2)
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

#define TCP_HEADER_SUM 20u /* where a header's checksum stands */

#define TCP_STATUS_MAGIC UINT64_C(0x4d435456)

enum tcp_status {
	TCP_STATUS_OK = 0,
	TCP_STATUS_REFUSED = 1,     /* the range is not registered, or not offered */
	TCP_STATUS_INCARNATION = 2, /* HELLO: another life of this engine is meant */
	TCP_STATUS_OPTIONS = 3,     /* HELLO: options other than ours; or no HELLO where one is asked for */
	TCP_STATUS_CHALLENGE = 4,   /* HELLO: prove that you know the secret */
	TCP_STATUS_UNAUTHORIZED = 5,
	TCP_STATUS_CORRUPT = 6, /* a checksum differs; the body was stored, the request did not happen */
	TCP_STATUS_DEVICE =
		7, /* copying to or from the memory of a GPU failed; what was stored of a WRITE is unknown */
	TCP_STATUS_LEAVING = 16, /* this connection ends: ask again on another one */
};

struct tcp_header {
	uint64_t size;
	uint64_t addr;
	uint8_t op;
	uint8_t options; /* HELLO */
};

static inline void tcp_header_put(unsigned char *bytes, struct tcp_header header)
{
	uint64_t size = htole64(header.size), addr = htole64(header.addr);

	memset(bytes, 0, TCP_HEADER_BYTES);
	memcpy(bytes, &size, 8);
	memcpy(bytes + 8, &addr, 8);
	bytes[16] = header.op;
	bytes[17] = header.options;
}

static inline struct tcp_header tcp_header_get(const unsigned char *bytes)
{
	uint64_t size, addr;

	memcpy(&size, bytes, 8);
	memcpy(&addr, bytes + 8, 8);
	return (struct tcp_header){.size = le64toh(size), .addr = le64toh(addr), .op = bytes[16], .options = bytes[17]};
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
