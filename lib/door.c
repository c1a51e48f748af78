/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/door.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"

#define MAGIC UINT64_C(0x315f726f6f647764) /* another number with another layout */
#define START_BITS 40
#define START_MASK ((UINT64_C(1) << START_BITS) - 1)
#define SPINS 200 /* looks at a place before sleeping between them: a piece is soon copied */
#define PAUSE_NS 50000
#define READ_TRIES 1000 /* of the list of areas, which is changed in microseconds */
#define DEAD_EVERY 20   /* sleeps between two questions whether somebody lives */

static struct door *own_doors;
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t door_bytes(uint32_t buffers)
{
	return (sizeof(struct door_page) + (size_t)buffers * sizeof(struct door_grant) + 4095) / 4096 * 4096;
}

uint64_t door_started(pid_t pid)
{
	char path[40], text[1024];
	const char *at;
	unsigned long long start = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0)
		return 0;
	text[got] = '\0';
	at = strrchr(text, ')'); /* the name before it may hold anything */
	if (at == NULL ||
	    sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		   &start) != 1)
		return 0;
	return start & START_MASK;
}

uint64_t door_self(char *why, size_t why_size)
{
	uint64_t start = door_started(getpid());
	char link[16] = "";

	if (readlink("/proc/self", link, sizeof(link) - 1) <= 0 || atoi(link) != (int)getpid() || start == 0) {
		snprintf(why, why_size, "/proc is not mounted, or is that of another PID namespace");
		return 0;
	}
	return (uint64_t)getpid() << START_BITS | start;
}

/* Whether the process that entered itself so is gone, zombies included: their threads have left the kernel. */
static bool is_dead(uint64_t owner)
{
	pid_t pid = (pid_t)(owner >> START_BITS);
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	bool dead;

	if (fd < 0)
		return errno == ESRCH || errno == EINVAL; /* EINVAL: no PID at all, or a thread's */
	dead = poll(&poll_fd, 1, 0) > 0;
	/* Alive: is it still the same process? */
	if (!dead) {
		uint64_t start = door_started(pid);

		dead = start != 0 && start != (owner & START_MASK);
	}
	close(fd);
	return dead;
}

