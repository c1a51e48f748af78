/* SPDX-License-Identifier: Apache-2.0 */
/* What was registered as a buffer. */
#include <errno.h>
#include <string.h>

#include "lib/engine.h"
#include "lib/error.h"

int lw_memory_get(struct lw_engine *engine, lw_buffer_t buffer, struct lw_memory_info *out)
{
	uint32_t index = (uint32_t)buffer & LW_HANDLE_INDEX_MASK;
	const struct lw_buffer_slot *slot;
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->lock);
	slot = index < engine->buffers_used ? &engine->buffers[index] : NULL;
	if (slot == NULL || ((uint32_t)buffer >> LW_HANDLE_INDEX_BITS) != engine->tag ||
	    slot->gen != (uint32_t)(buffer >> 32) || (slot->gen & 1) == 0) {
		error = lw_fail(-EBADF, "the buffer handle 0x%llx is stale, made up or another engine's",
				(unsigned long long)buffer);
	} else {
		out->addr = (void *)(uintptr_t)slot->addr;
		out->length = slot->length;
		out->access = slot->access;
		memcpy(out->location, slot->location, sizeof(out->location));
	}
	pthread_mutex_unlock(&engine->lock);
	lw_engine_leave(engine);
	return error;
}
