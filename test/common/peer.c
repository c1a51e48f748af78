/* SPDX-License-Identifier: Apache-2.0 */
#include "common/peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/gpu.h"
#include "common/net.h"
#include "common/peer_meta.h"

#define OPTIONS_MAX 15
#define ANSWER_MS 20000
#define END_MS 10000

/* The peer's side ---------------------------------------------------------------------------------------------------*/

static struct {
	struct lw_engine *engine;
	unsigned char *memory;
	unsigned char *seen; /* by the CPU; NULL: memory itself */
	uint64_t length;
	char settings[512];
	char name[256];    /* of the engine; empty: the usual address */
	bool alloc;        /* the memory is the engine's */
	const char *parts; /* offered; NULL: all of the memory */
	/* the stream */
	pthread_t thread;
	bool streaming;
	atomic_bool stop;
	struct lw_request request;
	uint32_t depth;
	atomic_ullong completed, failed;
} own;

static void mask_alarms(int how)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	pthread_sigmask(how, &set, NULL);
}

static void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void answer(const char *format, ...)
{
	va_list args;

	mask_alarms(SIG_BLOCK);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	mask_alarms(SIG_UNBLOCK);
}

static void answer_text(const char *text)
{
	answer("%s", text);
}

static void answer_error(int error)
{
	answer("error %d %s", error, lw_last_error());
}

static unsigned char *seen(void)
{
	return own.seen != NULL ? own.seen : own.memory;
}

static struct lw_channel *channel_of(struct lw_engine *engine)
{
	struct lw_channel *channel = NULL;

	if (lw_channel_self(engine, &channel) != 0)
		fail_msg("no channel: %s", lw_last_error());
	return channel;
}

static bool inside(uint64_t offset, uint64_t length)
{
	if (offset <= own.length && length <= own.length - offset)
		return true;
	answer("error %d outside of the peer's memory", -ERANGE);
	return false;
}

/* The batch of COUNT requests of "run". */
static void run(const struct lw_request *first, uint32_t count)
{
	struct lw_channel *channel = channel_of(own.engine);
	struct lw_request *requests = calloc(count, sizeof(*requests));
	uint32_t states[5] = {0}, reason = 0;
	uint64_t begin_ms = test_now_ms();
	char text[400] = "all is well";
	lw_batch_t batch;
	int error;

	for (uint32_t i = 0; i < count; i++) {
		requests[i] = *first;
		requests[i].local = (char *)first->local + i * first->length;
		requests[i].offset += i * first->length;
	}
	error = lw_batch_alloc(channel, count, 0, NULL, &batch);
	if (error == 0)
		error = lw_submit(channel, batch, requests, count);
	free(requests);
	if (error == 0)
		error = lw_batch_wait(own.engine, batch, ANSWER_MS - 2000, NULL);
	for (uint32_t i = 0; i < count && error == 0; i++) {
		struct lw_task_status status;

		error = lw_task_status(own.engine, batch, i, &status);
		if (error != 0)
			break;
		states[status.state < 5 ? status.state : 0]++;
		if (status.reason == LW_REASON_NONE || reason != 0)
			continue;
		reason = status.reason;
		lw_task_reason(own.engine, batch, i, text, sizeof(text));
	}
	if (error != 0) {
		answer_error(error);
		return;
	}
	lw_batch_free(own.engine, batch);
	answer("ran %u %u %u %u %" PRIu64 " %u %s", states[LW_COMPLETED], states[LW_FAILED], states[LW_CANCELED],
	       states[LW_TIMEOUT], test_now_ms() - begin_ms, reason, text);
}

