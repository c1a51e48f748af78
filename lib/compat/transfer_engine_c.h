/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of Mooncake's Transfer Engine, as Lanewise offers it: the same names, layouts, constants and return
 * codes, so that a program written for it links with libtransfer_engine.so of Lanewise instead. Written anew from a
 * description of the interface. lib/compat/README.md lists where the behaviour differs; transfer_engine_ext.h adds what
 * Mooncake's C++ class has besides.
 *
 * Two families of return codes
 *   - int functions that manage things: 0, or a negative number (TE_ERR_... below)
 *   - submitTransfer, submitTransferWithNotify, getTransferStatus, freeBatchID, getNicLoadStats: 0, or a positive one
 *     (TE_STATUS_... below)
 * Beside each failure getTransferEngineError() of transfer_engine_ext.h holds a sentence.
 *
 * Threads: any function may be called from any thread at any time, but for these: createTransferEngine must have
 * returned; one batch is submitted to by one thread at a time, and not freed meanwhile. Polling it may be another
 * thread's work. A call beside, or after, destroyTransferEngine gets an error.
 *
 * Text and arrays that are passed in are copied; nothing of them is kept. A NULL where something is needed, a handle
 * that is made up, stale or another engine's, gets an error.
 */
#ifndef TRANSFER_ENGINE_C
#define TRANSFER_ENGINE_C

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Macros, as programs may test for them. */
#define segment_handle_t int32_t
#define segment_id_t int32_t
#define batch_id_t uint64_t

#define LOCAL_SEGMENT (0)
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0)
#define OPCODE_WRITE (1)

/* A task's state. WAITING: not ended; COMPLETED: applied at the destination; FAILED: ended otherwise. TIMEOUT is told
 * instead of FAILED where MC_SLICE_TIMEOUT is set and the time is over, CANCELED after cancelBatchTransfer; both are
 * ends here. PENDING and INVALID are never told. */
#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5)
#define STATUS_FAILED (6)

/* Negative results. */
#define TE_ERR_INVALID_ARGUMENT (-1) /* also any failure that has no code of its own */
#define TE_ERR_TOO_MANY_REQUESTS (-2)
#define TE_ERR_ADDRESS_NOT_REGISTERED (-3)
#define TE_ERR_BATCH_BUSY (-4)
#define TE_ERR_DEVICE_NOT_FOUND (-6)
#define TE_ERR_ADDRESS_OVERLAPPED (-7)
#define TE_ERR_DNS (-101)
#define TE_ERR_SOCKET (-102)
#define TE_ERR_MALFORMED_JSON (-103)
#define TE_ERR_REJECT_HANDSHAKE (-104)
#define TE_ERR_METADATA (-200)
#define TE_ERR_ENDPOINT (-201)
#define TE_ERR_CONTEXT (-202)
#define TE_ERR_NUMA (-300)
#define TE_ERR_CLOCK (-301)
#define TE_ERR_MEMORY (-302)
#define TE_ERR_NOT_IMPLEMENTED (-303)

/* Positive results. */
#define TE_STATUS_OK (0)
#define TE_STATUS_INVALID_ARGUMENT (1)
#define TE_STATUS_TOO_MANY_REQUESTS (2)
#define TE_STATUS_ADDRESS_NOT_REGISTERED (3)
#define TE_STATUS_BATCH_BUSY (4)
#define TE_STATUS_DEVICE_NOT_FOUND (6)
#define TE_STATUS_ADDRESS_OVERLAPPED (7)
#define TE_STATUS_NOT_SUPPORTED_TRANSPORT (8)
#define TE_STATUS_DNS (101)
#define TE_STATUS_SOCKET (102)
#define TE_STATUS_MALFORMED_JSON (103)
#define TE_STATUS_REJECT_HANDSHAKE (104)
#define TE_STATUS_METADATA (200)
#define TE_STATUS_ENDPOINT (201)
#define TE_STATUS_CONTEXT (202)
#define TE_STATUS_NUMA (300)
#define TE_STATUS_CLOCK (301)
#define TE_STATUS_MEMORY (302)
#define TE_STATUS_NOT_IMPLEMENTED (999)

