/* SPDX-License-Identifier: Apache-2.0 */
/* One suite over every driver: what is said of transfers holds however the bytes move. A fixture is a driver and a
 * place that it reaches; each case runs with each fixture. What a fixture can't show is skipped and says why.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/files.h"
#include "common/gpu.h"
#include "common/nics.h"
#include "drivers/nvlink/peer.h"
#include "drivers/nvmeof/queue.h"
#include "drivers/shm/peer.h"
#include "lib/engine.h"

#define MIB ((size_t)1 << 20)
#define AREA (10 * MIB)
#define GUARD 64 /* bytes beside a range that must stay as they are */
#define BATCH_MAX 1000

/* FILES, DEVICE: files one behind the other, or a loop device; the target's memory are their pages. PEER: another
 * engine. OUTSIDE: one that is reached as if it lived in another process; MAPPED: also with memory of lw_mem_alloc. */
enum place { NOWHERE, OWN, FILES, DEVICE, PEER, OUTSIDE, MAPPED };

struct fixture {
	const char *name;
	const char *drivers;
	enum place place;
	bool moves_bytes;
	enum { HOSTS = 0, NEAR = 1, FAR = 2 } gpus; /* whose memory is a GPU's: ours, the target's, or both */
};

static const struct fixture fixtures[] = {
	{"tcp to a peer", "drivers=tcp", PEER, true, HOSTS},
	{"tcp through pipes", "drivers=tcp tcp_splice_bytes=1", PEER, true, HOSTS},
	{"tcp with checksums and a secret", "drivers=tcp tcp_checksum=on tcp_secret=shared", PEER, true, HOSTS},
	{"tcp to itself", "drivers=tcp", OWN, true, HOSTS},
	{"shm to itself", "drivers=shm,tcp", OWN, true, HOSTS},
	{"shm to a peer in the process", "drivers=shm,tcp shm_peers=on", PEER, true, HOSTS},
	{"shm by the kernel", "drivers=shm,tcp shm_peers=on", OUTSIDE, true, HOSTS},
	{"shm to mapped memory", "drivers=shm,tcp shm_peers=on", MAPPED, true, HOSTS},
	{"a file", "drivers=nvmeof", FILES, true, HOSTS},
	{"three files", "drivers=nvmeof", FILES, true, HOSTS},
	{"a file by a helper thread", "drivers=nvmeof", FILES, true, HOSTS},
	{"three files through the page cache", "drivers=nvmeof file_direct=off", FILES, true, HOSTS},
	{"a block device", "drivers=nvmeof", DEVICE, true, HOSTS},
	{"rdma to a peer", "drivers=rdma", PEER, true, HOSTS},
	{"rdma in small regions", "drivers=rdma rdma_max_mr_bytes=65536 rdma_wr=16", PEER, true, HOSTS},
	{"null", "drivers=null,tcp", NOWHERE, false, HOSTS},
	{"tcp from a GPU", "drivers=tcp", PEER, true, NEAR},
	{"tcp to a GPU", "drivers=tcp", PEER, true, FAR},
	{"tcp between GPUs", "drivers=tcp", PEER, true, NEAR | FAR},
	{"tcp between GPUs in small steps", "drivers=tcp stage_bytes=65536 stage_slots=3", PEER, true, NEAR | FAR},
	{"tcp between GPUs with checksums and a secret", "drivers=tcp tcp_checksum=on tcp_secret=shared", PEER, true,
	 NEAR | FAR},
	{"itself between GPUs", "drivers=shm,tcp", OWN, true, NEAR | FAR},
	{"shm to itself from a GPU", "drivers=shm,tcp", OWN, true, NEAR},
	{"shm by the kernel from a GPU", "drivers=shm,tcp shm_peers=on", OUTSIDE, true, NEAR},
	{"shm to mapped memory from a GPU", "drivers=shm,tcp shm_peers=on", MAPPED, true, NEAR},
	{"tcp beside shm to a GPU", "drivers=shm,tcp shm_peers=on", OUTSIDE, true, FAR},
	{"rdma from a GPU", "drivers=rdma,tcp", PEER, true, NEAR},
	{"rdma beside tcp to a GPU", "drivers=rdma,tcp", PEER, true, FAR},
	{"a file from a GPU", "drivers=nvmeof", FILES, true, NEAR},
	{"null from a GPU", "drivers=null,tcp", NOWHERE, false, NEAR},
	{"nvlink to itself", "drivers=shm,nvlink,tcp", OWN, true, NEAR | FAR},
	{"nvlink to itself from the host", "drivers=shm,nvlink,tcp", OWN, true, FAR},
	{"nvlink to itself, the host's memory", "drivers=shm,nvlink,tcp", OWN, true, NEAR},
	{"nvlink to a peer in the process", "drivers=shm,nvlink,tcp", PEER, true, NEAR | FAR},
	{"nvlink from the host to a peer in the process", "drivers=shm,nvlink,tcp", PEER, true, FAR},
	{"nvlink to the host of a peer in the process", "drivers=shm,nvlink,tcp", PEER, true, NEAR},
	{"nvlink from memory that is not pinned", "drivers=shm,nvlink,tcp gpu_pin=off", PEER, true, FAR},
	{"nvlink to memory that is not pinned", "drivers=shm,nvlink,tcp gpu_pin=off", PEER, true, NEAR},
	{"nvlink by handles", "drivers=shm,nvlink,tcp", OUTSIDE, true, NEAR | FAR},
	{"nvlink by handles from the host", "drivers=shm,nvlink,tcp", OUTSIDE, true, FAR},
	{"hip by handles", "drivers=shm,hip,tcp", OUTSIDE, true, NEAR | FAR},
	{"musa by handles", "drivers=shm,musa,tcp", OUTSIDE, true, NEAR | FAR},
	{"maca by handles", "drivers=shm,maca,tcp", OUTSIDE, true, NEAR | FAR},
};
#define FIXTURES (sizeof(fixtures) / sizeof(fixtures[0]))

static uint64_t seed;

/* A pair of engines (one, if the place is not a peer) with an area of memory each. local and remote are what the CPU
 * sees of them; near and far their addresses, which are others if it is a GPU's memory. */
struct rig {
	const struct fixture *fixture;
	struct lw_engine *engine, *target;
	struct lw_channel *channel;
	lw_segment_t segment;
	unsigned char *local, *remote;
	unsigned char *near, *far;
	uint64_t base; /* the segment's offset that remote is at */
	lw_buffer_t local_id, remote_id;
	char url[256]; /* of files */
};

static bool is_files(const struct fixture *fixture)
{
	return fixture->place == FILES || fixture->place == DEVICE;
}

/* Of how many files its segment is made. */
static size_t files_of(const struct fixture *fixture)
{
	return strstr(fixture->name, "three files") != NULL ? 3 : 1;
}

static void open_again(struct rig *rig)
{
	const char *name = rig->fixture->place == NOWHERE ? "null://" : rig->url;

	if (rig->fixture->place == OWN)
		rig->segment = LW_SEGMENT_LOCAL;
	else if (rig->fixture->place >= PEER)
		rig->segment = test_segment(rig->engine, rig->target);
	else if (lw_segment_open(rig->engine, name, 0, &rig->segment) != 0)
		fail_msg("no segment: %s", lw_last_error());
}

