/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, read without stopping anybody. */
#ifndef LANEWISE_STATS_H
#define LANEWISE_STATS_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lw_lane_state {
	LW_LANE_DOWN = 0,
	LW_LANE_CONNECTING = 1,
	LW_LANE_UP = 2,
};

/* X(name, unit, help). One table gives the structure, the JSON and the docs. Counters only grow while the lane lives.
 */
#define LW_LANE_COUNTERS(X)                                                                                            \
	X(tx_bytes, "bytes", "payload sent")                                                                           \
	X(rx_bytes, "bytes", "payload received")                                                                       \
	X(slices, "slices", "slices that ended well")                                                                  \
	X(errors, "slices", "slices that ended in an error")                                                           \
	X(retries, "slices", "slices handed to another connection")                                                    \
	X(connects, "connections", "connections made")                                                                 \
	X(calls, "calls", "system calls that moved bytes")                                                             \
	X(stalls, "times", "it stood still while the peer was there, and was cut")                                     \
	X(moves, "times", "it came up by another way than before: away from a way that broke, or back")

struct lw_lane_stats {
	uint32_t lane;   /* index, unique among the engine's lanes that live; used again */
	uint32_t worker; /* index of the owner */
	uint32_t state;  /* enum lw_lane_state */
	uint32_t target; /* 1: opened by the peer, we serve it; 0: opened by us */
	char driver[16]; /* "tcp" */
	char peer[128];  /* segment name, or the peer's address for target lanes */
	char way[128];   /* own lanes: the pair of addresses, "10.0.1.1 > 10.0.1.2:15001"; "" if there is no such */
	uint64_t rate;   /* bytes a second, as measured while it was busy; 0: not yet */
	uint64_t inflight_slices;
	uint64_t inflight_bytes;
#define X(name, unit, help) uint64_t name;
	LW_LANE_COUNTERS(X)
#undef X
};

struct lw_engine_stats {
	size_t size;            /* in: sizeof(struct lw_engine_stats) */
	uint64_t requests;      /* tasks that ended */
	uint64_t failed;        /* of those, not COMPLETED */
	uint64_t bytes;         /* confirmed */
	uint64_t served_bytes;  /* moved for peers */
	uint64_t worker_cpu_ns; /* CPU time of the worker threads */
	uint64_t worker_sleeps; /* times a worker went to sleep */
	uint32_t live_batches;
	uint32_t live_buffers;
	uint32_t live_segments;
	uint32_t live_channels;
	uint64_t staged_bytes; /* copied between memory of GPUs and bounce buffers, for us and for peers */
	uint64_t copy_errors;  /* such copies that failed */
};

/* Figures of at most max lanes, own and served ones. Any thread. Never blocks beyond a short table lock. The number of
 * lanes there are (it may exceed max); -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_stats_lanes(struct lw_engine *engine, struct lw_lane_stats *out, size_t max);

/* Figures of the engine; set out->size first. Any thread. Never blocks. 0; -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_stats_engine(struct lw_engine *engine, struct lw_engine_stats *out);

#ifdef __cplusplus
}
#endif
#endif
