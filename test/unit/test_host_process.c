/* SPDX-License-Identifier: Apache-2.0 */
/* The host process is left as it was found: compared before and after an engine lives in it, and beside one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "common/engines.h"

#define WITH_EAL "eal=on workers=1"
#define NAMES 64

/* What of the process an engine could change. */
struct self {
	cpu_set_t thread_cpus, process_cpus;
	struct sigaction actions[NSIG];
	sigset_t mask;
	struct rlimit limits[RLIM_NLIMITS];
	char locale[256], environment[16384], cwd[1024], name[64];
	mode_t umask;
	struct stat standard[3];
	int flags[3];
	int policy, nice;
	stack_t altstack;
};

static void look(struct self *self)
{
	size_t used = 0;

	memset(self, 0, sizeof(*self));
	assert_int_equal(sched_getaffinity(0, sizeof(self->thread_cpus), &self->thread_cpus), 0);
	assert_int_equal(sched_getaffinity(getpid(), sizeof(self->process_cpus), &self->process_cpus), 0);
	for (int i = 1; i < NSIG; i++)
		sigaction(i, NULL, &self->actions[i]);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &self->mask), 0);
	for (int i = 0; i < RLIM_NLIMITS; i++)
		assert_int_equal(getrlimit((__rlimit_resource_t)i, &self->limits[i]), 0);
	snprintf(self->locale, sizeof(self->locale), "%s", setlocale(LC_ALL, NULL));
	for (char **entry = environ; *entry != NULL && used < sizeof(self->environment); entry++)
		used += (size_t)snprintf(self->environment + used, sizeof(self->environment) - used, "%s\n", *entry);
	assert_non_null(getcwd(self->cwd, sizeof(self->cwd)));
	assert_int_equal(pthread_getname_np(pthread_self(), self->name, sizeof(self->name)), 0);
	self->umask = umask(0);
	umask(self->umask);
	for (int i = 0; i < 3; i++) {
		self->flags[i] = fcntl(i, F_GETFL) | fcntl(i, F_GETFD) << 24;
		fstat(i, &self->standard[i]);
	}
	self->policy = sched_getscheduler(0);
	self->nice = getpriority(PRIO_PROCESS, 0);
	assert_int_equal(sigaltstack(NULL, &self->altstack), 0);
}

static void assert_same(const struct self *before)
{
	static struct self now;

	look(&now);
	assert_true(CPU_EQUAL(&now.thread_cpus, &before->thread_cpus));
	assert_true(CPU_EQUAL(&now.process_cpus, &before->process_cpus));
	for (int i = 1; i < NSIG; i++) {
		if (now.actions[i].sa_handler != before->actions[i].sa_handler ||
		    now.actions[i].sa_flags != before->actions[i].sa_flags)
			fail_msg("the disposition of signal %d changed", i);
		if (sigismember(&now.mask, i) != sigismember(&before->mask, i))
			fail_msg("signal %d changed in the mask", i);
	}
	assert_memory_equal(now.limits, before->limits, sizeof(now.limits));
	assert_string_equal(now.locale, before->locale);
	assert_string_equal(now.environment, before->environment);
	assert_string_equal(now.cwd, before->cwd);
	assert_string_equal(now.name, before->name);
	assert_int_equal(now.umask, before->umask);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(now.flags[i], before->flags[i]);
		assert_int_equal(now.standard[i].st_dev, before->standard[i].st_dev);
		assert_int_equal(now.standard[i].st_ino, before->standard[i].st_ino);
	}
	assert_int_equal(now.policy, before->policy);
	assert_int_equal(now.nice, before->nice);
	assert_ptr_equal(now.altstack.ss_sp, before->altstack.ss_sp);
}

static char area[2][65536];

