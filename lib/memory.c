/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: slots with handles, and the snapshot of ranges that workers check requests against. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/log.h"
#include "meta/directory.h"
#include "meta/location.h"

#define UNREGISTER_MS 5000
#define LENGTH_MAX (UINT64_C(1) << 47)

void lw_memory_init(struct lw_engine *engine)
{
	atomic_store(&engine->memory, NULL);
	engine->buffers = NULL;
	engine->buffers_free = NULL;
	engine->buffers_used = 0;
	engine->buffers_room = 0;
	engine->buffers_free_count = 0;
	engine->live_buffers = 0;
	engine->own_buffers = 0;
	engine->revoking = 0;
	engine->entering = 0;
}

void lw_memory_fini(struct lw_engine *engine)
{
	lw_rangemap_free(atomic_exchange(&engine->memory, NULL));
	free(engine->buffers);
	free(engine->buffers_free);
	engine->buffers = NULL;
	engine->buffers_free = NULL;
}

/* The parts of a snapshot that the next one no longer uses. Readers can find them until that one is published, so they
 * are retired after that and not before. */
struct replaced {
	void *part[2];
	uint32_t count;
};

static void note_replaced(void *arg, void *memory)
{
	struct replaced *replaced = arg;

	replaced->part[replaced->count++] = memory;
}

static int check_buffer(const struct lw_memory *memory, size_t number)
{
	uint64_t addr = (uint64_t)(uintptr_t)memory->addr;
	struct lw_location location;
	char why[160];

	if (memory->addr == NULL || memory->length == 0)
		return lw_fail(-EINVAL, "buffer %zu: address NULL or length 0", number);
	if (memory->length > LENGTH_MAX || addr + memory->length < addr)
		return lw_fail(-EINVAL, "buffer %zu: %zu bytes at %p are longer than 2^47 or wrap around", number,
			       memory->length, memory->addr);
	if ((memory->access & ~(uint32_t)LW_ACCESS_REMOTE) != 0 || memory->reserved != 0)
		return lw_fail(-EINVAL, "buffer %zu: unknown access bits 0x%x, or reserved is not 0", number,
			       memory->access);
	if (memory->location == NULL || memory->location[0] == '\0')
		return 0;
	if (strnlen(memory->location, LW_LOCATION_TEXT) == LW_LOCATION_TEXT)
		return lw_fail(-EINVAL, "buffer %zu: the location is longer than %d bytes", number,
			       LW_LOCATION_TEXT - 1);
	if (lw_location_parse(memory->location, &location, why, sizeof(why)) != 0)
		return lw_fail(-EINVAL, "buffer %zu: the location \"%s\" %s", number, memory->location, why);
	return 0;
}

/* Room for count more slots, so that taking them can't fail. */
static int reserve_slots(struct lw_engine *engine, size_t count)
{
	size_t want = engine->buffers_used + count;
	struct lw_buffer_slot *slots;
	uint32_t *stack;
	size_t room = engine->buffers_room != 0 ? engine->buffers_room : 64;

	if (engine->live_buffers + count > engine->config.max_buffers)
		return lw_fail(-ENOSPC,
			       "%zu buffers more than the %u registered would exceed the setting max_buffers (%llu)",
			       count, engine->live_buffers, (unsigned long long)engine->config.max_buffers);
	while (room < want)
		room *= 2;
	if (room == engine->buffers_room)
		return 0;
	slots = realloc(engine->buffers, room * sizeof(*slots));
	if (slots == NULL)
		return lw_fail(-ENOMEM, "no memory for the table of buffers");
	memset(&slots[engine->buffers_room], 0, (room - engine->buffers_room) * sizeof(*slots));
	for (size_t i = engine->buffers_room; i < room; i++)
		slots[i].gen = engine->epoch;
	engine->buffers = slots;
	stack = realloc(engine->buffers_free, room * sizeof(*stack));
	if (stack == NULL)
		return lw_fail(-ENOMEM, "no memory for the table of buffers");
	engine->buffers_free = stack;
	engine->buffers_room = (uint32_t)room;
	return 0;
}

/* A buffer that is being registered. */
struct entry {
	uint32_t slot;
	uint32_t kind; /* as in lw_range.access */
	char location[LW_LOCATION_TEXT];
};