/* Maps a file of the segment behind the others. */
static void map_file(struct rig *rig, const char *path, size_t at, size_t bytes)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_ptr_equal(mmap(rig->remote + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
			 rig->remote + at);
	close(fd);
}

static void use_device(const char *device, void *arg)
{
	struct rig *rig = arg;

	snprintf(rig->url, sizeof(rig->url), "file:%s", device);
	map_file(rig, device, 0, AREA);
	open_again(rig);
}

/* Files, or a device, in the place of the target's memory. */
static void set_up_files(struct rig *rig)
{
	const size_t sizes[3] = {4 * MIB + 12288, 2 * MIB, AREA - 6 * MIB - 12288};
	const char *backing, *why;
	size_t at = 0;

	rig->base = 0;
	if (rig->fixture->place == DEVICE) {
		if (test_loop(AREA, use_device, rig, &backing, &why) == NULL) {
			lw_engine_close(rig->engine);
			print_message("skipped: %s\n", why);
			skip();
		}
		return;
	}
	snprintf(rig->url, sizeof(rig->url), "file:");
	for (size_t i = 0; i < files_of(rig->fixture); i++) {
		size_t bytes = files_of(rig->fixture) == 1 ? AREA : sizes[i];
		const char *path = test_file(bytes);

		snprintf(rig->url + strlen(rig->url), sizeof(rig->url) - strlen(rig->url), "%s%s", i == 0 ? "" : ",",
			 path);
		map_file(rig, path, at, bytes);
		at += bytes;
	}
	open_again(rig);
}

/* True, and the reason is printed, for what is about memory that a target registers. */
static bool without_memory(const struct fixture *fixture)
{
	if (is_files(fixture))
		print_message("skipped: %s has no target that registers memory\n", fixture->name);
	return is_files(fixture);
}

/* Whose GPUs its memory is of. */
static enum lw_gpu_vendor vendor_of(const struct fixture *fixture)
{
	for (int v = LW_GPU_HIP; v < LW_GPU_VENDORS; v++)
		if (strstr(fixture->drivers, lw_gpu_vendor_name((enum lw_gpu_vendor)v)) != NULL)
			return (enum lw_gpu_vendor)v;
	return LW_GPU_CUDA;
}

/* Whether it is about a driver of GPUs. */
static bool is_gpus(const struct fixture *fixture)
{
	return strncmp(fixture->name, "nvlink", 6) == 0 || vendor_of(fixture) != LW_GPU_CUDA;
}

/* Memory of a GPU, of all zeroes; *seen is what the CPU sees of it. */
static unsigned char *map_gpu(enum lw_gpu_vendor vendor, int device, unsigned char **seen)
{
	unsigned char *memory = test_gpu_alloc(vendor, device, AREA);

	*seen = test_gpu_peek(memory);
	memset(*seen, 0, AREA);
	return memory;
}

static struct rig set_up(const struct fixture *fixture, const char *settings, const char *target_settings)
{
	struct rig rig = {.fixture = fixture};
	char text[512];

	shm_peers_outside = nvlink_peers_outside = fixture->place >= OUTSIDE;
	nvmeof_backend_forced = strstr(fixture->name, "helper thread") != NULL ? &nvmeof_helper : NULL;
	snprintf(text, sizeof(text), "%s %s", fixture->drivers, settings);
	rig.engine = test_engine(text);
	rig.target = rig.engine;
	if (fixture->place >= PEER) {
		snprintf(text, sizeof(text), "%s %s", fixture->drivers, target_settings);
		rig.target = test_engine(text);
	}
	rig.near = (fixture->gpus & NEAR) != 0 ? map_gpu(vendor_of(fixture), 0, &rig.local) : test_map(AREA, NULL);
	if ((fixture->gpus & NEAR) == 0)
		rig.local = rig.near;
	rig.remote = NULL;
	if ((fixture->gpus & FAR) != 0)
		rig.far = map_gpu(vendor_of(fixture), 1, &rig.remote);
	else if (fixture->place != MAPPED)
		rig.remote = test_map(AREA, NULL);
	else if (lw_mem_alloc(rig.target, AREA, NULL, 0, (void **)&rig.remote) != 0)
		fail_msg("no memory: %s", lw_last_error());
	if ((fixture->gpus & FAR) == 0)
		rig.far = rig.remote;
	rig.local_id = test_register(rig.engine, rig.near, AREA, LW_ACCESS_LOCAL);
	rig.base = (uint64_t)(uintptr_t)rig.far;
	if (is_files(fixture)) {
		set_up_files(&rig);
	} else {
		rig.remote_id = test_register(rig.target, rig.far, AREA, LW_ACCESS_REMOTE);
		open_again(&rig);
	}
	assert_int_equal(lw_channel_self(rig.engine, &rig.channel), 0);
	return rig;
}

static void drop_remote(const struct rig *rig)
{
	if (rig->fixture->place == MAPPED)
		assert_int_equal(lw_mem_free(rig->target, rig->remote), 0);
	else if ((rig->fixture->gpus & FAR) != 0)
		test_gpu_free(vendor_of(rig->fixture), rig->far);
	else
		test_unmap(rig->remote, AREA);
}

static void drop_local(const struct rig *rig)
{
	if ((rig->fixture->gpus & NEAR) != 0)
		test_gpu_free(vendor_of(rig->fixture), rig->near);
	else
		test_unmap(rig->local, AREA);
}

static void tear_down(struct rig *rig)
{
	assert_int_equal(lw_engine_close(rig->engine), 0);
	if (rig->target != rig->engine)
		assert_int_equal(lw_engine_close(rig->target), 0);
	if (rig->local != NULL)
		drop_local(rig);
	if (rig->remote != NULL && rig->fixture->place != MAPPED) /* that went with the engine */
		drop_remote(rig);
	if (rig->fixture->gpus == HOSTS)
		return;
	/* Nothing of the runtime is left, and no copy was one that it would have waited for. */
	assert_int_equal(test_gpu_live("memory"), 0);
	assert_int_equal(test_gpu_live("stream"), 0);
	assert_int_equal(test_gpu_live("event"), 0);
	assert_int_equal(test_gpu_live("import") + test_gpu_live("pinned"), 0);
	assert_int_equal(test_gpu_live("host"), 0);
	assert_int_equal(test_gpu_blocked(), 0);
}

/* True, and the reason is printed, if the fixture moves no bytes. */
static bool without_bytes(const struct fixture *fixture)
{
	if (!fixture->moves_bytes)
		print_message("skipped: %s moves no bytes\n", fixture->name);
	return !fixture->moves_bytes;
}

static bool not_a_peer(const struct fixture *fixture)
{
	if (fixture->place < PEER)
		print_message("skipped: %s has nobody who could be slow\n", fixture->name);
	return fixture->place < PEER;
}

/* The same for what needs nothing of the target's worker while bytes move. */
static bool cant_freeze(const struct fixture *fixture)
{
	if (fixture->place >= PEER && strstr(fixture->drivers, "=tcp") == NULL) {
		print_message("skipped: %s does not wait for the target\n", fixture->name);
		return true;
	}
	return not_a_peer(fixture);
}

/* Whether this host has a device for the driver. */
static bool has_rdma(void)
{
	struct lw_engine *engine = test_engine("drivers=rdma,tcp log_level=error");
	bool found = lw_driver_index(engine, "rdma", 4) >= 0;

	assert_int_equal(lw_engine_close(engine), 0);
	return found;
}

