/* SPDX-License-Identifier: Apache-2.0 */
/* Notes: sent by the control thread, one at a time to each peer so that their order is kept, and received into one
 * queue. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/event.h"
#include "lib/log.h"
#include "meta/frame.h"
#include "meta/note.h"

#define NAME_MAX_BYTES 65536u
#define TEXT_MAX_BYTES 524288u
#define OUTBOX_MAX_BYTES ((size_t)64 << 20) /* notes that wait for one peer */

/* Of a note that a caller waits for: WAITING -> SENDING -> DONE, and from the first two to ABANDONED by the caller. */
enum note_state { NOTE_WAITING, NOTE_SENDING, NOTE_DONE, NOTE_ABANDONED };

/* A note on its way out. */
struct lw_pending_note {
	struct lw_ctrl_job job;
	struct lw_pending_note *next; /* in its outbox */
	struct lw_engine *engine;
	struct lw_addrs rpc;
	char peer[LW_NAME_MAX];
	char *body; /* the control thread's, once it has claimed the note; until then the waiting caller's */
	size_t size;
	uint32_t timeout_ms;
	uint64_t end_ns; /* waited: the caller has given it up then. Else: overdue, if the peer does not answer */
	bool send;
	bool waited; /* a caller sleeps on state; whoever comes second frees the note */
	int result;
	_Atomic uint32_t state;
};

/* The notes to one peer, oldest first; the first one is being sent. The control thread's. */
struct lw_outbox {
	struct lw_outbox *next;
	struct lw_pending_note *first, **last;
	size_t bytes; /* of those that wait */
};

static void free_pending(struct lw_pending_note *note)
{
	free(note->body);
	free(note);
}

/* The note is to be sent, or settled. False, and it is freed: its caller has given it up, and took the body. */
static bool claim(struct lw_pending_note *note)
{
	uint32_t waiting = NOTE_WAITING;

	if (!note->waited || atomic_compare_exchange_strong(&note->state, &waiting, NOTE_SENDING))
		return true;
	free(note);
	return false;
}