static uint32_t take_buffer(struct lw_engine *engine, const struct lw_memory *memory, const struct entry *entry)
{
	uint32_t index = engine->buffers_free_count != 0 ? engine->buffers_free[--engine->buffers_free_count]
							 : engine->buffers_used++;
	struct lw_buffer_slot *slot = &engine->buffers[index];

	slot->gen++;
	slot->access = memory->access;
	slot->kind = entry->kind;
	slot->addr = (uint64_t)(uintptr_t)memory->addr;
	slot->length = memory->length;
	slot->entering = false;
	slot->revoking = false;
	slot->late = false;
	memset(slot->location, 0, sizeof(slot->location));
	memcpy(slot->location, entry->location, strnlen(entry->location, sizeof(slot->location) - 1));
	engine->live_buffers++;
	return index;
}

static void give_buffer(struct lw_engine *engine, uint32_t index)
{
	engine->buffers[index].gen++;
	engine->buffers[index].entering = false;
	engine->buffers[index].revoking = false;
	engine->buffers_free[engine->buffers_free_count++] = index;
	engine->live_buffers--;
}

/* Publishes the snapshot with range i of the slot added or removed. Under the lock. */
static int change_map(struct lw_engine *engine, uint32_t index, bool add)
{
	const struct lw_buffer_slot *slot = &engine->buffers[index];
	struct lw_range range = {.addr = slot->addr,
				 .end = slot->addr + slot->length,
				 .access = slot->access | slot->kind,
				 .tag = index};
	struct lw_rangemap *map = atomic_load_explicit(&engine->memory, memory_order_relaxed), *next;
	struct replaced replaced = {.count = 0};
	int error;

	if (add)
		error = lw_rangemap_add(map, &range, note_replaced, &replaced, &next);
	else
		error = lw_rangemap_remove(map, slot->addr, note_replaced, &replaced, &next);
	if (error != 0)
		return error;
	atomic_store_explicit(&engine->memory, next, memory_order_release);
	for (uint32_t i = 0; i < replaced.count; i++)
		lw_rcu_retire(&engine->rcu, replaced.part[i], free);
	return 0;
}

static int compare_ranges(const void *a, const void *b)
{
	const struct lw_range *left = a, *right = b;

	return left->addr < right->addr ? -1 : left->addr > right->addr;
}

/* Whether a range that is not in the map holds some of these bytes: a worker has not let go of it yet, or drivers still
 * learn of it. Under the lock. */
static bool is_held(const struct lw_engine *engine, const struct lw_range *range)
{
	for (uint32_t i = 0; engine->revoking + engine->entering != 0 && i < engine->buffers_used; i++) {
		const struct lw_buffer_slot *slot = &engine->buffers[i];

		if ((slot->revoking || slot->entering) && slot->addr < range->end &&
		    range->addr < slot->addr + slot->length)
			return true;
	}
	return false;
}

bool lw_memory_in_use(const struct lw_engine *engine, uint64_t addr, uint64_t end)
{
	struct lw_range range = {.addr = addr, .end = end};

	return lw_rangemap_overlaps(atomic_load_explicit(&engine->memory, memory_order_relaxed), addr, end) ||
	       is_held(engine, &range);
}

/* Refuses a list that overlaps anything, or itself, before any of it can be seen by workers and peers. Under the lock.
 */
static int check_overlaps(struct lw_engine *engine, const struct lw_memory *list, size_t count)
{
	struct lw_range *ranges = malloc(count * sizeof(*ranges));
	int error = 0;

	if (ranges == NULL)
		return lw_fail(-ENOMEM, "no memory for the list of buffers");
	for (size_t i = 0; i < count && error == 0; i++) {
		uint64_t addr = (uint64_t)(uintptr_t)list[i].addr;

		ranges[i] = (struct lw_range){.addr = addr, .end = addr + list[i].length, .tag = (uint32_t)i};
		if (lw_memory_in_use(engine, addr, ranges[i].end))
			error = lw_fail(
				-EEXIST,
				"buffer %zu: %zu bytes at %p overlap a registered range; unregister that one first", i,
				list[i].length, list[i].addr);
	}
	if (error == 0 && count > 1)
		qsort(ranges, count, sizeof(*ranges), compare_ranges);
	for (size_t i = 1; i < count && error == 0; i++)
		if (ranges[i].addr < ranges[i - 1].end)
			error = lw_fail(-EEXIST, "buffers %u and %u of the list overlap", ranges[i - 1].tag,
					ranges[i].tag);
	free(ranges);
	return error;
}

/* Whether a driver has to do with memory of this kind. */
static bool is_for(const struct lw_engine *engine, size_t driver, uint32_t kind)
{
	return engine->driver_on[driver] &&
	       lw_driver_knows(lw_drivers[driver], (kind & LW_RANGE_DEVICE) != 0 ? LW_MEM_DEVICE : LW_MEM_HOST);
}

