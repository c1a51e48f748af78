/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP server on 127.0.0.1 that answers whatever it is asked with the same bytes, in one of several bad manners. */
#ifndef LW_TEST_SCRIPT_H
#define LW_TEST_SCRIPT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum script_manner {
	SCRIPT_ANSWER, /* and wait for the next question */
	SCRIPT_CLOSE,  /* after the answer */
	SCRIPT_DRIP,   /* a byte every 50 ms */
	SCRIPT_FLOOD,  /* the answer's last 8 bytes again and again, until the client goes */
	SCRIPT_RESET,  /* after the first byte of the question */
};

struct script {
	enum script_manner manner;
	const char *answer;
	size_t size;
	/* The rest is the server's. */
	int fd, stop_fd;
	uint16_t port;
	atomic_uint connections;
	pthread_t thread;
};

/* Manner, answer and size are filled in; the test fails if it does not start. One client at a time is served. */
void script_start(struct script *script);
void script_stop(struct script *script);

#endif
