/* SPDX-License-Identifier: Apache-2.0 */
/* shm: the engine beside plain loops of copies and of process_vm_writev, all to another process of the host. One
 * process holds the target's engine and memory on the first CPU; the engine that writes and the loops run on the last.
 *
 *     shm WHAT MEMORY BLOCK BATCH AREA SECONDS [joined]     e.g. shm engine mapped 4096 128 67108864 0.5
 *
 * WHAT: engine | caller | tcp | loop. MEMORY of the target: mapped (lw_mem_alloc) or any (mmap). Then a block's bytes,
 * how many a batch, and the bytes that are cycled through. Blocks lie apart from each other by the length of one; with
 * joined those of the target follow each other.
 *
 * Prints "GBPS CPU": GB/s, and CPU seconds a GiB of both processes. caller: as engine, but the application's thread
 * drives it, on the last CPU, and there is no worker. loop: to mapped memory memcpy, to any memory
 * process_vm_writev with the batch's blocks in one call. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lanewise/lanewise.h>

#define IOVS_MAX 1024u
#define DEPTH 4

struct target {
	char name[128];
	uint64_t any, mapped; /* addresses in it */
	int fd;               /* its descriptor of what is mapped */
};

struct result {
	double gbps;
	double cpu; /* seconds a GiB */
};

struct work {
	bool mapped;
	uint64_t block, batch, area;
	double seconds;
	uint64_t blocks; /* in the area, of those that are used */
	uint64_t stride; /* 2: every other block of the area is used; 1: all are */
	uint64_t at;     /* the next */
	bool joined;
};

static void die(const char *what)
{
	fprintf(stderr, "shm: %s: %s\n", what, lw_last_error()[0] != '\0' ? lw_last_error() : strerror(errno));
	exit(1);
}

