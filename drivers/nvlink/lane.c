/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/nvlink/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/engine.h"
#include "lib/neighbour.h"

static struct nvlink_lane *own_of(struct lw_lane *lane)
{
	return (struct nvlink_lane *)(void *)lane->own;
}

static void enqueue(struct nvlink_lane *own)
{
	lw_worker_want(own->lane->worker, own->lane->driver);
	if (own->queued)
		return;
	own->queued = true;
	TAILQ_INSERT_TAIL(&own->worker->waiting, own, link);
}

static void dequeue(struct nvlink_lane *own)
{
	if (own->queued)
		TAILQ_REMOVE(&own->worker->waiting, own, link);
	own->queued = false;
}

static void on_end(struct lw_io *io, uint32_t events)
{
	struct nvlink_lane *own = (struct nvlink_lane *)(void *)io;

	(void)events;
	own->ended = true;
	enqueue(own);
}

/* Opening and closing -------------------------------------------------------------------------------------------------
 */

static int open_peer(struct nvlink_lane *own, struct nvlink_reach *reach)
{
	const struct nvlink_peer *peer = reach->peer;
	int error;

	if (peer->door != NULL && atomic_load_explicit(&peer->door->page->closed, memory_order_relaxed) != 0)
		return -ESRCH;
	if (peer->pid_fd >= 0) {
		if (lw_neighbour_ended(peer->pid_fd))
			return -ESRCH;
		/* One of its own: an epoll set takes a descriptor once, and another lane may be of the same peer. */
		own->io = (struct lw_io){.fd = fcntl(peer->pid_fd, F_DUPFD_CLOEXEC, 0), .ready = on_end};
		if (own->io.fd < 0)
			return -errno;
		error = lw_worker_io_add(own->lane->worker, &own->io, EPOLLIN);
		if (error != 0) {
			close(own->io.fd);
			own->io.fd = -1;
			return error;
		}
	}
	if (peer->door != NULL) {
		own->place = door_claim(peer->door);
		if (own->place == NULL)
			return -EUSERS;
	}
	own->reach = nvlink_reach_hold(reach);
	return 0;
}

int nvlink_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct nvlink_lane *own = own_of(lane);
	struct nvlink_reach *reach = lw_view_peer(view, lane->driver);
	int error = 0;

	*own = (struct nvlink_lane){.lane = lane, .worker = lane->worker->driver_context[lane->driver], .io.fd = -1};
	if (lane->path->segment != 0) {
		if (reach == NULL)
			return -ENOTSUP;
		/* The memory of another process' host is out of a GPU's reach. */
		if (!reach->peer->inside && lane->path->pair >> 1 == LW_MEM_HOST)
			return -ENOTSUP;
		error = open_peer(own, reach);
	}
	if (error == 0)
		lw_lane_up(lane);
	return error; /* what is held is given back when the lane is closed */
}

static void leave(struct nvlink_lane *own)
{
	if (own->inside)
		door_leave(own->place);
	own->inside = false;
}

void nvlink_lane_close(struct lw_lane *lane)
{
	struct nvlink_lane *own = own_of(lane);

	dequeue(own);
	if (own->io.fd >= 0) {
		lw_worker_io_del(lane->worker, &own->io);
		close(own->io.fd);
	}
	own->io.fd = -1;
	own->first = own->last = NULL;
	if (own->busy != 0) {
		/* By force: copies go on. Whom they touch is not told that we left, and the imports stay. */
		nvlink_streams_forget(own->worker, own);
		own->busy = 0;
		own->place = NULL;
		own->reach = NULL;
		return;
	}
	leave(own);
	if (own->place != NULL)
		door_release(own->place);
	own->place = NULL;
	if (own->reach != NULL)
		nvlink_reach_drop_later(own->reach);
	own->reach = NULL;
}

/* Copies --------------------------------------------------------------------------------------------------------------
 */

static struct lw_slice *take_first(struct nvlink_lane *own)
{
	struct lw_slice *slice = own->first;

	own->first = nvlink_note(slice)->next;
	if (own->first == NULL)
		own->last = NULL;
	return slice;
}

/* Whether the peer offers these bytes of one buffer now, for the operation. Between enter and leave. position: of that
 * buffer in the descriptor. */