/* Two engines and a few transfers between them. */
static void use(const char *extra)
{
	struct lw_engine *a = test_engine(extra), *b = test_engine(extra);
	struct lw_request request = {.local = area[0], .offset = (uint64_t)(uintptr_t)area[1], .length = 65536};
	struct lw_channel *channel;

	test_register(a, area[0], sizeof(area[0]), LW_ACCESS_LOCAL);
	test_register(b, area[1], sizeof(area[1]), LW_ACCESS_REMOTE);
	request.segment = test_segment(a, b);
	assert_int_equal(lw_channel_self(a, &channel), 0);
	for (uint8_t op = LW_READ; op <= LW_WRITE; op++) {
		request.op = op;
		assert_int_equal(test_transfer(a, channel, request).state, LW_COMPLETED);
	}
	assert_int_equal(lw_engine_close(a), 0);
	assert_int_equal(lw_engine_close(b), 0);
}

static void nobody(int number)
{
	(void)number;
}

/* Settings of a host that the library could mistake for its own. */
static void test_engine_open_and_close_leave_the_process_alone(void **state)
{
	struct sigaction action = {.sa_handler = nobody, .sa_flags = SA_RESTART};
	struct self *before = malloc(sizeof(*before));
	sigset_t some;

	(void)state;
	assert_non_null(before);
	assert_int_equal(sigaction(SIGUSR2, &action, NULL), 0);
	sigemptyset(&some);
	sigaddset(&some, SIGUSR1);
	sigaddset(&some, SIGIO);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &some, NULL), 0);
	assert_int_equal(setenv("LC_ALL", "C.UTF-8", 1), 0);
	assert_non_null(setlocale(LC_ALL, ""));
	umask(027);
	assert_true(freopen("/dev/zero", "r", stdin) != NULL);
	look(before);
	for (int i = 0; i < 3; i++) {
		struct lw_engine *engine = test_engine(WITH_EAL);

		assert_same(before);
		assert_int_equal(lw_engine_close(engine), 0);
		assert_same(before);
		use(i == 0 ? WITH_EAL : NULL);
		assert_same(before);
	}
	free(before);
	umask(022);
	assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &some, NULL), 0);
}

/* In a child, since the first engine of a process is what matters: nothing is written, no directory is made. */
static int child_writes_nothing(void)
{
	struct lw_engine *engine = NULL;
	struct stat known;
	bool had = stat("/var/run/dpdk", &known) == 0;
	int error = test_engine_try(WITH_EAL, NULL, &engine);

	if (error != 0 || lw_engine_close(engine) != 0)
		return 2;
	return !had && stat("/var/run/dpdk", &known) == 0 ? 3 : 0;
}

static int exit_of(pid_t child)
{
	int status = 0;

	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		return 1000 + WTERMSIG(status);
	return WEXITSTATUS(status);
}

static void test_engine_open_writes_nothing_and_makes_no_directory(void **state)
{
	char text[512] = "";
	int pipes[2];
	ssize_t got;
	pid_t child;

	(void)state;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		dup2(pipes[1], 1);
		dup2(pipes[1], 2);
		_exit(child_writes_nothing());
	}
	close(pipes[1]);
	assert_int_equal(exit_of(child), 0);
	got = read(pipes[0], text, sizeof(text) - 1);
	assert_string_equal(text, "");
	assert_int_equal(got, 0);
	close(pipes[0]);
}

/* In a child, since the EAL opens its descriptors with the first engine. The number of those that programs would
 * inherit. */
static int child_counts_inherited(void)
{
	struct lw_engine *engine = NULL;
	struct lw_channel *channel;
	bool before[1024];
	int inherited = 0;

	for (int fd = 0; fd < 1024; fd++)
		before[fd] = fcntl(fd, F_GETFD) >= 0;
	if (test_engine_try(WITH_EAL, NULL, &engine) != 0 || lw_channel_open(engine, &channel) != 0 ||
	    lw_channel_fd(channel) < 0)
		return 100;
	for (int fd = 0; fd < 1024; fd++) {
		char path[64], target[256];
		int flags = fcntl(fd, F_GETFD);

		if (before[fd] || flags < 0 || (flags & FD_CLOEXEC) != 0)
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		memset(target, 0, sizeof(target));
		fprintf(stderr, "descriptor %d (%s) goes to programs that are started\n", fd,
			readlink(path, target, sizeof(target) - 1) > 0 ? target : "?");
		inherited++;
	}
	return inherited + lw_engine_close(engine);
}

