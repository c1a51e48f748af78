/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a request's ranges, before a byte of it moves. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/sched/path_pvt.h"

static bool look_up(struct lw_worker *worker, struct lw_hint *hint, const struct lw_rangemap *map, uint64_t addr,
		    uint64_t length, uint32_t access, uint32_t *kind)
{
	const struct lw_range *first;

	if (!lw_rangemap_covers(map, addr, length, access, &first))
		return false;
	*kind = (first->access & LW_RANGE_DEVICE) != 0 ? LW_MEM_DEVICE : LW_MEM_HOST;
	if (*kind != LW_MEM_HOST)
		return true; /* hints are the host's memory alone */
	*hint = (struct lw_hint){
		.addr = first->addr, .end = first->end, .access = first->access, .pass = worker->passes};
	return true;
}

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Local memory that nobody registered, where the setting allows it: may it be read, or written? With a kernel that
 * can't tell: is it there at all? */
static bool is_usable(uint64_t addr, uint64_t length, bool written)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), page = addr & ~(page_bytes - 1);
	void *memory = (void *)(uintptr_t)page;
	void *ours = (void *)((uintptr_t)&page_bytes & ~(uintptr_t)(page_bytes - 1)); /* of the stack */

	if (addr + length <= addr)
		return false;
	length += addr - page;
	if (madvise(memory, length, written ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
		return true;
	if (errno != EINVAL || madvise(ours, 1, MADV_POPULATE_READ) == 0)
		return false;
	return msync(memory, length, MS_ASYNC) == 0;
}

enum lw_reason lw_path_look_up(struct lw_worker *worker, struct lw_path *path, uint32_t access, uint64_t local,
			       uint64_t remote, uint64_t length, uint32_t *pair)
{
	uint32_t here = LW_MEM_HOST, there = LW_MEM_HOST;
	const struct lw_rangemap *own = atomic_load_explicit(&worker->engine->memory, memory_order_acquire);
	const struct lw_view *view = lw_path_view(worker, path);

	if (view == NULL)
		return LW_REASON_SEGMENT_CLOSED;
	if (!look_up(worker, &worker->local_hint, own, local, length, 0, &here) &&
	    !(worker->engine->config.local_unregistered && is_usable(local, length, access == LW_ACCESS_REMOTE_READ)))
		return LW_REASON_LOCAL_RANGE;
	*pair = LW_PAIR(here, there);
	if (view->everything)
		path->hint = (struct lw_hint){.end = UINT64_MAX, .access = UINT32_MAX, .pass = worker->passes};
	else if (!look_up(worker, &path->hint, path->segment == 0 ? own : view->ranges, remote, length, access, &there))
		return LW_REASON_REMOTE_RANGE;
	*pair = LW_PAIR(here, there);
	return LW_REASON_NONE;
}
