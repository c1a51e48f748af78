/* SPDX-License-Identifier: Apache-2.0 */
/* Engines and their handles. A handle is the address of a byte that nobody reads: its place tells the slot and which of
 * the slot's engines is meant, so one that is made up or destroyed is recognised, and looks like the pointer that hosts
 * take it for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/compat/compat.h"

#define SLOT_BITS 8 /* as many engines as the library has */
#define SLOTS (1u << SLOT_BITS)
#define LIVES (1u << 14) /* of a slot, before a handle comes again */

static char places[SLOTS * LIVES]; /* never touched, so it takes no memory */
static struct te *slots[SLOTS];
static uint32_t next_slot; /* the one that was free for longest */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static transfer_engine_t handle_of(uint32_t slot, uint32_t gen)
{
	return &places[gen / 2 % LIVES << SLOT_BITS | slot];
}

/* The slot of a handle and the generation's low bits; false: it is none. */
static bool split(transfer_engine_t handle, uint32_t *slot, uint32_t *life)
{
	uintptr_t place = (uintptr_t)handle - (uintptr_t)places;

	if (place >= sizeof(places))
		return false;
	*slot = (uint32_t)place & (SLOTS - 1);
	*life = (uint32_t)(place >> SLOT_BITS);
	return true;
}

static bool is_life(uint32_t gen, uint32_t life)
{
	return (gen & 1) != 0 && gen / 2 % LIVES == life;
}

struct te *te_of(transfer_engine_t handle)
{
	uint32_t slot, life;
	struct te *te;

	if (split(handle, &slot, &life)) {
		te = __atomic_load_n(&slots[slot], __ATOMIC_ACQUIRE);
		if (te != NULL && is_life(atomic_load_explicit(&te->gen, memory_order_acquire), life))
			return te;
	}
	te_fail(-1, "the engine's handle is NULL, made up, or was destroyed");
	return NULL;
}

/* A free slot, whose number goes to *out. The table's lock is held. */
static struct te *find_slot(uint32_t *out)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		uint32_t slot = (next_slot + i) % SLOTS;
		struct te *te = slots[slot];

		if (te != NULL && te->engine != NULL)
			continue;
		if (te == NULL) {
			te = calloc(1, sizeof(*te));
			if (te == NULL)
				return NULL;
			pthread_mutex_init(&te->lock, NULL);
			pthread_mutex_init(&te->shared_lock, NULL);
			__atomic_store_n(&slots[slot], te, __ATOMIC_RELEASE);
		}
		next_slot = slot + 1;
		*out = slot;
		return te;
	}
	return NULL;
}

static void give_slot(struct te *te)
{
	pthread_mutex_lock(&table_lock);
	te->engine = NULL;
	pthread_mutex_unlock(&table_lock);
}

transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
				       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover)
{
	struct lw_setting settings[TE_PREFERRED];
	struct lw_engine_opts opts = {.size = sizeof(opts),
				      .name = local_server_name,
				      .metadata = metadata_conn_string,
				      .settings = settings,
				      .settings_count = te_preferred(settings)};
	struct lw_engine *engine;
	uint32_t slot = 0, gen;
	struct te *te;
	int error;

	(void)ip_or_host_name;
	(void)rpc_port;
	if (metadata_conn_string == NULL || *metadata_conn_string == '\0') {
		te_fail(-1, "the metadata connection string is empty; without a store it is P2PHANDSHAKE");
		return NULL;
	}
	error = lw_engine_open(&opts, &engine);
	if (error != 0) {
		te_error(error);
		lw_log_line(0, lw_last_error());
		return NULL;
	}
	pthread_mutex_lock(&table_lock);
	te = find_slot(&slot);
	if (te != NULL)
		te->engine = engine;
	pthread_mutex_unlock(&table_lock);
	if (te == NULL) {
		te_fail(-1, "no memory for another engine");
		goto close_engine;
	}
	te->graceful = false;
	atomic_store(&te->transport_count, 0);
	te_segments_init(te);
	error = te_settings(te);
	if (error == 0)
		error = lw_channel_open(engine, &te->shared);
	if (error == 0 && (auto_discover != 0 || getenv("MC_FORCE_TCP") != NULL))
		error = te_install_some(te);
	if (error != 0) {
		te_error(error);
		lw_log_line(0, getTransferEngineError());
		goto give;
	}
	gen = atomic_load(&te->gen) + 1;
	atomic_store_explicit(&te->gen, gen, memory_order_release);
	return handle_of(slot, gen);
give:
	te_segments_fini(te);
	give_slot(te);
close_engine:
	lw_engine_close(engine);
	return NULL;
}

/* Ends the engine of the slot, if it still is that life. */
static void destroy(struct te *te, uint32_t gen)
{
	if ((gen & 1) == 0 || !atomic_compare_exchange_strong(&te->gen, &gen, gen + 1))
		return;
	lw_engine_close(te->engine);
	te_segments_fini(te);
	give_slot(te);
}

void destroyTransferEngine(transfer_engine_t engine)
{
	struct te *te = te_of(engine);

	if (te != NULL)
		destroy(te, atomic_load(&te->gen));
}

void te_destroy_graceful(void)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		struct te *te = __atomic_load_n(&slots[i], __ATOMIC_ACQUIRE);

		if (te != NULL && te->graceful)
			destroy(te, atomic_load(&te->gen));
	}
}

int te_channel_take(struct te *te, struct te_channel *out)
{
	int error = lw_channel_self(te->engine, &out->channel);

	out->held = NULL;
	/* More engines than a thread may have channels of, or more threads than the engine has channels. */
	if (error == -ENOSPC || error == -ENOMEM) {
		pthread_mutex_lock(&te->shared_lock);
		out->channel = te->shared;
		out->held = &te->shared_lock;
		error = 0;
	}
	return error;
}

void te_channel_give(struct te_channel *channel)
{
	if (channel->held != NULL)
		pthread_mutex_unlock(channel->held);
}

int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len)
{
	struct te *te = te_of(engine);
	const char *address;

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	if (buf_out == NULL || buf_len == 0)
		return te_fail(TE_ERR_INVALID_ARGUMENT, "there is no buffer for the address");
	address = lw_engine_address(te->engine);
	if (address == NULL)
		return te_fail(TE_ERR_INVALID_ARGUMENT, "the engine is being destroyed");
	return te_fits(snprintf(buf_out, buf_len, "%s", address), buf_len);
}

int getRpcPort(transfer_engine_t engine)
{
	struct te *te = te_of(engine);
	const char *address = te != NULL ? lw_engine_address(te->engine) : NULL;

	return address != NULL ? atoi(strrchr(address, ':') + 1) : 0;
}