/* Tells the drivers that peers may reach the buffer, or may not any more. Under the lock. */
static void offer(struct lw_engine *engine, uint32_t index)
{
	const struct lw_buffer_slot *slot = &engine->buffers[index];

	for (size_t i = 0; i < lw_drivers_count; i++)
		if (is_for(engine, i, slot->kind) && lw_drivers[i]->offer != NULL && slot->access != LW_ACCESS_LOCAL)
			lw_drivers[i]->offer(engine->driver_context[i], index, slot);
}

static void take_offer_back(struct lw_engine *engine, uint32_t index)
{
	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->withdraw != NULL)
			lw_drivers[i]->withdraw(engine->driver_context[i], index);
}

/* Waits for the peers that reach our memory by themselves. 0, -EBUSY. */
static int settle(struct lw_engine *engine, uint64_t end_ns, uint32_t timeout_ms)
{
	char why[160];

	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->settle != NULL &&
		    lw_drivers[i]->settle(engine->driver_context[i], end_ns, why, sizeof(why)) != 0)
			return lw_fail(-EBUSY, "%s, still after %u ms; do not unmap the memory, call again", why,
				       timeout_ms);
	return 0;
}

/* Tells the drivers that a buffer is not registered any more. Not under the lock. */
static void detach(struct lw_engine *engine, uint32_t index)
{
	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->detach != NULL)
			lw_drivers[i]->detach(engine->driver_context[i], index);
}

/* Tells the drivers of a buffer that is to be registered. Not under the lock: it may take its time. */
static int attach(struct lw_engine *engine, uint32_t index, const struct lw_memory *memory, uint32_t kind,
		  size_t number)
{
	char why[200] = "";
	int error;

	for (size_t i = 0; i < lw_drivers_count; i++) {
		if (lw_drivers[i]->attach == NULL || !is_for(engine, i, kind))
			continue;
		error = lw_drivers[i]->attach(engine->driver_context[i], index, memory, why, sizeof(why));
		if (error != 0) {
			detach(engine, index);
			return lw_fail(error, "buffer %zu: %zu bytes at %p: driver %s: %s", number, memory->length,
				       memory->addr, lw_drivers[i]->name, why);
		}
	}
	return 0;
}

/* Slots for the list, whose ranges are taken from now on though nobody can see them. Under the lock. */
static int begin_entering(struct lw_engine *engine, const struct lw_memory *list, size_t count, struct entry *entries)
{
	int error = reserve_slots(engine, count);

	if (error == 0)
		error = check_overlaps(engine, list, count);
	for (size_t i = 0; i < count && error == 0; i++) {
		entries[i].slot = take_buffer(engine, &list[i], &entries[i]);
		engine->buffers[entries[i].slot].entering = true;
		engine->entering++;
	}
	return error;
}

/* Puts the slots on the map, all or none. Under the lock. */
static int end_entering(struct lw_engine *engine, const struct lw_memory *list, size_t count,
			const struct entry *entries)
{
	size_t done = 0;
	int error = 0;

	for (; error == 0 && done < count; done++) {
		error = change_map(engine, entries[done].slot, true);
		if (error != 0) {
			lw_fail(error, "buffer %zu: %zu bytes at %p could not be entered: out of memory", done,
				list[done].length, list[done].addr);
			break;
		}
		engine->buffers[entries[done].slot].entering = false;
		engine->entering--;
	}
	/* Removing what was just added can only run out of memory; then the buffer stays, unoffered to nobody's harm.
	 */
	while (error != 0 && done > 0) {
		if (change_map(engine, entries[--done].slot, false) != 0)
			continue;
		engine->buffers[entries[done].slot].entering = true;
		engine->entering++;
	}
	return error;
}

/* Gives back the slots that are not on the map. Under the lock. */
static void drop_entering(struct lw_engine *engine, size_t count, const struct entry *entries)
{
	for (size_t i = 0; i < count; i++) {
		if (!engine->buffers[entries[i].slot].entering)
			continue;
		engine->entering--;
		give_buffer(engine, entries[i].slot);
	}
}

