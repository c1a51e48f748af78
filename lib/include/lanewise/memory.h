/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that transfers may touch. Only registered memory is read or written, here and at the peers. */
#ifndef LANEWISE_MEMORY_H
#define LANEWISE_MEMORY_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One buffer to register. */
struct lw_memory {
	void *addr;           /* first byte; not NULL; of a GPU's memory, too, whose runtime the process uses */
	size_t length;        /* bytes, 1 .. 2^47; addr + length must not wrap */
	uint32_t access;      /* enum lw_access, or-ed */
	uint32_t reserved;    /* 0 */
	const char *location; /* "cpu:0", "cuda:1", "segments:<page>:<node>,<node>...", "*" or NULL: to be found out
				 when it is needed; copied; at most 63 bytes */
};

/* Registers count buffers, all or none. Adjacent buffers stay separate; a range that spans several of them without a
 * gap may be transferred in one request. The memory stays the caller's and must stay mapped until it is unregistered.
 * With a metadata store all of them are announced there in one publication, which the call waits for, at most
 * for the setting store_timeout_ms; if the store refuses, none is registered.
 * Any thread. Waits for no peer; a worker may be asked to prepare keys. ids receives count handles.
 * A buffer of a GPU's memory lies in one allocation, which must stay as long as it is registered; the first one of a
 * GPU makes bounce buffers for the workers (settings stage_slots and stage_bytes). 0; -EINVAL NULL, zero count or
 * length, wrap-around, unknown access bits, malformed location; -ETIMEDOUT, -ECONNREFUSED, -EHOSTUNREACH, -ECONNRESET,
 * -EACCES, -EIO, -ENOSPC, -EROFS, -EMSGSIZE, -EPROTO, -EMFILE the store; -ESTALE another engine has taken this one's
 * name there; -EEXIST the range overlaps a registered one, or another of the list; -ENOSPC more than the setting
 * max_buffers; -ENOMEM; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_memory_register(struct lw_engine *engine, const struct lw_memory *list, size_t count, lw_buffer_t *ids);

/* Takes count buffers back. Each is tried; the first error is returned. Requests that use one of them end FAILED with
 * LW_REASON_UNREGISTERED, connections of peers that are inside one are cut. After the call no thread of the engine
 * touches the memory: it may be unmapped at once, on -EBUSY excepted. A metadata store is told in one publication; if
 * it refuses, the call returns its error, the buffers are taken back nevertheless, and the store is told again later.
 * Any thread, not a worker. Blocks until every worker confirmed, at most timeout_ms (0: 5,000), and for the store at
 * most for the setting store_timeout_ms.
 * 0; -EINVAL NULL or zero count; -EBADF stale or foreign handle; -EBUSY a worker did not confirm in time, or a disk
 * or GPU still has the memory (the buffer is not offered any more, but must not be unmapped; call again); -ESHUTDOWN;
 * -EOWNERDEAD. */
LW_API int lw_memory_unregister(struct lw_engine *engine, const lw_buffer_t *ids, size_t count, uint32_t timeout_ms);

/* Finds the buffer that contains addr, be it one that lw_memory_unregister could not take back in its time (-EBUSY).
 * Any thread. Never blocks beyond a short table lock. 0; -EINVAL NULL; -ENOENT none; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_memory_find(struct lw_engine *engine, const void *addr, lw_buffer_t *out);

/* Where the byte at offset of a buffer lies, as a key of the priority matrix: "cpu:0", "cuda:1", of a buffer in parts
 * that of the part; "*" where nobody can tell. What was not said at registration is found out now, from the memory
 * itself. Any thread. Some system calls, waits for nobody. text has room for size bytes, at least 64. 0; -EINVAL;
 * -ERANGE offset is outside of the buffer; -EBADF; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_memory_location(struct lw_engine *engine, lw_buffer_t buffer, uint64_t offset, char *text, size_t size);

/* A registered buffer, as it was given. */
struct lw_memory_info {
	void *addr;
	size_t length;     /* bytes */
	uint32_t access;   /* enum lw_access, or-ed */
	char location[64]; /* "": unknown */
};

/* What was registered as this buffer. Any thread. Never blocks beyond a short table lock.
 * 0; -EINVAL NULL; -EBADF stale or foreign handle; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_memory_get(struct lw_engine *engine, lw_buffer_t buffer, struct lw_memory_info *out);

/* Flags of lw_mem_alloc. */
#define LW_MEM_SMALL_PAGES 1u /* no huge pages, even where some are free */

/* Gives zeroed memory that engines in other processes of this host can map, so that what they read and write in it is
 * one copy and no system call; else it is as good as any other memory. Register it, or parts of it, to offer it. size:
 * bytes, 1 .. 2^47, rounded up to whole pages, which are taken at once: huge ones when the setting hugepages is on,
 * enough are free and size is 2 MiB or more. location: "cpu:N" prefers NUMA node N; NULL or "*": anywhere. The memory
 * is shared with children that are forked. It takes one descriptor. Any thread. Blocks while the kernel clears the
 * pages. 0; -EINVAL NULL, size, unknown flags or location; -ENOMEM; -EMFILE, -ENFILE; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_mem_alloc(struct lw_engine *engine, size_t size, const char *location, uint32_t flags, void **out);

/* Gives memory of lw_mem_alloc back: addr as it came from there. lw_engine_close does it for what is left. The kernel
 * keeps the pages until the last peer that mapped them closes or reopens the segment. Any thread. Never blocks beyond a
 * short table lock and the unmapping. 0; -EINVAL not from lw_mem_alloc of this engine, or freed already; -EBUSY a
 * buffer in it is registered; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_mem_free(struct lw_engine *engine, void *addr);

#ifdef __cplusplus
}
#endif
#endif
