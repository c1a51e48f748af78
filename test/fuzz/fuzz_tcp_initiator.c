/* SPDX-License-Identifier: Apache-2.0 */
/* A lane of the TCP driver against a peer that answers as the input says.
 *
 * One engine without threads stays open, with one segment of a peer that does not exist but for its descriptor. Lanes
 * connect to a local socket of ours (its bytes are there at once, and none gets lost). What the two sides have agreed
 * upon, checksums or a secret, is set anew for each input. An input is a byte of options, one of more options if the
 * first says so, requests, and steps of the peer: see step(). What arrives at the peer is checked byte by byte as it
 * comes. At the end the peer closes each connection, and then: every request has ended; what COMPLETED was confirmed in
 * full, with just the bytes that are in memory now; what an honest peer confirmed is COMPLETED; a WRITE was sent twice
 * only if it stood behind a refusal, or on a newer connection of the lane; no other memory changed.
 */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/fake.h"
#include "drivers/tcp/tcp.h"
#include "fuzz/input.h"
#include "lib/engine.h"
#include "meta/descriptor.h"

#define TASKS 16
#define SLOT ((size_t)64 * 1024) /* of memory, one a task */
#define MARGIN ((size_t)512)
#define SLICE ((size_t)16384)
#define SLICES 4                                 /* of one task */
#define REMOTE_STEP (UINT64_C(1) << 20)          /* between the remote ranges of two tasks */
#define INCARNATION UINT64_C(0x0123456789abcdef) /* of the peer */
#define CONNECTIONS 1024
#define ANSWERS_MAX ((size_t)512 * 1024) /* on one connection */
#define END_MS 10000
#define SECRET "what only both sides know"
#define CHALLENGE_BYTES ((size_t)TCP_STATUS_BYTES + TCP_NONCE_BYTES + TCP_PROOF_BYTES)
#define SPLICE_BYTES 4096 /* bodies from here up go through a pipe, if at all */
#define BREAKS_MAX 2      /* that a request has to live through, whatever else happened */
#define PATIENCE_MS 10000 /* of a request without a bound of its own */
#define ASLEEP 0x80       /* of a step */

struct task {
	uint8_t op;
	size_t length;
	bool canceled;           /* or given little time */
	uint32_t slices;         /* a bit each: all of them */
	uint32_t arrived;        /* whole, at the peer */
	uint32_t confirmed;      /* by what the peer sent, as far as the model goes */
	uint32_t honest;         /* by a peer that had said nothing wrong until then */
	int32_t sent_on[SLICES]; /* connection that has seen it, -1: none; forgiven ones do not count */
};

/* A request that arrived. */
struct request {
	struct task *task;
	uint32_t slice;
	size_t length;
	bool whole;
};

struct connection {
	int fd;
	bool hello; /* it begins with one */
	bool deaf;  /* the peer reads nothing for now */
	bool honest, half;
	bool gone; /* the initiator ended it */
	/* what comes next: a header, a part of the greeting, a body, its sum */
	enum { HELLO, PROOF, REQUESTS } stage;
	unsigned char part[TCP_HEADER_BYTES + TCP_NONCE_BYTES];
	size_t have; /* bytes of it */
	size_t left; /* of the body that arrives, the last request's */
	bool sum_due;
	uint64_t token;
	struct tcp_greeting about;
	uint32_t count, answered; /* requests that arrived; those that were answered as they should be */
	struct request requests[TASKS * SLICES];
	unsigned char *answers;
	size_t answers_length;
};

static struct rig {
	struct lw_engine *engine;
	struct lw_worker *worker;
	struct tcp_engine *tcp;
	struct tcp_pipes *pipes;
	struct lw_channel *channel;
	struct lw_view *view;
	struct lw_path *path;
	lw_segment_t segment;
	int listen_fd;
	uint32_t lanes;
	unsigned char *memory;
	unsigned char start[TASKS * SLOT];
	unsigned char filler[2 * SLOT];
	unsigned char right[TASKS * SLOT]; /* what the READs should have brought */
	/* of one input */
	bool small; /* what the peer sends goes through in parts */
	bool deaf;  /* it reads nothing at first */
	bool splice;
	uint8_t options; /* LW_TCP_CHECKSUM, LW_TCP_AUTH */
	uint64_t token;  /* of the lane's last connection, as far as its HELLO arrived */
	bool rough;      /* something happened that a request may fail for */
	uint32_t passed_ms;
	uint32_t breaks; /* connections that broke, none of which it has to fail for if they are few */
	lw_batch_t batch;
	uint32_t count;
	struct task tasks[TASKS];
	uint32_t connection_count;
	struct connection connections[CONNECTIONS];
} rig;