static struct lw_request request(const struct rig *rig, enum lw_op op, size_t here, size_t there, size_t length)
{
	return (struct lw_request){.local = rig->near + here,
				   .segment = rig->segment,
				   .offset = rig->base + there,
				   .length = length,
				   .op = (uint8_t)op};
}

/* The engine is given an array that is spoilt and freed as soon as it took it. */
static lw_batch_t submit(const struct rig *rig, const struct lw_request *requests, uint32_t count)
{
	struct lw_request *copy = malloc(count * sizeof(*copy));
	lw_batch_t batch;

	assert_non_null(copy);
	memcpy(copy, requests, count * sizeof(*copy));
	assert_int_equal(lw_batch_alloc(rig->channel, count, 0, NULL, &batch), 0);
	test_submit(rig->channel, batch, copy, count);
	memset(copy, 0xff, count * sizeof(*copy));
	free(copy);
	return batch;
}

/* What this thread did to the target's memory comes before what its workers do from now on, and the other way round. In
 * one process with ThreadSanitizer this must be said: it does not know that a socket orders it. */
static void settle(const struct rig *rig)
{
	static char page[64];
	lw_buffer_t id = test_register(rig->target, page, sizeof(page), LW_ACCESS_LOCAL);

	assert_int_equal(lw_memory_unregister(rig->target, &id, 1, 0), 0);
}

/* All of them complete, with all their bytes. */
static void complete(const struct rig *rig, const struct lw_request *requests, uint32_t count)
{
	struct lw_batch_status status;
	uint64_t bytes = 0;
	lw_batch_t batch;

	settle(rig);
	batch = submit(rig, requests, count);
	status = test_wait(rig->engine, batch);
	settle(rig);
	for (uint32_t i = 0; i < count; i++)
		bytes += requests[i].length;
	if (status.state != LW_COMPLETED) {
		char text[400] = "";

		for (uint32_t i = 0; i < count; i++) {
			struct lw_task_status task;

			assert_int_equal(lw_task_status(rig->engine, batch, i, &task), 0);
			if (task.state == LW_COMPLETED)
				continue;
			lw_task_reason(rig->engine, batch, i, text, sizeof(text));
			break;
		}
		fail_msg("%u of %u did not complete: %s", status.failed, count, text);
	}
	assert_int_equal(status.bytes, bytes);
	assert_int_equal(lw_batch_free(rig->engine, batch), 0);
}

static struct lw_task_status one(const struct rig *rig, struct lw_request what)
{
	struct lw_task_status status;

	settle(rig);
	status = test_transfer(rig->engine, rig->channel, what);
	settle(rig);
	return status;
}

/* The source holds new bytes, the destination others; after the transfer the range is equal and its surroundings are as
 * they were. */
static void check_one(const struct rig *rig, enum lw_op op, size_t length)
{
	size_t here = GUARD + test_random(&seed) % (AREA - length - 2 * GUARD);
	size_t there = GUARD + test_random(&seed) % (AREA - length - 2 * GUARD);
	unsigned char *from = op == LW_WRITE ? rig->local + here : rig->remote + there;
	unsigned char *to = op == LW_WRITE ? rig->remote + there : rig->local + here;
	unsigned char before[2 * GUARD];
	struct lw_request what = request(rig, op, here, there, length);

	test_fill(from, length, test_random(&seed));
	memset(to, ~from[0], length < 64 ? length : 64);
	memcpy(before, to - GUARD, GUARD);
	memcpy(before + GUARD, to + length, GUARD);
	complete(rig, &what, 1);
	if (!rig->fixture->moves_bytes)
		return;
	if (memcmp(from, to, length) != 0)
		fail_msg("%s of %zu bytes: other bytes", op == LW_WRITE ? "WRITE" : "READ", length);
	assert_memory_equal(before, to - GUARD, GUARD);
	assert_memory_equal(before + GUARD, to + length, GUARD);
}

static void test_transfer_every_op_and_size_exact(void **state)
{
	static const size_t sizes[] = {1,       2,           7,       8,           23,     24,    25,
				       100,     4095,        4096,    16384,       16385,  61440, MIB - 1,
				       MIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 8 * MIB};
	struct rig rig = set_up(*state, "", "");

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		check_one(&rig, LW_WRITE, sizes[i]);
		check_one(&rig, LW_READ, sizes[i]);
	}
	for (int i = 0; i < 100; i++)
		check_one(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, 1 + test_random(&seed) % (MIB / 4));
	tear_down(&rig);
}

/* count requests in one batch, READ and WRITE mixed as ops says, each with its own ranges; all bytes are compared. */
static void check_batch(const struct rig *rig, uint32_t count, int ops)
{
	size_t step = AREA / count < 70000 ? AREA / count : 70000;
	struct lw_request *requests = calloc(count, sizeof(*requests));
	unsigned char *want_local = malloc(AREA), *want_remote = malloc(AREA);

	assert_non_null(requests);
	assert_non_null(want_local);
	assert_non_null(want_remote);
	test_fill(rig->local, AREA, test_random(&seed));
	test_fill(rig->remote, AREA, test_random(&seed));
	memcpy(want_local, rig->local, AREA);
	memcpy(want_remote, rig->remote, AREA);
	for (uint32_t i = 0; i < count; i++) {
		size_t length = 1 + test_random(&seed) % (step - 1), at = i * step;
		enum lw_op op = ops == 2 ? (enum lw_op)(test_random(&seed) % 2) : (enum lw_op)ops;

		requests[i] = request(rig, op, at, at, length);
		requests[i].priority = (uint8_t)(test_random(&seed) % 2);
		memcpy((op == LW_WRITE ? want_remote : want_local) + at,
		       (op == LW_WRITE ? want_local : want_remote) + at, length);
	}
	complete(rig, requests, count);
	if (rig->fixture->moves_bytes)
		assert_true(memcmp(rig->local, want_local, AREA) == 0 && memcmp(rig->remote, want_remote, AREA) == 0);
	free(requests);
	free(want_local);
	free(want_remote);
}

/* Each size of batch, READ and WRITE mixed. */
static void check_batches(const struct rig *rig)
{
	check_batch(rig, 1, 2);
	check_batch(rig, 64, 2);
	check_batch(rig, BATCH_MAX, 2);
}

static void test_submit_batches_exact(void **state)
{
	static const uint32_t counts[] = {1, 64, BATCH_MAX};
	struct rig rig = set_up(*state, "", "");

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		for (int ops = 0; ops < 3; ops++)
			check_batch(&rig, counts[i], ops);
	tear_down(&rig);
}

/* Blocks that follow each other on one side and not on the other, on both, and on none: what a driver may join. */
static void test_submit_of_blocks_that_follow_each_other_exact(void **state)
{
	enum { BLOCKS = 64, BLOCK = 4096 };
	struct rig rig = set_up(*state, "", "");
	unsigned char *want = malloc(AREA);

	assert_non_null(want);
	for (int how = 0; how < 8; how++) {
		struct lw_request requests[BLOCKS];
		enum lw_op op = how % 2 == 0 ? LW_WRITE : LW_READ;
		unsigned char *to = op == LW_WRITE ? rig.remote : rig.local,
			      *from = to == rig.local ? rig.remote : rig.local;

		test_fill(rig.local, AREA, test_random(&seed));
		test_fill(rig.remote, AREA, test_random(&seed));
		memcpy(want, to, AREA);
		for (size_t i = 0; i < BLOCKS; i++) {
			size_t mixed = i * 37 % BLOCKS, here = (how & 2) != 0 ? i : mixed,
			       there = (how & 4) != 0 ? i : mixed;
			size_t at = op == LW_WRITE ? there : here, of = op == LW_WRITE ? here : there;

			requests[i] = request(&rig, op, 3 + here * BLOCK, 7 + there * BLOCK, BLOCK);
			memcpy(want + (op == LW_WRITE ? 7 : 3) + at * BLOCK,
			       from + (op == LW_WRITE ? 3 : 7) + of * BLOCK, BLOCK);
		}
		complete(&rig, requests, BLOCKS);
		if (rig.fixture->moves_bytes)
			assert_memory_equal(to, want, AREA);
	}
	free(want);
	tear_down(&rig);
}

