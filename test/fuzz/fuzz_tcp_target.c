/* SPDX-License-Identifier: Apache-2.0 */
/* The served side of the TCP driver against a client that does what the input says, and against a model of it.
 *
 * One engine without threads stays open; its buffers lie side by side and apart, with different rights, between
 * inaccessible pages, at a fixed address so that inputs mean the same in each run. An input is a byte of options, a
 * byte of more options, and steps of the client: see step(). A second, sequential server in here (struct model) is
 * given each byte that went into the connection and foretells the answers and the memory. Checked are: answers, byte
 * by byte; all memory, and of what nobody wrote to that it is as it was; that the connection comes to an end, and that
 * all of it is given back.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "drivers/tcp/tcp.h"
#include "fuzz/input.h"
#include "lib/engine.h"

#define PAGE ((size_t)4096)
#define BASE UINT64_C(0x50000000) /* free in each sanitizer's layout */
#define PAGES 42                  /* one on each side is inaccessible, too */
#define SPAN (PAGES * PAGE)
#define ANSWERS_MAX ((size_t)512 * 1024) /* when so much is due, the client has asked enough */
#define ANSWERS_ROOM (ANSWERS_MAX + ((size_t)2 << 20))
#define END_MS 10000

/* Buffers, in bytes from BASE. Nothing else is registered. */
static const struct zone {
	size_t begin, end;
	uint32_t access;
} zones[] = {
	{0, 2 * PAGE, LW_ACCESS_REMOTE},
	{2 * PAGE, 3 * PAGE, LW_ACCESS_REMOTE}, /* beside it: a range may cross the seam */
	/* page 3 is inaccessible */
	{4 * PAGE, 5 * PAGE, LW_ACCESS_REMOTE_READ},
	{5 * PAGE, 6 * PAGE, LW_ACCESS_REMOTE_WRITE},
	{6 * PAGE, 7 * PAGE, LW_ACCESS_LOCAL},
	/* page 7 is not registered */
	{8 * PAGE + 100, 8 * PAGE + 3000, LW_ACCESS_REMOTE},
	/* page 9 is inaccessible */
	{10 * PAGE, 42 * PAGE, LW_ACCESS_REMOTE}, /* larger than the staging area and than a small socket buffer */
};
#define ZONES (sizeof(zones) / sizeof(zones[0]))
#define LARGE (ZONES - 1)
#define STORM 4 /* times a byte: requests side by side */

static bool accessible(size_t page)
{
	return page != 3 && page != 9;
}

/* What a target should do, one byte after the other. */
struct model {
	unsigned char memory[SPAN];
	unsigned char answers[ANSWERS_ROOM];
	size_t due; /* bytes of answers */
	unsigned char header[TCP_HEADER_BYTES];
	size_t have;         /* bytes of header */
	uint64_t dest, left; /* of a WRITE that is coming in; dest from BASE */
	bool confirm;
	bool refused;                /* the rest is not looked at */
	bool revoked;                /* the large buffer is not registered any more */
	size_t changed, changed_end; /* memory that may differ from what it was, in bytes from BASE */
};

static struct rig {
	struct lw_engine *engine;
	struct lw_worker *worker;
	struct tcp_worker *tcp;
	uint32_t lanes, blocks;
	lw_buffer_t large;
	int listen_fd; /* for connections of the real kind */
	struct sockaddr_in listen_addr;
	uint32_t source; /* of the next such connection */
	unsigned char start[SPAN];
	unsigned char scratch[256 * 1024];
	struct model model;
} rig;

/* The client's end. */
struct client {
	int fd;
	bool tcp;        /* a real connection; else a pair of local sockets, whose bytes are there at once */
	bool greedy;     /* reads after each step */
	bool jammed;     /* the target takes nothing more until answers are read: the script is over */
	bool ended;      /* the target's end of the stream, or a reset, was seen */
	bool half;       /* we send no more */
	bool stormed;    /* once is enough, it takes long */
	bool late;       /* so much time has passed that a refusal may not have come through */
	bool lost;       /* it is not known how far the target had come when the buffer was taken back */
	size_t answered; /* bytes of answers read */
	uint64_t sent;
};

static bool offered(uint64_t addr, uint64_t size, uint32_t access)
{
	uint64_t at = addr - BASE, end;

	if (addr < BASE || at >= SPAN || size == 0 || size > SPAN - at)
		return false;
	end = at + size;
	for (size_t i = 0; i < (rig.model.revoked ? LARGE : ZONES) && at < end; i++)
		if (at >= zones[i].begin && at < zones[i].end && (zones[i].access & access) != 0)
			at = zones[i].end;
	return at >= end;
}

