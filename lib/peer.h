/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a peer by its name: by asking it (P2PHANDSHAKE, where the name is its address), or in the engine's metadata
 * store, where its name is a key. One behaviour for both.
 */
#ifndef LW_PEER_H
#define LW_PEER_H

#include <stdint.h>

#include "meta/descriptor.h"
#include "meta/hostport.h"

struct lw_engine;

struct lw_peer {
	char name[LW_NAME_MAX]; /* in its one form */
	struct lw_addrs rpc;    /* its handshake port */
	struct lw_desc *desc;   /* what it offers; the receiver's to free */
};

/* The one form of a name: with a port where the name is an address. 0; -EINVAL, said in lw_last_error. Any thread. */
int lw_peer_name(const struct lw_engine *engine, const char *name, char canonical[LW_NAME_MAX]);

/* Finds the peer of a name in its one form. Blocks for at most timeout_ms. Any thread but lw-ctrl and lw-store. 0;
 * -ENOENT the store knows no such name; -EHOSTUNREACH, -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET it, or the store, does
 * not answer; -EPROTO it, or the store, answers with what is no such document; -ESTALE the store's two documents are
 * not of one engine; other errors of meta/store.h; all said in lw_last_error. */
int lw_peer_find(struct lw_engine *engine, const char *name, uint32_t timeout_ms, struct lw_peer *out);

/* Asks for what the peer at rpc offers now. done runs once, on lw-ctrl or lw-store, also with -ESHUTDOWN; text is valid
 * during the call. Any thread; never blocks. 0, or -ENOMEM, -ESHUTDOWN: done does not run. */
typedef void (*lw_peer_done)(void *arg, int result, const char *text, size_t length);
int lw_peer_ask(struct lw_engine *engine, const char *name, const struct lw_addrs *rpc, uint32_t timeout_ms,
		lw_peer_done done, void *arg);

#endif
