/* SPDX-License-Identifier: Apache-2.0 */
/* The peers: what they offer, which life they live, and the weather on the way to them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/descriptor.h"
#include "sim/sim.h"

#define RPC_PORT 20000
#define DATA_PORT 30000

struct sim_peer *sim_peer_at(uint16_t port)
{
	if (port >= DATA_PORT && port < DATA_PORT + SIM_PEERS)
		return &sim.peers[port - DATA_PORT];
	if (port >= RPC_PORT && port < RPC_PORT + SIM_PEERS)
		return &sim.peers[port - RPC_PORT];
	return NULL;
}

const char *sim_peer_document(struct sim_peer *peer, size_t *length)
{
	struct lw_desc_buffer buffers[SIM_PIECES];
	struct lw_desc desc = {.protocol = "tcp",
			       .tcp_port = (uint16_t)(DATA_PORT + peer->index),
			       .tcp_version = peer->fences ? 2 : 1,
			       .incarnation = peer->life,
			       .buffers = buffers};

	*length = peer->document_length;
	if (peer->document != NULL)
		return peer->document;
	snprintf(desc.name, sizeof(desc.name), "127.0.0.1:%u", RPC_PORT + peer->index);
	for (uint32_t i = 0; i < SIM_PIECES; i++) {
		struct lw_desc_buffer *buffer = &buffers[desc.buffer_count];

		if (peer->access[i] == 0)
			continue;
		*buffer = (struct lw_desc_buffer){
			.addr = SIM_REMOTE + i * SIM_PIECE_BYTES, .length = SIM_PIECE_BYTES, .access = peer->access[i]};
		snprintf(buffer->name, sizeof(buffer->name), "%s", desc.name);
		desc.buffer_count++;
	}
	SIM_CHECK(lw_desc_encode(&desc, &peer->document, &peer->document_length) == 0, "no descriptor of peer %u",
		  peer->index);
	*length = peer->document_length;
	return peer->document;
}

/* It tells something else from now on. */
static void change(struct sim_peer *peer)
{
	free(peer->document);
	peer->document = NULL;
}

void sim_peers_end(void)
{
	for (uint32_t i = 0; i <= SIM_SELF; i++)
		change(&sim.peers[i]);
}

bool sim_peer_offers(const struct sim_peer *peer, uint8_t op, uint64_t addr, uint64_t length)
{
	uint32_t access = op == LW_READ ? LW_ACCESS_REMOTE_READ : LW_ACCESS_REMOTE_WRITE;

	if (peer->index == SIM_SELF)
		return sim_local_registered(addr, length);
	if (addr < SIM_REMOTE || addr + length > SIM_REMOTE + SIM_PIECES * SIM_PIECE_BYTES)
		return false;
	for (uint64_t at = addr; at < addr + length; at = (at / SIM_PIECE_BYTES + 1) * SIM_PIECE_BYTES)
		if ((peer->access[(at - SIM_REMOTE) / SIM_PIECE_BYTES] & access) == 0)
			return false;
	return true;
}

void sim_peers_heal(void)
{
	for (uint32_t i = 0; i <= SIM_SELF; i++) {
		struct sim_peer *peer = &sim.peers[i];

		peer->refuses = peer->black_holes = peer->cuts = peer->corrupts = 0;
		peer->pass_bytes = 1 << 20;
		peer->late_ms = 0;
		peer->dead_ways = 0;
		peer->stalled_until = 0;
		peer->alive = peer->answers = true;
	}
}

void sim_peer_restart(struct sim_peer *peer)
{
	SIM_SAY("peer %u restarts", peer->index);
	peer->life = sim_random(UINT64_MAX - 1) + 1;
	peer->causes |= SIM_RESTART | SIM_CUT | SIM_OFFER_LESS | SIM_NO_CONNECT;
	for (uint32_t i = 0; i < SIM_PIECES; i++)
		peer->access[i] = sim_chance(800) ? LW_ACCESS_REMOTE : (uint32_t)sim_random(4);
	change(peer);
	sim_driver_break(peer);
	sim_driver_gone(peer);
}

