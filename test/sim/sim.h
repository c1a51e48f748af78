/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the simulation share: one schedule's world. Everything runs on one thread, and everything that is
 * random comes from the schedule's seed.
 *
 *   the engine    is the real one, driven by its caller; its clock, drivers and control thread are those of this folder
 *   addresses     are numbers: no byte is moved, what would be is counted
 */
#ifndef LW_SIM_H
#define LW_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

#include "lib/engine.h"

#define SIM_PEERS 4
#define SIM_SELF SIM_PEERS /* the engine's own segment, as a peer */
#define SIM_PIECES 4       /* buffers of a side, side by side */
#define SIM_PIECE_BYTES UINT64_C(65536)
#define SIM_LOCAL UINT64_C(0x200000000)
#define SIM_REMOTE UINT64_C(0x700000000)
#define SIM_BATCHES 12
#define SIM_REQUESTS 2048
#define SIM_TASKS 4096 /* in the engine's slab at most */
#define SIM_SEGMENTS 8
#define SIM_CREDITS 24
#define SIM_PARTS 48 /* pieces of a request's range that are known to be applied */
#define SIM_WAYS 4   /* to a peer at most */
#define SIM_MS UINT64_C(1000000)

/* What happened to a peer in this schedule: without it a request may not end for the reason that it gives. */
enum sim_cause {
	SIM_NO_CONNECT = 1,
	SIM_CUT = 2,
	SIM_RESTART = 4,
	SIM_OFFER_LESS = 8,
	SIM_CORRUPT = 16,
	SIM_SHORT = 32, /* of lanes, descriptors */
	SIM_OPTIONS = 64,
};

struct sim_peer {
	char *document; /* NULL: to be made */
	size_t document_length;
	uint64_t life; /* its incarnation */
	uint32_t index;
	uint32_t token; /* what reach gives the engine: its address */
	bool alive;
	bool answers; /* the handshake */
	bool fences;  /* ends a lane's older connections first, and checks ranges */
	bool near;    /* reached by the driver without connections, too */
	uint32_t access[SIM_PIECES];
	uint32_t causes; /* enum sim_cause */
	uint32_t ways, at_once;
	uint32_t dead_ways; /* bits: nothing passes there */
	/* the weather */
	uint32_t refuses;       /* of 100 connects */
	uint32_t black_holes;   /* of 100 connects: no answer */
	uint32_t cuts;          /* of 1000 looks at a lane */
	uint32_t corrupts;      /* of 1000 slices */
	uint64_t pass_bytes;    /* moved for a lane in one look */
	uint32_t late_ms;       /* confirmations come up to so much later */
	uint64_t stalled_until; /* ns */
};

struct sim_part {
	uint64_t from, to;
};

/* A request as the application knows it. */
struct sim_request {
	bool used;
	bool ended;                 /* seen to have */
	bool canceled;              /* or submitted while a cancel was on its way to the worker */
	bool bad_local, bad_remote; /* some of it was not registered, not offered */
	bool unfenced;              /* a WRITE of it was cut where nothing fences */
	uint8_t op, priority;
	uint32_t batch;  /* in sim.batches */
	uint32_t number; /* in the batch */
	uint32_t segment;
	uint32_t peer;
	uint32_t cuts;   /* slices of it that were on a lane when it was closed */
	uint32_t held;   /* slices on lanes */
	uint32_t ghosts; /* bytes of it may be under way on connections that are gone */
	uint32_t timeout_ms;
	uint32_t registrations; /* of the application's before */
	uint64_t local, remote, length;
	uint64_t submitted_ns, taken_ns, canceled_ns;
	uint64_t confirmed; /* bytes */
	const struct lw_task *task;
	struct lw_task_status outcome;
	uint32_t parts;
	struct sim_part part[SIM_PARTS]; /* the last member */
};

struct sim_batch {
	lw_batch_t id; /* 0: free */
	uint32_t capacity, submitted, ended, failed;
	bool news;            /* a task has ended since it was looked at */
	bool event, owed;     /* its completion is to be polled still */
	uint64_t cancel_pass; /* the pass that sees its last cancel */
	uint64_t queued;      /* its completion's number in the order in which they were queued */
	uint32_t *requests;
};

struct sim_segment {
	lw_segment_t id;
	bool open;
	bool closed; /* by the application, the last handle */
	uint32_t peer;
	uint64_t life;
	bool dead;            /* a lane was told that the peer lives another life */
	uint32_t users;       /* requests that are pending */
	uint64_t cancel_pass; /* the pass that sees its last cancel */
};

