/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/shm/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "drivers/shm/copy.h"
#include "lib/engine.h"

#define AT_ONCE (16u * 1024)  /* a request up to this is copied at once, if none is before it */
#define PASS_BYTES (1u << 20) /* copied in one pass, so that the worker's other lanes get their turn */
/* A process that was the right one so long ago still is: for that it would have to end and its number to come round, or
 * to call execve, and we to write at that very moment. */
#define BELIEVE_NS 100000

static struct shm_lane *own_of(struct lw_lane *lane)
{
	return (struct shm_lane *)(void *)lane->own;
}

static void enqueue(struct shm_lane *own)
{
	if (own->queued)
		return;
	own->queued = true;
	lw_worker_want(own->lane->worker, own->lane->driver);
	TAILQ_INSERT_TAIL(&own->worker->busy, own, link);
}

static void dequeue(struct shm_lane *own)
{
	if (own->queued)
		TAILQ_REMOVE(&own->worker->busy, own, link);
	own->queued = false;
}

static void on_end(struct lw_io *io, uint32_t events)
{
	struct shm_lane *own = (struct shm_lane *)(void *)io;

	(void)events;
	own->ended = true;
	enqueue(own);
}

int shm_lane_open(struct lw_lane *lane, const struct lw_view *view)
{
	struct shm_lane *own = own_of(lane);
	struct shm_reach *reach = lw_view_peer(view, lane->driver);
	int error;

	*own = (struct shm_lane){.lane = lane, .worker = lane->worker->driver_context[lane->driver], .io.fd = -1};
	if (lane->path->segment == 0) {
		lw_lane_up(lane);
		return 0;
	}
	if (reach == NULL)
		return -ENOTSUP;
	own->peer = shm_peer_hold(reach->peer);
	error = shm_peer_check(own->peer);
	if (error != 0)
		return error; /* what is held is given back when the lane is closed */
	own->checked_ns = lw_now_ns();
	own->place = door_claim(own->peer->door);
	if (own->place == NULL)
		return -EUSERS;
	if (!own->peer->inside) {
		/* One of its own: an epoll set takes a descriptor once, and another segment may be of the same peer. */
		own->io = (struct lw_io){.fd = fcntl(own->peer->pid_fd, F_DUPFD_CLOEXEC, 0), .ready = on_end};
		if (own->io.fd < 0)
			return -errno;
		error = lw_worker_io_add(lane->worker, &own->io, EPOLLIN);
		if (error != 0)
			return error;
	}
	lw_lane_up(lane);
	return 0;
}

void shm_lane_close(struct lw_lane *lane)
{
	struct shm_lane *own = own_of(lane);

	dequeue(own);
	if (own->io.fd >= 0) {
		lw_worker_io_del(lane->worker, &own->io);
		close(own->io.fd);
	}
	own->io.fd = -1;
	if (own->place != NULL)
		door_release(own->place);
	own->place = NULL;
	if (own->peer != NULL)
		shm_peer_drop(own->peer);
	own->peer = NULL;
	own->next = NULL;
}

static void copy(uint8_t op, uint64_t local, void *there, uint64_t length, bool past_cache)
{
	void *here = (void *)(uintptr_t)local;

	if (op == LW_WRITE)
		shm_copy(there, here, length, past_cache);
	else
		shm_copy(here, there, length, past_cache);
}

/* Whether the peer offers these bytes of one buffer now, for the operation. Between enter and leave. */
static bool allowed(struct shm_lane *own, const struct lw_view *view, const struct shm_reach *reach, uint8_t op,
		    uint64_t remote, uint64_t length)
{
	uint32_t access = op == LW_READ ? LW_ACCESS_REMOTE_READ : LW_ACCESS_REMOTE_WRITE;
	const struct lw_range *range = lw_rangemap_find(view->ranges, remote);

	if (range == NULL || range->tag >= reach->grant_count)
		return false;
	return door_allows(own->peer->door, (uint32_t)(reach->grants[range->tag] & LW_HANDLE_INDEX_MASK),
			   (uint32_t)(reach->grants[range->tag] >> LW_HANDLE_INDEX_BITS), access, remote, length);
}

/* Where the peer's bytes are in our address space. NULL: only the kernel gets there. */
static void *mapped(const struct shm_lane *own, const struct shm_reach *reach, uint64_t remote, uint64_t length)
{
	return own->peer->inside ? (void *)(uintptr_t)remote : shm_reach_find(reach, remote, length);
}