static void test_submit_over_four_lanes_exact(void **state)
{
	struct rig rig = set_up(*state, "tcp_lanes=4", "");

	check_batches(&rig);
	tear_down(&rig);
}

static void test_submit_in_short_slices_exact(void **state)
{
	struct rig rig = set_up(*state, "tcp_lanes=3 slice_bytes=4096 max_slices=64", "");

	check_one(&rig, LW_WRITE, 8 * MIB - 1);
	check_one(&rig, LW_READ, 8 * MIB - 1);
	check_batch(&rig, 64, 2);
	tear_down(&rig);
}

static void test_submit_with_busy_workers_exact(void **state)
{
	struct rig rig = set_up(*state, "poll=busy", "poll=busy");

	check_batches(&rig);
	tear_down(&rig);
}

static void test_submit_after_workers_slept_exact(void **state)
{
	struct rig rig = set_up(*state, "poll=adaptive idle_us=0", "poll=adaptive idle_us=0");

	for (int i = 0; i < 20; i++) {
		test_sleep_ms((uint32_t)(test_random(&seed) % 5));
		check_one(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, 1 + test_random(&seed) % 100000);
	}
	tear_down(&rig);
}

/* Nobody polls: the bytes arrive all the same, and whoever looks then for the first time sees the end of it. */
static void test_submit_that_nobody_polls_is_done_at_the_first_look(void **state)
{
	enum { TASKS = 3 };
	struct rig rig = set_up(*state, "", "");
	struct lw_request list[TASKS];
	struct lw_batch_status status;
	struct lw_task_status task;
	uint64_t bytes = 0;
	lw_batch_t batch;

	test_fill(rig.local, AREA, test_random(&seed));
	for (size_t i = 0; i < TASKS; i++) {
		size_t length = 1 + test_random(&seed) % (2 * MIB);

		list[i] = request(&rig, LW_WRITE, i * 3 * MIB, i * 3 * MIB, length);
		bytes += length;
	}
	settle(&rig);
	batch = submit(&rig, list, TASKS);
	test_sleep_ms(1000);
	settle(&rig);
	for (size_t i = 0; i < TASKS && rig.fixture->moves_bytes; i++)
		assert_memory_equal(rig.local + i * 3 * MIB, rig.remote + i * 3 * MIB, list[i].length);
	assert_int_equal(lw_batch_status(rig.engine, batch, &status), 0);
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(status.bytes, bytes);
	for (uint32_t i = 0; i < TASKS; i++) {
		assert_int_equal(lw_task_status(rig.engine, batch, i, &task), 0);
		assert_int_equal(task.bytes, list[i].length);
	}
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	tear_down(&rig);
}

static void test_submit_driven_by_caller_exact(void **state)
{
	struct rig rig = set_up(*state, "poll=caller", "");

	check_batches(&rig);
	tear_down(&rig);
}

struct second {
	const struct rig *rig;
	atomic_uint completed;
	uint32_t count;
	size_t at; /* its own ranges */
};

/* Another thread's channel, which is another worker's if there are two. */
static void *write_many(void *arg)
{
	struct second *second = arg;
	struct rig rig = *second->rig;
	unsigned completed = 0;

	if (lw_channel_self(rig.engine, &rig.channel) != 0)
		return NULL;
	for (uint32_t i = 0; i < second->count; i++) {
		struct lw_request what = request(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, second->at + i % 2 * MIB,
						 second->at + i % 2 * MIB, 65537);
		struct lw_batch_status status = {.state = LW_PENDING};
		lw_batch_t batch;

		if (lw_batch_alloc(rig.channel, 1, 0, NULL, &batch) != 0 ||
		    lw_submit(rig.channel, batch, &what, 1) != 0)
			break;
		lw_batch_wait(rig.engine, batch, 20000, &status);
		completed += status.state == LW_COMPLETED;
		lw_batch_free(rig.engine, batch);
	}
	atomic_store(&second->completed, completed);
	return NULL;
}

