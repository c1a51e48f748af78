/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tcp/checksum.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include <isa-l/crc.h>

#define AT_ONCE (UINT64_C(1) << 30) /* the library counts in int */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static __typeof__(crc32_iscsi) *crc;

static void open_library(void)
{
	void *library = dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);

	if (library != NULL)
		crc = (__typeof__(crc))dlsym(library, "crc32_iscsi");
}

int tcp_checksum_open(char *why, size_t why_size)
{
	pthread_once(&once, open_library);
	if (crc != NULL)
		return 0;
	snprintf(why, why_size, "tcp_checksum needs libisal.so.2, which is not there; install libisal2");
	return -ENOTSUP;
}

uint32_t tcp_checksum_add(uint32_t sum, const void *memory, uint64_t length)
{
	unsigned char *at = (unsigned char *)(uintptr_t)memory;

	for (; length > AT_ONCE; at += AT_ONCE, length -= AT_ONCE)
		sum = crc(at, (int)AT_ONCE, sum);
	return crc(at, (int)length, sum);
}

uint32_t tcp_checksum_wire(uint32_t sum)
{
	return htole32(~sum);
}
