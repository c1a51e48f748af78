/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/host.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_log.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/log.h"
#include "lib/sched/worker.h"

#define LCORES_MAX 16 /* each is a parked thread and four descriptors */
#define EAL_HEAP_MB "16"

static struct {
	pthread_mutex_t lock;
	bool tried;
	bool eal;
	char why[160];
	uint32_t lcores;
	struct {
		unsigned int id;
		int cpu;
		bool taken;
	} lcore[LCORES_MAX];
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The EAL would set the host's syslog ident and make a directory under /var/run. The build hands its calls to these. */
void __wrap_openlog(const char *ident, int option, int facility);
void __wrap_syslog(int priority, const char *format, ...);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_pipe(int fds[2]);
int __wrap_epoll_create(int size);
int __wrap_timerfd_create(int clock, int flags);
int __real_timerfd_create(int clock, int flags);
int __wrap_memfd_create(const char *name, unsigned int flags);
int __real_memfd_create(const char *name, unsigned int flags);

void __wrap_openlog(const char *ident, int option, int facility)
{
	(void)ident;
	(void)option;
	(void)facility;
}

void __wrap_syslog(int priority, const char *format, ...)
{
	(void)priority;
	(void)format;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
	(void)path;
	(void)mode;
	errno = EROFS;
	return -1;
}

/* Programs that the host starts must not inherit the EAL's descriptors. */
int __wrap_pipe(int fds[2])
{
	return pipe2(fds, O_CLOEXEC);
}

int __wrap_epoll_create(int size)
{
	(void)size;
	return epoll_create1(EPOLL_CLOEXEC);
}

int __wrap_timerfd_create(int clock, int flags)
{
	return __real_timerfd_create(clock, flags | TFD_CLOEXEC);
}

int __wrap_memfd_create(const char *name, unsigned int flags)
{
	return __real_memfd_create(name, flags | MFD_CLOEXEC);
}

/* What the EAL has to say goes to our log at level debug, line by line. */
static ssize_t eal_line(void *cookie, const char *text, size_t size)
{
	size_t shown = size;

	(void)cookie;
	while (shown > 0 && text[shown - 1] == '\n')
		shown--;
	if (shown > 0)
		lw_log(LW_LOG_DEBUG, "%.*s", (int)(shown < 512 ? shown : 512), text);
	return (ssize_t)size;
}

static void allowed_cpus(cpu_set_t *set)
{
	CPU_ZERO(set);
	if (sched_getaffinity(0, sizeof(*set), set) != 0)
		CPU_SET(0, set);
}

/* "0@(a,b),1@a,2@b": the main lcore may run anywhere, since nothing runs on it; one more for each CPU. */
static void format_lcores(char *text, size_t size, const cpu_set_t *set)
{
	size_t at = 0;
	const char *comma = "";

	at += (size_t)snprintf(text, size, "0@(");
	for (int cpu = 0; cpu < CPU_SETSIZE && at + 32 < size; cpu++) {
		if (!CPU_ISSET((size_t)cpu, set))
			continue;
		at += (size_t)snprintf(text + at, size - at, "%s%d", comma, cpu);
		comma = ",";
	}
	at += (size_t)snprintf(text + at, size - at, ")");
	host.lcores = 0;
	for (int cpu = 0; cpu < CPU_SETSIZE && host.lcores < LCORES_MAX && at + 32 < size; cpu++) {
		if (!CPU_ISSET((size_t)cpu, set))
			continue;
		host.lcore[host.lcores].id = host.lcores + 1;
		host.lcore[host.lcores].cpu = cpu;
		host.lcores++;
		at += (size_t)snprintf(text + at, size - at, ",%u@%d", host.lcores, cpu);
	}
}

/* The EAL pins its caller, so the caller is a thread that ends right after. */
static void *start_eal(void *arg)
{
	static const cookie_io_functions_t sink = {.write = eal_line};
	static char lcores[16384];
	char *argv[] = {"lanewise",
			"--no-huge",
			"--no-shconf",
			"-m",
			EAL_HEAP_MB,
			"--no-pci",
			"--no-telemetry",
			"--iova-mode=va",
			"--log-level=lib.eal:error",
			"--lcores",
			lcores,
			NULL};
	FILE *stream = fopencookie(NULL, "w", sink);
	cpu_set_t set;

	(void)arg;
	if (stream != NULL) {
		setvbuf(stream, NULL, _IOLBF, 1024);
		rte_openlog_stream(stream);
	}
	allowed_cpus(&set);
	format_lcores(lcores, sizeof(lcores), &set);
	if (rte_eal_init((int)(sizeof(argv) / sizeof(argv[0])) - 1, argv) < 0) {
		snprintf(host.why, sizeof(host.why), "it did not start: %s", rte_strerror(rte_errno));
		host.lcores = 0;
		return NULL;
	}
	host.eal = true;
	return NULL;
}

void lw_host_start(bool eal)
{
	sigset_t all, old;
	pthread_t thread;
	int error;

	pthread_mutex_lock(&host.lock);
	if (!eal && !host.tried)
		snprintf(host.why, sizeof(host.why), "switched off by the setting eal");
	if (host.tried || !eal)
		goto out;
	host.tried = true;
	host.why[0] = '\0';
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&thread, NULL, start_eal, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error == 0)
		pthread_join(thread, NULL);
	else
		snprintf(host.why, sizeof(host.why), "no thread to start it: %s", strerror(error));
	if (!host.eal)
		lw_log(LW_LOG_WARNING, "workers run as plain threads, without DPDK's EAL: %s", host.why);
out:
	pthread_mutex_unlock(&host.lock);
}

