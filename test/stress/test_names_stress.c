/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads open, register, unregister, tell and look one another up, through one metadata store and by asking: no
 * answer is another call's, and everything is gone at the end. The store is lwmeta, started here, or the one whose URL
 * is given as an argument. Also: many engines that begin at once in a range with hardly more ports than they need.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lanewise/lanewise.h>

#include "common/bytes.h"
#include "common/engines.h"

#define THREADS 32
#define ENGINES 4
#define RUN_MS 4000
#define AREA 65536u
#define MANY 64
#define MANY_PORTS 150
#define STRANGERS 20     /* of them are taken by others */
#define MANY_FIRST 31000 /* nobody's: below those of connections, above those of other tests */

static char url[256];

struct actor {
	pthread_t thread;
	struct lw_engine **engines;
	const char *const *names;
	unsigned char *area;
	uint32_t number;
	uint64_t random;
	uint32_t done;
};

static unsigned char
	*memory; /* AREA bytes an actor, which its engine offers now and then, and AREA an engine, always */

/* Whose range that is. */
static uint32_t owner_of(uint64_t addr)
{
	uint64_t area = (addr - (uint64_t)(uintptr_t)memory) / AREA;

	assert_true(addr >= (uint64_t)(uintptr_t)memory && area < THREADS + ENGINES);
	return (uint32_t)(area < THREADS ? area % ENGINES : area - THREADS);
}

/* Who opens a name sees what that engine offers, and nobody else's. */
static void look(struct actor *actor, struct lw_engine *engine, uint32_t other)
{
	struct lw_segment_range range[THREADS + ENGINES];
	lw_segment_t segment;
	int error = lw_segment_open(engine, actor->names[other], 20000, &segment);

	if (error != 0)
		fail_msg("open of %s: %s", actor->names[other], lw_last_error());
	error = lw_segment_ranges(engine, segment, range, THREADS + ENGINES);
	assert_in_range(error, 1, THREADS / ENGINES + 1);
	for (int i = 0; i < error; i++)
		assert_int_equal(owner_of(range[i].addr), other);
	assert_int_equal(lw_segment_close(engine, segment), 0);
}

static void offer(struct actor *actor, struct lw_engine *engine)
{
	struct lw_memory one = {.addr = actor->area, .length = AREA, .access = LW_ACCESS_REMOTE};
	lw_buffer_t buffer, found;

	if (lw_memory_register(engine, &one, 1, &buffer) != 0)
		fail_msg("register: %s", lw_last_error());
	assert_int_equal(lw_memory_find(engine, actor->area + 1, &found), 0);
	assert_true(found == buffer);
	if (lw_memory_unregister(engine, &buffer, 1, 20000) != 0)
		fail_msg("unregister: %s", lw_last_error());
}

static void tell(struct actor *actor, struct lw_engine *engine, uint32_t other)
{
	char text[40];
	const struct lw_note note = {
		.name = actor->names[other], .name_size = strlen(actor->names[other]), .text = text, .text_size = 8};
	struct lw_note *got;
	int error;

	snprintf(text, sizeof(text), "actor%03u", actor->number);
	error = lw_notify_name(engine, actor->names[other], &note, 20000);
	if (error != 0 && error != -ENOBUFS)
		fail_msg("a note to %s: %s", actor->names[other], lw_last_error());
	while (lw_note_poll(engine, &got) == 1)
		lw_note_free(got);
}

static void *act(void *arg)
{
	struct actor *actor = arg;
	struct lw_engine *engine = actor->engines[actor->number % ENGINES];
	uint64_t end_ms = test_now_ms() + RUN_MS;

	while (test_now_ms() < end_ms) {
		uint32_t other = (uint32_t)(test_random(&actor->random) % ENGINES);

		switch (test_random(&actor->random) % 4) {
		case 0:
		case 1:
			look(actor, engine, other);
			break;
		case 2:
			offer(actor, engine);
			break;
		default:
			tell(actor, engine, other);
			break;
		}
		actor->done++;
	}
	return NULL;
}

