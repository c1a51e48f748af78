/* SPDX-License-Identifier: Apache-2.0 */
/* The host's process: its end by signals and by exit, its forks, its environment. Each case is a process of its own. */
#include "compat/host.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- What the processes do. ---- */

static transfer_engine_t open_some(void)
{
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);

	if (engine == NULL)
		_exit(99);
	return engine;
}

static void say(const char *line)
{
	puts(line);
	fflush(stdout);
}

static void sleep_long(void)
{
	for (int i = 0; i < 300; i++)
		usleep(100000);
}

static int run_graceful(void)
{
	enableGracefulShutdown(open_some());
	enableGracefulShutdown(open_some());
	say("ready");
	sleep_long();
	return 98;
}

/* SIGINT is ignored before; that stays. SIGTERM after it ends the process. */
static int run_ignored(void)
{
	signal(SIGINT, SIG_IGN);
	enableGracefulShutdown(open_some());
	raise(SIGINT);
	usleep(50000);
	say("ready");
	sleep_long();
	return 98;
}

/* At exit the peers see it go: its port is closed before the process has ended. */
static void probe_at_exit(void)
{
	const char *name = getenv("OWN_NAME");
	transfer_engine_t other = open_some();

	/* Handlers run in reverse order: this one was entered first, so the engine is destroyed. */
	_exit(openSegment(other, name) == -1 ? 7 : 8);
}

static int run_exit(void)
{
	char name[128];
	transfer_engine_t engine = open_some();

	getLocalIpAndPort(engine, name, sizeof(name));
	setenv("OWN_NAME", name, 1);
	atexit(probe_at_exit);
	enableGracefulShutdown(engine);
	return 0;
}

/* A child gets errors from the parent's engine, may have its own, dies by the signal at once, and its exit does the
 * parent's engine no harm. */
static int run_fork(void)
{
	transfer_engine_t engine = open_some(), other;
	char name[128];
	int status;
	pid_t pid;

	enableGracefulShutdown(engine);
	if (getLocalIpAndPort(engine, name, sizeof(name)) != 0)
		return 1;
	pid = fork();
	if (pid == 0) {
		if (allocateBatchID(engine, 1) != INVALID_BATCH || openSegment(engine, name) != -1 ||
		    registerLocalMemory(engine, &status, sizeof(status), "*", 1) == 0)
			_exit(1);
		other = open_some();
		if (openSegment(other, name) != 1)
			_exit(2);
		destroyTransferEngine(other);
		exit(3);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
		return 2;
	pid = fork();
	if (pid == 0) {
		raise(SIGTERM);
		_exit(4);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 128 + SIGTERM)
		return 3;
	if (probePeerAliveByID(engine, LOCAL_SEGMENT) != 0)
		return 4;
	destroyTransferEngine(engine);
	return 0;
}

static int run_create(void)
{
	destroyTransferEngine(open_some());
	return 0;
}

/* Says in its exit status whether the driver shm is on. */
static int run_drivers(void)
{
	transfer_engine_t engine = open_some();

	return installTransport(engine, "shm", NULL) != NULL ? 11 : 12;
}

/* With MC_FORCE_TCP tcp is installed though nobody asks. */
static int run_force_tcp(void)
{
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);
	char name[128];

	return engine != NULL && getLocalIpAndPort(engine, name, sizeof(name)) == 0 && openSegment(engine, name) == 0
		       ? 21
		       : 22;
}

/* Prints the port that it got. */
static int run_port(void)
{
	int port = getRpcPort(open_some());

	fprintf(stderr, "port %d\n", port);
	return 0;
}

/* The library is loaded, used, let go and loaded again by a program that was not linked with it: the same file here. */
static int run_dlopen(void)
{
	for (int i = 0; i < 3; i++) {
		void *library = dlopen("libtransfer_engine.so", RTLD_NOW | RTLD_LOCAL);
		void *native = dlopen("liblanewise.so.0", RTLD_NOW | RTLD_LOCAL);
		transfer_engine_t (*create)(const char *, const char *, const char *, uint64_t, int);
		void (*destroy)(transfer_engine_t);
		transfer_engine_t engine;

		if (library == NULL || native == NULL)
			return 1;
		*(void **)&create = dlsym(library, "createTransferEngine");
		*(void **)&destroy = dlsym(library, "destroyTransferEngine");
		if (create == NULL || destroy == NULL || dlsym(library, "te_of") != NULL)
			return 2;
		engine = create("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
		if (engine == NULL)
			return 3;
		destroy(engine);
		dlclose(library);
		dlclose(native);
	}
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void);
} runs[] = {
	{"graceful", run_graceful}, {"ignored", run_ignored},     {"exit", run_exit},
	{"fork", run_fork},         {"create", run_create},       {"drivers", run_drivers},
	{"port", run_port},         {"force_tcp", run_force_tcp}, {"dlopen", run_dlopen},
};

/* ---- What is asked of them. ---- */

static char text[16384];

static void assert_exit(int status, int expected)
{
	if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
		fail_msg("status 0x%x instead of exit %d: %s", status, expected, text);
}

static void test_enableGracefulShutdown_signals_end_the_process_in_order(void **state)
{
	(void)state;
	assert_exit(host_run("graceful", NULL, SIGTERM, text, sizeof(text)), 128 + SIGTERM);
	assert_exit(host_run("graceful", NULL, SIGINT, text, sizeof(text)), 128 + SIGINT);
	assert_exit(host_run("ignored", NULL, SIGTERM, text, sizeof(text)), 128 + SIGTERM);
}