void lw_host_forked(void)
{
	static const char why[] = "this process is a fork of one that started it";

	pthread_mutex_init(&host.lock, NULL);
	if (host.eal)
		memcpy(host.why, why, sizeof(why));
	host.eal = false;
	host.lcores = 0;
}

void lw_host_facts_get(struct lw_host_facts *facts)
{
	cpu_set_t set;

	allowed_cpus(&set);
	pthread_mutex_lock(&host.lock);
	*facts = (struct lw_host_facts){.eal = host.eal, .lcores = host.lcores, .cpus = (uint32_t)CPU_COUNT(&set)};
	memcpy(facts->why, host.why, sizeof(facts->why));
	pthread_mutex_unlock(&host.lock);
}

int lw_host_parse_cpus(const char *list, cpu_set_t *set)
{
	CPU_ZERO(set);
	while (*list != '\0') {
		unsigned long first, last;
		char *end;

		if (*list < '0' || *list > '9')
			return -EINVAL;
		first = last = strtoul(list, &end, 10);
		if (*end == '-') {
			if (end[1] < '0' || end[1] > '9')
				return -EINVAL;
			last = strtoul(end + 1, &end, 10);
		}
		if (first > last || last >= CPU_SETSIZE || (*end != ',' && *end != '\0'))
			return -EINVAL;
		for (; first <= last; first++)
			CPU_SET(first, set);
		list = end + (*end == ',');
		if (*end == ',' && *list == '\0')
			return -EINVAL;
	}
	return 0;
}

/* Claims a CPU among all processes of this network namespace: the name of an abstract socket, which the kernel frees
 * with the process. Nothing is enforced; it only keeps two engines from choosing the same CPU. -1: claimed by another.
 */
static int claim_cpu(int cpu)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "lanewise-cpu-%d", cpu);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&name,
		 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* A CPU of the set, claimed if one can be. */
static int choose_cpu(const cpu_set_t *set, int *claim)
{
	int spare = -1;
	unsigned int skip = (unsigned int)getpid() % (unsigned int)CPU_COUNT(set);

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET((size_t)cpu, set))
			continue;
		*claim = claim_cpu(cpu);
		if (*claim >= 0)
			return cpu;
		if (skip-- == 0)
			spare = cpu;
	}
	return spare;
}

