/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of peers: named address spaces that requests point into. */
#ifndef LANEWISE_SEGMENT_H
#define LANEWISE_SEGMENT_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One offered range of a segment. */
struct lw_segment_range {
	uint64_t addr;   /* in the peer's address space, of files from 0 on: what lw_request.offset takes */
	uint64_t length; /* bytes */
	uint32_t access; /* enum lw_access of the peer's buffer; a peer that does not say offers LW_ACCESS_REMOTE */
	uint32_t reserved;
};

/* Opens the segment of the engine named name: "host:port" or "[v6]:port" where peers ask each other (a missing port is
 * 12001), any text where they are found in a metadata store; leading '/' are ignored. Opening a name again asks the
 * peer again: the same peer gives the same handle with its buffers refreshed and one more reference; a restarted peer
 * gives a new handle, and requests through the old one fail with LW_REASON_RESTARTED. The engine's own name gives
 * LW_SEGMENT_LOCAL. "null://" gives a segment of the null driver, which completes every request without moving a byte.
 * A segment of files is named as in the store (lanewise/file.h), or "file:/PATH[,/PATH...]", with "?access=r" behind it
 * for reading alone; "%2C", "%3F" and "%25" stand for ',', '?' and '%' in a path. Its offsets count from 0 through all
 * files, which have to be there: what open(2) and stat(2) say is returned, too, and -ENODATA for an empty file.
 * "nvme+tcp://ADDRESS[:PORT]/SUBSYSTEM-NQN[?nsid=N]" and "nvme+rdma://..." are a namespace of an NVMe over Fabrics
 * target, to which this host is connected with the open, if it is not yet (as root), and no more with the last close.
 * Any thread. Blocks for at most timeout_ms (0: the setting handshake_timeout_ms). 0; -EINVAL NULL, empty or malformed
 * name; -EHOSTUNREACH, -ECONNREFUSED, -ETIMEDOUT no answer; -ENOENT the store knows no such name; -EACCES, -EIO,
 * -ENOSPC, -EROFS, -EMSGSIZE, -EMFILE the store refuses; -ECONNRESET; -EPROTO the answer, or the store's document, is
 * no valid descriptor, or another name's; -ESTALE the store's documents are not of one engine; -EPROTONOSUPPORT its
 * tcp_checksum or tcp_secret is not as ours; -ENOTSUP no driver for what the peer offers; -ENOSPC more than the setting
 * max_segments; -ENOMEM; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_open(struct lw_engine *engine, const char *name, uint32_t timeout_ms, lw_segment_t *out);

/* The same, for requests that one driver is to carry and no other: "tcp", "shm", "rdma" or what else the setting
 * drivers lists. It is a segment beside the one that lw_segment_open gives, with lanes of its own, so the path of a
 * request is chosen by the handle that it names. The engine's own name gives LW_SEGMENT_LOCAL, if that is the driver
 * which copies there. Any thread. Blocks for at most timeout_ms (0: the setting handshake_timeout_ms). As
 * lw_segment_open, and -ENOTSUP also if the peer, or the engine itself, is not reached by that driver; -EINVAL also for
 * a driver that there is not, or that is off. */
LW_API int lw_segment_open_via(struct lw_engine *engine, const char *name, const char *driver, uint32_t timeout_ms,
			       lw_segment_t *out);

/* Gives one reference back. With the last one, requests end CANCELED with LW_REASON_SEGMENT_CLOSED; what is on the wire
 * either completes or does so within 1 s. Then the lanes are closed. Any thread. Never blocks. 0 (also for
 * LW_SEGMENT_LOCAL); -EBADF; -EINVAL NULL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_close(struct lw_engine *engine, lw_segment_t segment);

/* Copies at most max ranges of the segment's offer as last seen, in address order. Any thread. Never blocks.
 * The number of ranges the segment has (it may exceed max; 0 for "null://", which takes any address); -EBADF; -EINVAL;
 * -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_ranges(struct lw_engine *engine, lw_segment_t segment, struct lw_segment_range *out, size_t max);

/* Looks now what the segment's peer offers. It is done by itself, too: when a request points outside of what was seen
 * last, or the peer can't be reached. Any thread. Blocks for at most timeout_ms (0: the setting handshake_timeout_ms).
 * 0 (also for LW_SEGMENT_LOCAL); -ESTALE the peer was restarted: open its name again; -ENOENT the metadata store does
 * not know it any more; -ENOTSUP nobody is there (null driver); others as lw_segment_open; -EBADF; -EINVAL; -ESHUTDOWN;
 * -EOWNERDEAD. */
LW_API int lw_segment_refresh(struct lw_engine *engine, lw_segment_t segment, uint32_t timeout_ms);

/* Removes from the metadata store what a dead engine of that name left there. (With leases it vanishes by itself.) The
 * engine is asked first, whether it lives. Any thread. Blocks for at most timeout_ms (0: the setting store_timeout_ms).
 * 0; -EBUSY it answers; -ENOENT there is no such name; -ESTALE another life of it has taken the name meanwhile;
 * -ENOTSUP there is no store; errors of the store as lw_segment_open; -EINVAL; -ENOMEM; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_purge(struct lw_engine *engine, const char *name, uint32_t timeout_ms);

/* Asks the peer behind the segment whether it lives. Any thread. Blocks for at most timeout_ms (0: the setting).
 * 0 it answered; -ENOTSUP nobody is there (null driver); -EHOSTUNREACH, -ECONNREFUSED, -ETIMEDOUT, -EPROTO; -EBADF;
 * -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_probe(struct lw_engine *engine, lw_segment_t segment, uint32_t timeout_ms);

/* What is known of a segment, without asking its peer, as a JSON object, keys sorted, no blanks:
 *   {"buffers":[{"access","addr","length"}],"data":["address:port"],"driver","handshake":["address:port"],"incarnation",
 *   "name"}
 * access is "r", "w", "rw" or ""; the own segment lists what is not offered, too.
 * incarnation is a text of 16 hexadecimal digits, "" where the peer told none. The caller frees *out with free().
 * Any thread. Never blocks beyond a short table lock. 0; -EBADF; -EINVAL; -ENOMEM; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_json(struct lw_engine *engine, lw_segment_t segment, char **out);

/* Asks for the end of everything under way to the segment (state CANCELED). See lw_batch_cancel. Any thread. Never
 * blocks. 0; -EAGAIN too many cancels at once, call again; -EBADF; -EINVAL; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_segment_cancel(struct lw_engine *engine, lw_segment_t segment);

#ifdef __cplusplus
}
#endif
#endif