static void test_exec_inherits_no_descriptor(void **state)
{
	pid_t child;

	(void)state;
	fflush(NULL);
	child = fork();
	if (child == 0)
		_exit(child_counts_inherited());
	assert_int_equal(exit_of(child), 0);
}

/* With LOG_PERROR a line goes to standard error, too, with its ident. The test is linked as the library is, so the C
 * library's own functions have to be looked up. */
static void test_engine_open_keeps_the_syslog_ident(void **state)
{
	char text[512] = "";
	int pipes[2];
	pid_t child;

	(void)state;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		void (*open_log)(const char *, int, int) =
			(void (*)(const char *, int, int))(uintptr_t)dlsym(RTLD_DEFAULT, "openlog");
		void (*log)(int, const char *, ...) =
			(void (*)(int, const char *, ...))(uintptr_t)dlsym(RTLD_DEFAULT, "syslog");
		struct lw_engine *engine = NULL;

		open_log("the-host", LOG_PERROR, LOG_USER);
		if (test_engine_try(WITH_EAL, NULL, &engine) != 0)
			_exit(2);
		dup2(pipes[1], 2);
		log(LOG_DEBUG, "marker");
		_exit(lw_engine_close(engine));
	}
	close(pipes[1]);
	assert_int_equal(exit_of(child), 0);
	assert_true(read(pipes[0], text, sizeof(text) - 1) > 0);
	close(pipes[0]);
	assert_non_null(strstr(text, "the-host"));
}

/* Names of the process's threads, sorted, one a line. */
static void thread_names(char *text, size_t size)
{
	char names[NAMES][32];
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	size_t count = 0, used = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir)) != NULL && count < NAMES) {
		char path[300];
		FILE *file;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "r");
		if (file == NULL)
			continue;
		if (fgets(names[count], sizeof(names[count]), file) != NULL)
			count++;
		fclose(file);
	}
	closedir(dir);
	qsort(names, count, sizeof(names[0]), (int (*)(const void *, const void *))strcmp);
	text[0] = '\0';
	for (size_t i = 0; i < count; i++)
		used += (size_t)snprintf(text + used, size - used, "%s", names[i]);
}

static int count_of(const char *text, const char *word)
{
	int count = 0;

	for (; (text = strstr(text, word)) != NULL; text += strlen(word))
		count++;
	return count;
}