/* What kinds of memory the buffers are. Not under the lock: bounce buffers may have to be made. */
static int find_kinds(struct lw_engine *engine, const struct lw_memory *list, size_t count, struct entry *entries)
{
	int error = 0;

	for (size_t i = 0; i < count && error == 0; i++) {
		error = lw_place_of(engine, &list[i], i, &entries[i].kind, entries[i].location);
		if (list[i].location != NULL && (entries[i].location[0] == '\0' || strcmp(list[i].location, "*") != 0))
			snprintf(entries[i].location, sizeof(entries[i].location), "%s", list[i].location);
	}
	return error;
}

/* Enters the buffers, all or none. kind: what is known of all of them. */
static int enter_buffers(struct lw_engine *engine, const struct lw_memory *list, size_t count, uint32_t kind,
			 lw_buffer_t *ids)
{
	struct entry *entries = calloc(count, sizeof(*entries));
	size_t attached = 0;
	int error = 0;

	if (entries == NULL)
		return lw_fail(-ENOMEM, "no memory for the list of buffers");
	if (kind == 0)
		error = find_kinds(engine, list, count, entries);
	for (size_t i = 0; kind != 0 && i < count; i++)
		entries[i].kind = kind;
	if (error != 0)
		goto out;
	pthread_mutex_lock(&engine->lock);
	error = begin_entering(engine, list, count, entries);
	pthread_mutex_unlock(&engine->lock);
	if (error != 0)
		goto out;
	while (error == 0 && attached < count) {
		error = attach(engine, entries[attached].slot, &list[attached], entries[attached].kind, attached);
		attached += error == 0;
	}
	pthread_mutex_lock(&engine->lock);
	if (error == 0)
		error = end_entering(engine, list, count, entries);
	for (size_t i = 0; error == 0 && i < count; i++) {
		ids[i] = lw_handle(engine->buffers[entries[i].slot].gen, engine->tag, entries[i].slot);
		offer(engine, entries[i].slot);
	}
	pthread_mutex_unlock(&engine->lock);
	if (error == 0)
		goto out;
	while (attached > 0)
		detach(engine, entries[--attached].slot);
	pthread_mutex_lock(&engine->lock);
	drop_entering(engine, count, entries);
	pthread_mutex_unlock(&engine->lock);
out:
	free(entries);
	return error;
}

/* Ranges that all workers are to let go of, shared with them by reference count. */
struct revocation {
	_Atomic uint32_t holders;
	atomic_bool held; /* a worker could not let go yet */
	size_t count;
	struct {
		uint64_t addr, end;
	} ranges[];
};

static void drop_revocation(void *arg)
{
	struct revocation *revocation = arg;

#ifdef __clang_analyzer__ /* it does not count: the workers hold one each, and the caller one */
	return;
#endif
	if (atomic_fetch_sub(&revocation->holders, 1) == 1)
		free(revocation);
}

static void revoke(struct lw_worker *worker, void *arg)
{
	struct revocation *revocation = arg;
	struct lw_path *path;

	for (size_t i = 0; i < revocation->count; i++) {
		struct lw_abort abort = {.reason = LW_REASON_UNREGISTERED,
					 .batch = LW_INDEX_NONE,
					 .addr = revocation->ranges[i].addr,
					 .end = revocation->ranges[i].end,
					 .now = true};

		TAILQ_FOREACH(path, &worker->live, live_link)
		{
			lw_path_abort(worker, path, &abort);
			if (lw_path_holds(path, abort.addr, abort.end))
				atomic_store(&revocation->held, true);
		}
		for (size_t k = 0; k < lw_drivers_count; k++)
			if (worker->driver_context[k] != NULL && lw_drivers[k]->revoke != NULL)
				lw_drivers[k]->revoke(worker->driver_context[k], abort.addr, abort.end);
		if (lw_bounces_hold(&worker->bounces, abort.addr, abort.end))
			atomic_store(&revocation->held, true);
	}
}

/* Takes a buffer off the map. Under the lock. -EBADF, -ENOMEM. */
static int withdraw(struct lw_engine *engine, lw_buffer_t id)
{
	uint32_t index = (uint32_t)id & LW_HANDLE_INDEX_MASK;
	struct lw_buffer_slot *slot = NULL;
	int error;

	if (((uint32_t)id >> LW_HANDLE_INDEX_BITS) == engine->tag && index < engine->buffers_used)
		slot = &engine->buffers[index];
	if (slot == NULL || slot->gen != (uint32_t)(id >> 32) || (slot->gen & 1) == 0)
		return lw_fail(-EBADF, "the buffer handle 0x%llx is stale, made up or another engine's",
			       (unsigned long long)id);
	if (slot->revoking)
		return 0; /* an earlier call did not see the end of it */
	error = change_map(engine, index, false);
	if (error != 0)
		return lw_fail(error, "no memory to take the buffer off the table");
	take_offer_back(engine, index);
	slot->revoking = true;
	engine->revoking++;
	return 0;
}

