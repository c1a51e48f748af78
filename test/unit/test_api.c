/* SPDX-License-Identifier: Apache-2.0 */
/* Every public function with arguments that it has to refuse, against what its header promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/engines.h"
#include "lib/engine.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The call gives exactly this error, and lw_last_error says something that is not what it said before. */
#define REFUSED(call, error)                                                                                           \
	do {                                                                                                           \
		lw_batch_free(NULL, 0);                                                                                \
		assert_int_equal(call, error);                                                                         \
		assert_true(strlen(lw_last_error()) > 10);                                                             \
	} while (0)

static struct {
	struct lw_engine *engine, *other;
	struct lw_channel *channel, *other_channel;
	lw_batch_t batch;
	lw_segment_t segment;
	lw_buffer_t buffer;
	char memory[8192];
} at;

static int open_all(void **state)
{
	(void)state;
	at.engine = test_engine(NULL);
	at.other = test_engine("poll=caller");
	assert_int_equal(lw_channel_open(at.engine, &at.channel), 0);
	assert_int_equal(lw_channel_open(at.other, &at.other_channel), 0);
	assert_int_equal(lw_batch_alloc(at.channel, 8, 0, NULL, &at.batch), 0);
	assert_int_equal(lw_segment_open(at.engine, "null://", 0, &at.segment), 0);
	at.buffer = test_register(at.engine, at.memory, 4096, LW_ACCESS_REMOTE);
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	assert_int_equal(lw_engine_close(at.engine), 0);
	assert_int_equal(lw_engine_close(at.other), 0);
	return 0;
}

/* What must stay as it was, whatever was tried. */
static void assert_unharmed(void)
{
	struct lw_engine_stats stats = {.size = sizeof(stats)};
	struct lw_batch_status status;
	lw_buffer_t found = 0;

	assert_int_equal(lw_batch_status(at.engine, at.batch, &status), 0);
	assert_int_equal(status.tasks, 0);
	assert_int_equal(lw_memory_find(at.engine, at.memory + 4095, &found), 0);
	assert_int_equal(found, at.buffer);
	assert_int_equal(lw_stats_engine(at.engine, &stats), 0);
	assert_int_equal(stats.live_batches, 1);
	assert_int_equal(stats.live_buffers, 1);
	assert_int_equal(stats.live_segments, 1);
	assert_int_equal(stats.live_channels, 1);
}

static struct lw_request request(void)
{
	return (struct lw_request){.local = at.memory, .segment = at.segment, .length = 100, .op = LW_WRITE};
}

/* Handles that are none: fixed ones, neighbours of a live one, and random ones. */
static size_t wrong_handles(uint64_t live, uint64_t *out)
{
	static const uint64_t fixed[] = {UINT64_MAX,
					 1,
					 2,
					 9999,
					 UINT64_MAX - 1,
					 UINT64_C(1) << 32,
					 UINT64_C(1) << 63,
					 UINT32_MAX,
					 UINT64_C(0xffffffff00000000)};
	uint64_t sequence = test_seed();
	size_t count = 0;

	for (size_t i = 0; i < COUNT(fixed); i++)
		out[count++] = fixed[i];
	for (int bit = 0; bit < 64; bit++)
		out[count++] = live ^ UINT64_C(1) << bit;
	for (int i = 1; i < 5; i++) {
		out[count++] = live + ((uint64_t)i << 32);
		out[count++] = live - ((uint64_t)i << 32);
	}
	while (count < 1000)
		out[count++] = test_random(&sequence);
	return count;
}

static void test_opts_init_wrong_arguments_are_refused(void **state)
{
	struct lw_engine_opts opts;

	(void)state;
	REFUSED(lw_engine_opts_init(NULL, sizeof(opts)), -EINVAL);
	REFUSED(lw_engine_opts_init(&opts, 0), -EINVAL);
	REFUSED(lw_engine_opts_init(&opts, sizeof(size_t) - 1), -EINVAL);
	memset(&opts, 0xff, sizeof(opts));
	assert_int_equal(lw_engine_opts_init(&opts, sizeof(opts)), 0);
	assert_int_equal(opts.size, sizeof(opts));
	assert_null(opts.name);
	assert_int_equal(opts.settings_count, 0);
	/* A program built with an older, shorter structure. */
	memset(&opts, 0xff, sizeof(opts));
	assert_int_equal(lw_engine_opts_init(&opts, offsetof(struct lw_engine_opts, metadata)), 0);
	assert_null(opts.name);
	assert_int_equal((uintptr_t)opts.metadata, UINTPTR_MAX);
}

static int try_open(const char *setting, const char *value)
{
	const struct lw_setting settings[] = {{"eal", "off"}, {setting, value}};
	struct lw_engine_opts opts = {.size = sizeof(opts), .settings = settings, .settings_count = 2};
	struct lw_engine *engine = (struct lw_engine *)(uintptr_t)0x5a5a;
	int error = lw_engine_open(&opts, &engine);

	assert_int_equal((uintptr_t)engine, 0x5a5a);
	return error;
}

static void test_engine_open_wrong_options_are_refused_and_named(void **state)
{
	static const char *const names[] = {":", "[::1", "a:b:c:99999", "127.0.0.1:70000", "[127.0.0.1]x", "a b:-1"};
	struct lw_engine_opts opts = {.size = 0};
	struct lw_engine *engine = NULL;
	int fds = test_fds(), threads = test_threads();

	(void)state;
	REFUSED(lw_engine_open(NULL, NULL), -EINVAL);
	REFUSED(lw_engine_open(&opts, &engine), -EINVAL);
	opts.size = SIZE_MAX;
	REFUSED(lw_engine_open(&opts, &engine), -EINVAL);
	REFUSED(try_open("workers", "0"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "workers"));
	REFUSED(try_open("ring_size", "17"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "ring_size"));
	REFUSED(try_open("no_such_thing", "1"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "no_such_thing"));
	REFUSED(try_open("drivers", "tcp,pigeon"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "pigeon"));
	REFUSED(try_open("cpus", "5-1"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "cpus"));
	REFUSED(try_open("cpus", "1023"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "1023"));
	REFUSED(try_open("metadata", "carrier://pigeon"), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "carrier://pigeon"));
	opts.size = sizeof(opts);
	opts.metadata = "etcd://";
	REFUSED(lw_engine_open(&opts, &engine), -EINVAL);
	opts.metadata = NULL;
	opts.config_file = "/nonexistent/lanewise.conf";
	REFUSED(lw_engine_open(&opts, &engine), -ENOENT);
	assert_non_null(strstr(lw_last_error(), "/nonexistent/lanewise.conf"));
	for (size_t i = 0; i < COUNT(names); i++) {
		REFUSED(test_engine_try(NULL, names[i], &engine), -EINVAL);
		assert_non_null(strstr(lw_last_error(), names[i]));
	}
	REFUSED(test_engine_try(NULL, "192.0.2.1", &engine), -EADDRNOTAVAIL);
	assert_non_null(strstr(lw_last_error(), "192.0.2.1"));
	assert_null(engine);
	assert_int_equal(test_fds(), fds);
	assert_int_equal(test_threads(), threads);
}

