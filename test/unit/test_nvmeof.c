/* SPDX-License-Identifier: Apache-2.0 */
/* The nvmeof driver over a scripted backend: answers that come out of order, in parts, as failures, late, or never. The
 * script holds the bytes of the file; what the driver asks of it is looked at one by one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/files.h"
#include "drivers/nvmeof/queue.h"

#define MIB ((size_t)1 << 20)
#define DISK (4 * MIB)
#define GUARD 64

/* The script --------------------------------------------------------------------------------------------------------*/

static struct {
	pthread_mutex_t lock;
	unsigned char *disk;
	int fd;
	struct nvmeof_op *asked[NVMEOF_DEPTH]; /* not answered yet, in the order they came */
	uint32_t asked_count;
	struct nvmeof_op *done[NVMEOF_DEPTH];
	uint32_t done_count;
	_Atomic uint32_t recalls;
	atomic_bool recallable; /* a recall is answered -ECANCELED */
	atomic_bool obedient;   /* everything is answered at once */
} script = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock. result: bytes that move, or a negative errno. */
static void answer(uint32_t at, int32_t result)
{
	const uint64_t one = 1;
	struct nvmeof_op *op = script.asked[at];

	op->error = result;
	if (result > 0 && op->write)
		memcpy(script.disk + op->offset, op->memory, (size_t)result);
	else if (result > 0)
		memcpy(op->memory, script.disk + op->offset, (size_t)result);
	memmove(&script.asked[at], &script.asked[at + 1], (script.asked_count - at - 1) * sizeof(script.asked[0]));
	script.asked_count--;
	script.done[script.done_count++] = op;
	assert_int_equal(write(script.fd, &one, sizeof(one)), sizeof(one));
}

static int script_open(struct nvmeof_queue *queue, bool one_thread, char *why, size_t why_size)
{
	(void)one_thread;
	(void)why;
	(void)why_size;
	script.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	queue->io.fd = script.fd;
	return 0;
}

static int script_attach(struct nvmeof_queue *queue)
{
	(void)queue;
	return 0;
}

static bool script_push(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	(void)queue;
	pthread_mutex_lock(&script.lock);
	script.asked[script.asked_count++] = op;
	if (script.obedient)
		answer(script.asked_count - 1, (int32_t)op->length);
	pthread_mutex_unlock(&script.lock);
	return true;
}

static void script_kick(struct nvmeof_queue *queue)
{
	(void)queue;
}

static uint32_t script_reap(struct nvmeof_queue *queue, struct nvmeof_op **done, uint32_t max)
{
	uint32_t count;

	(void)queue;
	pthread_mutex_lock(&script.lock);
	count = script.done_count < max ? script.done_count : max;
	memcpy(done, script.done, count * sizeof(done[0]));
	script.done_count -= count;
	memmove(script.done, script.done + count, script.done_count * sizeof(done[0]));
	pthread_mutex_unlock(&script.lock);
	return count;
}

static void script_recall(struct nvmeof_queue *queue, struct nvmeof_op *op)
{
	(void)queue;
	pthread_mutex_lock(&script.lock);
	script.recalls++;
	for (uint32_t i = 0; script.recallable && i < script.asked_count; i++)
		if (script.asked[i] == op)
			answer(i, -ECANCELED);
	pthread_mutex_unlock(&script.lock);
}

static void script_close(struct nvmeof_queue *queue)
{
	close(queue->io.fd);
}

static void script_forked(struct nvmeof_queue *queue)
{
	(void)queue;
}

static const struct nvmeof_backend scripted = {
	.name = "script",
	.open = script_open,
	.attach = script_attach,
	.push = script_push,
	.kick = script_kick,
	.reap = script_reap,
	.recall = script_recall,
	.close = script_close,
	.forked = script_forked,
};