static void test_threads_are_named_and_end_with_the_engine(void **state)
{
	static char before[2048], during[2048], after[2048];
	struct lw_engine *engine;

	(void)state;
	use(WITH_EAL); /* the EAL's own threads stay from here on */
	TEST_EVENTUALLY((thread_names(before, sizeof(before)), count_of(before, "lw-w") == 0));
	engine = test_engine("eal=on workers=3");
	TEST_EVENTUALLY((thread_names(during, sizeof(during)),
			 count_of(during, "lw-w") == 3 && count_of(during, "lw-ctrl\n") == 1));
	for (int i = 0; i < 3; i++) {
		char name[32];

		snprintf(name, sizeof(name), "lw-w%d\n", i);
		assert_int_equal(count_of(during, name), 1);
	}
	assert_int_equal(lw_engine_close(engine), 0);
	TEST_EVENTUALLY((thread_names(after, sizeof(after)), count_of(after, "lw-w") == 0));
	assert_int_equal(count_of(after, "lw-ctrl"), 0);
	engine = test_engine("poll=caller");
	TEST_EVENTUALLY((thread_names(during, sizeof(during)), count_of(during, "lw-ctrl\n") == 1));
	assert_int_equal(count_of(during, "lw-w"), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_workers_leave_signals_to_the_host(void **state)
{
	struct lw_engine *engine = test_engine(WITH_EAL);
	struct dirent *entry;
	char names[4096];
	int seen = 0;
	DIR *dir;

	(void)state;
	/* A thread names itself, a moment after the engine is open. */
	TEST_EVENTUALLY(
		(thread_names(names, sizeof(names)), count_of(names, "lw-w0\n") + count_of(names, "lw-ctrl\n") == 2));
	dir = opendir("/proc/self/task");
	assert_non_null(dir);
	while ((entry = readdir(dir)) != NULL) {
		char path[300], line[256], name[64] = "";
		unsigned long long blocked = 0;
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		file = fopen(path, "r");
		if (file == NULL)
			continue;
		while (fgets(line, sizeof(line), file) != NULL) {
			sscanf(line, "Name: %63s", name);
			sscanf(line, "SigBlk: %llx", &blocked);
		}
		fclose(file);
		if (strncmp(name, "lw-", 3) != 0)
			continue;
		seen++;
		for (int number = 1; number < 32; number++)
			if (number != SIGKILL && number != SIGSTOP && (blocked >> (number - 1) & 1) == 0)
				fail_msg("thread %s takes signal %d", name, number);
	}
	closedir(dir);
	assert_true(seen >= 2);
	assert_int_equal(lw_engine_close(engine), 0);
}

static size_t mapped_kib(void)
{
	char line[256];
	FILE *file = fopen("/proc/self/status", "r");
	size_t kib = 0;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file) != NULL)
		sscanf(line, "VmSize: %zu", &kib);
	fclose(file);
	return kib;
}

static void flat(const char *extra)
{
	int fds = 0, threads = 0;
	size_t kib = 0;

	for (int i = 0; i < 50; i++) {
		use(extra);
		if (i == 2) {
			fds = test_fds();
			threads = test_threads();
			kib = mapped_kib();
		}
	}
	assert_int_equal(test_fds(), fds);
	assert_int_equal(test_threads(), threads);
	assert_in_range(mapped_kib(), 0, kib + kib / 10 + 65536);
}

static void test_descriptors_and_threads_are_flat_with_the_eal(void **state)
{
	(void)state;
	flat(WITH_EAL);
}

static void test_descriptors_and_threads_are_flat_without_the_eal(void **state)
{
	(void)state;
	flat("eal=off workers=2");
}

static void test_descriptors_are_flat_after_opens_that_fail(void **state)
{
	static const char *const stores[] = {"etcd", "redis", "http"};
	struct lw_engine *engine = NULL;
	char settings[96];
	int fds, threads;

	(void)state;
	use(NULL);
	for (size_t i = 0; i < 3; i++) { /* their libraries are opened once */
		snprintf(settings, sizeof(settings), "metadata=%s://127.0.0.1:1 store_timeout_ms=500", stores[i]);
		assert_true(test_engine_try(settings, NULL, &engine) < 0);
	}
	fds = test_fds();
	threads = test_threads();
	lw_log_set(NULL, NULL);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(test_engine_try("metadata=nowhere", NULL, &engine), -EINVAL);
		assert_int_equal(test_engine_try("cpus=1000 drivers=null", NULL, &engine), -EINVAL);
		assert_int_equal(test_engine_try("drivers=null", "192.0.2.1", &engine), -EADDRNOTAVAIL);
		/* A store that is down. */
		snprintf(settings, sizeof(settings), "metadata=%s://127.0.0.1:1 store_timeout_ms=500", stores[i % 3]);
		assert_true(test_engine_try(settings, NULL, &engine) < 0);
	}
	assert_int_equal(test_fds(), fds);
	assert_int_equal(test_threads(), threads);
}

/* Eight threads that call until they are told that the engine is gone. */
struct caller {
	struct lw_engine *engine;
	char *local;
	lw_segment_t segment, null_segment;
	uint64_t sequence;
	const char *wrong;
	uint64_t calls;
};

