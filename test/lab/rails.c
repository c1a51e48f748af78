/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/rails.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/net.h"
#include "lib/sched/driver.h"

#define BATCH_MAX 256

bool rails_here(void)
{
	for (size_t i = 0; i < lw_drivers_count; i++) {
		if (strcmp(lw_drivers[i]->name, "rdma") != 0)
			continue;
		if (access("/sys/class/infiniband/rxe0", F_OK) == 0)
			return true;
		printf("there is no device rxe0: this test runs in the lab (./dev lab)\n");
		return false;
	}
	printf("this build has no driver rdma\n");
	return false;
}

static bool is_active(unsigned rail)
{
	char path[96], text[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/rxe%u/ports/1/state", rail);
	file = fopen(path, "r");
	if (file == NULL)
		fail_msg("%s is not there", path);
	if (fgets(text, sizeof(text), file) == NULL)
		fail_msg("the state of rxe%u can't be read", rail);
	fclose(file);
	return strstr(text, "ACTIVE") != NULL;
}

void rail_down(unsigned rail)
{
	test_net_run(0, "bash test/lab/devices.sh down %u", rail);
	TEST_EVENTUALLY(!is_active(rail));
}

void rail_heal(unsigned rail)
{
	test_net_run(0, "bash test/lab/devices.sh heal %u", rail);
	TEST_EVENTUALLY(is_active(rail));
}

uint64_t rail_packets(unsigned rail)
{
	uint64_t packets = 0;
	char path[96];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/rxe%u/ports/1/hw_counters/sent_pkts", rail);
	file = fopen(path, "r");
	if (file == NULL || fscanf(file, "%" SCNu64, &packets) != 1)
		fail_msg("%s can't be read", path);
	fclose(file);
	return packets;
}

lw_segment_t rail_open(struct lw_engine *engine, const struct peer *peer)
{
	lw_segment_t segment = 0;

	if (lw_segment_open(engine, peer->name, 0, &segment) != 0)
		fail_msg("%s", lw_last_error());
	return segment;
}

void rail_move(struct lw_engine *engine, const struct lw_request *first, uint32_t count)
{
	struct lw_request list[BATCH_MAX];
	struct lw_channel *channel = NULL;
	struct lw_batch_status status;
	char why[300] = "";
	lw_batch_t batch;

	assert_in_range(count, 1, BATCH_MAX);
	for (uint32_t i = 0; i < count; i++) {
		list[i] = *first;
		list[i].local = (char *)first->local + i * first->length;
		list[i].offset += i * first->length;
	}
	assert_int_equal(lw_channel_self(engine, &channel), 0);
	assert_int_equal(lw_batch_alloc(channel, count, 0, NULL, &batch), 0);
	test_submit(channel, batch, list, count);
	if (lw_batch_wait(engine, batch, 60000, &status) != 0)
		fail_msg("not all ended: %s", lw_last_error());
	for (uint32_t i = 0; i < count && why[0] == '\0' && status.failed != 0; i++) {
		struct lw_task_status task;

		lw_task_status(engine, batch, i, &task);
		if (task.state != LW_COMPLETED)
			lw_task_reason(engine, batch, i, why, sizeof(why));
	}
	if (status.failed != 0)
		fail_msg("%u of %u did not complete: %s", status.failed, count, why);
	assert_int_equal(lw_batch_free(engine, batch), 0);
}
