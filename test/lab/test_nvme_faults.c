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
static atomic_uint checks; /* of all blocks after the target came back */

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
		for (int tries = 0; tries < 3000 && atomic_load(&checks) <= (unsigned)i; tries++)
			test_sleep_ms(10);
	}
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

struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *memory; /* of all blocks, and of one that is read */
	struct lw_request requests[BLOCKS];
	uint64_t written[BLOCKS], tried[BLOCKS]; /* versions: last completed, last begun */
};

static struct rig rig;

/* Reads all blocks back. Nothing is under way. */
static void check_all(void)
{
	for (size_t i = 0; i < BLOCKS; i++) {
		struct lw_request request = rig.requests[i];

		request.op = LW_READ;
		request.local = rig.memory + BLOCKS * BLOCK;
		assert_int_equal(test_transfer(rig.engine, rig.channel, request).state, LW_COMPLETED);
		check_block(request.local, i, rig.written[i], rig.tried[i]);
	}
}

/* A batch of the next version; how many failed. */
static uint32_t write_batch(size_t first, uint64_t version)
{
	struct lw_batch_status whole;
	struct lw_task_status task;
	lw_batch_t batch;

	for (size_t i = first; i < first + BATCH; i++) {
		make_block(rig.memory + i * BLOCK, i, version);
		rig.tried[i] = version;
	}
	assert_int_equal(lw_batch_alloc(rig.channel, BATCH, 0, NULL, &batch), 0);
	test_submit(rig.channel, batch, rig.requests + first, BATCH);
	whole = test_wait(rig.engine, batch);
	for (uint32_t i = 0; i < BATCH; i++) {
		assert_int_equal(lw_task_status(rig.engine, batch, i, &task), 0);
		if (task.state == LW_COMPLETED)
			rig.written[first + i] = version;
	}
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	return whole.failed;
}

static void test_target_taken_away_under_load_nothing_lost_or_torn(void **state)
{
	unsigned completed = 0, failed = 0;
	bool broken = false;
	uint64_t version = 0;
	lw_segment_t segment;
	atomic_bool over = false;
	pthread_t thread;
	char name[256], url[300];

	(void)state;
	shell("nvme_load; nvme_subsystem nqn.lab:disk $(nvme_memory_disk 16); nvme_port 1 tcp 10.98.0.2 4420 "
	      "nqn.lab:disk; "
	      "nvme_namespace $(nvme_connect transport=tcp traddr=10.98.0.2 host_traddr=10.98.0.1 trsvcid=4420 "
	      "nqn=nqn.lab:disk ctrl_loss_tmo=600 keep_alive_tmo=5)",
	      name, sizeof(name));
	snprintf(url, sizeof(url), "file:/dev/%s", name);
	rig.engine = test_engine("drivers=nvmeof timeout_ms=60000");
	rig.memory = test_map((BLOCKS + 1) * BLOCK, NULL);
	test_register(rig.engine, rig.memory, (BLOCKS + 1) * BLOCK, LW_ACCESS_LOCAL);
	if (lw_segment_open(rig.engine, url, 0, &segment) != 0)
		fail_msg("%s: %s", url, lw_last_error());
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	for (size_t i = 0; i < BLOCKS; i++)
		rig.requests[i] = (struct lw_request){.local = rig.memory + i * BLOCK,
						      .segment = segment,
						      .offset = i * BLOCK,
						      .length = BLOCK,
						      .op = LW_WRITE};
	for (size_t i = 0; i < BLOCKS; i += BATCH)
		assert_int_equal(write_batch(i, ++version), 0);
	assert_int_equal(pthread_create(&thread, NULL, take_away, &over), 0);
	while (!atomic_load(&over) || broken) {
		uint32_t lost = write_batch(version % (BLOCKS / BATCH) * BATCH, version + 1);

		version++;
		completed += BATCH - lost;
		failed += lost;
		/* Back: before much of it is written anew. */
		if (broken && lost == 0) {
			check_all();
			atomic_fetch_add(&checks, 1);
		}
		broken = lost != 0;
	}
	pthread_join(thread, NULL);
	check_all();
	print_message("%u WRITEs completed, %u failed; looked at %u times\n", completed, failed,
		      atomic_load(&checks) + 1);
	assert_true(failed != 0 && atomic_load(&checks) >= ROUNDS);
	assert_int_equal(lw_engine_close(rig.engine), 0);
	test_unmap(rig.memory, (BLOCKS + 1) * BLOCK);
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