static void *call_until_closed(void *arg)
{
	static char buffers[8][4096];
	static _Atomic unsigned int next;
	struct caller *caller = arg;
	struct lw_engine *engine = caller->engine;
	struct lw_memory memory = {.addr = buffers[atomic_fetch_add(&next, 1) % 8], .length = 4096};
	struct lw_request request = {.local = caller->local, .length = 1000};
	struct lw_channel *channel = NULL;
	lw_batch_t batch = 0;
	int error = lw_channel_open(engine, &channel);

	while (error != -ESHUTDOWN) {
		struct lw_completion done[1];
		struct lw_lane_stats lanes[4];
		lw_segment_t segment;
		lw_buffer_t buffer;

		switch (test_random(&caller->sequence) % 6) {
		case 0:
			error = lw_memory_register(engine, &memory, 1, &buffer);
			if (error == 0)
				error = lw_memory_unregister(engine, &buffer, 1, 0);
			break;
		case 1:
			error = lw_segment_open(engine, "null://", 0, &segment);
			if (error == 0)
				error = lw_segment_close(engine, segment);
			break;
		case 2:
			error = lw_segment_probe(engine, caller->segment, 0);
			break;
		case 3:
			error = lw_stats_lanes(engine, lanes, 4);
			error = error > 0 ? 0 : error;
			break;
		default:
			request.segment =
				test_random(&caller->sequence) % 2 != 0 ? caller->segment : caller->null_segment;
			request.offset = (uint64_t)(uintptr_t)area[1];
			error = lw_batch_alloc(channel, 1, LW_BATCH_EVENT, NULL, &batch);
			if (error == 0)
				error = lw_submit(channel, batch, &request, 1);
			if (error == 0)
				error = lw_channel_wait(channel, done, 1, UINT32_MAX);
			if (error > 0)
				error = lw_batch_wait(engine, batch, UINT32_MAX, NULL);
			if (error == 0)
				error = lw_batch_free(engine, batch);
			break;
		}
		if (error != 0 && error != -ESHUTDOWN) {
			caller->wrong = lw_last_error();
			snprintf(buffers[0], 256, "%d: %s", error, caller->wrong);
			caller->wrong = buffers[0];
			return NULL;
		}
		caller->calls++;
	}
	return NULL;
}

static void close_beside_callers(const char *extra, int rounds)
{
	uint64_t sequence = test_seed();

	for (int round = 0; round < rounds; round++) {
		struct lw_engine *a = test_engine(extra), *b = test_engine(NULL);
		struct caller callers[8];
		pthread_t threads[8];
		uint64_t begin_ms;

		test_register(a, area[0], sizeof(area[0]), LW_ACCESS_LOCAL);
		test_register(b, area[1], sizeof(area[1]), LW_ACCESS_REMOTE);
		for (int i = 0; i < 8; i++) {
			callers[i] = (struct caller){.engine = a,
						     .local = area[0] + (ptrdiff_t)i * 4096,
						     .segment = test_segment(a, b),
						     .sequence = test_random(&sequence)};
			assert_int_equal(lw_segment_open(a, "null://", 0, &callers[i].null_segment), 0);
			assert_int_equal(pthread_create(&threads[i], NULL, call_until_closed, &callers[i]), 0);
		}
		test_sleep_ms((uint32_t)(test_random(&sequence) % 20));
		begin_ms = test_now_ms();
		assert_int_equal(lw_engine_close(a), 0);
		assert_in_range(test_now_ms() - begin_ms, 0, 3000);
		for (int i = 0; i < 8; i++) {
			pthread_join(threads[i], NULL);
			if (callers[i].wrong != NULL)
				fail_msg("round %d: %s", round, callers[i].wrong);
		}
		assert_int_equal(lw_engine_close(b), 0);
	}
}

static void test_engine_close_beside_callers_gives_each_an_error(void **state)
{
	(void)state;
	close_beside_callers("workers=2", 10);
}

static void test_engine_close_beside_drivers_gives_each_an_error(void **state)
{
	(void)state;
	close_beside_callers("poll=caller", 10);
}

