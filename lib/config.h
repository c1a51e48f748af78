/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: one table gives names, types, defaults, ranges, help, the environment's names, the file's keys and the
 * print-out. */
#ifndef LW_CONFIG_H
#define LW_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lanewise/engine.h>

enum lw_poll_mode {
	LW_POLL_BUSY,     /* workers never sleep */
	LW_POLL_ADAPTIVE, /* workers poll for idle_us, then sleep */
	LW_POLL_CALLER,   /* no workers: lw_engine_progress */
};

#define LW_CONFIG_TEXT 256   /* longest text value with its NUL */
#define LW_CONFIG_LONG 16384 /* the same of a long one */

/* N: unsigned number   B: on/off   E: one of the words in unit   T: text   L: long text   S: text that is never shown
 * X(kind, name, default, min, max, unit or words, help) */
#define LW_CONFIG_KEYS(X)                                                                                              \
	X(T, metadata, "P2PHANDSHAKE", 1, 255, "",                                                                     \
	  "how peers are found: P2PHANDSHAKE (they ask each other), or a store: etcd://HOST:PORT[,HOST:PORT], "        \
	  "redis://HOST:PORT, http://HOST:PORT/PATH, https://...")                                                     \
	X(T, store_cluster, "", 0, 127, "", "cluster whose keys are used in the store: mooncake/CLUSTER/...")          \
	X(N, store_lease_s, "30", 0, 31536000, "s",                                                                    \
	  "keys of an engine that died vanish from the store after so long, where it can do that; 0: never")           \
	X(N, store_timeout_ms, "5000", 10, 3600000, "ms", "an operation of the store takes at most this")              \
	X(N, store_max_bytes, "16777216", 65536, 134217728, "bytes",                                                   \
	  "longest document written to or read from the store")                                                        \
	X(T, store_user, "", 0, 255, "", "user at a redis that asks for one")                                          \
	X(S, store_password, "", 0, 255, "", "password at a redis that asks for one; never shown")                     \
	X(N, store_db, "0", 0, 255, "number", "database of a redis")                                                   \
	X(S, store_token, "", 0, 255, "", "bearer token for an HTTP store that asks for one; never shown")             \
	X(T, address, "", 0, 63, "",                                                                                   \
	  "address of this host that an engine without a name announces and listens on; empty: chosen")                \
	X(T, drivers, "shm,nvlink,hip,musa,maca,rdma,tcp,nvmeof,null", 0, 255, "",                                     \
	  "drivers that may be used, separated by commas")                                                             \
	X(N, workers, "1", 1, 64, "threads", "worker threads; no effect with poll = caller")                           \
	X(T, cpus, "", 0, 255, "", "CPUs for the workers, as 0-3,8; empty: chosen among those the process may use")    \
	X(E, poll, "adaptive", 0, 0, "busy|adaptive|caller",                                                           \
	  "busy: workers never sleep; adaptive: they sleep when idle; caller: lw_engine_progress drives")              \
	X(N, idle_us, "100", 0, 1000000, "us", "how long an adaptive worker polls without work before it sleeps")      \
	X(B, eal, "on", 0, 0, "", "run the workers as DPDK lcores; off: as plain threads")                             \
	X(B, hugepages, "on", 0, 0, "", "use free huge pages for the engine's slabs")                                  \
	X(N, max_batches, "4096", 16, 1048575, "batches", "batches alive at once")                                     \
	X(N, max_tasks, "524288", 1024, 16777216, "tasks", "tasks of all batches alive at once")                       \
	X(N, max_segments, "1024", 2, 65536, "segments", "segments open at once")                                      \
	X(N, max_channels, "256", 1, 4096, "channels", "channels open at once")                                        \
	X(N, max_buffers, "262144", 1, 1048575, "buffers", "buffers registered at once")                               \
	X(N, max_lanes, "4096", 16, 65535, "lanes", "lanes of one worker, own and served ones")                        \
	X(N, ring_size, "1024", 16, 65536, "submits",                                                                  \
	  "submits that wait between one channel and one worker; a power of two")                                      \
	X(N, max_slices, "8192", 64, 1048576, "slices", "slices under way of one worker")                              \
	X(N, slice_bytes, "4194304", 4096, 1073741824, "bytes", "longest slice; a longer request is cut")              \
	X(N, stage_bytes, "1048576", 65536, 67108864, "bytes",                                                         \
	  "one bounce buffer, through which memory of a GPU moves where no driver gets at it directly")                \
	X(N, stage_slots, "16", 2, 256, "buffers",                                                                     \
	  "bounce buffers of one worker and vendor of GPUs, for us and as many for peers; made with the first buffer " \
	  "of a GPU")                                                                                                  \
	X(N, lane_bytes, "33554432", 65536, 1099511627776, "bytes",                                                    \
	  "bytes under way on one lane; more wait where requests in the foreground overtake them")                     \
	X(N, timeout_ms, "30000", 1, 86400000, "ms", "deadline of a request that names none")                          \
	X(N, connect_timeout_ms, "5000", 10, 3600000, "ms", "a connection that is not made by then has failed")        \
	X(N, handshake_timeout_ms, "5000", 10, 3600000, "ms",                                                          \
	  "opening a segment, a probe or a note takes at most this")                                                   \
	X(N, handshake_max_bytes, "16777216", 1048576, 134217728, "bytes", "longest handshake frame taken or sent")    \
	X(N, handshake_clients, "256", 1, 65535, "connections", "handshake connections served at once")                \
	X(B, refresh, "on", 0, 0, "",                                                                                  \
	  "ask a peer again what it offers when a request points elsewhere, or is refused; off: it fails at once")     \
	X(N, port_min, "15000", 1024, 65535, "port", "lowest port the engine may listen on; it takes two")             \
	X(N, port_max, "17000", 1024, 65535, "port", "highest port the engine may listen on")                          \
	X(L, topology, "", 0, 16383, "",                                                                               \
	  "priority matrix as JSON, {\"cpu:0\":[[preferred],[others]]}; empty: topology_file, else discovered")        \
	X(T, topology_file, "", 0, 255, "", "file with the priority matrix; no effect with topology")                  \
	X(B, local_unregistered, "off", 0, 0, "",                                                                      \
	  "the local side of a request may be memory that is not registered; slower, and nobody looks after it")       \
	X(N, lane_stall_ms, "300", 0, 60000, "ms",                                                                     \
	  "a lane that stands still for so long while the peer is there is connected anew; 0: its requests' "          \
	  "deadlines "                                                                                                 \
	  "decide")                                                                                                    \
	X(N, foreground_weight, "16", 1, 65536, "bytes",                                                               \
	  "bytes of the foreground for each byte of bulk, while both wait for the same peer")                          \
	X(N, tcp_lanes, "0", 0, 16, "lanes",                                                                           \
	  "connections of one worker to one peer; 0: one for each pair of addresses that is to be used, mostly 1")     \
	X(T, tcp_bind, "", 0, 255, "",                                                                                 \
	  "addresses or network devices of this host, separated by commas, over which data connections are spread, "   \
	  "ours and those of peers to us; empty: the engine's own address")                                            \
	X(N, tcp_max_served, "1024", 1, 65535, "connections",                                                          \
	  "connections of peers that one worker serves; more take the places of those that are idle")                  \
	X(N, tcp_idle_s, "60", 0, 86400, "s",                                                                          \
	  "a connection to a peer that is idle for so long is closed; the next request makes it again; 0: never")      \
	X(T, tcp_congestion, "auto", 0, 15, "",                                                                        \
	  "congestion control of data connections; auto: cubic inside one host, else the system's; empty: the "        \
	  "system's")                                                                                                  \
	X(N, tcp_splice_bytes, "262144", 0, 1073741824, "bytes",                                                       \
	  "WRITEs from this size leave without a copy where the system allows it; 0: never")                           \
	X(B, tcp_checksum, "off", 0, 0, "",                                                                            \
	  "end-to-end checksums (CRC32C) of requests and bodies; Lanewise peers set alike are reached, no others")     \
	X(S, tcp_secret, "", 0, 255, "",                                                                               \
	  "data connections prove that both sides know it (HMAC-SHA256); peers without it are refused; never shown")   \
	X(N, tcp_proto, "2", 1, 2, "version", "highest framing version spoken to peers; 1 leaves writes unconfirmed")  \
	X(T, rdma_devices, "", 0, 255, "", "RDMA devices that may be used, separated by commas; empty: all")           \
	X(N, rdma_port, "1", 1, 255, "port", "port of each RDMA device")                                               \
	X(N, rdma_gid_index, "256", 0, 256, "index", "GID of the port that queue pairs use; 256: the best is chosen")  \
	X(N, rdma_qps, "2", 1, 8, "queue pairs",                                                                       \
	  "queue pairs of one worker between a device and a peer's; the peer's number has to be the same")             \
	X(N, rdma_wr, "256", 16, 16384, "requests", "work requests under way on one queue pair")                       \
	X(N, rdma_inline_bytes, "64", 0, 1024, "bytes", "WRITEs up to this size go to the device with their request")  \
	X(N, rdma_mtu, "4096", 256, 4096, "bytes", "longest packet; a power of two; the port may allow less")          \
	X(N, rdma_timeout, "14", 1, 31, "exponent",                                                                    \
	  "a packet is sent again when no acknowledgement came for 4.096 us * 2^this")                                 \
	X(N, rdma_retries, "6", 0, 7, "times", "that often; 7 means for ever with some devices")                       \
	X(N, rdma_pkey_index, "0", 0, 65535, "index", "partition key of the port that queue pairs use")                \
	X(N, rdma_traffic_class, "0", 0, 255, "class", "traffic class (DSCP and ECN) of RoCE packets")                 \
	X(N, rdma_sl, "0", 0, 15, "level", "service level of InfiniBand packets")                                      \
	X(N, rdma_max_mr_bytes, "1099511627776", 4096, 1099511627776, "bytes",                                         \
	  "longest memory region; a longer buffer becomes several; the device may allow less")                         \
	X(N, rdma_max_endpoints, "4096", 16, 65536, "connections",                                                     \
	  "connections between devices of ours and of peers; more take the places of those that nobody here uses")     \
	X(B, rdma_relaxed_ordering, "on", 0, 0, "", "let PCIe write registered memory out of order, where it can")     \
	X(B, shm_peers, "on", 0, 0, "",                                                                                \
	  "other engines of this host are reached through their memory instead of sockets, where the kernel allows "   \
	  "it")                                                                                                        \
	X(N, shm_stream_bytes, "1048576", 0, 1073741824, "bytes",                                                      \
	  "requests from this size are copied past the CPU's cache; 0: never")                                         \
	X(B, file_direct, "on", 0, 0, "",                                                                              \
	  "files of segments are read and written past the page cache (O_DIRECT), where their file system can")        \
	X(T, cuda_library, "", 0, 255, "",                                                                             \
	  "file of the CUDA runtime; empty: what the process has loaded, else what the system finds")                  \
	X(T, hip_library, "", 0, 255, "", "file of the HIP runtime; empty: what the process has loaded")               \
	X(T, musa_library, "", 0, 255, "", "file of the MUSA runtime; empty: what the process has loaded")             \
	X(T, maca_library, "", 0, 255, "", "file of the MACA runtime; empty: what the process has loaded")             \
	X(B, hip, "on", 0, 0, "", "use devices of HIP, if there are some")                                             \
	X(B, musa, "on", 0, 0, "", "use devices of MUSA, if there are some")                                           \
	X(B, maca, "on", 0, 0, "", "use devices of MACA, if there are some")                                           \
	X(B, gpu_pin, "on", 0, 0, "",                                                                                  \
	  "memory of the host that is registered in a process that uses a GPU is pinned for its copies; off: it is "   \
	  "copied through small bounce buffers")                                                                       \
	X(E, gpu_protocol, "none", 0, 0, "none|nvlink|nvlink_intra|hip|musa|maca",                                     \
	  "protocol that our document names for Mooncake's engines, which import memory of GPUs then and reach "       \
	  "nothing else of ours; none: tcp or rdma")                                                                   \
	X(N, notify_queue, "1024", 1, 1048576, "notes", "notes received and not yet polled; more are refused")         \
	X(E, log_level, "warning", 0, 0, "error|warning|info|debug", "least urgent lines that are logged")