static double now_s(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The first or the last CPU that the program may use. */
static int which_cpu(int which)
{
	static int first = -1, last = -1; /* as at the start */
	cpu_set_t allowed;

	if (first < 0 && sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
		for (int i = 0; i < CPU_SETSIZE; i++) {
			if (CPU_ISSET((size_t)i, &allowed)) {
				first = first < 0 ? i : first;
				last = i;
			}
		}
	}
	return which == 0 ? first : last;
}

/* CPU seconds of both processes. */
static clockid_t target_clock;

static double cpu_s(void)
{
	return now_s(target_clock) + now_s(CLOCK_PROCESS_CPUTIME_ID);
}

static void stay_on(int which)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET((size_t)which_cpu(which), &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static struct lw_engine *open_engine(const char *drivers, int which, const char *poll)
{
	char cpus[16];
	struct lw_setting settings[] = {{"drivers", drivers}, {"eal", "off"}, {"cpus", cpus}, {"poll", poll}};
	struct lw_engine_opts opts;
	struct lw_engine *engine;

	snprintf(cpus, sizeof(cpus), "%d", which_cpu(which));
	lw_engine_opts_init(&opts, sizeof(opts));
	opts.name = "127.0.0.1";
	opts.settings = settings;
	opts.settings_count = sizeof(settings) / sizeof(settings[0]);
	if (lw_engine_open(&opts, &engine) != 0)
		die("no engine");
	return engine;
}

static void *map_any(uint64_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		die("no memory");
	madvise(memory, bytes, MADV_HUGEPAGE);
	memset(memory, 1, bytes);
	return memory;
}

/* The descriptor behind memory of lw_mem_alloc: what this process has mapped there says which file it is. */
static int find_fd(uint64_t addr)
{
	char line[512];
	unsigned long long begin, inode;
	FILE *maps = fopen("/proc/self/maps", "re");
	int found = -1;

	while (maps != NULL && found < 0 && fgets(line, sizeof(line), maps) != NULL) {
		if (sscanf(line, "%llx-%*x %*s %*x %*s %llu", &begin, &inode) != 2 || begin != addr)
			continue;
		for (int fd = 3; fd < 256 && found < 0; fd++) {
			char path[64], link[64] = "", want[] = "/memfd:lanewise (deleted)";

			snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
			if (readlink(path, link, sizeof(link) - 1) > 0 && strcmp(link, want) == 0)
				found = fd;
		}
	}
	if (maps != NULL)
		fclose(maps);
	return found;
}

static void be_target(int to, uint64_t area, const char *drivers)
{
	struct target target = {.fd = -1};
	struct lw_engine *engine;
	lw_buffer_t ids[2];
	void *mapped = NULL;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	engine = open_engine(drivers, 0, "adaptive");
	stay_on(0);
	if (lw_mem_alloc(engine, area, NULL, 0, &mapped) != 0)
		die("no shared memory");
	target.mapped = (uint64_t)(uintptr_t)mapped;
	target.any = (uint64_t)(uintptr_t)map_any(area);
	target.fd = find_fd(target.mapped);
	snprintf(target.name, sizeof(target.name), "%s", lw_engine_name(engine));
	{
		struct lw_memory memory[] = {
			{.addr = mapped, .length = area, .access = LW_ACCESS_REMOTE},
			{.addr = (void *)(uintptr_t)target.any, .length = area, .access = LW_ACCESS_REMOTE}};

		memset(mapped, 1, area);
		if (lw_memory_register(engine, memory, 2, ids) != 0)
			die("not registered");
	}
	if (write(to, &target, sizeof(target)) != sizeof(target))
		exit(1);
	for (;;)
		pause();
}

/* The offset of the next block in our memory, round and round. */
static uint64_t next(struct work *work)
{
	return work->at++ % work->blocks * work->stride * work->block;
}

/* Where it goes in the target's. */
static uint64_t place(const struct work *work, uint64_t at)
{
	return work->joined ? at / work->stride : at;
}

static uint64_t loop_mapped(struct work *work, const unsigned char *from, unsigned char *to)
{
	for (uint64_t i = 0; i < work->batch; i++) {
		uint64_t at = next(work);

		memcpy(to + place(work, at), from + at, work->block);
	}
	return work->batch * work->block;
}

static uint64_t loop_any(struct work *work, pid_t pid, unsigned char *from, uint64_t to)
{
	static struct iovec local[IOVS_MAX], remote[IOVS_MAX];

	for (uint64_t i = 0; i < work->batch; i++) {
		uint64_t at = next(work);

		local[i] = (struct iovec){from + at, work->block};
		remote[i] = (struct iovec){(void *)(uintptr_t)(to + place(work, at)), work->block};
	}
	if (process_vm_writev(pid, local, work->batch, remote, work->batch, 0) != (ssize_t)(work->batch * work->block))
		die("process_vm_writev");
	return work->batch * work->block;
}

static void run_loop(struct work *work, const struct target *target, pid_t pid, struct result *result)
{
	unsigned char *from = map_any(work->area), *to = NULL;
	double begin, end, cpu;
	uint64_t bytes = 0;

	stay_on(1);
	if (work->mapped) {
		char path[64];
		int fd;

		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, target->fd);
		fd = open(path, O_RDWR | O_CLOEXEC);
		to = fd >= 0 ? mmap(NULL, work->area, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
		if (to == MAP_FAILED)
			die("can't map the target's memory");
		memset(to, 2, work->area);
	}
	cpu = cpu_s();
	begin = now_s(CLOCK_MONOTONIC);
	do {
		for (int i = 0; i < 16; i++)
			bytes += work->mapped ? loop_mapped(work, from, to) : loop_any(work, pid, from, target->any);
		end = now_s(CLOCK_MONOTONIC);
	} while (end - begin < work->seconds);
	*result = (struct result){.gbps = (double)bytes / (end - begin) / 1e9,
				  .cpu = (cpu_s() - cpu) / ((double)bytes / (1 << 30))};
}

static void submit(struct lw_channel *channel, lw_batch_t *batch, struct lw_request *requests, struct work *work,
		   unsigned char *from, uint64_t to)
{
	int error;

	for (uint64_t i = 0; i < work->batch; i++) {
		uint64_t at = next(work);

		requests[i].local = from + at;
		requests[i].offset = to + place(work, at);
	}
	if (lw_batch_alloc(channel, (uint32_t)work->batch, 0, NULL, batch) != 0)
		die("no batch");
	while ((error = lw_submit(channel, *batch, requests, work->batch)) == -EAGAIN)
		;
	if (error != 0)
		die("not submitted");
}

/* The application's thread stays beside the target on the first CPU: the worker alone has the last. */
static void run_engine(struct work *work, const struct target *target, const char *drivers, bool caller,
		       struct result *result)
{
	struct lw_request *requests = calloc(work->batch, sizeof(*requests));
	unsigned char *from = map_any(work->area);
	uint64_t to = work->mapped ? target->mapped : target->any, bytes = 0;
	lw_batch_t batch[DEPTH], unused;
	struct lw_channel *channel;
	struct lw_engine *engine;
	struct lw_memory memory = {.addr = from, .length = work->area, .access = LW_ACCESS_LOCAL};
	lw_segment_t segment;
	double begin = 0, end, cpu = 0;
	int rounds = 0;

	engine = open_engine(drivers, 1, caller ? "caller" : "adaptive");
	stay_on(caller ? 1 : 0);
	if (requests == NULL || lw_memory_register(engine, &memory, 1, &unused) != 0 ||
	    lw_segment_open(engine, target->name, 0, &segment) != 0 || lw_channel_self(engine, &channel) != 0)
		die("can't reach the target");
	for (uint64_t i = 0; i < work->batch; i++)
		requests[i] = (struct lw_request){.segment = segment, .length = work->block, .op = LW_WRITE};
	for (int i = 0; i < DEPTH; i++)
		submit(channel, &batch[i], requests, work, from, to);
	for (uint64_t turn = 0;; turn++) {
		struct lw_batch_status status;
		lw_batch_t *oldest = &batch[turn % DEPTH];

		if (lw_batch_wait(engine, *oldest, 10000, &status) != 0 || status.state != LW_COMPLETED)
			die("a batch did not complete");
		lw_batch_free(engine, *oldest);
		bytes += status.bytes;
		end = now_s(CLOCK_MONOTONIC);
		/* First everything is touched once. */
		if (begin == 0 && bytes >= 2 * work->area) {
			begin = end;
			bytes = 0;
			cpu = cpu_s();
		} else if (begin != 0 && end - begin >= work->seconds && ++rounds > 8) {
			break;
		}
		submit(channel, oldest, requests, work, from, to);
	}
	*result = (struct result){.gbps = (double)bytes / (end - begin) / 1e9,
				  .cpu = (cpu_s() - cpu) / ((double)bytes / (1 << 30))};
}

int main(int argc, char **argv)
{
	struct work work;
	struct target target;
	const char *drivers;
	struct result result;
	int pipes[2], status;
	pid_t pid;

	if (argc != 7 && (argc != 8 || strcmp(argv[7], "joined") != 0)) {
		fprintf(stderr, "usage: shm engine|caller|tcp|loop mapped|any BLOCK BATCH AREA SECONDS [joined]\n");
		return 2;
	}
	(void)which_cpu(0);
	drivers = strcmp(argv[1], "tcp") == 0 ? "tcp" : "shm,tcp";
	work = (struct work){.mapped = strcmp(argv[2], "mapped") == 0,
			     .block = strtoull(argv[3], NULL, 0),
			     .batch = strtoull(argv[4], NULL, 0),
			     .area = strtoull(argv[5], NULL, 0),
			     .seconds = strtod(argv[6], NULL),
			     .joined = argc == 8};
	if (work.block == 0 || work.batch == 0 || work.batch > IOVS_MAX || work.area < work.block)
		return 2;
	work.stride = work.area >= 2 * work.block * work.batch ? 2 : 1;
	work.blocks = work.area / work.block / work.stride;
	if (pipe2(pipes, O_CLOEXEC) != 0)
		die("no pipe");
	pid = fork();
	if (pid == 0)
		be_target(pipes[1], work.area, drivers);
	if (pid < 0 || read(pipes[0], &target, sizeof(target)) != sizeof(target) ||
	    clock_getcpuclockid(pid, &target_clock) != 0)
		die("no target");
	if (strcmp(argv[1], "loop") == 0)
		run_loop(&work, &target, pid, &result);
	else
		run_engine(&work, &target, drivers, strcmp(argv[1], "caller") == 0, &result);
	printf("%.3f %.3f\n", result.gbps, result.cpu);
	fflush(stdout);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	_exit(0);
}