static bool has_sums(void)
{
	return (rig.options & LW_TCP_CHECKSUM) != 0;
}

static uint32_t sum_of(const void *bytes, size_t length)
{
	return tcp_checksum_wire(tcp_checksum_add(TCP_SUM_START, bytes, length));
}

static unsigned char *memory_of(const struct task *task)
{
	return rig.memory + (size_t)(task - rig.tasks) * SLOT + MARGIN;
}

static size_t place_of(const struct task *task)
{
	return (size_t)(task - rig.tasks) * SLOT + MARGIN;
}

static void open_listener(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct sockaddr_storage *data = &rig.view->data.addr[0];
	char name[16];

	/* The driver takes what is not IPv6 for an IPv4 address, so that the name has to have this length. */
	snprintf(name, sizeof(name), "lanewise%05d", (int)(getpid() % 100000));
	memcpy(addr.sun_path + 1, name, sizeof(struct sockaddr_in) - sizeof(addr.sun_family) - 1);
	rig.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	FUZZ_CHECK(bind(rig.listen_fd, (struct sockaddr *)&addr, sizeof(struct sockaddr_in)) == 0 &&
			   listen(rig.listen_fd, 64) == 0,
		   "no listener: %s", strerror(errno));
	memset(data, 0, sizeof(*data));
	memcpy(data, &addr, sizeof(struct sockaddr_in));
	rig.view->data.count = 1;
}

static void open_rig(void)
{
	struct test_fake *fake;
	char why[256];
	uint32_t index;

	fuzz_setup_begin();
	signal(SIGPIPE, SIG_IGN); /* a pipe's, as in a worker's thread */
	rig.engine = test_engine("poll=caller drivers=tcp max_lanes=16 slice_bytes=16384");
	rig.worker = &rig.engine->workers[0];
	for (uint32_t i = 0; i < lw_drivers_count; i++)
		if (lw_drivers[i] == &lw_tcp_ops)
			rig.tcp = rig.engine->driver_context[i];
	rig.pipes = &rig.tcp->workers[0]->pipes;
	FUZZ_CHECK(tcp_checksum_open(why, sizeof(why)) == 0 && tcp_auth_open(why, sizeof(why)) == 0, "%s", why);
	rig.memory = test_map(TASKS * SLOT, NULL);
	test_fill(rig.start, sizeof(rig.start), 1);
	test_fill(rig.filler, sizeof(rig.filler), 2);
	memcpy(rig.memory, rig.start, sizeof(rig.start));
	test_register(rig.engine, rig.memory, TASKS * SLOT, LW_ACCESS_LOCAL);
	FUZZ_CHECK(lw_channel_open(rig.engine, &rig.channel) == 0, "no channel");
	fake = test_fake_open();
	FUZZ_CHECK(lw_segment_open(rig.engine, test_fake_name(fake), 0, &rig.segment) == 0, "no segment");
	test_fake_close(fake);
	index = (uint32_t)rig.segment & LW_HANDLE_INDEX_MASK;
	rig.view = atomic_load(&rig.engine->segments[index].view);
	rig.path = &rig.worker->paths[index];
	open_listener();
	fuzz_eager(rig.worker);
	rig.lanes = rig.worker->free_lanes_count;
	fuzz_setup_end();
}

static void begin_hello(struct connection *connection)
{
	struct tcp_header header = tcp_header_get(connection->part);
	bool proves = (rig.options & LW_TCP_AUTH) != 0;

	for (size_t i = 18; i < TCP_HEADER_BYTES; i++)
		FUZZ_CHECK(connection->part[i] == 0, "padding of a header is not zero");
	FUZZ_CHECK(header.addr == INCARNATION && header.op == (TCP_OP_V2 | TCP_OP_HELLO), "no HELLO at first");
	FUZZ_CHECK(header.options == rig.options, "options %u", header.options);
	FUZZ_CHECK(header.size >> 8 != 0 && (rig.token == 0 || (tcp_token_same_lane(header.size, rig.token) &&
								tcp_token_newer(header.size, rig.token))),
		   "token %llx follows %llx", (unsigned long long)header.size, (unsigned long long)rig.token);
	connection->token = header.size;
	rig.token = header.size;
	memcpy(connection->about.hello, connection->part, TCP_HEADER_BYTES);
	memcpy(connection->about.initiator, connection->part + TCP_HEADER_BYTES, TCP_NONCE_BYTES);
	connection->stage = proves ? PROOF : REQUESTS;
}

