/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: the table of peers, opened by name through the handshake, and our own descriptor for them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/fabric.h"
#include "lib/fileurl.h"
#include "lib/peer.h"
#include "lib/refresh.h"
#include "lib/watch.h"
#include "meta/descriptor.h"
#include "meta/frame.h"

#define NULL_SEGMENT "null://"

/* One command a worker: the segment's generation is over. The last one to run it gives the slot back through the
 * control thread. */
struct lw_segment_leave {
	struct lw_ctrl_job job;
	struct lw_engine *engine;
	struct lw_segment_slot *slot;
	struct leave_command {
		struct lw_command command;
		struct lw_segment_leave *leave;
	} worker[];
};

static void free_view(void *memory)
{
	struct lw_view *view = memory;

	lw_routes_drop(view);
	lw_rangemap_free(view->ranges);
	free(view);
}

/* The view of our own segment: drivers that copy, shm before the others; then our own data port. NULL: no driver
 * reaches ourselves, or no memory; then transfers to LW_SEGMENT_LOCAL end with a reason. */
static struct lw_view *own_view(struct lw_engine *engine)
{
	struct lw_view *view = calloc(1, sizeof(*view));
	int shm = lw_driver_index(engine, "shm", 3), tcp = lw_driver_index(engine, "tcp", 3);
	struct lw_desc desc = {0};

	if (view == NULL)
		return NULL;
	if (shm >= 0)
		view->routes[view->route_count++].driver = (uint32_t)shm;
	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->own)
			view->routes[view->route_count++].driver = (uint32_t)i;
	if (tcp >= 0)
		view->routes[view->route_count++].driver = (uint32_t)tcp;
	if (view->route_count == 0) {
		free(view);
		return NULL;
	}
	if (tcp < 0)
		return view;
	view->tcp_version = 2;
	view->incarnation = engine->incarnation;
	view->data = engine->address;
	lw_drivers[tcp]->describe(engine->driver_context[tcp], &desc);
	view->tcp_options = desc.tcp_options;
	for (uint32_t i = 0; i < view->data.count; i++)
		lw_sockaddr_set_port(&view->data.addr[i], desc.tcp_port);
	return view;
}

void lw_segment_init(struct lw_engine *engine)
{
	struct lw_segment_slot *own = &engine->segments[0];

	atomic_store(&own->view, own_view(engine));
	own->refs = 1;
	own->rpc = engine->address;
	snprintf(own->name, sizeof(own->name), "%s", engine->name);
	atomic_store(&own->gen, 1);
	engine->live_segments = 0;
}

void lw_segment_fini(struct lw_engine *engine)
{
	for (uint32_t i = 0; i < engine->config.max_segments; i++) {
		struct lw_segment_slot *slot = &engine->segments[i];
		struct lw_view *view = atomic_exchange(&slot->view, NULL);

		if (view != NULL)
			free_view(view);
		free(slot->leave);
		slot->leave = NULL;
		lw_watch_free(slot);
		lw_refresh_free(slot->refresh);
		slot->refresh = NULL;
		slot->refs = 0;
		if ((atomic_load(&slot->gen) & 1) != 0)
			atomic_fetch_add(&slot->gen, 1);
	}
}

void lw_segment_name(struct lw_engine *engine, lw_segment_t segment, char *text, size_t size)
{
	struct lw_segment_slot *slot;

	pthread_mutex_lock(&engine->lock);
	slot = lw_segment_of(engine, segment);
	snprintf(text, size, "%s", slot != NULL ? slot->name : "a closed segment");
	pthread_mutex_unlock(&engine->lock);
}

void lw_segment_where(struct lw_engine *engine, lw_segment_t segment, uint64_t offset, char *text, size_t size)
{
	const struct lw_segment_slot *slot;
	const struct lw_view *view;

	text[0] = '\0';
	pthread_mutex_lock(&engine->lock);
	slot = lw_segment_of(engine, segment);
	view = slot != NULL ? atomic_load(&slot->view) : NULL;
	if (view != NULL && view->route_count != 0 && view->routes[0].peer != NULL &&
	    lw_drivers[view->routes[0].driver]->where != NULL)
		lw_drivers[view->routes[0].driver]->where(view->routes[0].peer, offset, text, size);
	pthread_mutex_unlock(&engine->lock);
}

