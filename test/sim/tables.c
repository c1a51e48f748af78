/* SPDX-License-Identifier: Apache-2.0 */
/* What the application does with segments and buffers. */
#include <errno.h>
#include <stdio.h>

#include "sim/sim.h"

bool sim_local_registered(uint64_t addr, uint64_t length)
{
	if (addr < SIM_LOCAL || addr + length > SIM_LOCAL + SIM_PIECES * SIM_PIECE_BYTES)
		return false;
	for (uint64_t at = addr; at < addr + length; at = (at / SIM_PIECE_BYTES + 1) * SIM_PIECE_BYTES)
		if (!sim.registered[(at - SIM_LOCAL) / SIM_PIECE_BYTES])
			return false;
	return true;
}

static void register_piece(uint32_t i)
{
	struct lw_memory memory = {.addr = (void *)(uintptr_t)(SIM_LOCAL + i * SIM_PIECE_BYTES),
				   .length = SIM_PIECE_BYTES,
				   .access = LW_ACCESS_REMOTE};

	SIM_CHECK(lw_memory_register(sim.engine, &memory, 1, &sim.buffers[i]) == 0, "not registered: %s",
		  lw_last_error());
	sim.registered[i] = true;
	sim.registrations++;
	SIM_SAY("piece %u is registered", i);
}

static void unregister_piece(uint32_t i)
{
	int error;

	/* It drives the engine itself until the worker has let go. */
	sim_pass_begin();
	sim.unregistered[i] = true;
	error = lw_memory_unregister(sim.engine, &sim.buffers[i], 1, 0);
	SIM_CHECK(error == 0, "not unregistered: %d", error);
	sim.registered[i] = false;
	SIM_SAY("piece %u is unregistered", i);
	SIM_CHECK(lw_memory_unregister(sim.engine, &sim.buffers[i], 1, 0) == -EBADF, "a buffer is unregistered twice");
	sim_pass_end();
}

void sim_tables_buffer(void)
{
	uint32_t i = (uint32_t)sim_random(SIM_PIECES);

	if (!sim.registered[i])
		register_piece(i);
	else if (!sim.calm && sim_chance(400))
		unregister_piece(i);
}

static void open_segment(struct sim_segment *segment, struct sim_peer *peer)
{
	char name[32];
	int error;

	snprintf(name, sizeof(name), "127.0.0.1:%u", 20000 + peer->index);
	error = lw_segment_open(sim.engine, name, 0, &segment->id);
	SIM_SAY("segment of peer %u is opened: %d", peer->index, error);
	if (error == -ENOSPC || error == -ENOTSUP)
		return;
	if (!peer->alive || !peer->answers) {
		SIM_CHECK(error != 0, "a peer that does not answer is opened");
		return;
	}
	SIM_CHECK(error == 0, "not opened: %d, %s", error, lw_last_error());
	segment->open = true;
	segment->closed = false;
	segment->dead = false;
	segment->peer = peer->index;
	segment->life = peer->life;
}

/* One handle of it; with the last one what is under way ends. */
static void close_segment(struct sim_segment *segment)
{
	bool last = true;

	SIM_CHECK(lw_segment_close(sim.engine, segment->id) == 0, "not closed");
	segment->open = false;
	for (uint32_t i = 1; i < SIM_SEGMENTS; i++)
		last = last && !(sim.segments[i].open && sim.segments[i].id == segment->id);
	for (uint32_t i = 1; i < SIM_SEGMENTS && last; i++)
		if (sim.segments[i].id == segment->id)
			sim.segments[i].closed = true;
	SIM_CHECK(!last || lw_segment_of(sim.engine, segment->id) == NULL, "a segment that was closed is open");
	SIM_SAY("a segment of peer %u is closed%s", segment->peer, last ? ", the last handle" : "");
}

void sim_tables_segment(void)
{
	struct sim_segment *segment = &sim.segments[1 + sim_random(SIM_SEGMENTS - 1)];

	if (segment->open && (sim.calm ? segment->users == 0 : sim_chance(300)))
		close_segment(segment);
	else if (!segment->open && segment->users == 0)
		open_segment(segment, &sim.peers[sim_random(SIM_PEERS)]);
}

void sim_tables_begin(void)
{
	sim.segments[0] = (struct sim_segment){.id = LW_SEGMENT_LOCAL, .open = true, .peer = SIM_SELF};
	for (uint32_t i = 0; i < SIM_PIECES; i++)
		if (sim_chance(900))
			register_piece(i);
	for (uint64_t i = 1 + sim_random(4); i > 0; i--)
		sim_tables_segment();
}

void sim_tables_end(void)
{
	for (uint32_t i = 1; i < SIM_SEGMENTS; i++)
		if (sim.segments[i].open)
			close_segment(&sim.segments[i]);
	for (uint32_t i = 0; i < SIM_PIECES; i++)
		if (sim.registered[i])
			unregister_piece(i);
}