static void answer(struct model *model, const void *bytes, size_t length)
{
	FUZZ_CHECK(model->due + length <= ANSWERS_ROOM, "the script asks for more than the model has room for");
	memcpy(model->answers + model->due, bytes, length);
	model->due += length;
}

static void answer_status(struct model *model, enum tcp_status code)
{
	uint64_t word = tcp_status_word(code);

	answer(model, &word, sizeof(word));
}

static void model_request(struct model *model)
{
	struct tcp_header header = tcp_header_get(model->header);
	bool v2 = header.op >= TCP_OP_V2;
	uint8_t op = header.op % TCP_OP_V2;

	if (header.op == (TCP_OP_V2 | TCP_OP_HELLO) && header.size == 0) {
		model->refused = header.addr != rig.engine->incarnation;
		answer_status(model, model->refused ? TCP_STATUS_INCARNATION : TCP_STATUS_OK);
		return;
	}
	if (!offered(header.addr, header.size, op == TCP_OP_WRITE ? LW_ACCESS_REMOTE_WRITE : LW_ACCESS_REMOTE_READ)) {
		model->refused = true;
		if (v2)
			answer_status(model, TCP_STATUS_REFUSED);
		return;
	}
	if (op == TCP_OP_WRITE) {
		model->dest = header.addr - BASE;
		model->left = header.size;
		model->confirm = v2;
		return;
	}
	if (v2)
		answer_status(model, TCP_STATUS_OK);
	answer(model, model->memory + (header.addr - BASE), header.size);
}

static void model_store(struct model *model, const unsigned char *bytes, size_t length)
{
	memcpy(model->memory + model->dest, bytes, length);
	if (model->dest < model->changed)
		model->changed = model->dest;
	model->dest += length;
	model->left -= length;
	if (model->dest > model->changed_end)
		model->changed_end = model->dest;
	if (model->left == 0 && model->confirm)
		answer_status(model, TCP_STATUS_OK);
}

static void model_feed(struct model *model, const unsigned char *bytes, size_t length)
{
	size_t here;

	for (; length > 0 && !model->refused; bytes += here, length -= here) {
		if (model->left != 0) {
			here = model->left < length ? model->left : length;
			model_store(model, bytes, here);
			continue;
		}
		here = TCP_HEADER_BYTES - model->have < length ? TCP_HEADER_BYTES - model->have : length;
		memcpy(model->header + model->have, bytes, here);
		model->have += here;
		if (model->have < TCP_HEADER_BYTES)
			continue;
		model->have = 0;
		model_request(model);
	}
}

static void open_listener(void)
{
	socklen_t length = sizeof(rig.listen_addr);

	rig.listen_addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	rig.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	FUZZ_CHECK(bind(rig.listen_fd, (struct sockaddr *)&rig.listen_addr, sizeof(rig.listen_addr)) == 0 &&
			   listen(rig.listen_fd, 16) == 0 &&
			   getsockname(rig.listen_fd, (struct sockaddr *)&rig.listen_addr, &length) == 0,
		   "no listener: %s", strerror(errno));
}

static void open_rig(void)
{
	unsigned char *memory = test_map(SPAN, (void *)(uintptr_t)BASE);

	fuzz_setup_begin();
	test_fill(rig.start, SPAN, 1);
	memcpy(memory, rig.start, SPAN);
	memcpy(rig.model.memory, rig.start, SPAN);
	for (size_t i = 0; i < sizeof(rig.scratch); i++)
		rig.scratch[i] = (unsigned char)(i * 7 + i / 251);
	for (size_t page = 0; page < PAGES; page++)
		if (!accessible(page))
			FUZZ_CHECK(mprotect(memory + page * PAGE, PAGE, PROT_NONE) == 0, "mprotect");
	rig.engine = test_engine("poll=caller drivers=tcp tcp_max_served=16 max_lanes=32");
	for (size_t i = 0; i < ZONES; i++)
		rig.large = test_register(rig.engine, memory + zones[i].begin, zones[i].end - zones[i].begin,
					  zones[i].access);
	rig.worker = &rig.engine->workers[0];
	for (uint32_t i = 0; i < lw_drivers_count; i++)
		if (lw_drivers[i] == &lw_tcp_ops)
			rig.tcp = rig.worker->driver_context[i];
	fuzz_eager(rig.worker);
	rig.lanes = rig.worker->free_lanes_count;
	rig.blocks = rig.tcp->free_count;
	open_listener();
	fuzz_setup_end();
}