static void *stream(void *arg)
{
	struct lw_channel *channel = channel_of(own.engine);
	uint32_t *free_places = calloc(own.depth, sizeof(*free_places));
	struct lw_completion done[16];
	int got;

	(void)arg;
	if (free_places == NULL)
		fail_msg("no memory for a stream");
	for (uint32_t i = 0; i < own.depth; i++)
		free_places[i] = i;
	for (uint32_t live = 0; live > 0 || !atomic_load(&own.stop); live -= (uint32_t)got) {
		for (; live < own.depth && !atomic_load(&own.stop); live++) {
			struct lw_request request = own.request;
			uint32_t place = free_places[own.depth - live - 1];
			lw_batch_t batch;

			request.local = (char *)request.local + place * request.length;
			request.offset += place * request.length;
			if (lw_batch_alloc(channel, 1, LW_BATCH_EVENT, (void *)(uintptr_t)place, &batch) != 0)
				fail_msg("no batch: %s", lw_last_error());
			test_submit(channel, batch, &request, 1);
		}
		got = lw_channel_wait(channel, done, 16, 1000);
		if (got < 0)
			fail_msg("wait: %s", lw_last_error());
		for (int i = 0; i < got; i++) {
			atomic_fetch_add(done[i].failed != 0 ? &own.failed : &own.completed, 1);
			free_places[own.depth - live + (uint32_t)i] = (uint32_t)(uintptr_t)done[i].user;
			lw_batch_free(own.engine, done[i].batch);
		}
	}
	free(free_places);
	return NULL;
}

/* "read" or "write" and what follows. */
static void move(const char *line, bool run_it)
{
	uint64_t handle, offset, addr, length;
	unsigned count, timeout_ms = 0;
	struct lw_request request;
	char word[8];
	int fields = sscanf(line, "%*s %7s %" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %u %u", word, &handle,
			    &offset, &addr, &length, &count, &timeout_ms);

	if (fields < (run_it ? 7 : 6) || count == 0) {
		answer("error %d unknown form", -EINVAL);
		return;
	}
	if (!inside(offset, length * count))
		return;
	request = (struct lw_request){.local = own.memory + offset,
				      .segment = handle,
				      .offset = addr,
				      .length = length,
				      .timeout_ms = timeout_ms,
				      .op = strcmp(word, "read") == 0 ? LW_READ : LW_WRITE};
	if (run_it) {
		run(&request, count);
		return;
	}
	own.request = request;
	own.depth = count;
	atomic_store(&own.stop, false);
	atomic_store(&own.completed, 0);
	atomic_store(&own.failed, 0);
	own.streaming = pthread_create(&own.thread, NULL, stream, NULL) == 0;
	answer(own.streaming ? "ok" : "error -11 no thread");
}

static void stop_stream(void)
{
	if (own.streaming) {
		atomic_store(&own.stop, true);
		pthread_join(own.thread, NULL);
	}
	own.streaming = false;
}

static void state(void)
{
	struct lw_note *note;
	uint32_t notes = 0;

	while (lw_note_poll(own.engine, &note) == 1) {
		lw_note_free(note);
		notes++;
	}
	answer("state %d %d %" PRIu64 " %u %d", test_fds(), test_threads(), test_rss_kib(), notes,
	       lw_stats_lanes(own.engine, NULL, 0));
}

/* Takes the buffer back that holds this place of the memory. */
static void withdraw(uint64_t offset)
{
	lw_buffer_t buffer;
	int error = lw_memory_find(own.engine, own.memory + offset, &buffer);

	if (error == 0)
		error = lw_memory_unregister(own.engine, &buffer, 1, 0);
	if (error == 0)
		answer("ok");
	else
		answer_error(error);
}
/* Slices that lanes of each driver carried. */
static void drivers(void)
{
	static struct lw_lane_stats lanes[256];
	uint64_t shm = 0, tcp = 0;
	int count = lw_stats_lanes(own.engine, lanes, 256);

	for (int i = 0; i < count && i < 256; i++) {
		if (lanes[i].target != 0)
			continue;
		if (strcmp(lanes[i].driver, "shm") == 0)
			shm += lanes[i].slices;
		else
			tcp += lanes[i].slices;
	}
	answer("drivers %" PRIu64 " %" PRIu64, shm, tcp);
}

static void begin(void);

