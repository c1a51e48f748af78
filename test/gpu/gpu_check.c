/* SPDX-License-Identifier: Apache-2.0 */
/* The driver nvlink on real devices: that bytes arrive exactly, and how quickly, beside a plain loop of cudaMemcpyAsync
 * in the same run. test/gpu/run.sh calls it; over the stand-in it is a test of itself.
 *
 *   gpu_check [--library FILE] [--quick]     everything; 77: there is no GPU
 *   gpu_check --peer DEVICE BYTES FILE       the other process: offers memory of that device
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lanewise/lanewise.h>

#include "lib/clock.h"
#include "lib/gpu/runtime.h"

#define MIB ((size_t)1 << 20)
#define SKIP 77
#define DEFAULT_KIND 4 /* the addresses say what is where */

/* The runtime as the application uses it. */
static struct {
	const struct lw_gpu *gpu;
	int devices;
	int (*set_device)(int device);
	int (*malloc)(void **out, size_t size);
	int (*free)(void *memory);
	int (*memcpy)(void *to, const void *from, size_t length, int kind);
	int (*memcpy_async)(void *to, const void *from, size_t length, int kind, void *stream);
} cuda;

static const char *library = "";
static bool quick;
static size_t area; /* bytes of each side */
static unsigned char *scratch, *image;

__attribute__((noreturn, format(printf, 1, 2))) static void end(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static void check(int code, const char *what)
{
	if (code != 0)
		end("%s: the runtime says %d", what, code);
}

static void find(void *handle, const char *name, void *to)
{
	void *symbol = dlsym(handle, name);

	if (symbol == NULL)
		end("%s has no %s", lw_gpu_library(cuda.gpu), name);
	memcpy(to, &symbol, sizeof(symbol));
}

/* 0, or SKIP with the reason printed: there is no GPU. */
static int open_cuda(void)
{
	char why[400] = "";
	void *handle;
	int error = lw_gpu_open(LW_GPU_CUDA, library, &cuda.gpu, why, sizeof(why));

	if (error != 0) {
		printf("skipped: no CUDA runtime: %s\n", why);
		return SKIP;
	}
	error = lw_gpu_devices(cuda.gpu, &cuda.devices);
	if (error != 0) {
		printf("skipped: the first call of %s failed, there is no GPU: %s\n", lw_gpu_library(cuda.gpu),
		       strerror(-error));
		return SKIP;
	}
	handle = dlopen(lw_gpu_library(cuda.gpu), RTLD_LAZY);
	find(handle, "cudaSetDevice", &cuda.set_device);
	find(handle, "cudaMalloc", &cuda.malloc);
	find(handle, "cudaFree", &cuda.free);
	find(handle, "cudaMemcpy", &cuda.memcpy);
	find(handle, "cudaMemcpyAsync", &cuda.memcpy_async);
	return 0;
}

static unsigned char *allocate(int device, size_t size)
{
	void *memory;

	check(cuda.set_device(device), "cudaSetDevice");
	check(cuda.malloc(&memory, size), "cudaMalloc");
	check(cuda.set_device(0), "cudaSetDevice");
	return memory;
}

static void fill(unsigned char *memory, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		memory[i] = (unsigned char)(seed >> 56);
	}
}

static struct lw_engine *open_engine(void)
{
	const struct lw_setting settings[] = {
		{"drivers", "shm,nvlink,tcp"}, {"cuda_library", library}, {"hugepages", "off"}, {"eal", "off"}};
	struct lw_engine_opts opts = {.size = sizeof(opts),
				      .name = "127.0.0.1",
				      .settings = settings,
				      .settings_count = sizeof(settings) / sizeof(settings[0])};
	struct lw_engine *engine;

	if (lw_engine_open(&opts, &engine) != 0)
		end("no engine: %s", lw_last_error());
	return engine;
}

static lw_buffer_t enter(struct lw_engine *engine, void *memory, size_t length)
{
	struct lw_memory buffer = {.addr = memory, .length = length, .access = LW_ACCESS_REMOTE};
	lw_buffer_t id;

	if (lw_memory_register(engine, &buffer, 1, &id) != 0)
		end("not registered: %s", lw_last_error());
	return id;
}

/* The other process ------------------------------------------------------------------------------------------------
 */

