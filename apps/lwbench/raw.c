/* SPDX-License-Identifier: Apache-2.0 */
/* lwbench raw: what a plain TCP connection between two processes does with the same blocks. One side sends blocks, one
 * call a block or as many as --gather says; the other receives into memory that it cycles through. One byte goes the
 * other way for each batch: with write it confirms the batch, with read it asks for the next. At most depth batches are
 * under way. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/common/host.h"
#include "apps/lwbench/commands.h"
#include "apps/lwbench/report.h"

#define WAIT_MS 10000 /* nothing moves for so long: the other side hangs */
#define SPINS 65536   /* calls without a byte until spin sleeps in poll, which has the time limit */

/* Written by the peer process. */
struct shared {
	_Atomic double cpu_begin_s;
	_Atomic double cpu_end_s;
};

struct raw {
	const struct options *options;
	unsigned char *memory; /* each process maps its own: a forked copy would be in small pages */
	uint64_t block;
	uint64_t blocks; /* in the memory */
	uint64_t cursor;
	int socket;
};

/* Waits until the socket takes or has bytes. */
static bool ready(int socket, short events)
{
	struct pollfd fd = {.fd = socket, .events = events};

	return poll(&fd, 1, WAIT_MS) > 0;
}

/* Whether a call that gave no byte, with errno set, may be made again. calls counts those in a row. */
static bool again(const struct raw *raw, bool out, unsigned *calls)
{
	if (errno == EINTR)
		return true;
	if (errno != EAGAIN || raw->options->wait == RAW_BLOCK) /* then its own time limit was over */
		return false;
	if (raw->options->wait == RAW_SPIN && ++*calls < SPINS)
		return true;
	*calls = 0;
	return ready(raw->socket, out ? POLLOUT : POLLIN);
}

/* Moves size bytes. 1; 0 the other side closed before the first byte; -1 it failed. */
static int move_bytes(struct raw *raw, unsigned char *at, uint64_t size, bool out)
{
	const int flags = raw->options->wait == RAW_BLOCK ? MSG_WAITALL : 0;
	unsigned calls = 0;

	for (uint64_t done = 0; done < size;) {
		ssize_t n = out ? send(raw->socket, at + done, size - done, MSG_NOSIGNAL)
				: recv(raw->socket, at + done, size - done, flags);

		if (n > 0) {
			done += (uint64_t)n;
			calls = 0;
		} else if (n == 0) {
			return done ? -1 : 0;
		} else if (!again(raw, out, &calls)) {
			return -1;
		}
	}
	return 1;
}

/* The same with the next count blocks, which one call may take all of. */
static int move_blocks(struct raw *raw, uint32_t count, bool out)
{
	const int flags = out ? MSG_NOSIGNAL : raw->options->wait == RAW_BLOCK ? MSG_WAITALL : 0;
	struct iovec iov[OPTIONS_GATHER];
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
	unsigned calls = 0;
	bool any = false;

	for (uint32_t i = 0; i < count; i++)
		iov[i] = (struct iovec){.iov_base = raw->memory + (raw->cursor + i) % raw->blocks * raw->block,
					.iov_len = raw->block};
	while (message.msg_iovlen) {
		ssize_t n = out ? sendmsg(raw->socket, &message, flags) : recvmsg(raw->socket, &message, flags);

		if (n == 0)
			return any ? -1 : 0;
		if (n < 0) {
			if (!again(raw, out, &calls))
				return -1;
			continue;
		}
		any = true;
		calls = 0;
		size_t left = (size_t)n;
		for (; message.msg_iovlen && left >= message.msg_iov->iov_len; message.msg_iovlen--)
			left -= message.msg_iov++->iov_len;
		if (left) {
			message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + left;
			message.msg_iov->iov_len -= left;
		}
	}
	return 1;
}