void lw_segment_describe(struct lw_engine *engine, struct lw_desc *desc)
{
	*desc = (struct lw_desc){.incarnation = engine->incarnation, .protocol = "tcp", .tcp_version = 1};
	snprintf(desc->name, sizeof(desc->name), "%s", engine->name);
	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->describe != NULL)
			lw_drivers[i]->describe(engine->driver_context[i], desc);
}

/* The pieces of a range as peers are told of them: one, or as many as a driver cuts it into. Under the lock. */
static int describe_range(struct lw_engine *engine, const struct lw_range *range, struct lw_desc *desc, size_t *room)
{
	uint64_t addr = range->addr;
	int error = 0;

	while (addr < range->end && error == 0) {
		struct lw_desc_buffer *buffer;

		if (desc->buffer_count == *room) {
			buffer = realloc(desc->buffers, (*room * 2 + 1) * sizeof(*buffer));
			if (buffer == NULL)
				return -ENOMEM;
			desc->buffers = buffer;
			*room = *room * 2 + 1;
		}
		buffer = &desc->buffers[desc->buffer_count++];
		*buffer = (struct lw_desc_buffer){.addr = addr,
						  .length = range->end - addr,
						  .access = range->access & LW_ACCESS_REMOTE,
						  .device = (range->access & LW_RANGE_DEVICE) != 0,
						  .grant = lw_desc_grant(engine->buffers[range->tag].gen, range->tag)};
		memcpy(buffer->name, engine->name, strnlen(engine->name, sizeof(buffer->name) - 1));
		for (size_t i = 0; i < lw_drivers_count && error == 0; i++)
			if (engine->driver_on[i] && lw_drivers[i]->piece != NULL)
				error = lw_drivers[i]->piece(engine->driver_context[i], range->tag, desc, buffer);
		addr += buffer->length;
	}
	return error;
}

int lw_segment_document(struct lw_engine *engine, char **json, size_t *size)
{
	struct lw_range *ranges = NULL;
	struct lw_desc desc;
	size_t count, room;
	int error = -ENOMEM;

	lw_segment_describe(engine, &desc);
	pthread_mutex_lock(&engine->lock);
	count = lw_rangemap_count(atomic_load(&engine->memory));
	room = count + 1;
	ranges = malloc(room * sizeof(*ranges));
	desc.buffers = malloc(room * sizeof(*desc.buffers));
	if (ranges != NULL && desc.buffers != NULL) {
		lw_rangemap_list(atomic_load(&engine->memory), ranges, count);
		error = 0;
	}
	for (size_t i = 0; i < count && error == 0; i++)
		if ((ranges[i].access & LW_ACCESS_REMOTE) != LW_ACCESS_LOCAL)
			error = describe_range(engine, &ranges[i], &desc, &room);
	pthread_mutex_unlock(&engine->lock);
	if (error == 0)
		error = lw_desc_encode(&desc, json, size);
	free(ranges);
	free(desc.buffers);
	lw_desc_drop_rdma(&desc.rdma);
	lw_desc_drop_gpus(&desc);
	return error;
}

void lw_segment_view_free(struct lw_view *view)
{
	free_view(view);
}

static bool has_address(const struct lw_addrs *addrs, const struct sockaddr_storage *addr)
{
	for (uint32_t i = 0; i < addrs->count; i++)
		if (lw_sockaddr_same_host(&addrs->addr[i], addr))
			return true;
	return false;
}

/* Where lanes connect to: the addresses that the peer names, then those that it was reached by. Its loopback addresses
 * would be ours, if it is on another host. */
