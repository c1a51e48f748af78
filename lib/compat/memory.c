/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory. The engine keeps the table; here addresses become its handles. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/compat/compat.h"

#define LET_GO_MS 30000 /* how long unregistering waits for the workers */

/* As te_error, for a call whose change the metadata store may refuse, or not answer. */
static int memory_error(int error)
{
	int code = te_error(error);

	switch (error) {
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -ETIMEDOUT:
	case -EPROTO:
	case -EACCES:
	case -EIO:
	case -ENOSPC:
	case -EROFS:
	case -EMSGSIZE:
	case -EMFILE:
	case -ESTALE:
		return TE_ERR_METADATA;
	default:
		return code;
	}
}

/* The same of registering count ranges, for which the engine itself may lack room. */
static int register_error(struct te *te, int error, size_t count)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};

	if (error == -ENOSPC && lw_stats_engine(te->engine, &stats) == 0 &&
	    stats.live_buffers + count > te->max_buffers)
		return te_error(error);
	return memory_error(error);
}

/* A location is a hint: one that the engine has no room for is as good as none. */
static const char *location_of(const char *location)
{
	if (location == NULL || strnlen(location, 64) < 64)
		return location;
	lw_log_line(1, "a location of memory is longer than 63 bytes and counts as unknown (*)");
	return "*";
}

int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
			int remote_accessible)
{
	struct te *te = te_of(engine);
	struct lw_memory memory = {.addr = addr,
				   .length = length,
				   .access = remote_accessible != 0 ? LW_ACCESS_REMOTE : LW_ACCESS_LOCAL,
				   .location = location_of(location)};
	lw_buffer_t id;

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	return register_error(te, lw_memory_register(te->engine, &memory, 1, &id), 1);
}

int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
			     const char *location)
{
	struct te *te = te_of(engine);
	struct lw_memory *list;
	lw_buffer_t *ids;
	int error = -ENOMEM;

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	if (buffer_len == 0)
		return 0;
	if (buffer_list == NULL)
		return te_fail(TE_ERR_INVALID_ARGUMENT, "the list of buffers is NULL");
	list = calloc(buffer_len, sizeof(*list));
	ids = calloc(buffer_len, sizeof(*ids));
	location = location_of(location);
	for (size_t i = 0; list != NULL && i < buffer_len; i++)
		list[i] = (struct lw_memory){.addr = buffer_list[i].addr,
					     .length = buffer_list[i].length,
					     .access = LW_ACCESS_REMOTE,
					     .location = location};
	if (list != NULL && ids != NULL)
		error = lw_memory_register(te->engine, list, buffer_len, ids);
	free(list);
	free(ids);
	return register_error(te, error, buffer_len);
}

/* The buffer that begins at addr. 0; -ENOENT. */
static int find(struct te *te, const void *addr, lw_buffer_t *id)
{
	struct lw_memory_info info = {.addr = NULL};
	int error = lw_memory_find(te->engine, addr, id);

	if (error == 0)
		error = lw_memory_get(te->engine, *id, &info);
	if (error == 0 && info.addr != addr)
		error = -ENOENT;
	return error == -EBADF ? -ENOENT : error; /* taken back between the two calls */
}

static int not_found(struct te *te)
{
	return te_installed(te) ? te_fail(TE_ERR_ADDRESS_NOT_REGISTERED, "no registered range begins at the address")
				: 0;
}

int unregisterLocalMemory(transfer_engine_t engine, void *addr)
{
	return unregisterLocalMemoryBatch(engine, &addr, 1);
}

int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len)
{
	struct te *te = te_of(engine);
	int error, code = 0;
	lw_buffer_t *ids;
	size_t found = 0;

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	if (addr_len == 0)
		return 0;
	if (addr_list == NULL)
		return te_fail(TE_ERR_INVALID_ARGUMENT, "the list of addresses is NULL");
	ids = calloc(addr_len, sizeof(*ids));
	if (ids == NULL)
		return memory_error(-ENOMEM);
	for (size_t i = 0; i < addr_len; i++) {
		error = find(te, addr_list[i], &ids[found]);
		if (error == 0)
			found++;
		else if (code == 0)
			code = error == -ENOENT ? not_found(te) : memory_error(error);
	}
	if (found != 0) {
		error = lw_memory_unregister(te->engine, ids, found, LET_GO_MS);
		/* Stale: another thread took it back meanwhile, or the list names it twice. */
		if (error != 0 && code == 0)
			code = error == -EBADF ? not_found(te) : memory_error(error);
	}
	free(ids);
	return code;
}
