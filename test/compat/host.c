/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/host.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 40000
#define PAGE 4096

void host_quiet(void)
{
	setenv("LW_EAL", "off", 0);
	setenv("LW_HUGEPAGES", "off", 0);
	setenv("LSAN_OPTIONS", "detect_leaks=0", 1); /* of processes that we start: they end with engines open */
	signal(SIGPIPE, SIG_IGN);                    /* a peer may be gone */
}

transfer_engine_t host_engine(void)
{
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);

	if (engine == NULL)
		fail_msg("no engine: %s", getTransferEngineError());
	assert_non_null(installTransport(engine, "tcp", NULL));
	return engine;
}

uint64_t host_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void host_sleep_ms(unsigned ms)
{
	usleep(ms * 1000);
}

const char *host_name(transfer_engine_t engine, char text[128])
{
	assert_int_equal(getLocalIpAndPort(engine, text, 128), 0);
	return text;
}

struct transfer_status host_wait(transfer_engine_t engine, batch_id_t batch, size_t task)
{
	struct transfer_status status = {.status = STATUS_WAITING};
	uint64_t start_ms = host_now_ms();
	unsigned tries = 0;

	while (status.status == STATUS_WAITING) {
		assert_int_equal(getTransferStatus(engine, batch, task, &status), 0);
		if (++tries > 1000)
			usleep(100);
		if (host_now_ms() - start_ms > WAIT_MS)
			fail_msg("task %zu never ends", task);
	}
	return status;
}

struct transfer_status host_transfer(transfer_engine_t engine, int opcode, void *source, segment_id_t target,
				     uint64_t offset, uint64_t length)
{
	struct transfer_request request = {opcode, source, target, offset, length};
	batch_id_t batch = allocateBatchID(engine, 1);
	struct transfer_status status;
	int code;

	assert_true(batch != INVALID_BATCH);
	code = submitTransfer(engine, batch, &request, 1);
	if (code != 0)
		fail_msg("submit: %d, %s", code, getTransferEngineError());
	status = host_wait(engine, batch, 0);
	assert_int_equal(freeBatchID(engine, batch), 0);
	return status;
}

/* ThreadSanitizer does not see that the other process' answer comes before the question for the sum. */
__attribute__((no_sanitize("thread"))) static uint64_t sum_of(const unsigned char *memory, size_t bytes)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < bytes; i++)
		sum += memory[i];
	return sum;
}

static int peer_serve(transfer_engine_t engine, unsigned char *memory, size_t bytes)
{
	char line[64], last[200] = "";
	uint64_t notes = 0;

	while (fgets(line, sizeof(line), stdin) != NULL && strcmp(line, "end\n") != 0) {
		if (strcmp(line, "sum\n") == 0) {
			printf("%llu\n", (unsigned long long)sum_of(memory, bytes));
		} else if (strcmp(line, "notes\n") == 0) {
			int count;
			notify_msg_t *list = getNotifsFromEngine(engine, &count);

			notes += (uint64_t)count;
			if (count != 0)
				snprintf(last, sizeof(last), "%s=%s", list[count - 1].name, list[count - 1].msg);
			freeNotifsMsgBuf(list, count);
			printf("%llu %s\n", (unsigned long long)notes, last);
		} else if (strcmp(line, "withdraw\n") == 0) {
			printf("%d\n", unregisterLocalMemory(engine, memory));
		}
		fflush(stdout);
	}
	destroyTransferEngine(engine);
	return 0;
}

