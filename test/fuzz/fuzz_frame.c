/* SPDX-License-Identifier: Apache-2.0 */
/* Frames, and the handshake port that takes them, with the engine's own answers behind it.
 *
 * The control thread's loop is done here by hand, over a listening socket of ours, so that nothing depends on time. An
 * input is a byte of options, a list of cuts (a number, then a byte each), and what the client sends. The reader of
 * frames is given the same bytes in one piece and cut, and must come to the same end. The port must answer a whole
 * frame with one frame of its kind or with none, answer nothing else, and give back what the connection had.
 */
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/engines.h"
#include "fuzz/input.h"
#include "lib/engine.h"
#include "meta/ctrl_pvt.h"
#include "meta/frame.h"

#define CUTS 16
#define MAX_FRAME 4096u
#define REPLY_MAX ((size_t)64 * 1024)
#define PASSES_MAX 10000

static struct rig {
	struct lw_engine *engine;
	struct lw_ctrl ctrl; /* of ours: the engine's own goes on beside it */
	int (*serve)(void *arg, int type, const char *body, size_t size, char **reply, size_t *reply_size);
	int served; /* result of the last request, 1: none */
	int type;
	size_t body_size;
	struct sockaddr_un addr;
	unsigned char reply[REPLY_MAX];
} rig;

struct cuts {
	size_t count;
	uint8_t length[CUTS];
};

/* Notes what the port was asked, and asks the engine. */
static int serve(void *arg, int type, const char *body, size_t size, char **reply, size_t *reply_size)
{
	FUZZ_CHECK(body[size] == '\0', "a body without an end");
	FUZZ_CHECK(rig.served == 1, "one connection, two requests");
	rig.type = type;
	rig.body_size = size;
	rig.served = rig.serve(arg, type, body, size, reply, reply_size);
	return rig.served;
}

static void open_rig(void)
{
	static char memory[8192];
	struct lw_ctrl *ctrl = &rig.ctrl;
	socklen_t length = sizeof(sa_family_t); /* the kernel finds a name */

	fuzz_setup_begin();
	rig.engine = test_engine("poll=caller drivers=tcp notify_queue=8");
	test_register(rig.engine, memory, sizeof(memory), LW_ACCESS_REMOTE);
	rig.serve = rig.engine->ctrl->opts.serve;
	ctrl->opts = rig.engine->ctrl->opts;
	ctrl->opts.serve = serve;
	ctrl->opts.max_frame = MAX_FRAME;
	ctrl->opts.timeout_ms = 1000000;
	lw_link_init(&ctrl->timers);
	lw_link_init(&ctrl->clients);
	lw_link_init(&ctrl->calls);
	lw_inbox_init(&ctrl->jobs);
	ctrl->next_ns = UINT64_MAX;
	ctrl->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	ctrl->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	rig.addr.sun_family = AF_UNIX;
	FUZZ_CHECK(bind(ctrl->listen_fd, (struct sockaddr *)&rig.addr, length) == 0 && listen(ctrl->listen_fd, 8) == 0,
		   "no listener: %s", strerror(errno));
	fuzz_setup_end();
}

/* What the control thread does with its events. */
static void turn(void)
{
	struct lw_ctrl *ctrl = &rig.ctrl;
	struct epoll_event events[8];
	int count, passes = 0;

	lw_ctrl_accept(ctrl);
	while ((count = epoll_wait(ctrl->epoll_fd, events, 8, 0)) > 0) {
		FUZZ_CHECK(passes++ < PASSES_MAX, "the port finds no rest");
		for (int i = 0; i < count; i++) {
			struct lw_ctrl_io *io = events[i].data.ptr;

			if (io->event != NULL)
				io->event(ctrl, io, events[i].events);
		}
		while (ctrl->dead != NULL) {
			struct lw_ctrl_io *io = ctrl->dead;

			ctrl->dead = io->next_dead;
			free(io);
		}
	}
}

static size_t cut(const struct cuts *cuts, size_t *turns, size_t left)
{
	size_t length = cuts->count != 0 ? cuts->length[(*turns)++ % cuts->count] : left;

	return length != 0 && length < left ? length : left;
}

/* Feeds all of it. The result of the last feed; *taken: bytes of the frame. */
static int read_frame(struct lw_frame_reader *reader, const struct cuts *cuts, const uint8_t *bytes, size_t size,
		      size_t *taken)
{
	size_t used = 0, turns = 0, part;
	int ret = 0;

	*taken = 0;
	while (*taken < size && ret == 0) {
		part = cut(cuts, &turns, size - *taken);
		ret = lw_frame_reader_feed(reader, (const char *)bytes + *taken, part, &used);
		FUZZ_CHECK(used <= part && (ret != 0 || used == part), "%zu of %zu bytes were used", used, part);
		*taken += used;
	}
	FUZZ_CHECK(reader->capacity <= 4096 + 2 * size, "%zu bytes of memory for %zu that came", reader->capacity,
		   size);
	return ret;
}

/* Reads in one piece and cut; a whole frame goes through the writer and the reader once more. Returns the result and,
 * of a whole frame, its kind. */
