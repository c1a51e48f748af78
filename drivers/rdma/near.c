/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices are near which memory: rows of a priority matrix as bits of devices, found by their names, and the
 * lanes of a path that follow from both ends of a slice. */
#include <string.h>

#include "drivers/rdma/worker.h"
#include "lib/engine.h"

uint64_t rdma_near(const struct lw_matrix *matrix, const char *location, const char *(*name)(const void *of, size_t i),
		   const void *of, size_t count)
{
	struct lw_matrix_row row;
	uint64_t near = 0;

	if (matrix == NULL || matrix->row_count == 0 || location == NULL || location[0] == '\0' ||
	    strcmp(location, "*") == 0)
		return UINT64_MAX;
	lw_matrix_find(matrix, location, &row);
	for (size_t i = 0; i < count && i < 64; i++)
		for (uint16_t k = 0; k < row.preferred; k++)
			if (strcmp(matrix->device[row.device[k]], name(of, i)) == 0)
				near |= UINT64_C(1) << i;
	return near != 0 ? near : UINT64_MAX;
}

/* Of our devices, for memory of ours. */
static uint64_t near_here(const struct rdma_engine *rdma, uint64_t addr)
{
	const struct lw_range *range =
		lw_rangemap_find(atomic_load_explicit(&rdma->engine->memory, memory_order_acquire), addr);
	const struct rdma_buffer *buffer = NULL;

	if (range != NULL)
		buffer = atomic_load_explicit(&rdma->buffers[range->tag], memory_order_acquire);
	return buffer != NULL ? buffer->near : UINT64_MAX;
}

static bool has(uint64_t near, uint32_t device)
{
	return device >= 64 || (near >> device & 1) != 0;
}

uint32_t rdma_nearest(const struct lw_path *path, uint64_t local, uint64_t remote)
{
	const struct rdma_engine *rdma = path->lane[0]->worker->engine->driver_context[path->lane[0]->driver];
	const struct lw_view *view = lw_path_view(path->lane[0]->worker, path);
	const struct rdma_reach *reach = lw_view_peer(view, rdma->driver);
	uint64_t here = near_here(rdma, local),
		 there = reach != NULL ? rdma_reach_near(reach, view, remote) : UINT64_MAX;
	uint32_t lanes[3] = {0}; /* by the ends that are far */

	if (here == UINT64_MAX && there == UINT64_MAX)
		return UINT32_MAX;
	for (uint32_t i = 0; i < path->lanes; i++) {
		const struct rdma_lane *own = rdma_own(path->lane[i]);

		if (lw_lane_state(path->lane[i]) == LW_LANE_UP)
			lanes[!has(here, own->qp->device->index) + !has(there, own->there)] |= UINT32_C(1) << i;
	}
	return lanes[0] != 0 ? lanes[0] : lanes[1] != 0 ? lanes[1] : lanes[2];
}