/* Asks that settle's fence of any process is passed by our threads, too. False: the kernel can't. */
static bool take_fences(void)
{
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

static bool can_fence(void)
{
	long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);

	return commands > 0 && (commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0;
}

int door_open(uint32_t buffers, struct door **out, char *why, size_t why_size)
{
	struct door *door = calloc(1, sizeof(*door));
	struct door_page *page = MAP_FAILED;
	int error = -ENOMEM;

	if (door == NULL)
		return error;
	door->fd = -1;
	door->witness = MAP_FAILED;
	atomic_init(&door->refs, 1);
	door->self = door_self(why, why_size);
	if (door->self == 0) {
		free(door);
		return -ENOSYS;
	}
	door->buffers = buffers;
	door->bytes = door_bytes(buffers);
	door->fd = memfd_create("lanewise-door", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (door->fd < 0 || ftruncate(door->fd, (off_t)door->bytes) != 0)
		goto fail;
	page = mmap(NULL, door->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, door->fd, 0);
	door->witness = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED || door->witness == MAP_FAILED)
		goto fail;
	/* A child has neither: it isn't the process that peers mean. */
	if (madvise(page, door->bytes, MADV_DONTFORK) != 0 || madvise(door->witness, 4096, MADV_DONTFORK) != 0 ||
	    fcntl(door->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
	    getrandom(page->nonce, DOOR_NONCE, 0) != DOOR_NONCE)
		goto fail;
	memcpy(door->witness, page->nonce, DOOR_NONCE);
	page->magic = MAGIC;
	page->places = DOOR_PLACES;
	page->buffers = buffers;
	page->witness = (uint64_t)(uintptr_t)door->witness;
	door->heavy = can_fence();
	page->heavy = door->heavy;
	door->light = door->heavy && take_fences();
	door->page = page;
	pthread_mutex_lock(&own_lock);
	door->next = own_doors;
	own_doors = door;
	pthread_mutex_unlock(&own_lock);
	*out = door;
	return 0;
fail:
	error = -errno;
	snprintf(why, why_size, "no sealed memory to share: %s", strerror(-error));
	if (page != MAP_FAILED)
		munmap(page, door->bytes);
	if (door->witness != MAP_FAILED)
		munmap(door->witness, 4096);
	if (door->fd >= 0)
		close(door->fd);
	free(door);
	return error;
}

void door_shut(struct door *door)
{
	atomic_store_explicit(&door->page->closed, 1, memory_order_seq_cst);
	for (uint32_t i = 0; i < door->buffers; i++)
		if (atomic_load_explicit(&door->page->grant[i].word, memory_order_relaxed) != 0)
			door_withdraw(door, i);
}

void door_areas_begin(struct door *door)
{
	atomic_fetch_add_explicit(&door->page->areas_version, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&door->page->area_count, 0, memory_order_relaxed);
}

void door_areas_add(struct door *door, const struct door_area_copy *area)
{
	uint64_t count = atomic_load_explicit(&door->page->area_count, memory_order_relaxed);
	struct door_area *at = &door->page->area[count % DOOR_AREAS];

	if (count >= DOOR_AREAS)
		return;
	atomic_store_explicit(&at->addr, area->addr, memory_order_relaxed);
	atomic_store_explicit(&at->length, area->length, memory_order_relaxed);
	atomic_store_explicit(&at->inode, area->inode, memory_order_relaxed);
	atomic_store_explicit(&at->fd, (uint64_t)area->fd, memory_order_relaxed);
	atomic_store_explicit(&door->page->area_count, count + 1, memory_order_relaxed);
}

void door_areas_end(struct door *door)
{
	atomic_fetch_add_explicit(&door->page->areas_version, 1, memory_order_release);
}

size_t door_areas_read(struct door *door, struct door_area_copy *out)
{
	for (int tries = 0; tries < READ_TRIES; tries++) {
		uint64_t version = atomic_load_explicit(&door->page->areas_version, memory_order_acquire);
		uint64_t count = atomic_load_explicit(&door->page->area_count, memory_order_relaxed);

		if (count > DOOR_AREAS)
			count = DOOR_AREAS;
		for (uint64_t i = 0; i < count; i++) {
			struct door_area *at = &door->page->area[i];

			out[i].addr = atomic_load_explicit(&at->addr, memory_order_relaxed);
			out[i].length = atomic_load_explicit(&at->length, memory_order_relaxed);
			out[i].inode = atomic_load_explicit(&at->inode, memory_order_relaxed);
			out[i].fd = (int32_t)atomic_load_explicit(&at->fd, memory_order_relaxed);
		}
		atomic_thread_fence(memory_order_acquire);
		if ((version & 1) == 0 &&
		    atomic_load_explicit(&door->page->areas_version, memory_order_relaxed) == version)
			return count;
	}
	return 0;
}

int door_attach(int fd, const unsigned char *nonce, struct door **out, char *why, size_t why_size)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct door_page *page;
	struct door *door;
	struct stat stat;

	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &stat) != 0 || stat.st_size < (off_t)sizeof(*page) ||
	    stat.st_size > (off_t)door_bytes(DOOR_BUFFERS_MAX)) {
		snprintf(why, why_size, "its descriptor names a file that is no sealed memory of a door's size");
		return -EPROTO;
	}
	door = calloc(1, sizeof(*door));
	page = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (door == NULL || page == MAP_FAILED) {
		snprintf(why, why_size, "no memory to map its door");
		if (page != MAP_FAILED)
			munmap(page, (size_t)stat.st_size);
		free(door);
		return -ENOMEM;
	}
	door->bytes = (size_t)stat.st_size;
	door->buffers = page->buffers; /* once: it may change */
	door->page = page;
	door->fd = -1;
	atomic_init(&door->refs, 1);
	if (page->magic != MAGIC || page->places != DOOR_PLACES || door->buffers > DOOR_BUFFERS_MAX ||
	    door_bytes(door->buffers) > door->bytes || memcmp(page->nonce, nonce, DOOR_NONCE) != 0) {
		snprintf(why, why_size, "its door has another nonce or layout: another process, or another version");
		door_drop(door);
		return -EPROTO;
	}
	door->light = page->heavy == 1 && take_fences();
	door->self = door_self(why, why_size);
	if (door->self == 0 || madvise(page, door->bytes, MADV_DONTFORK) != 0) {
		door_drop(door);
		return -ENOSYS;
	}
	*out = door;
	return 0;
}