static uint32_t asked(void)
{
	uint32_t count;

	pthread_mutex_lock(&script.lock);
	count = script.asked_count;
	pthread_mutex_unlock(&script.lock);
	return count;
}

static void answer_one(uint32_t at, int32_t result)
{
	pthread_mutex_lock(&script.lock);
	answer(at, result);
	pthread_mutex_unlock(&script.lock);
}

/* Answers as asked. */
static void answer_whole(uint32_t at)
{
	pthread_mutex_lock(&script.lock);
	answer(at, (int32_t)script.asked[at]->length);
	pthread_mutex_unlock(&script.lock);
}

/* The rig -----------------------------------------------------------------------------------------------------------*/

struct rig {
	struct lw_engine *engine;
	struct lw_channel *channel;
	lw_segment_t segment;
	unsigned char *memory;
	lw_buffer_t id;
	char url[128];
};

static uint64_t seed;

static struct rig set_up(const char *settings)
{
	struct rig rig;
	char text[200];

	script.asked_count = 0;
	script.done_count = 0;
	script.recalls = 0;
	script.recallable = script.obedient = false;
	script.disk = malloc(DISK);
	assert_non_null(script.disk);
	test_fill(script.disk, DISK, 7);
	nvmeof_backend_forced = &scripted;
	snprintf(text, sizeof(text), "drivers=nvmeof %s", settings);
	rig.engine = test_engine(text);
	nvmeof_backend_forced = NULL;
	snprintf(rig.url, sizeof(rig.url), "file:%s", test_file_sparse(DISK));
	if (lw_segment_open(rig.engine, rig.url, 0, &rig.segment) != 0)
		fail_msg("no segment: %s", lw_last_error());
	rig.memory = test_map(DISK, NULL);
	rig.id = test_register(rig.engine, rig.memory, DISK, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	return rig;
}

static void tear_down(struct rig *rig)
{
	assert_int_equal(lw_engine_close(rig->engine), 0);
	test_unmap(rig->memory, DISK);
	free(script.disk);
}

static struct lw_request request(const struct rig *rig, enum lw_op op, size_t here, size_t there, size_t length)
{
	return (struct lw_request){.local = rig->memory + here,
				   .segment = rig->segment,
				   .offset = there,
				   .length = length,
				   .op = (uint8_t)op};
}

static lw_batch_t submit(const struct rig *rig, const struct lw_request *requests, uint32_t count)
{
	lw_batch_t batch;

	assert_int_equal(lw_batch_alloc(rig->channel, count, 0, NULL, &batch), 0);
	test_submit(rig->channel, batch, requests, count);
	return batch;
}

static struct lw_task_status status_of(const struct rig *rig, lw_batch_t batch, uint32_t task)
{
	struct lw_task_status status;

