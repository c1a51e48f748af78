/* SPDX-License-Identifier: Apache-2.0 */
/* The document with which two engines join queue pairs (frame type 0 of the handshake port), the layout of Mooncake's
 * classic Transfer Engine: {"local_gid","local_lid","local_nic_path","payload","peer_nic_path","qp_num":[...],
 * "ready_ack":bool,"reply_msg"}, keys sorted, from its sender's point of view. A NIC path is "NAME@DEVICE". What
 * Lanewise adds stands under "lw", which other readers ignore: {"for":"16 hex digits","incarnation":"16 hex digits",
 * "over":true}. No state: any thread.
 */
#ifndef LW_META_HANDSHAKE_H
#define LW_META_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/hostport.h"

#define LW_NIC_PATH (LW_NAME_MAX + 96) /* longest path with its NUL */
#define LW_HANDSHAKE_QPS 255           /* more of one connection are refused */
#define LW_HANDSHAKE_REPLY 256

struct lw_handshake {
	char local_path[LW_NIC_PATH];
	char peer_path[LW_NIC_PATH];
	char reply[LW_HANDSHAKE_REPLY]; /* why the peer refuses; empty: it does not */
	bool has_gid;                   /* else gid and lid are those of the descriptor */
	uint8_t gid[16];
	uint16_t lid;
	bool has_ready; /* the sender knows the second step */
	bool ready;     /* this is it: the queue pairs of the sender are ready */
	uint32_t qp_count;
	uint32_t qp[LW_HANDSHAKE_QPS];
	/* ours */
	uint64_t incarnation; /* the sender's; 0: not a Lanewise engine */
	uint64_t meant;       /* the life of the receiver that is meant; 0: any */
	bool over; /* request: end the connection of these paths; reply: none of its bytes can arrive any more */
};

/* The document; the caller frees *text. 0, -ENOMEM. */
int lw_handshake_encode(const struct lw_handshake *handshake, char **text);

/* Reads a document from outside; every field is checked. Missing texts are empty, a missing lid is 0. 0; -EPROTO, and a
 * sentence in why; -ENOMEM. */
int lw_handshake_decode(const char *text, size_t length, struct lw_handshake *out, char *why, size_t why_size);

/* "NAME@DEVICE", or "NAME@DEVICE#MARK" if mark is not 0. False: it is too long. */
bool lw_nic_path(char out[LW_NIC_PATH], const char *name, const char *device, uint32_t mark);

/* 16 bytes as lower-case hex pairs joined by colons, and back. False: it is no such text. */
#define LW_GID_TEXT 48
void lw_gid_format(const uint8_t gid[16], char text[LW_GID_TEXT]);
bool lw_gid_parse(const char *text, uint8_t gid[16]);

#endif