/* Whether the peer has proven that it knows the secret. */
static bool challenged(struct connection *connection)
{
	const unsigned char *answers = connection->answers;
	uint64_t challenge = tcp_status_word(TCP_STATUS_CHALLENGE);
	unsigned char right[TCP_PROOF_BYTES];

	if (connection->answers_length < CHALLENGE_BYTES || connection->stage == HELLO)
		return false;
	memcpy(connection->about.target, answers + TCP_STATUS_BYTES, TCP_NONCE_BYTES);
	tcp_auth_prove(SECRET, TCP_TARGET, &connection->about, right);
	return memcmp(answers, &challenge, sizeof(challenge)) == 0 &&
	       memcmp(answers + TCP_STATUS_BYTES + TCP_NONCE_BYTES, right, sizeof(right)) == 0;
}

static void take_proof(struct connection *connection)
{
	unsigned char right[TCP_PROOF_BYTES];

	FUZZ_CHECK(challenged(connection), "something follows HELLO, though the peer has proven nothing");
	tcp_auth_prove(SECRET, TCP_INITIATOR, &connection->about, right);
	FUZZ_CHECK(memcmp(connection->part, right, sizeof(right)) == 0, "a wrong proof");
	connection->stage = REQUESTS;
}

/* A request whose header is whole. */
static void begin_request(struct connection *connection)
{
	struct tcp_header header = tcp_header_get(connection->part);
	uint64_t at = header.addr - TEST_FAKE_ADDR;
	uint8_t v2 = rig.view->tcp_version >= 2 ? TCP_OP_V2 : 0;
	uint32_t sum = has_sums() ? sum_of(connection->part, TCP_HEADER_SUM) : 0;
	struct request *request;
	struct task *task;
	size_t offset;
	int32_t seen;

	for (size_t i = 17; i < TCP_HEADER_SUM; i++)
		FUZZ_CHECK(connection->part[i] == 0, "padding of a header is not zero");
	FUZZ_CHECK(memcmp(connection->part + TCP_HEADER_SUM, &sum, sizeof(sum)) == 0, "a header's sum is wrong");
	FUZZ_CHECK(header.addr >= TEST_FAKE_ADDR && at / REMOTE_STEP < rig.count, "an address that nobody asked for");
	task = &rig.tasks[at / REMOTE_STEP];
	offset = (size_t)(at % REMOTE_STEP);
	FUZZ_CHECK(header.op == (v2 | (task->op == LW_WRITE ? TCP_OP_WRITE : TCP_OP_READ)), "operation %02x",
		   header.op);
	FUZZ_CHECK(offset % SLICE == 0 && offset < task->length &&
			   header.size == (task->length - offset < SLICE ? task->length - offset : SLICE),
		   "not a slice of task %zu", (size_t)(task - rig.tasks));
	FUZZ_CHECK(connection->count < TASKS * SLICES, "more requests than slices");
	request = &connection->requests[connection->count++];
	*request = (struct request){.task = task, .slice = (uint32_t)(offset / SLICE), .length = (size_t)header.size};
	if (task->op == LW_READ) {
		request->whole = true;
		return;
	}
	seen = task->sent_on[request->slice];
	FUZZ_CHECK(seen < 0 || (connection->hello && rig.connections[seen].token != 0 &&
				tcp_token_newer(connection->token, rig.connections[seen].token)),
		   "a WRITE was sent twice");
	task->sent_on[request->slice] = (int32_t)(connection - rig.connections);
	connection->left = request->length;
}

/* Where the body of the last request lies. */
static const unsigned char *body_of(const struct connection *connection)
{
	const struct request *request = &connection->requests[connection->count - 1];

	return rig.start + place_of(request->task) + request->slice * SLICE;
}

static void end_body(struct connection *connection)
{
	struct request *request = &connection->requests[connection->count - 1];

	request->whole = true;
	request->task->arrived |= UINT32_C(1) << request->slice;
}

