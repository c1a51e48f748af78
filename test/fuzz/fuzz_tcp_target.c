/* SPDX-License-Identifier: Apache-2.0 */
/* The served side of the TCP driver against a client that does what the input says, and against a model of it.
 *
 * Engines without threads stay open, one for each set of options of the data port. Their buffers are the same memory:
 * side by side and apart, with different rights, between inaccessible pages, at a fixed address so that inputs mean the
 * same in each run. An input is a byte of options and steps of the client: see step(). A second, sequential server
 * (tcp_target_model.h) is given each byte that went into the connection and foretells the answers and the memory. A
 * lane may have connections one after the other: see another(). Checked are: answers, byte by byte; all memory, and of
 * what nobody wrote to that it is as it was; that nothing of an older connection is stored once the newer one is
 * greeted; that each connection comes to an end, and that all of it is given back.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "drivers/tcp/tcp.h"
#include "fuzz/input.h"
#include "fuzz/tcp_target_model.h"
#include "lib/engine.h"
#include "meta/descriptor.h"

#define END_MS 10000
#define LANE UINT64_C(0x6c616e6577697300) /* tokens of the client's lane */
#define SMALL_ANSWERS 0x40                /* of the input: the target sends in small parts */
#define PLACES 16                         /* for connections */
#define SIDES 4                           /* engines: by options */

#define WRONG 0x20 /* of a step */
#define ASLEEP 0x80
#define STORM 4 /* times a byte: requests side by side */

static bool accessible(size_t page)
{
	return page != 3 && page != 9;
}

/* An engine. */
struct side {
	struct lw_engine *engine;
	struct lw_worker *worker;
	struct tcp_worker *tcp;
	uint32_t lanes, blocks;
	uint8_t options;
	lw_buffer_t large;
};

static struct rig {
	struct side sides[SIDES];
	struct side *side; /* NULL: not open yet */
	int listen_fd;     /* for connections of the real kind */
	struct sockaddr_in listen_addr;
	uint32_t source; /* of the next such connection */
	unsigned char start[SPAN];
	unsigned char scratch[LARGE_BYTES];
	struct model model;
} rig;

/* The client's end. */
struct client {
	int fd;
	struct dialog *dialog;
	uint8_t options; /* of the input */
	bool tcp;        /* a real connection; else a pair of local sockets, whose bytes are there at once */
	bool greedy;     /* reads after each step */
	bool jammed;     /* the target takes nothing more until answers are read: the script is over */
	bool ended;      /* the target's end of the stream, or a reset, was seen */
	bool half;       /* we send no more */
	bool stormed;    /* once is enough, it takes long */
	bool crowded;    /* so does this */
	bool late;       /* so much time has passed that a refusal may not have come through */
	bool lost;       /* it is not known how far the target had come when the buffer was taken back */
	size_t answered; /* bytes of answers read */
	uint64_t sent;
};

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

static void open_side(struct side *side, uint8_t options, unsigned char *memory)
{
	char settings[256];

	snprintf(settings, sizeof(settings), "poll=caller drivers=tcp tcp_max_served=%d max_lanes=32 tcp_checksum=%s",
		 PLACES, (options & LW_TCP_CHECKSUM) != 0 ? "on" : "off");
	if ((options & LW_TCP_AUTH) != 0)
		strncat(settings, " tcp_secret=" SECRET, sizeof(settings) - strlen(settings) - 1);
	side->options = options;
	side->engine = test_engine(settings);
	for (size_t i = 0; i < ZONES; i++)
		side->large = test_register(side->engine, memory + zones[i].begin, zones[i].end - zones[i].begin,
					    zones[i].access);
	side->worker = &side->engine->workers[0];
	for (uint32_t i = 0; i < lw_drivers_count; i++)
		if (lw_drivers[i] == &lw_tcp_ops)
			side->tcp = side->worker->driver_context[i];
	fuzz_eager(side->worker);
	side->lanes = side->worker->free_lanes_count;
	side->blocks = side->tcp->free_count;
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
	for (uint8_t i = 0; i < SIDES; i++)
		open_side(&rig.sides[i], i, memory);
	FUZZ_CHECK(le32toh(model_sum("123456789", 9)) == UINT32_C(0xe3069283), "this is not CRC32C");
	rig.side = rig.sides;
	open_listener();
	fuzz_setup_end();
}

