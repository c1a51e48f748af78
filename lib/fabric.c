/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fabric.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/log.h"

#define CLASS "/sys/class/nvme"
#define SUBSYSTEMS "/sys/class/nvme-subsystem"
#define NQN_MAX 224
#define LINE_BYTES 1024

/* What a URL says. */
struct target {
	char transport[8];
	char address[64];
	char port[8];
	char nqn[NQN_MAX];
	unsigned nsid;
};

struct lw_fabric {
	LIST_ENTRY(lw_fabric) link; /* those that were made here */
	uint32_t refs;              /* under the lock */
	char controller[32];        /* "nvme3" */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, lw_fabric) ours = LIST_HEAD_INITIALIZER(ours);

bool lw_is_fabric_url(const char *path)
{
	return strncmp(path, "nvme+tcp://", 11) == 0 || strncmp(path, "nvme+rdma://", 12) == 0;
}

/* The URL
 * -------------------------------------------------------------------------------------------------------------*/

/* What goes to the kernel in a line of options: no comma, nothing that does not print. */
static bool is_plain(const char *text)
{
	return text[strcspn(text, ", \t\r\n\"\\")] == '\0';
}

static bool take(char *out, size_t size, const char *from, size_t length)
{
	if (length == 0 || length >= size)
		return false;
	memcpy(out, from, length);
	out[length] = '\0';
	return true;
}

static bool parse_host(const char *host, size_t length, struct target *out)
{
	unsigned char binary[16];
	const char *port = NULL, *end = host + length, *close;

	if (host[0] == '[') {
		close = memchr(host, ']', length);
		if (close == NULL || !take(out->address, sizeof(out->address), host + 1, (size_t)(close - host - 1)) ||
		    inet_pton(AF_INET6, out->address, binary) != 1)
			return false;
		port = close + 1;
	} else {
		port = memchr(host, ':', length);
		port = port != NULL ? port : end;
		if (!take(out->address, sizeof(out->address), host, (size_t)(port - host)) ||
		    inet_pton(AF_INET, out->address, binary) != 1)
			return false;
	}
	if (port == end)
		return take(out->port, sizeof(out->port), "4420", 4);
	if (*port != ':' || !take(out->port, sizeof(out->port), port + 1, (size_t)(end - port - 1)))
		return false;
	return strspn(out->port, "0123456789") == strlen(out->port) && atoi(out->port) > 0 && atoi(out->port) < 65536;
}

static bool parse(const char *url, struct target *out)
{
	const char *host = strstr(url, "://") + 3, *slash = strchr(host, '/'), *query;
	char *end;

	*out = (struct target){.nsid = 1};
	if (slash == NULL || !take(out->transport, sizeof(out->transport), url + 5, strcspn(url + 5, ":")) ||
	    !parse_host(host, (size_t)(slash - host), out))
		return false;
	query = slash + 1 + strcspn(slash + 1, "?");
	if (!take(out->nqn, sizeof(out->nqn), slash + 1, (size_t)(query - slash - 1)) || !is_plain(out->nqn))
		return false;
	if (*query == '\0')
		return true;
	if (strncmp(query, "?nsid=", 6) != 0 || query[6] < '1' || query[6] > '9')
		return false;
	out->nsid = (unsigned)strtoul(query + 6, &end, 10);
	return *end == '\0';
}

/* What the kernel has
 * -------------------------------------------------------------------------------------------------*/

/* The first line of a file, without its end. False: there is none. */
static bool read_line(const char *path, char *out, size_t size)
{
	FILE *file = fopen(path, "re");
	bool ok = file != NULL && fgets(out, (int)size, file) != NULL;

	if (file != NULL)
		fclose(file);
	if (ok)
		out[strcspn(out, "\n")] = '\0';
	return ok;
}

static bool has(const char *controller, const char *attribute, const char *value)
{
	char path[300], text[300];

	snprintf(path, sizeof(path), CLASS "/%.64s/%s", controller, attribute);
	return read_line(path, text, sizeof(text)) && strcmp(text, value) == 0;
}

/* Whether a list "a=1,b=2" has the item. */
static bool lists(const char *list, const char *name, const char *value)
{
	char item[100];
	size_t length = (size_t)snprintf(item, sizeof(item), "%s=%s", name, value);

	for (; list[0] != '\0'; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ','))
		if (strncmp(list, item, length) == 0 && (list[length] == ',' || list[length] == '\0'))
			return true;
	return false;
}