static void test_engine_open_no_free_port_is_addrinuse(void **state)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fds = test_fds();
	struct lw_engine *engine = NULL;
	socklen_t length = sizeof(addr);
	char extra[80];

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &length), 0);
	snprintf(extra, sizeof(extra), "port_min=%u port_max=%u", ntohs(addr.sin_port), ntohs(addr.sin_port));
	REFUSED(test_engine_try(extra, NULL, &engine), -EADDRINUSE);
	assert_null(engine);
	assert_int_equal(test_fds(), fds);
	close(fd);
}

static void test_engine_open_without_descriptors_fails_clean_at_each_step(void **state)
{
	struct rlimit limit, low;
	struct lw_engine *engine = NULL;
	int fds = test_fds(), threads = test_threads(), error = -1, failed = 0;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	for (int room = 0; error != 0 && room < 40; room++) {
		int highest = open("/dev/null", O_RDONLY | O_CLOEXEC);

		assert_true(highest >= 0);
		close(highest);
		low.rlim_cur = (rlim_t)(highest + room);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		error = test_engine_try(NULL, NULL, &engine);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
		if (error == 0)
			break;
		assert_int_equal(error, -EMFILE);
		assert_null(engine);
		assert_int_equal(test_fds(), fds);
		assert_int_equal(test_threads(), threads);
		failed++;
	}
	assert_int_equal(error, 0);
	assert_true(failed >= 4);
	assert_int_equal(lw_engine_close(engine), 0);
	assert_int_equal(test_fds(), fds);
}

static void test_engine_open_too_many_is_enfile(void **state)
{
	static struct lw_engine *engines[300];
	struct rlimit limit, high;
	size_t count = 0;
	int error = 0;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	high = limit;
	high.rlim_cur = high.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &high), 0);
	if (high.rlim_cur < 4096) {
		print_message("skipped: 256 engines need more than %llu descriptors\n",
			      (unsigned long long)high.rlim_cur);
		skip();
	}
	for (; error == 0 && count < COUNT(engines); count++) {
		error = test_engine_try("poll=caller max_batches=16 max_tasks=1024 max_lanes=16 max_slices=64 "
					"max_segments=2 max_channels=1 tcp_max_served=1",
					NULL, &engines[count]);
		if (error != 0)
			break;
	}
	assert_int_equal(error, -ENFILE);
	assert_int_equal(count, 256 - 2); /* two are open all the time */
	assert_true(strlen(lw_last_error()) > 10);
	while (count > 0)
		assert_int_equal(lw_engine_close(engines[--count]), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void test_engine_functions_null_arguments_are_refused(void **state)
{
	char *json = (char *)(uintptr_t)0x5a5a;

	(void)state;
	REFUSED(lw_engine_close(NULL), -EINVAL);
	REFUSED(lw_engine_progress(NULL), -EINVAL);
	REFUSED(lw_engine_progress(at.engine), -EINVAL);
	assert_null(lw_engine_name(NULL));
	assert_non_null(strstr(lw_engine_name(at.engine), "127.0.0.1:"));
	assert_null(lw_engine_address(NULL));
	assert_string_equal(lw_engine_address(at.engine), lw_engine_name(at.engine)); /* without a store */
	REFUSED(lw_engine_config_json(NULL, &json), -EINVAL);
	REFUSED(lw_engine_config_json(at.engine, NULL), -EINVAL);
	REFUSED(lw_engine_info_json(NULL, &json), -EINVAL);
	REFUSED(lw_engine_info_json(at.engine, NULL), -EINVAL);
	assert_int_equal((uintptr_t)json, 0x5a5a);
	assert_int_equal(lw_engine_config_json(at.engine, &json), 0);
	assert_int_equal(json[0], '[');
	free(json);
	assert_int_equal(lw_engine_info_json(at.engine, &json), 0);
	assert_int_equal(json[0], '{');
	free(json);
	assert_int_equal(lw_version(), LW_VERSION_MAJOR << 16 | LW_VERSION_MINOR << 8 | LW_VERSION_PATCH);
	assert_string_equal(lw_version_string(), LW_VERSION_STRING);
}

static void test_engine_progress_while_another_drives_is_busy(void **state)
{
	(void)state;
	assert_int_equal(lw_engine_progress(at.other), 0);
	atomic_store(&at.other->workers[0].driving, 1);
	REFUSED(lw_engine_progress(at.other), -EBUSY);
	atomic_store(&at.other->workers[0].driving, 0);
	assert_int_equal(lw_engine_progress(at.other), 0);
}

static void *last_error_of_a_fresh_thread(void *arg)
{
	(void)arg;
	return (void *)(uintptr_t)lw_last_error();
}

static void test_last_error_is_of_the_calling_thread(void **state)
{
	pthread_t thread;
	void *text;

	(void)state;
	REFUSED(lw_memory_register(at.engine, NULL, 1, NULL), -EINVAL);
	assert_int_equal(pthread_create(&thread, NULL, last_error_of_a_fresh_thread, NULL), 0);
	assert_int_equal(pthread_join(thread, &text), 0);
	assert_string_equal((const char *)text, "");
	assert_non_null(strstr(lw_last_error(), "list"));
}

static void test_channel_functions_wrong_arguments_are_refused(void **state)
{
	struct lw_channel *self = NULL, *again = NULL, *opened = NULL;
	struct lw_completion done[1];

	(void)state;
	REFUSED(lw_channel_self(NULL, &self), -EINVAL);
	REFUSED(lw_channel_self(at.engine, NULL), -EINVAL);
	REFUSED(lw_channel_open(NULL, &self), -EINVAL);
	REFUSED(lw_channel_open(at.engine, NULL), -EINVAL);
	REFUSED(lw_channel_close(NULL), -EINVAL);
	REFUSED(lw_channel_poll(NULL, done, 1), -EINVAL);
	REFUSED(lw_channel_poll(at.channel, NULL, 1), -EINVAL);
	REFUSED(lw_channel_poll(at.channel, done, 0), -EINVAL);
	REFUSED(lw_channel_wait(NULL, done, 1, 0), -EINVAL);
	REFUSED(lw_channel_wait(at.channel, NULL, 1, 0), -EINVAL);
	REFUSED(lw_channel_wait(at.channel, done, 0, 0), -EINVAL);
	REFUSED(lw_channel_fd(NULL), -EINVAL);
	assert_null(self);
	assert_int_equal(lw_channel_self(at.other, &self), 0);
	assert_int_equal(lw_channel_self(at.other, &again), 0);
	assert_ptr_equal(self, again);
	REFUSED(lw_channel_close(self), -EINVAL);
	assert_int_equal(lw_channel_open(at.engine, &opened), 0);
	assert_ptr_not_equal(opened, at.channel);
	assert_int_equal(lw_channel_close(opened), 0);
	REFUSED(lw_channel_close(opened), -EINVAL);
	assert_unharmed();
}

static void test_channel_closed_takes_nothing_any_more(void **state)
{
	struct lw_channel *opened = NULL;
	struct lw_request one = request();
	struct lw_completion done[1];
	lw_batch_t batch = 77;

	(void)state;
	assert_int_equal(lw_channel_open(at.engine, &opened), 0);
	assert_int_equal(lw_channel_close(opened), 0);
	REFUSED(lw_submit(opened, at.batch, &one, 1), -EINVAL);
	REFUSED(lw_batch_alloc(opened, 1, 0, NULL, &batch), -EINVAL);
	REFUSED(lw_channel_poll(opened, done, 1), -EINVAL);
	REFUSED(lw_channel_wait(opened, done, 1, 0), -EINVAL);
	REFUSED(lw_channel_fd(opened), -EINVAL);
	assert_int_equal(batch, 77);
	assert_unharmed();
}

static void test_channel_open_more_than_max_channels_is_enospc(void **state)
{
	struct lw_channel *opened[64] = {NULL}, *self = NULL;
	struct lw_engine *engine = test_engine("max_channels=3");

	(void)state;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 3; i++)
			assert_int_equal(lw_channel_open(engine, &opened[i]), 0);
		REFUSED(lw_channel_open(engine, &opened[3]), -ENOSPC);
		assert_non_null(strstr(lw_last_error(), "max_channels"));
		REFUSED(lw_channel_self(engine, &self), -ENOSPC);
		assert_null(opened[3]);
		assert_null(self);
		for (int i = 0; i < 3; i++)
			assert_int_equal(lw_channel_close(opened[i]), 0);
	}
	assert_int_equal(lw_channel_self(engine, &self), 0);
	assert_int_equal(lw_engine_close(engine), 0);
}