static void name_thread(const char *format, unsigned int number)
{
	char name[16];

	snprintf(name, sizeof(name), format, number);
	pthread_setname_np(pthread_self(), name);
}

static int lcore_main(void *arg)
{
	struct lw_worker *worker = arg;

	worker->thread = pthread_self();
	name_thread("lw-w%u", worker->index);
	lw_worker_run(worker);
	name_thread("lw-idle%u", rte_lcore_id());
	return 0;
}

static void *thread_main(void *arg)
{
	struct lw_worker *worker = arg;

	name_thread("lw-w%u", worker->index);
	lw_worker_run(worker);
	return NULL;
}

/* On a free lcore of that CPU. Under the lock. */
static bool launch_lcore(struct lw_worker *worker, int cpu)
{
	for (uint32_t i = 0; host.eal && i < host.lcores; i++) {
		if (host.lcore[i].cpu != cpu || host.lcore[i].taken)
			continue;
		if (rte_eal_remote_launch(lcore_main, worker, host.lcore[i].id) != 0)
			continue;
		host.lcore[i].taken = true;
		worker->on_lcore = true;
		worker->lcore = host.lcore[i].id;
		return true;
	}
	return false;
}

static int launch_thread(struct lw_worker *worker, int cpu)
{
	sigset_t every, old;
	pthread_attr_t attr;
	cpu_set_t set;
	int error;

	sigfillset(&every);
	pthread_attr_init(&attr);
	if (cpu >= 0) {
		CPU_ZERO(&set);
		CPU_SET((size_t)cpu, &set);
		pthread_attr_setaffinity_np(&attr, sizeof(set), &set);
	}
	pthread_sigmask(SIG_SETMASK, &every, &old);
	error = pthread_create(&worker->thread, &attr, thread_main, worker);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -error;
}

int lw_host_launch(struct lw_worker *worker, const char *list)
{
	cpu_set_t allowed, set;
	int cpu, error = 0;

	allowed_cpus(&allowed);
	set = allowed;
	if (list[0] != '\0') {
		cpu_set_t outside;

		if (lw_host_parse_cpus(list, &set) != 0)
			return lw_fail(-EINVAL, "setting cpus: \"%s\" is no list of CPUs such as 0-3,8", list);
		CPU_OR(&outside, &set, &allowed);
		if (!CPU_EQUAL(&outside, &allowed) || CPU_COUNT(&set) == 0)
			return lw_fail(-EINVAL, "setting cpus: \"%s\" names a CPU that this process may not use", list);
	}
	pthread_mutex_lock(&host.lock);
	worker->claim_fd = -1;
	cpu = choose_cpu(&set, &worker->claim_fd);
	/* Two workers on one CPU take turns anyway; one that was not claimed may move instead. */
	worker->cpu = worker->claim_fd >= 0 || list[0] != '\0' ? cpu : -1;
	if (worker->cpu < 0 || !worker->engine->config.eal || !launch_lcore(worker, worker->cpu))
		error = launch_thread(worker, worker->cpu);
	pthread_mutex_unlock(&host.lock);
	if (error == 0)
		worker->started = true;
	else
		lw_fail(error, "no thread for a worker: %s", strerror(-error));
	if (error != 0 && worker->claim_fd >= 0)
		close(worker->claim_fd);
	return error;
}

void lw_host_join(struct lw_worker *worker)
{
	if (!worker->started)
		return;
	if (worker->on_lcore) {
		rte_eal_wait_lcore(worker->lcore);
		/* The EAL has ordered us after the worker's end; ThreadSanitizer, which does not see into it, is told.
		 */
		(void)atomic_load_explicit(&worker->running, memory_order_acquire);
		pthread_mutex_lock(&host.lock);
		for (uint32_t i = 0; i < host.lcores; i++)
			if (host.lcore[i].id == worker->lcore)
				host.lcore[i].taken = false;
		pthread_mutex_unlock(&host.lock);
	} else {
		pthread_join(worker->thread, NULL);
	}
	if (worker->claim_fd >= 0)
		close(worker->claim_fd);
	worker->started = false;
}