static void test_enableGracefulShutdown_destroys_at_exit(void **state)
{
	(void)state;
	assert_exit(host_run("exit", NULL, 0, text, sizeof(text)), 7);
}

static void test_fork_child_and_parent_are_apart(void **state)
{
	(void)state;
	if (HOST_SANITIZED) {
		print_message("not run: a sanitizer's runtime does not bear a fork beside threads\n");
		skip();
	}
	assert_exit(host_run("fork", NULL, 0, text, sizeof(text)), 0);
}

static void test_library_can_be_loaded_beside_the_native_one(void **state)
{
	(void)state;
	assert_exit(host_run("dlopen", NULL, 0, text, sizeof(text)), 0);
}

static unsigned lines(const char *with)
{
	unsigned count = 0;

	for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
		const char *found = strstr(line, with);

		count += found != NULL && found < line + strcspn(line, "\n");
		if (line[strcspn(line, "\n")] == '\0')
			break;
	}
	return count;
}

static void test_environment_misspelt_names_and_bad_values_are_one_warning_each(void **state)
{
	const char *const variables[] = {"MC_TCP_BIND_ADRESS=127.0.0.1",
					 "MC_NO_SUCH_THING=1",
					 "LW_TIMEOUT=1",
					 "MC_SLICE_TIMEOUT=0",
					 "MC_HANDSHAKE_CONNECT_TIMEOUT=5s",
					 "MC_MAX_RPC_PORT=70000",
					 "MC_LOG_LEVEL=LOUD",
					 "MC_TCP_ADMISSION_TIMEOUT_MS=-1",
					 NULL};
	static const char *const names[] = {"MC_TCP_BIND_ADRESS is",
					    "MC_TCP_BIND_ADDRESS?",
					    "MC_NO_SUCH_THING",
					    "LW_TIMEOUT",
					    "MC_SLICE_TIMEOUT=\"0\"",
					    "timeout_ms = \"30000\"",
					    "=\"5s\"",
					    "=\"70000\"",
					    "=\"LOUD\"",
					    "=\"-1\""};

	(void)state;
	assert_exit(host_run("create", variables, 0, text, sizeof(text)), 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (lines(names[i]) != 1)
			fail_msg("%u lines with %s:\n%s", lines(names[i]), names[i], text);
	assert_int_equal(lines("warning"), 8);
}

static void test_environment_names_without_a_meaning_are_known(void **state)
{
	const char *const variables[] = {"MC_GID_INDEX=3",
					 "MC_TE_METRIC=1",
					 "MC_MTU=1024",
					 "MC_HIP_ANYTHING=1",
					 "MC_TCP_ENABLE_CONNECTION_POOL=1",
					 "MC_SLICE_TIMEOUT=5",
					 "MC_HANDSHAKE_CONNECT_TIMEOUT=3",
					 "MC_TCP_ADMISSION_TIMEOUT_MS=100",
					 "MC_STORE_CLUSTER_ID=x",
					 "MC_TRANSFER_TIMEOUT=30",
					 NULL};

	(void)state;
	assert_exit(host_run("create", variables, 0, text, sizeof(text)), 0);
	assert_string_equal(text, "");
}

static void test_environment_variables_have_their_effect(void **state)
{
	const char *const force[] = {"MC_FORCE_TCP=", NULL};
	const char *const ports[] = {"MC_MIN_RPC_PORT=16990", "MC_MAX_PRC_PORT=16999", NULL};
	const char *const upside_down[] = {"MC_MIN_RPC_PORT=16000", "MC_MAX_RPC_PORT=15500", NULL};
	const char *const verbose[] = {"MC_LOG_LEVEL=INFO", NULL};
	int port;

	(void)state;
	assert_exit(host_run("drivers", NULL, 0, text, sizeof(text)), 11);
	assert_exit(host_run("drivers", force, 0, text, sizeof(text)), 12);
	assert_exit(host_run("force_tcp", force, 0, text, sizeof(text)), 21);
	assert_exit(host_run("force_tcp", NULL, 0, text, sizeof(text)), 22);
	assert_exit(host_run("port", ports, 0, text, sizeof(text)), 0);
	assert_int_equal(sscanf(text, "port %d", &port), 1);
	assert_in_range(port, 16990, 16999);
	assert_exit(host_run("create", upside_down, 0, text, sizeof(text)), 0);
	assert_int_equal(lines("warning"), 1);
	assert_exit(host_run("create", verbose, 0, text, sizeof(text)), 0);
	assert_true(lines("info") >= 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_enableGracefulShutdown_signals_end_the_process_in_order),
		cmocka_unit_test(test_enableGracefulShutdown_destroys_at_exit),
		cmocka_unit_test(test_fork_child_and_parent_are_apart),
		cmocka_unit_test(test_library_can_be_loaded_beside_the_native_one),
		cmocka_unit_test(test_environment_misspelt_names_and_bad_values_are_one_warning_each),
		cmocka_unit_test(test_environment_names_without_a_meaning_are_known),
		cmocka_unit_test(test_environment_variables_have_their_effect),
	};

	host_quiet();
	for (size_t i = 0; argc == 2 && i < sizeof(runs) / sizeof(runs[0]); i++)
		if (strcmp(argv[1], runs[i].name) == 0)
			return runs[i].run();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