static bool allowed(const struct nvlink_lane *own, const struct lw_view *view, const struct lw_slice *slice,
		    uint32_t *position)
{
	uint32_t access = slice->op == LW_READ ? LW_ACCESS_REMOTE_READ : LW_ACCESS_REMOTE_WRITE;
	const struct lw_range *range = lw_rangemap_find(view->ranges, slice->remote);
	const struct nvlink_reach *reach = own->reach;

	if (range == NULL || range->tag >= reach->grant_count)
		return false;
	*position = range->tag;
	if (own->place == NULL) /* its like has no door: what its descriptor said is what there is */
		return slice->length <= range->end - slice->remote && (range->access & access) == access;
	return door_allows(reach->peer->door, (uint32_t)(reach->grants[range->tag] & LW_HANDLE_INDEX_MASK),
			   (uint32_t)(reach->grants[range->tag] >> LW_HANDLE_INDEX_BITS), access, slice->remote,
			   slice->length);
}

/* Where one side of a copy is. */
struct side {
	uint64_t addr;
	int device;  /* -1: memory of the host */
	bool direct; /* no copy waits for it */
};

/* The peer's side. LW_REASON_NONE, or why not. */
static enum lw_reason find_remote(const struct nvlink_lane *own, const struct lw_view *view,
				  const struct lw_slice *slice, struct side *out)
{
	const struct nvlink_mapping *mapping;
	uint32_t position;

	*out = (struct side){.addr = slice->remote, .device = -1};
	if (own->reach == NULL) {
		nvlink_local(own->worker->nvlink, slice->remote, slice->length, &out->device, &out->direct);
		return LW_REASON_NONE;
	}
	if (!allowed(own, view, slice, &position))
		return LW_REASON_REFUSED;
	mapping = nvlink_reach_find(own->reach, slice->remote, slice->length);
	if (mapping != NULL) {
		out->addr = mapping->here + (slice->remote - mapping->addr);
		out->device = mapping->device;
		out->direct = true;
	} else if (own->reach->peer->inside) {
		out->direct = own->reach->pinned[position];
	} else {
		return LW_REASON_REFUSED;
	}
	return LW_REASON_NONE;
}

/* Begins the copy. LW_REASON_NONE with *later: not now. */
static enum lw_reason begin(struct nvlink_lane *own, const struct lw_view *view, struct lw_slice *slice, bool *later)
{
	struct nvlink_note *note = nvlink_note(slice);
	struct nvlink_worker *worker = own->worker;
	struct side here = {.addr = slice->local}, there, *to, *from;
	struct nvlink_device *device;
	enum nvlink_direction direction;
	enum lw_reason reason;
	int error;

	*later = false;
	nvlink_local(worker->nvlink, slice->local, slice->length, &here.device, &here.direct);
	reason = find_remote(own, view, slice, &there);
	if (reason != LW_REASON_NONE)
		return reason;
	/* Not registered any more, since the request was checked: the CPU must not take it for the host's. */
	if ((own->lane->path->pair & 1) == LW_MEM_DEVICE && here.device < 0)
		return LW_REASON_UNREGISTERED;
	if (own->lane->path->pair >> 1 == LW_MEM_DEVICE && there.device < 0)
		return LW_REASON_REFUSED;
	to = slice->op == LW_WRITE ? &there : &here;
	from = slice->op == LW_WRITE ? &here : &there;
	/* Ours does the work where it can; it has the streams, and a copy is pushed or pulled by it alike. */
	device = nvlink_device_of(worker, here.device >= 0 ? here.device : there.device);
	if (device == NULL)
		return LW_REASON_DEVICE;
	note->number = (int16_t)device->device;
	if (to->direct && from->direct) {
		direction = to->device < 0 ? NVLINK_OUT : from->device < 0 ? NVLINK_IN : NVLINK_ACROSS;
		error = nvlink_copy(worker, device, direction, slice, to->addr, from->addr);
		*later = error == -EAGAIN;
		if (error != 0 && !*later)
			return error == -EINVAL ? LW_REASON_FAULT : LW_REASON_DEVICE;
	} else {
		note->to_device = to->device >= 0;
		note->device = note->to_device ? to->addr : from->addr;
		note->host = note->to_device ? from->addr : to->addr;
		nvlink_copy_slow(worker, slice);
	}
	if (!*later) {
		slice->started = true;
		own->busy++;
	}
	return LW_REASON_NONE;
}

