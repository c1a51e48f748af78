/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of: random bytes into local memory, WRITE, clear, READ back, compare. Each thread stays in its own part. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "apps/common/host.h"
#include "apps/lwbench/load.h"

/* What one round moves: blocks first .. first + count - 1 of the part, in batches. */
struct span {
	uint64_t first;
	uint64_t count;
	lw_batch_t *batches; /* options->depth of them */
};

/* Hands over one batch; a full ring is waited out. 0 or the error of a call. */
static int submit(struct load_thread *thread, uint32_t count, uint8_t op, lw_batch_t *out)
{
	struct lw_completion none[1];
	int rc = lw_batch_alloc(thread->channel, count, 0, NULL, out);

	if (rc) {
		load_broken(thread, "lw_batch_alloc", rc);
		return rc;
	}
	load_fill(thread, count, op);
	while ((rc = lw_submit(thread->channel, *out, thread->requests, count)) == -EAGAIN)
		lw_channel_poll(thread->channel, none, 1); /* in caller mode this is what empties the ring */
	if (rc) {
		load_broken(thread, "lw_submit", rc);
		lw_batch_free(thread->load->engine, *out);
	}
	return rc;
}

/* Waits for one batch. Requests that failed are counted and named. */
static void settle(struct load_thread *thread, lw_batch_t batch)
{
	struct lw_engine *engine = thread->load->engine;
	struct lw_batch_status status;
	int rc = lw_batch_wait(engine, batch, thread->load->options->timeout_ms + 5000, &status);

	if (rc) {
		load_broken(thread, "lw_batch_wait", rc);
		return;
	}
	if (status.failed) {
		failures_collect(&thread->failures, engine, batch, status.tasks);
		thread->failed += status.failed;
	}
	load_count(thread, status.tasks - status.failed);
	rc = lw_batch_free(engine, batch);
	if (rc)
		load_broken(thread, "lw_batch_free", rc);
}

/* Moves the span in one direction; all its batches are under way together. */
static void move(struct load_thread *thread, const struct span *span, uint8_t op)
{
	uint32_t batch = thread->load->options->batch, used = 0;
	uint64_t start_ns = app_clock_ns(), left = span->count;

	thread->cursor = span->first;
	while (left && !thread->broken) {
		uint32_t count = left < batch ? (uint32_t)left : batch;

		if (submit(thread, count, op, &span->batches[used]))
			break;
		used++;
		thread->cursor += count;
		left -= count;
	}
	for (uint32_t i = 0; i < used; i++)
		settle(thread, span->batches[i]);
	uint64_t took_ns = app_clock_ns() - start_ns;
	hist_add(&thread->latency, took_ns);
	thread->moving_ns += took_ns;
}

static void validate_round(struct load_thread *thread, const struct span *span, uint64_t round)
{
	const struct load *load = thread->load;
	uint64_t offset = thread->index * load->part_bytes + span->first * load->block;
	uint64_t bytes = span->count * load->block, failed = thread->failed;
	uint64_t mix = load->options->seed ^ (round << 16 | thread->index);
	uint64_t seed = app_random(&mix);

	app_pattern_fill(load->local + offset, bytes, seed);
	move(thread, span, LW_WRITE);
	if (thread->broken || thread->failed > failed)
		return; /* what the target holds is not defined */
	memset(load->local + offset, 0, bytes);
	move(thread, span, LW_READ);
	if (thread->broken || thread->failed > failed)
		return;
	uint64_t wrong = app_pattern_check(load->local + offset, bytes, seed);
	if (wrong == bytes)
		return;
	fprintf(stderr,
		"lwbench: MISMATCH thread %u round %" PRIu64 ": byte at offset %" PRIu64 " (block %" PRIu64
		" of this round, byte %" PRIu64 " of it) came back wrong; --seed %" PRIu64 "\n",
		thread->index, round, offset + wrong, wrong / load->block, wrong % load->block, load->options->seed);
	thread->mismatch = true;
}

void validate_loop(struct load_thread *thread, uint64_t end_ns)
{
	const struct load *load = thread->load;
	const struct options *options = load->options;
	uint64_t blocks = load->part_bytes / load->block;
	uint64_t window = (uint64_t)options->batch * options->depth;
	uint64_t left = options->count ? options->count : UINT64_MAX;
	struct span span = {.batches = calloc(options->depth, sizeof(*span.batches))};

	if (!span.batches) {
		load_broken(thread, "memory", -ENOMEM);
		return;
	}
	if (window > blocks)
		window = blocks;
	for (uint64_t round = 0; left && app_clock_ns() < end_ns; round++) {
		span.count = window < left ? window : left;
		if (span.first + span.count > blocks)
			span.first = 0;
		validate_round(thread, &span, round);
		if (thread->mismatch || thread->broken || thread->failed ||
		    atomic_load_explicit(&load->stop, memory_order_relaxed))
			break;
		span.first += span.count;
		left -= span.count;
	}
	free(span.batches);
}
