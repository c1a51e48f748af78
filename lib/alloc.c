/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that other processes of the host can map: a memfd each, which can't be shrunk under who has mapped it. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <numaif.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/log.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define SIZE_MAX_BYTES ((size_t)1 << 47)
#define NODES 1024
#define PIECE_BYTES ((size_t)1 << 30)

static uint64_t number_in(const char *path, const char *before)
{
	unsigned long long number = UINT64_MAX;
	char line[128];
	FILE *file = fopen(path, "re");

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (strncmp(line, before, strlen(before)) == 0 && sscanf(line + strlen(before), "%llu", &number) == 1)
			break;
	if (file != NULL)
		fclose(file);
	return number;
}

/* Bytes that this process may still take. The kernel does not refuse to fill a memfd: it kills somebody when there is
 * nothing left. */
static uint64_t available(void)
{
	uint64_t kib = number_in("/proc/meminfo", "MemAvailable:");
	uint64_t host = kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
	uint64_t limit = number_in("/sys/fs/cgroup/memory.max", ""),
		 used = number_in("/sys/fs/cgroup/memory.current", "");
	uint64_t group = limit == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : limit > used ? limit - used : 0;

	return host < group ? host : group;
}

/* Memory for the whole area, now: what is missing later would be a SIGBUS. Huge pages are counted by the kernel. */
static int populate(int fd, size_t size, bool huge)
{
	for (size_t done = 0; done < size;) {
		size_t piece = size - done < PIECE_BYTES ? size - done : PIECE_BYTES;

		if (!huge && size - done > available())
			return -ENOMEM;
		if (fallocate(fd, 0, (off_t)done, (off_t)piece) == 0)
			done += piece;
		else if (errno != EINTR)
			return -errno;
	}
	return 0;
}

/* Pages are placed when they are populated, by the policy of the mapping's object. */
static int place(void *memory, size_t size, int node)
{
	unsigned long mask[NODES / (8 * sizeof(unsigned long))] = {0};

	if (node < 0)
		return 0;
	mask[(size_t)node / (8 * sizeof(mask[0]))] |= 1UL << ((size_t)node % (8 * sizeof(mask[0])));
	if (mbind(memory, size, MPOL_PREFERRED, mask, NODES, 0) == 0 || errno == ENOSYS || errno == EPERM)
		return 0; /* a kernel without nodes, or a sandbox: anywhere is good enough */
	return -errno;
}

static int make_area(size_t size, bool huge, int node, struct lw_area *out)
{
	int fd = memfd_create("lanewise", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0));
	size_t unit = huge ? HUGE_BYTES : 4096;
	void *memory = MAP_FAILED;
	struct stat stat;
	int error;

	if (fd < 0)
		return -errno;
	size = (size + unit - 1) / unit * unit;
	if (ftruncate(fd, (off_t)size) == 0)
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	error = memory != MAP_FAILED ? place(memory, size, node) : -errno;
	if (error == 0)
		error = populate(fd, size, huge);
	if (error == 0 && fstat(fd, &stat) != 0)
		error = -errno;
	if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
		error = -errno;
	if (error != 0) {
		if (memory != MAP_FAILED)
			munmap(memory, size);
		close(fd);
		return error;
	}
	*out = (struct lw_area){.addr = (uint64_t)(uintptr_t)memory, .length = size, .fd = fd, .inode = stat.st_ino};
	return 0;
}

/* "cpu:N", NULL and "*" are known. *node is -1 for anywhere. */
static int read_location(const char *location, int *node)
{
	char *end;
	unsigned long number;

	*node = -1;
	if (location == NULL || strcmp(location, "*") == 0)
		return 0;
	if (strncmp(location, "cpu:", 4) != 0 || location[4] < '0' || location[4] > '9')
		return -EINVAL;
	number = strtoul(location + 4, &end, 10);
	if (*end != '\0' || number >= NODES)
		return -EINVAL;
	*node = (int)number;
	return 0;
}

/* Under the lock. */
static void tell(struct lw_engine *engine)
{
	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->areas != NULL)
			lw_drivers[i]->areas(engine->driver_context[i]);
}

int lw_mem_alloc(struct lw_engine *engine, size_t size, const char *location, uint32_t flags, void **out)
{
	struct lw_area *area;
	int node, error;

	if (out == NULL || size == 0 || size > SIZE_MAX_BYTES || (flags & ~(uint32_t)LW_MEM_SMALL_PAGES) != 0)
		return lw_fail(-EINVAL, "out must not be NULL, size 1 to 2^47, flags known ones");
	if (read_location(location, &node) != 0)
		return lw_fail(-EINVAL, "\"%s\" is no place for memory; it takes cpu:N, * or NULL", location);
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	area = calloc(1, sizeof(*area));
	error = area == NULL ? -ENOMEM : -EAGAIN;
	if (error == -EAGAIN && engine->config.hugepages && (flags & LW_MEM_SMALL_PAGES) == 0 && size >= HUGE_BYTES)
		error = make_area(size, true, node, area);
	if (area != NULL && error != 0)
		error = make_area(size, false, node, area);
	if (error != 0) {
		free(area);
		lw_engine_leave(engine);
		return lw_fail(error == -EMFILE || error == -ENFILE ? error : -ENOMEM,
			       "no %zu bytes of shared memory: %s", size, strerror(-error));
	}
	pthread_mutex_lock(&engine->lock);
	area->next = engine->areas;
	engine->areas = area;
	tell(engine);
	pthread_mutex_unlock(&engine->lock);
	*out = (void *)(uintptr_t)area->addr;
	lw_engine_leave(engine);
	return 0;
}

static void drop_area(struct lw_area *area)
{
	munmap((void *)(uintptr_t)area->addr, area->length);
	close(area->fd);
	free(area);
}

int lw_mem_free(struct lw_engine *engine, void *addr)
{
	struct lw_area **link, *area = NULL;
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	for (link = &engine->areas; *link != NULL && (*link)->addr != (uint64_t)(uintptr_t)addr; link = &(*link)->next)
		;
	if (*link == NULL) {
		error = lw_fail(-EINVAL, "%p is not what lw_mem_alloc of this engine gave", addr);
	} else if (lw_memory_in_use(engine, (*link)->addr, (*link)->addr + (*link)->length)) {
		error = lw_fail(-EBUSY, "a buffer in the memory at %p is still registered; unregister it first", addr);
	} else {
		area = *link;
		*link = area->next;
		tell(engine);
	}
	pthread_mutex_unlock(&engine->lock);
	if (area != NULL)
		drop_area(area);
	lw_engine_leave(engine);
	return error;
}

void lw_areas_fini(struct lw_engine *engine)
{
	struct lw_area *area;

	while ((area = engine->areas) != NULL) {
		engine->areas = area->next;
		drop_area(area);
	}
}

void lw_areas_forked(struct lw_engine *engine)
{
	for (const struct lw_area *area = engine->areas; area != NULL; area = area->next)
		close(area->fd);
}