static void test_channel_fd_without_descriptors_is_emfile(void **state)
{
	struct lw_completion done[1];
	struct rlimit limit, low;
	int probe, fd;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	probe = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(probe >= 0);
	close(probe);
	low.rlim_cur = (rlim_t)probe;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	fd = lw_channel_fd(at.channel);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(fd, -EMFILE);
	fd = lw_channel_fd(at.channel);
	assert_true(fd >= 0);
	assert_int_equal(lw_channel_fd(at.channel), fd);
	assert_int_equal(lw_channel_poll(at.channel, done, 1), 0);
}

static void test_batch_alloc_wrong_arguments_are_refused(void **state)
{
	lw_batch_t batch = 77;

	(void)state;
	REFUSED(lw_batch_alloc(NULL, 1, 0, NULL, &batch), -EINVAL);
	REFUSED(lw_batch_alloc(at.channel, 1, 0, NULL, NULL), -EINVAL);
	REFUSED(lw_batch_alloc(at.channel, LW_BATCH_MAX_TASKS + 1, 0, NULL, &batch), -EINVAL);
	REFUSED(lw_batch_alloc(at.channel, UINT32_MAX, 0, NULL, &batch), -EINVAL);
	REFUSED(lw_batch_alloc(at.channel, 1, 2, NULL, &batch), -EINVAL);
	REFUSED(lw_batch_alloc(at.channel, 1, UINT32_MAX, NULL, &batch), -EINVAL);
	REFUSED(lw_batch_alloc(at.channel, LW_BATCH_MAX_TASKS, 0, NULL, &batch), -ENOBUFS); /* more than there are */
	assert_int_equal(batch, 77);
	assert_unharmed();
}

/* One of six requests is wrong, at each position: nothing of the submit remains. */
static void assert_submit_refused(struct lw_request wrong, int error)
{
	for (size_t i = 0; i < 6; i++) {
		struct lw_request list[6];

		for (size_t k = 0; k < 6; k++)
			list[k] = request();
		list[i] = wrong;
		REFUSED(lw_submit(at.channel, at.batch, list, 6), error);
	}
	assert_unharmed();
}

static void test_submit_one_wrong_request_refuses_all(void **state)
{
	struct lw_request one;

	(void)state;
	one = request(), one.op = 2;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.op = 255;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.priority = 2;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.reserved = 1;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.timeout_ms = 86400001;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.timeout_ms = UINT32_MAX;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.local = NULL;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.offset = UINT64_MAX - 50;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.length = UINT64_MAX;
	assert_submit_refused(one, -EINVAL);
	one = request(), one.local = (void *)(UINTPTR_MAX - 50); // NOLINT(performance-no-int-to-ptr)
	assert_submit_refused(one, -EINVAL);
	one = request(), one.segment = 9999;
	assert_submit_refused(one, -EBADF);
	one = request(), one.segment = UINT64_MAX;
	assert_submit_refused(one, -EBADF);
}

static void test_submit_wrong_arguments_are_refused(void **state)
{
	struct lw_request list[9], one = request();

	(void)state;
	for (size_t i = 0; i < 9; i++)
		list[i] = request();
	REFUSED(lw_submit(NULL, at.batch, &one, 1), -EINVAL);
	REFUSED(lw_submit(at.channel, at.batch, NULL, 1), -EINVAL);
	REFUSED(lw_submit(at.channel, at.batch, list, 9), -ENOSPC);
	REFUSED(lw_submit(at.channel, at.batch, list, SIZE_MAX), -ENOSPC);
	REFUSED(lw_submit(at.channel, at.batch, list, (size_t)UINT32_MAX + 2), -ENOSPC);
	REFUSED(lw_submit(at.other_channel, at.batch, &one, 1), -EBADF);
	assert_int_equal(lw_submit(at.channel, at.batch, NULL, 0), 0);
	assert_unharmed();
}