typedef void *transfer_engine_t;
typedef void *transport_t;

/* One request. */
struct transfer_request {
	int opcode;             /* OPCODE_READ: target -> source; OPCODE_WRITE: source -> target */
	void *source;           /* local memory */
	segment_id_t target_id; /* of openSegment, or LOCAL_SEGMENT */
	uint64_t target_offset; /* the peer's virtual address */
	uint64_t length;        /* bytes; 0 completes at once */
};
typedef struct transfer_request transfer_request_t;

struct transfer_status {
	int status; /* STATUS_... */
	uint64_t transferred_bytes;
};
typedef struct transfer_status transfer_status_t;

/* A notification. Both texts end with a NUL. */
struct notify_msg {
	char *name;
	char *msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
	void *addr;
	size_t length;
};
typedef struct buffer_entry buffer_entry_t;

struct nic_load_stat {
	char device_name[64];
	uint64_t inflight_bytes;
	double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

/* Part of the interface, though no function takes or gives one. */
struct segment_desc {
	int type;
	union {
		struct {
			void *addr;
			uint64_t size;
			const char *location;
		} rdma;
		struct {
			const char *file_path;
			const char *subsystem_name;
			const char *proto;
			const char *ip;
			uint64_t port;
		} nvmeof;
	} desc_;
};
typedef struct segment_desc segment_desc_t;

/* ---- Engine ---- */

/* Creates an engine. metadata_conn_string: "P2PHANDSHAKE", or where the metadata store is, "etcd://host:port",
 * "redis://host:port", "http://host:port/path" (without a scheme: etcd). local_server_name: the host (P2PHANDSHAKE; the
 * port is chosen by the engine, see getLocalIpAndPort) or the name under which peers find it in the store; NULL or "":
 * the host's address. ip_or_host_name and rpc_port have no effect. auto_discover not 0: the topology is looked up and a
 * transport installed.
 * Blocks while it binds ports, starts threads and, with a store, asks that once. NULL: see getTransferEngineError. */
transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
				       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover);

/* Ends what is under way, takes the engine's keys out of the store, stops its threads. NULL, and a handle that is
 * destroyed already, are let pass. Blocks for at most 5 s (with a frozen store: and its time limit). */
void destroyTransferEngine(transfer_engine_t engine);

/* The own name under which peers open this engine with P2PHANDSHAKE, "host:port" ("[v6]:port"); with a store the
 * address and port of its handshake. 0; -1 NULL, no such engine, or buf_len is too small (then buf_out holds what
 * fits). Never blocks. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* ---- Topology and transports ---- */

/* Looks the topology up anew, and drops a matrix that installTransport was given. 0; -1 no such engine. */
int discoverTopology(transfer_engine_t engine);

/* Installs "tcp", or another transport that this build has (showLinks and lwinfo tell). args NULL, or args[0] a
 * priority matrix as JSON, which replaces the topology. A transport that is installed already: the same pointer, args
 * have no effect. NULL: unknown, off on this host, or the matrix can't be read. Blocks no longer than a table lock. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);

/* No effect. 0. */
int uninstallTransport(transfer_engine_t engine, const char *proto);

/* A report of NICs and of which serve which memory; json 0: text for people. 0; -1 NULL, len 0, no such engine, or the
 * report is longer than len (then buf holds what fits). Reads some hundred small files under /sys. */
int showLinks(transfer_engine_t engine, char *buf, size_t len, int json);

/* The count of NICs with load figures goes to *count: 0, there are none. 0; -1 a NULL or no such engine. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);

/* ---- Memory ---- */

/* Registers a range; remote_accessible 0: peers can't reach it. location: "cpu:0", "cuda:1", "*" or NULL (unknown).
 * 0; -1 length 0, addr NULL, wrap-around, no such engine; -7 overlaps a registered range; -302 too many buffers, no
 * memory; -200 the metadata store does not take it or does not answer: then nothing is registered. Blocks where a store
 * has to be told, for at most the setting store_timeout_ms. */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
			int remote_accessible);

