/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/engines.h"
#include "lib/engine.h"
#include "lib/host.h"

static void test_parse_cpus_table(void **state)
{
	static const struct {
		const char *text;
		int error, count, some, not_that;
	} table[] = {
		{"", 0, 0, -1, 0},
		{"0", 0, 1, 0, 1},
		{"7", 0, 1, 7, 0},
		{"1023", 0, 1, 1023, 0},
		{"0-3", 0, 4, 3, 4},
		{"0-3,8", 0, 5, 8, 7},
		{"8,0-3", 0, 5, 0, 4},
		{"5-5", 0, 1, 5, 4},
		{"1,1,1-1", 0, 1, 1, 0},
		{"0-1023", 0, 1024, 500, -1},
		{"00,01", 0, 2, 1, 2},
		{"3-1", -EINVAL, 0, -1, -1},
		{"1024", -EINVAL, 0, -1, -1},
		{"0-1024", -EINVAL, 0, -1, -1},
		{"18446744073709551616", -EINVAL, 0, -1, -1},
		{"0-18446744073709551616", -EINVAL, 0, -1, -1},
		{"-1", -EINVAL, 0, -1, -1},
		{"1-", -EINVAL, 0, -1, -1},
		{"1--2", -EINVAL, 0, -1, -1},
		{"1-2-3", -EINVAL, 0, -1, -1},
		{",1", -EINVAL, 0, -1, -1},
		{"1,,2", -EINVAL, 0, -1, -1},
		{"1,", -EINVAL, 0, -1, -1},
		{" 1", -EINVAL, 0, -1, -1},
		{"1 ", -EINVAL, 0, -1, -1},
		{"1, 2", -EINVAL, 0, -1, -1},
		{"+1", -EINVAL, 0, -1, -1},
		{"0x1", -EINVAL, 0, -1, -1},
		{"a", -EINVAL, 0, -1, -1},
		{"1;2", -EINVAL, 0, -1, -1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		cpu_set_t set;
		int error;

		memset(&set, 0xff, sizeof(set));
		error = lw_host_parse_cpus(table[i].text, &set);
		if (error != table[i].error)
			fail_msg("\"%s\" gives %d", table[i].text, error);
		if (error != 0)
			continue;
		if (CPU_COUNT(&set) != table[i].count)
			fail_msg("\"%s\" gives %d CPUs", table[i].text, CPU_COUNT(&set));
		if (table[i].some >= 0)
			assert_true(CPU_ISSET((size_t)table[i].some, &set));
		if (table[i].not_that >= 0)
			assert_false(CPU_ISSET((size_t)table[i].not_that, &set));
	}
}

/* Before any engine asked for it: this test has to be the first that starts one. */
static void test_start_off_says_why_and_can_be_turned_on_later(void **state)
{
	struct lw_host_facts facts;
	cpu_set_t set;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	lw_host_start(false);
	lw_host_facts_get(&facts);
	assert_false(facts.eal);
	assert_non_null(strstr(facts.why, "setting eal"));
	assert_int_equal(facts.lcores, 0);
	assert_int_equal(facts.cpus, CPU_COUNT(&set));
	lw_host_start(true);
	lw_host_facts_get(&facts);
	if (facts.eal) {
		assert_string_equal(facts.why, "");
		assert_in_range(facts.lcores, 1, facts.cpus);
	} else {
		assert_true(strlen(facts.why) > 10);
		assert_int_equal(facts.lcores, 0);
	}
	lw_host_start(true); /* once a process */
	lw_host_start(false);
	lw_host_facts_get(&facts);
	assert_int_equal(facts.cpus, CPU_COUNT(&set));
}

/* A worker runs on the CPU that is asked for, as an lcore and as a plain thread, and nothing else moves. */
static void test_launch_on_a_cpu_of_the_list_stays_there(void **state)
{
	cpu_set_t mine, theirs, after;
	int asked = -1;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		asked = CPU_ISSET((size_t)cpu, &mine) ? cpu : asked;
	for (int eal = 0; eal < 2; eal++) {
		struct lw_engine *engine;
		char extra[64];

		snprintf(extra, sizeof(extra), "cpus=%d eal=%s", asked, eal ? "on" : "off");
		engine = test_engine(extra);
		TEST_EVENTUALLY(atomic_load(&engine->workers[0].running) != 0);
		assert_int_equal(engine->workers[0].cpu, asked);
		assert_true(eal == 1 || !engine->workers[0].on_lcore);
		assert_int_equal(pthread_getaffinity_np(engine->workers[0].thread, sizeof(theirs), &theirs), 0);
		assert_int_equal(CPU_COUNT(&theirs), 1);
		assert_true(CPU_ISSET((size_t)asked, &theirs));
		assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
		assert_true(CPU_EQUAL(&after, &mine));
		assert_int_equal(lw_engine_close(engine), 0);
	}
}

/* A restricted process: workers stay inside what it may use. */
static void test_launch_in_a_restricted_process_stays_inside(void **state)
{
	cpu_set_t mine, one, theirs;
	size_t cpu = 0;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
	while (!CPU_ISSET(cpu, &mine))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	for (int eal = 0; eal < 2; eal++) {
		struct lw_engine *engine = test_engine(eal ? "eal=on workers=3" : "eal=off workers=3");

		for (int i = 0; i < 3; i++) {
			TEST_EVENTUALLY(atomic_load(&engine->workers[i].running) != 0);
			assert_int_equal(pthread_getaffinity_np(engine->workers[i].thread, sizeof(theirs), &theirs), 0);
			assert_true(CPU_EQUAL(&theirs, &one));
		}
		assert_int_equal(lw_engine_close(engine), 0);
	}
	assert_int_equal(sched_setaffinity(0, sizeof(mine), &mine), 0);
}

/* More workers than CPUs share them. */
static void test_launch_more_workers_than_cpus_works(void **state)
{
	struct lw_engine *engine = test_engine("eal=on workers=8 max_slices=64 max_lanes=16");
	struct lw_engine_stats stats = {.size = sizeof(stats)};
	int threads = test_threads();

	(void)state;
	for (int i = 0; i < 8; i++)
		TEST_EVENTUALLY(atomic_load(&engine->workers[i].running) != 0);
	assert_int_equal(lw_stats_engine(engine, &stats), 0);
	assert_true(stats.worker_cpu_ns > 0);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_true(test_threads() < threads);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse_cpus_table),
		cmocka_unit_test(test_start_off_says_why_and_can_be_turned_on_later),
		cmocka_unit_test(test_launch_on_a_cpu_of_the_list_stays_there),
		cmocka_unit_test(test_launch_in_a_restricted_process_stays_inside),
		cmocka_unit_test(test_launch_more_workers_than_cpus_works),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