/* Capacity 8: 5, then 4 are too many, then 3 fit. */
static void test_submit_over_capacity_leaves_no_trace(void **state)
{
	struct lw_request list[8];
	struct lw_batch_status status;
	lw_batch_t batch;

	(void)state;
	for (size_t i = 0; i < 8; i++)
		list[i] = request();
	assert_int_equal(lw_batch_alloc(at.channel, 8, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(at.channel, batch, list, 5), 0);
	REFUSED(lw_submit(at.channel, batch, list, 4), -ENOSPC);
	assert_int_equal(lw_submit(at.channel, batch, list, 3), 0);
	REFUSED(lw_submit(at.channel, batch, list, 1), -ENOSPC);
	status = test_wait(at.engine, batch);
	assert_int_equal(status.tasks, 8);
	assert_int_equal(status.state, LW_COMPLETED);
	assert_int_equal(status.bytes, 800);
	assert_int_equal(lw_batch_free(at.engine, batch), 0);
	assert_unharmed();
}

static void assert_batch_is_bad(struct lw_engine *engine, struct lw_channel *channel, lw_batch_t batch)
{
	const struct lw_note note = {.name = "n", .name_size = 1, .text = "t", .text_size = 1};
	struct lw_batch_status status = {.state = 77};
	struct lw_task_status task = {.state = 77};
	struct lw_request one = {.local = at.memory, .length = 1};
	char text[] = "as it was";

	REFUSED(lw_submit(channel, batch, &one, 1), -EBADF);
	REFUSED(lw_submit(channel, batch, NULL, 0), -EBADF);
	REFUSED(lw_submit_notify(channel, batch, &one, 1, &note), -EBADF);
	REFUSED(lw_batch_status(engine, batch, &status), -EBADF);
	REFUSED(lw_task_status(engine, batch, 0, &task), -EBADF);
	REFUSED(lw_task_reason(engine, batch, 0, text, sizeof(text)), -EBADF);
	REFUSED(lw_batch_wait(engine, batch, 0, &status), -EBADF);
	REFUSED(lw_batch_wait(engine, batch, UINT32_MAX, NULL), -EBADF);
	REFUSED(lw_task_cancel(engine, batch, 0), -EBADF);
	REFUSED(lw_batch_cancel(engine, batch), -EBADF);
	REFUSED(lw_batch_free(engine, batch), -EBADF);
	assert_int_equal(status.state, 77);
	assert_int_equal(task.state, 77);
	assert_string_equal(text, "as it was");
}

static void test_batch_handles_made_up_get_ebadf(void **state)
{
	uint64_t handles[1024];
	size_t count = wrong_handles(at.batch, handles);

	(void)state;
	assert_batch_is_bad(at.engine, at.channel, 0);
	for (size_t i = 0; i < count; i++)
		assert_batch_is_bad(at.engine, at.channel, handles[i]);
	assert_unharmed();
}

static void test_batch_handles_freed_or_foreign_get_ebadf(void **state)
{
	lw_batch_t freed, next, foreign;

	(void)state;
	assert_int_equal(lw_batch_alloc(at.channel, 1, 0, NULL, &freed), 0);
	assert_int_equal(lw_batch_free(at.engine, freed), 0);
	assert_batch_is_bad(at.engine, at.channel, freed);
	assert_int_equal(lw_batch_alloc(at.channel, 1, 0, NULL, &next), 0); /* the same slot again */
	assert_int_not_equal(next, freed);
	assert_batch_is_bad(at.engine, at.channel, freed);
	assert_int_equal(lw_batch_free(at.engine, next), 0);
	assert_int_equal(lw_batch_alloc(at.other_channel, 1, 0, NULL, &foreign), 0);
	assert_batch_is_bad(at.engine, at.channel, foreign);
	assert_batch_is_bad(at.other, at.other_channel, at.batch);
	assert_int_equal(lw_batch_free(at.other, foreign), 0);
	assert_unharmed();
}

static _Atomic int frees_well, frees_bad, go;

static void *free_at_once(void *arg)
{
	int error;

	while (atomic_load(&go) == 0)
		;
	error = lw_batch_free(at.engine, *(lw_batch_t *)arg);
	if (error == 0)
		atomic_fetch_add(&frees_well, 1);
	else if (error == -EBADF)
		atomic_fetch_add(&frees_bad, 1);
	return NULL;
}

static void test_batch_free_by_two_threads_at_once_succeeds_once(void **state)
{
	(void)state;
	for (int round = 0; round < 50; round++) {
		pthread_t thread[2];
		lw_batch_t batch;

		assert_int_equal(lw_batch_alloc(at.channel, 100, 0, NULL, &batch), 0);
		atomic_store(&frees_well, 0);
		atomic_store(&frees_bad, 0);
		atomic_store(&go, 0);
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&thread[i], NULL, free_at_once, &batch), 0);
		atomic_store(&go, 1);
		for (int i = 0; i < 2; i++)
			pthread_join(thread[i], NULL);
		assert_int_equal(atomic_load(&frees_well), 1);
		assert_int_equal(atomic_load(&frees_bad), 1);
	}
	assert_unharmed();
}

