/* SPDX-License-Identifier: Apache-2.0 */
/* The proof that both ends of a connection know tcp_secret, given while they greet (see wire.h):
 *
 *   initiator -> HELLO, nonce A               A, B: 32 random bytes each
 *   target    -> CHALLENGE, nonce B, HMAC(secret, "target", HELLO, A, B)
 *   initiator -> HMAC(secret, "initiator", HELLO, A, B)
 *   target    -> OK, or UNAUTHORIZED
 *
 * HMAC is HMAC-SHA256 by libsodium, opened at run time. HELLO names the target's life and the lane, so a proof fits one
 * connection. What follows is neither encrypted nor signed: who can change packets on their way can take a proven
 * connection over.
 */
#ifndef LW_TCP_AUTH_H
#define LW_TCP_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "drivers/tcp/wire.h"

#define TCP_NONCE_BYTES 32u
#define TCP_PROOF_BYTES 32u

enum tcp_role { TCP_TARGET, TCP_INITIATOR };

/* What a proof is about. */
struct tcp_greeting {
	unsigned char hello[TCP_HEADER_BYTES];
	unsigned char initiator[TCP_NONCE_BYTES];
	unsigned char target[TCP_NONCE_BYTES];
};

/* Opens the library; more than once is fine. 0, or -ENOTSUP with the reason in why. May block on the file system. */
int tcp_auth_open(char *why, size_t why_size);

/* After a successful open; any thread. */
void tcp_auth_nonce(unsigned char *nonce);
void tcp_auth_prove(const char *secret, enum tcp_role role, const struct tcp_greeting *greeting, unsigned char *proof);
/* In constant time. */
bool tcp_auth_check(const char *secret, enum tcp_role role, const struct tcp_greeting *greeting,
		    const unsigned char *proof);

#endif
