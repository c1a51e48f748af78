/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes move bytes between them, in the surroundings that hosts offer: no huge pages, some, another user, one
 * CPU, no EAL, several pairs at once, the same addresses on both sides. Each range is compared by checksum at both
 * ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/engines.h"
#include "common/peer.h"

#define MIB ((uint64_t)1 << 20)
#define AREA (9 * MIB)
#define HUGE_COUNT "/proc/sys/vm/nr_hugepages"
#define HUGE_WANTED 64
/* ThreadSanitizer does not see that sockets order what two workers of a target do one after the other. */
#if defined(__SANITIZE_THREAD__)
#define WORKERS "workers=1"
#else
#define WORKERS "workers=2"
#endif

static const char *const usual[] = {"eal=on", "hugepages=on", NULL};

static uint64_t seed;

static const char *sum(struct peer *peer, uint64_t offset, uint64_t length)
{
	return peer_expect(peer, "sum ", "sum %" PRIu64 " %" PRIu64, offset, length);
}

static uint64_t open_segment(struct peer *mover, const struct peer *target)
{
	return strtoull(peer_expect(mover, "segment ", "open %s", target->name) + strlen("segment "), NULL, 16);
}

/* WRITE from the mover's first area to the target, READ back into its second one, at odd offsets. */
static void write_and_read_back(struct peer *mover, struct peer *target, uint64_t segment)
{
	static const uint64_t sizes[] = {1, 7, 4095, 4096, 65537, MIB + 3, 8 * MIB};
	char sent[32];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t size = sizes[i], here = test_random(&seed) % (AREA - size),
			 there = test_random(&seed) % (AREA - size), back = AREA + test_random(&seed) % (AREA - size);

		peer_expect(mover, "ok", "fill %" PRIu64 " %" PRIu64 " %" PRIu64, here, size, test_random(&seed));
		peer_expect(mover, "ran 1 0 0 0", "run write %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " 1 10000",
			    segment, here, target->addr + there, size);
		snprintf(sent, sizeof(sent), "%s", sum(mover, here, size));
		assert_string_equal(sum(target, there, size), sent);
		peer_expect(mover, "ran 1 0 0 0", "run read %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " 1 10000",
			    segment, back, target->addr + there, size);
		assert_string_equal(sum(mover, back, size), sent);
	}
}

/* A batch of many small requests each way. */
static void move_many(struct peer *mover, struct peer *target, uint64_t segment)
{
	char sent[32];

	peer_expect(mover, "ok", "fill 0 %u %" PRIu64, 1000u * 1001u, test_random(&seed));
	peer_expect(mover, "ran 1000 0 0 0", "run write %" PRIx64 " 0 %" PRIu64 " 1001 1000 10000", segment,
		    target->addr + 5);
	snprintf(sent, sizeof(sent), "%s", sum(mover, 0, 1000u * 1001u));
	assert_string_equal(sum(target, 5, 1000u * 1001u), sent);
	peer_expect(mover, "ran 1000 0 0 0", "run read %" PRIx64 " %" PRIu64 " %" PRIu64 " 1001 1000 10000", segment,
		    AREA, target->addr + 5);
	assert_string_equal(sum(mover, AREA, 1000u * 1001u), sent);
}

static void check_stream(struct peer *peer)
{
	unsigned long long completed = 0, failed = 1;

	assert_int_equal(sscanf(peer_ask(peer, "stop"), "streamed %llu %llu", &completed, &failed), 2);
	assert_int_equal(failed, 0);
	assert_true(completed > 0);
}

/* Each writes to the other while it is written to. */
static void stream_both_ways(struct peer *a, struct peer *b, uint32_t ms)
{
	uint64_t to_b = open_segment(a, b), to_a = open_segment(b, a);

	peer_expect(a, "ok", "stream write %" PRIx64 " 0 %" PRIu64 " 65536 8", to_b, b->addr + AREA);
	peer_expect(b, "ok", "stream write %" PRIx64 " 0 %" PRIu64 " 65536 8", to_a, a->addr + AREA);
	test_sleep_ms(ms);
	check_stream(a);
	check_stream(b);
}

