/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: the engine's, with Mooncake's codes. Nothing here locks, allocates or calls the system once a thread has
 * submitted its longest list, unless the ring is full. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/compat/compat.h"

#define KEPT_MAX 65536 /* requests that a thread keeps room for */
#define TIMEOUT_MAX_MS 86400000u
#define YIELDS 64 /* before a submitter sleeps between its tries */
#define TRY_US 50

/* Where a thread puts its requests in the engine's form. */
struct form {
	struct lw_request *requests;
	size_t room;
};
static _Thread_local struct form form;
static pthread_key_t form_key;
static pthread_once_t form_once = PTHREAD_ONCE_INIT;
static int form_error;

static void form_free(void *arg)
{
	struct form *own = arg;

	free(own->requests);
	own->requests = NULL;
	own->room = 0;
}

static void form_init(void)
{
	form_error = pthread_key_create(&form_key, form_free);
}

/* Room for count requests; NULL: no memory. Longer lists than are kept: the caller frees. */
static struct lw_request *form_take(size_t count)
{
	size_t room = 256;
	void *memory;

	if (count <= form.room)
		return form.requests;
	if (count > LW_BATCH_MAX_TASKS)
		return NULL;
	pthread_once(&form_once, form_init);
	if (count > KEPT_MAX || form_error != 0)
		return malloc(count * sizeof(*form.requests));
	while (room < count)
		room *= 2;
	memory = malloc(room * sizeof(*form.requests));
	if (memory == NULL)
		return NULL;
	if (pthread_setspecific(form_key, &form) != 0) {
		free(memory);
		return NULL;
	}
	free(form.requests);
	form.requests = memory;
	form.room = room;
	return memory;
}

static void form_give(struct lw_request *requests)
{
	if (requests != form.requests)
		free(requests);
}

batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size)
{
	static _Atomic uint64_t warn_ns;
	struct te *te = te_of(engine);
	struct te_channel channel;
	lw_batch_t batch = 0;
	char line[400];
	int error;

	if (te == NULL)
		return INVALID_BATCH;
	error = te_channel_take(te, &channel);
	if (error == 0) {
		error = lw_batch_alloc(channel.channel, batch_size <= UINT32_MAX ? (uint32_t)batch_size : UINT32_MAX, 0,
				       NULL, &batch);
		te_channel_give(&channel);
	}
	if (error == 0)
		return batch;
	te_status(error);
	snprintf(line, sizeof(line), "a batch for %zu requests could not be had: %s", batch_size, lw_last_error());
	te_warn(&warn_ns, line);
	return INVALID_BATCH;
}

/* A deadline that nobody chose must not end long transfers: it grows by the time that they take at 1 MiB/s. */
static uint32_t timeout_of(const struct te *te, const struct transfer_request *entries, size_t count)
{
	uint64_t kib = 0;

	if (te->timeout_ms == 0)
		return 0;
	for (size_t i = 0; i < count && kib < TIMEOUT_MAX_MS; i++)
		kib += entries[i].length / 1024;
	kib += te->timeout_ms;
	return kib < TIMEOUT_MAX_MS ? (uint32_t)kib : TIMEOUT_MAX_MS;
}

/* What can't be said in the engine's form becomes something that it refuses: its checks have the right order. */
static void convert(struct te *te, struct lw_request *out, const struct transfer_request *entries, size_t count)
{
	uint32_t timeout_ms = timeout_of(te, entries, count);

	for (size_t i = 0; i < count; i++)
		out[i] = (struct lw_request){
			.local = entries[i].source,
			.segment = te_segment(te, entries[i].target_id),
			.offset = entries[i].target_offset,
			.length = entries[i].length,
			.timeout_ms = timeout_ms,
			.op = entries[i].opcode == OPCODE_READ || entries[i].opcode == OPCODE_WRITE
				      ? (uint8_t)entries[i].opcode
				      : UINT8_MAX,
		};
}

/* Submits, and tries again while the ring is full. */
static int submit(struct te *te, struct lw_channel *channel, lw_batch_t batch, const struct lw_request *requests,
		  size_t count, const struct lw_note *note)
{
	uint64_t end_ns = 0;
	uint32_t tries = 0;
	int error;

	for (;;) {
		error = note != NULL ? lw_submit_notify(channel, batch, requests, count, note)
				     : lw_submit(channel, batch, requests, count);
		if (error != -EAGAIN)
			return error;
		if (end_ns == 0)
			end_ns = te_now_ns() + (uint64_t)te->submit_wait_ms * 1000000;
		else if (te_now_ns() >= end_ns)
			return error;
		if (te->caller_driven)
			lw_engine_progress(te->engine);
		else if (tries++ < YIELDS)
			sched_yield();
		else
			usleep(TRY_US);
	}
}

