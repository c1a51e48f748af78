/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tcp/auth.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <sodium.h>

_Static_assert(crypto_auth_hmacsha256_BYTES == TCP_PROOF_BYTES, "a proof is an HMAC-SHA256");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_open;
static __typeof__(crypto_auth_hmacsha256_init) *init;
static __typeof__(crypto_auth_hmacsha256_update) *update;
static __typeof__(crypto_auth_hmacsha256_final) *final;
static __typeof__(sodium_memcmp) *compare;
static __typeof__(randombytes_buf) *random_bytes;

static void open_library(void)
{
	void *library = dlopen("libsodium.so.23", RTLD_NOW | RTLD_LOCAL);
	__typeof__(sodium_init) *start;

	if (library == NULL)
		return;
	start = (__typeof__(start))dlsym(library, "sodium_init");
	init = (__typeof__(init))dlsym(library, "crypto_auth_hmacsha256_init");
	update = (__typeof__(update))dlsym(library, "crypto_auth_hmacsha256_update");
	final = (__typeof__(final))dlsym(library, "crypto_auth_hmacsha256_final");
	compare = (__typeof__(compare))dlsym(library, "sodium_memcmp");
	random_bytes = (__typeof__(random_bytes))dlsym(library, "randombytes_buf");
	is_open = start != NULL && init != NULL && update != NULL && final != NULL && compare != NULL &&
		  random_bytes != NULL && start() >= 0;
}

int tcp_auth_open(char *why, size_t why_size)
{
	pthread_once(&once, open_library);
	if (is_open)
		return 0;
	snprintf(why, why_size, "tcp_secret needs libsodium.so.23, which is not there; install libsodium23");
	return -ENOTSUP;
}

void tcp_auth_nonce(unsigned char *nonce)
{
	random_bytes(nonce, TCP_NONCE_BYTES);
}

void tcp_auth_prove(const char *secret, enum tcp_role role, const struct tcp_greeting *greeting, unsigned char *proof)
{
	static const char *const roles[] = {"target", "initiator"};
	crypto_auth_hmacsha256_state state;

	init(&state, (const unsigned char *)secret, strlen(secret));
	update(&state, (const unsigned char *)roles[role], strlen(roles[role]) + 1);
	update(&state, greeting->hello, sizeof(greeting->hello));
	update(&state, greeting->initiator, sizeof(greeting->initiator));
	update(&state, greeting->target, sizeof(greeting->target));
	final(&state, proof);
}

bool tcp_auth_check(const char *secret, enum tcp_role role, const struct tcp_greeting *greeting,
		    const unsigned char *proof)
{
	unsigned char right[TCP_PROOF_BYTES];

	tcp_auth_prove(secret, role, greeting, right);
	return compare(right, proof, sizeof(right)) == 0;
}