static void test_batch_functions_wrong_arguments_are_refused(void **state)
{
	struct lw_batch_status status;
	struct lw_task_status task;
	struct lw_request one = request();
	lw_batch_t batch;
	char text[300];

	(void)state;
	REFUSED(lw_batch_status(NULL, at.batch, &status), -EINVAL);
	REFUSED(lw_batch_status(at.engine, at.batch, NULL), -EINVAL);
	REFUSED(lw_task_status(NULL, at.batch, 0, &task), -EINVAL);
	REFUSED(lw_task_status(at.engine, at.batch, 0, NULL), -EINVAL);
	REFUSED(lw_task_reason(NULL, at.batch, 0, text, sizeof(text)), -EINVAL);
	REFUSED(lw_task_reason(at.engine, at.batch, 0, NULL, 1), -EINVAL);
	REFUSED(lw_batch_wait(NULL, at.batch, 0, NULL), -EINVAL);
	REFUSED(lw_task_cancel(NULL, at.batch, 0), -EINVAL);
	REFUSED(lw_batch_cancel(NULL, at.batch), -EINVAL);
	REFUSED(lw_batch_free(NULL, at.batch), -EINVAL);
	REFUSED(lw_task_status(at.engine, at.batch, 0, &task), -ERANGE);
	assert_int_equal(lw_batch_cancel(at.engine, at.batch), 0); /* nothing to cancel is no error */
	assert_int_equal(lw_batch_wait(at.engine, at.batch, 0, NULL), 0);

	assert_int_equal(lw_batch_alloc(at.channel, 8, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(at.channel, batch, &one, 1), 0);
	test_wait(at.engine, batch);
	REFUSED(lw_task_status(at.engine, batch, 1, &task), -ERANGE);
	REFUSED(lw_task_status(at.engine, batch, UINT32_MAX, &task), -ERANGE);
	REFUSED(lw_task_reason(at.engine, batch, 1, text, sizeof(text)), -ERANGE);
	REFUSED(lw_task_cancel(at.engine, batch, 1), -ERANGE);
	REFUSED(lw_task_cancel(at.engine, batch, UINT32_MAX), -ERANGE);
	assert_int_equal(lw_task_cancel(at.engine, batch, 0), 0);
	assert_int_equal(lw_task_status(at.engine, batch, 0, &task), 0);
	assert_int_equal(task.state, LW_COMPLETED);
	assert_int_equal(lw_batch_free(at.engine, batch), 0);
	assert_unharmed();
}

static void test_task_reason_is_cut_to_its_size(void **state)
{
	struct lw_request one = request();
	char whole[300], cut[10];
	lw_batch_t batch;
	int length;

	(void)state;
	one.local = at.memory + 5000; /* not registered */
	assert_int_equal(lw_batch_alloc(at.channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_submit(at.channel, batch, &one, 1), 0);
	assert_int_equal(test_wait(at.engine, batch).failed, 1);
	length = lw_task_reason(at.engine, batch, 0, whole, sizeof(whole));
	assert_int_equal(length, strlen(whole));
	assert_non_null(strstr(whole, "null://"));
	assert_non_null(strstr(whole, "100 bytes"));
	assert_non_null(strstr(whole, lw_reason_string(LW_REASON_LOCAL_RANGE)));
	assert_int_equal(lw_task_reason(at.engine, batch, 0, cut, sizeof(cut)), length);
	assert_int_equal(strlen(cut), sizeof(cut) - 1);
	assert_memory_equal(cut, whole, sizeof(cut) - 1);
	assert_int_equal(lw_task_reason(at.engine, batch, 0, NULL, 0), length);
	assert_int_equal(lw_batch_free(at.engine, batch), 0);
}

static void assert_register_refused(struct lw_memory wrong, int error)
{
	char *spare = malloc(3 * 4096);

	assert_non_null(spare);
	for (size_t i = 0; i < 3; i++) {
		struct lw_memory list[3];
		lw_buffer_t ids[3] = {77, 77, 77};

		for (size_t k = 0; k < 3; k++)
			list[k] = (struct lw_memory){.addr = spare + k * 4096, .length = 4096};
		list[i] = wrong;
		REFUSED(lw_memory_register(at.engine, list, 3, ids), error);
		for (size_t k = 0; k < 3; k++)
			assert_int_equal(ids[k], 77);
	}
	assert_unharmed();
	free(spare);
}

static void test_memory_register_one_wrong_buffer_refuses_all(void **state)
{
	static const char long_location[] = "0123456789012345678901234567890123456789012345678901234567890123";
	const struct lw_memory good = {.addr = at.memory + 4096, .length = 10};
	struct lw_memory wrong;

	(void)state;
	wrong = good, wrong.addr = NULL;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.length = 0;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.length = ((size_t)1 << 47) + 1;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.length = SIZE_MAX;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.addr = (void *)(UINTPTR_MAX - 5); // NOLINT(performance-no-int-to-ptr)
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.access = 4;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.access = UINT32_MAX;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.reserved = 1;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.location = long_location;
	assert_register_refused(wrong, -EINVAL);
	wrong = good, wrong.addr = at.memory + 4095;
	assert_register_refused(wrong, -EEXIST);
	assert_non_null(strstr(lw_last_error(), "buffer 2"));
}

static void assert_buffer_is_bad(struct lw_engine *engine, lw_buffer_t buffer)
{
	REFUSED(lw_memory_unregister(engine, &buffer, 1, 0), -EBADF);
}

static void test_memory_functions_wrong_arguments_are_refused(void **state)
{
	struct lw_memory good = {.addr = at.memory + 4096, .length = 10};
	struct lw_engine *fresh = test_engine(NULL);
	lw_buffer_t id = 77, foreign;
	uint64_t handles[1024];
	size_t count = wrong_handles(at.buffer, handles);

	(void)state;
	REFUSED(lw_memory_register(NULL, &good, 1, &id), -EINVAL);
	REFUSED(lw_memory_register(at.engine, NULL, 1, &id), -EINVAL);
	REFUSED(lw_memory_register(at.engine, &good, 0, &id), -EINVAL);
	REFUSED(lw_memory_register(at.engine, &good, 1, NULL), -EINVAL);
	REFUSED(lw_memory_unregister(NULL, &at.buffer, 1, 0), -EINVAL);
	REFUSED(lw_memory_unregister(at.engine, NULL, 1, 0), -EINVAL);
	REFUSED(lw_memory_unregister(at.engine, &at.buffer, 0, 0), -EINVAL);
	REFUSED(lw_memory_find(NULL, at.memory, &id), -EINVAL);
	REFUSED(lw_memory_find(at.engine, at.memory, NULL), -EINVAL);
	REFUSED(lw_memory_find(at.engine, at.memory + 4096, &id), -ENOENT);
	REFUSED(lw_memory_find(at.engine, NULL, &id), -ENOENT);
	assert_int_equal(id, 77);
	for (size_t i = 0; i < count; i++)
		assert_buffer_is_bad(at.engine, handles[i]);
	assert_buffer_is_bad(at.engine, 0);
	assert_buffer_is_bad(fresh, at.buffer); /* which has no buffer at all */
	foreign = test_register(at.other, at.memory, 4096, LW_ACCESS_REMOTE);
	assert_buffer_is_bad(at.engine, foreign);
	assert_buffer_is_bad(at.other, at.buffer);
	assert_int_equal(lw_memory_unregister(at.other, &foreign, 1, 0), 0);
	assert_buffer_is_bad(at.other, foreign);
	assert_unharmed();
	assert_int_equal(lw_engine_close(fresh), 0);
}

static void assert_segment_is_bad(struct lw_engine *engine, struct lw_channel *channel, lw_batch_t batch,
				  lw_segment_t segment)
{
	const struct lw_note note = {.name = "n", .name_size = 1, .text = "t", .text_size = 1};
	struct lw_request one = {.local = at.memory, .segment = segment, .length = 1};
	struct lw_segment_range range = {.addr = 77};

	REFUSED(lw_submit(channel, batch, &one, 1), -EBADF);
	REFUSED(lw_submit_notify(channel, batch, &one, 1, &note), -EBADF);
	REFUSED(lw_notify(engine, segment, &note, 100), -EBADF);
	REFUSED(lw_segment_ranges(engine, segment, &range, 1), -EBADF);
	REFUSED(lw_segment_probe(engine, segment, 100), -EBADF);
	REFUSED(lw_segment_cancel(engine, segment), -EBADF);
	REFUSED(lw_segment_close(engine, segment), -EBADF);
	assert_int_equal(range.addr, 77);
}

static void test_segment_handles_wrong_ones_get_ebadf(void **state)
{
	struct lw_segment_range range;
	lw_segment_t segment, foreign;
	lw_batch_t other_batch;
	uint64_t handles[1024];
	size_t count = wrong_handles(at.segment, handles);

	(void)state;
	for (size_t i = 0; i < count; i++)
		assert_segment_is_bad(at.engine, at.channel, at.batch, handles[i]);
	assert_int_equal(lw_batch_alloc(at.other_channel, 1, 0, NULL, &other_batch), 0);
	assert_segment_is_bad(at.other, at.other_channel, other_batch, at.segment);
	assert_int_equal(lw_segment_open(at.other, "null://", 0, &foreign), 0);
	assert_segment_is_bad(at.engine, at.channel, at.batch, foreign);
	assert_int_equal(lw_segment_close(at.other, foreign), 0);
	assert_segment_is_bad(at.other, at.other_channel, other_batch, foreign);
	assert_int_equal(lw_batch_free(at.other, other_batch), 0);
	/* A second reference, given back: the first is good still; the own segment can't be closed. */
	assert_int_equal(lw_segment_open(at.engine, "null://", 0, &segment), 0);
	assert_int_equal(segment, at.segment);
	assert_int_equal(lw_segment_close(at.engine, segment), 0);
	assert_int_equal(lw_segment_close(at.engine, LW_SEGMENT_LOCAL), 0);
	assert_int_equal(lw_segment_close(at.engine, LW_SEGMENT_LOCAL), 0);
	assert_int_equal(lw_segment_ranges(at.engine, LW_SEGMENT_LOCAL, &range, 1), 1);
	assert_int_equal(lw_segment_ranges(at.engine, at.segment, &range, 1), 0);
	assert_unharmed();
}

static void test_segment_functions_wrong_arguments_are_refused(void **state)
{
	static const char *const names[] = {"",           "/", "///", ":", ":1", "[::1", "::1]:5", "127.0.0.1:70000",
					    "127.0.0.1:x"};
	struct lw_segment_range range;
	lw_segment_t segment = 77;

	(void)state;
	REFUSED(lw_segment_open(NULL, "null://", 0, &segment), -EINVAL);
	REFUSED(lw_segment_open(at.engine, NULL, 0, &segment), -EINVAL);
	REFUSED(lw_segment_open(at.engine, "null://", 0, NULL), -EINVAL);
	for (size_t i = 0; i < COUNT(names); i++)
		REFUSED(lw_segment_open(at.engine, names[i], 0, &segment), -EINVAL);
	REFUSED(lw_segment_close(NULL, at.segment), -EINVAL);
	REFUSED(lw_segment_ranges(NULL, at.segment, &range, 1), -EINVAL);
	REFUSED(lw_segment_ranges(at.engine, at.segment, NULL, 1), -EINVAL);
	assert_int_equal(lw_segment_ranges(at.engine, LW_SEGMENT_LOCAL, NULL, 0), 1);
	REFUSED(lw_segment_probe(NULL, at.segment, 0), -EINVAL);
	REFUSED(lw_segment_cancel(NULL, at.segment), -EINVAL);
	assert_int_equal(segment, 77);
	assert_unharmed();
}

/* A listening socket on 127.0.0.1 that is never served. */
static int silent_listener(char *name, size_t size)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 16), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &length), 0);
	snprintf(name, size, "127.0.0.1:%u", ntohs(addr.sin_port));
	return fd;
}

