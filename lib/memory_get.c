/* SPDX-License-Identifier: Apache-2.0 */
/* What was registered as a buffer, and where it lies. */
#include <errno.h>
#include <string.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "meta/location.h"

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

int lw_memory_location(struct lw_engine *engine, lw_buffer_t buffer, uint64_t offset, char *text, size_t size)
{
	struct lw_location location;
	struct lw_memory_info info;
	char why[160];
	int error;

	if (text == NULL || size < LW_LOCATION_TEXT)
		return lw_fail(-EINVAL, "text needs room for %d bytes", LW_LOCATION_TEXT);
	error = lw_memory_get(engine, buffer, &info);
	if (error != 0)
		return error;
	if (offset >= info.length)
		return lw_fail(-ERANGE, "offset %llu is outside of a buffer of %zu bytes", (unsigned long long)offset,
			       info.length);
	if (info.location[0] == '\0' || strcmp(info.location, "*") == 0)
		(void)lw_location_of(info.addr, info.length, NULL, info.location, sizeof(info.location));
	error = lw_location_parse(info.location, &location, why, sizeof(why)); /* it was checked at registration */
	if (error == 0)
		lw_location_at(&location, info.length, offset, text, size);
	return error;
}