/* Takes back the range that begins at addr. After it nobody touches the memory; requests that use it end FAILED.
 * 0; -3 none begins there (0 before a transport is installed); -4 a worker did not let go in 30 s: the memory must not
 * be unmapped, call again; -200 it was taken back, but the metadata store shows it still; -1 no such engine. Blocks
 * until every worker let go, and for a store as registerLocalMemory. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);

/* All ranges or none, each reachable by peers. 0 (also for an empty list); codes as registerLocalMemory. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
			     const char *location);

/* Each is tried; the first error is returned. Codes as unregisterLocalMemory. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* ---- Segments ---- */

/* Opens the segment of a name; leading '/' are ignored. The own name, once a transport is installed: 0. The same name:
 * the same id. Others get 1, 2, 3 ... in the order of first opening. The peer is asked each time (at most ten times a
 * second), so its buffers are as they are now, and a restarted peer is reached; a known peer that does not answer keeps
 * what was known of it. With a metadata store that is asked in the peer's place. -1: no name, or it can't be reached
 * and never was. Blocks for at most the setting handshake_timeout_ms. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);

/* The same, and the peer is asked in any case. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);

/* Gives one opening back. The id stays good as long as there is room for others. 0. */
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);

/* Forgets a name and its id; what is under way to it ends. The own name stays. 0, also when it is unknown; -1 no name,
 * or no such engine. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);

/* Asks the peers of all known segments anew, several at once; ids stay. 0; -1 no such engine. */
int syncSegmentCache(transfer_engine_t engine);

/* No effect. 0. */
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* ---- Batches ---- */

/* A batch for up to batch_size requests, 0 .. 524,288. INVALID_BATCH: more than that, the engine's batches or tasks are
 * all in use (settings max_batches, max_tasks; a log line says so), or no such engine. Never blocks. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);

/* Adds count requests as tasks, numbered on from those already there, all or none.
 * 0; 1 no such engine, batch or segment, an opcode that is neither READ nor WRITE, source NULL, a range that wraps
 * around; 2 more than the batch's capacity, or the queue to the worker stayed full for MC_TCP_ADMISSION_TIMEOUT_MS;
 * 8 no transport is installed. Nothing was added then. Blocks only while that queue is full. */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count);

/* The same, and when all tasks of the batch are COMPLETED, notify_msg goes to the engine of entries[0].target_id, once,
 * whether or not anybody polls. Also: 1 count is 0 or a text is NULL or too long; 4 the batch's earlier notification
 * waits still. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
			     size_t count, notify_msg_t notify_msg);

/* The state of one task. 0; 1 no such engine, batch or task, status NULL: *status is as it was. Takes the same time
 * however many tasks the batch has. Never blocks. */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status *status);

/* Gives a batch back. 0; 4 a task has not ended; 1 no such engine or batch. Never blocks. */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* ---- Notifications ---- */

/* Takes all notifications received so far, oldest first. NULL and *size 0: none. Give the array back with
 * freeNotifsMsgBuf. Never blocks. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);

/* Frees an array of getNotifsFromEngine; size is what that gave. 0. */
int freeNotifsMsgBuf(notify_msg_t *msg, int size);

/* Sends a notification to the engine of a segment and waits for its answer. 0 it has it; -200 no such segment, or its
 * queue is full; -101, -102, -103 it can't be reached, or answers nonsense; -1 no such engine, a text is NULL or too
 * long. Blocks for at most the setting handshake_timeout_ms. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* ---- The end of the process ---- */

/* Destroys this engine, and all others so marked, when the process ends by exit(), SIGTERM or SIGINT; after a signal
 * the exit status is 128 + its number. Takes over the handlers of these two signals, but not of one that is ignored. A
 * forked child that did not call it ends at once by the signal. */
void enableGracefulShutdown(transfer_engine_t engine);

#ifdef __cplusplus
}
#endif
#endif