static void set_data(struct lw_view *view, const struct lw_desc *desc, const struct lw_addrs *rpc)
{
	struct lw_addrs *data = &view->data;
	bool here = rpc->count > 0 && lw_sockaddr_is_loopback(&rpc->addr[0]);

	for (uint32_t i = 0; i < desc->data.count; i++)
		if (here || !lw_sockaddr_is_loopback(&desc->data.addr[i]))
			data->addr[data->count++] = desc->data.addr[i];
	view->rails = data->count;
	for (uint32_t i = 0; i < rpc->count && data->count < sizeof(data->addr) / sizeof(data->addr[0]); i++) {
		if (has_address(data, &rpc->addr[i]))
			continue;
		data->addr[data->count] = rpc->addr[i];
		lw_sockaddr_set_port(&data->addr[data->count++], desc->tcp_port);
	}
}

/* What a peer offers, as ranges: its buffers, or its files one behind the other. The number. */
static size_t offered(const struct lw_desc *desc, struct lw_range *ranges)
{
	uint64_t at = 0;

	for (size_t i = 0; i < desc->buffer_count; i++)
		ranges[i] = (struct lw_range){.addr = desc->buffers[i].addr,
					      .end = desc->buffers[i].addr + desc->buffers[i].length,
					      .access = desc->buffers[i].access |
							(desc->buffers[i].device ? LW_RANGE_DEVICE : 0),
					      .tag = (uint32_t)i};
	/* Can't wrap: there are few, and each is shorter than 2^53. */
	for (size_t i = 0; i < desc->file_count; at += desc->files[i++].length)
		ranges[i] = (struct lw_range){.addr = at,
					      .end = at + desc->files[i].length,
					      .access = desc->files[i].access,
					      .tag = (uint32_t)i};
	return desc->buffer_count + desc->file_count;
}

int lw_segment_view(struct lw_engine *engine, const struct lw_desc *desc, const struct lw_addrs *rpc, int via,
		    struct lw_view **out)
{
	struct lw_view *view = calloc(1, sizeof(*view));
	struct lw_range *ranges = malloc((desc->buffer_count + desc->file_count + 1) * sizeof(*ranges));
	int error = -ENOMEM;

	if (view == NULL || ranges == NULL) {
		lw_fail(error, "no memory for the descriptor of %s", desc->name);
		goto fail;
	}
	error = lw_routes_find(engine, desc, via, view);
	if (error != 0)
		goto fail;
	error = lw_rangemap_build(ranges, offered(desc, ranges), &view->ranges);
	if (error != 0) {
		lw_fail(error == -EEXIST ? -EPROTO : error, "the descriptor of %s has overlapping buffers", desc->name);
		error = error == -EEXIST ? -EPROTO : error;
		goto fail;
	}
	view->of_files = desc->file_count != 0;
	for (size_t i = 0; i < desc->buffer_count; i++)
		view->devices |= desc->buffers[i].device;
	view->tcp_options = desc->tcp_options;
	view->incarnation = desc->incarnation;
	view->tcp_version = desc->tcp_version;
	view->rpc = *rpc;
	set_data(view, desc, rpc);
	free(ranges);
	*out = view;
	return 0;
fail:
	free(ranges);
	if (view != NULL)
		lw_routes_drop(view);
	free(view);
	return error;
}

/* Slot of an open segment of that name, for that driver, or NULL. Under the lock. */
static struct lw_segment_slot *find_open(struct lw_engine *engine, const char *name, int via)
{
	for (uint32_t i = 1; i < engine->segments_used; i++) {
		struct lw_segment_slot *slot = &engine->segments[i];

		if ((atomic_load(&slot->gen) & 1) != 0 && !slot->stale && slot->via == via &&
		    strcmp(slot->name, name) == 0)
			return slot;
	}
	return NULL;
}

static struct lw_segment_slot *find_spare(struct lw_engine *engine)
{
	for (uint32_t i = 1; i < engine->segments_used; i++)
		if ((atomic_load(&engine->segments[i].gen) & 1) == 0 && engine->segments[i].leave == NULL)
			return &engine->segments[i];
	if (engine->segments_used < engine->config.max_segments)
		return &engine->segments[engine->segments_used++];
	return NULL;
}