/* How many bytes have to be there before the next thing happens. */
static size_t needs(const struct connection *connection)
{
	if (connection->sum_due)
		return TCP_SUM_BYTES;
	if (connection->stage == PROOF)
		return TCP_PROOF_BYTES;
	if (connection->stage == HELLO && (rig.options & LW_TCP_AUTH) != 0)
		return TCP_HEADER_BYTES + TCP_NONCE_BYTES;
	return TCP_HEADER_BYTES;
}

static void take_part(struct connection *connection)
{
	connection->have = 0;
	if (connection->sum_due) {
		uint32_t sum = sum_of(body_of(connection), connection->requests[connection->count - 1].length);

		FUZZ_CHECK(memcmp(connection->part, &sum, sizeof(sum)) == 0, "a body's sum is wrong");
		connection->sum_due = false;
		end_body(connection);
	} else if (connection->stage == HELLO) {
		begin_hello(connection);
	} else if (connection->stage == PROOF) {
		take_proof(connection);
	} else {
		begin_request(connection);
	}
}

static void take_bytes(struct connection *connection, const unsigned char *bytes, size_t length)
{
	size_t here;

	for (; length > 0; bytes += here, length -= here) {
		if (connection->left != 0) {
			size_t whole = connection->requests[connection->count - 1].length;

			here = connection->left < length ? connection->left : length;
			FUZZ_CHECK(memcmp(bytes, body_of(connection) + whole - connection->left, here) == 0,
				   "other bytes than those in memory");
			connection->left -= here;
			connection->sum_due = connection->left == 0 && has_sums();
			if (connection->left == 0 && !connection->sum_due)
				end_body(connection);
			continue;
		}
		here = needs(connection) - connection->have;
		here = here < length ? here : length;
		memcpy(connection->part + connection->have, bytes, here);
		connection->have += here;
		if (connection->have == needs(connection))
			take_part(connection);
	}
}