static void test_segment_open_peers_that_do_not_answer_say_which_way(void **state)
{
	lw_segment_t segment = 77;
	char name[64];
	int fd = silent_listener(name, sizeof(name));
	uint64_t begin_ms = test_now_ms();

	(void)state;
	REFUSED(lw_segment_open(at.engine, name, 100, &segment), -ETIMEDOUT);
	assert_non_null(strstr(lw_last_error(), name));
	assert_in_range(test_now_ms() - begin_ms, 90, 3000);
	close(fd);
	REFUSED(lw_segment_open(at.engine, name, 1000, &segment), -ECONNREFUSED);
	assert_non_null(strstr(lw_last_error(), name));
	assert_int_equal(segment, 77);
	assert_unharmed();
}

static void test_segment_open_limits_and_drivers(void **state)
{
	struct lw_engine *small = test_engine("max_segments=2"), *deaf = test_engine("drivers=null");
	struct lw_engine *tcp = test_engine("drivers=tcp");
	lw_segment_t segment = 77;

	(void)state;
	assert_int_equal(lw_segment_open(small, "null://", 0, &segment), 0);
	segment = 77;
	REFUSED(lw_segment_open(small, lw_engine_name(at.engine), 0, &segment), -ENOSPC);
	assert_non_null(strstr(lw_last_error(), "max_segments"));
	REFUSED(lw_segment_open(deaf, lw_engine_name(at.engine), 0, &segment), -ENOTSUP);
	REFUSED(lw_segment_open(tcp, "null://", 0, &segment), -ENOTSUP);
	assert_int_equal(segment, 77);
	assert_int_equal(lw_engine_close(small), 0);
	assert_int_equal(lw_engine_close(deaf), 0);
	assert_int_equal(lw_engine_close(tcp), 0);
}