/* The same life of the same peer? A peer that does not say which life it lives is taken by its data port. */
static bool same_peer(const struct lw_view *a, const struct lw_view *b)
{
	return a->incarnation == b->incarnation && a->tcp_options == b->tcp_options && a->of_files == b->of_files &&
	       (a->data.count == 0) == (b->data.count == 0) &&
	       (a->data.count == 0 || lw_sockaddr_port(&a->data.addr[0]) == lw_sockaddr_port(&b->data.addr[0]));
}

/* Replaces the view by a newer one, which it takes over, unless that is one of another life: then the segment is stale,
 * and requests through its handle find at the data port that their incarnation is gone. Under the lock. */
static bool renew(struct lw_engine *engine, struct lw_segment_slot *slot, struct lw_view *view)
{
	struct lw_view *old = atomic_load(&slot->view);

	if (!same_peer(old, view)) {
		slot->stale = true;
		return false;
	}
	if (view->devices)
		atomic_store_explicit(&slot->devices, true, memory_order_release); /* looked at before the view is */
	atomic_store_explicit(&slot->view, view, memory_order_release);
	lw_rcu_retire(&engine->rcu, old, free_view);
	return true;
}

int lw_segment_renew(struct lw_engine *engine, struct lw_segment_slot *slot, uint32_t gen, struct lw_view *view)
{
	int error = -EBADF;

	pthread_mutex_lock(&engine->lock);
	if (atomic_load(&slot->gen) == gen && slot->stale)
		error = -ESTALE;
	else if (atomic_load(&slot->gen) == gen)
		error = renew(engine, slot, view) ? 0 : -ESTALE;
	pthread_mutex_unlock(&engine->lock);
	if (error != 0)
		free_view(view);
	return error;
}

/* What a slot needs besides. Under the lock. */
static bool equip(struct lw_engine *engine, struct lw_segment_slot *slot, bool answers)
{
	slot->leave = calloc(1, sizeof(*slot->leave) + engine->worker_count * sizeof(slot->leave->worker[0]));
	if (slot->leave != NULL && answers && slot->refresh == NULL)
		slot->refresh = lw_refresh_new(engine, slot);
	if (slot->leave != NULL && (slot->refresh != NULL || !answers))
		return true;
	free(slot->leave);
	slot->leave = NULL;
	return false;
}

/* Enters the view under name; takes the view over. */
static int enter(struct lw_engine *engine, const char *name, int via, const struct lw_addrs *rpc, struct lw_view *view,
		 lw_segment_t *out)
{
	struct lw_segment_slot *slot;
	uint32_t gen;

	pthread_mutex_lock(&engine->lock);
	slot = find_open(engine, name, via);
	if (slot != NULL && renew(engine, slot, view)) {
		slot->refs++;
		*out = lw_handle(atomic_load(&slot->gen), engine->tag, (uint32_t)(slot - engine->segments));
		pthread_mutex_unlock(&engine->lock);
		return 0;
	}
	slot = find_spare(engine);
	if (slot == NULL || !equip(engine, slot, rpc->count != 0)) {
		pthread_mutex_unlock(&engine->lock);
		free_view(view);
		if (slot != NULL)
			return lw_fail(-ENOMEM, "no memory for the segment %s", name);
		return lw_fail(-ENOSPC, "all %llu segments are in use; close some, or raise the setting max_segments",
			       (unsigned long long)engine->config.max_segments);
	}
	slot->refs = 1;
	slot->stale = false;
	slot->via = via;
	slot->rpc = *rpc;
	snprintf(slot->name, sizeof(slot->name), "%s", name);
	atomic_store_explicit(&slot->devices, view->devices, memory_order_relaxed);
	atomic_store_explicit(&slot->view, view, memory_order_release);
	gen = atomic_fetch_add_explicit(&slot->gen, 1, memory_order_release) + 1;
	engine->live_segments++;
	*out = lw_handle(gen, engine->tag, (uint32_t)(slot - engine->segments));
	pthread_mutex_unlock(&engine->lock);
	return 0;
}

