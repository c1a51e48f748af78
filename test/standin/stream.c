/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events, and the thread that does what is in them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "test/standin/inside.h"

#define EXPORT __attribute__((visibility("default")))

struct event {
	unsigned int refs;        /* the caller's, and one of each record under way */
	uint64_t wanted, reached; /* records */
	int code;
};

struct work {
	struct work *next;
	struct event *event; /* NULL: a copy */
	uint64_t record;
	const void *to, *from; /* as the caller sees them */
	size_t length;
};

struct stream {
	struct stream *next;
	enum lw_gpu_vendor vendor;
	int device;
	int code; /* it has failed, and all that comes fails, too */
	bool dying;
	struct work *head, **tail;
};

static struct stream *streams;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static bool running;
static unsigned int random_state = 1;

static void drop_event(struct event *event)
{
	if (--event->refs == 0) {
		standin.events--;
		free(event);
	}
}

static bool overlaps(const void *addr, size_t length, const struct range *range)
{
	const unsigned char *at = addr;

	return at < range->base + range->size && range->base < at + length;
}

bool stream_touches(const struct range *range)
{
	for (const struct stream *stream = streams; stream != NULL; stream = stream->next)
		for (const struct work *work = stream->head; work != NULL; work = work->next)
			if (work->event == NULL &&
			    (overlaps(work->to, work->length, range) || overlaps(work->from, work->length, range)))
				return true;
	return false;
}

/* Under the lock. */
static void copy(struct stream *stream, const struct work *work)
{
	bool pinned;
	unsigned char *to = range_bytes(stream->vendor, work->to, work->length, &pinned);
	const unsigned char *from = range_bytes(stream->vendor, work->from, work->length, &pinned);
	int code = standin_enter("Copy");

	if (code == GPU_OK && (to == NULL || from == NULL))
		code = CODE_ILLEGAL_ADDRESS;
	if (code == GPU_OK && stream->code == GPU_OK)
		memmove(to, from, work->length);
	else if (stream->code == GPU_OK)
		stream->code = code;
}

/* One piece of work of a stream that is drawn by lot. Under the lock. */
static bool work_some(void)
{
	unsigned int busy = 0, turn;
	struct stream *stream, **link;
	struct work *work;

	for (stream = streams; stream != NULL; stream = stream->next)
		busy += stream->head != NULL;
	if (busy == 0)
		return false;
	turn = (unsigned int)rand_r(&random_state) % busy;
	for (link = &streams; (*link)->head == NULL || turn-- > 0; link = &(*link)->next) {
	}
	stream = *link;
	work = stream->head;
	if (work->event == NULL)
		copy(stream, work);
	stream->head = work->next;
	if (stream->head == NULL)
		stream->tail = &stream->head;
	if (work->event != NULL) {
		work->event->reached = work->record;
		work->event->code = stream->code;
		drop_event(work->event);
	}
	free(work);
	if (stream->dying && stream->head == NULL) {
		*link = stream->next;
		free(stream);
		standin.streams--;
	}
	return true;
}

static bool has_work(void)
{
	const struct stream *stream = streams;

	while (stream != NULL && stream->head == NULL)
		stream = stream->next;
	return stream != NULL;
}

/* Lets go of the lock. */
static void rest(long us)
{
	struct timespec pause = {.tv_nsec = us * 1000};

	pthread_mutex_unlock(&standin.lock);
	nanosleep(&pause, NULL);
	pthread_mutex_lock(&standin.lock);
}

static void *work_main(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&standin.lock);
	for (;;) {
		struct timespec pause = {0};

		if (standin.delay_us > 0 && rand_r(&random_state) % 8 == 0)
			pause.tv_nsec = (long)((unsigned int)rand_r(&random_state) % (standin.delay_us + 1)) * 1000;
		if (standin.slow_us > 0 && !standin.hold && has_work())
			rest(standin.slow_us);
		if (standin.hold || !work_some()) {
			pthread_cond_wait(&more, &standin.lock);
			continue;
		}
		pthread_mutex_unlock(&standin.lock);
		if (pause.tv_nsec > 0)
			nanosleep(&pause, NULL);
		pthread_mutex_lock(&standin.lock);
	}
	return NULL;
}

EXPORT void standin_hold(bool hold)
{
	pthread_mutex_lock(&standin.lock);
	standin.hold = hold;
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&standin.lock);
}