/* What a child sees of its parent's engine. 0: an error by every call. */
static int try_in_child(struct lw_engine *engine, struct lw_channel *channel, struct lw_channel *self, lw_batch_t batch,
			lw_segment_t segment)
{
	struct lw_note note = {.name = "n", .name_size = 1, .text = "t", .text_size = 1}, *received;
	struct lw_memory memory = {.addr = area[0], .length = 1};
	struct lw_engine_stats stats = {.size = sizeof(stats)};
	struct lw_request request = {.local = area[0], .segment = segment, .length = 1};
	struct lw_batch_status status;
	struct lw_task_status task;
	struct lw_completion done[1];
	struct lw_lane_stats lane;
	struct lw_channel *out;
	lw_buffer_t buffer = 0;
	lw_segment_t other;
	char text[8], *json;
	int wrong = 0;

#define DEAD(call) (wrong += (call) != -EOWNERDEAD)
	DEAD(lw_channel_self(engine, &out));
	DEAD(lw_channel_open(engine, &out));
	DEAD(lw_channel_close(channel));
	DEAD(lw_channel_poll(channel, done, 1));
	DEAD(lw_channel_poll(self, done, 1));
	DEAD(lw_channel_wait(channel, done, 1, UINT32_MAX));
	DEAD(lw_channel_fd(channel));
	DEAD(lw_batch_alloc(channel, 1, 0, NULL, &batch));
	DEAD(lw_submit(channel, batch, &request, 1));
	DEAD(lw_submit_notify(channel, batch, &request, 1, &note));
	DEAD(lw_batch_status(engine, batch, &status));
	DEAD(lw_task_status(engine, batch, 0, &task));
	DEAD(lw_task_reason(engine, batch, 0, text, sizeof(text)));
	DEAD(lw_batch_wait(engine, batch, UINT32_MAX, NULL));
	DEAD(lw_batch_cancel(engine, batch));
	DEAD(lw_task_cancel(engine, batch, 0));
	DEAD(lw_batch_free(engine, batch));
	DEAD(lw_memory_register(engine, &memory, 1, &buffer));
	DEAD(lw_memory_unregister(engine, &buffer, 1, 0));
	DEAD(lw_memory_find(engine, area[0], &buffer));
	DEAD(lw_segment_open(engine, "null://", 0, &other));
	DEAD(lw_segment_close(engine, segment));
	DEAD(lw_segment_ranges(engine, segment, NULL, 0));
	DEAD(lw_segment_probe(engine, segment, 0));
	DEAD(lw_segment_cancel(engine, segment));
	DEAD(lw_notify(engine, segment, &note, 0));
	DEAD(lw_note_poll(engine, &received));
	DEAD(lw_stats_engine(engine, &stats));
	DEAD(lw_stats_lanes(engine, &lane, 1));
	DEAD(lw_engine_progress(engine));
	DEAD(lw_engine_info_json(engine, &json));
	DEAD(lw_engine_config_json(engine, &json));
	DEAD(lw_engine_close(engine));
#undef DEAD
	return wrong;
}

/* A stream between two engines that goes on in a thread of its own. */
struct stream {
	struct lw_engine *a, *b;
	lw_segment_t segment;
	_Atomic int stop, failures;
	_Atomic uint64_t done;
};

static void *stream_run(void *arg)
{
	struct stream *stream = arg;
	struct lw_request request = {.local = area[0],
				     .segment = stream->segment,
				     .offset = (uint64_t)(uintptr_t)area[1],
				     .length = sizeof(area[0]),
				     .op = LW_WRITE};
	struct lw_channel *channel = NULL;
	lw_batch_t batch = 0;

	if (lw_channel_self(stream->a, &channel) != 0)
		atomic_fetch_add(&stream->failures, 1);
	while (atomic_load(&stream->stop) == 0 && atomic_load(&stream->failures) == 0) {
		struct lw_batch_status status = {.state = LW_PENDING};

		memset(area[0], (int)(atomic_load(&stream->done) & 0xff), sizeof(area[0]));
		if (lw_batch_alloc(channel, 1, 0, NULL, &batch) != 0 || lw_submit(channel, batch, &request, 1) != 0 ||
		    lw_batch_wait(stream->a, batch, 10000, &status) != 0 || status.state != LW_COMPLETED ||
		    memcmp(area[0], area[1], sizeof(area[0])) != 0 || lw_batch_free(stream->a, batch) != 0)
			atomic_fetch_add(&stream->failures, 1);
		atomic_fetch_add(&stream->done, 1);
	}
	return NULL;
}