	assert_int_equal(lw_task_status(rig->engine, batch, task, &status), 0);
	return status;
}

/* The batch's one task ends so. */
static void ends(const struct rig *rig, lw_batch_t batch, enum lw_state state, enum lw_reason reason)
{
	struct lw_task_status status;

	test_wait(rig->engine, batch);
	status = status_of(rig, batch, 0);
	assert_int_equal(status.state, state);
	assert_int_equal(status.reason, reason);
	assert_int_equal(lw_batch_free(rig->engine, batch), 0);
}

/* Cases -------------------------------------------------------------------------------------------------------------*/

static void test_answers_out_of_order_each_task_has_its_own(void **state)
{
	struct rig rig = set_up("");
	struct lw_request list[8];
	lw_batch_t batch;

	(void)state;
	for (size_t i = 0; i < 8; i++)
		list[i] = request(&rig, LW_READ, i * 8192, (7 - i) * 8192, 4096 + i * 512);
	batch = submit(&rig, list, 8);
	TEST_EVENTUALLY(asked() == 8);
	for (uint32_t left = 8; left-- > 0;) {
		answer_whole(left); /* the last one first */
		TEST_EVENTUALLY(status_of(&rig, batch, left).state == LW_COMPLETED);
		for (uint32_t i = 0; i < left; i++)
			assert_int_equal(status_of(&rig, batch, i).state, LW_PENDING);
		assert_memory_equal(list[left].local, script.disk + list[left].offset, list[left].length);
	}
	assert_int_equal(test_wait(rig.engine, batch).state, LW_COMPLETED);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	tear_down(&rig);
}

static void test_answer_in_parts_is_asked_for_until_whole(void **state)
{
	struct rig rig = set_up("");
	struct lw_request list[3] = {request(&rig, LW_READ, 0, 0, MIB), request(&rig, LW_WRITE, MIB, MIB, MIB),
				     request(&rig, LW_READ, 2 * MIB + 1, 2 * MIB + 100, 3000)};
	lw_batch_t batch;

	(void)state;
	test_fill(rig.memory + MIB, MIB, 3);
	memset(rig.memory + 2 * MIB, 0x55, 8192);
	batch = submit(&rig, list, 3);
	TEST_EVENTUALLY(asked() == 3);
	answer_one(2, 512); /* of 3,584: 100 bytes before the asked ones, 412 of them */
	TEST_EVENTUALLY(asked() == 3);
	answer_one(1, 4096);
	TEST_EVENTUALLY(asked() == 3);
	answer_one(0, 8192);
	TEST_EVENTUALLY(asked() == 3);
	assert_int_equal(status_of(&rig, batch, 0).state, LW_PENDING);
	for (int i = 0; i < 3; i++)
		answer_whole(0);
	assert_int_equal(test_wait(rig.engine, batch).state, LW_COMPLETED);
	assert_memory_equal(rig.memory, script.disk, MIB);
	assert_memory_equal(rig.memory + MIB, script.disk + MIB, MIB);
	assert_memory_equal(rig.memory + 2 * MIB + 1, script.disk + 2 * MIB + 100, 3000);
	assert_int_equal(rig.memory[2 * MIB], 0x55);
	assert_int_equal(rig.memory[2 * MIB + 3001], 0x55);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	tear_down(&rig);
}

static void test_answer_that_fails_is_the_tasks_reason(void **state)
{
	static const struct {
		enum lw_op op;
		int32_t answer;
		enum lw_reason reason;
	} cases[] = {
		{LW_READ, -EIO, LW_REASON_FILE_IO},        {LW_WRITE, -EIO, LW_REASON_FILE_IO},
		{LW_WRITE, -ENOSPC, LW_REASON_FILE_FULL},  {LW_WRITE, -EDQUOT, LW_REASON_FILE_FULL},
		{LW_WRITE, -EFBIG, LW_REASON_FILE_FULL},   {LW_WRITE, -EROFS, LW_REASON_FILE_READ_ONLY},
		{LW_READ, -EFAULT, LW_REASON_FAULT},       {LW_READ, 0, LW_REASON_FILE_SHORT},
		{LW_READ, 1000, LW_REASON_FILE_SHORT},     {LW_WRITE, 0, LW_REASON_FILE_IO},
		{LW_READ, -EOPNOTSUPP, LW_REASON_FILE_IO}, {LW_READ, -ENODATA, LW_REASON_FILE_IO},
	};
	struct rig rig = set_up("");

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct lw_request two[2] = {request(&rig, cases[i].op, 0, 0, 8192),
					    request(&rig, LW_READ, MIB, MIB, 512)};
		lw_batch_t batch = submit(&rig, two, 2);
		char why[300];

		TEST_EVENTUALLY(asked() == 2);
		answer_one(0, cases[i].answer);
		TEST_EVENTUALLY(status_of(&rig, batch, 0).state == LW_FAILED);
		assert_int_equal(status_of(&rig, batch, 0).reason, cases[i].reason);
		assert_int_equal(status_of(&rig, batch, 1).state, LW_PENDING);
		assert_true(lw_task_reason(rig.engine, batch, 0, why, sizeof(why)) > 0);
		assert_non_null(strstr(why, rig.url + 5));
		answer_whole(0);
		test_wait(rig.engine, batch);
		assert_int_equal(status_of(&rig, batch, 1).state, LW_COMPLETED);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	}
	tear_down(&rig);
}

