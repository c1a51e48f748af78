/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is unregistered while another process writes to it: what is put there after the call stays as it is. Half
 * of it the kernel copies to, half of it the peer has mapped. 10,000 rounds, or as many as the first argument says, and
 * at most a minute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "lib/clock.h"

#define AREA 65536u
#define POISON 0xa5
#define WAIT_NS UINT64_C(20000000)  /* for a first byte of the peer's */
static uint64_t longest_ms = 60000; /* a busy machine does fewer rounds */
#define LEAST 1000u
#define SETTINGS "drivers=shm,tcp shm_peers=on"

static unsigned rounds = 10000;

static void write_all(struct lw_engine *engine, struct lw_channel *channel, lw_segment_t segment, unsigned char *from)
{
	struct lw_segment_range ranges[2];
	struct lw_request requests[16];
	struct lw_batch_status status;
	int count = lw_segment_ranges(engine, segment, ranges, 2), used = 0;
	lw_batch_t batch;

	for (int i = 0; i < count && i < 2; i++)
		for (uint32_t k = 0; k < 8; k++)
			requests[used++] = (struct lw_request){.local = from,
							       .segment = segment,
							       .offset = ranges[i].addr + k * (AREA / 8),
							       .length = AREA / 8,
							       .op = LW_WRITE};
	if (used == 0 || lw_batch_alloc(channel, (uint32_t)used, 0, NULL, &batch) != 0)
		return;
	if (lw_submit(channel, batch, requests, (size_t)used) == 0)
		lw_batch_wait(engine, batch, 10000, &status);
	lw_batch_free(engine, batch);
}

/* Writes for ever; asks for the ranges anew whenever something failed, and that is most of the time. */
static _Noreturn void be_peer(int from_owner)
{
	unsigned char *from = test_map(AREA, NULL);
	struct lw_channel *channel;
	struct lw_engine *engine;
	lw_segment_t segment;
	char name[128] = "";

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(from_owner, name, sizeof(name)) <= 0)
		_exit(1);
	engine = test_engine(SETTINGS);
	memset(from, 1, AREA);
	test_register(engine, from, AREA, LW_ACCESS_LOCAL);
	if (lw_channel_self(engine, &channel) != 0)
		_exit(1);
	for (;;) {
		/* Each takes a port for a minute: when there are none, later. */
		if (lw_segment_open(engine, name, 0, &segment) != 0) {
			test_sleep_ms(10);
			continue;
		}
		for (int i = 0; i < 3; i++)
			write_all(engine, channel, segment, from);
		lw_segment_close(engine, segment);
	}
}

static void test_unregister_under_load_no_late_byte(void **state)
{
	unsigned char *area[2], poison[AREA];
	struct lw_engine *engine;
	unsigned written = 0, i;
	uint64_t begin_ms = test_now_ms();
	lw_buffer_t ids[2];
	int pipes[2];
	pid_t pid;

	(void)state;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		be_peer(pipes[0]);
	engine = test_engine(SETTINGS);
	area[0] = test_map(AREA, NULL);
	assert_int_equal(lw_mem_alloc(engine, AREA, NULL, 0, (void **)&area[1]), 0);
	assert_int_equal(write(pipes[1], lw_engine_name(engine), strlen(lw_engine_name(engine))),
			 strlen(lw_engine_name(engine)));
	memset(poison, POISON, AREA);
	for (i = 0; i < rounds && test_now_ms() - begin_ms < longest_ms; i++) {
		uint64_t until_ns = lw_now_ns() + WAIT_NS;

		for (int k = 0; k < 2; k++) {
			memset(area[k], 0, AREA);
			ids[k] = test_register(engine, area[k], AREA, LW_ACCESS_REMOTE);
		}
		while (__atomic_load_n(&area[i % 2][i % AREA], __ATOMIC_RELAXED) != 1 && lw_now_ns() < until_ns)
			;
		assert_int_equal(lw_memory_unregister(engine, ids, 2, 0), 0);
		written += area[i % 2][i % AREA] == 1;
		for (int k = 0; k < 2; k++)
			memset(area[k], POISON, AREA);
		for (uint64_t end_ns = lw_now_ns() + i % 8 * 20000; lw_now_ns() < end_ns;)
			;
		for (int k = 0; k < 2; k++)
			if (memcmp(area[k], poison, AREA) != 0)
				fail_msg("round %u: a byte came after the %s memory was unregistered", i,
					 k == 0 ? "other" : "mapped");
	}
	print_message("%u rounds, written to in %u of them\n", i, written);
	assert_true(written > (rounds < LEAST ? rounds : LEAST) / 2);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(area[0], AREA);
	close(pipes[0]);
	close(pipes[1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_unregister_under_load_no_late_byte)};

	if (argc > 1)
		rounds = (unsigned)strtoul(argv[1], NULL, 0);
	if (argc > 1)
		longest_ms = UINT64_MAX;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