static int be_peer(int device, size_t bytes)
{
	struct lw_engine *engine;
	unsigned char *memory;
	char line[64];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (open_cuda() != 0)
		return SKIP;
	memory = allocate(device, bytes);
	engine = open_engine();
	enter(engine, memory, bytes);
	printf("ready %s %" PRIu64 "\n", lw_engine_name(engine), (uint64_t)(uintptr_t)memory);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL) {
	}
	lw_engine_close(engine);
	check(cuda.free(memory), "cudaFree");
	return 0;
}

struct other {
	pid_t pid;
	int to;
	char name[128];
	uint64_t addr;
};

static struct other start_other(int device)
{
	struct other other = {0};
	char number[16], bytes[32], line[256];
	int in[2], out[2];
	FILE *from;

	snprintf(number, sizeof(number), "%d", device);
	snprintf(bytes, sizeof(bytes), "%zu", area);
	if (pipe(in) != 0 || pipe(out) != 0)
		end("no pipes");
	other.pid = fork();
	if (other.pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[1]);
		/* With a loader of its own (run.sh) the program is not what this process runs. */
		if (getenv("GPU_CHECK_SELF") != NULL)
			execl("/bin/sh", "sh", "-c", "exec $GPU_CHECK_SELF --peer \"$0\" \"$1\" \"$2\"", number, bytes,
			      library, (char *)NULL);
		else
			execl("/proc/self/exe", "gpu_check", "--peer", number, bytes, library, (char *)NULL);
		_exit(1);
	}
	close(in[0]);
	close(out[1]);
	from = fdopen(out[0], "r");
	if (from == NULL || fgets(line, sizeof(line), from) == NULL ||
	    sscanf(line, "ready %127s %" SCNu64, other.name, &other.addr) != 2)
		end("the other process did not start");
	fclose(from);
	other.to = in[1];
	return other;
}

static void end_other(struct other *other)
{
	int status;

	close(other->to);
	if (waitpid(other->pid, &status, 0) != other->pid || status != 0)
		end("the other process ended with status %d", status);
}

/* Transfers ----------------------------------------------------------------------------------------------------------
 */

struct run {
	struct lw_engine *engine;
	struct lw_channel *channel;
	lw_segment_t segment;
};

static void run_batch(const struct run *run, const struct lw_request *requests, uint32_t count)
{
	struct lw_batch_status status;
	lw_batch_t batch;
	char why[400] = "";

	if (lw_batch_alloc(run->channel, count, 0, NULL, &batch) != 0 ||
	    lw_submit(run->channel, batch, requests, count) != 0 ||
	    lw_batch_wait(run->engine, batch, 60000, &status) != 0)
		end("a batch: %s", lw_last_error());
	for (uint32_t i = 0; status.failed != 0 && i < count && why[0] == '\0'; i++)
		lw_task_reason(run->engine, batch, i, why, sizeof(why));
	if (status.failed != 0 || status.done != count)
		end("a request failed: %s", why);
	lw_batch_free(run->engine, batch);
}

/* count requests of length bytes each, side by side. */
static void move(const struct run *run, enum lw_op op, unsigned char *local, uint64_t remote, size_t length,
		 uint32_t count)
{
	struct lw_request requests[256];

	for (uint32_t i = 0; i < count; i++)
		requests[i] = (struct lw_request){.local = local + i * length % area,
						  .segment = run->segment,
						  .offset = remote + i * length % area,
						  .length = length,
						  .op = (uint8_t)op};
	run_batch(run, requests, count);
}

/* The driver whose lanes carried what was moved. */
static const char *carrier(const struct run *run)
{
	static char name[16];
	struct lw_lane_stats lanes[64];
	uint64_t most = 0;
	int count = lw_stats_lanes(run->engine, lanes, 64);

	name[0] = '\0';
	for (int i = 0; i < count && i < 64; i++)
		if (lanes[i].target == 0 && lanes[i].slices > most) {
			most = lanes[i].slices;
			memcpy(name, lanes[i].driver, sizeof(name));
		}
	return name;
}

/* One side's bytes, whatever memory that is; through the runtime's own copies. */
static void store(unsigned char *memory, const unsigned char *bytes, size_t length)
{
	check(cuda.memcpy(memory, bytes, length, DEFAULT_KIND), "cudaMemcpy");
}

