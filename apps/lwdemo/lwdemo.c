/* SPDX-License-Identifier: Apache-2.0 */
/* lwdemo moves a file into the memory of another process and reads it back. See README.md; test/sys/demo.sh drives it.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/common/host.h"
#include "apps/common/lanes.h"
#include "apps/common/note.h"
#include "apps/common/units.h"

#define NOTE_DUMP "lwdemo.dump"     /* "write down what you hold"; the text is the sender's name */
#define NOTE_DUMPED "lwdemo.dumped" /* "done"; the text is the number of bytes, 0 when it failed */
#define WRITE_BYTES (1u << 20)
#define READ_BYTES (64u << 10)
#define BATCH 32u
#define DEPTH 4u /* batches under way */
#define DUMP_WAIT_MS 30000

static const char usage[] =
	"lwdemo moves a file into the memory of another process and reads it back.\n"
	"\n"
	"  lwdemo target --file-size BYTES --out FILE [--listen HOST] [--duration S]\n"
	"      offers BYTES of memory; writes what it holds to FILE when it is asked to; ends on SIGTERM, SIGINT,\n"
	"      or after S seconds (60)\n"
	"  lwdemo initiator --target NAME --file FILE [--back FILE] [--seed N] [--listen HOST]\n"
	"      writes FILE into the target's memory in requests of 1 MiB, lets the target write it down, then reads "
	"it\n"
	"      back in blocks of 64 KiB in shuffled order, and writes those to --back\n"
	"\n"
	"Exit: 0 all well; 1 a transfer failed or bytes differ; 2 wrong usage; 3 a file, the engine or the target "
	"can't be\n"
	"opened.\n";

struct demo {
	const char *target;
	const char *listen;
	const char *file;
	const char *back;
	const char *out;
	uint64_t size;
	uint64_t seed;
	double duration_s;
	struct lw_engine *engine;
	struct lw_channel *channel;
	lw_segment_t segment;
	uint64_t remote;
};

static int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "lwdemo: ");
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return code;
}

/* Writes memory to a file. 0; -errno. */
static int dump(const char *path, const unsigned char *from, uint64_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), rc = 0;

	if (fd < 0)
		return -errno;
	for (uint64_t done = 0; done < size && !rc;) {
		ssize_t n = write(fd, from + done, size - done);
		if (n > 0)
			done += (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			rc = n == 0 ? -EIO : -errno;
	}
	if (close(fd) && !rc)
		rc = -errno;
	return rc;
}