static int open_null(struct lw_engine *engine, lw_segment_t *out)
{
	int driver = lw_driver_index(engine, "null", 4);
	struct lw_addrs nowhere = {0};
	struct lw_view *view;

	if (driver < 0)
		return lw_fail(-ENOTSUP, "the null driver is off; see the setting drivers");
	view = calloc(1, sizeof(*view));
	if (view == NULL)
		return lw_fail(-ENOMEM, "no memory for the segment " NULL_SEGMENT);
	view->routes[0].driver = (uint32_t)driver;
	view->route_count = 1;
	view->everything = true;
	return enter(engine, NULL_SEGMENT, LW_VIA_ANY, &nowhere, view, out);
}

/* What the name, in its one form, means now. */
static int look(struct lw_engine *engine, const char *name, int via, uint32_t timeout_ms, struct lw_addrs *rpc,
		struct lw_view **view)
{
	struct lw_peer peer = {.desc = NULL};
	struct lw_fabric *fabric = NULL;
	int error = lw_is_file_url(name) ? lw_file_url_read(name, timeout_ms, &peer.desc, &fabric)
					 : lw_peer_find(engine, name, timeout_ms, &peer);

	if (error != 0)
		return error;
	*rpc = peer.rpc;
	error = lw_segment_view(engine, peer.desc, rpc, via, view);
	lw_fabric_drop(fabric, 0); /* the view's files have a hold of their own */
	lw_desc_free(peer.desc);
	return error;
}

/* Our own segment, whose bytes one driver moves. */
static int open_own(const struct lw_engine *engine, int via, lw_segment_t *out)
{
	const struct lw_view *view = atomic_load(&engine->segments[0].view);

	if (via != LW_VIA_ANY && (view == NULL || view->routes[0].driver != (uint32_t)via))
		return lw_fail(-ENOTSUP, "%s does not reach itself by %s", engine->name, lw_drivers[via]->name);
	*out = LW_SEGMENT_LOCAL;
	return 0;
}

static int open_named(struct lw_engine *engine, const char *name, int via, uint32_t timeout_ms, lw_segment_t *out)
{
	char canonical[LW_NAME_MAX];
	struct lw_view *view = NULL;
	struct lw_addrs rpc;
	int error = lw_is_file_url(name) ? lw_file_url_name(name, canonical) : lw_peer_name(engine, name, canonical);

	if (error != 0)
		return error;
	if (strcmp(canonical, engine->name) == 0)
		return open_own(engine, via, out);
	error = look(engine, canonical, via, timeout_ms, &rpc, &view);
	if (error == 0)
		error = enter(engine, canonical, via, &rpc, view, out);
	return error;
}

/* driver: NULL for any. */
static int open_segment(struct lw_engine *engine, const char *name, const char *driver, uint32_t timeout_ms,
			lw_segment_t *out)
{
	int via = driver == NULL ? LW_VIA_ANY : lw_driver_index(engine, driver, strlen(driver));

	if (driver != NULL && via < 0)
		return lw_fail(-EINVAL, "there is no driver \"%s\", or it is off here; see the setting drivers",
			       driver);
	if (timeout_ms == 0)
		timeout_ms = (uint32_t)engine->config.handshake_timeout_ms;
	name += strspn(name, "/");
	if (strcmp(name, NULL_SEGMENT) == 0)
		return driver == NULL || strcmp(driver, "null") == 0
			       ? open_null(engine, out)
			       : lw_fail(-ENOTSUP, NULL_SEGMENT " is not reached by %s", driver);
	return open_named(engine, name, via, timeout_ms, out);
}