static void load(unsigned char *bytes, const unsigned char *memory, size_t length)
{
	check(cuda.memcpy(bytes, memory, length, DEFAULT_KIND), "cudaMemcpy");
}

/* Sizes and places of all kinds, there and back: WRITE, then READ into cleared memory. Bytes beside them stay. */
static void check_exact(const struct run *run, const char *what, unsigned char *local, uint64_t remote)
{
	static const size_t sizes[] = {1, 7, 64, 4096, 65537, 1048576, 3000001};
	static const size_t places[] = {0, 1, 4095, 65536};
	unsigned int checks = 0;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (size_t k = 0; k < sizeof(places) / sizeof(places[0]); k++) {
			size_t length = sizes[i], at = places[k] + 64, other = places[3 - k] + 64;

			if (length + 70000 > area)
				continue;
			fill(image, length + 128, i * 31 + k);
			store(local + at - 64, image, length + 128);
			move(run, LW_WRITE, local + at, remote + other, length, 1);
			memset(scratch, 0, length + 128);
			store(local + at - 64, scratch, length + 128);
			move(run, LW_READ, local + at, remote + other, length, 1);
			load(scratch, local + at - 64, length + 128);
			for (size_t byte = 0; byte < length + 128; byte++)
				if (scratch[byte] != (byte >= 64 && byte < 64 + length ? image[byte] : 0))
					end("%s: %zu bytes at %zu: byte %zu is wrong", what, length, at, byte);
			checks++;
		}
	}
	printf("exact    %-36s %u transfers there and back, by %s\n", what, checks, carrier(run));
}

/* Measures
 * -------------------------------------------------------------------------------------------------------------
 */

static double seconds(uint64_t begin_ns)
{
	return (double)(lw_now_ns() - begin_ns) / 1e9;
}

/* A plain loop: count copies into one stream, and an event behind them. Seconds of one turn. */
static double plain(struct lw_gpu_stream *stream, const struct lw_gpu_event *event, unsigned char *to,
		    const unsigned char *from, size_t length, uint32_t count)
{
	uint64_t begin_ns = lw_now_ns();

	for (uint32_t i = 0; i < count; i++)
		check(cuda.memcpy_async(to + i * length % area, from + i * length % area, length, DEFAULT_KIND,
					stream->handle),
		      "cudaMemcpyAsync");
	check(lw_gpu_event_record(event, stream), "cudaEventRecord");
	while (lw_gpu_event_query(event) == 0) {
	}
	return seconds(begin_ns);
}

static int compare(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return left < right ? -1 : left > right;
}

/* Turns about, so that both see the same machine; the median of each. */
static void measure(const struct run *run, const char *what, unsigned char *local, uint64_t remote,
		    unsigned char *stand_in, size_t length, uint32_t count)
{
	enum { TURNS_MAX = 15 };
	int turns = quick ? 3 : TURNS_MAX;
	double ours[TURNS_MAX] = {0}, loop[TURNS_MAX] = {0};
	struct lw_gpu_stream stream;
	struct lw_gpu_event event;
	struct lw_gpu_guard guard;

	check(lw_gpu_enter(cuda.gpu, 0, &guard), "the device");
	check(lw_gpu_stream_create(cuda.gpu, 0, &stream), "a stream");
	check(lw_gpu_event_create(cuda.gpu, &event), "an event");
	for (int i = -1; i < turns; i++) { /* the first one warms up */
		uint64_t begin_ns;
		double took = plain(&stream, &event, stand_in, local, length, count);

		begin_ns = lw_now_ns();
		move(run, LW_WRITE, local, remote, length, count);
		if (i < 0)
			continue;
		loop[i] = took;
		ours[i] = seconds(begin_ns);
	}
	lw_gpu_event_destroy(&event);
	lw_gpu_stream_destroy(&stream);
	lw_gpu_leave(&guard);
	qsort(ours, (size_t)turns, sizeof(ours[0]), compare);
	qsort(loop, (size_t)turns, sizeof(loop[0]), compare);
	if (length < MIB)
		printf("cost     %-36s %7zu bytes x %3u  loop %8.0f ns a copy  ours %8.0f ns a copy  ratio %.2f\n",
		       what, length, count, loop[turns / 2] * 1e9 / count, ours[turns / 2] * 1e9 / count,
		       ours[turns / 2] / loop[turns / 2]);
	else
		printf("measure  %-36s %7zu KiB x %3u  loop %8.2f GB/s  ours %8.2f GB/s  ratio %.2f\n", what,
		       length / 1024, count, (double)length * count / loop[turns / 2] / 1e9,
		       (double)length * count / ours[turns / 2] / 1e9, loop[turns / 2] / ours[turns / 2]);
	fflush(stdout);
}