static void read_requests(struct connection *connection)
{
	static unsigned char bytes[64 * 1024];
	ssize_t got;

	while ((got = recv(connection->fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		take_bytes(connection, bytes, (size_t)got);
	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
		connection->gone = true;
}

/* The connection that the lane has now, or NULL. */
static struct connection *current(void)
{
	struct connection *last;

	if (rig.connection_count == 0)
		return NULL;
	last = &rig.connections[rig.connection_count - 1];
	return last->fd >= 0 ? last : NULL;
}

/* A refusal means that nothing behind it was looked at: it may be sent once more. */
static void forgive(struct connection *connection, uint32_t from)
{
	for (uint32_t i = from; i < connection->count; i++)
		connection->requests[i].task->sent_on[connection->requests[i].slice] = -1;
}

/* How many bytes of answers are the greeting. SIZE_MAX: it is not whole, or not as it should be. */
static size_t greeting(struct connection *connection)
{
	uint64_t ok = tcp_status_word(TCP_STATUS_OK);
	size_t before = (rig.options & LW_TCP_AUTH) != 0 ? CHALLENGE_BYTES : 0;

	if (!connection->hello)
		return 0;
	if (before != 0 && !challenged(connection))
		return SIZE_MAX;
	if (connection->answers_length < before + sizeof(ok) ||
	    memcmp(connection->answers + before, &ok, sizeof(ok)) != 0)
		return SIZE_MAX;
	return before + sizeof(ok);
}

/* Goes through all that the peer has sent. */
static void judge(struct connection *connection)
{
	size_t begin = greeting(connection), left;
	bool v2 = rig.view->tcp_version >= 2;
	const unsigned char *answers;
	uint64_t word;
	uint32_t sum;

	if (begin == SIZE_MAX)
		return;
	answers = connection->answers + begin;
	left = connection->answers_length - begin;
	for (uint32_t i = 0; i < connection->count; i++) {
		struct request *request = &connection->requests[i];
		struct task *task = request->task;
		size_t body = task->op == LW_READ ? request->length : 0;
		size_t tail = task->op == LW_READ && has_sums() ? TCP_SUM_BYTES : 0;
		bool right;

		if (v2) {
			if (left < sizeof(word))
				return;
			memcpy(&word, answers, sizeof(word));
			if (word == tcp_status_word(TCP_STATUS_REFUSED) || word == tcp_status_word(TCP_STATUS_CORRUPT))
				forgive(connection, i + 1);
			if (word == tcp_status_word(TCP_STATUS_LEAVING))
				forgive(connection, i);
			if (word != tcp_status_word(TCP_STATUS_OK))
				return;
			answers += sizeof(word);
			left -= sizeof(word);
		}
		if (left < body + tail || !request->whole)
			return;
		sum = tail != 0 ? sum_of(answers, body) : 0;
		right = memcmp(answers + body, &sum, tail) == 0;
		if (body != 0 && right)
			memcpy(rig.right + place_of(task) + request->slice * SLICE, answers, body);
		answers += body + tail;
		left -= body + tail;
		/* A sum that differs is this one's misfortune. */
		if (right)
			task->confirmed |= UINT32_C(1) << request->slice;
	}
}

static void close_connection(struct connection *connection)
{
	read_requests(connection);
	judge(connection);
	close(connection->fd);
	connection->fd = -1;
}

/* What the lane sends from now on goes through pipes, as it would if the engine had threads of its own. */
static void use_pipes(void)
{
	struct lw_lane *lane = rig.path->lanes != 0 ? rig.path->lane[0] : NULL;

	if (rig.splice && rig.view->tcp_version >= 2 && lane != NULL && lw_lane_state(lane) == LW_LANE_UP)
		((struct tcp_lane *)(void *)lane->own)->splices = true;
}

static void accept_all(void)
{
	int fd, small = 4096;

	while ((fd = accept4(rig.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		struct connection *old = current(), *connection;
		unsigned char *answers;

		if (old != NULL)
			close_connection(old);
		FUZZ_CHECK(rig.connection_count < CONNECTIONS, "the lane connects again and again");
		connection = &rig.connections[rig.connection_count++];
		answers = connection->answers;
		memset(connection, 0, offsetof(struct connection, requests));
		connection->answers = answers;
		connection->answers_length = 0;
		connection->fd = fd;
		connection->honest = true;
		connection->deaf = rig.deaf;
		connection->hello = rig.view->incarnation != 0 && rig.view->tcp_version >= 2;
		connection->stage = connection->hello ? HELLO : REQUESTS;
		use_pipes();
		if (answers == NULL)
			connection->answers = malloc(ANSWERS_MAX);
		FUZZ_CHECK(connection->answers != NULL, "no memory");
		if (rig.small)
			setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	}
}

/* Lanes, listener and peer go on until nothing moves any more. */
static void drive(void)
{
	struct connection *connection;
	uint32_t before, count;
	size_t left;

	do {
		fuzz_drive(rig.worker);
		accept_all();
		before = rig.connection_count;
		connection = current();
		if (connection == NULL || connection->deaf)
			return;
		count = connection->count;
		left = connection->left;
		read_requests(connection);
		fuzz_drive(rig.worker);
		accept_all();
	} while (rig.connection_count != before || connection->count != count || connection->left != left);
}

/* Sends; what does not get through is not sent at all. True if all of it did. */
static bool send_bytes(const void *memory, size_t length)
{
	struct connection *connection = current();
	const unsigned char *bytes = memory;

	if (connection == NULL || connection->half)
		return false;
	for (int tries = 0; length > 0 && tries < 4 && connection == current();) {
		ssize_t sent;

		if (connection->answers_length + length > ANSWERS_MAX)
			return false;
		sent = send(connection->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent > 0) {
			memcpy(connection->answers + connection->answers_length, bytes, (size_t)sent);
			connection->answers_length += (size_t)sent;
			bytes += sent;
			length -= (size_t)sent;
			tries = 0;
			continue;
		}
		if (errno != EAGAIN)
			return false;
		drive();
		tries++;
	}
	return length == 0;
}

static bool send_status(uint32_t code)
{
	uint64_t word = htole64(TCP_STATUS_MAGIC << 32 | code);

	return send_bytes(&word, sizeof(word));
}

/* Bytes for the body of a READ, other ones each time. */
static const unsigned char *some_filler(const struct connection *connection)
{
	return rig.filler + (connection->answers_length * 31 + rig.connection_count) % SLOT;
}

static bool send_filler(size_t length)
{
	const struct connection *connection = current();

	return connection != NULL && send_bytes(some_filler(connection), length);
}

/* The body of a READ, and its sum where one is asked for. */
static bool send_body(size_t length, bool wrong)
{
	const struct connection *connection = current();
	const unsigned char *body;
	uint32_t sum;

	if (connection == NULL)
		return false;
	body = some_filler(connection);
	sum = has_sums() ? sum_of(body, length) ^ htole32(wrong) : 0;
	return send_bytes(body, length) && (!has_sums() || send_bytes(&sum, sizeof(sum)));
}

/* What a peer says to HELLO. */
static bool send_challenge(bool wrong)
{
	struct connection *connection = current();
	unsigned char bytes[CHALLENGE_BYTES];
	uint64_t word = tcp_status_word(TCP_STATUS_CHALLENGE);

	memcpy(bytes, &word, sizeof(word));
	memcpy(connection->about.target, some_filler(connection), TCP_NONCE_BYTES);
	memcpy(bytes + TCP_STATUS_BYTES, connection->about.target, TCP_NONCE_BYTES);
	tcp_auth_prove(SECRET, TCP_TARGET, &connection->about, bytes + TCP_STATUS_BYTES + TCP_NONCE_BYTES);
	bytes[CHALLENGE_BYTES - 1] ^= wrong;
	return send_bytes(bytes, sizeof(bytes));
}

/* Goes on with the greeting. False: it is over. */
static bool greet(bool wrong)
{
	struct connection *connection = current();
	size_t before = (rig.options & LW_TCP_AUTH) != 0 ? CHALLENGE_BYTES : 0;

	if (!connection->hello || connection->answers_length >= before + TCP_STATUS_BYTES)
		return false;
	if (connection->answers_length < before) {
		if (connection->stage != HELLO && !send_challenge(wrong))
			connection->honest = false;
	} else if (connection->stage == REQUESTS && !send_status(TCP_STATUS_OK)) {
		connection->honest = false;
	}
	return true;
}

/* What a peer should say now, as far as it has something to say; but for a sum or a proof, if it is to be wrong. */
static void answer_next(bool wrong)
{
	struct connection *connection = current();
	struct request *request;
	bool sent;

	if (connection == NULL || greet(wrong))
		return;
	if (connection->answered == connection->count || !connection->requests[connection->answered].whole)
		return;
	request = &connection->requests[connection->answered++];
	sent = rig.view->tcp_version < 2 || send_status(TCP_STATUS_OK);
	if (sent && request->task->op == LW_READ)
		sent = send_body(request->length, wrong);
	if (!sent)
		connection->honest = false;
	if (wrong && has_sums() && request->task->op == LW_READ)
		return;
	if (connection->honest && !request->task->canceled)
		request->task->honest |= UINT32_C(1) << request->slice;
}

static void submit(struct fuzz_input *input)
{
	static const size_t lengths[] = {
		1, 7, 8, 9, 24, 100, 4096, SLICE, SLICE + 1, 40000, SLICES * SLICE - 2 * MARGIN};
	static const uint32_t timeouts_ms[] = {0, 0, 1, 10, 100, 1000, 2000, 60000};
	uint8_t what = fuzz_u8(input);
	struct task *task = &rig.tasks[rig.count];
	struct lw_request request = {.segment = rig.segment};

	if (rig.count == TASKS)
		return;
	request.timeout_ms = timeouts_ms[what / 32];
	*task = (struct task){.op = what % 2 == 0 ? LW_READ : LW_WRITE,
			      .length = lengths[what / 2 % 16 % (sizeof(lengths) / sizeof(lengths[0]))],
			      .canceled = request.timeout_ms != 0};
	task->slices = (UINT32_C(1) << (task->length + SLICE - 1) / SLICE) - 1;
	for (size_t i = 0; i < SLICES; i++)
		task->sent_on[i] = -1;
	request.local = memory_of(task);
	request.offset = TEST_FAKE_ADDR + rig.count * REMOTE_STEP;
	request.length = task->length;
	request.op = task->op;
	rig.count++;
	FUZZ_CHECK(lw_submit(rig.channel, rig.batch, &request, 1) == 0, "not submitted");
}

/* Where connections are greeted with a token, what broke is repeated. */
static void break_connection(struct connection *connection)
{
	rig.rough |= !connection->hello;
	rig.breaks++;
	close_connection(connection);
}

/* The lower five bits of a step's first byte say what it is, ASLEEP that the lane sleeps through it, so that it finds
 * several at once. */
static void step(struct fuzz_input *input)
{
	static const uint32_t statuses[] = {0, 1, 2, 3, 4, 5, 6, TCP_STATUS_LEAVING};
	uint8_t what = fuzz_u8(input), kind = (what & 31) < 18 ? what & 31 : what & 15;
	struct connection *connection = current();
	const uint8_t *bytes;
	size_t length;
	uint32_t task;

	/* All but honest answers and waiting. */
	if (connection != NULL && kind < 4)
		connection->honest = false;
	rig.rough |= kind < 4 || (kind > 8 && kind != 11 && (kind < 13 || kind == 16));
	switch (kind) {
	case 0:
		send_status(TCP_STATUS_OK);
		break;
	case 1:
		send_status(statuses[fuzz_u8(input) % 8]);
		break;
	case 2: /* bytes as they stand in the input */
		length = fuzz_bytes(input, fuzz_u8(input), &bytes);
		send_bytes(bytes, length);
		break;
	case 3:
		send_filler(fuzz_u16(input));
		break;
	case 4:
	case 5:
		answer_next(false);
		break;
	case 6: /* all that is due */
	case 7:
		for (int i = 0; i < TASKS * SLICES + 2; i++)
			answer_next(false);
		break;
	case 8:
		if (connection != NULL)
			break_connection(connection);
		break;
	case 9: /* the peer says no more */
		if (connection != NULL) {
			shutdown(connection->fd, SHUT_WR);
			connection->half = true;
		}
		break;
	case 10: /* it hears no more */
		if (connection != NULL) {
			read_requests(connection);
			shutdown(connection->fd, SHUT_RD);
			connection->honest = false;
		}
		break;
	case 11:
		submit(input);
		break;
	case 12:
		task = fuzz_u8(input);
		if (rig.count != 0) {
			rig.tasks[task % rig.count].canceled = true;
			FUZZ_CHECK(lw_task_cancel(rig.engine, rig.batch, task % rig.count) == 0, "no cancel");
		}
		break;
	case 13: /* it does not listen for a while */
		if (connection != NULL)
			connection->deaf = !connection->deaf;
		break;
	case 14:
		length = fuzz_u8(input) * (size_t)8;
		fuzz_time_passes((uint32_t)length);
		rig.passed_ms += (uint32_t)length;
		break;
	case 15: /* it waits */
		break;
	case 16: /* as it should be, but for a sum or a proof */
		answer_next(true);
		break;
	default: /* it needs the connection's place for another one, and says so in order */
		if (connection != NULL && connection->hello) {
			send_status(TCP_STATUS_LEAVING);
			rig.breaks += greeting(connection) == SIZE_MAX;
			close_connection(connection);
		}
		break;
	}
	if ((what & ASLEEP) == 0)
		drive();
}

/* Whether all that happened is what a request has to live through. */
static bool is_gentle(void)
{
	if (rig.rough || rig.small || rig.breaks > BREAKS_MAX || rig.passed_ms > PATIENCE_MS)
		return false;
	for (uint32_t i = 0; i < rig.count; i++)
		if (rig.tasks[i].canceled && rig.passed_ms != 0)
			return false;
	return true;
}

/* The peer serves all that is left, and all of it is done. */
static void finish_gently(void)
{
	struct lw_batch_status status;

	for (int turns = 0; turns < 3 * TASKS * SLICES; turns++) {
		struct connection *connection = current();

		if (connection != NULL)
			connection->deaf = false;
		drive();
		FUZZ_CHECK(lw_batch_status(rig.engine, rig.batch, &status) == 0, "no status");
		if (status.done == status.tasks)
			break;
		answer_next(false);
		if (connection != NULL && !connection->honest)
			return;
	}
	FUZZ_CHECK(status.done == status.tasks && status.failed == 0,
		   "of %u requests to a peer that serves all %u are done, and %u failed", status.tasks, status.done,
		   status.failed);
}

/* No connection stays, until all has ended. */
static void finish(void)
{
	uint64_t begin_ms = 0;

	for (;;) {
		struct connection *connection;
		struct lw_batch_status status;

		/* What is on its way arrives, so that the model knows what the lane has. */
		drive();
		connection = current();
		FUZZ_CHECK(lw_batch_status(rig.engine, rig.batch, &status) == 0, "no status");
		if (connection != NULL)
			close_connection(connection);
		else if (status.done == status.tasks)
			return;
		begin_ms = begin_ms != 0 ? begin_ms : fuzz_real_ms();
		FUZZ_CHECK(fuzz_real_ms() - begin_ms < END_MS, "%u of %u requests have ended", status.done,
			   status.tasks);
	}
}

static void check_task(uint32_t number)
{
	struct task *task = &rig.tasks[number];
	const unsigned char *memory = rig.memory + number * SLOT, *start = rig.start + number * SLOT;
	size_t end = MARGIN + task->length;
	struct lw_task_status status;

	FUZZ_CHECK(lw_task_status(rig.engine, rig.batch, number, &status) == 0, "no status");
	FUZZ_CHECK(status.state != LW_PENDING && status.bytes <= task->length, "task %u: state %u, %llu bytes", number,
		   status.state, (unsigned long long)status.bytes);
	if (status.state == LW_COMPLETED) {
		FUZZ_CHECK(status.bytes == task->length, "task %u completed with too few bytes", number);
		/* Without an answer "left our socket" is all that can be known. */
		if (rig.view->tcp_version < 2 && task->op == LW_WRITE)
			FUZZ_CHECK(task->arrived == task->slices, "task %u completed, and did not arrive", number);
		else
			FUZZ_CHECK(task->confirmed == task->slices, "task %u completed, and was not confirmed", number);
		if (task->op == LW_READ)
			FUZZ_CHECK(memcmp(memory + MARGIN, rig.right + place_of(task), task->length) == 0,
				   "task %u completed with other bytes than were sent", number);
	} else {
		FUZZ_CHECK(task->honest != task->slices, "task %u was confirmed, and ended in state %u: %s", number,
			   status.state, lw_reason_string((int)status.reason));
	}
	if (task->op == LW_WRITE)
		end = MARGIN;
	FUZZ_CHECK(memcmp(memory, start, MARGIN) == 0 && memcmp(memory + end, start + end, SLOT - end) == 0,
		   "task %u changed memory that is not its own", number);
}

/* Sets what the two sides would have to have set alike, and what else there is. */
static void agree(uint8_t more)
{
	struct lw_config *config = &rig.engine->config;

	rig.options = more & 3;
	rig.splice = (more & 4) != 0;
	config->tcp_checksum = has_sums();
	snprintf(config->tcp_secret, sizeof(config->tcp_secret), "%s", (rig.options & LW_TCP_AUTH) != 0 ? SECRET : "");
	config->tcp_idle_s = (more & 8) != 0 ? 1 : 60;
	rig.view->tcp_options = rig.options;
	rig.tcp->splice_bytes = rig.splice ? SPLICE_BYTES : UINT64_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {.at = data, .left = size};
	uint8_t options, more;

	if (rig.engine == NULL)
		open_rig();
	rig.count = 0;
	rig.connection_count = 0;
	rig.token = 0;
	rig.rough = false;
	rig.breaks = 0;
	rig.passed_ms = 0;
	options = fuzz_u8(&input);
	more = (options & 0x80) != 0 ? fuzz_u8(&input) : 0;
	if ((more & 3) != 0)
		options = (options & (uint8_t)~3u) | 1;
	agree(more);
	rig.small = (options & 4) != 0;
	rig.deaf = (options & 8) != 0;
	rig.view->tcp_version = (options & 3) == 3 ? 1 : 2;
	rig.view->incarnation = (options & 1) != 0 ? INCARNATION : 0;
	FUZZ_CHECK(lw_batch_alloc(rig.channel, TASKS, 0, NULL, &rig.batch) == 0, "no batch");
	for (uint32_t requests = options / 16 % 8; requests-- > 0;)
		submit(&input);
	drive();
	while (input.left > 0)
		step(&input);
	if (is_gentle())
		finish_gently();
	finish();
	for (uint32_t i = 0; i < rig.count; i++)
		check_task(i);
	FUZZ_CHECK(lw_batch_free(rig.engine, rig.batch) == 0, "the batch is not free");
	/* The next input finds a path without a past. */
	lw_path_reset(rig.worker, rig.path, LW_REASON_SHUTDOWN, LW_RESET_FORCE);
	fuzz_drive(rig.worker);
	FUZZ_CHECK(rig.worker->free_lanes_count == rig.lanes && rig.worker->slices_held == 0 && rig.worker->ios == 0 &&
			   rig.worker->hot == 1,
		   "not all was given back: %u of %u lanes, %u slices, %u descriptors, %u posted",
		   rig.worker->free_lanes_count, rig.lanes, rig.worker->slices_held, rig.worker->ios, rig.worker->hot);
	for (int i = 0; i < TCP_PIPES; i++)
		FUZZ_CHECK(!rig.pipes->pipe[i].taken, "pipe %d was not given back", i);
	for (uint32_t i = 0; i < rig.count; i++)
		if (rig.tasks[i].op == LW_READ)
			memcpy(memory_of(&rig.tasks[i]), rig.start + place_of(&rig.tasks[i]), rig.tasks[i].length);
	return 0;
}
