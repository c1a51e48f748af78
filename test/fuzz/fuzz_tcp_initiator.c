/* SPDX-License-Identifier: Apache-2.0 */
/* A lane of the TCP driver against a peer that answers as the input says.
 *
 * One engine without threads stays open, with one segment of a peer that does not exist but for its descriptor. Lanes
 * connect to a local socket of ours (its bytes are there at once, and none gets lost). An input is two bytes of
 * options, requests, and steps of the peer: see step(). What arrives at the peer is checked byte by byte as it comes.
 * At the end the peer closes each connection, and then: every request has ended; what COMPLETED was confirmed in full,
 * with just the bytes that are in memory now; what an honest peer confirmed is COMPLETED; no WRITE was sent twice, but
 * for those that stood behind a refusal; no other memory changed.
 */
#include <errno.h>
#include <netinet/in.h>
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
	unsigned char header[TCP_HEADER_BYTES];
	size_t have; /* bytes of header */
	size_t left; /* of the body that arrives, the last request's */
	bool greeted;
	uint32_t count, answered; /* requests that arrived; those that were answered as they should be */
	struct request requests[TASKS * SLICES];
	unsigned char *answers;
	size_t answers_length;
};

static struct rig {
	struct lw_engine *engine;
	struct lw_worker *worker;
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
	lw_batch_t batch;
	uint32_t count;
	struct task tasks[TASKS];
	uint32_t connection_count;
	struct connection connections[CONNECTIONS];
} rig;

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
	uint32_t index;

	fuzz_setup_begin();
	rig.engine = test_engine("poll=caller drivers=tcp max_lanes=16 slice_bytes=16384");
	rig.worker = &rig.engine->workers[0];
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

/* A request whose header is whole. */
static void begin_request(struct connection *connection)
{
	struct tcp_header header = tcp_header_get(connection->header);
	uint64_t at = header.addr - TEST_FAKE_ADDR;
	uint8_t v2 = rig.view->tcp_version >= 2 ? TCP_OP_V2 : 0;
	struct request *request;
	struct task *task;
	size_t offset;

	for (size_t i = 17; i < TCP_HEADER_BYTES; i++)
		FUZZ_CHECK(connection->header[i] == 0, "padding of a header is not zero");
	if (connection->hello && !connection->greeted) {
		FUZZ_CHECK(header.size == 0 && header.addr == INCARNATION && header.op == (TCP_OP_V2 | TCP_OP_HELLO),
			   "no HELLO at first");
		connection->greeted = true;
		return;
	}
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
	if (task->op == LW_WRITE) {
		FUZZ_CHECK(task->sent_on[request->slice] < 0, "a WRITE was sent twice");
		task->sent_on[request->slice] = (int32_t)(connection - rig.connections);
		connection->left = request->length;
	} else {
		request->whole = true;
	}
}