/* stand_in: memory like the remote one, for the plain loop. */
static void check_and_measure(const struct run *run, const char *what, unsigned char *local, uint64_t remote,
			      unsigned char *stand_in)
{
	check_exact(run, what, local, remote);
	for (size_t length = MIB; length <= area / 4; length *= 4)
		measure(run, what, local, remote, stand_in, length,
			(uint32_t)(area / length < 16 ? area / length : 16));
	measure(run, what, local, remote, stand_in, 4096, 256);
}

static int run_all(void)
{
	struct run run = {.segment = LW_SEGMENT_LOCAL};
	int last = 0;
	unsigned char *device[2], *extra, *host;
	struct other other;
	void *pinned;
	struct lw_gpu_guard guard;

	if (open_cuda() != 0)
		return SKIP;
	last = cuda.devices - 1 > 1 ? 1 : cuda.devices - 1;
	area = quick ? 4 * MIB : 256 * MIB;
	scratch = malloc(area);
	image = malloc(area);
	if (scratch == NULL || image == NULL)
		end("no memory");
	printf("runtime  %s, %d devices\n", lw_gpu_library(cuda.gpu), cuda.devices);
	device[0] = allocate(0, area);
	device[1] = allocate(last, area);
	extra = allocate(last, area);
	check(lw_gpu_enter(cuda.gpu, 0, &guard), "the device");
	check(lw_gpu_host_alloc(cuda.gpu, area, &pinned), "pinned memory");
	lw_gpu_leave(&guard);
	host = malloc(area);
	if (host == NULL)
		end("no memory");
	run.engine = open_engine();
	if (lw_channel_self(run.engine, &run.channel) != 0)
		end("no channel: %s", lw_last_error());
	enter(run.engine, device[0], area);
	enter(run.engine, device[1], area);
	enter(run.engine, pinned, area);
	enter(run.engine, host, area);

	check_and_measure(&run, last == 0 ? "device to device, one process" : "device to another, one process",
			  device[0], (uint64_t)(uintptr_t)device[1], extra);
	check_and_measure(&run, "host (allocated pinned) to device", pinned, (uint64_t)(uintptr_t)device[1], extra);
	check_and_measure(&run, "host (pinned by us) to device", host, (uint64_t)(uintptr_t)device[1], extra);
	check_and_measure(&run, "device to host (allocated pinned)", device[0], (uint64_t)(uintptr_t)pinned, pinned);

	other = start_other(last);
	if (lw_segment_open(run.engine, other.name, 0, &run.segment) != 0)
		end("the other process can't be reached: %s", lw_last_error());
	check_and_measure(&run, "device to device, two processes", device[0], other.addr, extra);
	check_and_measure(&run, "host to device, two processes", pinned, other.addr, extra);
	lw_segment_close(run.engine, run.segment);
	end_other(&other);

	if (lw_engine_close(run.engine) != 0)
		end("the engine was not closed");
	lw_gpu_host_free(cuda.gpu, pinned);
	check(cuda.free(device[0]), "cudaFree");
	check(cuda.free(device[1]), "cudaFree");
	check(cuda.free(extra), "cudaFree");
	free(host);
	free(scratch);
	free(image);
	printf("all well\n");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "--peer") == 0) {
		library = argv[4];
		return be_peer(atoi(argv[2]), (size_t)strtoull(argv[3], NULL, 10));
	}
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--quick") == 0)
			quick = true;
		else if (strcmp(argv[i], "--library") == 0 && i + 1 < argc)
			library = argv[++i];
		else
			end("usage: gpu_check [--library FILE] [--quick]");
	}
	return run_all();
}