/* Ends a note that was claimed. */
static void settle(struct lw_pending_note *note, int result)
{
	static struct lw_log_limit limit;

	if (result != 0)
		lw_log_limited(&limit, LW_LOG_WARNING, "a note to %s was not delivered: %s", note->peer,
			       lw_strerror(result));
	note->result = result;
	if (!note->waited || atomic_exchange(&note->state, NOTE_DONE) == NOTE_ABANDONED) {
		free_pending(note);
		return;
	}
	syscall(SYS_futex, &note->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* What the peer's answer says: 0, -ENOBUFS, -EPROTO. */
static int read_answer(const char *body, size_t size)
{
	cJSON *answer = cJSON_ParseWithLength(body, size);
	const cJSON *verdict = cJSON_GetObjectItemCaseSensitive(answer, "notify_msg");
	const cJSON *error = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(answer, "lw"), "error");
	int result = -EPROTO;

	if (cJSON_IsString(verdict) && verdict->valuestring[0] != '\0')
		result = 0;
	else if (cJSON_IsString(error) && strcmp(error->valuestring, "full") == 0)
		result = -ENOBUFS;
	cJSON_Delete(answer);
	return result;
}

static void send_first(struct lw_engine *engine, struct lw_outbox *outbox);

/* The peer does not answer: those whose time is over, or nearly (an eighth is left), are not sent any more. */
static void drop_overdue(struct lw_outbox *outbox)
{
	struct lw_pending_note *note, **link = &outbox->first;
	uint64_t now_ns = lw_now_ns();

	while ((note = *link) != NULL) {
		size_t size = note->size;

		if (now_ns + (uint64_t)note->timeout_ms * 1000000 / 8 < note->end_ns) {
			link = &note->next;
			continue;
		}
		*link = note->next;
		outbox->bytes -= size;
		if (claim(note))
			settle(note, -ETIMEDOUT);
	}
	outbox->last = link;
}

static void note_sent(void *arg, int result, const char *body, size_t size)
{
	struct lw_outbox *outbox = arg;
	struct lw_pending_note *note = outbox->first;
	struct lw_engine *engine = note->engine;

	outbox->first = note->next;
	if (outbox->first == NULL)
		outbox->last = &outbox->first;
	outbox->bytes -= note->size;
	settle(note, result != 0 ? result : read_answer(body, size));
	if (result == -ETIMEDOUT)
		drop_overdue(outbox);
	send_first(engine, outbox);
}

/* Milliseconds that the first note may still take. */
static uint32_t left_ms(const struct lw_pending_note *note)
{
	uint64_t now_ns = lw_now_ns();

	if (!note->waited)
		return note->timeout_ms;
	return note->end_ns > now_ns ? (uint32_t)((note->end_ns - now_ns) / 1000000) + 1 : 1;
}

static void send_first(struct lw_engine *engine, struct lw_outbox *outbox)
{
	struct lw_outbox **link;

	while (outbox->first != NULL) {
		struct lw_pending_note *note = outbox->first, *next = note->next;
		size_t size = note->size;
		int error;

		if (claim(note)) {
			error = lw_ctrl_call_async(engine->ctrl, &note->rpc, LW_FRAME_NOTIFY, note->body, note->size,
						   left_ms(note), note_sent, outbox);
			free(note->body); /* it was copied */
			note->body = NULL;
			if (error == 0)
				return;
			settle(note, error);
		}
		outbox->first = next;
		outbox->bytes -= size;
	}
	for (link = &engine->outboxes; *link != outbox; link = &(*link)->next)
		;
	*link = outbox->next;
	free(outbox);
}

static void note_run(struct lw_ctrl_job *job)
{
	struct lw_pending_note *note = (struct lw_pending_note *)(void *)job;
	struct lw_engine *engine = note->engine;
	struct lw_outbox *outbox;

	if (!note->send) {
		free_pending(note);
		return;
	}
	if (!note->waited)
		note->end_ns = lw_now_ns() + (uint64_t)note->timeout_ms * 1000000;
	for (outbox = engine->outboxes; outbox != NULL; outbox = outbox->next) {
		if (strcmp(outbox->first->peer, note->peer) != 0)
			continue;
		if (outbox->bytes + note->size > OUTBOX_MAX_BYTES) {
			if (claim(note))
				settle(note, -ENOBUFS);
			return;
		}
		*outbox->last = note;
		outbox->last = &note->next;
		outbox->bytes += note->size;
		return;
	}
	outbox = malloc(sizeof(*outbox));
	if (outbox == NULL) {
		if (claim(note))
			settle(note, -ENOMEM);
		return;
	}
	outbox->first = note;
	outbox->last = &note->next;
	outbox->bytes = note->size;
	outbox->next = engine->outboxes;
	engine->outboxes = outbox;
	send_first(engine, outbox);
}

/* A note ready to be posted. */
static int prepare(struct lw_engine *engine, lw_segment_t segment, const struct lw_note *note, uint32_t timeout_ms,
		   struct lw_pending_note **out)
{
	struct lw_pending_note *pending = calloc(1, sizeof(*pending));
	uint64_t incarnation;
	int error;

	if (pending == NULL)
		return lw_fail(-ENOMEM, "no memory for a note");
	error = lw_segment_rpc(engine, segment, &pending->rpc, pending->peer, &incarnation);
	if (error == 0 && incarnation == 0 && !lw_note_is_plain(note))
		error = lw_fail(-EILSEQ, "the note has a NUL byte, and %s is no Lanewise engine: it would cut it there",
				pending->peer);
	if (error != 0)
		goto fail;
	error = lw_note_encode(note, &pending->body);
	if (error != 0) {
		lw_fail(error, "no memory for a note");
		goto fail;
	}
	pending->size = strlen(pending->body);
	pending->engine = engine;
	pending->timeout_ms = timeout_ms;
	pending->send = true;
	pending->job.run = note_run;
	*out = pending;
	return 0;
fail:
	free(pending);
	return error;
}

static int check_note(const struct lw_note *note)
{
	if (note == NULL || (note->name == NULL && note->name_size != 0) ||
	    (note->text == NULL && note->text_size != 0))
		return lw_fail(-EINVAL, "note, its name and its text must not be NULL");
	if (note->name_size > NAME_MAX_BYTES || note->text_size > TEXT_MAX_BYTES)
		return lw_fail(-EMSGSIZE, "a note takes a name of %u bytes and a text of %u at most", NAME_MAX_BYTES,
			       TEXT_MAX_BYTES);
	return 0;
}

int lw_notify(struct lw_engine *engine, lw_segment_t segment, const struct lw_note *note, uint32_t timeout_ms)
{
	struct lw_pending_note *pending;
	uint64_t end_ns;
	uint32_t now;
	char *body;
	int error = check_note(note);

	if (error != 0)
		return error;
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	if (timeout_ms == 0)
		timeout_ms = (uint32_t)engine->config.handshake_timeout_ms;
	error = prepare(engine, segment, note, timeout_ms, &pending);
	if (error != 0)
		goto out;
	pending->waited = true;
	end_ns = lw_now_ns() + (uint64_t)timeout_ms * 1000000;
	pending->end_ns = end_ns;
	body = pending->body;
	lw_ctrl_post(engine->ctrl, &pending->job);
	while ((now = atomic_load(&pending->state)) != NOTE_DONE) {
		uint64_t now_ns = lw_now_ns();
		uint64_t left_ns = end_ns > now_ns ? end_ns - now_ns : 0;
		struct timespec pause = {.tv_sec = (time_t)(left_ns / 1000000000),
					 .tv_nsec = (long)(left_ns % 1000000000)};

		if (left_ns == 0) {
			uint32_t was = now;

			if (!atomic_compare_exchange_strong(&pending->state, &was, NOTE_ABANDONED))
				continue;
			if (now == NOTE_WAITING)
				free(body);
			error = lw_fail(-ETIMEDOUT, "the note was not confirmed in %u ms", timeout_ms);
			goto out;
		}
		syscall(SYS_futex, &pending->state, FUTEX_WAIT_PRIVATE, now, &pause, NULL, 0);
	}
	error = pending->result;
	if (error != 0)
		lw_fail(error, "%s did not take the note: %s", pending->peer, lw_strerror(error));
	free_pending(pending);
out:
	lw_engine_leave(engine);
	return error;
}

int lw_notify_name(struct lw_engine *engine, const char *name, const struct lw_note *note, uint32_t timeout_ms)
{
	uint64_t start_ns = lw_now_ns(), spent_ms;
	lw_segment_t segment;
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	if (timeout_ms == 0)
		timeout_ms = (uint32_t)engine->config.handshake_timeout_ms;
	error = lw_segment_open(engine, name, timeout_ms, &segment);
	if (error == 0) {
		spent_ms = (lw_now_ns() - start_ns) / 1000000;
		error = lw_notify(engine, segment, note, spent_ms < timeout_ms ? timeout_ms - (uint32_t)spent_ms : 1);
		(void)lw_segment_close(engine, segment);
	}
	lw_engine_leave(engine);
	return error;
}

int lw_submit_notify(struct lw_channel *channel, lw_batch_t id, const struct lw_request *requests, size_t count,
		     const struct lw_note *note)
{
	struct lw_pending_note *pending;
	struct lw_engine *engine;
	struct lw_batch *batch;
	int error;

	if (channel == NULL || requests == NULL || count == 0)
		return lw_fail(-EINVAL, "channel and requests must not be NULL, count not 0");
	error = check_note(note);
	if (error != 0)
		return error;
	engine = channel->engine;
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	batch = lw_batch_of(engine, id);
	if (batch == NULL) {
		error = lw_fail(-EBADF, "the batch handle 0x%llx is stale, made up or another engine's",
				(unsigned long long)id);
		goto out;
	}
	error = prepare(engine, requests[0].segment, note, (uint32_t)engine->config.handshake_timeout_ms, &pending);
	if (error != 0)
		goto out;
	error = lw_submit_noted(channel, id, requests, count, pending);
	if (error != 0)
		free_pending(pending);
out:
	lw_engine_leave(engine);
	return error;
}

void lw_notify_batch_ended(struct lw_engine *engine, struct lw_pending_note *note, bool send)
{
	note->send = send;
	lw_ctrl_post(engine->ctrl, &note->job);
}

/* Notes that were received lie in items of the queue. */
static struct lw_note_item *item_of(struct lw_note *note)
{
	return (struct lw_note_item *)(void *)((char *)note - offsetof(struct lw_note_item, note));
}

int lw_notify_receive(struct lw_engine *engine, const char *body, size_t size, char **reply, size_t *reply_size)
{
	static const char taken[] = "{\"name\":\"\",\"notify_msg\":\"success\"}";
	static const char full[] = "{\"lw\":{\"error\":\"full\"},\"name\":\"\",\"notify_msg\":\"\"}";
	struct lw_note_item *item = NULL;
	const char *answer = full;
	struct lw_note *note;
	int error = lw_note_decode(body, size, offsetof(struct lw_note_item, note), &note);

	if (error != 0)
		return error;
	item = item_of(note);
	item->next = NULL;
	pthread_mutex_lock(&engine->notes_lock);
	if (engine->notes_count < engine->config.notify_queue) {
		*engine->notes_tail = item;
		engine->notes_tail = &item->next;
		engine->notes_count++;
		lw_event_signal(engine);
		item = NULL;
		answer = taken;
	}
	pthread_mutex_unlock(&engine->notes_lock);
	free(item);
	*reply = strdup(answer);
	*reply_size = strlen(answer);
	return *reply != NULL ? 0 : -ENOMEM;
}

int lw_note_poll(struct lw_engine *engine, struct lw_note **out)
{
	struct lw_note_item *item;
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->notes_lock);
	item = engine->notes_head;
	if (item != NULL) {
		engine->notes_head = item->next;
		if (engine->notes_head == NULL)
			engine->notes_tail = &engine->notes_head;
		engine->notes_count--;
		lw_event_signal(engine);
	}
	pthread_mutex_unlock(&engine->notes_lock);
	lw_engine_leave(engine);
	if (item == NULL)
		return 0;
	*out = &item->note;
	return 1;
}

void lw_note_free(struct lw_note *note)
{
	if (note != NULL)
		free(item_of(note));
}

void lw_notify_fini(struct lw_engine *engine)
{
	struct lw_note_item *item;

	while ((item = engine->notes_head) != NULL) {
		engine->notes_head = item->next;
		free(item);
	}
	engine->notes_tail = &engine->notes_head;
	engine->notes_count = 0;
}
