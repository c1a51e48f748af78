/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/event.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/log.h"

void lw_event_signal(struct lw_engine *engine)
{
	bool waits = engine->notes_head != NULL || engine->events_head != NULL;
	uint64_t count = 1;

	if (engine->event_fd < 0 || waits == engine->event_set)
		return;
	/* Neither blocks: the counter is 0 or 1. */
	if (waits)
		engine->event_set = write(engine->event_fd, &count, sizeof(count)) == sizeof(count);
	else
		engine->event_set = read(engine->event_fd, &count, sizeof(count)) != sizeof(count);
}

void lw_event_push(struct lw_engine *engine, const struct lw_event *event)
{
	struct lw_event_item *item = malloc(sizeof(*item));

	if (item == NULL) {
		lw_log(LW_LOG_ERROR, "no memory for the event that %s is gone", event->name);
		return;
	}
	item->next = NULL;
	item->event = *event;
	pthread_mutex_lock(&engine->notes_lock);
	*engine->events_tail = item;
	engine->events_tail = &item->next;
	lw_event_signal(engine);
	pthread_mutex_unlock(&engine->notes_lock);
}

int lw_event_poll(struct lw_engine *engine, struct lw_event *out)
{
	struct lw_event_item *item;
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->notes_lock);
	item = engine->events_head;
	if (item != NULL) {
		engine->events_head = item->next;
		if (engine->events_head == NULL)
			engine->events_tail = &engine->events_head;
		lw_event_signal(engine);
	}
	pthread_mutex_unlock(&engine->notes_lock);
	lw_engine_leave(engine);
	if (item == NULL)
		return 0;
	*out = item->event;
	free(item);
	return 1;
}

int lw_event_fd(struct lw_engine *engine)
{
	int error = lw_engine_enter(engine), fd;

	if (error != 0)
		return error;
	pthread_mutex_lock(&engine->notes_lock);
	if (engine->event_fd < 0) {
		engine->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		lw_event_signal(engine);
	}
	fd = engine->event_fd;
	pthread_mutex_unlock(&engine->notes_lock);
	if (fd < 0)
		fd = lw_fail(-EMFILE, "no descriptor for events: close some, or raise RLIMIT_NOFILE");
	lw_engine_leave(engine);
	return fd;
}

void lw_event_fini(struct lw_engine *engine)
{
	struct lw_event_item *item;

	while ((item = engine->events_head) != NULL) {
		engine->events_head = item->next;
		free(item);
	}
	engine->events_tail = &engine->events_head;
	if (engine->event_fd >= 0)
		close(engine->event_fd);
	engine->event_fd = -1;
	engine->event_set = false;
}

void lw_event_forked(struct lw_engine *engine)
{
	if (engine->event_fd >= 0)
		close(engine->event_fd);
}
