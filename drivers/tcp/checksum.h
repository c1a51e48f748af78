/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli, as in RFC 3720) of what a connection carries, when both sides have tcp_checksum on. ISA-L
 * computes it, several bytes a cycle; it is opened at run time, so an engine without the setting does not need it. */
#ifndef LW_TCP_CHECKSUM_H
#define LW_TCP_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define TCP_SUM_BYTES 4u
#define TCP_SUM_START UINT32_MAX

/* Opens the library; more than once is fine. 0, or -ENOTSUP with the reason in why. May block on the file system. */
int tcp_checksum_open(char *why, size_t why_size);

/* Goes on with a sum that began as TCP_SUM_START. After a successful open. Any thread. */
uint32_t tcp_checksum_add(uint32_t sum, const void *memory, uint64_t length);

/* The sum as it stands on the wire. */
uint32_t tcp_checksum_wire(uint32_t sum);

#endif