/* Makes all workers let go. 0, -EBUSY. */
static int revoke_all(struct lw_engine *engine, struct revocation *revocation, uint64_t start_ns, uint32_t timeout_ms)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	int error = 0;

	for (;;) {
		atomic_store(&revocation->held, false);
		for (uint32_t i = 0; i < engine->worker_count; i++) {
			uint64_t spent_ms = (lw_now_ns() - start_ns) / 1000000;
			uint32_t left_ms = spent_ms < timeout_ms ? timeout_ms - (uint32_t)spent_ms : 0;

			atomic_fetch_add(&revocation->holders, 1);
			if (lw_worker_call(&engine->workers[i], revoke, revocation, drop_revocation, left_ms) == 0)
				drop_revocation(revocation);
			else
				error = lw_fail(
					-EBUSY,
					"worker %u did not confirm in %u ms; do not unmap the memory, call again", i,
					timeout_ms);
		}
		if (error != 0 || !atomic_load(&revocation->held))
			return error;
		if ((lw_now_ns() - start_ns) / 1000000 >= timeout_ms)
			return lw_fail(-EBUSY,
				       "a request that can't be taken back uses the memory, still after %u ms; do not "
				       "unmap it, call again",
				       timeout_ms);
		nanosleep(&pause, NULL);
	}
}

/* The workers let go of the buffers, or did not in time. */
static void give_revoked(struct lw_engine *engine, const lw_buffer_t *ids, size_t count, bool released)
{
	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < count; i++) {
		uint32_t index = (uint32_t)ids[i] & LW_HANDLE_INDEX_MASK;

		if (index >= engine->buffers_used || engine->buffers[index].gen != (uint32_t)(ids[i] >> 32) ||
		    !engine->buffers[index].revoking)
			continue;
		engine->buffers[index].late = !released;
		if (!released)
			continue;
		/* The handle is stale from now on; the range is held until the drivers have let go, too. */
		engine->buffers[index].gen++;
		pthread_mutex_unlock(&engine->lock);
		detach(engine, index);
		pthread_mutex_lock(&engine->lock);
		engine->buffers[index].gen--;
		engine->revoking--;
		give_buffer(engine, index);
	}
	pthread_mutex_unlock(&engine->lock);
}

/* Takes the buffers out, each by itself; the first error. When it returns, nobody touches them, on -EBUSY excepted. */
static int leave_buffers(struct lw_engine *engine, const lw_buffer_t *ids, size_t count, uint64_t start_ns,
			 uint32_t timeout_ms)
{
	struct revocation *revocation = malloc(sizeof(*revocation) + count * sizeof(revocation->ranges[0]));
	int error, first_error = 0;

	if (revocation == NULL)
		return lw_fail(-ENOMEM, "no memory for the list of buffers");
	revocation->count = 0;
	atomic_init(&revocation->holders, 1);
	atomic_init(&revocation->held, false);
	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < count; i++) {
		const struct lw_buffer_slot *slot;

		error = withdraw(engine, ids[i]);
		if (error != 0) {
			first_error = first_error == 0 ? error : first_error;
			continue;
		}
		slot = &engine->buffers[(uint32_t)ids[i] & LW_HANDLE_INDEX_MASK];
		revocation->ranges[revocation->count].addr = slot->addr;
		revocation->ranges[revocation->count++].end = slot->addr + slot->length;
	}
	pthread_mutex_unlock(&engine->lock);
	error = revoke_all(engine, revocation, start_ns, timeout_ms);
	if (error == 0)
		error = settle(engine, start_ns + (uint64_t)timeout_ms * 1000000, timeout_ms);
	give_revoked(engine, ids, count, error == 0);
	drop_revocation(revocation);
	return error != 0 ? error : first_error;
}

/* Whether peers are offered one of the list: then the store's document has to tell it. */
static bool is_offered(const struct lw_memory *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (list[i].access != LW_ACCESS_LOCAL)
			return true;
	return false;
}

