/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: names and the small numbers that hosts know them by. An entry holds one reference of the engine's segment;
 * closing the last opening keeps it, as hosts go on to use ids that they closed, until its room is needed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/compat/compat.h"

#define ASK_AGAIN_NS 100000000u /* a peer that was asked this recently is not asked again */
#define ROOM_TRIES 64           /* 10 ms each: the engine gives a closed segment's place back a moment later */
#define PROBES 16               /* of segments that nobody closed, for one that is dead */
#define PROBE_MS 200
#define SYNC_THREADS 8

struct te_segment {
	char *name;
	int32_t id;
	uint32_t refs; /* openings that were not closed */
	lw_segment_t handle;
	uint64_t asked_ns; /* when the peer was asked last */
	uint64_t closed;   /* te->close_count then */
};

void te_segments_init(struct te *te)
{
	pthread_mutex_lock(&te->lock);
	te->segment_count = 0;
	te->next_id = 1;
	te->close_count = 0;
	pthread_mutex_unlock(&te->lock);
}

/* The pieces of the table stay, since a call may look into one. */
void te_segments_fini(struct te *te)
{
	pthread_mutex_lock(&te->lock);
	for (uint32_t i = 0; i < te->segment_count; i++)
		free(te->segments[i].name);
	free(te->segments);
	te->segments = NULL;
	te->segment_count = 0;
	te->segment_room = 0;
	for (uint32_t id = 1; id < te->next_id; id++)
		atomic_store_explicit(&te->handles[id / TE_ID_CHUNK][id % TE_ID_CHUNK], 0, memory_order_relaxed);
	te->next_id = 1;
	pthread_mutex_unlock(&te->lock);
}

static void set_handle(struct te *te, int32_t id, lw_segment_t handle)
{
	atomic_store_explicit(&te->handles[id / TE_ID_CHUNK][id % TE_ID_CHUNK], handle, memory_order_release);
}

/* Under the lock, as all with an entry. */
static struct te_segment *find(struct te *te, const char *name)
{
	for (uint32_t i = 0; i < te->segment_count; i++)
		if (strcmp(te->segments[i].name, name) == 0)
			return &te->segments[i];
	return NULL;
}

static struct te_segment *find_id(struct te *te, int32_t id)
{
	for (uint32_t i = 0; i < te->segment_count; i++)
		if (te->segments[i].id == id)
			return &te->segments[i];
	return NULL;
}

/* A new entry, which takes the reference over. NULL: no memory, or no number left. */
static struct te_segment *add(struct te *te, const char *name, lw_segment_t handle)
{
	uint32_t chunk = te->next_id / TE_ID_CHUNK;
	struct te_segment *entry;
	char *copy;

	if (te->segment_count == te->segment_room) {
		uint32_t room = te->segment_room != 0 ? te->segment_room * 2 : 16;

		entry = realloc(te->segments, room * sizeof(*entry));
		if (entry == NULL)
			return NULL;
		te->segments = entry;
		te->segment_room = room;
	}
	if (chunk == TE_ID_CHUNKS)
		return NULL;
	if (atomic_load(&te->handles[chunk]) == NULL)
		atomic_store(&te->handles[chunk], calloc(TE_ID_CHUNK, sizeof(_Atomic lw_segment_t)));
	copy = strdup(name);
	if (copy == NULL || atomic_load(&te->handles[chunk]) == NULL) {
		free(copy);
		return NULL;
	}
	entry = &te->segments[te->segment_count++];
	*entry = (struct te_segment){
		.name = copy, .id = (int32_t)te->next_id++, .handle = handle, .asked_ns = te_now_ns()};
	set_handle(te, entry->id, handle);
	return entry;
}

/* Ends what is under way to it, and its id. */
static void forget(struct te *te, struct te_segment *entry)
{
	set_handle(te, entry->id, 0);
	lw_segment_close(te->engine, entry->handle);
	free(entry->name);
	*entry = te->segments[--te->segment_count];
}