/* Reads a whole file of known size. 0; -errno. */
static int load(const char *path, unsigned char *to, uint64_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;

	if (fd < 0)
		return -errno;
	for (uint64_t done = 0; done < size && !rc;) {
		ssize_t n = read(fd, to + done, size - done);
		if (n > 0)
			done += (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			rc = n == 0 ? -EIO : -errno;
	}
	close(fd);
	return rc;
}

static int open_engine(struct demo *demo, void *memory, uint32_t access)
{
	const struct lw_memory list = {.addr = memory, .length = demo->size, .access = access};
	struct lw_engine_opts opts;
	lw_buffer_t buffer;

	lw_engine_opts_init(&opts, sizeof(opts));
	opts.name = demo->listen;
	opts.metadata = "P2PHANDSHAKE"; /* its names are addresses, wherever the environment keeps names */
	if (lw_engine_open(&opts, &demo->engine) || lw_memory_register(demo->engine, &list, 1, &buffer))
		return fail(3, "%s", lw_last_error());
	return 0;
}

static int target_main(struct demo *demo)
{
	uint64_t end_ns = app_clock_ns() + (uint64_t)(demo->duration_s * 1e9);
	unsigned char *memory = app_memory_map(demo->size);
	struct lw_note *note;
	char text[32];

	if (!memory)
		return fail(3, "no memory for %" PRIu64 " bytes", demo->size);
	int rc = open_engine(demo, memory, LW_ACCESS_REMOTE);
	if (rc)
		goto out;
	printf("lwdemo: target ready name=%s addr=0x%" PRIxPTR " size=%" PRIu64 "\n", lw_engine_name(demo->engine),
	       (uintptr_t)memory, demo->size);
	fflush(stdout);
	while (!app_ended(lw_engine_progress(demo->engine) < 0 ? 2 : 0) && app_clock_ns() < end_ns) {
		if (lw_note_poll(demo->engine, &note) != 1)
			continue;
		if (strcmp(note->name, NOTE_DUMP) == 0) {
			int error = dump(demo->out, memory, demo->size);
			if (error)
				fail(0, "%s: %s", demo->out, strerror(-error));
			snprintf(text, sizeof(text), "%" PRIu64, error ? 0 : demo->size);
			if (app_note_answer(demo->engine, note->text, NOTE_DUMPED, text, 2000))
				fail(0, "%s can't be answered: %s", note->text, lw_last_error());
		}
		lw_note_free(note);
	}
out:
	if (demo->engine)
		lw_engine_close(demo->engine);
	app_memory_unmap(memory, demo->size);
	return rc;
}

/* Waits for a batch; names what failed in it. */
static int settle(struct demo *demo, lw_batch_t batch)
{
	struct lw_batch_status status;
	struct lw_task_status task;
	char text[320];
	int rc = lw_batch_wait(demo->engine, batch, 60000, &status);

	if (rc)
		return fail(1, "%s", lw_last_error());
	for (uint32_t i = 0; i < status.tasks && status.failed; i++) {
		if (lw_task_status(demo->engine, batch, i, &task) || task.state == LW_COMPLETED)
			continue;
		if (lw_task_reason(demo->engine, batch, i, text, sizeof(text)) < 0)
			snprintf(text, sizeof(text), "%s", lw_reason_string((int)task.reason));
		rc = fail(1, "%" PRIu32 " requests failed, the first: %s", status.failed, text);
		break;
	}
	lw_batch_free(demo->engine, batch);
	return rc;
}

/* Hands over the blocks order[0 .. count) (block i itself without an order) as one batch. */
static int submit(struct demo *demo, unsigned char *memory, uint8_t op, uint32_t block, const uint32_t *order,
		  uint64_t first, uint32_t count, lw_batch_t *out)
{
	struct lw_request requests[BATCH];
	struct lw_completion none[1];
	int rc = lw_batch_alloc(demo->channel, count, 0, NULL, out);

	if (rc)
		return fail(1, "%s", lw_last_error());
	for (uint32_t i = 0; i < count; i++) {
		uint64_t offset = (order ? order[first + i] : first + i) * (uint64_t)block;
		uint64_t left = demo->size - offset;

		requests[i] = (struct lw_request){.local = memory + offset,
						  .segment = demo->segment,
						  .offset = demo->remote + offset,
						  .length = left < block ? left : block,
						  .op = op};
	}
	while ((rc = lw_submit(demo->channel, *out, requests, count)) == -EAGAIN)
		lw_channel_poll(demo->channel, none, 1);
	return rc ? fail(1, "%s", lw_last_error()) : 0;
}

/* Moves all of the memory with DEPTH batches under way, and says how fast it was. */
static int move(struct demo *demo, unsigned char *memory, uint8_t op, uint32_t block, const uint32_t *order)
{
	uint64_t blocks = (demo->size - 1) / block + 1, first = 0, head = 0, tail = 0;
	uint64_t begin_ns = app_clock_ns();
	lw_batch_t batches[DEPTH];
	int rc = 0;

	while (!rc && (first < blocks || tail < head)) {
		if (first < blocks && head - tail < DEPTH) {
			uint32_t count = blocks - first < BATCH ? (uint32_t)(blocks - first) : BATCH;

			rc = submit(demo, memory, op, block, order, first, count, &batches[head++ % DEPTH]);
			first += count;
		} else {
			rc = settle(demo, batches[tail++ % DEPTH]);
		}
	}
	double seconds = (double)(app_clock_ns() - begin_ns) / 1e9;
	if (!rc)
		printf("lwdemo: %-5s %" PRIu64 " bytes in %" PRIu64 " %s of %u KiB: %.3f s, %.2f GB/s\n",
		       op == LW_WRITE ? "WRITE" : "READ", demo->size, blocks, order ? "shuffled blocks" : "requests",
		       block >> 10, seconds, app_gbps(demo->size, seconds));
	fflush(stdout);
	return rc;
}

/* Lets the target write down what it holds. */
static int ask_dump(struct demo *demo)
{
	struct lw_note *note;
	int rc = app_note_ask(demo->engine, demo->segment, NOTE_DUMP, NOTE_DUMPED, false, DUMP_WAIT_MS, &note);

	if (rc)
		return fail(1, "the target does not answer: %s", lw_strerror(rc));
	if (strtoull(note->text, NULL, 10) != demo->size)
		rc = fail(1, "the target answers '%s' instead of %" PRIu64, note->text, demo->size);
	else
		printf("lwdemo: the target wrote down the %s bytes it holds\n", note->text);
	fflush(stdout);
	lw_note_free(note);
	return rc;
}

/* Every 64 KiB block once, in an order drawn from the seed. The caller frees it. */
static uint32_t *shuffle(uint64_t blocks, uint64_t seed)
{
	uint32_t *order = calloc(blocks, sizeof(*order));

	for (uint64_t i = 0; order && i < blocks; i++) {
		uint64_t j = app_random(&seed) % (i + 1);
		order[i] = order[j];
		order[j] = (uint32_t)i;
	}
	return order;
}

static int transfer(struct demo *demo, unsigned char *memory)
{
	struct lw_segment_range range;
	struct app_lanes lanes = {0};

	if (lw_segment_open(demo->engine, demo->target, 0, &demo->segment) ||
	    lw_channel_self(demo->engine, &demo->channel))
		return fail(3, "%s", lw_last_error());
	int count = lw_segment_ranges(demo->engine, demo->segment, &range, 1);
	if (count < 1 || range.length < demo->size)
		return fail(3, "%s offers no memory of %" PRIu64 " bytes", demo->target, demo->size);
	demo->remote = range.addr;
	int rc = move(demo, memory, LW_WRITE, WRITE_BYTES, NULL);
	if (!rc)
		rc = ask_dump(demo);
	if (rc)
		return rc;
	memset(memory, 0, demo->size);
	uint32_t *order = shuffle((demo->size - 1) / READ_BYTES + 1, demo->seed);
	if (!order)
		return fail(3, "no memory");
	printf("lwdemo: local memory cleared; reading back with --seed %" PRIu64 "\n", demo->seed);
	rc = move(demo, memory, LW_READ, READ_BYTES, order);
	free(order);
	if (!rc && demo->back) {
		int error = dump(demo->back, memory, demo->size);
		if (error)
			rc = fail(3, "%s: %s", demo->back, strerror(-error));
	}
	putchar('\n');
	app_lanes_update(&lanes, demo->engine);
	app_lanes_print(stdout, &lanes);
	app_lanes_free(&lanes);
	return rc;
}

static int initiator_main(struct demo *demo)
{
	struct stat stat_of;
	int rc;

	if (stat(demo->file, &stat_of))
		return fail(3, "%s: %s", demo->file, strerror(errno));
	if (stat_of.st_size <= 0)
		return fail(3, "%s: empty, or no ordinary file", demo->file);
	demo->size = (uint64_t)stat_of.st_size;
	unsigned char *memory = app_memory_map(demo->size);
	if (!memory)
		return fail(3, "no memory for %" PRIu64 " bytes", demo->size);
	rc = load(demo->file, memory, demo->size);
	if (rc)
		rc = fail(3, "%s: %s", demo->file, strerror(-rc));
	else
		rc = open_engine(demo, memory, LW_ACCESS_LOCAL);
	if (!rc)
		rc = transfer(demo, memory);
	if (demo->engine)
		lw_engine_close(demo->engine);
	app_memory_unmap(memory, demo->size);
	return rc;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"target", required_argument, NULL, 't'}, {"listen", required_argument, NULL, 'l'},
		{"file", required_argument, NULL, 'f'},   {"back", required_argument, NULL, 'b'},
		{"out", required_argument, NULL, 'o'},    {"file-size", required_argument, NULL, 'z'},
		{"seed", required_argument, NULL, 's'},   {"duration", required_argument, NULL, 'd'},
		{"help", no_argument, NULL, 'h'},         {0},
	};
	struct demo demo = {.listen = "127.0.0.1", .duration_s = 60, .seed = app_clock_ns()};
	bool target = argc > 1 && strcmp(argv[1], "target") == 0;
	int option, rc = 0;

	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		fputs(usage, stdout);
		return 0;
	}
	if (!target && (argc < 2 || strcmp(argv[1], "initiator") != 0)) {
		fputs(usage, stderr);
		return 2;
	}
	while ((option = getopt_long(argc - 1, argv + 1, "h", options, NULL)) != -1 && !rc) {
		switch (option) {
		case 't':
			demo.target = optarg;
			break;
		case 'l':
			demo.listen = optarg;
			break;
		case 'f':
			demo.file = optarg;
			break;
		case 'b':
			demo.back = optarg;
			break;
		case 'o':
			demo.out = optarg;
			break;
		case 'z':
			rc = app_size_parse(optarg, &demo.size);
			break;
		case 's':
			rc = app_number_parse(optarg, 0, UINT64_MAX, &demo.seed);
			break;
		case 'd':
			rc = app_fraction_parse(optarg, 86400, &demo.duration_s);
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			return 2;
		}
	}
	if (rc || optind < argc - 1 || (target ? !demo.size || !demo.out : !demo.target || !demo.file)) {
		fprintf(stderr, "lwdemo: an option is missing or wrong; try lwdemo --help\n");
		return 2;
	}
	if (!target)
		return initiator_main(&demo);
	app_signals_block();
	return target_main(&demo);
}