/* A controller that is connected to the target already. */
static bool find_controller(const struct target *target, char controller[32])
{
	DIR *dir = opendir(CLASS);
	struct dirent *entry;
	bool found = false;

	while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
		char path[300], text[300];

		if (strncmp(entry->d_name, "nvme", 4) != 0 || strlen(entry->d_name) >= 32 ||
		    !has(entry->d_name, "transport", target->transport) ||
		    !has(entry->d_name, "subsysnqn", target->nqn) || has(entry->d_name, "state", "deleting"))
			continue;
		snprintf(path, sizeof(path), CLASS "/%.31s/address", entry->d_name);
		found = read_line(path, text, sizeof(text)) && lists(text, "traddr", target->address) &&
			lists(text, "trsvcid", target->port);
		if (found)
			snprintf(controller, 32, "%.31s", entry->d_name);
	}
	if (dir != NULL)
		closedir(dir);
	return found;
}

/* The block device of a namespace in a folder of sysfs, whose names begin with prefix: "nvme0n". */
static bool find_in(const char *folder, const char *prefix, unsigned nsid, char device[64])
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	bool found = false;

	while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
		char path[200], text[32];

		if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 || strlen(entry->d_name) > 32)
			continue;
		snprintf(path, sizeof(path), "/sys/block/%.32s/nsid", entry->d_name);
		if (!read_line(path, text, sizeof(text)) || strtoul(text, NULL, 10) != nsid)
			continue;
		snprintf(device, 64, "/dev/%.32s", entry->d_name);
		found = access(device, F_OK) == 0;
	}
	if (dir != NULL)
		closedir(dir);
	return found;
}

/* The block device of a controller's namespace: with native multipath it is the subsystem's. */
static bool find_device(const char *controller, unsigned nsid, char device[64])
{
	DIR *dir = opendir(SUBSYSTEMS);
	struct dirent *entry;
	char folder[300], prefix[64];
	bool found = false;

	while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
		if (strncmp(entry->d_name, "nvme-subsys", 11) != 0 || strlen(entry->d_name) > 32)
			continue;
		snprintf(folder, sizeof(folder), SUBSYSTEMS "/%.32s/%.31s", entry->d_name, controller);
		if (access(folder, F_OK) != 0)
			continue;
		snprintf(folder, sizeof(folder), SUBSYSTEMS "/%.32s", entry->d_name);
		snprintf(prefix, sizeof(prefix), "nvme%.20sn", entry->d_name + 11);
		found = find_in(folder, prefix, nsid, device);
	}
	if (dir != NULL)
		closedir(dir);
	if (found)
		return true;
	snprintf(folder, sizeof(folder), CLASS "/%.31s", controller);
	snprintf(prefix, sizeof(prefix), "%.31sn", controller);
	return find_in(folder, prefix, nsid, device);
}

/* Connecting and its end
 * -----------------------------------------------------------------------------------------------*/

/* Work for a thread lw-nvme, of which nobody knows how long the kernel takes. */
struct work {
	_Atomic uint32_t state; /* WAITED, DONE, LEFT: whoever comes second frees it */
	bool connect;
	int error;
	char controller[32];
	char line[LINE_BYTES]; /* the options of a connection */
};
enum { WAITED, DONE, LEFT };

static void delete_controller(const char *controller)
{
	char path[100];
	int fd;

	snprintf(path, sizeof(path), CLASS "/%.31s/delete_controller", controller);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "1", 1) != 1)
		lw_log(LW_LOG_WARNING, "%s could not be disconnected: %s", controller, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static int connect_now(struct work *work)
{
	int fd = open("/dev/nvme-fabrics", O_RDWR | O_CLOEXEC), error = 0;
	size_t length = strlen(work->line);
	unsigned instance;
	char answer[100];
	ssize_t got;

	if (fd < 0)
		return errno == ENOENT || errno == ENXIO ? -ENODEV : -errno;
	if (write(fd, work->line, length) != (ssize_t)length)
		error = -errno;
	got = error == 0 ? read(fd, answer, sizeof(answer) - 1) : 0;
	close(fd);
	if (error != 0)
		return error;
	answer[got > 0 ? got : 0] = '\0';
	if (sscanf(answer, "instance=%u", &instance) != 1)
		return -EIO;
	snprintf(work->controller, sizeof(work->controller), "nvme%u", instance);
	return 0;
}

static void *run(void *arg)
{
	struct work *work = arg;

	pthread_setname_np(pthread_self(), "lw-nvme");
	if (work->connect)
		work->error = connect_now(work);
	else
		delete_controller(work->controller);
	if (atomic_exchange(&work->state, DONE) == LEFT) {
		if (work->connect && work->error == 0)
			delete_controller(work->controller); /* nobody waits for it any more */
		free(work);
	}
	return NULL;
}

static void pause_ms(long ms)
{
	const struct timespec pause = {.tv_nsec = ms * 1000000};

	nanosleep(&pause, NULL);
}

/* Has the work done by a thread, and waits for it. 0: it is done, and the caller's to free; -ETIMEDOUT, -EAGAIN. */
static int have_done(struct work *work, uint64_t end_ns)
{
	sigset_t all, before;
	uint32_t waited = WAITED;
	pthread_t thread;
	int error;

	atomic_init(&work->state, WAITED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, run, work);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error != 0) {
		free(work);
		return -EAGAIN;
	}
	pthread_detach(thread);
	while (atomic_load(&work->state) == WAITED) {
		if (lw_now_ns() >= end_ns && atomic_compare_exchange_strong(&work->state, &waited, LEFT))
			return -ETIMEDOUT;
		pause_ms(1);
	}
	return 0;
}