static void test_answer_try_again_is_tried_again_not_for_ever(void **state)
{
	struct rig rig = set_up("");
	struct lw_request what = request(&rig, LW_WRITE, 0, 0, 4096);
	lw_batch_t batch = submit(&rig, &what, 1);
	int tries = 0;

	(void)state;
	TEST_EVENTUALLY(asked() == 1);
	answer_one(0, -EAGAIN);
	TEST_EVENTUALLY(asked() == 1);
	answer_one(0, -EINTR);
	TEST_EVENTUALLY(asked() == 1);
	answer_whole(0);
	ends(&rig, batch, LW_COMPLETED, LW_REASON_NONE);
	for (batch = submit(&rig, &what, 1); status_of(&rig, batch, 0).state == LW_PENDING; tries++) {
		TEST_EVENTUALLY(asked() == 1 || status_of(&rig, batch, 0).state != LW_PENDING);
		if (asked() == 1)
			answer_one(0, -EAGAIN);
		assert_in_range(tries, 0, 100);
		test_sleep_ms(1);
	}
	ends(&rig, batch, LW_FAILED, LW_REASON_FILE_IO);
	tear_down(&rig);
}

/* The kernel can't be made to let go: nothing ends before it does, whatever the deadline, and nothing moves after. */
static void test_answer_that_never_comes_keeps_task_and_memory(void **state)
{
	struct rig rig = set_up("");
	struct lw_request what = request(&rig, LW_READ, 0, 0, 8192);
	lw_batch_t batch;

	(void)state;
	what.timeout_ms = 100;
	batch = submit(&rig, &what, 1);
	TEST_EVENTUALLY(asked() == 1);
	TEST_EVENTUALLY(script.recalls == 1);
	test_sleep_ms(700); /* a connection would be cut by now */
	assert_int_equal(status_of(&rig, batch, 0).state, LW_PENDING);
	assert_int_equal(lw_batch_free(rig.engine, batch), -EBUSY);
	assert_int_equal(lw_batch_cancel(rig.engine, batch), 0);
	assert_int_equal(lw_memory_unregister(rig.engine, &rig.id, 1, 200), -EBUSY);
	assert_int_equal(script.recalls, 1);
	assert_int_equal(status_of(&rig, batch, 0).state, LW_PENDING);
	answer_one(0, -ECANCELED);
	ends(&rig, batch, LW_TIMEOUT, LW_REASON_TIMEOUT);
	assert_int_equal(lw_memory_unregister(rig.engine, &rig.id, 1, 1000), 0);
	rig.id = test_register(rig.engine, rig.memory, DISK, LW_ACCESS_LOCAL);

	/* It comes after all: then the bytes are there, and the task says so. */
	batch = submit(&rig, &what, 1);
	TEST_EVENTUALLY(script.recalls == 2);
	answer_whole(0);
	ends(&rig, batch, LW_COMPLETED, LW_REASON_NONE);
	assert_memory_equal(rig.memory, script.disk, 8192);

	/* Half of it: what was asked for in one piece did not all arrive. */
	batch = submit(&rig, &what, 1);
	TEST_EVENTUALLY(script.recalls == 3);
	answer_one(0, 4096);
	test_wait(rig.engine, batch);
	ends(&rig, batch, LW_TIMEOUT, LW_REASON_TIMEOUT);
	tear_down(&rig);
}