bool shm_now(struct lw_lane *lane, uint8_t op, uint64_t local, uint64_t remote, uint64_t length)
{
	struct shm_lane *own = own_of(lane);
	const struct lw_view *view;
	struct shm_reach *reach;
	bool done = false;
	void *there;

	/* Bulk may be before it: it is overtaken, between two passes nothing of it is under way. */
	if (length > AT_ONCE ||
	    (own->next != NULL &&
	     lane->bulk_bytes != atomic_load_explicit(&lane->stats.inflight_bytes, memory_order_relaxed)))
		return false;
	if (own->peer == NULL) {
		copy(op, local, (void *)(uintptr_t)remote, length, false);
		return true;
	}
	view = lw_path_view(lane->worker, lane->path);
	reach = lw_view_peer(view, lane->driver);
	there = reach != NULL ? mapped(own, reach, remote, length) : NULL;
	if (there == NULL || own->ended || !door_enter(own->peer->door, own->place))
		return false;
	if (allowed(own, view, reach, op, remote, length)) {
		copy(op, local, there, length, false);
		done = true;
	}
	door_leave(own->place);
	return done; /* what is not allowed is told by the slice's end */
}

void shm_post(struct lw_lane *lane, struct lw_slice *slice)
{
	struct shm_lane *own = own_of(lane);

	if (own->next != NULL)
		return;
	own->next = slice;
	own->copied = 0;
	enqueue(own);
}

void shm_flush(struct lw_lane *lane)
{
	(void)lane;
}

/* Nothing is under way between two passes: any slice can be taken back, whatever was copied of it. */
bool shm_unpost(struct lw_lane *lane, struct lw_slice *slice)
{
	struct shm_lane *own = own_of(lane);

	if (slice == own->next) {
		own->next = TAILQ_NEXT(slice, link);
		own->copied = 0;
		if (own->next == NULL)
			dequeue(own);
	}
	return true;
}

/* The slice is over; the next one's turn. */
static void end_slice(struct shm_lane *own, enum lw_reason reason)
{
	struct lw_slice *slice = own->next;

	own->next = TAILQ_NEXT(slice, link);
	own->copied = 0;
	lw_slice_done(own->lane, slice, reason);
}

/* n more bytes from own->next on are where they belong. */
static void advance(struct shm_lane *own, uint64_t n)
{
	while (own->next != NULL && own->copied + n >= own->next->length) {
		n -= own->next->length - own->copied;
		end_slice(own, LW_REASON_NONE);
		if (n == 0)
			return;
	}
	own->copied += n;
}

/* One side of a system call. */
struct vector {
	struct iovec *piece;
	uint32_t count;
	uint32_t fixed; /* pieces at its beginning that nothing is added to */
};

/* Adds bytes: to the last piece, where they go on from it. The kernel pins the pages of each piece by itself. */
static void add_piece(struct vector *vector, uint64_t addr, uint64_t length)
{
	struct iovec *last = &vector->piece[vector->count];

	if (vector->count > vector->fixed && (uint64_t)(uintptr_t)last[-1].iov_base + last[-1].iov_len == addr) {
		last[-1].iov_len += length;
		return;
	}
	*last = (struct iovec){(void *)(uintptr_t)addr, length};
	vector->count++;
}

/* Adds the slices from own->next on that one system call can move: one direction, offered, not mapped. At most budget
 * bytes of them. */
static void gather(struct shm_lane *own, const struct lw_view *view, const struct shm_reach *reach,
		   struct vector *local, struct vector *remote, uint64_t budget)
{
	uint64_t offset = own->copied;

	for (struct lw_slice *slice = own->next;
	     slice != NULL && budget > 0 && local->count < SHM_IOVS && remote->count < SHM_IOVS;
	     slice = TAILQ_NEXT(slice, link)) {
		uint64_t left = slice->length - offset, length = left < budget ? left : budget;

		/* The first was looked at already. */
		if (slice != own->next && (slice->op != own->next->op ||
					   !allowed(own, view, reach, slice->op, slice->remote, slice->length) ||
					   mapped(own, reach, slice->remote, slice->length) != NULL))
			break;
		add_piece(local, slice->local + offset, length);
		add_piece(remote, slice->remote + offset, length);
		budget -= length;
		offset = 0;
	}
}

/* The kernel could not go on at this place: was it our memory, or the peer's? */
static enum lw_reason whose_fault(uint8_t op, uint64_t local)
{
	unsigned char byte = 0;
	struct iovec ours = {(void *)(uintptr_t)local, 1}, other = {&byte, 1};
	/* A READ's destination has to be writable; what is in it is not promised any more. */
	ssize_t done = op == LW_READ ? process_vm_readv(getpid(), &ours, 1, &other, 1, 0)
				     : process_vm_readv(getpid(), &other, 1, &ours, 1, 0);

	return done == 1 ? LW_REASON_REFUSED : LW_REASON_FAULT;
}

