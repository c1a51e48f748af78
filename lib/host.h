/* SPDX-License-Identifier: Apache-2.0 */
/* The host process: the CPUs it may use, the one EAL a process can have, and the threads that workers run on.
 *
 * The EAL starts once, from a thread of our own with all signals blocked, and stays until the process ends: it can't be
 * started twice. It runs without huge pages, files, PCI or telemetry; its lcores are parked threads that workers
 * borrow. Where it can't start, or no lcore is free, workers are plain threads; everything else is the same.
 */
#ifndef LW_HOST_H
#define LW_HOST_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lw_worker;

struct lw_host_facts {
	bool eal;
	char why[160]; /* why the EAL is off */
	uint32_t lcores;
	uint32_t cpus; /* that the process may use */
};

/* Starts the EAL unless it was tried before or eal is false. Any thread. Blocks for about 0.12 s the first time. */
void lw_host_start(bool eal);

/* In a forked child, which has none of the EAL's threads and shares their pipes with the parent: the EAL is off. */
void lw_host_forked(void);

void lw_host_facts_get(struct lw_host_facts *facts);

/* Runs lw_worker_run(worker) on an lcore or a plain thread, on a CPU of list ("0-3,8"; empty: any that the process may
 * use), if possible one that no other worker of any process claims. 0; -EINVAL the list names a CPU that the process
 * may not use; -EAGAIN no thread. */
int lw_host_launch(struct lw_worker *worker, const char *list);

/* Waits for the end of lw_worker_run after worker->stop was set; gives lcore and claim back. Blocks. */
void lw_host_join(struct lw_worker *worker);

/* Parses a CPU list into a set. 0, -EINVAL. */
int lw_host_parse_cpus(const char *list, cpu_set_t *set);

#endif