static void test_notify_wrong_notes_are_refused(void **state)
{
	static char big[524288 + 2];
	const struct {
		struct lw_note note;
		int error;
	} table[] = {
		{{.name = NULL, .name_size = 1, .text = "t", .text_size = 1}, -EINVAL},
		{{.name = "n", .name_size = 1, .text = NULL, .text_size = 1}, -EINVAL},
		{{.name = big, .name_size = 65537, .text = "t", .text_size = 1}, -EMSGSIZE},
		{{.name = "n", .name_size = 1, .text = big, .text_size = 524289}, -EMSGSIZE},
		{{.name = "n", .name_size = 1, .text = big, .text_size = SIZE_MAX}, -EMSGSIZE},
	};
	struct lw_note good = {.name = "n", .name_size = 1, .text = "t", .text_size = 1}, *note = NULL;
	struct lw_request one = request();

	(void)state;
	memset(big, 'x', sizeof(big) - 1);
	for (size_t i = 0; i < COUNT(table); i++) {
		REFUSED(lw_notify(at.engine, LW_SEGMENT_LOCAL, &table[i].note, 0), table[i].error);
		REFUSED(lw_submit_notify(at.channel, at.batch, &one, 1, &table[i].note), table[i].error);
	}
	REFUSED(lw_notify(NULL, LW_SEGMENT_LOCAL, &good, 0), -EINVAL);
	REFUSED(lw_notify(at.engine, LW_SEGMENT_LOCAL, NULL, 0), -EINVAL);
	REFUSED(lw_submit_notify(NULL, at.batch, &one, 1, &good), -EINVAL);
	REFUSED(lw_submit_notify(at.channel, at.batch, NULL, 1, &good), -EINVAL);
	REFUSED(lw_submit_notify(at.channel, at.batch, &one, 0, &good), -EINVAL);
	REFUSED(lw_submit_notify(at.channel, at.batch, &one, 1, NULL), -EINVAL);
	REFUSED(lw_note_poll(NULL, &note), -EINVAL);
	REFUSED(lw_note_poll(at.engine, NULL), -EINVAL);
	assert_int_equal(lw_note_poll(at.engine, &note), 0);
	assert_null(note);
	lw_note_free(NULL);
	assert_unharmed();
}

/* A refused submit with a note leaves no note behind: the next one finds room for its own. */
static void test_submit_notify_refused_drops_its_note(void **state)
{
	struct lw_note first = {.name = "n", .name_size = 1, .text = "first", .text_size = 5};
	struct lw_note second = {.name = "n", .name_size = 1, .text = "second", .text_size = 6}, *note = NULL;
	struct lw_request one = {.local = at.memory, .offset = (uint64_t)(uintptr_t)at.memory, .length = 0};
	lw_batch_t batch;

	(void)state;
	assert_int_equal(lw_batch_alloc(at.channel, 2, 0, NULL, &batch), 0);
	one.reserved = 1;
	REFUSED(lw_submit_notify(at.channel, batch, &one, 1, &first), -EINVAL);
	one.reserved = 0;
	assert_int_equal(lw_submit_notify(at.channel, batch, &one, 1, &second), 0);
	TEST_EVENTUALLY(lw_note_poll(at.engine, &note) == 1);
	assert_string_equal(note->text, "second");
	assert_int_equal(note->text_size, 6);
	lw_note_free(note);
	assert_int_equal(lw_batch_free(at.engine, batch), 0);
	assert_int_equal(lw_note_poll(at.engine, &note), 0);
}

static void test_stats_wrong_arguments_are_refused(void **state)
{
	struct lw_engine_stats stats = {.size = 0};
	struct lw_lane_stats lane;

	(void)state;
	REFUSED(lw_stats_engine(NULL, &stats), -EINVAL);
	REFUSED(lw_stats_engine(at.engine, NULL), -EINVAL);
	REFUSED(lw_stats_engine(at.engine, &stats), -EINVAL);
	REFUSED(lw_stats_lanes(NULL, &lane, 1), -EINVAL);
	REFUSED(lw_stats_lanes(at.engine, NULL, 1), -EINVAL);
	assert_true(lw_stats_lanes(at.engine, NULL, 0) >= 0);
	/* A shorter structure is filled as far as it goes. */
	stats.size = offsetof(struct lw_engine_stats, failed);
	stats.failed = 77;
	assert_int_equal(lw_stats_engine(at.engine, &stats), 0);
	assert_int_equal(stats.size, offsetof(struct lw_engine_stats, failed));
	assert_int_equal(stats.failed, 77);
}

static void test_every_call_after_close_says_so(void **state)
{
	struct lw_engine *engine = test_engine(NULL);
	struct lw_note good = {.name = "n", .name_size = 1, .text = "t", .text_size = 1}, *note = NULL;
	struct lw_memory memory = {.addr = at.memory, .length = 10};
	struct lw_engine_stats stats = {.size = sizeof(stats)};
	struct lw_request one = {.local = at.memory, .length = 1};
	struct lw_channel *channel, *self, *out = NULL;
	struct lw_batch_status status;
	struct lw_task_status task;
	struct lw_completion done[1];
	struct lw_lane_stats lane;
	lw_segment_t segment;
	lw_buffer_t buffer;
	lw_batch_t batch, fresh;
	char text[10], *json = NULL;

	(void)state;
	assert_int_equal(lw_channel_open(engine, &channel), 0);
	assert_int_equal(lw_channel_self(engine, &self), 0);
	assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_segment_open(engine, "null://", 0, &segment), 0);
	buffer = test_register(engine, at.memory, 10, 0);
	assert_int_equal(lw_engine_close(engine), 0);

	REFUSED(lw_engine_close(engine), -EINVAL);
	REFUSED(lw_engine_progress(engine), -ESHUTDOWN);
	assert_null(lw_engine_name(engine));
	assert_null(lw_engine_address(engine));
	REFUSED(lw_engine_config_json(engine, &json), -ESHUTDOWN);
	REFUSED(lw_engine_info_json(engine, &json), -ESHUTDOWN);
	REFUSED(lw_channel_self(engine, &out), -ESHUTDOWN);
	REFUSED(lw_channel_open(engine, &out), -ESHUTDOWN);
	REFUSED(lw_channel_close(channel), -ESHUTDOWN);
	REFUSED(lw_channel_poll(channel, done, 1), -ESHUTDOWN);
	REFUSED(lw_channel_poll(self, done, 1), -ESHUTDOWN);
	REFUSED(lw_channel_wait(channel, done, 1, UINT32_MAX), -ESHUTDOWN);
	REFUSED(lw_channel_fd(channel), -ESHUTDOWN);
	REFUSED(lw_batch_alloc(channel, 1, 0, NULL, &fresh), -ESHUTDOWN);
	REFUSED(lw_submit(channel, batch, &one, 1), -ESHUTDOWN);
	REFUSED(lw_submit_notify(channel, batch, &one, 1, &good), -ESHUTDOWN);
	REFUSED(lw_batch_status(engine, batch, &status), -ESHUTDOWN);
	REFUSED(lw_task_status(engine, batch, 0, &task), -ESHUTDOWN);
	REFUSED(lw_task_reason(engine, batch, 0, text, sizeof(text)), -ESHUTDOWN);
	REFUSED(lw_batch_wait(engine, batch, UINT32_MAX, &status), -ESHUTDOWN);
	REFUSED(lw_task_cancel(engine, batch, 0), -ESHUTDOWN);
	REFUSED(lw_batch_cancel(engine, batch), -ESHUTDOWN);
	REFUSED(lw_batch_free(engine, batch), -ESHUTDOWN);
	REFUSED(lw_memory_register(engine, &memory, 1, &buffer), -ESHUTDOWN);
	REFUSED(lw_memory_unregister(engine, &buffer, 1, 0), -ESHUTDOWN);
	REFUSED(lw_memory_find(engine, at.memory, &buffer), -ESHUTDOWN);
	REFUSED(lw_notify(engine, LW_SEGMENT_LOCAL, &good, 0), -ESHUTDOWN);
	REFUSED(lw_note_poll(engine, &note), -ESHUTDOWN);
	REFUSED(lw_segment_open(engine, "null://", 0, &segment), -ESHUTDOWN);
	REFUSED(lw_segment_close(engine, segment), -ESHUTDOWN);
	REFUSED(lw_segment_ranges(engine, segment, NULL, 0), -ESHUTDOWN);
	REFUSED(lw_segment_probe(engine, segment, 0), -ESHUTDOWN);
	REFUSED(lw_segment_cancel(engine, segment), -ESHUTDOWN);
	REFUSED(lw_stats_lanes(engine, &lane, 1), -ESHUTDOWN);
	REFUSED(lw_stats_engine(engine, &stats), -ESHUTDOWN);
	assert_null(out);
	assert_null(json);
}