static void test_submit_from_threads_to_two_workers_complete(void **state)
{
	struct rig rig = set_up(*state, "workers=2 tcp_lanes=2", "workers=2");
	struct second second[3];
	pthread_t thread[3];

	for (int i = 0; i < 3; i++) {
		second[i] = (struct second){.rig = &rig, .count = 200, .at = (size_t)i * 2 * MIB};
		assert_int_equal(pthread_create(&thread[i], NULL, write_many, &second[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(atomic_load(&second[i].completed), 200);
	}
	check_batches(&rig);
	tear_down(&rig);
}

static void test_submit_several_times_to_a_batch_counts_on(void **state)
{
	struct rig rig = set_up(*state, "", "");
	struct lw_request requests[100];
	struct lw_batch_status status;
	struct lw_task_status task;
	lw_batch_t batch;

	test_fill(rig.local, MIB, test_random(&seed));
	for (size_t i = 0; i < 100; i++)
		requests[i] = request(&rig, LW_WRITE, i * 1000, i * 1000, 1000);
	assert_int_equal(lw_batch_alloc(rig.channel, 100, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(rig.channel, batch, requests, 0), 0);
	test_submit(rig.channel, batch, requests, 40);
	test_submit(rig.channel, batch, requests + 40, 1);
	assert_int_equal(test_wait(rig.engine, batch).done, 41);
	assert_int_equal(lw_submit(rig.channel, batch, requests, 60), -ENOSPC);
	test_submit(rig.channel, batch, requests + 41, 59);
	status = test_wait(rig.engine, batch);
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(status.tasks, 100);
	assert_int_equal(status.bytes, 100000);
	assert_int_equal(lw_task_status(rig.engine, batch, 99, &task), 0);
	assert_int_equal(task.bytes, 1000);
	assert_int_equal(lw_task_status(rig.engine, batch, 100, &task), -ERANGE);
	assert_int_equal(lw_submit(rig.channel, batch, requests, 1), -ENOSPC);
	if (rig.fixture->moves_bytes)
		assert_memory_equal(rig.local, rig.remote, 100000);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	assert_int_equal(lw_batch_free(rig.engine, batch), -EBADF);
	tear_down(&rig);
}

static void test_submit_of_no_bytes_completes(void **state)
{
	struct rig rig = set_up(*state, "", "");
	struct lw_request what = request(&rig, LW_WRITE, 0, 0, 0);
	struct lw_task_status status;

	what.local = NULL;
	what.offset = 1;
	status = one(&rig, what);
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(status.bytes, 0);
	tear_down(&rig);
}

/* Ranges -----------------------------------------------------------------------------------------------------------*/

static void refused(const struct rig *rig, struct lw_request what, enum lw_reason reason)
{
	struct lw_task_status status = one(rig, what);

	assert_int_equal(status.state, LW_FAILED);
	assert_int_equal(status.reason, reason);
	assert_true(status.error < 0);
	assert_int_equal(status.bytes, 0);
}

static void test_local_range_not_registered_refused(void **state)
{
	struct rig rig = set_up(*state, "", "");
	unsigned char *other = test_map(8192, NULL);
	struct lw_request what = request(&rig, LW_READ, 0, 0, 4096);

	what.local = other;
	refused(&rig, what, LW_REASON_LOCAL_RANGE);
	what.op = LW_WRITE;
	refused(&rig, what, LW_REASON_LOCAL_RANGE);
	refused(&rig, request(&rig, LW_WRITE, AREA - 4095, 0, 4096), LW_REASON_LOCAL_RANGE);
	what = request(&rig, LW_WRITE, 0, 0, 4096);
	what.local = rig.near - 1;
	refused(&rig, what, LW_REASON_LOCAL_RANGE);
	assert_int_equal(one(&rig, request(&rig, LW_WRITE, AREA - 4096, 0, 4096)).state, LW_COMPLETED);
	test_unmap(other, 8192);
	tear_down(&rig);
}

static void test_remote_range_not_offered_refused_and_untouched(void **state)
{
	unsigned char *parts;
	struct lw_request what, all[64];
	struct lw_batch_status status;
	lw_batch_t batch;
	struct rig rig;
	uint32_t crc;

	if (without_bytes(*state) || without_memory(*state))
		skip();
	rig = set_up(*state, "refresh=off", ""); /* what changes at the target meanwhile would have it asked */
	parts = test_map(4 * 4096, NULL);
	test_fill(parts, 4 * 4096, 1);
	crc = test_crc(parts, 4 * 4096);
	test_register(rig.target, parts, 4096, LW_ACCESS_REMOTE_READ);
	test_register(rig.target, parts + 4096, 4096, LW_ACCESS_REMOTE_WRITE);
	test_register(rig.target, parts + 2 * 4096, 4096, LW_ACCESS_LOCAL);
	if (rig.fixture->place >= PEER) /* its new buffers are seen */
		assert_int_equal(test_segment(rig.engine, rig.target), rig.segment);
#define AT(addr, o, n)                                                                                                 \
	((struct lw_request){.local = rig.near,                                                                        \
			     .segment = rig.segment,                                                                   \
			     .offset = (uint64_t)(uintptr_t)(addr),                                                    \
			     .length = (n),                                                                            \
			     .op = (o)})
	refused(&rig, AT(parts, LW_WRITE, 1), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(parts + 4096, LW_READ, 1), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(parts + 2 * 4096, LW_READ, 1), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(parts + 2 * 4096, LW_WRITE, 1), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(parts + 3 * 4096, LW_READ, 1), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(parts + 4095, LW_WRITE, 2), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(rig.far - 1, LW_READ, 2), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(rig.far + AREA, LW_READ, 1), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT(rig.far + AREA - 1, LW_WRITE, 2), LW_REASON_REMOTE_RANGE);
	refused(&rig, AT((void *)8, LW_READ, 64), LW_REASON_REMOTE_RANGE);
	assert_int_equal(test_crc(parts, 4 * 4096), crc);
	assert_int_equal(one(&rig, AT(parts, LW_READ, 4096)).state, LW_COMPLETED);
	assert_memory_equal(rig.local, parts, 4096);
	assert_int_equal(one(&rig, AT(parts + 4096, LW_WRITE, 4096)).state, LW_COMPLETED);
	what = AT(rig.far, LW_READ, 1);
	what.offset = UINT64_MAX - 10;
	what.length = 100;
	assert_int_equal(lw_batch_alloc(rig.channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(rig.channel, batch, &what, 1), -EINVAL);
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);

	/* Bad ones among good ones: each has its own outcome. */
	for (size_t i = 0; i < 64; i++) {
		all[i] = request(&rig, LW_WRITE, i * 5000, i * 5000, 5000);
		if (i % 8 == 3)
			all[i].offset = (uint64_t)(uintptr_t)(parts + 3 * 4096);
	}
	batch = submit(&rig, all, 64);
	status = test_wait(rig.engine, batch);
	assert_int_equal(status.state, LW_FAILED);
	assert_int_equal(status.failed, 8);
	assert_int_equal(status.bytes, 56 * 5000);
	for (uint32_t i = 0; i < 64; i++) {
		struct lw_task_status task;

		assert_int_equal(lw_task_status(rig.engine, batch, i, &task), 0);
		assert_int_equal(task.state, i % 8 == 3 ? LW_FAILED : LW_COMPLETED);
		if (i % 8 != 3)
			assert_memory_equal(rig.local + i * 5000, rig.remote + i * 5000, 5000);
	}
	assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	tear_down(&rig);
	test_unmap(parts, 4 * 4096);
}

struct alternator {
	const struct rig *rig;
	unsigned char *gone; /* what the peer offered once */
	int number;
	atomic_uint wrong;
};

/* Good and bad requests in turn, each with its outcome; the good ones' bytes are compared. */
static void *alternate(void *arg)
{
	enum { GOOD = 250000 };
	struct alternator *own = arg;
	struct rig rig = *own->rig;
	size_t at = (size_t)own->number * 2 * MIB;
	/* Hardware that refuses breaks the connection: each bad request costs a handshake. */
	int rounds = strstr(rig.fixture->drivers, "=rdma") != NULL ? 20 : 250;

	if (lw_channel_self(rig.engine, &rig.channel) != 0)
		return NULL;
	for (int i = 0; i < rounds; i++) {
		struct lw_request bad = request(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, at + MIB, 0, 4096);
		struct lw_request good = request(&rig, i % 3 == 0 ? LW_READ : LW_WRITE, at, at, GOOD);
		struct lw_request both[] = {bad, good, bad};
		struct lw_task_status status[3];
		lw_batch_t batch;

		both[0].offset = (uint64_t)(uintptr_t)own->gone;
		both[2].offset = both[0].offset + 4096;
		rig.local[at + (size_t)i] = (unsigned char)(i + own->number);
		if (lw_batch_alloc(rig.channel, 3, 0, NULL, &batch) != 0 ||
		    lw_submit(rig.channel, batch, both, 3) != 0 || lw_batch_wait(rig.engine, batch, 10000, NULL) != 0) {
			atomic_fetch_add(&own->wrong, 1);
			break;
		}
		for (uint32_t k = 0; k < 3; k++)
			lw_task_status(rig.engine, batch, k, &status[k]);
		if (status[0].state != LW_FAILED || status[0].reason != LW_REASON_REFUSED ||
		    status[2].state != LW_FAILED || status[2].reason != LW_REASON_REFUSED ||
		    status[1].state != LW_COMPLETED || memcmp(rig.local + at, rig.remote + at, GOOD) != 0) {
			print_message("round %d: refused: %s; good: %s; refused: %s\n", i,
				      lw_reason_string((int)status[0].reason), lw_reason_string((int)status[1].reason),
				      lw_reason_string((int)status[2].reason));
			atomic_fetch_add(&own->wrong, 1);
		}
		lw_batch_free(rig.engine, batch);
	}
	return NULL;
}

/* The peer withdrew a buffer that we saw: it refuses, and that costs no other request anything. */
static void test_range_withdrawn_by_peer_refused_others_exact(void **state)
{
	struct alternator own[4];
	pthread_t thread[4];
	unsigned char *gone;
	lw_buffer_t id;
	struct rig rig;

	if (not_a_peer(*state))
		skip();
	rig = set_up(*state, "tcp_lanes=2 refresh=off", "");
	gone = test_map(8192, NULL);
	id = test_register(rig.target, gone, 8192, LW_ACCESS_REMOTE);
	assert_int_equal(test_segment(rig.engine, rig.target), rig.segment);
	assert_int_equal(lw_memory_unregister(rig.target, &id, 1, 0), 0);
	test_unmap(gone, 8192);
	for (int i = 0; i < 4; i++) {
		own[i] = (struct alternator){.rig = &rig, .gone = gone, .number = i};
		assert_int_equal(pthread_create(&thread[i], NULL, alternate, &own[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(atomic_load(&own[i].wrong), 0);
	}
	/* What was withdrawn is the host's memory, and has lanes of its own. */
	TEST_EVENTUALLY(lw_stats_lanes(rig.target, NULL, 0) <= (rig.fixture->gpus != HOSTS ? 4 : 2));
	tear_down(&rig);
}

static void test_range_over_seams_of_both_sides_exact(void **state)
{
	const struct fixture *fixture = *state;
	unsigned char *here, *there;
	struct rig rig;

	if (without_bytes(fixture) || without_memory(fixture))
		skip();
	rig = set_up(fixture, "", "");
	here = test_map(3 * MIB, NULL);
	there = test_map(3 * MIB, NULL);
	for (size_t i = 0; i < 3; i++) {
		test_register(rig.engine, here + i * MIB, MIB, LW_ACCESS_LOCAL);
		test_register(rig.target, there + i * MIB, MIB, LW_ACCESS_REMOTE);
	}
	if (fixture->place >= PEER)
		assert_int_equal(test_segment(rig.engine, rig.target), rig.segment);
	for (int i = 0; i < 200; i++) {
		size_t length = 1 + test_random(&seed) % (i < 20 ? 3 * MIB : 5000);
		size_t at = i < 20 ? test_random(&seed) % (3 * MIB - length + 1) : MIB - test_random(&seed) % length;
		size_t to = i < 20 ? test_random(&seed) % (3 * MIB - length + 1) : MIB - test_random(&seed) % length;
		struct lw_request what = {.local = here + at,
					  .segment = rig.segment,
					  .offset = (uint64_t)(uintptr_t)(there + to),
					  .length = length,
					  .op = (uint8_t)(i % 2)};

		test_fill(i % 2 == LW_WRITE ? here + at : there + to, length, test_random(&seed));
		complete(&rig, &what, 1);
		assert_true(memcmp(here + at, there + to, length) == 0);
	}
	tear_down(&rig);
	test_unmap(here, 3 * MIB);
	test_unmap(there, 3 * MIB);
}

/* Ends before the end ----------------------------------------------------------------------------------------------*/

/* 64 requests towards a target whose caller does not drive it. */
static lw_batch_t submit_frozen(const struct rig *rig, enum lw_op op, uint32_t timeout_ms)
{
	struct lw_request requests[64];

	for (size_t i = 0; i < 64; i++) {
		requests[i] = request(rig, op, i * 100000, i * 100000, 100000);
		requests[i].timeout_ms = timeout_ms;
	}
	return submit(rig, requests, 64);
}

static void drive(struct lw_engine *engine, uint32_t ms)
{
	uint64_t begin_ms = test_now_ms();

	while (test_now_ms() - begin_ms < ms)
		assert_true(lw_engine_progress(engine) >= 0);
}

/* All tasks end in this state for this reason within the bound; then nothing touches the memory any more, not even when
 * the target goes on, and new requests are served. */
static void check_end(struct rig *rig, lw_batch_t batch, enum lw_op op, enum lw_state state, enum lw_reason reason,
		      uint32_t bound_ms)
{
	struct lw_request again = request(rig, LW_WRITE, 0, 0, 5000);
	uint32_t here, there;
	lw_batch_t next;

	if (lw_batch_wait(rig->engine, batch, bound_ms, NULL) != 0)
		fail_msg("not ended within %u ms", bound_ms);
	for (uint32_t i = 0; i < 64; i++) {
		struct lw_task_status task;

		assert_int_equal(lw_task_status(rig->engine, batch, i, &task), 0);
		assert_int_equal(task.state, state);
		assert_int_equal(task.reason, reason);
	}
	assert_int_equal(lw_batch_free(rig->engine, batch), 0);
	test_fill(rig->local, AREA, 99);
	here = test_crc(rig->local, AREA);
	there = test_crc(rig->remote, AREA);
	drive(rig->target, 200);
	assert_int_equal(test_crc(rig->local, AREA), here);
	assert_int_equal(test_crc(rig->remote, AREA), there);
	if (reason == LW_REASON_SEGMENT_CLOSED)
		again.segment = rig->segment = test_segment(rig->engine, rig->target);
	next = submit(rig, &again, 1);
	for (uint64_t begin_ms = test_now_ms(); lw_batch_wait(rig->engine, next, 0, NULL) != 0;) {
		assert_true(test_now_ms() - begin_ms < 5000);
		drive(rig->target, 5);
	}
	assert_memory_equal(rig->local, rig->remote, 5000);
	assert_int_equal(lw_batch_free(rig->engine, next), 0);
	(void)op;
}

static void test_cancel_while_target_is_frozen_ends_canceled(void **state)
{
	if (cant_freeze(*state))
		skip();
	for (int op = 0; op < 2; op++) {
		struct rig rig = set_up(*state, "", "poll=caller");
		lw_batch_t batch = submit_frozen(&rig, (enum lw_op)op, 0);

		test_sleep_ms(20);
		assert_int_equal(lw_batch_cancel(rig.engine, batch), 0);
		check_end(&rig, batch, (enum lw_op)op, LW_CANCELED, LW_REASON_CANCELED, 1500);
		tear_down(&rig);
	}
}

static void test_segment_cancel_while_target_is_frozen_ends_canceled(void **state)
{
	struct rig rig;
	lw_batch_t batch;

	if (cant_freeze(*state))
		skip();
	rig = set_up(*state, "tcp_lanes=4", "poll=caller");
	batch = submit_frozen(&rig, LW_WRITE, 0);
	assert_int_equal(lw_segment_cancel(rig.engine, rig.segment), 0);
	check_end(&rig, batch, LW_WRITE, LW_CANCELED, LW_REASON_CANCELED, 1500);
	tear_down(&rig);
}

static void test_deadline_while_target_is_frozen_times_out(void **state)
{
	if (cant_freeze(*state))
		skip();
	for (int op = 0; op < 2; op++) {
		struct rig rig = set_up(*state, "tcp_lanes=2", "poll=caller");
		uint64_t begin_ms = test_now_ms();
		lw_batch_t batch = submit_frozen(&rig, (enum lw_op)op, 200);

		check_end(&rig, batch, (enum lw_op)op, LW_TIMEOUT, LW_REASON_TIMEOUT, 1200);
		assert_true(test_now_ms() - begin_ms >= 200);
		tear_down(&rig);
	}
}

static void test_segment_close_while_target_is_frozen_ends_canceled(void **state)
{
	if (cant_freeze(*state))
		skip();
	for (int op = 0; op < 2; op++) {
		struct rig rig = set_up(*state, "", "poll=caller");
		lw_batch_t batch = submit_frozen(&rig, (enum lw_op)op, 0);

		assert_int_equal(lw_segment_close(rig.engine, rig.segment), 0);
		check_end(&rig, batch, (enum lw_op)op, LW_CANCELED, LW_REASON_SEGMENT_CLOSED, 1000);
		tear_down(&rig);
	}
}

/* Where nobody is slow a cancel may come too late, but the batch ends soon and is one or the other. */
static void test_cancel_at_once_each_task_ends_one_way(void **state)
{
	struct rig rig = set_up(*state, "", "");

	for (int round = 0; round < 50; round++) {
		struct lw_request requests[64];
		struct lw_task_status task;
		lw_batch_t batch;

		for (size_t i = 0; i < 64; i++)
			requests[i] = request(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, i * 100000, i * 100000, 100000);
		batch = submit(&rig, requests, 64);
		if (round % 2 == 0)
			assert_int_equal(lw_batch_cancel(rig.engine, batch), 0);
		else
			assert_int_equal(lw_task_cancel(rig.engine, batch, 63), 0);
		assert_int_equal(lw_batch_wait(rig.engine, batch, 5000, NULL), 0);
		for (uint32_t i = 0; i < 64; i++) {
			assert_int_equal(lw_task_status(rig.engine, batch, i, &task), 0);
			assert_true(task.state == LW_COMPLETED || task.state == LW_CANCELED);
			assert_true(task.state == LW_COMPLETED || round % 2 == 0 || i == 63);
			assert_int_equal(task.bytes == 100000, task.state == LW_COMPLETED);
		}
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
	}
	check_batch(&rig, 64, 2);
	tear_down(&rig);
}

static void test_segment_close_at_once_everything_ends(void **state)
{
	const struct fixture *fixture = *state;
	struct rig rig = set_up(fixture, "", "");

	for (int round = 0; round < 20; round++) {
		struct lw_request requests[64];
		lw_batch_t batch;

		for (size_t i = 0; i < 64; i++)
			requests[i] = request(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, i * 100000, i * 100000, 100000);
		batch = submit(&rig, requests, 64);
		assert_int_equal(lw_segment_close(rig.engine, rig.segment), 0);
		assert_int_equal(lw_batch_wait(rig.engine, batch, 2000, NULL), 0);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
		if (fixture->place == OWN) /* always open */
			continue;
		assert_int_equal(lw_batch_alloc(rig.channel, 1, 0, NULL, &batch), 0);
		assert_int_equal(lw_submit(rig.channel, batch, requests, 1), -EBADF);
		assert_int_equal(lw_batch_free(rig.engine, batch), 0);
		open_again(&rig);
	}
	tear_down(&rig);
}

/* Unregistering under load -----------------------------------------------------------------------------------------*/

/* ThreadSanitizer does not see that sockets order what two workers of a target do one after the other. */
#if defined(__SANITIZE_THREAD__)
#define STORM_LANES "tcp_lanes=1"
#else
#define STORM_LANES "tcp_lanes=2"
#endif

struct storm {
	struct rig rig;
	atomic_uint threads;
	atomic_bool stop;
	atomic_uint completed, failed, odd;
};

/* Requests over both areas, whatever becomes of them. */
static void *storm(void *arg)
{
	enum { COUNT = 16, LENGTH = 300000 };
	struct storm *storm = arg;
	struct rig rig = storm->rig;
	struct lw_request requests[COUNT];
	size_t at = atomic_fetch_add(&storm->threads, 1) * (AREA / 2);

	if (lw_channel_self(rig.engine, &rig.channel) != 0)
		return NULL;
	for (size_t i = 0; i < COUNT; i++)
		requests[i] = request(&rig, i % 2 == 0 ? LW_WRITE : LW_READ, at + i * LENGTH, at + i * LENGTH,
				      i < 12 ? LENGTH : 4000);
	while (!atomic_load(&storm->stop)) {
		struct lw_batch_status status = {0};
		lw_batch_t batch;

		if (lw_batch_alloc(rig.channel, COUNT, 0, NULL, &batch) != 0 ||
		    lw_submit(rig.channel, batch, requests, COUNT) != 0 ||
		    lw_batch_wait(rig.engine, batch, 10000, &status) != 0) {
			atomic_fetch_add(&storm->odd, 1);
			return NULL;
		}
		for (uint32_t i = 0; i < COUNT; i++) {
			struct lw_task_status task;

			lw_task_status(rig.engine, batch, i, &task);
			if (task.state != LW_COMPLETED && task.state != LW_FAILED)
				atomic_fetch_add(&storm->odd, 1);
		}
		atomic_fetch_add(&storm->completed, status.done - status.failed);
		atomic_fetch_add(&storm->failed, status.failed);
		lw_batch_free(rig.engine, batch);
	}
	return NULL;
}

/* side 0: the initiator's memory; 1: the target's. Once the call is over the memory goes: a touch would be a crash. */
static void unregister_in_storm(const struct fixture *fixture, int side)
{
	/* Where the peer does not look at ranges itself, each request to one that is gone waits until it was asked,
	 * which is once a second. */
	int rounds = side == 1 && (strstr(fixture->drivers, "=rdma") != NULL || is_gpus(fixture)) ? 2 : 10;

	for (int round = 0; round < rounds; round++) {
		struct storm state = {.rig = set_up(fixture, "workers=2 " STORM_LANES, "workers=2")};
		struct rig *rig = &state.rig;
		pthread_t thread[2];
		unsigned before;

		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&thread[i], NULL, storm, &state), 0);
		TEST_EVENTUALLY(atomic_load(&state.completed) > 32);
		test_sleep_ms((uint32_t)(test_random(&seed) % 5));
		if (side == 0) {
			assert_int_equal(lw_memory_unregister(rig->engine, &rig->local_id, 1, 0), 0);
			drop_local(rig);
		} else {
			assert_int_equal(lw_memory_unregister(rig->target, &rig->remote_id, 1, 0), 0);
			drop_remote(rig);
		}
		before = atomic_load(&state.failed);
		TEST_EVENTUALLY(atomic_load(&state.failed) > before + 32 || atomic_load(&state.odd) != 0);
		atomic_store(&state.stop, true);
		for (int i = 0; i < 2; i++)
			pthread_join(thread[i], NULL);
		if (atomic_load(&state.odd) != 0)
			fail_msg("round %d: %u odd ones; %u completed, %u failed", round, atomic_load(&state.odd),
				 atomic_load(&state.completed), atomic_load(&state.failed));
		*(side == 0 ? &rig->local : &rig->remote) = NULL; /* gone */
		tear_down(rig);
	}
}

static void test_unregister_local_under_load_memory_may_go(void **state)
{
	unregister_in_storm(*state, 0);
}

static void test_unregister_remote_under_load_memory_may_go(void **state)
{
	if (without_bytes(*state) || without_memory(*state))
		skip();
	unregister_in_storm(*state, 1);
}

/* Statistics -------------------------------------------------------------------------------------------------------*/

static void test_stats_lanes_add_up(void **state)
{
	const struct fixture *fixture = *state;
	struct rig rig = set_up(fixture, "workers=2 tcp_lanes=3", "workers=2");
	struct lw_engine_stats whole = {.size = sizeof(whole)};
	struct lw_lane_stats lanes[64], own = {0}, served = {0};
	uint64_t by_gpu = 0;
	struct lw_request requests[200];
	uint64_t wrote = 0, read = 0;
	int count;

	for (size_t i = 0; i < 200; i++) {
		requests[i] = request(&rig, i % 3 == 0 ? LW_READ : LW_WRITE, i * 50000, i * 50000,
				      1 + test_random(&seed) % 50000);
		*(i % 3 == 0 ? &read : &wrote) += requests[i].length;
	}
	complete(&rig, requests, 200);
	refused(&rig, (struct lw_request){.local = rig.near - 1, .segment = rig.segment, .length = 1, .op = LW_READ},
		LW_REASON_LOCAL_RANGE);
	assert_int_equal(lw_stats_engine(rig.engine, &whole), 0);
	assert_int_equal(whole.requests, 201);
	assert_int_equal(whole.failed, 1);
	assert_int_equal(whole.bytes, wrote + read);
	TEST_EVENTUALLY((lw_stats_engine(rig.engine, &whole), whole.live_batches == 0));
	for (int side = 0; side < 2; side++) {
		count = lw_stats_lanes(side == 0 ? rig.engine : rig.target, lanes, 64);
		assert_in_range(count, 0, 64);
		for (int i = 0; i < count; i++) {
			struct lw_lane_stats *sum = lanes[i].target != 0 ? &served : &own;

			if ((side == 1) != (lanes[i].target != 0)) /* one side's lanes once */
				continue;
			assert_int_equal(lanes[i].inflight_slices, 0);
			assert_int_equal(lanes[i].inflight_bytes, 0);
			sum->tx_bytes += lanes[i].tx_bytes;
			sum->rx_bytes += lanes[i].rx_bytes;
			sum->slices += lanes[i].slices;
			sum->errors += lanes[i].errors;
			sum->connects += lanes[i].connects;
			if (strcmp(lanes[i].driver, lw_desc_gpu_names[vendor_of(fixture)]) == 0)
				by_gpu += lanes[i].slices;
		}
	}
	assert_int_equal(own.tx_bytes, wrote);
	assert_int_equal(own.rx_bytes, read);
	/* Requests over a seam of two files, or over regions of RDMA, are cut. */
	if (files_of(rig.fixture) == 1 && strstr(rig.fixture->drivers, "rdma_max_mr_bytes") == NULL)
		assert_int_equal(own.slices, 200);
	assert_int_equal(own.errors, 0);
	if (is_gpus(fixture)) /* and not through bounce buffers of the host's */
		assert_int_equal(by_gpu, 200);
	if (strstr(rig.fixture->name, "tcp") != NULL) {
		assert_int_equal(served.tx_bytes, read);
		assert_int_equal(served.rx_bytes, wrote);
		assert_int_equal(served.slices, 200);
		whole.size = sizeof(whole);
		assert_int_equal(lw_stats_engine(rig.target, &whole), 0);
		assert_int_equal(whole.served_bytes, wrote + read);
	}
	tear_down(&rig);
}

/* The process' runtimes from now on are the stand-in, before an engine looks for real ones. */
static void use_standin(void)
{
	const struct lw_gpu *gpu;
	char why[300] = "";

	for (int v = 0; v < LW_GPU_VENDORS; v++)
		if (lw_gpu_open((enum lw_gpu_vendor)v, test_gpu_library(), &gpu, why, sizeof(why)) != 0)
			print_message("no stand-in: %s\n", why);
	test_gpu_own_imports(true); /* peers that are reached as if they were outside are not */
	test_gpu_delay(20);
}

#define CASE(f)                                                                                                        \
	{                                                                                                              \
#f, f                                                                                                  \
	}

/* Which fixtures the test is about without an argument, and with a word as its argument, of which there is a script
 * each, since all together take long on a busy machine. */
static const char *group_of(const struct fixture *fixture)
{
	if (is_gpus(fixture))
		return "nvlink";
	if (fixture->gpus != HOSTS)
		return strstr(fixture->drivers, "=tcp") != NULL ? "gpus_tcp" : "gpus";
	return is_files(fixture) ? "files" : "";
}

/* An argument is a pattern of names, as "null*", or one of the words "files", "gpus", "gpus_tcp" and "nvlink". */
int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		CMUnitTestFunction run;
	} cases[] = {
		CASE(test_transfer_every_op_and_size_exact),
		CASE(test_submit_batches_exact),
		CASE(test_submit_of_blocks_that_follow_each_other_exact),
		CASE(test_submit_over_four_lanes_exact),
		CASE(test_submit_in_short_slices_exact),
		CASE(test_submit_with_busy_workers_exact),
		CASE(test_submit_after_workers_slept_exact),
		CASE(test_submit_that_nobody_polls_is_done_at_the_first_look),
		CASE(test_submit_driven_by_caller_exact),
		CASE(test_submit_from_threads_to_two_workers_complete),
		CASE(test_submit_several_times_to_a_batch_counts_on),
		CASE(test_submit_of_no_bytes_completes),
		CASE(test_local_range_not_registered_refused),
		CASE(test_remote_range_not_offered_refused_and_untouched),
		CASE(test_range_withdrawn_by_peer_refused_others_exact),
		CASE(test_range_over_seams_of_both_sides_exact),
		CASE(test_cancel_while_target_is_frozen_ends_canceled),
		CASE(test_segment_cancel_while_target_is_frozen_ends_canceled),
		CASE(test_deadline_while_target_is_frozen_times_out),
		CASE(test_segment_close_while_target_is_frozen_ends_canceled),
		CASE(test_cancel_at_once_each_task_ends_one_way),
		CASE(test_segment_close_at_once_everything_ends),
		CASE(test_unregister_local_under_load_memory_may_go),
		CASE(test_unregister_remote_under_load_memory_may_go),
		CASE(test_stats_lanes_add_up),
	};
	enum { CASES = sizeof(cases) / sizeof(cases[0]) };
	static struct CMUnitTest tests[CASES * FIXTURES];
	static char names[CASES * FIXTURES][128];
	const char *group = argc > 1 ? argv[1] : "";
	bool files = strcmp(group, "files") == 0;
	bool gpus = strncmp(group, "gpus", 4) == 0 || strcmp(group, "nvlink") == 0;
	bool pattern = group[0] != '\0' && !files && !gpus;
	size_t count = 0;

	seed = test_seed();
	if (gpus || pattern)
		use_standin();
	/* Without hardware the devices are this program's own; in the lab they are the kernel's. */
	if (!files && !has_rdma())
		test_nics(2);
	if (pattern)
		cmocka_set_test_filter(argv[1]);
	for (size_t f = 0; f < FIXTURES; f++) {
		if (!pattern && strcmp(group_of(&fixtures[f]), group) != 0)
			continue;
		if (TEST_TSAN && fixtures[f].place >= OUTSIDE) {
			print_message("skipped: ThreadSanitizer sees nothing of \"%s\"\n", fixtures[f].name);
			continue;
		}
		for (size_t c = 0; c < CASES; c++, count++) {
			snprintf(names[count], sizeof(names[count]), "%s: %s", fixtures[f].name, cases[c].name);
			tests[count] = (struct CMUnitTest){.name = names[count],
							   .test_func = cases[c].run,
							   .initial_state = (void *)(uintptr_t)&fixtures[f]};
		}
	}
	return _cmocka_run_group_tests("conform", tests, count, NULL, NULL);
}