static void drive(void)
{
	fuzz_drive(rig.side->worker);
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

/* What bits 3 to 5 of the options mean. */
static const struct kind {
	uint8_t side;
	bool greets; /* at once, as it should be */
	bool tcp;
} kinds[] = {
	{0, false, false},
	{LW_TCP_CHECKSUM, true, false},
	{LW_TCP_AUTH, true, false},
	{LW_TCP_CHECKSUM | LW_TCP_AUTH, true, false},
	{LW_TCP_CHECKSUM, false, false},
	{LW_TCP_CHECKSUM | LW_TCP_AUTH, false, false},
	{LW_TCP_CHECKSUM, true, true},
	{0, false, true},
};

static const struct kind *kind_of(uint8_t options)
{
	return &kinds[options / 8 % 8];
}

static struct client connect_client(uint8_t options, struct dialog *dialog)
{
	struct client client = {.dialog = dialog, .options = options, .tcp = kind_of(options)->tcp};
	int pair[2], small = 4096;

	client.greedy = (options & 4) == 0;
	memset(&dialog->due, 0, sizeof(*dialog) - offsetof(struct dialog, due));
	if (client.tcp) {
		pair[0] = tcp_pair(&pair[1]);
	} else {
		FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0,
			   "no sockets: %s", strerror(errno));
	}
	/* Answers and requests go through in parts. */
	if ((options & SMALL_ANSWERS) != 0)
		setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	if ((options & 0x80) != 0)
		setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	client.fd = pair[0];
	tcp_serve(rig.side->tcp, pair[1], "a fuzzer");
	return client;
}