static void exchange(const char *const *options)
{
	struct peer target, mover;
	uint64_t segment;

	peer_start(&target, 2 * AREA, options);
	peer_start(&mover, 2 * AREA, options);
	segment = open_segment(&mover, &target);
	write_and_read_back(&mover, &target, segment);
	move_many(&mover, &target, segment);
	stream_both_ways(&mover, &target, 200);
	peer_expect(&mover, "ok", "close %" PRIx64, segment);
	peer_end(&mover);
	peer_end(&target);
}

static void test_exchange_by_default_exact(void **state)
{
	(void)state;
	exchange(usual);
}

static void test_exchange_without_eal_exact(void **state)
{
	static const char *const options[] = {"eal=off", "hugepages=off", NULL};

	(void)state;
	exchange(options);
}

static void test_exchange_with_lanes_and_workers_exact(void **state)
{
	static const char *const options[] = {"eal=on", WORKERS, "tcp_lanes=4", NULL};

	(void)state;
	exchange(options);
}

static void test_exchange_as_nobody_exact(void **state)
{
	static const char *const options[] = {"uid=65534", "eal=on", "hugepages=on", NULL};

	(void)state;
	if (geteuid() != 0) {
		print_message("skipped: only root can become another user\n");
		skip();
	}
	exchange(options);
}

static void test_exchange_on_one_cpu_exact(void **state)
{
	const char *options[] = {"cpu=0", "eal=on", "hugepages=on", NULL};
	char cpu[16];
	cpu_set_t set;
	size_t first = 0;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	while (!CPU_ISSET(first, &set))
		first++;
	snprintf(cpu, sizeof(cpu), "cpu=%zu", first);
	options[0] = cpu;
	exchange(options);
}

static void test_exchange_at_same_addresses_reaches_the_other(void **state)
{
	static const char *const options[] = {"at=0x7e9000000000", "eal=on", NULL};

	(void)state;
	exchange(options);
}

static void test_exchange_with_a_signal_every_ms_exact(void **state)
{
	static const char *const options[] = {"alarm=1000", "eal=on", NULL};

	(void)state;
	exchange(options);
}

/* CPU time of a process, in milliseconds: by its own clock, since /proc counts whole ticks that a short life may never
 * meet. */
static double cpu_ms(pid_t pid)
{
	struct timespec used;
	clockid_t clock;

	assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
	assert_int_equal(clock_gettime(clock, &used), 0);
	return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

static void test_idle_pair_needs_no_cpu(void **state)
{
	const double limit = 2 * 2000 * 0.05;
	double before, used;
	struct peer target, mover;
	uint64_t segment;

	(void)state;
	peer_start(&target, 2 * AREA, usual);
	peer_start(&mover, 2 * AREA, usual);
	segment = open_segment(&mover, &target);
	move_many(&mover, &target, segment);
	before = cpu_ms(target.pid) + cpu_ms(mover.pid);
	assert_true(before > 0);
	test_sleep_ms(2000);
	used = cpu_ms(target.pid) + cpu_ms(mover.pid) - before;
	print_message("two idle processes used %.1f ms of CPU in 2 s; 5 %% each are %.0f\n", used, limit);
	assert_true(used <= limit);
	move_many(&mover, &target, segment);
	peer_end(&mover);
	peer_end(&target);
}

/* Rings of engines: each opens its neighbour and writes to it, all at once. */
static void test_ring_of_processes_all_complete(void **state)
{
	enum { RING = 5 };
	struct peer peer[RING];
	uint64_t segment[RING];

	(void)state;
	for (int i = 0; i < RING; i++)
		peer_start(&peer[i], MIB, usual);
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < RING; i++)
			peer_tell(&peer[i], "open %s", peer[(i + 1) % RING].name);
		for (int i = 0; i < RING; i++)
			segment[i] = strtoull(peer_answer(&peer[i]) + strlen("segment "), NULL, 16);
		for (int i = 0; i < RING; i++)
			peer_tell(&peer[i], "run write %" PRIx64 " 0 %" PRIu64 " 8192 64 5000", segment[i],
				  peer[(i + 1) % RING].addr + 8192 * 64);
		for (int i = 0; i < RING; i++)
			if (strncmp(peer_answer(&peer[i]), "ran 64 0 0 0 ", 13) != 0)
				fail_msg("%s", peer[i].line);
		for (int i = 0; i < RING; i++)
			peer_expect(&peer[i], "ok", "close %" PRIx64, segment[i]);
	}
	for (int i = 0; i < RING; i++)
		peer_end(&peer[i]);
}