int lw_segment_open(struct lw_engine *engine, const char *name, uint32_t timeout_ms, lw_segment_t *out)
{
	int error;

	if (name == NULL || out == NULL)
		return lw_fail(-EINVAL, "name and out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	error = open_segment(engine, name, NULL, timeout_ms, out);
	lw_engine_leave(engine);
	return error;
}

int lw_segment_open_via(struct lw_engine *engine, const char *name, const char *driver, uint32_t timeout_ms,
			lw_segment_t *out)
{
	int error;

	if (name == NULL || driver == NULL || out == NULL)
		return lw_fail(-EINVAL, "name, driver and out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	error = open_segment(engine, name, driver, timeout_ms, out);
	lw_engine_leave(engine);
	return error;
}

/* The slot of an open segment; NULL, said in lw_last_error: -EBADF. Under the lock. */
static struct lw_segment_slot *find(struct lw_engine *engine, lw_segment_t segment)
{
	struct lw_segment_slot *slot = lw_segment_of(engine, segment);

	if (slot == NULL)
		lw_fail(-EBADF, "the segment handle 0x%llx is stale, made up or another engine's",
			(unsigned long long)segment);
	return slot;
}

/* On the control thread: nobody works for the generation any more. */
static void left(struct lw_ctrl_job *job)
{
	struct lw_segment_leave *leave = (struct lw_segment_leave *)(void *)job;
	struct lw_engine *engine = leave->engine;
	struct lw_segment_slot *slot = leave->slot;
	struct lw_view *view = atomic_load(&slot->view);

	if (view != NULL)
		lw_routes_drop(view); /* now, not when another view is retired: files and mappings hang on it */
	pthread_mutex_lock(&engine->lock);
	view = atomic_exchange(&slot->view, NULL);
	if (view != NULL)
		lw_rcu_retire(&engine->rcu, view, free_view);
	slot->leave = NULL;
	pthread_mutex_unlock(&engine->lock);
	free(leave);
}

static void leave_run(struct lw_worker *worker, struct lw_command *command)
{
	struct lw_segment_leave *leave = ((struct leave_command *)(void *)command)->leave;
	struct lw_segment_slot *slot = leave->slot;

	if (!lw_paths_reset(worker, (uint32_t)(slot - worker->engine->segments), LW_REASON_SEGMENT_CLOSED)) {
		lw_worker_later(worker, command);
		return;
	}
	if (atomic_fetch_sub_explicit(&slot->leaving, 1, memory_order_acq_rel) == 1)
		lw_ctrl_post(worker->engine->ctrl, &leave->job);
}

int lw_segment_close(struct lw_engine *engine, lw_segment_t segment)
{
	struct lw_segment_leave *leave = NULL;
	struct lw_segment_slot *slot;
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	slot = find(engine, segment);
	if (slot == NULL) {
		error = -EBADF;
	} else if (segment != LW_SEGMENT_LOCAL && --slot->refs == 0) {
		leave = slot->leave;
		atomic_store(&slot->leaving, engine->worker_count);
		atomic_fetch_add_explicit(&slot->gen, 1, memory_order_release);
		engine->live_segments--;
	}
	pthread_mutex_unlock(&engine->lock);
	if (leave != NULL) {
		leave->engine = engine;
		leave->slot = slot;
		leave->job.run = left;
		for (uint32_t i = 0; i < engine->worker_count; i++) {
			leave->worker[i].leave = leave;
			leave->worker[i].command.run = leave_run;
		}
		for (uint32_t i = 0; i < engine->worker_count; i++)
			lw_worker_send(&engine->workers[i], &leave->worker[i].command);
	}
	lw_engine_leave(engine);
	return error;
}

int lw_segment_ranges(struct lw_engine *engine, lw_segment_t segment, struct lw_segment_range *out, size_t max)
{
	const struct lw_rangemap *map = NULL;
	struct lw_segment_slot *slot;
	struct lw_range *ranges = NULL;
	struct lw_view *view;
	size_t count = 0, total;
	int error;

	if (out == NULL && max != 0)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	slot = find(engine, segment);
	if (slot == NULL) {
		error = -EBADF;
		goto out;
	}
	view = atomic_load(&slot->view);
	map = segment == LW_SEGMENT_LOCAL ? atomic_load(&engine->memory) : view != NULL ? view->ranges : NULL;
	total = lw_rangemap_count(map);
	ranges = malloc((total + 1) * sizeof(*ranges));
	if (ranges == NULL) {
		error = lw_fail(-ENOMEM, "no memory for the list of ranges");
		goto out;
	}
	lw_rangemap_list(map, ranges, total);
	for (size_t i = 0; i < total; i++) {
		if ((ranges[i].access & LW_RANGE_OWN) != 0)
			continue;
		if (count < max)
			out[count] = (struct lw_segment_range){.addr = ranges[i].addr,
							       .length = ranges[i].end - ranges[i].addr,
							       .access = ranges[i].access & LW_ACCESS_REMOTE};
		count++;
	}
out:
	pthread_mutex_unlock(&engine->lock);
	free(ranges);
	lw_engine_leave(engine);
	return error != 0 ? error : (int)count;
}

int lw_segment_refresh(struct lw_engine *engine, lw_segment_t segment, uint32_t timeout_ms)
{
	struct lw_segment_slot *slot = NULL;
	struct lw_view *view = NULL;
	char name[LW_NAME_MAX];
	struct lw_addrs rpc;
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	if (timeout_ms == 0)
		timeout_ms = (uint32_t)engine->config.handshake_timeout_ms;
	if (segment == LW_SEGMENT_LOCAL)
		goto out;
	error = lw_segment_rpc(engine, segment, &rpc, name, NULL);
	slot = &engine->segments[(uint32_t)segment & LW_HANDLE_INDEX_MASK];
	/* Or there are just files. Another driver's segment may have the slot by now: then its view is not taken. */
	if (error == 0 || (error == -ENOTSUP && strcmp(name, NULL_SEGMENT) != 0))
		error = look(engine, name, slot->via, timeout_ms, &rpc, &view);
	if (error != 0)
		goto out;
	error = lw_segment_renew(engine, slot, (uint32_t)(segment >> 32), view);
	if (error == -ESTALE)
		lw_fail(error, "%s was restarted; open its segment again", name);
	else if (error != 0)
		lw_fail(error, "the segment %s was closed meanwhile", name);
out:
	lw_engine_leave(engine);
	return error;
}

int lw_segment_rpc(struct lw_engine *engine, lw_segment_t segment, struct lw_addrs *rpc, char name[LW_NAME_MAX],
		   uint64_t *incarnation)
{
	struct lw_segment_slot *slot;
	const struct lw_view *view;
	int error = 0;

	pthread_mutex_lock(&engine->lock);
	slot = find(engine, segment);
	if (slot == NULL) {
		error = -EBADF;
	} else {
		*rpc = slot->rpc;
		memcpy(name, slot->name, LW_NAME_MAX);
		view = atomic_load(&slot->view);
		if (incarnation != NULL)
			*incarnation = segment == LW_SEGMENT_LOCAL ? engine->incarnation
				       : view != NULL              ? view->incarnation
								   : 0;
	}
	pthread_mutex_unlock(&engine->lock);
	if (error == 0 && rpc->count == 0)
		error = lw_fail(-ENOTSUP, "nobody is behind %s who could answer", name);
	return error;
}

int lw_segment_probe(struct lw_engine *engine, lw_segment_t segment, uint32_t timeout_ms)
{
	char name[LW_NAME_MAX], *reply = NULL;
	struct lw_addrs rpc;
	size_t size;
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	if (timeout_ms == 0)
		timeout_ms = (uint32_t)engine->config.handshake_timeout_ms;
	error = lw_segment_rpc(engine, segment, &rpc, name, NULL);
	if (error == 0) {
		error = lw_ctrl_call(engine->ctrl, &rpc, LW_FRAME_PROBE, "{}", 2, timeout_ms, &reply, &size);
		if (error != 0)
			lw_fail(error, "%s did not answer the probe: %s", name, lw_strerror(error));
	}
	free(reply);
	lw_engine_leave(engine);
	return error;
}
