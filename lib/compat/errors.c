/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of Mooncake's for errno values, and the sentence behind a failure. */
#include <errno.h>
#include <stdlib.h>

#include "lib/compat/compat.h"

/* Of this thread: the text of ours that is newer than the engine's, or NULL. */
static _Thread_local const char *own_text;

int te_fail(int code, const char *text)
{
	own_text = text;
	return code;
}

int te_error(int error)
{
	if (error == 0)
		return 0;
	own_text = NULL;
	switch (error) {
	case -EEXIST:
		return TE_ERR_ADDRESS_OVERLAPPED;
	case -ENOENT:
		return TE_ERR_ADDRESS_NOT_REGISTERED;
	case -EBUSY:
		return TE_ERR_BATCH_BUSY;
	case -EAGAIN:
		return TE_ERR_TOO_MANY_REQUESTS;
	case -ENOSPC:
	case -ENOMEM:
	case -ENOBUFS:
		return TE_ERR_MEMORY;
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -ETIMEDOUT:
		return TE_ERR_SOCKET;
	case -EPROTO:
		return TE_ERR_MALFORMED_JSON;
	case -ENOTSUP:
		return TE_ERR_NOT_IMPLEMENTED;
	default:
		return TE_ERR_INVALID_ARGUMENT;
	}
}

int te_status(int error)
{
	if (error == 0)
		return TE_STATUS_OK;
	own_text = NULL;
	switch (error) {
	case -ENOSPC:
	case -EAGAIN:
		return TE_STATUS_TOO_MANY_REQUESTS;
	case -EBUSY:
	case -EALREADY:
	case -ETIMEDOUT:
		return TE_STATUS_BATCH_BUSY;
	case -ENOMEM:
		return TE_STATUS_MEMORY;
	default:
		return TE_STATUS_INVALID_ARGUMENT;
	}
}

void te_warn(_Atomic uint64_t *next_ns, const char *line)
{
	uint64_t next = atomic_load_explicit(next_ns, memory_order_relaxed), now = te_now_ns();

	if (now >= next && atomic_compare_exchange_strong(next_ns, &next, now + 1000000000u))
		lw_log_line(1, line);
}

int te_fits(int length, size_t size)
{
	if (length >= 0 && (size_t)length < size)
		return 0;
	return te_fail(-1, "the text is longer than the buffer and was cut off");
}

const char *getTransferEngineError(void)
{
	return own_text != NULL ? own_text : lw_last_error();
}

void freeTransferEngineString(char *text)
{
	free(text);
}
