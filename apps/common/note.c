/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "apps/common/host.h"
#include "apps/common/note.h"

int app_note_send(struct lw_engine *engine, lw_segment_t segment, const char *name, const char *text,
		  uint32_t timeout_ms)
{
	const struct lw_note note = {.name = name, .name_size = strlen(name), .text = text, .text_size = strlen(text)};

	return lw_notify(engine, segment, &note, timeout_ms);
}

int app_note_answer(struct lw_engine *engine, const char *peer, const char *name, const char *text, uint32_t timeout_ms)
{
	lw_segment_t segment;
	int rc = lw_segment_open(engine, peer, timeout_ms, &segment);

	if (rc)
		return rc;
	rc = app_note_send(engine, segment, name, text, timeout_ms);
	lw_segment_close(engine, segment);
	return rc;
}

int app_note_ask(struct lw_engine *engine, lw_segment_t segment, const char *name, const char *answer, bool drive,
		 uint32_t timeout_ms, struct lw_note **out)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	struct lw_note *note;

	while (lw_note_poll(engine, &note) == 1)
		lw_note_free(note);
	int rc = app_note_send(engine, segment, name, lw_engine_name(engine), timeout_ms);
	if (rc)
		return rc;
	uint64_t end_ns = app_clock_ns() + timeout_ms * UINT64_C(1000000);
	for (;;) {
		if (drive)
			lw_engine_progress(engine);
		rc = lw_note_poll(engine, &note);
		if (rc < 0)
			return rc;
		if (rc == 1) {
			if (strcmp(note->name, answer) == 0) {
				*out = note;
				return 0;
			}
			lw_note_free(note);
			continue;
		}
		if (app_clock_ns() > end_ns)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
}