static void serve_line(const char *line)
{
	uint64_t a, b, c;
	unsigned timeout_ms = 0;
	char name[256], decoded[256];
	lw_segment_t segment;
	int error;

	if (strncmp(line, "run ", 4) == 0) {
		move(line, true);
	} else if (strncmp(line, "stream ", 7) == 0) {
		move(line, false);
	} else if (sscanf(line, "fill %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c) == 3) {
		if (!inside(a, b))
			return;
		test_fill(seen() + a, b, c);
		answer("ok");
	} else if (sscanf(line, "sum %" SCNu64 " %" SCNu64, &a, &b) == 2) {
		if (inside(a, b))
			answer("sum %08x", test_crc(seen() + a, b));
	} else if (sscanf(line, "withdraw %" SCNu64, &a) == 1) {
		if (inside(a, 1))
			withdraw(a);
	} else if (sscanf(line, "open %255s %u", name, &timeout_ms) >= 1) {
		peer_meta_decode(name, decoded, sizeof(decoded));
		error = lw_segment_open(own.engine, decoded, timeout_ms, &segment);
		if (error == 0)
			answer("segment %" PRIx64, segment);
		else
			answer_error(error);
	} else if (sscanf(line, "close %" SCNx64, &a) == 1) {
		error = lw_segment_close(own.engine, a);
		if (error == 0)
			answer("ok");
		else
			answer_error(error);
	} else if (strncmp(line, "stop", 4) == 0) {
		stop_stream();
		answer("streamed %llu %llu", atomic_load(&own.completed), atomic_load(&own.failed));
	} else if (strncmp(line, "count", 5) == 0) {
		answer("counted %llu %llu", atomic_load(&own.completed), atomic_load(&own.failed));
	} else if (strncmp(line, "state", 5) == 0) {
		state();
	} else if (strncmp(line, "drivers", 7) == 0) {
		drivers();
	} else if (strncmp(line, "again", 5) == 0) {
		stop_stream();
		if (lw_engine_close(own.engine) != 0)
			fail_msg("the engine was not closed: %s", lw_last_error());
		begin();
	} else if (!peer_meta_line(own.engine, own.memory, own.length, line, answer_text)) {
		answer("error %d unknown command", -EINVAL);
	}
}

static void offer_parts(const char *list)
{
	uint64_t offset, length;
	unsigned access;
	int used;

	for (; sscanf(list, "%" SCNu64 ":%" SCNu64 ":%u%n", &offset, &length, &access, &used) == 3; list += used + 1) {
		test_register(own.engine, own.memory + offset, length, access);
		if (list[used] != ',')
			return;
	}
	fail_msg("\"%s\" is no list of buffers", list);
}

/* Opens the engine. */
static void begin(void)
{
	if (test_engine_try(own.settings, own.name[0] != '\0' ? own.name : "127.0.0.1", &own.engine) != 0)
		fail_msg("no engine: %s", lw_last_error());
	if (own.alloc && lw_mem_alloc(own.engine, own.length, NULL, 0, (void **)&own.memory) != 0)
		fail_msg("no memory: %s", lw_last_error());
	if (own.parts != NULL && own.parts[0] != '\0')
		offer_parts(own.parts);
	else if (own.parts == NULL)
		test_register(own.engine, own.memory, own.length, LW_ACCESS_REMOTE);
	answer("ready %s %" PRIu64 " %" PRIu64, lw_engine_name(own.engine), (uint64_t)(uintptr_t)own.memory,
	       own.length);
}

static void become(const char *uid)
{
	uid_t user = (uid_t)strtoul(uid, NULL, 10);

	/* A change of user takes the signal of prctl back. */
	if (setgroups(0, NULL) != 0 || setgid(user) != 0 || setuid(user) != 0 ||
	    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
		fail_msg("can't become user %s: %s", uid, strerror(errno));
}

/* A sandbox that does not let processes into each other's memory. */
static void deny(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		fail_msg("no sandbox: %s", strerror(errno));
}

static void stay_on(const char *cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(strtoul(cpu, NULL, 10), &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		fail_msg("can't stay on CPU %s: %s", cpu, strerror(errno));
}

static void on_alarm(int number)
{
	(void)number;
}

/* System calls are interrupted, also those that SA_RESTART would go on with. The commands' pipe is spared. */
static void ring_alarms(const char *every)
{
	struct sigaction action = {.sa_handler = on_alarm};
	struct itimerval timer = {.it_interval = {.tv_usec = atol(every)}, .it_value = {.tv_usec = atol(every)}};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

bool peer_main(int argc, char **argv, int *status)
{
	const char *links = NULL, *gpu = NULL;
	void *at = NULL;
	char line[512];
	size_t used = 0;

	if (argc < 3 || strcmp(argv[1], "peer") != 0)
		return false;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	for (int i = 3; i < argc; i++) {
		if (strncmp(argv[i], "uid=", 4) == 0)
			become(argv[i] + 4);
		else if (strncmp(argv[i], "cpu=", 4) == 0)
			stay_on(argv[i] + 4);
		else if (strncmp(argv[i], "at=", 3) == 0)
			at = (void *)(uintptr_t)strtoull(argv[i] + 3, NULL, 0);
		else if (strncmp(argv[i], "alarm=", 6) == 0)
			ring_alarms(argv[i] + 6);
		else if (strcmp(argv[i], "alloc=1") == 0)
			own.alloc = true;
		else if (strcmp(argv[i], "deny=1") == 0)
			deny();
		else if (strncmp(argv[i], "nice=", 5) == 0)
			setpriority(PRIO_PROCESS, 0, atoi(argv[i] + 5));
		else if (strncmp(argv[i], "link=", 5) == 0)
			links = argv[i] + 5;
		else if (strncmp(argv[i], "gpu=", 4) == 0)
			gpu = argv[i] + 4;
		else if (strncmp(argv[i], "offer=", 6) == 0)
			own.parts = argv[i] + 6;
		else if (strncmp(argv[i], "as=", 3) == 0)
			peer_meta_decode(argv[i] + 3, own.name, sizeof(own.name));
		else if (used + strlen(argv[i]) + 2 < sizeof(own.settings))
			used += (size_t)snprintf(own.settings + used, sizeof(own.settings) - used, "%s ", argv[i]);
		else
			fail_msg("too many options");
	}
	own.length = strtoull(argv[2], NULL, 0);
	if (gpu != NULL) {
		own.memory = test_gpu_alloc(LW_GPU_CUDA, atoi(gpu), own.length);
		own.seen = test_gpu_peek(own.memory);
		snprintf(own.settings + used, sizeof(own.settings) - used, "cuda_library=%s", test_gpu_library());
	} else if (!own.alloc) {
		own.memory = test_map(own.length, at);
	}
	if (links != NULL) {
		test_net_join(links);
		snprintf(own.name, sizeof(own.name), "10.99.%lu.2", strtoul(links, NULL, 10));
	}
	begin();
	mask_alarms(SIG_BLOCK);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		mask_alarms(SIG_UNBLOCK);
		serve_line(line);
		mask_alarms(SIG_BLOCK);
	}
	mask_alarms(SIG_UNBLOCK);
	stop_stream();
	*status = lw_engine_close(own.engine) == 0 ? 0 : 1;
	if (gpu != NULL)
		test_gpu_free(LW_GPU_CUDA, own.memory);
	else if (!own.alloc)
		test_unmap(own.memory, own.length);
	return true;
}

/* The test's side ---------------------------------------------------------------------------------------------------*/

/* The next line of the peer's, in peer->line. */
static void read_line(struct peer *peer)
{
	uint64_t until_ms = test_now_ms() + ANSWER_MS;
	char *end;

	while ((end = memchr(peer->pending, '\n', peer->have)) == NULL) {
		struct pollfd wait = {.fd = peer->from, .events = POLLIN};
		int64_t left_ms = (int64_t)(until_ms - test_now_ms());
		ssize_t got;

		if (left_ms <= 0 || poll(&wait, 1, (int)left_ms) == 0)
			fail_msg("peer %d did not answer in %d ms", (int)peer->pid, ANSWER_MS);
		if (peer->have == sizeof(peer->pending))
			fail_msg("peer %d sent a line that is too long", (int)peer->pid);
		got = read(peer->from, peer->pending + peer->have, sizeof(peer->pending) - peer->have);
		if (got <= 0)
			fail_msg("peer %d is gone", (int)peer->pid);
		peer->have += (size_t)got;
	}
	*end = '\0';
	memcpy(peer->line, peer->pending, (size_t)(end - peer->pending) + 1);
	peer->have -= (size_t)(end + 1 - peer->pending);
	memmove(peer->pending, end + 1, peer->have);
}

void peer_start(struct peer *peer, uint64_t length, const char *const *options)
{
	char *argv[OPTIONS_MAX + 4], bytes[24];
	int in[2], out[2], count = 0;
	pid_t parent = getpid();

	*peer = (struct peer){.pid = -1};
	snprintf(bytes, sizeof(bytes), "%" PRIu64, length);
	argv[count++] = (char *)"/proc/self/exe";
	argv[count++] = (char *)"peer";
	argv[count++] = bytes;
	for (; options != NULL && *options != NULL && count < OPTIONS_MAX + 3; options++)
		argv[count++] = (char *)(uintptr_t)*options;
	argv[count] = NULL;
	if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
		fail_msg("no pipe: %s", strerror(errno));
	fflush(NULL);
	peer->pid = fork();
	if (peer->pid == 0) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		if (getppid() != parent)
			_exit(127);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	if (peer->pid < 0)
		fail_msg("no process: %s", strerror(errno));
	close(in[0]);
	close(out[1]);
	peer->to = in[1];
	peer->from = out[0];
	read_line(peer);
	if (sscanf(peer->line, "ready %127s %" SCNu64 " %" SCNu64, peer->name, &peer->addr, &peer->length) != 3)
		fail_msg("the peer did not start: %s", peer->line);
}

static void tell(struct peer *peer, const char *format, va_list args)
{
	char line[512];
	int length = vsnprintf(line, sizeof(line) - 1, format, args);

	line[length] = '\n';
	if (write(peer->to, line, (size_t)length + 1) != length + 1)
		fail_msg("peer %d is gone", (int)peer->pid);
}

void peer_tell(struct peer *peer, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(peer, format, args);
	va_end(args);
}

const char *peer_answer(struct peer *peer)
{
	read_line(peer);
	return peer->line;
}

const char *peer_ask(struct peer *peer, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(peer, format, args);
	va_end(args);
	read_line(peer);
	return peer->line;
}

const char *peer_expect(struct peer *peer, const char *expected, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(peer, format, args);
	va_end(args);
	read_line(peer);
	if (strncmp(peer->line, expected, strlen(expected)) != 0)
		fail_msg("asked \"%s\", expected \"%s\", got \"%s\"", format, expected, peer->line);
	return peer->line;
}

static int reap(struct peer *peer, uint32_t patience_ms)
{
	uint64_t until_ms = test_now_ms() + patience_ms;
	int status = 0;

	while (waitpid(peer->pid, &status, WNOHANG) == 0) {
		if (test_now_ms() > until_ms) {
			kill(peer->pid, SIGKILL);
			waitpid(peer->pid, &status, 0);
			fail_msg("peer %d did not end in %u ms", (int)peer->pid, patience_ms);
		}
		test_sleep_ms(1);
	}
	close(peer->from);
	peer->pid = -1;
	return status;
}

void peer_end(struct peer *peer)
{
	int status;

	close(peer->to);
	status = reap(peer, END_MS);
	if (status != 0)
		fail_msg("the peer ended with wait status 0x%x", (unsigned)status);
}

void peer_freeze(struct peer *peer)
{
	int status;

	kill(peer->pid, SIGSTOP);
	if (waitpid(peer->pid, &status, WUNTRACED) != peer->pid || !WIFSTOPPED(status))
		fail_msg("peer %d can't be stopped", (int)peer->pid);
}

void peer_kill(struct peer *peer)
{
	kill(peer->pid, SIGKILL);
	close(peer->to);
	reap(peer, END_MS);
}