static int submit_entries(transfer_engine_t engine, batch_id_t batch, const struct transfer_request *entries,
			  size_t count, const struct lw_note *note)
{
	struct te *te = te_of(engine);
	struct lw_batch_status status;
	struct te_channel channel;
	struct lw_request *requests;
	int error;

	if (te == NULL)
		return TE_STATUS_INVALID_ARGUMENT;
	if (entries == NULL && count != 0)
		return te_fail(TE_STATUS_INVALID_ARGUMENT, "the list of requests is NULL");
	if (!te_installed(te) && count != 0) {
		error = lw_batch_status(te->engine, batch, &status);
		return error != 0 ? te_status(error)
				  : te_fail(TE_STATUS_NOT_SUPPORTED_TRANSPORT,
					    "no transport is installed; call installTransport");
	}
	if (count > LW_BATCH_MAX_TASKS)
		return te_fail(TE_STATUS_TOO_MANY_REQUESTS, "more requests than any batch has room for");
	requests = form_take(count);
	if (requests == NULL && count != 0)
		return te_fail(TE_STATUS_MEMORY, "no memory for the requests");
	convert(te, requests, entries, count);
	error = te_channel_take(te, &channel);
	if (error == 0) {
		error = submit(te, channel.channel, batch, requests, count, note);
		te_channel_give(&channel);
	}
	form_give(requests);
	return te_status(error);
}

int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count)
{
	return submit_entries(engine, batch_id, entries, count, NULL);
}

int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
			     size_t count, notify_msg_t notify_msg)
{
	struct lw_note note = {.name = notify_msg.name, .text = notify_msg.msg};

	if (count == 0 || note.name == NULL || note.text == NULL)
		return te_fail(TE_STATUS_INVALID_ARGUMENT,
			       "there is no request, or a text of the notification is NULL");
	note.name_size = strlen(note.name);
	note.text_size = strlen(note.text);
	return submit_entries(engine, batch_id, entries, count, &note);
}

static int state_of(const struct te *te, const struct lw_task_status *task)
{
	switch (task->state) {
	case LW_PENDING:
		return STATUS_WAITING;
	case LW_COMPLETED:
		return STATUS_COMPLETED;
	case LW_CANCELED:
		return task->reason == LW_REASON_CANCELED ? STATUS_CANCELED : STATUS_FAILED;
	case LW_TIMEOUT:
		return te->tells_timeout ? STATUS_TIMEOUT : STATUS_FAILED;
	default:
		return STATUS_FAILED;
	}
}

/* In caller mode nothing moves unless somebody drives. */
static void drive(struct te *te)
{
	if (te->caller_driven)
		lw_engine_progress(te->engine);
}

int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status *status)
{
	struct te *te = te_of(engine);
	struct lw_task_status task;
	int error;

	if (te == NULL)
		return TE_STATUS_INVALID_ARGUMENT;
	if (status == NULL)
		return te_fail(TE_STATUS_INVALID_ARGUMENT, "status is NULL");
	drive(te);
	error = lw_task_status(te->engine, batch_id, task_id < UINT32_MAX ? (uint32_t)task_id : UINT32_MAX, &task);
	if (error != 0)
		return te_status(error);
	status->status = state_of(te, &task);
	status->transferred_bytes = task.bytes;
	return TE_STATUS_OK;
}

static void tell_batch(const struct lw_batch_status *batch, struct transfer_status *status)
{
	status->status = batch->state == LW_PENDING     ? STATUS_WAITING
			 : batch->state == LW_COMPLETED ? STATUS_COMPLETED
							: STATUS_FAILED;
	status->transferred_bytes = batch->bytes;
}

int getBatchTransferStatus(transfer_engine_t engine, batch_id_t batch_id, struct transfer_status *status)
{
	struct te *te = te_of(engine);
	struct lw_batch_status batch;
	int error;

	if (te == NULL)
		return TE_STATUS_INVALID_ARGUMENT;
	if (status == NULL)
		return te_fail(TE_STATUS_INVALID_ARGUMENT, "status is NULL");
	drive(te);
	error = lw_batch_status(te->engine, batch_id, &batch);
	if (error == 0)
		tell_batch(&batch, status);
	return te_status(error);
}

int waitBatchTransfer(transfer_engine_t engine, batch_id_t batch_id, uint32_t timeout_ms,
		      struct transfer_status *status)
{
	struct te *te = te_of(engine);
	struct lw_batch_status batch;
	int error;

	if (te == NULL)
		return TE_STATUS_INVALID_ARGUMENT;
	if (status == NULL)
		return te_fail(TE_STATUS_INVALID_ARGUMENT, "status is NULL");
	error = lw_batch_wait(te->engine, batch_id, timeout_ms, &batch);
	if (error == 0)
		tell_batch(&batch, status);
	return te_status(error);
}

int cancelBatchTransfer(transfer_engine_t engine, batch_id_t batch_id)
{
	struct te *te = te_of(engine);

	return te != NULL ? te_status(lw_batch_cancel(te->engine, batch_id)) : TE_STATUS_INVALID_ARGUMENT;
}

int getTransferReason(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, char *buf_out, size_t buf_len)
{
	struct te *te = te_of(engine);
	int length;

	if (te == NULL)
		return TE_STATUS_INVALID_ARGUMENT;
	if (buf_out == NULL || buf_len == 0)
		return te_fail(TE_STATUS_INVALID_ARGUMENT, "there is no buffer for the reason");
	length = lw_task_reason(te->engine, batch_id, task_id < UINT32_MAX ? (uint32_t)task_id : UINT32_MAX, buf_out,
				buf_len);
	if (length < 0)
		return te_status(length);
	return te_fits(length, buf_len) == 0 ? TE_STATUS_OK : TE_STATUS_INVALID_ARGUMENT;
}

int freeBatchID(transfer_engine_t engine, batch_id_t batch_id)
{
	struct te *te = te_of(engine);

	return te != NULL ? te_status(lw_batch_free(te->engine, batch_id)) : TE_STATUS_INVALID_ARGUMENT;
}