/* AddressSanitizer asks at exit: the child of a process with engines has their memory, and nobody who frees it. */
static int leaks_allowed;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return leaks_allowed;
}

static int child_of(int kind, struct stream *stream, struct lw_channel *channel, struct lw_channel *self,
		    lw_batch_t batch)
{
	switch (kind) {
	case 0:
		return try_in_child(stream->a, channel, self, batch, stream->segment);
	case 1:
		/* An engine of its own; ThreadSanitizer can't have threads there. */
		if (!TEST_TSAN)
			use(WITH_EAL);
		return 0;
	case 2:
		execl("/bin/true", "true", (char *)NULL);
		return 1;
	default:
		test_sleep_ms(50);
		leaks_allowed = 1;
		exit(0); /* with its handlers and destructors */
	}
}

static void test_fork_beside_a_stream_harms_neither_side(void **state)
{
	struct stream stream = {.a = test_engine(WITH_EAL), .b = test_engine(WITH_EAL)};
	struct lw_channel *channel, *self;
	lw_batch_t batch;
	pthread_t thread;

	(void)state;
	test_register(stream.a, area[0], sizeof(area[0]), LW_ACCESS_LOCAL);
	test_register(stream.b, area[1], sizeof(area[1]), LW_ACCESS_REMOTE);
	stream.segment = test_segment(stream.a, stream.b);
	assert_int_equal(lw_channel_open(stream.a, &channel), 0);
	assert_int_equal(lw_channel_self(stream.a, &self), 0);
	assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(pthread_create(&thread, NULL, stream_run, &stream), 0);
	for (int i = 0; i < 12; i++) {
		uint64_t before = atomic_load(&stream.done);
		pid_t child;

		fflush(NULL);
		child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			alarm(10);
			_exit(child_of(i % 4, &stream, channel, self, batch));
		}
		if (i % 4 == 3)
			TEST_EVENTUALLY(atomic_load(&stream.done) > before + 10);
		assert_int_equal(exit_of(child), 0);
		TEST_EVENTUALLY(atomic_load(&stream.done) > before + 10);
		assert_int_equal(atomic_load(&stream.failures), 0);
	}
	atomic_store(&stream.stop, 1);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&stream.failures), 0);
	assert_int_equal(lw_segment_probe(stream.a, stream.segment, 0), 0);
	assert_int_equal(lw_batch_free(stream.a, batch), 0);
	assert_int_equal(lw_engine_close(stream.a), 0);
	assert_int_equal(lw_engine_close(stream.b), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* Those that look at a process without an engine come first. */
		cmocka_unit_test(test_engine_open_writes_nothing_and_makes_no_directory),
		cmocka_unit_test(test_engine_open_keeps_the_syslog_ident),
		cmocka_unit_test(test_exec_inherits_no_descriptor),
		cmocka_unit_test(test_engine_open_and_close_leave_the_process_alone),
		cmocka_unit_test(test_threads_are_named_and_end_with_the_engine),
		cmocka_unit_test(test_workers_leave_signals_to_the_host),
		cmocka_unit_test(test_descriptors_and_threads_are_flat_with_the_eal),
		cmocka_unit_test(test_descriptors_and_threads_are_flat_without_the_eal),
		cmocka_unit_test(test_descriptors_are_flat_after_opens_that_fail),
		cmocka_unit_test(test_engine_close_beside_callers_gives_each_an_error),
		cmocka_unit_test(test_engine_close_beside_drivers_gives_each_an_error),
		cmocka_unit_test(test_fork_beside_a_stream_harms_neither_side),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
