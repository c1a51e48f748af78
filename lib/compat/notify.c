/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications in and out, and whether a peer lives. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/compat/compat.h"

/* Moves a note into an entry of the caller's array. False: no memory, nothing changed. */
static bool copy(const struct lw_note *note, notify_msg_t *out)
{
	char *name = strndup(note->name, note->name_size), *msg = strndup(note->text, note->text_size);

	if (name == NULL || msg == NULL) {
		free(name);
		free(msg);
		return false;
	}
	*out = (notify_msg_t){.name = name, .msg = msg};
	return true;
}

notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size)
{
	struct te *te = te_of(engine);
	notify_msg_t *list = NULL, *grown;
	size_t count = 0, room = 0;
	struct lw_note *note;

	if (size == NULL) {
		te_fail(-1, "size is NULL");
		return NULL;
	}
	*size = 0;
	if (te == NULL)
		return NULL;
	while (count < INT_MAX) {
		if (count == room) { /* before a note is taken: it would be lost */
			room = room != 0 ? room * 2 : 16;
			grown = realloc(list, room * sizeof(*list));
			if (grown == NULL)
				break;
			list = grown;
		}
		if (lw_note_poll(te->engine, &note) != 1)
			break;
		if (copy(note, &list[count]))
			count++;
		else
			lw_log_line(0, "a notification was lost: no memory for it");
		lw_note_free(note);
	}
	if (count == 0) {
		free(list);
		return NULL;
	}
	*size = (int)count;
	return list;
}

int freeNotifsMsgBuf(notify_msg_t *msg, int size)
{
	for (int i = 0; msg != NULL && i < size; i++) {
		free(msg[i].name);
		free(msg[i].msg);
	}
	free(msg);
	return 0;
}

static int notify_error(int error)
{
	int code = te_error(error);

	/* No such segment; nobody there; its queue is full. */
	return error == -EBADF || error == -ENOTSUP || error == -ENOBUFS ? TE_ERR_METADATA : code;
}

int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg)
{
	struct te *te = te_of(engine);
	struct lw_note note = {.name = notify_msg.name, .text = notify_msg.msg};

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	if (note.name == NULL || note.text == NULL)
		return te_fail(TE_ERR_INVALID_ARGUMENT, "a text of the notification is NULL");
	note.name_size = strlen(note.name);
	note.text_size = strlen(note.text);
	return notify_error(
		lw_notify(te->engine, te_segment(te, target_id <= INT32_MAX ? (int64_t)target_id : -1), &note, 0));
}

int sendNotifyByName(transfer_engine_t engine, const char *segment_name, notify_msg_t notify_msg)
{
	segment_id_t id = openSegment(engine, segment_name);
	int code;

	if (id < 0)
		return te_of(engine) == NULL ? TE_ERR_INVALID_ARGUMENT : TE_ERR_METADATA;
	code = genNotifyInEngine(engine, (uint64_t)id, notify_msg);
	closeSegment(engine, id);
	return code;
}

int probePeerAliveByID(transfer_engine_t engine, segment_id_t segment_id)
{
	struct te *te = te_of(engine);
	int error;

	if (te == NULL)
		return TE_ERR_INVALID_ARGUMENT;
	error = lw_segment_probe(te->engine, te_segment(te, segment_id), 0);
	if (error == -EBADF)
		return notify_error(error);
	te_error(error);
	return error == 0 ? 0 : 1;
}

char *getSegmentDescString(transfer_engine_t engine, segment_id_t segment_id)
{
	struct te *te = te_of(engine);
	char *text = NULL;
	int error;

	if (te == NULL)
		return NULL;
	error = lw_segment_json(te->engine, te_segment(te, segment_id), &text);
	te_error(error);
	return error == 0 ? text : NULL;
}
