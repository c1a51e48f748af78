/* SPDX-License-Identifier: Apache-2.0 */
#include "common/peer_meta.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void (*out)(const char *text);

size_t peer_meta_decode(const char *text, char *to, size_t size)
{
	size_t length = 0;
	unsigned byte;

	for (; *text != '\0' && length + 1 < size; text++) {
		if (*text == '%' && isxdigit((unsigned char)text[1]) && isxdigit((unsigned char)text[2]) &&
		    sscanf(text + 1, "%2x", &byte) == 1) {
			to[length++] = (char)byte;
			text += 2;
		} else {
			to[length++] = *text;
		}
	}
	to[length] = '\0';
	return length;
}

static void encode(const char *bytes, size_t length, char *to, size_t size)
{
	size_t used = 0;

	if (length == 0)
		snprintf(to, size, "-");
	for (size_t i = 0; i < length && used + 4 < size; i++)
		used += (size_t)snprintf(to + used, size - used, isalnum((unsigned char)bytes[i]) ? "%c" : "%%%02x",
					 (unsigned char)bytes[i]);
}

static void say(int error, const char *word)
{
	char text[400];

	if (error == 0)
		snprintf(text, sizeof(text), "%s", word);
	else
		snprintf(text, sizeof(text), "error %d %s", error, lw_last_error());
	out(text);
}

static void say_number(int error, const char *format, uint64_t number)
{
	char text[80];

	snprintf(text, sizeof(text), "%s %" PRIu64, format, number);
	say(error, text);
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void register_many(struct lw_engine *engine, unsigned char *memory, uint64_t count, uint64_t length)
{
	struct lw_memory *list = calloc(count, sizeof(*list));
	lw_buffer_t *ids = calloc(count, sizeof(*ids));
	uint64_t begin_us;
	int error = -ENOMEM;

	for (uint64_t i = 0; list != NULL && i < count; i++)
		list[i] = (struct lw_memory){.addr = memory + i * length, .length = length, .access = LW_ACCESS_REMOTE};
	begin_us = now_us();
	if (list != NULL && ids != NULL)
		error = lw_memory_register(engine, list, count, ids);
	say_number(error, "registered", now_us() - begin_us);
	free(list);
	free(ids);
}

static void say_note(struct lw_engine *engine)
{
	static char name[4096], text[8192], line[12400];
	struct lw_note *note;

	if (lw_note_poll(engine, &note) != 1) {
		out("none");
		return;
	}
	encode(note->name, note->name_size, name, sizeof(name));
	encode(note->text, note->text_size, text, sizeof(text));
	snprintf(line, sizeof(line), "note %s %s", name, text);
	lw_note_free(note);
	out(line);
}

static void say_event(struct lw_engine *engine)
{
	struct lw_event event;
	char line[400];

	if (lw_event_poll(engine, &event) != 1)
		snprintf(line, sizeof(line), "none");
	else
		snprintf(line, sizeof(line), "event %u %d %s", event.kind, event.error, event.name);
	out(line);
}

static void wait_for_fd(struct lw_engine *engine, int ms)
{
	struct pollfd fd = {.fd = lw_event_fd(engine), .events = POLLIN};

	say(fd.fd < 0 ? fd.fd : 0, fd.fd >= 0 && poll(&fd, 1, ms) == 1 ? "ready" : "none");
}

/* NAME and TEXT of a line. */
static struct lw_note note_of(const char *name, const char *text)
{
	static char name_bytes[4096], text_bytes[8192];
	struct lw_note note = {.name = name_bytes, .text = text_bytes};

	note.name_size = strcmp(name, "-") == 0 ? 0 : peer_meta_decode(name, name_bytes, sizeof(name_bytes));
	note.text_size = strcmp(text, "-") == 0 ? 0 : peer_meta_decode(text, text_bytes, sizeof(text_bytes));
	return note;
}

static int write_noted(struct lw_engine *engine, const struct lw_request *request, const struct lw_note *note)
{
	struct lw_batch_status status = {.failed = 0};
	struct lw_channel *channel;
	lw_batch_t batch;
	int error = lw_channel_self(engine, &channel);

	if (error == 0)
		error = lw_batch_alloc(channel, 1, 0, NULL, &batch);
	if (error != 0)
		return error;
	error = lw_submit_notify(channel, batch, request, 1, note);
	if (error == 0)
		error = lw_batch_wait(engine, batch, 10000, &status);
	lw_batch_free(engine, batch);
	return error != 0 ? error : status.failed != 0 ? -EIO : 0;
}

bool peer_meta_line(struct lw_engine *engine, unsigned char *memory, uint64_t length, const char *line,
		    void (*answer)(const char *text))
{
	char peer[256], name[256], text[300], decoded[256];
	struct lw_note note;
	unsigned number = 0;
	uint64_t a, b, c, d;

	out = answer;
	if (sscanf(line, "register %" SCNu64 " %" SCNu64 " %u", &a, &b, &number) == 3 && a + b <= length) {
		struct lw_memory one = {.addr = memory + a, .length = b, .access = number};
		lw_buffer_t id = 0;
		int error = lw_memory_register(engine, &one, 1, &id);

		say_number(error, "buffer", id);
	} else if (sscanf(line, "many %" SCNu64 " %" SCNu64, &a, &b) == 2 && a * b <= length) {
		register_many(engine, memory, a, b);
	} else if (sscanf(line, "unregister %" SCNu64, &a) == 1) {
		say(lw_memory_unregister(engine, &a, 1, 0), "ok");
	} else if (sscanf(line, "ranges %" SCNx64, &a) == 1) {
		int count = lw_segment_ranges(engine, a, NULL, 0);

		say_number(count < 0 ? count : 0, "ranges", count < 0 ? 0 : (uint64_t)count);
	} else if (sscanf(line, "refresh %" SCNx64 " %u", &a, &number) >= 1) {
		say(lw_segment_refresh(engine, a, number), "ok");
	} else if (sscanf(line, "probe %" SCNx64 " %u", &a, &number) >= 1) {
		say(lw_segment_probe(engine, a, number), "ok");
	} else if (sscanf(line, "purge %255s %u", name, &number) >= 1) {
		peer_meta_decode(name, decoded, sizeof(decoded));
		say(lw_segment_purge(engine, decoded, number), "ok");
	} else if (sscanf(line, "notify %" SCNx64 " %255s %299s", &a, name, text) == 3) {
		note = note_of(name, text);
		say(lw_notify(engine, a, &note, 0), "ok");
	} else if (sscanf(line, "write %" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %255s %299s", &a, &b, &c, &d,
			  name, text) == 6 &&
		   b + d <= length) {
		const struct lw_request request = {
			.local = memory + b, .segment = a, .offset = c, .length = d, .op = LW_WRITE};

		note = note_of(name, text);
		say(write_noted(engine, &request, &note), "ok");
	} else if (sscanf(line, "tell %255s %255s %299s", peer, name, text) == 3) {
		note = note_of(name, text);
		peer_meta_decode(peer, decoded, sizeof(decoded));
		say(lw_notify_name(engine, decoded, &note, 0), "ok");
	} else if (strncmp(line, "note", 4) == 0) {
		say_note(engine);
	} else if (sscanf(line, "watch %" SCNx64 " %u", &a, &number) == 2) {
		say(lw_segment_watch(engine, a, number), "ok");
	} else if (strncmp(line, "event", 5) == 0) {
		say_event(engine);
	} else if (sscanf(line, "wait %u", &number) == 1) {
		wait_for_fd(engine, (int)number);
	} else {
		return false;
	}
	return true;
}
