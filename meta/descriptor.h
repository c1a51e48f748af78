/* SPDX-License-Identifier: Apache-2.0 */
/* Segment descriptors: the JSON document with which an engine tells peers what it offers.
 *
 * The layout is that of Mooncake's classic Transfer Engine, single-protocol form:
 * {"buffers":[{"addr","length","name"}],"name", "protocol","tcp_data_port","tcp_proto_version","timestamp"}, keys
 * sorted, no blanks. What Lanewise adds stands under the one extra key "lw", which other readers ignore:
 * {"access":[one number a buffer],"auth":true,"checksum":true,"data":["address:port",...],"device":[one number a
 * buffer],"incarnation":"16 hex digits","shm":{...}}; access is left out when every buffer is offered for reading and
 * writing, auth and checksum when the data port asks for neither, data when it is at the address of the engine's name
 * alone, device when no buffer is memory of a GPU (1: it is), shm when no process of the same host can reach the
 * engine's memory. A name such as "cuda:0" is no such word: it may be an operator's wish, and a peer that is not ours
 * and offers a GPU's memory with keys is reached by those as if it were the host's. shm is
 * {"changes","fd","grants":[one number a buffer],"host","nonce":"32 hex digits","pid"}; drivers/shm/README.md says what
 * for.
 *
 * A segment of files is {"buffers":[{"file_path","length","local_path_map":{server name: path}}],"name",
 * "protocol":"nvmeof"}: an operator's tool puts it into a metadata store, no engine. lw.access goes for it, too.
 *
 * Memory of a GPU that other processes can import stands under lw.nvlink, lw.hip, lw.musa and lw.maca, by the driver
 * that does it: as lw.shm, and "memory":[{"addr","device","handle":"128 hex digits","id","length"}], whole allocations;
 * id is another one for each, 0 where nobody can tell; "fabric":true where the handles go beyond the host. Such engines
 * of Mooncake's have one of these protocols (or "nvlink_intra"), and in each buffer the handle as "shm_name",
 * upper-case. Where we say so, too (desc->protocol), the allocations are listed behind our buffers, whose shm_name is
 * empty then.
 *
 * With RDMA the protocol is "rdma" (peers of ours use tcp_data_port, too), and there are besides: "devices":[{"gid",
 * "lid","name"}], "priority_matrix", "rdma_server_name" (where it is not the name), and in each buffer "lkey":[one a
 * device] and "rkey":[the same]. A document whose RDMA part is wrong is read without that part.
 */
#ifndef LW_META_DESCRIPTOR_H
#define LW_META_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/hostport.h"

struct lw_matrix;

struct lw_desc_buffer {
	uint64_t addr;
	uint64_t length;
	uint32_t access; /* enum lw_access; a document that does not say offers LW_ACCESS_REMOTE */
	char name[64];   /* for tcp the engine's name, cut; else a location */
	bool device;     /* memory of a GPU; only documents of ours say so */
	uint64_t grant;  /* lw_desc_grant; 0: none is told */
	uint32_t key;    /* 1 + the position of its first RDMA key; 0: it has none */
};

/* The number of a buffer's slot in the engine, and which of the buffers that had it. slot is below 2^20. */
static inline uint64_t lw_desc_grant(uint32_t gen, uint32_t slot)
{
	return (uint64_t)gen << 20 | slot;
}

/* How processes of the same host reach the memory without a socket. */
struct lw_desc_shm {
	uint32_t pid;   /* 0: they can't */
	int32_t fd;     /* the process' descriptor of the memory that they meet in */
	char host[128]; /* kernel and namespaces that pid and addresses belong to */
	char nonce[33];
	uint64_t changes; /* how often the offer had changed when the document was made */
};

/* Where one server has a file. */
struct lw_desc_mount {
	char *server; /* an engine's name */
	char *path;
};

/* A file of a segment of files; its place in the segment is behind the files before it. */
struct lw_desc_file {
	char *path; /* on the node that stores it */
	uint64_t length;
	uint32_t access; /* enum lw_access, as of a buffer */
	size_t mount_count;
	struct lw_desc_mount *mounts;
};

/* An RDMA device of the engine. */
struct lw_desc_device {
	char name[64];
	bool has_gid;
	uint8_t gid[16];
	uint16_t lid;
};