/* Tells the metadata store. What it does not take is not registered; a peer may have learnt of it nevertheless. */
static int announce(struct lw_engine *engine, const lw_buffer_t *ids, size_t count)
{
	char why[320];
	int error =
		lw_directory_publish(engine->directory, (uint32_t)engine->config.store_timeout_ms, why, sizeof(why));

	if (error == 0)
		return 0;
	if (leave_buffers(engine, ids, count, lw_now_ns(), UNREGISTER_MS) != 0)
		lw_log(LW_LOG_WARNING, "%zu buffers stay registered that the metadata store did not take: %s", count,
		       lw_last_error());
	lw_directory_touch(engine->directory);
	return lw_fail(error, "%zu buffers could not be announced in the metadata store: %s", count, why);
}

int lw_memory_enter_own(struct lw_engine *engine, void *addr, size_t length)
{
	struct lw_memory memory = {.addr = addr, .length = length, .access = LW_ACCESS_LOCAL};
	lw_buffer_t id;
	int error = enter_buffers(engine, &memory, 1, LW_RANGE_OWN, &id);

	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	engine->own_buffers++;
	pthread_mutex_unlock(&engine->lock);
	return 0;
}

int lw_memory_register(struct lw_engine *engine, const struct lw_memory *list, size_t count, lw_buffer_t *ids)
{
	lw_buffer_t *entered;
	int error;

	if (list == NULL || ids == NULL || count == 0)
		return lw_fail(-EINVAL, "list and ids must not be NULL, count not 0");
	for (size_t i = 0; i < count; i++) {
		error = check_buffer(&list[i], i);
		if (error != 0)
			return error;
	}
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	entered = malloc(count * sizeof(*entered));
	error = entered != NULL ? enter_buffers(engine, list, count, 0, entered)
				: lw_fail(-ENOMEM, "no memory for the list of buffers");
	if (error == 0 && engine->directory != NULL && is_offered(list, count))
		error = announce(engine, entered, count);
	if (error == 0)
		memcpy(ids, entered, count * sizeof(*ids));
	free(entered);
	lw_engine_leave(engine);
	return error;
}

/* Whether one of them was offered to peers. Before they are taken out. */
static bool were_offered(struct lw_engine *engine, const lw_buffer_t *ids, size_t count)
{
	bool offered = false;

	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < count && !offered; i++) {
		uint32_t index = (uint32_t)ids[i] & LW_HANDLE_INDEX_MASK;

		offered = index < engine->buffers_used && engine->buffers[index].access != LW_ACCESS_LOCAL;
	}
	pthread_mutex_unlock(&engine->lock);
	return offered;
}

int lw_memory_unregister(struct lw_engine *engine, const lw_buffer_t *ids, size_t count, uint32_t timeout_ms)
{
	uint64_t start_ns = lw_now_ns();
	char why[320];
	bool offered;
	int error, published;

	if (ids == NULL || count == 0)
		return lw_fail(-EINVAL, "ids must not be NULL, count not 0");
	if (timeout_ms == 0)
		timeout_ms = UNREGISTER_MS;
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	offered = engine->directory != NULL && were_offered(engine, ids, count);
	error = leave_buffers(engine, ids, count, start_ns, timeout_ms);
	if (offered) {
		published = lw_directory_publish(engine->directory, (uint32_t)engine->config.store_timeout_ms, why,
						 sizeof(why));
		if (published != 0 && error == 0)
			error = lw_fail(published,
					"the buffers were taken back, but the metadata store still shows them: %s",
					why);
	}
	lw_engine_leave(engine);
	return error;
}

/* The buffer that contains addr, which an earlier call could not take out in its time. Under the lock. */
static struct lw_buffer_slot *find_late(struct lw_engine *engine, uint64_t addr)
{
	for (uint32_t i = 0; engine->revoking != 0 && i < engine->buffers_used; i++) {
		struct lw_buffer_slot *slot = &engine->buffers[i];

		if (slot->revoking && slot->late && addr - slot->addr < slot->length)
			return slot;
	}
	return NULL;
}

int lw_memory_find(struct lw_engine *engine, const void *addr, lw_buffer_t *out)
{
	const struct lw_range *range;
	const struct lw_buffer_slot *slot;
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	range = lw_rangemap_find(atomic_load(&engine->memory), (uint64_t)(uintptr_t)addr);
	slot = range != NULL ? &engine->buffers[range->tag] : find_late(engine, (uint64_t)(uintptr_t)addr);
	if (slot != NULL)
		*out = lw_handle(slot->gen, engine->tag, (uint32_t)(slot - engine->buffers));
	else
		error = lw_fail(-ENOENT, "no registered buffer contains %p", addr);
	pthread_mutex_unlock(&engine->lock);
	lw_engine_leave(engine);
	return error;
}