/* Forgets the entry that was closed first. False: all are in use. */
static bool forget_closed(struct te *te)
{
	struct te_segment *oldest = NULL;

	pthread_mutex_lock(&te->lock);
	for (uint32_t i = 0; i < te->segment_count; i++)
		if (te->segments[i].refs == 0 && (oldest == NULL || te->segments[i].closed < oldest->closed))
			oldest = &te->segments[i];
	if (oldest != NULL)
		forget(te, oldest);
	pthread_mutex_unlock(&te->lock);
	return oldest != NULL;
}

/* Hosts need not close. Probes those that were asked longest ago, and forgets the first that does not answer. */
static bool forget_dead(struct te *te)
{
	uint64_t after_ns = 0;

	for (int i = 0; i < PROBES; i++) {
		struct te_segment *oldest = NULL;
		lw_segment_t handle = 0;
		int32_t id = 0;

		pthread_mutex_lock(&te->lock);
		for (uint32_t k = 0; k < te->segment_count; k++)
			if (te->segments[k].asked_ns > after_ns &&
			    (oldest == NULL || te->segments[k].asked_ns < oldest->asked_ns))
				oldest = &te->segments[k];
		if (oldest != NULL) {
			after_ns = oldest->asked_ns;
			handle = oldest->handle;
			id = oldest->id;
		}
		pthread_mutex_unlock(&te->lock);
		if (handle == 0)
			return false;
		if (lw_segment_probe(te->engine, handle, PROBE_MS) == 0)
			continue;
		pthread_mutex_lock(&te->lock);
		oldest = find_id(te, id);
		if (oldest != NULL)
			forget(te, oldest);
		pthread_mutex_unlock(&te->lock);
		return true;
	}
	return false;
}

/* lw_segment_open, and when the engine's table is full a place is made. */
static int open_engines(struct te *te, const char *name, lw_segment_t *out)
{
	int error = lw_segment_open(te->engine, name, 0, out);

	if (error != -ENOSPC || (!forget_closed(te) && !forget_dead(te)))
		return error;
	for (int i = 0; i < ROOM_TRIES && error == -ENOSPC; i++) {
		usleep(10000);
		error = lw_segment_open(te->engine, name, 0, out);
	}
	return error;
}

/* The peer was asked: enters what came of it. The entry's id, or -1. Under the lock. */
static int32_t enter(struct te *te, const char *name, int error, lw_segment_t handle, bool create)
{
	struct te_segment *entry = find(te, name);

	if (entry == NULL && error == 0 && create)
		return (entry = add(te, name, handle)) != NULL
			       ? entry->id
			       : (lw_segment_close(te->engine, handle), te_fail(-1, "no memory for another segment"));
	if (entry != NULL)
		entry->asked_ns = te_now_ns();
	if (error != 0) {
		te_error(error);
		return entry != NULL && create ? entry->id : -1;
	}
	if (entry == NULL) { /* forgotten meanwhile */
		lw_segment_close(te->engine, handle);
		return -1;
	}
	if (entry->handle == handle) {
		lw_segment_close(te->engine, handle); /* the entry has a reference */
	} else {
		/* Another life of the peer's: the id means that one from now on. */
		set_handle(te, entry->id, handle);
		lw_segment_close(te->engine, entry->handle);
		entry->handle = handle;
	}
	return entry->id;
}

static const char *strip(const char *name)
{
	return name != NULL ? name + strspn(name, "/") : "";
}

static segment_id_t open_segment(transfer_engine_t engine, const char *given, bool ask)
{
	struct te *te = te_of(engine);
	const char *name = strip(given);
	struct te_segment *entry;
	lw_segment_t handle = 0;
	int32_t id = -1;
	int error;

	if (te == NULL)
		return -1;
	if (*name == '\0')
		return te_fail(-1, "the segment has no name");
	pthread_mutex_lock(&te->lock);
	entry = find(te, name);
	if (entry != NULL && !ask && te_now_ns() - entry->asked_ns < ASK_AGAIN_NS) {
		entry->refs++;
		id = entry->id;
	}
	pthread_mutex_unlock(&te->lock);
	if (id >= 0)
		return id;
	error = open_engines(te, name, &handle);
	if (error == 0 && handle == LW_SEGMENT_LOCAL)
		return te_installed(te) ? LOCAL_SEGMENT
					: te_fail(-1, "the engine has no segment before a transport is installed");
	pthread_mutex_lock(&te->lock);
	id = enter(te, name, error, handle, true);
	entry = id >= 0 ? find(te, name) : NULL;
	if (entry != NULL)
		entry->refs++;
	pthread_mutex_unlock(&te->lock);
	return id;
}