struct sim {
	/* of the program */
	bool trace;
	const char *program;
	/* of the schedule */
	uint64_t seed, random;
	uint64_t now_ns;
	uint64_t passes, last_pass_ns, longest_gap_ns;
	bool calm, healing;
	bool tcp_first; /* a path may fall back from connections to copies */
	struct lw_engine *engine;
	struct lw_worker *worker;
	struct lw_channel *channel;
	struct sim_peer peers[SIM_PEERS + 1];
	bool registered[SIM_PIECES];
	bool unregistered[SIM_PIECES]; /* once in this schedule */
	uint32_t registrations;        /* so far */
	lw_buffer_t buffers[SIM_PIECES];
	struct sim_segment segments[SIM_SEGMENTS];
	struct sim_batch batches[SIM_BATCHES];
	uint32_t live_count; /* of sim_live */
	uint32_t request_next;
	uint32_t requests_top; /* of sim_requests: none above was used */
	uint64_t accepted;
	uint64_t events_queued, events_polled; /* numbers of the last ones */
	uint32_t reached;                      /* peers that the engine holds */
	bool unordered;
};

extern struct sim sim;
extern struct sim_request sim_requests[SIM_REQUESTS];
extern uint32_t sim_live[SIM_REQUESTS]; /* indices of those that have not ended */

/* seed.c: numbers, and what a failure says */
uint64_t sim_random(uint64_t below);
bool sim_chance(uint32_t of_1000);
void sim_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define SIM_CHECK(condition, ...)                                                                                      \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			sim_fail(__FILE__, __LINE__, __VA_ARGS__);                                                     \
	} while (0)
#define SIM_SAY(...)                                                                                                   \
	do {                                                                                                           \
		if (sim.trace)                                                                                         \
			sim_say(__VA_ARGS__);                                                                          \
	} while (0)

/* ctrl.c: the control thread's work, when the schedule wants it */
void sim_ctrl_run(void);
bool sim_ctrl_idle(void);

/* peers.c */
void sim_peers_begin(void);
void sim_peers_heal(void);
void sim_peer_weather(struct sim_peer *peer);
void sim_peer_restart(struct sim_peer *peer);
/* Whether every byte of the range is offered for op. */
bool sim_peer_offers(const struct sim_peer *peer, uint8_t op, uint64_t addr, uint64_t length);
/* The peer's descriptor as it is now; it stays the peer's. */
const char *sim_peer_document(struct sim_peer *peer, size_t *length);
void sim_peers_end(void);
struct sim_peer *sim_peer_at(uint16_t port);

/* driver.c */
void sim_driver_begin(void);
/* All connections to the peer are gone. */
void sim_driver_break(struct sim_peer *peer);
/* Some of the connections to it stand still. */
void sim_driver_stall(struct sim_peer *peer, uint64_t until_ns);
/* Its slices on lanes, in the lane's order, are those that the driver was given. */
void sim_driver_compare(const struct lw_lane *lane);
uint32_t sim_driver_open_lanes(void);
/* The peer's process is gone, and with it all that was on its connections. */
void sim_driver_gone(const struct sim_peer *peer);
/* The request, whose end was asked for then (0: it was not), has ended. Returns how many pieces of it may still reach
 * the peer though its lane's fence was not waited for long enough. */
uint32_t sim_driver_forget(struct sim_request *request, uint64_t asked_ns);

/* app.c: what the application does with batches */
void sim_app_submit(void);
void sim_app_cancel(void);
void sim_app_poll(void);
/* Frees what has ended, now and then or all of it. */
void sim_app_free(bool all);
/* Every open segment is asked for something that has to come through. */
void sim_app_probe(void);

/* tables.c: and with segments and buffers */
void sim_tables_begin(void);
void sim_tables_segment(void);
void sim_tables_buffer(void);
void sim_tables_end(void);
bool sim_local_registered(uint64_t addr, uint64_t length);

/* pass.c: passes, and what has to be true after each */
void sim_pass(void);
void sim_pass_begin(void);
void sim_pass_end(void);

/* inside.c: what has to be true of the worker's insides between two passes */
void sim_inside_look(void);
/* And when nothing is under way any more. */
void sim_inside_rest(void);

/* request.c: one request's life */
struct sim_request *sim_request_new(void);
void sim_request_submitted(struct sim_request *request, const struct lw_task *task);
struct sim_request *sim_request_of(const struct lw_task *task);
/* A byte of it moved, or may move: it must be pending. */
void sim_request_touch(struct sim_request *request, uint64_t local, uint64_t remote, uint64_t length);
/* The peer has confirmed so much of it. */
void sim_request_confirm(struct sim_request *request, uint64_t length);
/* Compares with what the engine says; true when it has ended. */
bool sim_request_look(struct sim_request *request);

/* schedule.c: a whole one */
void sim_schedule(uint64_t seed);

#endif