enum lw_config_source { LW_SOURCE_DEFAULT, LW_SOURCE_FILE, LW_SOURCE_ENV, LW_SOURCE_CODE };

struct lw_config {
#define LW_FIELD_N(name) uint64_t name;
#define LW_FIELD_B(name) bool name;
#define LW_FIELD_E(name) uint32_t name;
#define LW_FIELD_T(name) char name[LW_CONFIG_TEXT];
#define LW_FIELD_S(name) char name[LW_CONFIG_TEXT];
#define LW_FIELD_L(name) char name[LW_CONFIG_LONG];
#define X(kind, name, def, min, max, unit, help) LW_FIELD_##kind(name)
	LW_CONFIG_KEYS(X)
#undef X
	uint8_t source[96]; /* enum lw_config_source, by position in the table */
};

/* Fills *config: defaults, then the file, then the environment (LW_<NAME>), then the settings of the code. A wrong
 * value or unknown key is an error in the file and in the code, and one warning in the environment (the value used is
 * named). What nobody has set is taken from Mooncake's variable, if it has one (lib/foreign.c has the table;
 * topology_file does not count beside topology). A variable MC_<NAME> that nobody knows is one warning, too. Blocks on
 * the file. 0; -EINVAL; -ENOENT, -EACCES, -EIO the file. Any thread. */
int lw_config_load(struct lw_config *config, const char *file, const struct lw_setting *settings, size_t count);

/* Where the value of a setting, which there is, comes from. */
enum lw_config_source lw_config_source(const struct lw_config *config, const char *name);

/* The JSON of lw_engine_config_json. The caller frees *out. 0, -ENOMEM. */
int lw_config_json(const struct lw_config *config, char **out);

#endif
