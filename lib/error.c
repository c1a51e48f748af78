/* SPDX-License-Identifier: Apache-2.0 */
#define LW_ERROR_SOURCE
#include "lib/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define TEXT_BYTES 512 /* longest sentence with its NUL */

/* X(errno, sentence): every value that the public headers name, with what the caller can do. */
#define ERRORS(X)                                                                                                      \
	X(EINVAL, "an argument or a setting is wrong; lw_last_error() names it")                                       \
	X(EBADF, "the handle is stale, made up or of another engine; it was freed or closed before")                   \
	X(EAGAIN, "full for the moment, nothing was taken; poll completions and call again")                           \
	X(EBUSY, "still in use; wait for what is pending and call again")                                              \
	X(EALREADY, "the batch has a notification waiting already; wait for the batch first")                          \
	X(EEXIST, "the range overlaps a registered buffer; unregister that one first")                                 \
	X(ENOENT, "not found; check the name, the address or the path")                                                \
	X(ENOSPC, "a configured limit is reached; give something back, or raise the setting that names the limit")     \
	X(ENOBUFS, "no room left in a slab or a queue; free batches, or let the peer poll its notifications")          \
	X(ENOMEM, "out of memory; free some, or lower the sizes in the settings")                                      \
	X(EMFILE, "no file descriptor is free; raise the limit (ulimit -n) or close some")                             \
	X(ENFILE, "too many engines or files are open; close some first")                                              \
	X(EACCES, "not permitted; check file permissions, or what the peer offers")                                    \
	X(ENODATA, "the file ends before; check its size, and what its segment says")                                  \
	X(EROFS, "it can only be read here; check how the file system is mounted, or the store's role")                \
	X(EIO, "reading or writing failed in the system; see the system's log")                                        \
	X(EADDRINUSE, "no port is free in the range; widen port_min to port_max or close other listeners")             \
	X(EADDRNOTAVAIL, "the address is not one of this host; choose one that is, or name none")                      \
	X(ECONNREFUSED, "nobody listens there; start the peer, and check its name and port")                           \
	X(ECONNRESET, "the peer closed the connection; it may have ended: open its segment again")                     \
	X(EHOSTUNREACH, "the peer can't be reached; check its name, the network and the firewall")                     \
	X(ETIMEDOUT, "no answer in time; check that the peer runs, or allow more time")                                \
	X(EPROTO, "the answer is not the protocol; is another kind of program listening there?")                       \
	X(EPROTONOSUPPORT, "the peer is set up otherwise; set tcp_checksum and tcp_secret alike on both sides")        \
	X(EBADMSG, "the checksum differs; send again, and look for who changes the bytes if it happens often")         \
	X(ENOTSUP, "no driver of this engine can do this; see `lwinfo` for the drivers and why some are off")          \
	X(EMSGSIZE, "the message is too long; send less at once")                                                      \
	X(EILSEQ, "the text has a NUL byte inside; encode it first")                                                   \
	X(ENAMETOOLONG, "the name is too long; choose a shorter one")                                                  \
	X(ERANGE, "the batch has no task of that number; tasks count from 0 in the order of submission")               \
	X(EFAULT, "the memory can't be accessed, or is not registered; register it, and keep it mapped")               \
	X(ESTALE, "the peer was restarted; open its segment again")                                                    \
	X(ECANCELED, "canceled before it ended; submit it again if it is still wanted")                                \
	X(ESHUTDOWN, "the engine is closed or closing; open another one")                                              \
	X(EOWNERDEAD, "this process was forked from the engine's owner; open an engine of its own, or exec first")

static _Thread_local char last_text[TEXT_BYTES];
static _Thread_local const char *last_error;

const char *lw_strerror(int error)
{
	switch (error) {
	case 0:
		return "no error";
#define X(name, text)                                                                                                  \
	case -name:                                                                                                    \
		return text;
		ERRORS(X)
#undef X
	default:
		return "not an error value of Lanewise; lw_last_error() may say more";
	}
}

const char *lw_reason_string(int reason)
{
	static const char *const texts[] = {
#define X(name, err, text) [LW_REASON_##name] = text,
		LW_REASONS(X)
#undef X
	};

	if (reason < 0 || reason >= LW_REASON_COUNT)
		return "not a reason of Lanewise";
	return texts[reason];
}

int lw_reason_errno(int reason)
{
	static const int errors[] = {
#define X(name, err, text) [LW_REASON_##name] = err,
		LW_REASONS(X)
#undef X
	};

	if (reason < 0 || reason >= LW_REASON_COUNT)
		return -EINVAL;
	return -errors[reason];
}

const char *lw_last_error(void)
{
	return last_error != NULL ? last_error : "";
}

int lw_fail(int error, const char *format, ...)
{
	int saved = errno;
	char text[TEXT_BYTES]; /* so that an argument may be the last sentence itself */
	va_list args;

	va_start(args, format);
	if (vsnprintf(text, sizeof(text), format, args) < 0)
		text[0] = '\0';
	va_end(args);
	snprintf(last_text, sizeof(last_text), "%s", text);
	last_error = last_text;
	errno = saved;
	return error;
}

int lw_fail_static(int error, const char *text)
{
	last_error = text;
	return error;
}