static void drive(void)
{
	fuzz_drive(rig.worker);
}

static int tcp_pair(int *target)
{
	struct sockaddr_in source = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* Closed connections keep their pair of addresses for a minute: take another one each time. */
	source.sin_addr.s_addr = htonl(0x7f010001u + rig.source++ % 0xf00000u);
	FUZZ_CHECK(bind(fd, (struct sockaddr *)&source, sizeof(source)) == 0 &&
			   connect(fd, (struct sockaddr *)&rig.listen_addr, sizeof(rig.listen_addr)) == 0,
		   "no connection: %s", strerror(errno));
	*target = accept4(rig.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	FUZZ_CHECK(*target >= 0, "nothing to accept: %s", strerror(errno));
	return fd;
}

static struct client connect_client(uint8_t options)
{
	struct client client = {.tcp = (options & 0x38) == 0x38, .greedy = (options & 4) == 0};
	int pair[2], small = 4096;

	if (client.tcp) {
		pair[0] = tcp_pair(&pair[1]);
	} else {
		FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0,
			   "no sockets: %s", strerror(errno));
	}
	/* Answers and requests go through in parts. */
	if ((options & 0x40) != 0)
		setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	if ((options & 0x80) != 0)
		setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	client.fd = pair[0];
	tcp_serve(rig.tcp, pair[1], "a fuzzer");
	return client;
}