/* One system call for the slices from own->next on. The bytes moved, or -1: the lane is down. */
static int64_t call(struct shm_lane *own, const struct lw_view *view, const struct shm_reach *reach, uint64_t budget)
{
	struct shm_worker *worker = own->worker;
	const struct shm_peer *peer = own->peer;
	struct vector local = {.piece = worker->local}, remote = {.piece = worker->remote};
	uint8_t op = own->next->op;
	ssize_t got;
	int error = 0;

	if (op == LW_READ) {
		/* The call is about one address space from its first to its last byte: it shows the nonce, too. */
		worker->local[0] = (struct iovec){worker->nonce, DOOR_NONCE};
		worker->remote[0] = (struct iovec){(void *)(uintptr_t)peer->witness, DOOR_NONCE};
		local.count = local.fixed = remote.count = remote.fixed = 1;
		memset(worker->nonce, 0, DOOR_NONCE);
		gather(own, view, reach, &local, &remote, budget);
		got = process_vm_readv(peer->pid, local.piece, local.count, remote.piece, remote.count, 0);
		if (got < 0)
			error = errno;
		else if (got < DOOR_NONCE || memcmp(worker->nonce, peer->nonce, DOOR_NONCE) != 0)
			error = ESRCH;
		else if ((got -= DOOR_NONCE) == 0)
			error = EFAULT;
	} else {
		uint64_t now_ns = lw_now_ns();

		if (now_ns - own->checked_ns >= BELIEVE_NS) {
			error = -shm_peer_check(peer);
			own->checked_ns = now_ns;
		}
		gather(own, view, reach, &local, &remote, budget);
		got = error == 0 ? process_vm_writev(peer->pid, local.piece, local.count, remote.piece, remote.count, 0)
				 : 0;
		if (got < 0)
			error = errno;
		else if (got == 0 && error == 0)
			error = EFAULT;
	}
	if (error == EFAULT) {
		end_slice(own, whose_fault(op, own->next->local + own->copied));
		return 0;
	}
	if (error != 0) {
		door_leave(own->place);
		lw_lane_down(own->lane, LW_REASON_RESET);
		return -1;
	}
	lw_count(&own->lane->stats.calls, 1);
	advance(own, (uint64_t)got);
	return got;
}

/* Copies at most budget bytes inside our address space; the bytes. */
static uint64_t copy_some(struct shm_lane *own, unsigned char *there, uint64_t budget)
{
	const struct lw_slice *slice = own->next;
	uint64_t left = slice->length - own->copied, length = left < budget ? left : budget;

	copy(slice->op, slice->local + own->copied, there + own->copied, length,
	     slice->length >= own->worker->stream_bytes);
	advance(own, length);
	return length;
}

/* The lane's turn: copies at most *budget bytes. False: the lane is down, and own is not ours any more. */
static bool work(struct shm_lane *own, uint64_t *budget)
{
	const struct lw_view *view = lw_path_view(own->lane->worker, own->lane->path);
	const struct shm_reach *reach = own->peer != NULL ? lw_view_peer(view, own->lane->driver) : NULL;
	bool entered = false;

	if (own->peer != NULL) {
		entered = reach != NULL && !own->ended && door_enter(own->peer->door, own->place);
		if (!entered) {
			lw_lane_down(own->lane, LW_REASON_RESET);
			return false;
		}
	}
	while (own->next != NULL && *budget > 0) {
		struct lw_slice *slice = own->next;
		int64_t moved;
		void *there;

		if (!entered) {
			*budget -= copy_some(own, (void *)(uintptr_t)slice->remote, *budget);
			continue;
		}
		if (!allowed(own, view, reach, slice->op, slice->remote, slice->length)) {
			end_slice(own, LW_REASON_REFUSED);
			continue;
		}
		there = mapped(own, reach, slice->remote, slice->length);
		moved = there != NULL ? (int64_t)copy_some(own, there, *budget) : call(own, view, reach, *budget);
		if (moved < 0)
			return false;
		*budget -= (uint64_t)moved < *budget ? (uint64_t)moved : *budget;
	}
	if (entered)
		door_leave(own->place);
	return true;
}

bool shm_poll(void *worker_context)
{
	struct shm_worker *worker = worker_context;
	uint64_t budget = PASS_BYTES;
	struct shm_lane *own;

	while (budget > 0 && (own = TAILQ_FIRST(&worker->busy)) != NULL) {
		dequeue(own);
		/* If the budget is used up, the others come first in the next pass. */
		if (work(own, &budget) && own->next != NULL)
			enqueue(own);
	}
	return !TAILQ_EMPTY(&worker->busy);
}
