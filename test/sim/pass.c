/* SPDX-License-Identifier: Apache-2.0 */
/* Passes of the worker, and what the application has to find true after each. */
#include "sim/sim.h"

/* The linker puts it in the place of lib/batch.c's, for calls of the worker. */
void __wrap_lw_batch_ended(struct lw_engine *engine, struct lw_batch *slot, uint32_t done, uint32_t failed);
void __real_lw_batch_ended(struct lw_engine *engine, struct lw_batch *slot, uint32_t done, uint32_t failed);

static struct sim_batch *batch_of(const struct lw_batch *slot)
{
	for (uint32_t i = 0; i < SIM_BATCHES; i++)
		if (sim.batches[i].id != 0 && lw_batch_of(sim.engine, sim.batches[i].id) == slot)
			return &sim.batches[i];
	return NULL;
}

/* The word of a batch must not say that tasks have ended before each of them says so. */
void __wrap_lw_batch_ended(struct lw_engine *engine, struct lw_batch *slot, uint32_t done, uint32_t failed)
{
	uint64_t word = atomic_load(&slot->word);
	struct sim_batch *batch = batch_of(slot);
	uint32_t pending = 0;

	SIM_CHECK(done != 0 && failed <= done && done <= lw_word_pending(word),
		  "%u tasks end of a batch in which %u are pending", done, lw_word_pending(word));
	SIM_CHECK(batch != NULL, "tasks end of a batch that was freed");
	for (uint32_t i = 0; i < batch->submitted; i++)
		pending += (atomic_load(&sim_requests[batch->requests[i]].task->outcome) & 0xff) == LW_PENDING;
	SIM_CHECK(pending <= lw_word_pending(word) - done || batch->capacity == 1,
		  "%u tasks are counted as pending, but %u say so", lw_word_pending(word) - done, pending);
	if (lw_word_pending(word) == done && batch->event) {
		SIM_CHECK((word & LW_WORD_TELL) != 0, "a batch ends and nobody is to be told");
		batch->owed = true;
		if ((word & LW_WORD_QUEUED) == 0)
			batch->queued = ++sim.events_queued;
	}
	__real_lw_batch_ended(engine, slot, done, failed);
}

static void look_at_batch(struct sim_batch *batch)
{
	struct lw_batch_status status;

	batch->news = false;
	SIM_CHECK(lw_batch_status(sim.engine, batch->id, &status) == 0, "a batch is stale");
	SIM_CHECK(status.tasks == batch->submitted && status.done == batch->ended && status.failed == batch->failed,
		  "batch %u: %u of %u tasks ended, %u failed; its status says %u of %u, %u",
		  (uint32_t)(batch - sim.batches), batch->ended, batch->submitted, batch->failed, status.done,
		  status.tasks, status.failed);
	SIM_CHECK(status.state == (batch->ended < batch->submitted ? LW_PENDING
				   : batch->failed != 0            ? LW_FAILED
								   : LW_COMPLETED),
		  "the state of a batch is %u", status.state);
}

void sim_pass_begin(void)
{
	uint64_t gap_ns = sim.now_ns - sim.last_pass_ns;

	if (gap_ns > sim.longest_gap_ns)
		sim.longest_gap_ns = gap_ns;
	sim.last_pass_ns = sim.now_ns;
	sim.passes++;
}

void sim_pass_end(void)
{
	const struct lw_intake *intake = &sim.worker->intakes[sim.channel->index];
	bool all_taken = intake->run.count == 0 && lw_spsc_empty(sim.channel->ring);

	for (uint32_t i = 0; i < sim.live_count; i++) {
		struct sim_request *request = &sim_requests[sim_live[i]];

		if (all_taken && request->taken_ns == 0)
			request->taken_ns = sim.now_ns;
		if (!sim_request_look(request))
			continue;
		sim.batches[request->batch].news = true;
		sim.batches[request->batch].ended++;
		sim.batches[request->batch].failed += request->outcome.state != LW_COMPLETED;
		sim_live[i--] = sim_live[--sim.live_count];
	}
	for (uint32_t i = 0; i < SIM_BATCHES; i++)
		if (sim.batches[i].id != 0 && (sim.batches[i].news || sim.batches[i].ended < sim.batches[i].submitted))
			look_at_batch(&sim.batches[i]);
	sim_inside_look();
}

void sim_pass(void)
{
	int ended;

	sim_pass_begin();
	ended = lw_engine_progress(sim.engine);
	SIM_CHECK(ended >= 0, "progress: %d", ended);
	sim_pass_end();
}
