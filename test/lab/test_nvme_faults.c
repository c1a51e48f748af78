/* SPDX-License-Identifier: Apache-2.0 */
/* A segment on a namespace of the kernel's NVMe over TCP target, which is taken away and offered again under load:
 * every request ends, and afterwards each block holds, whole, what a WRITE that completed put there, or a later one of
 * which nobody knows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"

#define BLOCK ((size_t)4096)
#define BLOCKS 256
#define BATCH 32
#define ROUNDS 2
#define SOURCE "source test/lab/nvme.sh; set -e; "

static uint64_t seed;

/* Runs a command line of the shell in the lab, with its functions; the last line of its output. */
static void shell(const char *command, char *line, size_t size)
{
	char text[1024];
	FILE *pipe;

	snprintf(text, sizeof(text), "exec timeout 120 bash -c '" SOURCE "%s'", command);
	pipe = popen(text, "r");
	assert_non_null(pipe);
	line[0] = '\0';
	while (fgets(line, (int)size, pipe) != NULL)
		line[strcspn(line, "\n")] = '\0';
	if (pclose(pipe) != 0)
		fail_msg("\"%s\" did not work", command);
}

/* The target goes, long enough for its initiator to give up what is under way, and comes back. */
static void *take_away(void *arg)
{
	atomic_bool *over = arg;
	char line[256];

	for (int i = 0; i < ROUNDS; i++) {
		test_sleep_ms(500);
		shell("nvme_withdraw 1 nqn.lab:disk; sleep 4; nvme_offer 1 nqn.lab:disk; "
		      "until grep -q live /sys/class/nvme/nvme*/state; do sleep 0.1; done",
		      line, sizeof(line));
	}
	test_sleep_ms(500);
	atomic_store(over, true);
	return NULL;
}

static void make_block(unsigned char *block, uint64_t number, uint64_t version)
{
	uint64_t head[2] = {number, version};

	memcpy(block, head, sizeof(head));
	test_fill(block + sizeof(head), BLOCK - sizeof(head), seed ^ number << 32 ^ version);
}

/* A block as it is now: of a version from what last completed up to what was last tried, and no mixture. */
static void check_block(const unsigned char *block, uint64_t number, uint64_t least, uint64_t most)
{
	unsigned char wanted[BLOCK];
	uint64_t head[2];

	memcpy(head, block, sizeof(head));
	if (head[0] != number || head[1] < least || head[1] > most)
		fail_msg("block %llu is block %llu, version %llu; %llu to %llu can be", (unsigned long long)number,
			 (unsigned long long)head[0], (unsigned long long)head[1], (unsigned long long)least,
			 (unsigned long long)most);
	make_block(wanted, number, head[1]);
	assert_memory_equal(block, wanted, BLOCK);
}

static void test_target_taken_away_under_load_nothing_lost_or_torn(void **state)
{
	static uint64_t written[BLOCKS], tried[BLOCKS]; /* versions */
	struct lw_engine *engine = test_engine("drivers=nvmeof timeout_ms=60000");
	unsigned char *memory = test_map(BLOCKS * BLOCK, NULL);
	struct lw_channel *channel;
	struct lw_request requests[BLOCKS];
	lw_segment_t segment;
	pthread_t thread;
	atomic_bool over = false;
	unsigned completed = 0, failed = 0, after = 0;
	uint64_t version = 0;
	char name[256], url[300];

	(void)state;
	shell("nvme_load; nvme_subsystem nqn.lab:disk $(nvme_memory_disk 16); nvme_port 1 tcp 10.98.0.2 4420 "
	      "nqn.lab:disk; "
	      "nvme_namespace $(nvme_connect transport=tcp traddr=10.98.0.2 host_traddr=10.98.0.1 trsvcid=4420 "
	      "nqn=nqn.lab:disk ctrl_loss_tmo=600 keep_alive_tmo=5)",
	      name, sizeof(name));
	snprintf(url, sizeof(url), "file:/dev/%s", name);
	test_register(engine, memory, BLOCKS * BLOCK, LW_ACCESS_LOCAL);
	if (lw_segment_open(engine, url, 0, &segment) != 0)
		fail_msg("%s: %s", url, lw_last_error());
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	for (size_t i = 0; i < BLOCKS; i++)
		requests[i] = (struct lw_request){.local = memory + i * BLOCK,
						  .segment = segment,
						  .offset = i * BLOCK,
						  .length = BLOCK,
						  .op = LW_WRITE};
	assert_int_equal(pthread_create(&thread, NULL, take_away, &over), 0);
	while (!atomic_load(&over) || version < BLOCKS / BATCH) {
		size_t first = version % (BLOCKS / BATCH) * BATCH;
		struct lw_batch_status whole;
		lw_batch_t batch;

		version++;
		for (size_t i = first; i < first + BATCH; i++) {
			make_block(memory + i * BLOCK, i, version);
			tried[i] = version;
		}
		assert_int_equal(lw_batch_alloc(channel, BATCH, 0, NULL, &batch), 0);
		test_submit(channel, batch, requests + first, BATCH);
		whole = test_wait(engine, batch);
		for (uint32_t i = 0; i < BATCH; i++) {
			struct lw_task_status task;

			assert_int_equal(lw_task_status(engine, batch, i, &task), 0);
			if (task.state == LW_COMPLETED)
				written[first + i] = version;
		}
		completed += whole.done - whole.failed;
		failed += whole.failed;
		after = whole.failed != 0 ? 0 : after + 1;
		assert_int_equal(lw_batch_free(engine, batch), 0);
	}
	pthread_join(thread, NULL);
	print_message("%u WRITEs completed, %u failed, %u batches after that\n", completed, failed, after);
	assert_true(failed != 0 && after != 0);
	memset(memory, 0, BLOCKS * BLOCK);
	for (size_t i = 0; i < BLOCKS; i++) {
		requests[i].op = LW_READ;
		assert_int_equal(test_transfer(engine, channel, requests[i]).state, LW_COMPLETED);
		check_block(memory + i * BLOCK, i, written[i], tried[i]);
	}
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(memory, BLOCKS * BLOCK);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_target_taken_away_under_load_nothing_lost_or_torn),
	};

	if (access("/sys/class/infiniband/rxe0", F_OK) != 0) {
		printf("there is no device rxe0: this test runs in the lab (./dev lab)\n");
		return 77;
	}
	seed = test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