/* An engine that takes the place of a closed one knows none of its handles. */
static void test_handles_of_an_earlier_engine_get_ebadf(void **state)
{
	enum { CYCLES = 66000 };
	static lw_batch_t seen[CYCLES];
	struct lw_engine *engine = test_engine(NULL), *second;
	struct lw_channel *channel;
	lw_segment_t segment, segment2;
	lw_buffer_t buffer, buffer2;
	lw_batch_t batch;

	(void)state;
	assert_int_equal(lw_channel_open(engine, &channel), 0);
	for (size_t i = 0; i < CYCLES; i++) {
		assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &seen[i]), 0);
		assert_int_equal(lw_batch_free(engine, seen[i]), 0);
	}
	assert_int_equal(lw_segment_open(engine, "null://", 0, &segment), 0);
	buffer = test_register(engine, at.memory, 10, 0);
	assert_int_equal(lw_engine_close(engine), 0);
	second = test_engine(NULL);
	assert_ptr_equal(second, engine); /* what this test is about */
	assert_int_equal(lw_channel_open(second, &channel), 0);
	assert_int_equal(lw_batch_alloc(channel, 1, 0, NULL, &batch), 0);
	assert_int_equal(lw_segment_open(second, "null://", 0, &segment2), 0);
	buffer2 = test_register(second, at.memory, 10, 0);
	for (size_t i = 0; i < CYCLES; i++)
		if (lw_batch_free(second, seen[i]) != -EBADF)
			fail_msg("handle 0x%llx of cycle %zu fits again", (unsigned long long)seen[i], i);
	assert_segment_is_bad(second, channel, batch, segment);
	assert_buffer_is_bad(second, buffer);
	assert_int_equal(lw_batch_free(second, batch), 0);
	assert_int_equal(lw_segment_close(second, segment2), 0);
	assert_int_equal(lw_memory_unregister(second, &buffer2, 1, 0), 0);
	assert_int_equal(lw_engine_close(second), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_opts_init_wrong_arguments_are_refused),
		cmocka_unit_test(test_engine_open_wrong_options_are_refused_and_named),
		cmocka_unit_test(test_engine_open_no_free_port_is_addrinuse),
		cmocka_unit_test(test_engine_open_without_descriptors_fails_clean_at_each_step),
		cmocka_unit_test(test_engine_functions_null_arguments_are_refused),
		cmocka_unit_test(test_engine_progress_while_another_drives_is_busy),
		cmocka_unit_test(test_last_error_is_of_the_calling_thread),
		cmocka_unit_test(test_channel_functions_wrong_arguments_are_refused),
		cmocka_unit_test(test_channel_closed_takes_nothing_any_more),
		cmocka_unit_test(test_channel_open_more_than_max_channels_is_enospc),
		cmocka_unit_test(test_channel_fd_without_descriptors_is_emfile),
		cmocka_unit_test(test_batch_alloc_wrong_arguments_are_refused),
		cmocka_unit_test(test_submit_one_wrong_request_refuses_all),
		cmocka_unit_test(test_submit_wrong_arguments_are_refused),
		cmocka_unit_test(test_submit_over_capacity_leaves_no_trace),
		cmocka_unit_test(test_batch_handles_made_up_get_ebadf),
		cmocka_unit_test(test_batch_handles_freed_or_foreign_get_ebadf),
		cmocka_unit_test(test_batch_free_by_two_threads_at_once_succeeds_once),
		cmocka_unit_test(test_batch_functions_wrong_arguments_are_refused),
		cmocka_unit_test(test_task_reason_is_cut_to_its_size),
		cmocka_unit_test(test_memory_register_one_wrong_buffer_refuses_all),
		cmocka_unit_test(test_memory_functions_wrong_arguments_are_refused),
		cmocka_unit_test(test_segment_handles_wrong_ones_get_ebadf),
		cmocka_unit_test(test_segment_functions_wrong_arguments_are_refused),
		cmocka_unit_test(test_segment_open_peers_that_do_not_answer_say_which_way),
		cmocka_unit_test(test_segment_open_limits_and_drivers),
		cmocka_unit_test(test_notify_wrong_notes_are_refused),
		cmocka_unit_test(test_submit_notify_refused_drops_its_note),
		cmocka_unit_test(test_stats_wrong_arguments_are_refused),
		cmocka_unit_test(test_every_call_after_close_says_so),
		cmocka_unit_test(test_handles_of_an_earlier_engine_get_ebadf),
		cmocka_unit_test(test_engine_open_too_many_is_enfile),
	};

	return cmocka_run_group_tests(tests, open_all, close_all);
}