bool host_peer_main(int argc, char **argv, int *status)
{
	transfer_engine_t engine;
	unsigned char *memory;
	char name[128];
	size_t bytes;

	if ((argc != 3 && argc != 5) || strcmp(argv[1], "peer") != 0)
		return false;
	*status = 1;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	bytes = strtoul(argv[2], NULL, 10);
	memory = mmap(NULL, bytes + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	engine = createTransferEngine(argc == 5 ? argv[3] : "P2PHANDSHAKE", argc == 5 ? argv[4] : "127.0.0.1",
				      "127.0.0.1", 0, 1);
	if (memory == MAP_FAILED || engine == NULL)
		return true;
	memset(memory, 'p', bytes);
	memset(memory + bytes, 's', PAGE);
	if (registerLocalMemory(engine, memory, bytes, "cpu:0", 1) != 0 ||
	    registerLocalMemory(engine, memory + bytes, PAGE, "*", 0) != 0 ||
	    getLocalIpAndPort(engine, name, sizeof(name)) != 0)
		return true;
	printf("%s %llu %llu\n", name, (unsigned long long)(uintptr_t)memory,
	       (unsigned long long)(uintptr_t)(memory + bytes));
	fflush(stdout);
	*status = peer_serve(engine, memory, bytes);
	return true;
}

/* A line of the peer's, without its newline. */
static const char *read_line(int fd, char *text, size_t size)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	size_t length = 0;

	for (;;) {
		if (poll(&ready, 1, WAIT_MS) != 1)
			fail_msg("a process does not answer");
		if (read(fd, text + length, 1) != 1)
			fail_msg("a process ended early");
		if (text[length] == '\n' || length + 1 == size)
			break;
		length++;
	}
	text[length] = '\0';
	return text;
}

static pid_t spawn(const char *const *arguments, const char *const *variables, int *to, int *from, int *errors)
{
	int in[2], out[2], err[2] = {-1, -1};
	pid_t pid;

	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	if (errors != NULL)
		assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGINT, SIG_DFL); /* a shell ignores it for what runs in its background */
		dup2(in[0], 0);
		dup2(out[1], 1);
		if (errors != NULL)
			dup2(err[1], 2);
		for (size_t i = 0; variables != NULL && variables[i] != NULL; i++)
			putenv((char *)(uintptr_t)variables[i]);
		execv("/proc/self/exe", (char *const *)(uintptr_t)arguments);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	*to = in[1];
	*from = out[0];
	if (errors != NULL) {
		close(err[1]);
		*errors = err[0];
	}
	return pid;
}

void host_peer_start(struct host_peer *peer, size_t bytes)
{
	host_peer_start_in(peer, bytes, NULL, NULL);
}

void host_peer_start_in(struct host_peer *peer, size_t bytes, const char *metadata, const char *name)
{
	char size[24], line[256];
	const char *const arguments[] = {"peer", "peer", size, metadata, name, NULL};
	unsigned long long addr, secret;

	snprintf(size, sizeof(size), "%zu", bytes);
	peer->pid = spawn(arguments, NULL, &peer->to, &peer->from, NULL);
	read_line(peer->from, line, sizeof(line));
	assert_int_equal(sscanf(line, "%127s %llu %llu", peer->name, &addr, &secret), 3);
	peer->addr = addr;
	peer->secret = secret;
}

const char *host_peer_ask(struct host_peer *peer, const char *line)
{
	dprintf(peer->to, "%s\n", line);
	return read_line(peer->from, peer->answer, sizeof(peer->answer));
}

static int collect(struct host_peer *peer)
{
	int status = -1;

	close(peer->to);
	close(peer->from);
	assert_int_equal(waitpid(peer->pid, &status, 0), peer->pid);
	return status;
}

void host_peer_end(struct host_peer *peer)
{
	assert_int_equal(collect(peer), 0);
}

void host_peer_kill(struct host_peer *peer)
{
	kill(peer->pid, SIGKILL);
	collect(peer);
}

int host_run(const char *argument, const char *const *variables, int number, char *text, size_t size)
{
	const char *const arguments[] = {"host", argument, NULL};
	int to, from, errors, status = -1;
	size_t length = 0;
	char line[256];
	ssize_t n;
	pid_t pid = spawn(arguments, variables, &to, &from, &errors);

	if (number != 0) {
		read_line(from, line, sizeof(line));
		kill(pid, number);
	}
	while (length + 1 < size && (n = read(errors, text + length, size - 1 - length)) > 0)
		length += (size_t)n;
	text[length] = '\0';
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(to);
	close(from);
	close(errors);
	return status;
}
