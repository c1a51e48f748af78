/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that is slow is not dead: it gets next to nothing of its CPU (nice 19 beside four that spin) and stands still
 * for 2 s in every 5. As long as that is below the limits in the settings no request, stream or call fails, in either
 * direction, and no connection is given up. LW_TEST_SECONDS makes it last longer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/peer.h"

#define MIB ((uint64_t)1 << 20)
#define THREADS 2
#define SPINNERS 4
#define SECONDS 25
#define STOP_MS 2000
#define EVERY_MS 5000
#define LIMITS "timeout_ms=15000", "connect_timeout_ms=15000", "handshake_timeout_ms=15000"
#define OUR_LIMITS "timeout_ms=15000 connect_timeout_ms=15000 handshake_timeout_ms=15000"

static uint64_t seed;

struct user {
	pthread_t thread;
	struct lw_engine *engine;
	const struct peer *peer;
	lw_segment_t segment;
	unsigned char *local;
	uint64_t offset, seed;
	atomic_bool *stop;
	unsigned done;
	uint64_t longest_ms;
	char wrong[400];
};

/* Writes a range of any length, reads it back and compares, one after the other. */
static bool there_and_back(struct user *user, struct lw_channel *channel)
{
	uint64_t length = 1 + test_random(&user->seed) % (MIB / 4);

	test_fill(user->local, length, test_random(&user->seed));
	for (int back = 0; back < 2; back++) {
		struct lw_request request = {.local = user->local + (back ? MIB / 4 : 0),
					     .segment = user->segment,
					     .offset = user->peer->addr + user->offset,
					     .length = length,
					     .op = back ? LW_READ : LW_WRITE};
		uint64_t begin_ms = test_now_ms(), took_ms;
		struct lw_batch_status status;
		lw_batch_t batch;

		if (lw_batch_alloc(channel, 1, 0, NULL, &batch) != 0 || lw_submit(channel, batch, &request, 1) != 0 ||
		    lw_batch_wait(user->engine, batch, 20000, &status) != 0) {
			snprintf(user->wrong, sizeof(user->wrong), "%s", lw_last_error());
			return false;
		}
		took_ms = test_now_ms() - begin_ms;
		user->longest_ms = took_ms > user->longest_ms ? took_ms : user->longest_ms;
		if (status.state != LW_COMPLETED) {
			lw_task_reason(user->engine, batch, 0, user->wrong, sizeof(user->wrong));
			return false;
		}
		lw_batch_free(user->engine, batch);
	}
	if (memcmp(user->local, user->local + MIB / 4, length) != 0)
		snprintf(user->wrong, sizeof(user->wrong), "wrong bytes came back");
	user->done++;
	return user->wrong[0] == '\0';
}

static void *move(void *arg)
{
	struct user *user = arg;
	struct lw_channel *channel;

	if (lw_channel_self(user->engine, &channel) != 0)
		snprintf(user->wrong, sizeof(user->wrong), "%s", lw_last_error());
	else
		while (!atomic_load(user->stop) && there_and_back(user, channel))
			;
	return NULL;
}

static void *call(void *arg)
{
	struct lw_note note = {.name = "n", .name_size = 1, .text = "t", .text_size = 1};
	struct user *user = arg;

	for (; !atomic_load(user->stop); user->done++) {
		lw_segment_t segment;

		if (lw_segment_open(user->engine, user->peer->name, 0, &segment) != 0 ||
		    lw_segment_probe(user->engine, segment, 0) != 0 ||
		    lw_notify(user->engine, segment, &note, 0) != 0 || lw_segment_close(user->engine, segment) != 0) {
			snprintf(user->wrong, sizeof(user->wrong), "%s", lw_last_error());
			break;
		}
		test_sleep_ms(100);
	}
	return NULL;
}

/* The last CPU that we may use. */
static int any_cpu(void)
{
	cpu_set_t set;
	int cpu = CPU_SETSIZE - 1;

	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	while (!CPU_ISSET((size_t)cpu, &set))
		cpu--;
	return cpu;
}

static pid_t spin(int cpu)
{
	pid_t parent = getpid(), pid;
	atomic_uint turns = 0;
	cpu_set_t set;

	fflush(NULL);
	pid = fork();
	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0 || getppid() != parent)
		_exit(1);
	for (;;)
		atomic_fetch_add(&turns, 1);
}

/* How long the threads of a process were ready to run and did not. 0 if the system does not count. */
static uint64_t waited_ms(pid_t pid)
{
	uint64_t sum_ns = 0, ran_ns, waited_ns;
	char path[320];
	struct dirent *entry;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	assert_non_null(tasks);
	while ((entry = readdir(tasks)) != NULL) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int)pid, entry->d_name);
		file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
		if (file == NULL)
			continue;
		if (fscanf(file, "%" SCNu64 " %" SCNu64, &ran_ns, &waited_ns) == 2)
			sum_ns += waited_ns;
		fclose(file);
	}
	closedir(tasks);
	return sum_ns / 1000000;
}