/* Goes on with what the view is now. False: not before what is under way has ended, or the lane is down. */
static bool follow(struct nvlink_lane *own, const struct lw_view *view)
{
	struct nvlink_reach *reach = lw_view_peer(view, own->lane->driver);

	if (own->ended || reach == NULL || reach->peer != own->reach->peer) {
		/* Down, when nothing is under way any more: then it connects again, or another way is taken. */
		if (own->busy == 0)
			lw_lane_down(own->lane, LW_REASON_RESET);
		return false;
	}
	if (reach == own->reach)
		return true;
	if (own->busy != 0)
		return false;
	nvlink_reach_drop_later(own->reach);
	own->reach = nvlink_reach_hold(reach);
	return true;
}

/* We are inside the peer's door, and know of all that it has taken back. False: as above. */
static bool enter(struct nvlink_lane *own)
{
	struct door *door = own->reach->peer->door;

	if (own->place == NULL)
		return true;
	if (own->inside && own->seen != door_changes(door)) {
		/* Somebody may be waiting for us to leave. */
		if (own->busy != 0)
			return false;
		leave(own);
	}
	if (own->inside)
		return true;
	if (!door_enter(door, own->place)) {
		if (own->busy == 0)
			lw_lane_down(own->lane, LW_REASON_RESET);
		return false;
	}
	own->inside = true;
	own->seen = door_changes(door);
	return true;
}

/* Begins what can be begun. False: the lane is down, and own is not ours any more. */
static bool pump(struct nvlink_lane *own)
{
	struct lw_lane *lane = own->lane;
	const struct lw_view *view = lw_path_view(lane->worker, lane->path);

	if (own->reach != NULL && (!follow(own, view) || (own->first != NULL && !enter(own))))
		return lw_lane_state(lane) == LW_LANE_UP;
	while (own->first != NULL) {
		struct lw_slice *slice = take_first(own);
		enum lw_reason reason;
		bool later;

		reason = begin(own, view, slice, &later);
		if (later) {
			nvlink_note(slice)->next = own->first;
			own->first = slice;
			if (own->last == NULL)
				own->last = slice;
			break;
		}
		if (reason != LW_REASON_NONE)
			lw_slice_done(lane, slice, reason);
	}
	if (own->busy == 0)
		leave(own);
	return true;
}

void nvlink_ended(struct lw_slice *slice, enum lw_reason reason)
{
	struct nvlink_lane *own = nvlink_note(slice)->lane;

	own->busy--;
	/* It may have to leave, to follow, or to begin more. */
	enqueue(own);
	lw_slice_done(own->lane, slice, reason);
}

void nvlink_post(struct lw_lane *lane, struct lw_slice *slice)
{
	struct nvlink_lane *own = own_of(lane);
	struct nvlink_note *note = nvlink_note(slice);

	*note = (struct nvlink_note){.lane = own, .state = NVLINK_WAITING};
	if (own->last != NULL)
		nvlink_note(own->last)->next = slice;
	else
		own->first = slice;
	own->last = slice;
}

void nvlink_flush(struct lw_lane *lane)
{
	struct nvlink_lane *own = own_of(lane);

	lw_worker_want(lane->worker, lane->driver);
	if (!pump(own))
		return;
	nvlink_close_batches(own->worker);
	if (own->first != NULL)
		enqueue(own);
}

bool nvlink_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	struct nvlink_lane *own = own_of(lane);
	struct nvlink_note *note = nvlink_note(slice);
	struct lw_slice *previous = NULL;

	if (note->state == NVLINK_SLOW && nvlink_slow_take_back(own->worker, slice)) {
		own->busy--;
		enqueue(own);
		return true;
	}
	if (note->state != NVLINK_WAITING)
		return false;
	for (struct lw_slice *at = own->first; at != slice; at = nvlink_note(at)->next)
		previous = at;
	if (previous != NULL)
		nvlink_note(previous)->next = note->next;
	else
		own->first = note->next;
	if (own->last == slice)
		own->last = previous;
	return true;
}

/* A copy in a stream can't be taken back: it ends soon. */
void nvlink_recall(struct lw_lane *lane, struct lw_slice *slice)
{
	(void)lane;
	(void)slice;
}

bool nvlink_poll(void *worker_context)
{
	struct nvlink_worker *worker = worker_context;
	bool more = nvlink_streams_poll(worker);
	struct nvlink_lane *own;
	uint32_t turn = 0;

	TAILQ_FOREACH(own, &worker->waiting, link)
	turn++;
	while (turn-- > 0 && (own = TAILQ_FIRST(&worker->waiting)) != NULL) {
		dequeue(own);
		if (pump(own) && own->first != NULL)
			enqueue(own);
	}
	nvlink_close_batches(worker);
	return more || !TAILQ_EMPTY(&worker->busy) || !TAILQ_EMPTY(&worker->waiting);
}