/* Reads at most so many bytes of answers. False: nothing is there now. */
static bool read_some(struct client *client, size_t most)
{
	static unsigned char bytes[64 * 1024];
	struct dialog *dialog = client->dialog;
	ssize_t got = recv(client->fd, bytes, most < sizeof(bytes) ? most : sizeof(bytes), MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (got <= 0) {
		client->ended = true;
		return false;
	}
	FUZZ_CHECK(client->answered + (size_t)got <= dialog->due, "%zd bytes of answers too many after %zu of %zu", got,
		   client->answered, dialog->due);
	model_learn(dialog, bytes, client->answered, (size_t)got);
	FUZZ_CHECK(memcmp(bytes, dialog->answers + client->answered, (size_t)got) == 0,
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
static void send_bytes(struct client *client, const void *memory, size_t length)
{
	const unsigned char *bytes = memory;
	int tries = 0;

	while (length > 0 && !client->ended && !client->jammed && !client->half) {
		ssize_t sent = send(client->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (sent > 0) {
			model_feed(&rig.model, client->dialog, bytes, (size_t)sent);
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
					 LARGE_BYTES,
					 PAGE + 1,
					 2900,
					 TCP_STAGING,
					 TCP_BLOCK_BYTES,
					 32 * PAGE,
					 LARGE_BYTES + 1,
					 UINT64_C(1) << 63,
					 UINT64_MAX,
					 8,
					 24};
	uint8_t kind = fuzz_u8(input);

	if (kind < 128)
		return fuzz_u16(input);
	return sizes[kind % (sizeof(sizes) / sizeof(sizes[0]))];
}

/* Puts a header's sum where one is asked for, a wrong one if so told. */
static void put_sum(const struct client *client, unsigned char *bytes, bool wrong)
{
	uint32_t sum = model_sum(bytes, TCP_HEADER_SUM) ^ htole32(wrong);

	if (model_has_sums(client->dialog) && bytes[16] != (TCP_OP_V2 | TCP_OP_HELLO))
		memcpy(bytes + TCP_HEADER_SUM, &sum, sizeof(sum));
}

static void send_hello(struct client *client, struct tcp_header hello)
{
	unsigned char bytes[TCP_HEADER_BYTES + TCP_NONCE_BYTES];

	tcp_header_put(bytes, hello);
	memcpy(bytes + TCP_HEADER_BYTES, rig.scratch + (uint8_t)hello.size, TCP_NONCE_BYTES);
	send_bytes(client, bytes, (hello.options & LW_TCP_AUTH) != 0 ? sizeof(bytes) : TCP_HEADER_BYTES);
}

/* What proves that the client knows the secret, if it was asked to. */
static void prove(struct client *client, unsigned char *proof)
{
	drive();
	read_all(client);
	tcp_auth_prove(SECRET, TCP_INITIATOR, &client->dialog->about, proof);
}

static struct tcp_header right_hello(uint64_t token)
{
	return (struct tcp_header){.size = token,
				   .addr = rig.side->engine->incarnation,
				   .op = TCP_OP_HELLO | TCP_OP_V2,
				   .options = rig.side->options};
}

/* A greeting as it should be, but for its last message: that one's length. */
static size_t begin_greeting(struct client *client, uint64_t token, unsigned char *last)
{
	if ((rig.side->options & LW_TCP_AUTH) == 0) {
		tcp_header_put(last, right_hello(token));
		return TCP_HEADER_BYTES;
	}
	send_hello(client, right_hello(token));
	prove(client, last);
	return TCP_PROOF_BYTES;
}

static void greet(struct client *client, uint64_t token)
{
	unsigned char last[TCP_HEADER_BYTES + TCP_PROOF_BYTES];

	send_bytes(client, last, begin_greeting(client, token, last));
}

static void send_header(struct client *client, struct fuzz_input *input, uint8_t flags, bool padded)
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
		struct tcp_header hello = right_hello(header.size == 0 ? 0 : LANE | header.size);

		hello.addr += header.size == 127;
		hello.options ^= header.size == 126 ? LW_TCP_CHECKSUM : header.size == 125 ? LW_TCP_AUTH : 0;
		send_hello(client, hello);
		return;
	}
	tcp_header_put(bytes, header);
	for (size_t i = 17; padded && i < sizeof(bytes); i++)
		bytes[i] = fuzz_u8(input);
	put_sum(client, bytes, (flags & WRONG) != 0);
	send_bytes(client, bytes, sizeof(bytes));
}

/* Bytes of a body; what it ends with is followed by its sum. */
static void send_body(struct client *client, size_t length, uint8_t flags)
{
	const struct dialog *dialog = client->dialog;
	size_t here = model_has_sums(dialog) && dialog->left <= length ? (size_t)dialog->left : length;

	send_bytes(client, rig.scratch, here);
	if (dialog->sum_due && dialog->have == 0) {
		uint32_t sum = tcp_checksum_wire(dialog->sum) ^ htole32((flags & WRONG) != 0);

		send_bytes(client, &sum, sizeof(sum));
	}
	send_bytes(client, rig.scratch, length - here);
}

/* Many small requests, found by the target in one piece: WRITEs, READs, or both in turn. */
static void send_storm(struct client *client, size_t count, uint8_t kind)
{
	static unsigned char bytes[STORM * 255 * (TCP_HEADER_BYTES + 1 + TCP_SUM_BYTES)];
	unsigned char *at = bytes;

	for (size_t i = 0; i < count; i++) {
		bool store = kind % 3 == 0 || (kind % 3 == 2 && i % 2 == 0);
		uint8_t op = (uint8_t)(TCP_OP_V2 | (store ? TCP_OP_WRITE : TCP_OP_READ));

		tcp_header_put(at, (struct tcp_header){.size = 1, .addr = BASE + i, .op = op});
		put_sum(client, at, false);
		at += TCP_HEADER_BYTES;
		if (!store)
			continue;
		*at++ = (unsigned char)i;
		if (model_has_sums(client->dialog)) {
			uint32_t sum = model_sum(at - 1, 1);

			memcpy(at, &sum, sizeof(sum));
			at += sizeof(sum);
		}
	}
	send_bytes(client, bytes, (size_t)(at - bytes));
}

/* Takes the large buffer back. Nothing of it may be touched from then on. */
static void take_back(struct client *client)
{
	static unsigned char copy[LARGE_BYTES];
	const unsigned char *memory = (const unsigned char *)(uintptr_t)BASE + zones[LARGE].begin;
	struct model *model = &rig.model;
	struct dialog *dialog = client->dialog;
	bool inside = dialog->left != 0 && dialog->dest >= zones[LARGE].begin;

	if (model->revoked)
		return;
	drive();
	if (client->greedy || client->answered == dialog->due) /* so that an end is seen */
		read_all(client);
	client->lost = client->tcp || client->jammed || client->answered != dialog->due;
	FUZZ_CHECK(lw_memory_unregister(rig.side->engine, &rig.side->large, 1, 0) == 0, "not unregistered");
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

/* All that was sent is dealt with, and answered. False: it can't be known. */
static bool settle(struct client *client)
{
	size_t before;

	if (client->tcp || client->jammed || client->half || client->lost)
		return false;
	do {
		before = client->answered;
		drive();
		read_all(client);
	} while (!client->ended && client->answered != before);
	FUZZ_CHECK(client->ended || client->answered == client->dialog->due, "%zu of %zu bytes of answers are there",
		   client->answered, client->dialog->due);
	return !client->ended;
}

static bool is_readable(int fd)
{
	struct pollfd waits = {.fd = fd, .events = POLLIN};

	return poll(&waits, 1, 0) != 0;
}

/* The client's connection was ended by its lane's next one, while so many bytes of a body were on their way. */
static void check_fence(struct client *old, struct client *next, size_t length)
{
	static unsigned char found[sizeof(rig.scratch)];
	unsigned char *right = rig.model.memory + old->dialog->dest;
	const unsigned char *memory = (const unsigned char *)(uintptr_t)BASE + old->dialog->dest;
	size_t stored = 0;
	ssize_t got;

	/* What came first may be there; that is all. */
	while (stored < length && memory[stored] == rig.scratch[stored])
		stored++;
	FUZZ_CHECK(memcmp(memory + stored, right + stored, length - stored) == 0,
		   "a body was stored, but not its beginning");
	memcpy(found, memory, length);
	memcpy(right, memory, length);
	model_change(&rig.model, old->dialog->dest, old->dialog->dest + length);
	drive();
	read_all(next);
	FUZZ_CHECK(next->ended || next->answered == next->dialog->due, "a greeting is not answered in full");
	(void)send(old->fd, rig.scratch, PAGE, MSG_NOSIGNAL | MSG_DONTWAIT);
	drive();
	FUZZ_CHECK(memcmp(memory, found, length) == 0, "an older connection stores after its lane's next was greeted");
	/* The status of a WRITE that was complete may be there. */
	while ((got = recv(old->fd, found, sizeof(found), MSG_DONTWAIT)) > 0)
		;
	FUZZ_CHECK(got == 0 || errno != EAGAIN, "an older connection lives beside its lane's next");
}

/* Connects once more, mostly with a token of the same lane, while bytes of a body are on their way on the connection
 * that there is. The newer of the two goes on. */
static void another(struct client *client, struct fuzz_input *input)
{
	static const uint8_t steps[] = {1, 1, 2, 127, 128, 129, 0, 255};
	unsigned char last[TCP_HEADER_BYTES + TCP_PROOF_BYTES];
	uint8_t how = fuzz_u8(input);
	size_t length = fuzz_u16(input), last_length;
	struct dialog *dialog = client->dialog;
	uint64_t token = dialog->token;
	struct client next;
	ssize_t sent;

	if (!settle(client))
		return;
	next = connect_client(client->options, &rig.model.dialogs[dialog == rig.model.dialogs]);
	token = token == 0 ? LANE | how : (token & ~UINT64_C(0xff)) | (uint8_t)(token + steps[how % 8]);
	if ((how & 8) != 0)
		token ^= 0x100;
	last_length = begin_greeting(&next, token, last);
	last[0] ^= (how & 16) != 0;
	length = length < dialog->left ? length : (size_t)dialog->left;
	sent = length == 0 ? 0 : send(client->fd, rig.scratch, length, MSG_NOSIGNAL | MSG_DONTWAIT);
	length = sent > 0 ? (size_t)sent : 0;
	send_bytes(&next, last, last_length);
	for (int passes = 0; !is_readable(next.fd); passes++) {
		FUZZ_CHECK(passes < 1000, "a greeting is not answered");
		FUZZ_CHECK(lw_worker_drive(rig.side->worker), "somebody else drives the engine");
	}
	if (dialog->ended) {
		check_fence(client, &next, length);
		close(client->fd);
		next.stormed = client->stormed;
		*client = next;
		return;
	}
	drive();
	read_all(&next);
	FUZZ_CHECK(next.answered == next.dialog->due && next.ended == next.dialog->refused,
		   "a connection beside another was greeted with %zu of %zu bytes, and %s", next.answered,
		   next.dialog->due, next.ended ? "ended" : "goes on");
	close(next.fd);
	drive();
	next.dialog->ended = true;
	model_feed(&rig.model, dialog, rig.scratch, length);
	client->sent += length;
}

/* All that was sent is with the target, and all answers are here. */
static bool settle_real(struct client *client)
{
	int unsent = 0;

	for (int turns = 0; turns < 1000 && !client->ended; turns++) {
		drive();
		read_all(client);
		if (ioctl(client->fd, SIOCOUTQ, &unsent) == 0 && unsent == 0 && client->answered == client->dialog->due)
			break;
		if (turns > 16)
			poll(NULL, 0, 1);
	}
	drive();
	return !client->ended && unsent == 0 && client->answered == client->dialog->due;
}

/* More connections than there are places, all new and silent: the client's has to make room if nothing is under way on
 * it, and if the client knows what LEAVING means; else the last one is turned away. */
static void crowd(struct client *client)
{
	struct dialog *dialog = client->dialog;
	struct linger linger = {.l_onoff = 1};
	bool idle;
	struct pollfd waits[2];
	int fds[PLACES], target;
	char byte;

	if (!client->tcp || client->crowded || client->jammed || client->half || client->lost || !settle_real(client))
		return;
	/* One that does not know it may go, too, but only after a while. */
	if (dialog->stage != SERVING && client->late)
		return;
	client->crowded = true;
	idle = dialog->stage == SERVING && !dialog->refused && dialog->left == 0 && dialog->have == 0 &&
	       !dialog->sum_due;
	for (int i = 0; i < PLACES; i++) {
		fds[i] = tcp_pair(&target);
		setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		tcp_serve(rig.side->tcp, target, "a crowd");
	}
	drive();
	waits[0] = (struct pollfd){.fd = client->fd, .events = POLLIN};
	waits[1] = (struct pollfd){.fd = fds[PLACES - 1], .events = POLLIN};
	FUZZ_CHECK(poll(waits, 2, END_MS) > 0, "one connection too many is served");
	if (waits[1].revents != 0) {
		FUZZ_CHECK(recv(waits[1].fd, &byte, 1, MSG_DONTWAIT) == 0, "a connection was turned away with a word");
		FUZZ_CHECK(!idle || (client->options & SMALL_ANSWERS) != 0, "an idle connection keeps its place");
	} else {
		FUZZ_CHECK(idle, "a connection had to go that was not idle");
		dialog->refused = true;
		model_status(dialog, TCP_STATUS_LEAVING);
		while (!client->ended && poll(waits, 1, END_MS) > 0)
			read_all(client);
		FUZZ_CHECK(client->ended && client->answered == dialog->due, "a client was not told that it has to go");
	}
	for (int i = 0; i < PLACES; i++)
		close(fds[i]);
	drive();
}

/* The lower five bits of a step's first byte say what it is, WRONG that a sum is, ASLEEP that the target sleeps through
 * it, so that it finds several at once. */
static void step(struct client *client, struct fuzz_input *input)
{
	unsigned char proof[TCP_PROOF_BYTES];
	uint8_t what = fuzz_u8(input);
	const uint8_t *bytes;
	size_t length;

	switch ((what & 31) < 21 ? what & 31 : what & 15) {
	case 0: /* bytes as they stand in the input */
	case 1:
		length = fuzz_bytes(input, fuzz_u8(input), &bytes);
		send_bytes(client, bytes, length);
		break;
	case 2: /* a request, without a body */
	case 3:
	case 4:
	case 5:
		send_header(client, input, what, false);
		break;
	case 6: /* a body, or a part of it */
	case 7:
		send_body(client, fuzz_u16(input), what);
		break;
	case 8: /* a large one */
		length = (size_t)fuzz_u16(input) * 4;
		send_body(client, length < LARGE_BYTES ? length : LARGE_BYTES, what);
		break;
	case 9: /* what is missing of the body of a WRITE, as far as the model knows */
		length = client->dialog->left < sizeof(rig.scratch) ? client->dialog->left : sizeof(rig.scratch);
		send_body(client, length, what);
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
	case 15:
		take_back(client);
		break;
	case 16: /* the whole greeting */
		length = fuzz_u8(input);
		greet(client, length == 0 ? 0 : LANE | length);
		break;
	case 17: /* a proof */
		prove(client, proof);
		send_bytes(client, proof, sizeof(proof));
		break;
	case 18:
		another(client, input);
		break;
	case 19:
		crowd(client);
		break;
	default: /* a request with something behind the operation */
		send_header(client, input, what, true);
		break;
	}
	if ((what & ASLEEP) != 0)
		return;
	drive();
	if (client->greedy)
		read_all(client);
}

/* Reads to the end of the stream, that has to come. */
static void finish(struct client *client)
{
	uint64_t begin_ms = 0;

	if (!client->half && !client->dialog->refused)
		shutdown(client->fd, SHUT_WR);
	for (uint32_t turns = 0; !client->ended; turns++) {
		struct pollfd waits = {.fd = client->fd, .events = POLLIN};

		drive();
		read_all(client);
		if (turns < 16 || client->ended)
			continue;
		begin_ms = begin_ms != 0 ? begin_ms : fuzz_real_ms();
		FUZZ_CHECK(fuzz_real_ms() - begin_ms < END_MS,
			   "the connection does not end; %zu of %zu bytes are there", client->answered,
			   client->dialog->due);
		poll(&waits, 1, 1);
	}
	FUZZ_CHECK(client->answered == client->dialog->due || client->late,
		   "the connection ended after %zu of %zu bytes of answers", client->answered, client->dialog->due);
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
		rig.side->large = test_register(rig.side->engine, memory + zones[LARGE].begin,
						zones[LARGE].end - zones[LARGE].begin, zones[LARGE].access);
	model->revoked = false;
	for (size_t i = 0; i < 2; i++)
		model->dialogs[i].token = 0;
	model->changed = SPAN;
	model->changed_end = 0;
}

static bool all_given_back(void)
{
	const struct side *side = rig.side;

	return TAILQ_EMPTY(&side->tcp->served) && LIST_EMPTY(&side->tcp->open) && side->tcp->ready_count == 0 &&
	       side->tcp->free_count == side->blocks && side->worker->free_lanes_count == side->lanes &&
	       side->worker->ios == 0;
}

/* The connection is gone when the client is, and so is all that it had. */
static void check_given_back(void)
{
	uint64_t begin_ms = fuzz_real_ms();

	for (drive(); !all_given_back(); drive())
		FUZZ_CHECK(fuzz_real_ms() - begin_ms < END_MS,
			   "a connection was not given back: %u of %u blocks, %u of %u lanes, %u descriptors",
			   rig.side->tcp->free_count, rig.side->blocks, rig.side->worker->free_lanes_count,
			   rig.side->lanes, rig.side->worker->ios);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {.at = data, .left = size};
	struct linger linger = {.l_onoff = 1};
	struct client client;
	uint8_t options;

	if (rig.side == NULL)
		open_rig();
	reset();
	options = fuzz_u8(&input);
	rig.side = &rig.sides[kind_of(options)->side];
	rig.model.incarnation = rig.side->engine->incarnation;
	rig.model.options = rig.side->options;
	drive(); /* time may have passed since its last turn */
	client = connect_client(options, rig.model.dialogs);
	if (kind_of(options)->greets)
		greet(&client, LANE | 1);
	while (input.left > 0 && !client.ended && !client.jammed && !client.lost && client.dialog->due < ANSWERS_MAX)
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