/* What a buffer is known as on one device; rkey 0: it can't be reached there. */
struct lw_desc_key {
	uint32_t lkey, rkey;
};

#define LW_DESC_GPUS 4 /* lw_desc_gpu_names; as enum lw_gpu_vendor counts */
#define LW_DESC_HANDLE 64
#define LW_DESC_ALLOCATIONS_MAX 65536u

/* "nvlink", "hip", "musa", "maca". */
extern const char *const lw_desc_gpu_names[LW_DESC_GPUS];

/* An allocation of a GPU's memory, whole, and what it is imported by. */
struct lw_desc_allocation {
	uint64_t addr, length;
	uint64_t id;     /* no other allocation of the process had it; 0: unknown */
	uint32_t device; /* as the peer counts them */
	unsigned char handle[LW_DESC_HANDLE];
};

struct lw_desc_gpu {
	uint32_t pid; /* the rest as in lw_desc_shm; 0: not ours, there is but memory */
	int32_t fd;
	char host[128];
	char nonce[33];
	uint64_t changes;
	bool fabric;
	size_t count;
	struct lw_desc_allocation *memory; /* by address, without overlaps; owned by the descriptor */
};

struct lw_desc_rdma {
	char name[LW_NAME_MAX]; /* of the engine in NIC paths; empty: its name */
	size_t device_count;    /* 0: no RDMA */
	struct lw_desc_device *devices;
	size_t key_count;
	struct lw_desc_key *keys; /* of the buffers that have some, device_count each */
	struct lw_matrix *matrix; /* which device is near which memory; NULL: not told */
	char why[96];             /* a document that was read: what is wrong with this part */
};

#define LW_TCP_CHECKSUM 1u
#define LW_TCP_AUTH 2u

/* Who said it: files are opened where an operator says so, not a peer. */
enum lw_desc_origin { LW_DESC_STORE, LW_DESC_PEER, LW_DESC_OWN };

struct lw_desc {
	char name[LW_NAME_MAX];
	char protocol[32];    /* "tcp"; several, joined by commas */
	uint16_t tcp_port;    /* 0: none */
	uint8_t tcp_version;  /* 1 or 2 */
	uint8_t tcp_options;  /* LW_TCP_CHECKSUM, LW_TCP_AUTH: what the data port asks of every connection */
	struct lw_addrs data; /* where the data port is, to be used side by side; none: where the engine's name is */
	uint64_t incarnation; /* 0: not a Lanewise engine */
	struct lw_desc_shm shm;
	struct lw_desc_rdma rdma; /* owned by the descriptor */
	struct lw_desc_gpu gpu[LW_DESC_GPUS];
	size_t buffer_count;
	struct lw_desc_buffer *buffers; /* as in the document (of several protocols: tcp's); owned by the descriptor */
	size_t file_count;
	struct lw_desc_file *files; /* protocol "nvmeof": instead of buffers; owned by the descriptor, with all in them
				     */
	enum lw_desc_origin origin;
};

/* Longest path of a file with its NUL, and the most files and mounts of a segment. */
#define LW_DESC_PATH_MAX 4096
#define LW_DESC_FILES_MAX 1024u
#define LW_DESC_MOUNTS_MAX 65536u

/* The document of *desc, which has no files; the caller frees *text. 0, -ENOMEM. */
int lw_desc_encode(const struct lw_desc *desc, char **text, size_t *length);

/* Reads a document from outside. Everything is checked before it is used: size, depth (at most 16), types, ranges,
 * integers, wraps, number of buffers (at most 1,048,576), zero addresses and lengths, overlapping buffers, names,
 * paths. Unknown fields are ignored. The caller frees *out with lw_desc_free. 0; -EPROTO, with a sentence in why;
 * -ENOMEM. Never aborts. */
int lw_desc_decode(const char *text, size_t length, struct lw_desc **out, char *why, size_t why_size);

void lw_desc_free(struct lw_desc *desc);
/* What a descriptor owns of RDMA, for one that was not read. */
void lw_desc_drop_rdma(struct lw_desc_rdma *rdma);
/* The same of GPUs. */
void lw_desc_drop_gpus(struct lw_desc *desc);
/* Which of the GPUs a protocol is about; -1: none. */
int lw_desc_gpu_of(const char *protocol, size_t length);

#endif