static void test_cancel_and_deadline_of_what_can_be_recalled_end_soon(void **state)
{
	struct rig rig = set_up("");
	struct lw_request list[4];
	lw_batch_t batch;

	(void)state;
	script.recallable = true;
	for (size_t i = 0; i < 4; i++) {
		list[i] = request(&rig, i % 2 == 0 ? LW_READ : LW_WRITE, i * 65536, i * 65536, 65536);
		list[i].timeout_ms = i < 2 ? 100 : 0;
	}
	batch = submit(&rig, list, 4);
	TEST_EVENTUALLY(status_of(&rig, batch, 0).state != LW_PENDING && status_of(&rig, batch, 1).state != LW_PENDING);
	assert_int_equal(asked(), 2);
	assert_int_equal(lw_batch_cancel(rig.engine, batch), 0);
	test_wait(rig.engine, batch);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(status_of(&rig, batch, i).state, i < 2 ? LW_TIMEOUT : LW_CANCELED);
	assert_int_equal(asked(), 0);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	tear_down(&rig);
}

static void test_unregister_waits_for_what_is_held(void **state)
{
	struct rig rig = set_up("workers=1");
	struct lw_request what = request(&rig, LW_READ, 0, 0, 4096);
	lw_batch_t batch = submit(&rig, &what, 1);

	(void)state;
	TEST_EVENTUALLY(asked() == 1);
	assert_int_equal(lw_memory_unregister(rig.engine, &rig.id, 1, 50), -EBUSY);
	script.recallable = true; /* too late for that one */
	answer_one(0, -ECANCELED);
	assert_int_equal(lw_memory_unregister(rig.engine, &rig.id, 1, 5000), 0);
	ends(&rig, batch, LW_FAILED, LW_REASON_UNREGISTERED);
	tear_down(&rig);
}

static void test_segment_close_ends_when_the_kernel_lets_go(void **state)
{
	struct rig rig = set_up("");
	struct lw_request what = request(&rig, LW_WRITE, 0, 0, 4096);
	lw_batch_t batch = submit(&rig, &what, 1);
	lw_segment_t again;

	(void)state;
	TEST_EVENTUALLY(asked() == 1);
	assert_int_equal(lw_segment_close(rig.engine, rig.segment), 0);
	test_sleep_ms(100);
	assert_int_equal(status_of(&rig, batch, 0).state, LW_PENDING);
	assert_int_equal(lw_segment_open(rig.engine, rig.url, 0, &again), 0);
	assert_true(again != rig.segment);
	answer_one(0, -ECANCELED);
	test_wait(rig.engine, batch);
	assert_int_equal(status_of(&rig, batch, 0).state, LW_CANCELED);
	assert_int_equal(status_of(&rig, batch, 0).reason, LW_REASON_SEGMENT_CLOSED);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	rig.segment = again;
	what = request(&rig, LW_WRITE, 0, 0, 4096);
	batch = submit(&rig, &what, 1);
	TEST_EVENTUALLY(asked() == 1);
	answer_whole(0);
	ends(&rig, batch, LW_COMPLETED, LW_REASON_NONE);
	tear_down(&rig);
}

static void test_engine_close_does_not_wait_for_ever(void **state)
{
	struct rig rig = set_up("log_level=error");
	struct lw_request what = request(&rig, LW_READ, 0, 0, 4096);
	uint64_t begin_ms;

	(void)state;
	submit(&rig, &what, 1);
	TEST_EVENTUALLY(asked() == 1);
	begin_ms = test_now_ms();
	assert_int_equal(lw_engine_close(rig.engine), 0);
	assert_in_range(test_now_ms() - begin_ms, 1000, 5000);
	test_unmap(rig.memory, DISK);
	free(script.disk);
}

