/* SPDX-License-Identifier: Apache-2.0 */
/* Why something failed: the errno values that calls return, the reasons that tasks end with, and sentences for both. */
#ifndef LANEWISE_ERROR_H
#define LANEWISE_ERROR_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, errno of the task, sentence). One table gives the enumeration, the task's errno and the text. */
#define LW_REASONS(X)                                                                                                  \
	X(NONE, 0, "no error")                                                                                         \
	X(LOCAL_RANGE, EFAULT, "the local range is not covered by registered buffers; register it first")              \
	X(REMOTE_RANGE, EACCES, "the peer has no buffer registered and offered for this operation over that range")    \
	X(REFUSED, EACCES, "the peer refused the range: not registered there, or not offered to peers")                \
	X(UNREACHABLE, EHOSTUNREACH, "no connection to the peer could be made; is it running and reachable?")          \
	X(RESET, ECONNRESET, "the peer closed or reset the connection while the request was under way")                \
	X(PROTOCOL, EPROTO, "the peer answered with bytes that are not the protocol")                                  \
	X(RESTARTED, ESTALE, "the peer was restarted; open its segment again")                                         \
	X(TIMEOUT, ETIMEDOUT, "the deadline passed before the peer confirmed the transfer")                            \
	X(CANCELED, ECANCELED, "canceled by the application")                                                          \
	X(SEGMENT_CLOSED, ECANCELED, "the segment was closed while the request was under way")                         \
	X(UNREGISTERED, ECANCELED, "a buffer of the request was unregistered while the request was under way")         \
	X(SHUTDOWN, ESHUTDOWN, "the engine was closed while the request was under way")                                \
	X(NO_DRIVER, ENOTSUP, "no driver of this engine speaks a protocol that the segment offers")                    \
	X(FAULT, EFAULT, "the kernel could not access the local memory; was it unmapped while registered?")            \
	X(RESOURCES, ENOBUFS, "the system ran out of descriptors, ports or memory for a new lane")                     \
	X(OPTIONS, EPROTONOSUPPORT, "the peer's tcp_checksum or tcp_secret is set otherwise; set both sides alike")    \
	X(UNAUTHORIZED, EACCES, "the two sides do not have the same tcp_secret")                                       \
	X(CORRUPT, EBADMSG,                                                                                            \
	  "the checksum differs: the bytes were changed on their way, or in memory while they moved")                  \
	X(FILE_IO, EIO, "reading or writing the file or device failed; see the system's log")                          \
	X(FILE_FULL, ENOSPC, "no space is left for the file, or a quota or limit of its size is reached")              \
	X(FILE_SHORT, ENODATA, "the file ends before the range; it is shorter than its segment says")                  \
	X(FILE_READ_ONLY, EROFS, "the file can't be written here: it was opened for reading alone")                    \
	X(DEVICE, EIO, "copying between the host and the memory of a GPU failed, here or at the peer")

enum lw_reason {
#define X(name, err, text) LW_REASON_##name,
	LW_REASONS(X)
#undef X
		LW_REASON_COUNT
};

/* A sentence for a negative errno value that a lw_ function returned ("the handle is stale ..."). Static storage. Any
 * thread. Never blocks; unknown values give a general sentence. */
LW_API const char *lw_strerror(int error);

/* A sentence for a task's reason (enum lw_reason). Static storage. Any thread. Never blocks. */
LW_API const char *lw_reason_string(int reason);

/* What the last failing lw_ call of this thread had to say: object, cause, remedy. "" when none failed yet. Valid until
 * the next failing call of this thread. Never blocks. The data path (lw_submit, lw_channel_poll, lw_batch_status,
 * lw_task_status) sets it to a constant sentence. */
LW_API const char *lw_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
