/* SPDX-License-Identifier: Apache-2.0 */
/* Contacts: the small JSON document that tells where an engine's handshake port is, under the key rpc_meta/<name> of a
 * metadata store. The layout is that of Mooncake's classic Transfer Engine, {"ip_or_host_name":text,"rpc_port":number};
 * ours has {"lw":{"incarnation":"16 hex digits"}} besides, which other readers ignore. No state: any thread.
 */
#ifndef LW_META_CONTACT_H
#define LW_META_CONTACT_H

#include <stddef.h>
#include <stdint.h>

#include "meta/hostport.h"

struct lw_contact {
	struct lw_hostport where; /* its port is not 0 */
	uint64_t incarnation;     /* 0: not a Lanewise engine */
};

/* The document of *contact, with sorted keys and without blanks; the caller frees *text. 0, -ENOMEM. */
int lw_contact_encode(const struct lw_contact *contact, char **text, size_t *length);

/* Reads a document from outside; unknown members are ignored. 0; -EPROTO, with the rest of a sentence in why. */
int lw_contact_decode(const char *text, size_t length, struct lw_contact *out, char *why, size_t why_size);

#endif