/* Sends or receives one batch, block by block or gather blocks a call. As move_bytes. */
static int move_batch(struct raw *raw, bool out)
{
	uint32_t left = raw->options->batch, gather = raw->options->gather;
	int rc = 1;

	while (left && rc == 1) {
		uint32_t count = left < gather ? left : gather;

		rc = count > 1 ? move_blocks(raw, count, out)
			       : move_bytes(raw, raw->memory + raw->cursor * raw->block, raw->block, out);
		raw->cursor = (raw->cursor + count) % raw->blocks;
		left -= count;
	}
	return rc;
}

static void tune(const struct raw *raw)
{
	const struct timeval limit = {.tv_sec = WAIT_MS / 1000};
	int one = 1;

	setsockopt(raw->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* As the engine does inside one host. */
	setsockopt(raw->socket, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	if (raw->options->wait == RAW_BLOCK) {
		setsockopt(raw->socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		setsockopt(raw->socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	} else {
		fcntl(raw->socket, F_SETFL, fcntl(raw->socket, F_GETFL) | O_NONBLOCK);
	}
}

/* The other process: serves batches until its partner closes. The first depth of them are the warm-up. */
static int peer_main(struct raw *raw, struct shared *shared, int listener)
{
	bool out = raw->options->op == LW_READ;
	unsigned char byte = 0;
	int rc = 1;

	close(raw->socket); /* our copy of the partner's end would keep it open */
	if (raw->options->pin)
		app_pin(0);
	raw->memory = app_memory_map(raw->options->buffer_bytes);
	raw->socket = accept(listener, NULL, NULL);
	if (raw->socket < 0 || !raw->memory)
		return EXIT_OPEN;
	tune(raw);
	app_pattern_fill(raw->memory, raw->options->buffer_bytes, 2);
	rc = move_bytes(raw, &byte, 1, true); /* ready */
	for (uint64_t served = 0; rc == 1; served++) {
		if (served == raw->options->depth)
			atomic_store(&shared->cpu_begin_s, app_cpu_seconds(NULL, NULL));
		rc = out ? move_bytes(raw, &byte, 1, false) : move_batch(raw, false);
		if (rc == 1)
			rc = out ? move_batch(raw, true) : move_bytes(raw, &byte, 1, true);
	}
	atomic_store(&shared->cpu_end_s, app_cpu_seconds(NULL, NULL));
	return rc == 0 ? EXIT_OK : EXIT_FAILED;
}

/* Moves quota batches, or until end_ns. Write: sends while less than depth batches are unconfirmed, then waits for the
 * oldest. Read: asks for depth batches and asks again as they come. starts holds the times of those under way. false:
 * the connection failed. */
static bool drive(struct raw *raw, struct row *row, uint64_t *starts, uint64_t quota, uint64_t end_ns)
{
	const struct options *options = raw->options;
	const bool out = options->op == LW_WRITE;
	uint64_t begin_ns = app_clock_ns(), now = begin_ns, issued = 0, done = 0;
	unsigned char byte = 1;

	for (;;) {
		while (issued - done < options->depth && issued < quota && now < end_ns) {
			starts[issued++ % options->depth] = now;
			if ((out ? move_batch(raw, true) : move_bytes(raw, &byte, 1, true)) != 1)
				return false;
			now = app_clock_ns();
		}
		if (issued == done)
			break;
		if ((out ? move_bytes(raw, &byte, 1, false) : move_batch(raw, false)) != 1)
			return false;
		now = app_clock_ns();
		hist_add(&row->latency, now - starts[done++ % options->depth]);
	}
	row->seconds = (double)(now - begin_ns) / 1e9;
	row->requests = done * options->batch;
	row->bytes = row->requests * raw->block;
	return true;
}

/* The warm-up, as the engine's, and then what counts. */
static bool drive_all(struct raw *raw, struct row *row, uint64_t *starts)
{
	const struct options *options = raw->options;

	if (!drive(raw, row, starts, options->depth, UINT64_MAX))
		return false;
	memset(&row->latency, 0, sizeof(row->latency));
	double cpu_s = app_cpu_seconds(NULL, NULL);
	bool ok = options->count
			  ? drive(raw, row, starts, (options->count - 1) / options->batch + 1, UINT64_MAX)
			  : drive(raw, row, starts, UINT64_MAX, app_clock_ns() + (uint64_t)(options->duration_s * 1e9));
	row->cpu_s = app_cpu_seconds(NULL, NULL) - cpu_s;
	return ok;
}

static int listen_loopback(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (listener < 0)
		return -1;
	if (bind(listener, (struct sockaddr *)address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)address, &length)) {
		close(listener);
		return -1;
	}
	return listener;
}

/* One line of the table. */
static int run_case(struct raw *raw, struct shared *shared, struct row *row)
{
	struct sockaddr_in address;
	uint64_t *starts = calloc(raw->options->depth, sizeof(*starts));
	int listener = listen_loopback(&address), code = EXIT_OPEN, status;
	pid_t pid = -1;

	raw->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (!starts || listener < 0 || raw->socket < 0)
		goto out;
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(peer_main(raw, shared, listener));
	if (pid < 0 || connect(raw->socket, (struct sockaddr *)&address, sizeof(address)))
		goto out;
	tune(raw);
	if (raw->options->pin)
		app_pin(app_cpus() - 1);
	if (move_bytes(raw, raw->memory, 1, false) != 1)
		goto out;
	code = drive_all(raw, row, starts) ? EXIT_OK : EXIT_FAILED;
out:
	if (code != EXIT_OK)
		fprintf(stderr, "lwbench: raw: %s\n", strerror(errno));
	if (raw->socket >= 0)
		close(raw->socket);
	if (listener >= 0)
		close(listener); /* a peer that waits in accept has its connection, or is ended below */
	if (pid > 0) {
		if (code != EXIT_OK)
			kill(pid, SIGKILL);
		if (waitpid(pid, &status, 0) == pid && code == EXIT_OK && status != 0) {
			fprintf(stderr, "lwbench: raw: the other process failed\n");
			code = EXIT_FAILED;
		}
	}
	row->target_cpu_s = atomic_load(&shared->cpu_end_s) - atomic_load(&shared->cpu_begin_s);
	free(starts);
	return code;
}

int raw_run(const struct options *options)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct raw raw = {.options = options, .memory = app_memory_map(options->buffer_bytes)};
	struct row *row = calloc(1, sizeof(*row));
	struct report report;
	int code = EXIT_OK;

	if (shared == MAP_FAILED || !raw.memory || !row) {
		fprintf(stderr, "lwbench: no memory\n");
		free(row);
		return EXIT_OPEN;
	}
	for (size_t i = 0; i < options->block_count; i++) {
		if (options->blocks[i] > options->buffer_bytes) {
			fprintf(stderr, "lwbench: a block is larger than --buffer-size\n");
			free(row);
			return EXIT_USAGE;
		}
	}
	madvise(raw.memory, options->buffer_bytes, MADV_DONTFORK);
	if (report_begin(&report, options, "raw")) {
		free(row);
		return EXIT_USAGE;
	}
	for (size_t i = 0; i < options->block_count && code == EXIT_OK; i++) {
		memset(row, 0, sizeof(*row));
		raw.block = options->blocks[i];
		raw.blocks = options->buffer_bytes / raw.block;
		raw.cursor = 0;
		row->op = options->op == LW_WRITE ? "raw-write" : "raw-read";
		row->block = raw.block;
		row->batch = options->batch;
		row->threads = 1;
		row->depth = options->depth;
		code = run_case(&raw, shared, row);
		report_row(&report, row);
	}
	if (report_end(&report, NULL, NULL) && code == EXIT_OK)
		code = EXIT_FAILED;
	free(row);
	app_memory_unmap(raw.memory, options->buffer_bytes);
	munmap(shared, sizeof(*shared));
	return code;
}