segment_id_t openSegment(transfer_engine_t engine, const char *segment_name)
{
	return open_segment(engine, segment_name, false);
}

segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name)
{
	return open_segment(engine, segment_name, true);
}

int closeSegment(transfer_engine_t engine, segment_id_t segment_id)
{
	struct te *te = te_of(engine);
	struct te_segment *entry;

	if (te == NULL)
		return 0;
	pthread_mutex_lock(&te->lock);
	entry = find_id(te, segment_id);
	if (entry != NULL && entry->refs > 0 && --entry->refs == 0)
		entry->closed = ++te->close_count;
	pthread_mutex_unlock(&te->lock);
	return 0;
}

int removeLocalSegment(transfer_engine_t engine, const char *segment_name)
{
	struct te *te = te_of(engine);
	const char *name = strip(segment_name);
	struct te_segment *entry;

	if (te == NULL)
		return -1;
	if (*name == '\0')
		return te_fail(-1, "the segment has no name");
	pthread_mutex_lock(&te->lock);
	entry = find(te, name);
	if (entry != NULL)
		forget(te, entry);
	pthread_mutex_unlock(&te->lock);
	return 0;
}

/* Asks the peer of a known name anew. 0; -1. */
static int refresh(struct te *te, const char *name)
{
	lw_segment_t handle = 0;
	int error = lw_segment_open(te->engine, name, 0, &handle);
	int32_t id;

	pthread_mutex_lock(&te->lock);
	id = enter(te, name, error, handle, false);
	pthread_mutex_unlock(&te->lock);
	return id >= 0 ? 0 : -1;
}

int syncSegmentCacheByName(transfer_engine_t engine, const char *segment_name)
{
	struct te *te = te_of(engine);
	const char *name = strip(segment_name);
	bool known;

	if (te == NULL)
		return -1;
	pthread_mutex_lock(&te->lock);
	known = find(te, name) != NULL;
	pthread_mutex_unlock(&te->lock);
	return known ? refresh(te, name) : te_fail(-1, "no segment of that name is open");
}

/* Names to refresh, shared by a few threads: one dead peer costs its own time alone. */
struct sync {
	struct te *te;
	char **names;
	uint32_t count;
	_Atomic uint32_t next;
};

static void *sync_main(void *arg)
{
	struct sync *sync = arg;
	uint32_t i;

	while ((i = atomic_fetch_add(&sync->next, 1)) < sync->count)
		if (sync->names[i] != NULL && refresh(sync->te, sync->names[i]) != 0)
			lw_log_line(2, getTransferEngineError());
	return NULL;
}

int syncSegmentCache(transfer_engine_t engine)
{
	struct sync sync = {.te = te_of(engine)};
	pthread_t threads[SYNC_THREADS - 1];
	uint32_t started = 0;

	if (sync.te == NULL)
		return -1;
	pthread_mutex_lock(&sync.te->lock);
	sync.names = calloc(sync.te->segment_count + 1, sizeof(*sync.names));
	for (; sync.names != NULL && sync.count < sync.te->segment_count; sync.count++)
		sync.names[sync.count] = strdup(sync.te->segments[sync.count].name);
	pthread_mutex_unlock(&sync.te->lock);
	while (started + 1 < sync.count && started < SYNC_THREADS - 1 &&
	       pthread_create(&threads[started], NULL, sync_main, &sync) == 0) {
		pthread_setname_np(threads[started], "te-sync");
		started++;
	}
	sync_main(&sync);
	while (started > 0)
		pthread_join(threads[--started], NULL);
	for (uint32_t i = 0; i < sync.count; i++)
		free(sync.names[i]);
	free(sync.names);
	return 0;
}