static void draw_ways(struct sim_peer *peer)
{
	peer->ways = sim_chance(500) ? 1 : 1 + (uint32_t)sim_random(SIM_WAYS);
	peer->at_once = 1 + (uint32_t)sim_random(peer->ways);
}

/* One change of the weather. */
void sim_peer_weather(struct sim_peer *peer)
{
	uint64_t until_ns;
	uint32_t piece;

	if (sim.calm)
		return;
	switch (sim_random(14)) {
	case 0:
		peer->refuses = (uint32_t)sim_random(2) * 60;
		peer->causes |= SIM_NO_CONNECT;
		break;
	case 1:
		peer->black_holes = (uint32_t)sim_random(2) * 60;
		peer->causes |= SIM_NO_CONNECT;
		break;
	case 2:
		peer->cuts = (uint32_t)sim_random(2) * 80;
		peer->causes |= SIM_CUT;
		break;
	case 3:
		peer->pass_bytes = UINT64_C(1) << (8 + sim_random(10));
		break;
	case 4:
		peer->late_ms = (uint32_t)sim_random(30);
		break;
	case 5:
		until_ns = sim.now_ns + sim_random(sim_chance(200) ? 5000 : 100) * SIM_MS;
		if (sim_chance(500))
			peer->stalled_until = until_ns;
		else
			sim_driver_stall(peer, until_ns);
		break;
	case 6:
		peer->corrupts = (uint32_t)sim_random(2) * 20;
		peer->causes |= SIM_CORRUPT;
		break;
	case 7:
		piece = (uint32_t)sim_random(SIM_PIECES);
		peer->access[piece] = (uint32_t)sim_random(4);
		change(peer);
		peer->causes |= SIM_OFFER_LESS;
		if (sim_chance(500))
			draw_ways(peer);
		break;
	case 8:
		if (peer->index != SIM_SELF && sim_chance(300))
			sim_peer_restart(peer);
		break;
	case 9:
		if (peer->index != SIM_SELF) {
			peer->alive = !peer->alive;
			peer->causes |= SIM_NO_CONNECT | SIM_CUT;
			if (!peer->alive) {
				sim_driver_break(peer);
				sim_driver_gone(peer);
			}
		}
		break;
	case 12:
	case 13:
		peer->dead_ways = (uint32_t)sim_random(1u << peer->ways);
		peer->causes |= SIM_NO_CONNECT;
		break;
	case 10:
		peer->answers = sim_chance(500);
		break;
	default:
		SIM_SAY("peer %u: all connections break", peer->index);
		peer->causes |= SIM_CUT;
		sim_driver_break(peer);
		return;
	}
	SIM_SAY("peer %u: %s, refuses %u%%, no answer %u%%, cuts %u, corrupts %u, %llu bytes a look, late %u ms, "
		"dead ways %x, stalled %lld",
		peer->index, peer->alive ? "lives" : "is gone", peer->refuses, peer->black_holes, peer->cuts,
		peer->corrupts, (unsigned long long)peer->pass_bytes, peer->late_ms, peer->dead_ways,
		(long long)(peer->stalled_until - sim.now_ns) / 1000000);
}

void sim_peers_begin(void)
{
	for (uint32_t i = 0; i <= SIM_SELF; i++) {
		struct sim_peer *peer = &sim.peers[i];

		*peer = (struct sim_peer){.index = i,
					  .life = sim_random(UINT64_MAX - 1) + 1,
					  .fences = sim_chance(700),
					  .near = i == SIM_SELF || sim_chance(500)};
		draw_ways(peer);
		for (uint32_t k = 0; k < SIM_PIECES; k++)
			peer->access[k] = sim_chance(900) ? LW_ACCESS_REMOTE : (uint32_t)sim_random(4);
	}
	sim.peers[SIM_SELF].fences = true; /* as lib/segment.c says of it */
	sim_peers_heal();
	for (uint32_t i = 0; i <= SIM_SELF && !sim.calm; i++)
		for (uint64_t k = sim_random(3); k > 0; k--)
			sim_peer_weather(&sim.peers[i]);
}
