/* SPDX-License-Identifier: Apache-2.0 */
/* The door: memory in which an engine and the peers that reach into its memory meet, for drivers with such peers. The
 * engine owns it and says there which buffers are offered; each lane of a peer has a place in it where it says that it
 * is inside.
 *
 *            owner                                           a peer's lane
 *   offer    grant = {gen, access}
 *   enter                                                    turn becomes odd (A)
 *                                                            reads closed and grant (B), copies only if they allow it
 *   leave                                                    turn becomes even (C, release)
 *   withdraw grant = 0 (D)
 *   settle   reads each turn (E); waits for those that are odd until they change
 *
 * Between A and B, and between D and E, lies a full fence: either B sees D, or E sees A. C pairs with E's acquire. A
 * full fence after a copy waits until the last bytes have left the CPU, which small blocks feel; so
 * where the kernel can, settle makes all processes that asked for it pass one (membarrier), and a lane's is for the
 * compiler alone.
 *
 * Both map it writable. The owner therefore believes nothing in it: it counts the places and buffers by its own
 * numbers, keeps its own books of what is offered, and waits for nobody longer than it wants to. A peer checks that the
 * memory can't be shrunk and is as large as its own arithmetic says, before it looks at anything. Who may map it could
 * also write to the process' memory (the kernel asks for the same right), so there is nothing to gain in it.
 */
#ifndef LW_DOOR_H
#define LW_DOOR_H

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DOOR_PLACES 256u
#define DOOR_BUFFERS_MAX (1u << 20)
#define DOOR_AREAS 4096u /* more are not told: the kernel copies there */
#define DOOR_NONCE 16

/* As it lies in the memory. */
struct door_place {
	alignas(64) _Atomic uint64_t turn; /* odd: inside */
	_Atomic uint64_t owner;            /* pid << 40 | when it started; 0: free */
};

struct door_grant {
	_Atomic uint64_t word; /* gen << 32 | access; 0: not offered */
	_Atomic uint64_t addr, end;
	uint64_t reserved;
};
static_assert(sizeof(struct door_grant) == 32, "two a line, none across one");

/* Memory of lw_mem_alloc, which peers may map. */
struct door_area {
	_Atomic uint64_t addr, length, inode, fd;
};

struct door_page {
	uint64_t magic;
	uint32_t places;  /* DOOR_PLACES */
	uint32_t buffers; /* number of grants */
	unsigned char nonce[DOOR_NONCE];
	uint32_t heavy;   /* settle's fence is the lanes' too */
	uint64_t witness; /* address in the process at which it shows the nonce again, in memory of its own */
	alignas(64) _Atomic uint32_t closed;
	_Atomic uint64_t changes; /* of what is offered, so far */
	alignas(64) struct door_place place[DOOR_PLACES];
	alignas(64) _Atomic uint64_t areas_version; /* odd: they are being changed */
	_Atomic uint64_t area_count;
	struct door_area area[DOOR_AREAS];
	alignas(64) struct door_grant grant[];
};

struct door_area_copy {
	uint64_t addr, length, inode;
	int32_t fd;
};

struct door {
	_Atomic uint32_t refs;
	struct door_page *page;
	size_t bytes;
	uint32_t buffers;
	bool light;             /* our lanes need no fence */
	bool heavy;             /* the owner: settle makes them pass one */
	int fd;                 /* the owner's; -1 at a peer */
	uint64_t self;          /* what this process enters as the owner of a place */
	unsigned char *witness; /* the owner's */
	struct door *next;      /* of this process' own doors */
};

/* This process, as it enters itself in a place. 0 with a reason: /proc is not this process' own. */
uint64_t door_self(char *why, size_t why_size);

/* When a process was started, in ticks after the boot: with its number that names it for ever. 0: unknown. */
uint64_t door_started(pid_t pid);

/* The owner: a door for so many buffers with a random nonce. 0; -ENOMEM, -EMFILE, -ENOSYS, with the reason. */
int door_open(uint32_t buffers, struct door **out, char *why, size_t why_size);
/* The owner: nobody enters from now on. */
void door_shut(struct door *door);
/* A peer: maps what fd is, which stays the caller's. nonce is what the descriptor said. 0; -EPROTO it is no door, or
 * another one; -ENOMEM. */