struct door *door_find_own(const unsigned char *nonce)
{
	struct door *door;

	pthread_mutex_lock(&own_lock);
	for (door = own_doors; door != NULL && memcmp(door->page->nonce, nonce, DOOR_NONCE) != 0; door = door->next)
		;
	if (door != NULL)
		door_hold(door);
	pthread_mutex_unlock(&own_lock);
	return door;
}

struct door *door_hold(struct door *door)
{
	atomic_fetch_add_explicit(&door->refs, 1, memory_order_relaxed);
	return door;
}

void door_drop(struct door *door)
{
	/* Under the lock, so that nobody finds a door whose last reference is gone. */
	pthread_mutex_lock(&own_lock);
	if (atomic_fetch_sub_explicit(&door->refs, 1, memory_order_acq_rel) != 1) {
		pthread_mutex_unlock(&own_lock);
		return;
	}
	for (struct door **link = &own_doors; *link != NULL; link = &(*link)->next) {
		if (*link == door) {
			*link = door->next;
			break;
		}
	}
	pthread_mutex_unlock(&own_lock);
	munmap(door->page, door->bytes);
	if (door->fd >= 0) {
		munmap(door->witness, 4096);
		close(door->fd);
	}
	free(door);
}

int door_settle(struct door *door, uint64_t end_ns, char *why, size_t why_size)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};

	atomic_thread_fence(memory_order_seq_cst);
	if (door->heavy && syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0) {
		snprintf(why, why_size, "membarrier is not allowed any more");
		return -EBUSY;
	}
	for (uint32_t i = 0; i < DOOR_PLACES; i++) {
		struct door_place *place = &door->page->place[i];
		uint64_t turn = atomic_load_explicit(&place->turn, memory_order_seq_cst);

		if ((turn & 1) == 0)
			continue;
		for (uint32_t looks = 0; atomic_load_explicit(&place->turn, memory_order_acquire) == turn; looks++) {
			uint64_t owner = atomic_load_explicit(&place->owner, memory_order_relaxed);

			if (looks < SPINS)
				continue;
			if (looks % DEAD_EVERY == 0 && is_dead(owner))
				break;
			if (lw_now_ns() >= end_ns) {
				snprintf(why, why_size, "process %u is inside the engine's memory",
					 (unsigned)(owner >> START_BITS));
				return -EBUSY;
			}
			nanosleep(&pause, NULL);
		}
	}
	return 0;
}

struct door_place *door_claim(struct door *door)
{
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < DOOR_PLACES; i++) {
			struct door_place *place = &door->page->place[i];
			uint64_t owner = atomic_load_explicit(&place->owner, memory_order_relaxed);

			/* First those that are free; then those of the dead. */
			if (owner != 0 && (round == 0 || !is_dead(owner)))
				continue;
			if (!atomic_compare_exchange_strong_explicit(&place->owner, &owner, door->self,
								     memory_order_acq_rel, memory_order_relaxed))
				continue;
			/* Who died inside left an odd number. */
			if ((atomic_load_explicit(&place->turn, memory_order_relaxed) & 1) != 0)
				door_leave(place);
			return place;
		}
	}
	return NULL;
}

void door_release(struct door_place *place)
{
	atomic_store_explicit(&place->owner, 0, memory_order_release);
}