static void check_lanes(struct lw_engine *engine, const char *name)
{
	struct lw_lane_stats lanes[16];
	int count = lw_stats_lanes(engine, lanes, 16), own = 0;

	for (int i = 0; i < count && i < 16; i++) {
		if (lanes[i].target || strcmp(lanes[i].peer, name) != 0)
			continue;
		own++;
		assert_int_equal(lanes[i].connects, 1);
		assert_int_equal(lanes[i].retries, 0);
		assert_int_equal(lanes[i].errors, 0);
	}
	assert_true(own > 0);
}

static uint64_t wanted_ms(void)
{
	const char *given = getenv("LW_TEST_SECONDS");

	return (given != NULL ? strtoull(given, NULL, 10) : SECONDS) * 1000;
}

static void test_peer_starved_and_paused_below_the_limits_nothing_fails(void **state)
{
	int cpu = any_cpu(), stops = 0;
	char on_cpu[16];
	const char *options[] = {on_cpu, "nice=19", LIMITS, NULL};
	unsigned char *local = test_map((THREADS + 1) * MIB, NULL);
	struct lw_engine *engine = test_engine(OUR_LIMITS);
	unsigned long long completed = 0, failed = 1;
	uint64_t begin_ms, longest_ms = 0, waited, waited_before;
	struct user user[THREADS + 1];
	pid_t spinner[SPINNERS];
	atomic_bool stop = false;
	lw_segment_t segment;
	struct peer peer;

	(void)state;
	snprintf(on_cpu, sizeof(on_cpu), "cpu=%d", cpu);
	peer_start(&peer, (THREADS + 1) * MIB, options);
	test_register(engine, local, (THREADS + 1) * MIB, LW_ACCESS_REMOTE);
	if (lw_segment_open(engine, peer.name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	peer_expect(&peer, "segment ", "open %s", lw_engine_name(engine));
	peer_expect(&peer, "ok", "stream write %s %" PRIu64 " %" PRIu64 " 32768 8", peer.line + strlen("segment "),
		    THREADS * MIB, (uint64_t)(uintptr_t)local + THREADS * MIB);
	waited_before = waited_ms(peer.pid);
	for (int i = 0; i < SPINNERS; i++)
		spinner[i] = spin(cpu);
	for (int i = 0; i <= THREADS; i++) {
		user[i] = (struct user){.engine = engine,
					.peer = &peer,
					.segment = segment,
					.local = local + (uint64_t)i * MIB,
					.offset = (uint64_t)i * MIB,
					.seed = test_random(&seed),
					.stop = &stop};
		assert_int_equal(pthread_create(&user[i].thread, NULL, i < THREADS ? move : call, &user[i]), 0);
	}
	for (begin_ms = test_now_ms(); test_now_ms() - begin_ms + EVERY_MS <= wanted_ms(); stops++) {
		test_sleep_ms(EVERY_MS - STOP_MS);
		kill(peer.pid, SIGSTOP);
		test_sleep_ms(STOP_MS);
		kill(peer.pid, SIGCONT);
	}
	waited = waited_ms(peer.pid) - waited_before;
	atomic_store(&stop, true);
	for (int i = 0; i <= THREADS; i++)
		pthread_join(user[i].thread, NULL);
	for (int i = 0; i < SPINNERS; i++) {
		kill(spinner[i], SIGKILL);
		assert_int_equal(waitpid(spinner[i], NULL, 0), spinner[i]);
	}
	for (int i = 0; i <= THREADS; i++)
		longest_ms = user[i].longest_ms > longest_ms ? user[i].longest_ms : longest_ms;
	assert_int_equal(sscanf(peer_ask(&peer, "stop"), "streamed %llu %llu", &completed, &failed), 2);
	print_message("%u + %u pairs and %u rounds of calls here, %llu requests there; the peer stood still %d times "
		      "and waited %" PRIu64 " ms for its CPU; the longest request took %" PRIu64 " ms\n",
		      user[0].done, user[1].done, user[THREADS].done, completed, stops, waited, longest_ms);
	for (int i = 0; i <= THREADS; i++) {
		if (user[i].wrong[0] != '\0')
			fail_msg("thread %d: %s", i, user[i].wrong);
		assert_true(user[i].done > 0);
	}
	assert_int_equal(failed, 0);
	assert_true(completed > 0);
	assert_true(stops > 0 && longest_ms >= STOP_MS / 2);
	if (waited == 0)
		print_message("the system does not tell how long a process waited for its CPU\n");
	check_lanes(engine, peer.name);
	peer_end(&peer);
	assert_int_equal(lw_engine_close(engine), 0);
	test_unmap(local, (THREADS + 1) * MIB);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_peer_starved_and_paused_below_the_limits_nothing_fails),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	seed = test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
