/* SPDX-License-Identifier: Apache-2.0 */
/* What a target of the TCP driver should do, one byte after the other: a second, sequential server without sockets. It
 * is given each byte that went into a connection, and foretells the answers and the memory. */
#ifndef LW_FUZZ_MODEL_H
#define LW_FUZZ_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/tcp/auth.h"
#include "drivers/tcp/wire.h"

#define PAGE ((size_t)4096)
#define BASE UINT64_C(0x50000000) /* free in each sanitizer's layout */
#define PAGES 82                  /* one on each side is inaccessible, too */
#define SPAN (PAGES * PAGE)
#define ANSWERS_MAX ((size_t)512 * 1024) /* when so much is due, the client has asked enough */
#define ANSWERS_ROOM (ANSWERS_MAX + ((size_t)2 << 20))
#define SECRET "what_only_both_sides_know"

/* Buffers, in bytes from BASE. Nothing else is registered. */
struct zone {
	size_t begin, end;
	uint32_t access;
};
#define ZONES 7
#define LARGE (ZONES - 1)
#define LARGE_BYTES ((PAGES - 10) * PAGE)
extern const struct zone zones[ZONES];

enum stage { UNGREETED, PROVING, SERVING };

/* One connection. */
struct dialog {
	unsigned char answers[ANSWERS_ROOM];
	size_t due; /* bytes of answers */
	unsigned char part[TCP_HEADER_BYTES + TCP_NONCE_BYTES];
	size_t have;         /* bytes of it: a header, a sum or a part of a greeting */
	uint64_t dest, left; /* of a WRITE that is coming in; dest from BASE */
	uint32_t sum;        /* of its body so far */
	bool sum_due;        /* the body is there */
	bool confirm;
	bool refused; /* the rest is not looked at */
	bool ended;   /* by a newer connection */
	enum stage stage;
	uint8_t options;
	uint64_t token;
	struct tcp_greeting about;
	size_t challenge; /* where its nonce lies in the answers */
	size_t learned;   /* bytes of that nonce that were read */
};

struct model {
	unsigned char memory[SPAN];
	struct dialog dialogs[2];    /* the client's, and that of its lane's next connection */
	bool revoked;                /* the large buffer is not registered any more */
	size_t changed, changed_end; /* memory that may differ from what it was, in bytes from BASE */
	/* the engine's */
	uint64_t incarnation;
	uint8_t options;
};

/* These bytes went into the connection. */
void model_feed(struct model *model, struct dialog *dialog, const unsigned char *bytes, size_t length);
/* Answers from byte at on were read: what only the target knew is known then. */
void model_learn(struct dialog *dialog, const unsigned char *bytes, size_t at, size_t length);
/* A status that the target sends by itself. */
void model_status(struct dialog *dialog, enum tcp_status code);
/* Memory there may differ from what it was. */
void model_change(struct model *model, uint64_t from, uint64_t to);
bool model_has_sums(const struct dialog *dialog);
/* As it stands on the wire. */
uint32_t model_sum(const void *bytes, size_t length);

#endif