static void hammer(const char *metadata)
{
	struct lw_engine *engines[ENGINES];
	struct actor actors[THREADS];
	const char *names[ENGINES];
	char settings[400], own[ENGINES][32];
	uint32_t done = 0;
	int fds, threads;

	memory = test_map((THREADS + ENGINES) * AREA, NULL);
	lw_engine_close(test_engine("drivers=tcp")); /* what the first engine of a process leaves */
	fds = test_fds();
	threads = test_threads();
	snprintf(settings, sizeof(settings),
		 "drivers=tcp metadata=%s address=127.0.0.1 store_lease_s=3 store_timeout_ms=20000 "
		 "handshake_timeout_ms=20000 log_level=error",
		 metadata);
	for (uint32_t i = 0; i < ENGINES; i++) {
		snprintf(own[i], sizeof(own[i]), "%s%u", strcmp(metadata, "P2PHANDSHAKE") == 0 ? "127.0.0." : "engine/",
			 i + 1);
		if (test_engine_try(settings, own[i], &engines[i]) != 0)
			fail_msg("no engine: %s", lw_last_error());
		test_register(engines[i], memory + (THREADS + i) * AREA, AREA, LW_ACCESS_REMOTE);
		names[i] = lw_engine_name(engines[i]);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		actors[i] = (struct actor){.engines = engines,
					   .names = names,
					   .area = memory + i * AREA,
					   .number = i,
					   .random = test_seed() + i};
		assert_int_equal(pthread_create(&actors[i].thread, NULL, act, &actors[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(actors[i].thread, NULL);
		done += actors[i].done;
	}
	print_message("%s: %u calls\n", metadata, done);
	for (int i = 0; i < ENGINES; i++)
		assert_int_equal(lw_engine_close(engines[i]), 0);
	TEST_EVENTUALLY(test_fds() <= fds && test_threads() <= threads);
	test_unmap(memory, (THREADS + ENGINES) * AREA);
}

static void test_names_in_a_store_many_threads(void **state)
{
	(void)state;
	hammer(url);
}

static void test_names_by_asking_many_threads(void **state)
{
	(void)state;
	hammer("P2PHANDSHAKE");
}

static struct lw_engine *many[MANY];
static pthread_barrier_t barrier;

static void *begin_one(void *arg)
{
	struct lw_engine **engine = arg;
	char settings[160];

	snprintf(settings, sizeof(settings),
		 "drivers=tcp port_min=%d port_max=%d max_tasks=1024 max_batches=16 workers=1 "
		 "handshake_timeout_ms=20000",
		 MANY_FIRST, MANY_FIRST + MANY_PORTS - 1);
	pthread_barrier_wait(&barrier);
	if (test_engine_try(settings, "127.0.0.1", engine) != 0)
		fail_msg("no engine: %s", lw_last_error());
	return NULL;
}

/* A listener of somebody else's. */
static int take_port(int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port),
				 .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, 8) != 0)
		fail_msg("port %d can't be taken: %s", port, strerror(errno));
	return fd;
}

static void test_many_engines_begin_at_once_all_distinct_all_reachable(void **state)
{
	pthread_t threads[MANY];
	int strangers[STRANGERS];
	lw_segment_t segment;

	(void)state;
	for (int i = 0; i < STRANGERS; i++)
		strangers[i] = take_port(MANY_FIRST + i * MANY_PORTS / STRANGERS);
	pthread_barrier_init(&barrier, NULL, MANY);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, begin_one, &many[i]), 0);
	for (int i = 0; i < MANY; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < MANY; i++) {
		for (int k = 0; k < i; k++)
			assert_string_not_equal(lw_engine_name(many[i]), lw_engine_name(many[k]));
		segment = test_segment(many[(i + 1) % MANY], many[i]);
		assert_int_equal(lw_segment_probe(many[(i + 1) % MANY], segment, 20000), 0);
	}
	for (int i = 0; i < MANY; i++)
		assert_int_equal(lw_engine_close(many[i]), 0);
	pthread_barrier_destroy(&barrier);
	/* Nobody came to a stranger's port. */
	for (int i = 0; i < STRANGERS; i++) {
		assert_int_equal(accept4(strangers[i], NULL, NULL, SOCK_NONBLOCK), -1);
		assert_int_equal(errno, EAGAIN);
		close(strangers[i]);
	}
}

/* Starts lwmeta, which ends with this process, and reads where it is. */
static void start_store(void)
{
	char program[300], line[200];
	int out[2];
	size_t have = 0;
	ssize_t got;
	pid_t pid;

	snprintf(program, sizeof(program), "%s/lwmeta", getenv("LW_BUILD_DIR") != NULL ? getenv("LW_BUILD_DIR") : ".");
	if (access(program, X_OK) != 0 || pipe(out) != 0) {
		printf("%s is not there; set LW_BUILD_DIR, or give the URL of a store\n", program);
		exit(77);
	}
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		execl(program, "lwmeta", "--port", "0", "--listen", "127.0.0.1", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	while (have + 1 < sizeof(line) && memchr(line, '\n', have) == NULL) {
		got = read(out[0], line + have, sizeof(line) - 1 - have);
		if (got <= 0)
			break;
		have += (size_t)got;
	}
	line[have] = '\0';
	close(out[0]);
	if (sscanf(line, "lwmeta: ready url=%255s", url) != 1) {
		printf("lwmeta did not start: %s\n", line);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_in_a_store_many_threads),
		cmocka_unit_test(test_names_by_asking_many_threads),
		cmocka_unit_test(test_many_engines_begin_at_once_all_distinct_all_reachable),
	};

	if (argc > 1)
		snprintf(url, sizeof(url), "%s", argv[1]);
	else
		start_store();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