int gpu_stream_create(enum lw_gpu_vendor v, void **out, unsigned int flags)
{
	struct stream *stream = calloc(1, sizeof(*stream));
	pthread_t thread;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("StreamCreateWithFlags");
	if (code == GPU_OK && flags != GPU_STREAM_NON_BLOCKING)
		code = GPU_INVALID;
	if (code == GPU_OK && stream == NULL)
		code = GPU_NO_MEMORY;
	if (code == GPU_OK && !running) {
		running = pthread_create(&thread, NULL, work_main, NULL) == 0;
		if (running)
			pthread_detach(thread);
		else
			code = GPU_NO_MEMORY;
	}
	if (code == GPU_OK) {
		stream->vendor = v;
		stream->device = standin_current(v);
		stream->tail = &stream->head;
		stream->next = streams;
		streams = stream;
		standin.streams++;
		*out = stream;
	} else {
		free(stream);
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_stream_destroy(enum lw_gpu_vendor v, void *handle)
{
	struct stream *stream = handle, **link;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("StreamDestroy");
	standin_current(v);
	stream->dying = true;
	if (stream->head == NULL) {
		for (link = &streams; *link != stream; link = &(*link)->next) {
		}
		*link = stream->next;
		free(stream);
		standin.streams--;
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

/* Under the lock. */
static int append(struct stream *stream, const struct work *what)
{
	struct work *work = malloc(sizeof(*work));

	if (work == NULL)
		return GPU_NO_MEMORY;
	*work = *what;
	work->next = NULL;
	*stream->tail = work;
	stream->tail = &work->next;
	pthread_cond_signal(&more);
	return GPU_OK;
}

int gpu_memcpy_async(enum lw_gpu_vendor v, void *to, const void *from, size_t length, int kind, void *handle)
{
	const struct work work = {.to = to, .from = from, .length = length};
	struct stream *stream = handle;
	bool pinned_to, pinned_from;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("MemcpyAsync");
	standin_current(v);
	if (code == GPU_OK && (kind != GPU_COPY_DEFAULT || stream->vendor != v))
		code = GPU_INVALID;
	if (code == GPU_OK &&
	    (range_bytes(v, to, length, &pinned_to) == NULL || range_bytes(v, from, length, &pinned_from) == NULL))
		code = GPU_INVALID;
	if (code == GPU_OK)
		code = append(stream, &work);
	if (code == GPU_OK)
		standin.blocked += !pinned_to || !pinned_from;
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_memcpy(enum lw_gpu_vendor v, void *to, const void *from, size_t length, int kind)
{
	unsigned char *there;
	const unsigned char *here;
	bool pinned;
	int code = GPU_OK;

	pthread_mutex_lock(&standin.lock);
	standin_current(v);
	there = range_bytes(v, to, length, &pinned);
	here = range_bytes(v, from, length, &pinned);
	if (kind != GPU_COPY_DEFAULT || there == NULL || here == NULL)
		code = GPU_INVALID;
	else
		memmove(there, here, length);
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_event_create(enum lw_gpu_vendor v, void **out, unsigned int flags)
{
	struct event *event = calloc(1, sizeof(*event));
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("EventCreateWithFlags");
	standin_current(v);
	if (code == GPU_OK && flags != GPU_EVENT_NO_TIMING)
		code = GPU_INVALID;
	if (code == GPU_OK && event == NULL)
		code = GPU_NO_MEMORY;
	if (code == GPU_OK) {
		event->refs = 1;
		standin.events++;
		*out = event;
	} else {
		free(event);
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_event_destroy(enum lw_gpu_vendor v, void *handle)
{
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("EventDestroy");
	standin_current(v);
	drop_event(handle);
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_event_record(enum lw_gpu_vendor v, void *handle, void *stream)
{
	struct event *event = handle;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("EventRecord");
	standin_current(v);
	if (code == GPU_OK) {
		const struct work work = {.event = event, .record = event->wanted + 1};

		code = append(stream, &work);
	}
	if (code == GPU_OK) {
		event->wanted++;
		event->refs++;
	}
	pthread_mutex_unlock(&standin.lock);
	return code;
}

int gpu_event_query(enum lw_gpu_vendor v, void *handle)
{
	const struct event *event = handle;
	int code;

	pthread_mutex_lock(&standin.lock);
	code = standin_enter("EventQuery");
	standin_current(v);
	if (code == GPU_OK)
		code = event->reached == event->wanted ? event->code : GPU_NOT_READY;
	pthread_mutex_unlock(&standin.lock);
	return code;
}
