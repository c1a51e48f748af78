/* SPDX-License-Identifier: Apache-2.0 */
/* compat: what Mooncake's C interface costs on top of the engine's. Prints a table and, with --json, one JSON array of
 * {"name","value","unit","n"}. Requests go to the null driver, which moves no byte: what is left is the way of a
 * request through the interface. The worker runs on the first CPU, the submitting thread on
 * the last; without two CPUs exit status 77.
 *
 * A sample allocates a batch, submits it, polls each of its tasks until it is COMPLETED, and frees it. A figure is the
 * median of the samples, divided by the number of requests. The same is done through lw_submit and lw_task_status, in
 * turn with it, by a second engine of this process. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lanewise/lanewise.h>

#include "bench/measure.h"
#include "lib/compat/transfer_engine_ext.h"

#define TURNS 20
#define LENGTH 64 /* bytes of a request, which nobody moves */
#define MEMORY ((size_t)1 << 20)

static transfer_engine_t engine;
static segment_id_t target;
static struct lw_engine *native;
static struct lw_channel *channel;
static lw_segment_t segment;
static char *memory;

static void die(const char *what)
{
	fprintf(stderr, "compat: %s: %s, %s\n", what, getTransferEngineError(), lw_last_error());
	exit(1);
}

static void open_both(void)
{
	char cpu[16];
	struct lw_memory all = {.length = MEMORY, .access = LW_ACCESS_REMOTE};
	lw_buffer_t id;

	memory = calloc(1, MEMORY);
	all.addr = memory;
	snprintf(cpu, sizeof(cpu), "%d", first_cpu);
	setenv("LW_CPUS", cpu, 1);
	/* Two busy workers on one CPU would stall each other. */
	setenv("LW_POLL", "adaptive", 1);
	engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
	if (memory == NULL || engine == NULL || registerLocalMemory(engine, memory, MEMORY, "*", 1) != 0)
		die("open");
	target = openSegment(engine, "null://");
	if (target < 0 || lw_engine_open(NULL, &native) != 0 || lw_memory_register(native, &all, 1, &id) != 0 ||
	    lw_channel_self(native, &channel) != 0 || lw_segment_open(native, "null://", 0, &segment) != 0)
		die("open");
}

static double one_compat(struct transfer_request *requests, size_t count)
{
	struct transfer_status status;
	uint64_t start = now_ns();
	batch_id_t batch = allocateBatchID(engine, count);

	if (batch == INVALID_BATCH || submitTransfer(engine, batch, requests, count) != 0)
		die("submit");
	for (size_t i = 0; i < count; i++) {
		do {
			if (getTransferStatus(engine, batch, i, &status) != 0)
				die("status");
		} while (status.status == STATUS_WAITING);
		if (status.status != STATUS_COMPLETED)
			die("a transfer failed");
	}
	if (freeBatchID(engine, batch) != 0)
		die("free");
	return (double)(now_ns() - start) / (double)count;
}

static double one_native(struct lw_request *requests, size_t count)
{
	struct lw_task_status status;
	uint64_t start = now_ns();
	lw_batch_t batch;

	if (lw_batch_alloc(channel, (uint32_t)count, 0, NULL, &batch) != 0 ||
	    lw_submit(channel, batch, requests, count) != 0)
		die("submit");
	for (size_t i = 0; i < count; i++) {
		do {
			if (lw_task_status(native, batch, (uint32_t)i, &status) != 0)
				die("status");
		} while (status.state == LW_PENDING);
		if (status.state != LW_COMPLETED)
			die("a transfer failed");
	}
	if (lw_batch_free(native, batch) != 0)
		die("free");
	return (double)(now_ns() - start) / (double)count;
}

/* Both in turn, samples of each a turn. A ratio is that of one turn's medians. */
static void batches_of(size_t count, size_t samples)
{
	struct transfer_request *ours = calloc(count, sizeof(*ours));
	struct lw_request *theirs = calloc(count, sizeof(*theirs));
	double *compat = calloc(TURNS * samples, sizeof(*compat)), *bare = calloc(TURNS * samples, sizeof(*bare));
	double ratio[TURNS];
	char name[64];

	if (ours == NULL || theirs == NULL || compat == NULL || bare == NULL)
		exit(1);
	for (size_t i = 0; i < count; i++) {
		char *local = memory + i * LENGTH % MEMORY;

		ours[i] = (struct transfer_request){OPCODE_WRITE, local, target, (uint64_t)(uintptr_t)local, LENGTH};
		theirs[i] = (struct lw_request){.local = local,
						.segment = segment,
						.offset = (uint64_t)(uintptr_t)local,
						.length = LENGTH,
						.op = LW_WRITE};
	}
	for (size_t turn = 0; turn < TURNS; turn++) {
		for (size_t i = 0; i < samples + samples / 10; i++) { /* the first are for warming up */
			double value = one_compat(ours, count);

			compat[turn * samples + (i < samples / 10 ? 0 : i - samples / 10)] = value;
		}
		usleep(2000); /* the engine's worker falls asleep, and leaves its CPU to the other's */
		for (size_t i = 0; i < samples + samples / 10; i++) {
			double value = one_native(theirs, count);

			bare[turn * samples + (i < samples / 10 ? 0 : i - samples / 10)] = value;
		}
		usleep(2000);
		ratio[turn] = percentile(compat + turn * samples, samples, 0.5) /
			      percentile(bare + turn * samples, samples, 0.5);
	}
	snprintf(name, sizeof(name), "compat_submit_poll_ns_batch%zu", count);
	report(name, percentile(compat, TURNS * samples, 0.5), "ns", TURNS * samples);
	snprintf(name, sizeof(name), "native_submit_poll_ns_batch%zu", count);
	report(name, percentile(bare, TURNS * samples, 0.5), "ns", TURNS * samples);
	snprintf(name, sizeof(name), "compat_vs_native_batch%zu", count);
	report(name, percentile(ratio, TURNS, 0.5), "ratio", TURNS);
	free(ours);
	free(theirs);
	free(compat);
	free(bare);
}

int main(int argc, char **argv)
{
	measure_json = argc > 1 && strcmp(argv[1], "--json") == 0;
	if (!measure_cpus("compat"))
		return 77;
	open_both();
	pin(last_cpu); /* after the engines chose their CPUs from those that the thread may use */
	batches_of(1, 1000);
	batches_of(64, 500);
	batches_of(4096, 25);
	unpin();
	destroyTransferEngine(engine);
	lw_engine_close(native);
	free(memory);
	measure_end();
	return 0;
}