int door_attach(int fd, const unsigned char *nonce, struct door **out, char *why, size_t why_size);
/* A peer in the owner's own process: the same door, with a reference more. NULL: there is none with that nonce. */
struct door *door_find_own(const unsigned char *nonce);
struct door *door_hold(struct door *door);
void door_drop(struct door *door);

/* The owner. */
static inline void door_offer(struct door *door, uint32_t slot, uint32_t gen, uint32_t access, uint64_t addr,
			      uint64_t length)
{
	struct door_grant *grant = &door->page->grant[slot];

	if (slot >= door->buffers)
		return;
	atomic_store_explicit(&grant->addr, addr, memory_order_relaxed);
	atomic_store_explicit(&grant->end, addr + length, memory_order_relaxed);
	atomic_store_explicit(&grant->word, (uint64_t)gen << 32 | access, memory_order_release);
	atomic_fetch_add_explicit(&door->page->changes, 1, memory_order_release);
}

static inline void door_withdraw(struct door *door, uint32_t slot)
{
	if (slot < door->buffers)
		atomic_store_explicit(&door->page->grant[slot].word, 0, memory_order_seq_cst);
	atomic_fetch_add_explicit(&door->page->changes, 1, memory_order_release);
}

/* How often what is offered has changed; a whole number that a descriptor can tell. */
static inline uint64_t door_changes(const struct door *door)
{
	return atomic_load_explicit(&door->page->changes, memory_order_acquire) & ((UINT64_C(1) << 53) - 1);
}

/* One thread at a time: begins the list of areas anew, adds one, ends it. */
void door_areas_begin(struct door *door);
void door_areas_add(struct door *door, const struct door_area_copy *area);
void door_areas_end(struct door *door);
/* A peer: copies the list; out has room for DOOR_AREAS. The number; 0 also if it can't be read in one piece. */
size_t door_areas_read(struct door *door, struct door_area_copy *out);

/* Waits until everybody who was inside when it was called has left or is dead. 0, or -EBUSY and who it is. */
int door_settle(struct door *door, uint64_t end_ns, char *why, size_t why_size);

/* A peer's lane: a place for it, or NULL: all are taken by living processes. A few system calls at most. */
struct door_place *door_claim(struct door *door);
void door_release(struct door_place *place);

/* False: the door is shut. True: leave follows soon, whatever happens. */
static inline bool door_enter(struct door *door, struct door_place *place)
{
	uint64_t turn = atomic_load_explicit(&place->turn, memory_order_relaxed);

	atomic_store_explicit(&place->turn, turn + 1, memory_order_relaxed);
	if (door->light)
		atomic_signal_fence(memory_order_seq_cst);
	else
		atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&door->page->closed, memory_order_acquire) == 0)
		return true;
	atomic_store_explicit(&place->turn, turn + 2, memory_order_release);
	return false;
}

static inline void door_leave(struct door_place *place)
{
	uint64_t turn = atomic_load_explicit(&place->turn, memory_order_relaxed);

	atomic_store_explicit(&place->turn, turn + 1, memory_order_release);
}

/* Inside: whether these bytes are in the buffer that has that slot in that generation, and offered for all of access.
 * The slot can't be another buffer's before we leave. */
static inline bool door_allows(struct door *door, uint32_t slot, uint32_t gen, uint32_t access, uint64_t addr,
			       uint64_t length)
{
	const struct door_grant *grant = &door->page->grant[slot];
	uint64_t word, begin, end;

	if (slot >= door->buffers || gen == 0)
		return false;
	word = atomic_load_explicit(&grant->word, memory_order_acquire);
	begin = atomic_load_explicit(&grant->addr, memory_order_relaxed);
	end = atomic_load_explicit(&grant->end, memory_order_relaxed);
	return (uint32_t)(word >> 32) == gen && ((uint32_t)word & access) == access && addr >= begin && addr < end &&
	       length <= end - addr;
}

#endif
