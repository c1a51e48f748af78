/* SPDX-License-Identifier: Apache-2.0 */
/* Runs schedules: --count N of them from --seed S on, or the one of a seed with --trace. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engines.h"
#include "sim/sim.h"

static int usage(const char *program)
{
	fprintf(stderr,
		"%s [--count N] [--seed S] [--trace]\n"
		"Runs N schedules (1), from a seed on (LW_TEST_SEED, else a new one); --trace prints each step.\n",
		program);
	return 2;
}

int main(int argc, char **argv)
{
	uint64_t count = 1, seed = 0, first;
	bool seeded = false;

	sim.program = argv[0];
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--trace") == 0) {
			sim.trace = true;
		} else if (strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
			count = strtoull(argv[++i], NULL, 0);
		} else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
			seed = strtoull(argv[++i], NULL, 0);
			seeded = true;
		} else {
			return usage(argv[0]);
		}
	}
	/* Each engine's tables in the memory of the one before. */
	mallopt(M_MMAP_THRESHOLD, 1 << 28);
	mallopt(M_TRIM_THRESHOLD, 1 << 28);
	first = seeded ? seed : test_seed();
	for (uint64_t i = 0; i < count; i++)
		sim_schedule(first + i);
	printf("%llu schedules from seed 0x%llx on, nothing was lost\n", (unsigned long long)count,
	       (unsigned long long)first);
	return 0;
}