static int check_reader(const struct cuts *cuts, const uint8_t *bytes, size_t size, int *type, bool *legacy)
{
	static const struct cuts none = {.count = 0};
	struct lw_frame_reader whole, parts, third;
	size_t taken, parts_taken, body_size, third_size, frame_size, used;
	const char *body, *third_body;
	int ret, third_type;
	bool third_legacy;
	uint64_t claimed;
	char *frame;

	lw_frame_reader_init(&whole, MAX_FRAME);
	lw_frame_reader_init(&parts, MAX_FRAME);
	lw_frame_reader_init(&third, MAX_FRAME + 2);
	ret = read_frame(&whole, &none, bytes, size, &taken);
	if (size >= sizeof(claimed)) {
		memcpy(&claimed, bytes, sizeof(claimed));
		claimed = le64toh(claimed);
		FUZZ_CHECK((ret == -EPROTO) == (claimed == 0 || claimed > MAX_FRAME), "result %d, length %llu", ret,
			   (unsigned long long)claimed);
	}
	FUZZ_CHECK(read_frame(&parts, cuts, bytes, size, &parts_taken) == ret && parts_taken == taken,
		   "cut, it comes to another end");
	if (ret == 1) {
		lw_frame_reader_get(&whole, type, &body, &body_size, legacy);
		FUZZ_CHECK(body[body_size] == '\0', "a body without an end");
		FUZZ_CHECK(!*legacy || *type == LW_FRAME_CONNECTION, "a legacy frame of type %d", *type);
		lw_frame_reader_get(&parts, &third_type, &third_body, &third_size, &third_legacy);
		FUZZ_CHECK(third_type == *type && third_legacy == *legacy && third_size == body_size &&
				   memcmp(third_body, body, body_size) == 0,
			   "cut, it is another frame");
		FUZZ_CHECK(lw_frame_encode(*type, *legacy, body, body_size, &frame, &frame_size) == 0, "not encoded");
		FUZZ_CHECK(lw_frame_reader_feed(&third, frame, frame_size, &used) == 1 && used == frame_size,
			   "what was encoded is no frame");
		lw_frame_reader_get(&third, &third_type, &third_body, &third_size, &third_legacy);
		/* Without a type byte and without text nothing tells the two kinds apart. */
		FUZZ_CHECK(third_type == *type && third_size == body_size && memcmp(third_body, body, body_size) == 0,
			   "what was encoded is another frame");
		free(frame);
	}
	lw_frame_reader_fini(&whole);
	lw_frame_reader_fini(&parts);
	lw_frame_reader_fini(&third);
	return ret;
}

static size_t read_reply(int fd)
{
	size_t have = 0;
	ssize_t got;

	while ((got = recv(fd, rig.reply + have, REPLY_MAX - have, MSG_DONTWAIT)) > 0)
		have += (size_t)got;
	FUZZ_CHECK(have < REPLY_MAX, "a reply without an end");
	return have;
}

static void check_reply(size_t size, int expected, int type, bool legacy)
{
	struct lw_frame_reader reader;
	const char *body;
	size_t body_size, used;
	int reply_type;
	bool reply_legacy;

	if (expected != 1) {
		FUZZ_CHECK(rig.served == 1 && size == 0, "a reply of %zu bytes to what is no frame", size);
		return;
	}
	FUZZ_CHECK(rig.served != 1 && rig.type == type, "a frame of type %d, and type %d was asked", type, rig.type);
	if (rig.served != 0) {
		FUZZ_CHECK(size == 0, "a reply of %zu bytes to a request that was refused", size);
		return;
	}
	lw_frame_reader_init(&reader, REPLY_MAX);
	FUZZ_CHECK(lw_frame_reader_feed(&reader, (const char *)rig.reply, size, &used) == 1 && used == size,
		   "the reply is not one frame");
	lw_frame_reader_get(&reader, &reply_type, &body, &body_size, &reply_legacy);
	FUZZ_CHECK(reply_type == type && reply_legacy == legacy && body_size > 1 && body[0] == '{',
		   "the reply is of another kind");
	lw_frame_reader_fini(&reader);
}

static void drop_notes(void)
{
	struct lw_note *note;

	while (lw_note_poll(rig.engine, &note) == 1)
		lw_note_free(note);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {.at = data, .left = size};
	struct cuts cuts = {.count = 0};
	socklen_t length = sizeof(rig.addr);
	bool legacy = false;
	uint8_t options;
	size_t sent = 0, turns = 0;
	int fd, expected, type = 0;

	if (rig.engine == NULL)
		open_rig();
	options = fuzz_u8(&input);
	cuts.count = fuzz_u8(&input) % CUTS;
	for (size_t i = 0; i < cuts.count; i++)
		cuts.length[i] = fuzz_u8(&input);
	expected = check_reader(&cuts, input.at, input.left, &type, &legacy);

	rig.served = 1;
	FUZZ_CHECK(getsockname(rig.ctrl.listen_fd, (struct sockaddr *)&rig.addr, &length) == 0, "no name");
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	FUZZ_CHECK(connect(fd, (struct sockaddr *)&rig.addr, length) == 0, "no connection: %s", strerror(errno));
	while (sent < input.left) {
		size_t part = cut(&cuts, &turns, input.left - sent);

		if (send(fd, input.at + sent, part, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)part)
			break; /* the port has closed, or takes no more */
		sent += part;
		turn();
	}
	if ((options & 1) != 0)
		shutdown(fd, SHUT_WR);
	turn();
	if ((options & 2) == 0)
		check_reply(read_reply(fd), expected, type, legacy);
	close(fd);
	turn();
	FUZZ_CHECK(rig.ctrl.client_count == 0 && lw_link_empty(&rig.ctrl.clients) && lw_link_empty(&rig.ctrl.timers),
		   "the connection was not given back");
	drop_notes();
	return 0;
}
