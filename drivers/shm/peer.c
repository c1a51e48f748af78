/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/shm/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/engine.h"
#include "lib/neighbour.h"

bool shm_peers_outside;

int shm_peer_check(const struct shm_peer *peer)
{
	unsigned char nonce[DOOR_NONCE];
	struct iovec local = {.iov_base = nonce, .iov_len = sizeof(nonce)};
	struct iovec remote = {.iov_base = (void *)(uintptr_t)peer->witness, .iov_len = sizeof(nonce)};

	if (atomic_load_explicit(&peer->door->page->closed, memory_order_relaxed) != 0)
		return -ESRCH;
	if (peer->inside)
		return 0;
	if (process_vm_readv(peer->pid, &local, 1, &remote, 1, 0) != (ssize_t)sizeof(nonce))
		return errno == EFAULT ? -ESRCH : -errno;
	return memcmp(nonce, peer->nonce, sizeof(nonce)) == 0 ? 0 : -ESRCH;
}

static void unmap(struct shm_map *map)
{
	munmap(map->memory, map->length);
	free(map);
}

void shm_engine_drop(struct shm_engine *shm)
{
	if (atomic_fetch_sub_explicit(&shm->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (shm->door != NULL)
		door_drop(shm->door);
	pthread_mutex_destroy(&shm->lock);
	free(shm);
}

struct shm_peer *shm_peer_hold(struct shm_peer *peer)
{
	pthread_mutex_lock(&peer->shm->lock);
	peer->refs++;
	pthread_mutex_unlock(&peer->shm->lock);
	return peer;
}

static void free_peer(struct shm_peer *peer)
{
	if (peer->pid_fd >= 0)
		close(peer->pid_fd);
	if (peer->door != NULL)
		door_drop(peer->door);
	free(peer);
}

void shm_peer_drop(struct shm_peer *peer)
{
	struct shm_engine *shm = peer->shm;
	bool last;

	pthread_mutex_lock(&shm->lock);
	last = --peer->refs == 0;
	for (struct shm_peer **link = &shm->peers; last && *link != NULL; link = &(*link)->next) {
		if (*link == peer) {
			*link = peer->next;
			break;
		}
	}
	pthread_mutex_unlock(&shm->lock);
	if (!last)
		return;
	free_peer(peer);
	shm_engine_drop(shm);
}

/* Another process: its door, its nonce at the address that the door states, and that it is the same process all along.
 */
static int meet(struct shm_peer *peer, int32_t fd, char *why, size_t why_size)
{
	int error = lw_neighbour_meet(peer->pid, fd, peer->nonce, &peer->door, &peer->pid_fd, why, why_size);

	if (error != 0 || peer->door == NULL)
		return error;
	peer->witness = peer->door->page->witness;
	error = shm_peer_check(peer);
	/* Reading may be allowed and writing not. */
	if (error == 0 && process_vm_writev(peer->pid, NULL, 0, NULL, 0, 0) != 0)
		error = -errno;
	if (error == 0 && lw_neighbour_ended(peer->pid_fd))
		error = -ESRCH;
	if (error != 0)
		lw_neighbour_denied(error, peer->pid, why, why_size);
	return error;
}

static struct shm_peer *find_peer(struct shm_engine *shm, pid_t pid, const unsigned char *nonce)
{
	struct shm_peer *peer;

	for (peer = shm->peers; peer != NULL; peer = peer->next)
		if (peer->pid == pid && memcmp(peer->nonce, nonce, DOOR_NONCE) == 0)
			return peer;
	return NULL;
}

static int make_peer(struct shm_engine *shm, const struct lw_desc_shm *desc, const unsigned char *nonce,
		     struct shm_peer **out, char *why, size_t why_size)
{
	struct shm_peer *peer = calloc(1, sizeof(*peer)), *other;
	int error = 0;

	if (peer == NULL)
		return -ENOMEM;
	peer->shm = shm;
	peer->refs = 1;
	peer->pid = (pid_t)desc->pid;
	peer->pid_fd = -1;
	memcpy(peer->nonce, nonce, DOOR_NONCE);
	if (peer->pid == getpid() && !shm_peers_outside) {
		peer->inside = true;
		peer->door = door_find_own(nonce);
		if (peer->door == NULL) {
			snprintf(why, why_size, "no engine of this process has that nonce");
			error = -ESRCH;
		}
	} else {
		error = meet(peer, desc->fd, why, why_size);
	}
	if (error != 0) {
		free_peer(peer);
		return error;
	}
	pthread_mutex_lock(&shm->lock);
	other = find_peer(shm, peer->pid, nonce);
	if (other != NULL) {
		other->refs++; /* another thread was faster */
	} else {
		peer->next = shm->peers;
		shm->peers = peer;
		atomic_fetch_add_explicit(&shm->refs, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&shm->lock);
	if (other != NULL)
		free_peer(peer);
	*out = other != NULL ? other : peer;
	return 0;
}

/* The inode and the length from the door decide: the number may be another file's meanwhile. */
static struct shm_map *map_area(const struct shm_peer *peer, const struct door_area_copy *area)
{
	struct shm_map *map = calloc(1, sizeof(*map));
	int fd = map != NULL ? lw_neighbour_memory(peer->pid, area->fd) : -1;
	void *memory = MAP_FAILED;
	struct stat stat;
	int seals;

	if (fd >= 0) {
		seals = fcntl(fd, F_GET_SEALS);
		if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &stat) == 0 && stat.st_ino == area->inode &&
		    area->length != 0 && (uint64_t)stat.st_size >= area->length)
			memory = mmap(NULL, area->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (memory == MAP_FAILED) {
		free(map);
		return NULL;
	}
	(void)madvise(memory, area->length, MADV_DONTFORK); /* a child of ours has no business there */
	*map = (struct shm_map){
		.refs = 1, .inode = area->inode, .addr = area->addr, .length = area->length, .memory = memory};
	return map;
}

/* An area as it is mapped already, or mapped now. NULL: it can't be, and the kernel copies instead. */
static struct shm_map *take_map(struct shm_peer *peer, const struct door_area_copy *area)
{
	struct shm_map *map;

	pthread_mutex_lock(&peer->shm->lock);
	for (map = peer->maps; map != NULL; map = map->next)
		if (map->inode == area->inode && map->addr == area->addr && map->length == area->length)
			break;
	if (map != NULL) {
		map->refs++;
	} else if ((map = map_area(peer, area)) != NULL) {
		map->next = peer->maps;
		peer->maps = map;
	}
	pthread_mutex_unlock(&peer->shm->lock);
	return map;
}

static void give_map(struct shm_peer *peer, struct shm_map *map)
{
	bool last;

	pthread_mutex_lock(&peer->shm->lock);
	last = --map->refs == 0;
	for (struct shm_map **link = &peer->maps; last && *link != NULL; link = &(*link)->next) {
		if (*link == map) {
			*link = map->next;
			break;
		}
	}
	pthread_mutex_unlock(&peer->shm->lock);
	if (last)
		unmap(map);
}

static int compare_maps(const void *a, const void *b)
{
	const struct shm_map *const *left = a, *const *right = b;

	return (*left)->addr < (*right)->addr ? -1 : (*left)->addr > (*right)->addr;
}

void shm_forget(void *given)
{
	struct shm_reach *reach = given;

	for (size_t i = 0; i < reach->map_count; i++)
		give_map(reach->peer, reach->maps[i]);
	shm_peer_drop(reach->peer);
	free(reach->maps);
	free(reach);
}

bool shm_offer_seen(const void *given)
{
	const struct shm_reach *reach = given;

	return atomic_load_explicit(&reach->peer->door->page->closed, memory_order_acquire) == 0 &&
	       door_changes(reach->peer->door) == reach->changes;
}

int shm_reach(void *context, const struct lw_desc *desc, void **out, char *why, size_t why_size)
{
	struct shm_engine *shm = context;
	unsigned char nonce[DOOR_NONCE];
	struct door_area_copy *areas;
	struct shm_reach *reach;
	struct shm_peer *peer;
	size_t count;
	int error;

	if (shm->door == NULL || desc->shm.pid == 0)
		return -ENOTSUP;
	error = lw_neighbour_is(shm->host, desc->shm.host, why, why_size);
	if (error != 0)
		return error;
	lw_neighbour_nonce(desc->shm.nonce, nonce, sizeof(nonce));
	pthread_mutex_lock(&shm->lock);
	peer = find_peer(shm, (pid_t)desc->shm.pid, nonce);
	if (peer != NULL)
		peer->refs++;
	pthread_mutex_unlock(&shm->lock);
	if (peer == NULL)
		error = make_peer(shm, &desc->shm, nonce, &peer, why, why_size);
	if (error != 0)
		return error == -ENOTSUP ? -EIO : error;
	reach = calloc(1, sizeof(*reach) + desc->buffer_count * sizeof(reach->grants[0]));
	areas = peer->inside ? NULL : malloc(DOOR_AREAS * sizeof(*areas));
	count = areas != NULL ? door_areas_read(peer->door, areas) : 0;
	if (reach != NULL)
		reach->maps = calloc(count + 1, sizeof(struct shm_map *));
	if (reach == NULL || reach->maps == NULL) {
		snprintf(why, why_size, "no memory");
		shm_peer_drop(peer);
		free(reach);
		free(areas);
		return -ENOMEM;
	}
	reach->peer = peer;
	reach->changes = desc->shm.changes;
	reach->grant_count = desc->buffer_count;
	for (size_t i = 0; i < desc->buffer_count; i++)
		reach->grants[i] = desc->buffers[i].grant;
	for (size_t i = 0; i < count; i++) {
		struct shm_map *map = take_map(peer, &areas[i]);

		if (map != NULL)
			reach->maps[reach->map_count++] = map;
	}
	free(areas);
	qsort(reach->maps, reach->map_count, sizeof(struct shm_map *), compare_maps);
	*out = reach;
	return 0;
}