static void add_host(char *line, const char *option, const char *path)
{
	char text[NQN_MAX];
	size_t length = strlen(line);

	if (read_line(path, text, sizeof(text)) && text[0] != '\0' && is_plain(text))
		snprintf(line + length, LINE_BYTES - length, ",%s=%s", option, text);
}

static int connect_to(const struct target *target, uint64_t end_ns, char controller[32])
{
	struct work *work = calloc(1, sizeof(*work));
	int error;

	if (work == NULL)
		return -ENOMEM;
	work->connect = true;
	snprintf(work->line, sizeof(work->line),
		 "transport=%s,traddr=%s,trsvcid=%s,nqn=%s,fast_io_fail_tmo=5,ctrl_loss_tmo=600,reconnect_delay=1,"
		 "keep_alive_tmo=5",
		 target->transport, target->address, target->port, target->nqn);
	add_host(work->line, "hostnqn", "/etc/nvme/hostnqn");
	add_host(work->line, "hostid", "/etc/nvme/hostid");
	error = have_done(work, end_ns);
	if (error != 0)
		return error;
	error = work->error;
	snprintf(controller, 32, "%s", work->controller);
	free(work);
	return error;
}

static struct lw_fabric *find_ours(const char *controller)
{
	struct lw_fabric *fabric;

	LIST_FOREACH(fabric, &ours, link)
	if (strcmp(fabric->controller, controller) == 0)
		return fabric;
	return NULL;
}

/* Holds the controller; made: it was connected here, for this. NULL: no memory. */
static struct lw_fabric *hold(const char *controller, bool made)
{
	struct lw_fabric *fabric;

	pthread_mutex_lock(&lock);
	fabric = find_ours(controller);
	if (fabric == NULL)
		fabric = calloc(1, sizeof(*fabric));
	if (fabric != NULL && fabric->refs == 0) {
		if (made) { /* a stranger's is not ended by us */
			snprintf(fabric->controller, sizeof(fabric->controller), "%s", controller);
			LIST_INSERT_HEAD(&ours, fabric, link);
		}
	}
	if (fabric != NULL)
		fabric->refs++;
	pthread_mutex_unlock(&lock);
	return fabric;
}

int lw_fabric_hold(const char *url, uint32_t timeout_ms, struct lw_fabric **out, char device[64], char *why,
		   size_t why_size)
{
	uint64_t end_ns = lw_now_ns() + (uint64_t)timeout_ms * 1000000;
	char controller[32] = "";
	struct target target;
	struct lw_fabric *fabric;
	bool made;
	int error = 0;

	if (!parse(url, &target)) {
		snprintf(why, why_size,
			 "%.100s: it takes nvme+tcp://ADDRESS[:PORT]/NQN[?nsid=N], the address as a number", url);
		return -EINVAL;
	}
	made = !find_controller(&target, controller);
	if (made)
		error = connect_to(&target, end_ns, controller);
	if (error == -EALREADY) { /* somebody else was quicker */
		made = false;
		error = find_controller(&target, controller) ? 0 : -EALREADY;
	}
	if (error != 0) {
		snprintf(why, why_size, "%.200s was not connected: %s", url,
			 error == -ENODEV ? "the kernel has no /dev/nvme-fabrics; load nvme-tcp or nvme-rdma"
					  : strerror(-error));
		return error;
	}
	fabric = hold(controller, made);
	if (fabric == NULL)
		return -ENOMEM;
	while (!find_device(controller, target.nsid, device)) {
		if (lw_now_ns() >= end_ns) {
			snprintf(why, why_size, "%.200s has no namespace %u", url, target.nsid);
			lw_fabric_drop(fabric, 0);
			return -ENOENT;
		}
		pause_ms(10);
	}
	*out = fabric;
	return 0;
}

void lw_fabric_drop(struct lw_fabric *fabric, uint32_t wait_ms)
{
	struct work *work = NULL;
	bool last;

	if (fabric == NULL)
		return;
	pthread_mutex_lock(&lock);
	last = --fabric->refs == 0;
	if (last && fabric->controller[0] != '\0')
		LIST_REMOVE(fabric, link);
	pthread_mutex_unlock(&lock);
	if (!last)
		return;
	if (fabric->controller[0] != '\0')
		work = calloc(1, sizeof(*work));
	if (work != NULL) {
		snprintf(work->controller, sizeof(work->controller), "%s", fabric->controller);
		if (have_done(work, lw_now_ns() + (uint64_t)wait_ms * 1000000) == 0)
			free(work);
	}
	free(fabric);
}