static void test_two_pairs_at_once_exact(void **state)
{
	struct peer target[2], mover[2];
	uint64_t segment[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		peer_start(&target[i], 2 * AREA + MIB, usual);
		peer_start(&mover[i], 2 * AREA + MIB, usual);
		segment[i] = open_segment(&mover[i], &target[i]);
	}
	for (int i = 0; i < 2; i++)
		peer_expect(&mover[i], "ok", "stream read %" PRIx64 " %" PRIu64 " %" PRIu64 " 32768 4", segment[i],
			    2 * AREA, target[i].addr + 2 * AREA);
	for (int i = 0; i < 2; i++) {
		write_and_read_back(&mover[i], &target[i], segment[i]);
		move_many(&mover[i], &target[i], segment[i]);
	}
	for (int i = 0; i < 2; i++) {
		check_stream(&mover[i]);
		peer_end(&mover[i]);
		peer_end(&target[i]);
	}
}

/* Huge pages -------------------------------------------------------------------------------------------------------*/

static int huge_before = -1;

static int read_number(const char *path, const char *label)
{
	FILE *file = fopen(path, "r");
	char line[128];
	int number = -1;

	while (file != NULL && number < 0 && fgets(line, sizeof(line), file) != NULL)
		if (strncmp(line, label, strlen(label)) == 0)
			number = atoi(line + strlen(label));
	if (file != NULL)
		fclose(file);
	return number;
}

static int write_huge(int count)
{
	FILE *file = fopen(HUGE_COUNT, "w");

	if (file == NULL)
		return -1;
	fprintf(file, "%d", count);
	return fclose(file);
}

static int give_huge_pages_back(void **state)
{
	(void)state;
	return huge_before < 0 ? 0 : write_huge(huge_before);
}

static void test_exchange_with_huge_pages_uses_them(void **state)
{
	static const char *const options[] = {"eal=on", "hugepages=on", "max_tasks=65536", NULL};
	char status[64];
	struct peer peer;
	int before = read_number(HUGE_COUNT, "");

	(void)state;
	if (before < 0 || write_huge(before + HUGE_WANTED) != 0) {
		print_message("skipped: " HUGE_COUNT " can't be written\n");
		skip();
	}
	huge_before = before;
	if (read_number(HUGE_COUNT, "") < before + HUGE_WANTED) {
		print_message("skipped: this host has no room for %d huge pages\n", HUGE_WANTED);
		skip();
	}
	peer_start(&peer, AREA, options);
	snprintf(status, sizeof(status), "/proc/%d/status", (int)peer.pid);
	assert_true(read_number(status, "HugetlbPages:") > 0);
	exchange(options);
	peer_end(&peer);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exchange_by_default_exact),
		cmocka_unit_test(test_exchange_without_eal_exact),
		cmocka_unit_test(test_exchange_with_lanes_and_workers_exact),
		cmocka_unit_test(test_exchange_as_nobody_exact),
		cmocka_unit_test(test_exchange_on_one_cpu_exact),
		cmocka_unit_test(test_exchange_at_same_addresses_reaches_the_other),
		cmocka_unit_test(test_exchange_with_a_signal_every_ms_exact),
		cmocka_unit_test(test_idle_pair_needs_no_cpu),
		cmocka_unit_test(test_ring_of_processes_all_complete),
		cmocka_unit_test(test_two_pairs_at_once_exact),
		cmocka_unit_test_teardown(test_exchange_with_huge_pages_uses_them, give_huge_pages_back),
	};
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	seed = test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