static void take_bytes(struct connection *connection, const unsigned char *bytes, size_t length)
{
	size_t here;

	for (; length > 0; bytes += here, length -= here) {
		if (connection->left != 0) {
			struct request *request = &connection->requests[connection->count - 1];
			size_t at =
				place_of(request->task) + request->slice * SLICE + request->length - connection->left;

			here = connection->left < length ? connection->left : length;
			FUZZ_CHECK(memcmp(bytes, rig.start + at, here) == 0, "other bytes than those in memory");
			connection->left -= here;
			if (connection->left == 0) {
				request->whole = true;
				request->task->arrived |= UINT32_C(1) << request->slice;
			}
			continue;
		}
		here = TCP_HEADER_BYTES - connection->have < length ? TCP_HEADER_BYTES - connection->have : length;
		memcpy(connection->header + connection->have, bytes, here);
		connection->have += here;
		if (connection->have == TCP_HEADER_BYTES) {
			connection->have = 0;
			begin_request(connection);
		}
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

/* Goes through all that the peer has sent. */
static void judge(struct connection *connection)
{
	const unsigned char *answers = connection->answers;
	size_t left = connection->answers_length;
	bool v2 = rig.view->tcp_version >= 2;
	uint64_t word;

	if (connection->hello) {
		memcpy(&word, answers, left < sizeof(word) ? 0 : sizeof(word));
		if (left < sizeof(word) || word != tcp_status_word(TCP_STATUS_OK))
			return;
		answers += sizeof(word);
		left -= sizeof(word);
	}
	for (uint32_t i = 0; i < connection->count; i++) {
		struct request *request = &connection->requests[i];
		struct task *task = request->task;
		size_t body = task->op == LW_READ ? request->length : 0;

		if (v2) {
			if (left < sizeof(word))
				return;
			memcpy(&word, answers, sizeof(word));
			if (word == tcp_status_word(TCP_STATUS_REFUSED))
				forgive(connection, i + 1);
			if (word != tcp_status_word(TCP_STATUS_OK))
				return;
			answers += sizeof(word);
			left -= sizeof(word);
		}
		if (left < body || !request->whole)
			return;
		if (body != 0)
			memcpy(rig.right + place_of(task) + request->slice * SLICE, answers, body);
		answers += body;
		left -= body;
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
static bool send_filler(size_t length)
{
	const struct connection *connection = current();

	if (connection == NULL)
		return false;
	return send_bytes(rig.filler + (connection->answers_length * 31 + rig.connection_count) % SLOT, length);
}

/* What a peer should say now, as far as it has something to say. */
static void answer_next(void)
{
	struct connection *connection = current();
	struct request *request;
	bool sent;

	if (connection == NULL)
		return;
	if (connection->hello && connection->answers_length < TCP_STATUS_BYTES) {
		if (!connection->greeted || !send_status(TCP_STATUS_OK))
			connection->honest = false;
		return;
	}
	if (connection->answered == connection->count || !connection->requests[connection->answered].whole)
		return;
	request = &connection->requests[connection->answered++];
	sent = rig.view->tcp_version < 2 || send_status(TCP_STATUS_OK);
	if (sent && request->task->op == LW_READ)
		sent = send_filler(request->length);
	if (!sent)
		connection->honest = false;
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

/* The lower four bits of a step's first byte say what it is, the highest whether the lane sleeps through it, so that it
 * finds several at once. */
static void step(struct fuzz_input *input)
{
	uint8_t what = fuzz_u8(input);
	struct connection *connection = current();
	const uint8_t *bytes;
	size_t length;
	uint32_t task;

	/* All but honest answers and waiting. */
	if (connection != NULL && (what & 15) < 4)
		connection->honest = false;
	switch (what & 15) {
	case 0:
		send_status(TCP_STATUS_OK);
		break;
	case 1:
		send_status(fuzz_u8(input) % 4);
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
		answer_next();
		break;
	case 6: /* all that is due */
	case 7:
		for (int i = 0; i < TASKS * SLICES + 1; i++)
			answer_next();
		break;
	case 8:
		if (connection != NULL)
			close_connection(connection);
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
		fuzz_time_passes(fuzz_u8(input) * 8u);
		break;
	default:
		break;
	}
	if ((what & 0x80) == 0)
		drive();
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {.at = data, .left = size};
	uint8_t options;

	if (rig.engine == NULL)
		open_rig();
	rig.count = 0;
	rig.connection_count = 0;
	options = fuzz_u8(&input);
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
	finish();
	for (uint32_t i = 0; i < rig.count; i++)
		check_task(i);
	FUZZ_CHECK(lw_batch_free(rig.engine, rig.batch) == 0, "the batch is not free");
	/* The next input finds a path without a past. */
	lw_path_reset(rig.worker, rig.path, LW_REASON_SHUTDOWN);
	fuzz_drive(rig.worker);
	FUZZ_CHECK(rig.worker->free_lanes_count == rig.lanes && rig.worker->slices_held == 0 && rig.worker->ios == 0 &&
			   rig.worker->hot == 1,
		   "not all was given back: %u of %u lanes, %u slices, %u descriptors, %u posted",
		   rig.worker->free_lanes_count, rig.lanes, rig.worker->slices_held, rig.worker->ios, rig.worker->hot);
	for (uint32_t i = 0; i < rig.count; i++)
		if (rig.tasks[i].op == LW_READ)
			memcpy(memory_of(&rig.tasks[i]), rig.start + place_of(&rig.tasks[i]), rig.tasks[i].length);
	return 0;
}