/* More than the queue has room for: the rest waits, and each has its end. */
static void test_more_than_fit_all_complete(void **state)
{
	enum { COUNT = 1000 };
	struct rig rig = set_up("slice_bytes=4096");
	struct lw_request *list = calloc(COUNT, sizeof(*list));
	lw_batch_t batch;

	(void)state;
	assert_non_null(list);
	for (size_t i = 0; i < COUNT; i++)
		list[i] = request(&rig, LW_READ, i * 4000 + 1, i * 4000, 3999); /* each through a bounce buffer */
	batch = submit(&rig, list, COUNT);
	TEST_EVENTUALLY(asked() == NVMEOF_BOUNCES);
	test_sleep_ms(20);
	assert_int_equal(asked(), NVMEOF_BOUNCES);
	pthread_mutex_lock(&script.lock);
	script.obedient = true;
	while (script.asked_count > 0)
		answer(0, (int32_t)script.asked[0]->length);
	pthread_mutex_unlock(&script.lock);
	assert_int_equal(test_wait(rig.engine, batch).state, LW_COMPLETED);
	for (size_t i = 0; i < COUNT; i++)
		assert_memory_equal(rig.memory + i * 4000 + 1, script.disk + i * 4000, 3999);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	free(list);
	tear_down(&rig);
}

/* Whatever the request: a WRITE asks for its own bytes and no others, a READ stores its own and no others. */
static void test_any_range_no_byte_outside(void **state)
{
	static const size_t odd[] = {1, 511, 512, 513, 4095, 4096, 4097, 8191, 12288};
	struct rig rig = set_up("slice_bytes=65536");
	unsigned char *want = malloc(DISK);

	(void)state;
	assert_non_null(want);
	script.obedient = true;
	for (int i = 0; i < 2000; i++) {
		size_t length = i % 2 == 0 ? odd[test_random(&seed) % 9] : 1 + test_random(&seed) % (MIB / 2);
		size_t here = GUARD + test_random(&seed) % (DISK - length - 2 * GUARD);
		size_t there = test_random(&seed) % (DISK - length + 1);
		enum lw_op op = (enum lw_op)(test_random(&seed) % 2);
		struct lw_request what;

		if (test_random(&seed) % 2 == 0)
			here = here / 512 * 512 + 512 <= DISK - length - GUARD ? here / 512 * 512 + 512 : here;
		if (test_random(&seed) % 2 == 0)
			there = there / 4096 * 4096;
		what = request(&rig, op, here, there, length);
		test_fill(rig.memory + here - GUARD, length + 2 * GUARD, test_random(&seed));
		memcpy(want, op == LW_WRITE ? script.disk : rig.memory, DISK);
		memcpy(want + (op == LW_WRITE ? there : here), op == LW_WRITE ? rig.memory + here : script.disk + there,
		       length);
		ends(&rig, submit(&rig, &what, 1), LW_COMPLETED, LW_REASON_NONE);
		if (memcmp(want, op == LW_WRITE ? script.disk : rig.memory, DISK) != 0)
			fail_msg("%s of %zu bytes at %zu, local %zu", op == LW_WRITE ? "WRITE" : "READ", length, there,
				 here);
	}
	free(want);
	tear_down(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers_out_of_order_each_task_has_its_own),
		cmocka_unit_test(test_answer_in_parts_is_asked_for_until_whole),
		cmocka_unit_test(test_answer_that_fails_is_the_tasks_reason),
		cmocka_unit_test(test_answer_try_again_is_tried_again_not_for_ever),
		cmocka_unit_test(test_answer_that_never_comes_keeps_task_and_memory),
		cmocka_unit_test(test_cancel_and_deadline_of_what_can_be_recalled_end_soon),
		cmocka_unit_test(test_unregister_waits_for_what_is_held),
		cmocka_unit_test(test_segment_close_ends_when_the_kernel_lets_go),
		cmocka_unit_test(test_engine_close_does_not_wait_for_ever),
		cmocka_unit_test(test_more_than_fit_all_complete),
		cmocka_unit_test(test_any_range_no_byte_outside),
	};

	seed = test_seed();
	return cmocka_run_group_tests_name("nvmeof", tests, NULL, NULL);
}