/* Reads at most so many bytes of answers. False: nothing is there now. */
static bool read_some(struct client *client, size_t most)
{
	static unsigned char bytes[64 * 1024];
	struct model *model = &rig.model;
	ssize_t got = recv(client->fd, bytes, most < sizeof(bytes) ? most : sizeof(bytes), MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (got <= 0) {
		client->ended = true;
		return false;
	}
	FUZZ_CHECK(client->answered + (size_t)got <= model->due, "%zd bytes of answers too many after %zu of %zu", got,
		   client->answered, model->due);
	FUZZ_CHECK(memcmp(bytes, model->answers + client->answered, (size_t)got) == 0,
		   "other answers than expected in the %zd bytes after %zu", got, client->answered);
	client->answered += (size_t)got;
	return true;
}

static void read_all(struct client *client)
{
	while (!client->ended && read_some(client, SIZE_MAX))
		;
}

/* Sends; what does not get through is not sent at all. */
static void send_bytes(struct client *client, const unsigned char *bytes, size_t length)
{
	int tries = 0;

	while (length > 0 && !client->ended && !client->jammed && !client->half) {
		ssize_t sent = send(client->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (sent > 0) {
			model_feed(&rig.model, bytes, (size_t)sent);
			client->sent += (uint64_t)sent;
			bytes += sent;
			length -= (size_t)sent;
			tries = 0;
			continue;
		}
		if (errno != EAGAIN) {
			client->ended = true;
			return;
		}
		drive();
		if (client->greedy)
			read_all(client);
		client->jammed = ++tries > 3;
	}
}

/* Addresses and sizes that lie close to where something begins or ends. */
static uint64_t some_addr(struct fuzz_input *input)
{
	uint8_t where = fuzz_u8(input);
	uint64_t edge = where % 2 == 0 ? zones[where / 2 % ZONES].begin : zones[where / 2 % ZONES].end;

	return BASE + edge + (uint64_t)(int64_t)(int16_t)fuzz_u16(input);
}

static uint64_t some_size(struct fuzz_input *input)
{
	static const uint64_t sizes[] = {0,
					 1,
					 PAGE,
					 2 * PAGE,
					 3 * PAGE,
					 PAGE + 1,
					 2900,
					 TCP_STAGING,
					 TCP_BLOCK_BYTES,
					 32 * PAGE,
					 32 * PAGE + 1,
					 UINT64_C(1) << 63,
					 UINT64_MAX,
					 8,
					 24};
	uint8_t kind = fuzz_u8(input);

	if (kind < 128)
		return fuzz_u16(input);
	return sizes[kind % (sizeof(sizes) / sizeof(sizes[0]))];
}

static void send_header(struct client *client, struct fuzz_input *input)
{
	static const uint8_t ops[] = {TCP_OP_READ | TCP_OP_V2,
				      TCP_OP_WRITE | TCP_OP_V2,
				      TCP_OP_READ,
				      TCP_OP_WRITE,
				      TCP_OP_HELLO | TCP_OP_V2,
				      TCP_OP_HELLO,
				      0xff,
				      0x55};
	struct tcp_header header = {.op = ops[fuzz_u8(input) % sizeof(ops)]};
	unsigned char bytes[TCP_HEADER_BYTES];

	header.addr = some_addr(input);
	header.size = some_size(input);
	if (header.op == (TCP_OP_HELLO | TCP_OP_V2) && header.size < 128) { /* one that is meant to be right, mostly */
		header.addr = rig.engine->incarnation + (header.size == 127);
		header.size = 0;
	}
	tcp_header_put(bytes, header);
	send_bytes(client, bytes, sizeof(bytes));
}

/* Many small requests, found by the target in one piece: WRITEs, READs, or both in turn. */
static void send_storm(struct client *client, size_t count, uint8_t kind)
{
	static unsigned char bytes[STORM * 255 * (TCP_HEADER_BYTES + 1)];
	unsigned char *at = bytes;

	for (size_t i = 0; i < count; i++) {
		bool store = kind % 3 == 0 || (kind % 3 == 2 && i % 2 == 0);
		uint8_t op = (uint8_t)(TCP_OP_V2 | (store ? TCP_OP_WRITE : TCP_OP_READ));

		tcp_header_put(at, (struct tcp_header){.size = 1, .addr = BASE + i, .op = op});
		at += TCP_HEADER_BYTES;
		if (store)
			*at++ = (unsigned char)i;
	}
	send_bytes(client, bytes, (size_t)(at - bytes));
}

/* Takes the large buffer back. Nothing of it may be touched from then on. */
static void take_back(struct client *client)
{
	static unsigned char copy[32 * PAGE];
	const unsigned char *memory = (const unsigned char *)(uintptr_t)BASE + zones[LARGE].begin;
	struct model *model = &rig.model;
	bool inside = model->left != 0 && model->dest >= zones[LARGE].begin;

	if (model->revoked)
		return;
	drive();
	if (client->greedy || client->answered == model->due) /* so that an end is seen */
		read_all(client);
	client->lost = client->tcp || client->jammed || client->answered != model->due;
	FUZZ_CHECK(lw_memory_unregister(rig.engine, &rig.large, 1, 0) == 0, "not unregistered");
	model->revoked = true;
	memcpy(copy, memory, sizeof(copy));
	drive();
	if (!client->lost && !client->ended) {
		read_all(client);
		FUZZ_CHECK(client->ended == inside, "a connection %s a buffer that was taken back",
			   inside ? "goes on inside" : "was cut without being inside");
	}
	if (!client->lost)
		send_bytes(client, rig.scratch, PAGE);
	drive();
	FUZZ_CHECK(memcmp(copy, memory, sizeof(copy)) == 0, "a buffer was changed after it was taken back");
}

/* The lower four bits of a step's first byte say what it is, the highest whether the target sleeps through it, so that
 * it finds several at once. */
static void step(struct client *client, struct fuzz_input *input)
{
	uint8_t what = fuzz_u8(input);
	const uint8_t *bytes;
	size_t length;

	switch (what & 15) {
	case 0: /* bytes as they stand in the input */
	case 1:
		length = fuzz_bytes(input, fuzz_u8(input), &bytes);
		send_bytes(client, bytes, length);
		break;
	case 2: /* a request, without a body */
	case 3:
	case 4:
	case 5:
		send_header(client, input);
		break;
	case 6: /* a body, or a part of it */
	case 7:
		length = fuzz_u16(input);
		send_bytes(client, rig.scratch, length);
		break;
	case 8: /* a large one */
		length = (size_t)fuzz_u16(input) * 4;
		send_bytes(client, rig.scratch, length);
		break;
	case 9: /* what is missing of the body of a WRITE, as far as the model knows */
		length = rig.model.left < sizeof(rig.scratch) ? (size_t)rig.model.left : sizeof(rig.scratch);
		send_bytes(client, rig.scratch, length);
		break;
	case 10:
		length = (size_t)fuzz_u8(input) * STORM;
		if (!client->stormed)
			send_storm(client, length, fuzz_u8(input));
		client->stormed = true;
		break;
	case 11: /* takes some answers */
		length = fuzz_u16(input);
		if (length != 0 && !client->ended)
			read_some(client, length);
		break;
	case 12: /* takes all answers */
		read_all(client);
		break;
	case 13: /* sends no more */
		if (!client->half)
			shutdown(client->fd, SHUT_WR);
		client->half = true;
		break;
	case 14:
		length = fuzz_u8(input) * (size_t)16;
		fuzz_time_passes((uint32_t)length);
		client->late |= length != 0;
		break;
	default:
		take_back(client);
		break;
	}
	if ((what & 0x80) != 0)
		return;
	drive();
	if (client->greedy)
		read_all(client);
}

/* Reads to the end of the stream, that has to come. */
static void finish(struct client *client)
{
	uint64_t begin_ms = 0;

	if (!client->half && !rig.model.refused)
		shutdown(client->fd, SHUT_WR);
	for (uint32_t turns = 0; !client->ended; turns++) {
		struct pollfd waits = {.fd = client->fd, .events = POLLIN};

		drive();
		read_all(client);
		if (turns < 16 || client->ended)
			continue;
		begin_ms = begin_ms != 0 ? begin_ms : fuzz_real_ms();
		FUZZ_CHECK(fuzz_real_ms() - begin_ms < END_MS,
			   "the connection does not end; %zu of %zu bytes are there", client->answered, rig.model.due);
		poll(&waits, 1, 1);
	}
	FUZZ_CHECK(client->answered == rig.model.due || client->late,
		   "the connection ended after %zu of %zu bytes of answers", client->answered, rig.model.due);
}

static void check_memory(bool exact)
{
	const unsigned char *memory = (const unsigned char *)(uintptr_t)BASE;
	struct model *model = &rig.model;

	for (size_t page = 0; page < PAGES; page++) {
		size_t at = page * PAGE, end = at + PAGE;
		const unsigned char *right = exact ? model->memory : rig.start;

		if (!accessible(page))
			continue;
		/* What the model changed may have been changed to something that came and went. */
		if (!exact && model->changed < end && model->changed_end > at) {
			size_t from = model->changed > at ? model->changed : at;
			size_t to = model->changed_end < end ? model->changed_end : end;

			FUZZ_CHECK(memcmp(memory + at, right + at, from - at) == 0 &&
					   memcmp(memory + to, right + to, end - to) == 0,
				   "page %zu was changed outside of what was written", page);
		} else {
			FUZZ_CHECK(memcmp(memory + at, right + at, PAGE) == 0, "page %zu is not as it should be", page);
		}
	}
}

/* Everything as at the beginning. */
static void reset(void)
{
	unsigned char *memory = (unsigned char *)(uintptr_t)BASE;
	struct model *model = &rig.model;

	for (size_t i = 0; i < ZONES; i++) {
		size_t from = model->changed > zones[i].begin ? model->changed : zones[i].begin;
		size_t to = model->changed_end < zones[i].end ? model->changed_end : zones[i].end;

		if (from >= to)
			continue;
		memcpy(memory + from, rig.start + from, to - from);
		memcpy(model->memory + from, rig.start + from, to - from);
	}
	if (model->revoked)
		rig.large = test_register(rig.engine, memory + zones[LARGE].begin,
					  zones[LARGE].end - zones[LARGE].begin, zones[LARGE].access);
	model->revoked = false;
	model->due = 0;
	model->have = 0;
	model->left = 0;
	model->refused = false;
	model->changed = SPAN;
	model->changed_end = 0;
}

static bool all_given_back(void)
{
	return TAILQ_EMPTY(&rig.tcp->served) && LIST_EMPTY(&rig.tcp->open) && rig.tcp->ready_count == 0 &&
	       rig.tcp->free_count == rig.blocks && rig.worker->free_lanes_count == rig.lanes && rig.worker->ios == 0;
}

/* The connection is gone when the client is, and so is all that it had. */
static void check_given_back(void)
{
	uint64_t begin_ms = fuzz_real_ms();

	for (drive(); !all_given_back(); drive())
		FUZZ_CHECK(fuzz_real_ms() - begin_ms < END_MS,
			   "a connection was not given back: %u of %u blocks, %u of %u lanes, %u descriptors",
			   rig.tcp->free_count, rig.blocks, rig.worker->free_lanes_count, rig.lanes, rig.worker->ios);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {.at = data, .left = size};
	struct linger linger = {.l_onoff = 1};
	struct client client;
	uint8_t options;

	if (rig.engine == NULL)
		open_rig();
	reset();
	options = fuzz_u8(&input);
	client = connect_client(options);
	while (input.left > 0 && !client.ended && !client.jammed && !client.lost && rig.model.due < ANSWERS_MAX)
		step(&client, &input);
	/* Most clients end in order: there the model knows everything. */
	if ((options & 3) != 3 && !client.lost) {
		finish(&client);
		close(client.fd);
		check_given_back();
		check_memory(true);
		return 0;
	}
	if (client.tcp && client.sent % 2 == 0) /* with a reset */
		setsockopt(client.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(client.fd);
	check_given_back();
	check_memory(false);
	return 0;
}
