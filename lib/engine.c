/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing an engine, and what it tells of itself. */
#include "lib/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "lib/asym.h"
#include "lib/error.h"
#include "lib/event.h"
#include "lib/gpu/runtime.h"
#include "lib/host.h"
#include "lib/log.h"
#include "lib/topology.h"
#include "meta/address.h"
#include "meta/directory.h"
#include "meta/frame.h"
#include "meta/json.h"

#define ENGINES_MAX 256
#define CLOSE_WAIT_MS 5000
#define STORE_CLOSE_MS 2000         /* of those, for the metadata store */
#define REQUEST_CHECKED_BYTES 65536 /* of a handshake request */

/* Engines by tag - 1. Never freed: see lib/engine.h. */
static struct lw_engine *engines[ENGINES_MAX];
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static const char closed_text[] = "the engine is closed, or being closed";
static const char forked_text[] = "the engine belongs to the parent process; open one of your own in the child";

/* In the child: closes its copies of the parent's descriptors, so that peers see the parent's end when it comes.
 * Nothing but close(2), since epoll sets are shared with the parent. */
static void drop_descriptors(struct lw_engine *engine)
{
	lw_event_forked(engine);
	lw_ctrl_forked(engine->ctrl);
	if (engine->directory != NULL)
		lw_directory_forked(engine->directory);
	lw_areas_forked(engine);
	for (uint32_t i = 0; i < engine->worker_count; i++) {
		struct lw_worker *worker = &engine->workers[i];

		for (size_t k = 0; k < lw_drivers_count; k++)
			if (worker->driver_context[k] != NULL && lw_drivers[k]->forked != NULL)
				lw_drivers[k]->forked(worker->driver_context[k]);
		lw_worker_forked(worker);
	}
	for (uint32_t i = 0; i < engine->channel_count; i++) {
		struct lw_channel *channel = &engine->channels[i];
		int fd = atomic_load(&channel->event_fd);

		if ((atomic_load(&channel->gen) & 1) != 0 && fd >= 0)
			close(fd);
	}
}

/* The child has none of the threads, and may have copied a lock that somebody held. */
static void after_fork(void)
{
	pthread_mutex_init(&engines_lock, NULL);
	lw_host_forked();
	for (int i = 0; i < ENGINES_MAX; i++) {
		if (engines[i] == NULL || atomic_load(&engines[i]->state) == LW_ENGINE_CLOSED)
			continue;
		if (atomic_exchange(&engines[i]->state, LW_ENGINE_FORKED) == LW_ENGINE_OPEN)
			drop_descriptors(engines[i]);
	}
}

static void process_init(void)
{
	lw_fence_init();
	pthread_atfork(NULL, NULL, after_fork);
}

int lw_engine_check(const struct lw_engine *engine)
{
	uint32_t state = atomic_load_explicit(&engine->state, memory_order_relaxed);

	if (state == LW_ENGINE_OPEN)
		return 0;
	if (state == LW_ENGINE_FORKED)
		return lw_fail_static(-EOWNERDEAD, forked_text);
	return lw_fail_static(-ESHUTDOWN, closed_text);
}

int lw_engine_enter(struct lw_engine *engine)
{
	int error;

	if (engine == NULL)
		return lw_fail_static(-EINVAL, "engine must not be NULL");
	/* With the store of CLOSING in lw_engine_close: either that sees us, or we see it. */
	atomic_fetch_add_explicit(&engine->calls, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&engine->state, memory_order_seq_cst) == LW_ENGINE_OPEN)
		return 0;
	error = lw_engine_check(engine);
	lw_engine_leave(engine);
	return error != 0 ? error : lw_fail_static(-ESHUTDOWN, closed_text);
}

void lw_engine_leave(struct lw_engine *engine)
{
	atomic_fetch_sub_explicit(&engine->calls, 1, memory_order_release);
}

bool lw_engine_caller_driven(const struct lw_engine *engine)
{
	return engine->config.poll == LW_POLL_CALLER;
}

int lw_engine_opts_init(struct lw_engine_opts *opts, size_t size)
{
	if (opts == NULL || size < sizeof(opts->size) || size > 4096)
		return lw_fail(-EINVAL, "opts must not be NULL, size that of struct lw_engine_opts");
	memset(opts, 0, size);
	opts->size = size;
	return 0;
}

/* Whether a request is JSON at all, as the reference asks. Descriptors can be long; what is in them is not used here,
 * so long ones are taken as they are. */
static bool is_json(const char *body, size_t size)
{
	cJSON *json;

	if (size > REQUEST_CHECKED_BYTES)
		return true;
	/* The parser would take any control character for a blank: also an unknown type, before the text of a legacy
	 * frame. */
	if (size > 0 && (unsigned char)body[0] < ' ' && body[0] != '\t' && body[0] != '\r' && body[0] != '\n')
		return false;
	json = cJSON_ParseWithLength(body, size);
	cJSON_Delete(json);
	return json != NULL;
}

/* Serves the handshake port, on the control thread. */
static int serve(void *arg, int type, const char *body, size_t size, char **reply, size_t *reply_size)
{
	static const char no_rdma[] = "{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\","
				      "\"peer_nic_path\":\"\",\"qp_num\":[],\"reply_msg\":\"\"}";
	struct lw_engine *engine = arg;
	char alive[80] = "{\"status\":\"success\"}";

	if (!is_json(body, size))
		return -EPROTO;
	if (type == LW_FRAME_METADATA)
		return lw_segment_document(engine, reply, reply_size);
	if (type == LW_FRAME_NOTIFY)
		return lw_notify_receive(engine, body, size, reply, reply_size);
	if (type != LW_FRAME_PROBE && type != LW_FRAME_CONNECTION)
		return -EPROTO;
	for (size_t i = 0; i < lw_drivers_count && type == LW_FRAME_CONNECTION; i++)
		if (engine->driver_on[i] && lw_drivers[i]->serve != NULL)
			return lw_drivers[i]->serve(engine->driver_context[i], body, size, reply, reply_size);
	/* One of ours wants to know which life answers. */
	if (type == LW_FRAME_PROBE && size == strlen(LW_PROBE_LIFE) && memcmp(body, LW_PROBE_LIFE, size) == 0)
		snprintf(alive, sizeof(alive), "{\"lw\":{\"incarnation\":\"%016" PRIx64 "\"},\"status\":\"success\"}",
			 engine->incarnation);
	*reply = strdup(type == LW_FRAME_PROBE ? alive : no_rdma);
	*reply_size = *reply != NULL ? strlen(*reply) : 0;
	return *reply != NULL ? 0 : -ENOMEM;
}

static int take_engine(struct lw_engine **out)
{
	struct lw_engine *engine = NULL;
	int error = 0;

	pthread_mutex_lock(&engines_lock);
	for (uint32_t i = 0; i < ENGINES_MAX && engine == NULL; i++) {
		if (engines[i] == NULL) {
			engines[i] = aligned_alloc(LW_CACHE_LINE, (sizeof(**engines) + LW_CACHE_LINE - 1) /
									  LW_CACHE_LINE * LW_CACHE_LINE);
			if (engines[i] == NULL)
				break;
			memset(engines[i], 0, sizeof(**engines));
			engines[i]->tag = i + 1;
			pthread_mutex_init(&engines[i]->lock, NULL);
			pthread_mutex_init(&engines[i]->notes_lock, NULL);
		}
		if (atomic_load(&engines[i]->state) == LW_ENGINE_CLOSED && !engines[i]->taken)
			engine = engines[i];
	}
	if (engine != NULL)
		engine->taken = true;
	else
		error = lw_fail(-ENFILE, "%d engines are open in this process, or there is no memory for another",
				ENGINES_MAX);
	pthread_mutex_unlock(&engines_lock);
	*out = engine;
	return error;
}

static void give_engine(struct lw_engine *engine)
{
	pthread_mutex_lock(&engines_lock);
	engine->taken = false;
	pthread_mutex_unlock(&engines_lock);
}

/* The address that an engine without a name announces, as its name. */
static int choose_address(const struct lw_config *config, struct lw_address *out)
{
	struct lw_address_opts opts = {.wanted = config->address, .prefer_v6 = getenv("MC_USE_IPV6") != NULL};
	char why[400];
	int error = lw_address_choose(&opts, out, why, sizeof(why));

	if (error != 0 && config->address[0] != '\0')
		return lw_fail(error, "the setting address: %s", why);
	if (error != 0)
		return lw_fail(error, "no address to announce: %s; give the engine a name, or set address", why);
	lw_log(LW_LOG_INFO, "the address %s of %s is announced", out->text, out->interface);
	return 0;
}

/* The address that is to be this host's, and behind which peers find the engine. Where peers ask each other it is part
 * of the name; in a store the name is a key, and any text. */
static int choose_name(struct lw_engine *engine, const char *name, bool p2p)
{
	struct lw_address address;
	int error;

	engine->name[0] = '\0';
	if (!p2p && name != NULL && name[0] != '\0') {
		name += strspn(name, "/");
		if (name[0] == '\0' || strnlen(name, LW_NAME_MAX) == LW_NAME_MAX || !lw_is_printable(name))
			return lw_fail(-EINVAL, "the engine's name has to have 1 to %d bytes, no control characters",
				       LW_NAME_MAX - 1);
		snprintf(engine->name, sizeof(engine->name), "%s", name);
		name = NULL;
	}
	if (name == NULL || name[0] == '\0') {
		error = choose_address(&engine->config, &address);
		if (error != 0)
			return error;
		name = address.text;
	}
	error = lw_hostport_parse(name, 0, &engine->own);
	if (error != 0)
		return lw_fail(-EINVAL, "\"%s\" is no name for an engine; it takes host, host:port or [v6]:port", name);
	error = lw_hostport_resolve(&engine->own, (uint32_t)engine->config.handshake_timeout_ms, &engine->address);
	if (error != 0)
		return lw_fail(-EADDRNOTAVAIL, "the host of \"%s\" can't be found: %s", name, lw_strerror(error));
	return 0;
}

static int open_ctrl(struct lw_engine *engine)
{
	struct lw_ctrl_opts opts = {
		.bind = engine->address.addr[0],
		.port_min = (uint16_t)engine->config.port_min,
		.port_max = (uint16_t)engine->config.port_max,
		.max_frame = engine->config.handshake_max_bytes,
		.max_clients = (uint32_t)engine->config.handshake_clients,
		.timeout_ms = (uint32_t)engine->config.handshake_timeout_ms,
		.serve = serve,
		.arg = engine,
	};
	int error = lw_ctrl_open(&opts, &engine->ctrl);
	char where[80];

	if (error != 0) {
		lw_sockaddr_format(&opts.bind, where, sizeof(where));
		return lw_fail(error, "no port from %llu to %llu can be opened on the address of %s: %s",
			       (unsigned long long)engine->config.port_min, (unsigned long long)engine->config.port_max,
			       engine->own.host, lw_strerror(error));
	}
	engine->own.port = lw_ctrl_port(engine->ctrl);
	for (uint32_t i = 0; i < engine->address.count; i++)
		lw_sockaddr_set_port(&engine->address.addr[i], engine->own.port);
	if (lw_hostport_format(&engine->own, engine->where, sizeof(engine->where)) < 0)
		return lw_fail(-EINVAL, "the engine's host name is too long");
	if (engine->name[0] == '\0')
		memcpy(engine->name, engine->where, sizeof(engine->name));
	return 0;
}

static bool listed(const char *list, const char *name)
{
	size_t length = strlen(name);

	while (*list != '\0') {
		size_t here = strcspn(list, ",");

		if (here == length && memcmp(list, name, length) == 0)
			return true;
		list += here + (list[here] == ',');
	}
	return false;
}

/* An unknown word in the setting is an error; a driver that can't run here is off and says why. */
static int check_drivers(const char *list)
{
	char names[128] = "";

	for (size_t i = 0; i < lw_drivers_count; i++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
			 i == 0                      ? ""
			 : i + 1 == lw_drivers_count ? " and "
						     : ", ",
			 lw_drivers[i]->name);
	while (*list != '\0') {
		size_t length = strcspn(list, ",");
		bool known = length == 0;

		for (size_t i = 0; i < lw_drivers_count && !known; i++)
			known = strlen(lw_drivers[i]->name) == length && memcmp(lw_drivers[i]->name, list, length) == 0;
		if (!known)
			return lw_fail(-EINVAL, "setting drivers: there is no driver \"%.*s\"; there are %s",
				       (int)length, list, names);
		list += length + (list[length] == ',');
	}
	return 0;
}

/* Before the drivers: whose an address is concerns all of them. What nobody asked for may be missing without a word;
 * the drivers' notes tell it. */
static void open_gpus(const struct lw_engine *engine)
{
	const char *const libraries[LW_GPU_VENDORS] = {engine->config.cuda_library, engine->config.hip_library,
						       engine->config.musa_library, engine->config.maca_library};
	const struct lw_gpu *gpu;
	char why[400];

	for (int i = 0; i < LW_GPU_VENDORS; i++)
		if (lw_gpu_open((enum lw_gpu_vendor)i, libraries[i], &gpu, why, sizeof(why)) != 0 &&
		    libraries[i][0] != '\0')
			lw_log(LW_LOG_WARNING, "no memory of %s devices is known: %s",
			       lw_gpu_vendor_name((enum lw_gpu_vendor)i), why);
}

static int open_drivers(struct lw_engine *engine)
{
	int error = check_drivers(engine->config.drivers);

	for (size_t i = 0; error == 0 && i < lw_drivers_count; i++) {
		const struct lw_driver_ops *ops = lw_drivers[i];

		engine->driver_on[i] = false;
		engine->driver_context[i] = NULL;
		snprintf(engine->driver_note[i], sizeof(engine->driver_note[i]), "not in the setting drivers");
		if (!listed(engine->config.drivers, ops->name))
			continue;
		engine->driver_note[i][0] = '\0';
		engine->driver_on[i] = ops->open(engine, &engine->driver_context[i], engine->driver_note[i],
						 sizeof(engine->driver_note[i])) == 0;
		if (!engine->driver_on[i])
			/* Nobody has asked for what is tried everywhere. */
			lw_log(lw_config_source(&engine->config, "drivers") == LW_SOURCE_DEFAULT ? LW_LOG_INFO
												 : LW_LOG_WARNING,
			       "driver %s is off: %s", ops->name, engine->driver_note[i]);
		else if (engine->driver_note[i][0] != '\0')
			lw_log(LW_LOG_INFO, "driver %s: %s", ops->name, engine->driver_note[i]);
	}
	return error;
}

static void close_drivers(struct lw_engine *engine)
{
	for (size_t i = 0; i < lw_drivers_count; i++) {
		if (engine->driver_on[i])
			lw_drivers[i]->close(engine->driver_context[i]);
		engine->driver_on[i] = false;
	}
}

static void stop_drivers(struct lw_engine *engine)
{
	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && lw_drivers[i]->stop != NULL)
			lw_drivers[i]->stop(engine->driver_context[i]);
}

/* Drivers begin to take connections. */
static int start_drivers(struct lw_engine *engine)
{
	int error;

	for (size_t i = 0; i < lw_drivers_count; i++) {
		if (!engine->driver_on[i] || lw_drivers[i]->start == NULL)
			continue;
		error = lw_drivers[i]->start(engine->driver_context[i]);
		if (error != 0)
			return lw_fail(error, "driver %s could not start: %s", lw_drivers[i]->name, lw_strerror(error));
	}
	return 0;
}

static int open_tables(struct lw_engine *engine)
{
	const struct lw_config *config = &engine->config;
	uint32_t chunks = (uint32_t)(config->max_tasks / LW_CHUNK_TASKS + config->max_tasks / LW_CHUNK_TASKS / 512 + 2);

	lw_places_init(&engine->places);
	if (lw_pages_get(&engine->batch_pages, config->max_batches * sizeof(struct lw_batch), config->hugepages) != 0 ||
	    lw_pages_get(&engine->batch_next_pages, config->max_batches * sizeof(uint32_t), false) != 0 ||
	    lw_pages_get(&engine->task_pages, (size_t)chunks * LW_CHUNK_BYTES, config->hugepages) != 0 ||
	    lw_pages_get(&engine->task_next_pages, chunks * sizeof(uint32_t), false) != 0 ||
	    lw_pages_get(&engine->channel_pages, config->max_channels * sizeof(struct lw_channel), false) != 0 ||
	    lw_pages_get(&engine->segment_pages, config->max_segments * sizeof(struct lw_segment_slot), false) != 0)
		return lw_fail(-ENOMEM, "no memory for the engine's tables; lower max_tasks or max_batches");
	engine->batches = engine->batch_pages.memory;
	engine->tasks = engine->task_pages.memory;
	engine->channels = engine->channel_pages.memory;
	engine->channel_count = (uint32_t)config->max_channels;
	engine->segments = engine->segment_pages.memory;
	engine->segments_used = 1;
	lw_slab_init(&engine->batch_slab, engine->batch_next_pages.memory, (uint32_t)config->max_batches);
	lw_slab_init(&engine->chunk_slab, engine->task_next_pages.memory, chunks);
	/* Handles of the engine that used these tables before must not fit: begin at another generation. */
	for (uint64_t i = 0; i < config->max_batches; i++)
		atomic_store(&engine->batches[i].gen, engine->epoch);
	for (uint64_t i = 0; i < config->max_segments; i++)
		atomic_store(&engine->segments[i].gen, engine->epoch);
	atomic_store(&engine->live_batches, 0);
	engine->live_channels = 0;
	engine->notes_head = NULL;
	engine->notes_tail = &engine->notes_head;
	engine->notes_count = 0;
	engine->events_head = NULL;
	engine->events_tail = &engine->events_head;
	engine->event_fd = -1;
	engine->event_set = false;
	engine->outboxes = NULL;
	lw_memory_init(engine);
	return lw_cancel_init(engine);
}

static void note_gen(uint32_t epoch, uint32_t gen, uint32_t *most)
{
	*most = gen - epoch > *most ? gen - epoch : *most;
}

/* The next life of the tables begins above every generation of this one, so that none of its handles fits again. */
static void raise_epoch(struct lw_engine *engine)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < engine->batch_slab.count; i++)
		note_gen(engine->epoch, atomic_load(&engine->batches[i].gen), &most);
	for (uint32_t i = 1; i < engine->segments_used; i++)
		note_gen(engine->epoch, atomic_load(&engine->segments[i].gen), &most);
	for (uint32_t i = 0; engine->buffers != NULL && i < engine->buffers_used; i++)
		note_gen(engine->epoch, engine->buffers[i].gen, &most);
	engine->epoch += (most | 1) + 1;
	atomic_store_explicit(&engine->batch_slab.count, 0, memory_order_relaxed);
	engine->segments_used = 0;
}

static void close_tables(struct lw_engine *engine)
{
	raise_epoch(engine);
	for (uint32_t i = 0; i < engine->channel_count; i++)
		lw_channel_fini(&engine->channels[i]);
	engine->channel_count = 0;
	lw_notify_fini(engine);
	lw_event_fini(engine);
	lw_memory_fini(engine);
	lw_places_fini(&engine->places);
	lw_areas_fini(engine);
	lw_cancel_fini(engine);
	lw_pages_drop(&engine->batch_pages);
	lw_pages_drop(&engine->batch_next_pages);
	lw_pages_drop(&engine->task_pages);
	lw_pages_drop(&engine->task_next_pages);
	lw_pages_drop(&engine->segment_pages);
	/* Channels keep their generations: a thread's own handle to one must go stale, not live again. */
}

static int open_workers(struct lw_engine *engine)
{
	int error;

	engine->workers = aligned_alloc(LW_CACHE_LINE, engine->worker_count * sizeof(*engine->workers));
	if (engine->workers == NULL)
		return lw_fail(-ENOMEM, "no memory for the workers");
	memset(engine->workers, 0, engine->worker_count * sizeof(*engine->workers));
	for (uint32_t i = 0; i < engine->worker_count; i++) {
		struct lw_worker *worker = &engine->workers[i];

		error = lw_worker_init(worker, engine, i);
		if (error != 0)
			return error;
		engine->workers_ready = i + 1;
		for (size_t k = 0; k < lw_drivers_count; k++) {
			if (!engine->driver_on[k] || lw_drivers[k]->worker_open == NULL)
				continue;
			error = lw_drivers[k]->worker_open(engine->driver_context[k], worker,
							   &worker->driver_context[k]);
			if (error != 0)
				return lw_fail(error, "driver %s could not prepare a worker: %s", lw_drivers[k]->name,
					       lw_strerror(error));
		}
	}
	for (uint32_t i = 0; i < engine->worker_count && !lw_engine_caller_driven(engine); i++) {
		error = lw_host_launch(&engine->workers[i], engine->config.cpus);
		if (error != 0)
			return error;
	}
	return 0;
}

/* Ends the workers' threads; what was under way has ended with SHUTDOWN then. */
static void stop_workers(struct lw_engine *engine)
{
	for (uint32_t i = 0; i < engine->workers_ready; i++) {
		atomic_store(&engine->workers[i].stop, 1);
		lw_fence_heavy();
		lw_worker_wake(&engine->workers[i]);
	}
	for (uint32_t i = 0; i < engine->workers_ready; i++) {
		struct lw_worker *worker = &engine->workers[i];

		if (worker->started) {
			lw_host_join(worker);
		} else if (engine->workers_ready == engine->worker_count) {
			while (atomic_exchange(&worker->driving, 1) != 0)
				sched_yield();
			lw_worker_abandon(worker);
		}
	}
}

static void close_workers(struct lw_engine *engine)
{
	for (uint32_t i = 0; i < engine->workers_ready; i++) {
		struct lw_worker *worker = &engine->workers[i];

		for (size_t k = 0; k < lw_drivers_count; k++)
			if (worker->driver_context[k] != NULL)
				lw_drivers[k]->worker_close(worker->driver_context[k]);
		lw_worker_fini(worker);
	}
	free(engine->workers);
	engine->workers = NULL;
	engine->workers_ready = 0;
}

static int document(void *arg, char **text, size_t *length)
{
	return lw_segment_document(arg, text, length);
}

/* Prepares the engine's place in a metadata store, if that is how peers find it. */
static int open_directory(struct lw_engine *engine, const char *url)
{
	const struct lw_config *config = &engine->config;
	const struct lw_directory_opts opts = {
		.url = url,
		.store = {.size = sizeof(opts.store),
			  .incarnation = engine->incarnation,
			  .lease_s = (uint32_t)config->store_lease_s,
			  .redis_db = (uint32_t)config->store_db,
			  .user = config->store_user,
			  .password = config->store_password,
			  .token = config->store_token,
			  .max_value = config->store_max_bytes},
		.cluster = config->store_cluster,
		.timeout_ms = (uint32_t)config->store_timeout_ms,
		.document = document,
		.arg = engine,
	};
	char why[400];
	int error;

	if (lw_store_is_p2p(url))
		return 0;
	error = lw_directory_open(&opts, &engine->directory, why, sizeof(why));
	return error != 0 ? lw_fail(error, "the metadata store: %s", why) : 0;
}

/* Peers can find the engine from now on. */
static int begin_directory(struct lw_engine *engine)
{
	const struct lw_contact contact = {.where = engine->own, .incarnation = engine->incarnation};
	char why[400];
	int error;

	if (engine->directory == NULL)
		return 0;
	error = lw_directory_begin(engine->directory, engine->name, &contact, why, sizeof(why));
	if (error != 0)
		return lw_fail(error, "the engine can't be entered in the metadata store: %s", why);
	return 0;
}

static void close_directory(struct lw_engine *engine)
{
	lw_directory_close(engine->directory);
	engine->directory = NULL;
}

static void drop_matrix(struct lw_engine *engine)
{
	lw_matrix_free(engine->matrix);
	engine->matrix = NULL;
	engine->matrix_set = false;
}

int lw_engine_open(const struct lw_engine_opts *given, struct lw_engine **out)
{
	struct lw_engine_opts opts = {.size = sizeof(opts)};
	struct lw_engine *engine;
	int error;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	if (given != NULL) {
		if (given->size < sizeof(given->size) || given->size > 4096)
			return lw_fail(-EINVAL,
				       "opts->size must be sizeof(struct lw_engine_opts); call lw_engine_opts_init");
		memcpy(&opts, given, given->size < sizeof(opts) ? given->size : sizeof(opts));
	}
	pthread_once(&process_once, process_init);
	error = take_engine(&engine);
	if (error != 0)
		return error;
	error = lw_config_load(&engine->config, opts.config_file, opts.settings, opts.settings_count);
	if (error == 0)
		error = lw_topology_given(&engine->config, &engine->matrix);
	if (error != 0)
		goto give;
	lw_log_level_set((int)engine->config.log_level);
	if (getrandom(&engine->incarnation, sizeof(engine->incarnation), 0) != sizeof(engine->incarnation) ||
	    engine->incarnation == 0)
		engine->incarnation = lw_now_ns() | 1;
	engine->worker_count = lw_engine_caller_driven(engine) ? 1 : (uint32_t)engine->config.workers;
	engine->workers_ready = 0;
	error = open_directory(engine, opts.metadata != NULL ? opts.metadata : engine->config.metadata);
	if (error == 0)
		error = choose_name(engine, opts.name, engine->directory == NULL);
	if (error != 0)
		goto give;
	if (!lw_engine_caller_driven(engine))
		lw_host_start(engine->config.eal);
	error = lw_rcu_init(&engine->rcu, engine->worker_count);
	if (error != 0) {
		lw_fail(error, "no memory for the engine's tables");
		goto give;
	}
	error = open_tables(engine);
	if (error != 0)
		goto tables;
	open_gpus(engine);
	error = open_drivers(engine);
	if (error != 0)
		goto drivers;
	error = open_ctrl(engine);
	if (error != 0)
		goto drivers;
	error = open_workers(engine);
	if (error != 0)
		goto workers;
	lw_segment_init(engine);
	error = start_drivers(engine);
	if (error != 0)
		goto workers;
	error = begin_directory(engine);
	if (error != 0)
		goto directory;
	atomic_store(&engine->state, LW_ENGINE_OPEN);
	lw_log(LW_LOG_INFO, "engine %s is open, incarnation %016llx", engine->name,
	       (unsigned long long)engine->incarnation);
	*out = engine;
	return 0;
directory:
	lw_directory_refuse(engine->directory, STORE_CLOSE_MS);
	stop_drivers(engine);
workers:
	stop_workers(engine);
	close_directory(engine);
	/* First, since it serves peers already and asks the drivers for it. */
	lw_ctrl_close(engine->ctrl);
	close_workers(engine);
	close_drivers(engine);
	lw_segment_fini(engine);
	goto tables;
drivers:
	lw_ctrl_close(engine->ctrl);
	close_drivers(engine);
tables:
	engine->ctrl = NULL;
	lw_rcu_fini(&engine->rcu);
	close_tables(engine);
give:
	close_directory(engine);
	drop_matrix(engine);
	give_engine(engine);
	return error;
}

static bool anybody_inside(struct lw_engine *engine)
{
	if (atomic_load(&engine->calls) != 0)
		return true;
	for (uint64_t i = 0; i < engine->config.max_channels; i++)
		if (atomic_load(&engine->channels[i].inside) != 0)
			return true;
	return false;
}

/* Waits for calls of other threads that were inside when the engine began to close. The workers' threads have ended:
 * what a call still hands to a worker is done here. False: somebody stays. */
static bool see_off(struct lw_engine *engine)
{
	uint64_t end_ns = lw_now_ns() + (uint64_t)CLOSE_WAIT_MS * 1000000;
	bool waited;

	for (uint64_t i = 0; i < engine->config.max_channels; i++)
		if ((atomic_load(&engine->channels[i].gen) & 1) != 0)
			lw_channel_wake(&engine->channels[i]);
	do {
		waited = anybody_inside(engine);
		for (uint32_t k = 0; k < engine->worker_count; k++)
			lw_worker_abandon(&engine->workers[k]);
		if (!waited)
			return true;
		usleep(100);
	} while (lw_now_ns() < end_ns);
	return false;
}

int lw_engine_close(struct lw_engine *engine)
{
	uint32_t open = LW_ENGINE_OPEN;

	if (engine == NULL)
		return lw_fail(-EINVAL, "engine must not be NULL");
	if (!atomic_compare_exchange_strong(&engine->state, &open, LW_ENGINE_CLOSING)) {
		if (open == LW_ENGINE_FORKED)
			return lw_fail(-EOWNERDEAD, "%s", forked_text);
		return open == LW_ENGINE_CLOSING ? lw_fail(-EBUSY, "another thread closes the engine")
						 : lw_fail(-EINVAL, "the engine is not open");
	}
	lw_fence_heavy(); /* with the light one of lw_channel_enter */
	lw_directory_refuse(engine->directory, STORE_CLOSE_MS);
	stop_drivers(engine);
	stop_workers(engine);
	/* Calls to peers end with -ESHUTDOWN, and those who wait for them leave. */
	lw_ctrl_refuse(engine->ctrl);
	if (!see_off(engine)) {
		/* What it may still use is left where it is. Nothing is under way any more. */
		lw_log(LW_LOG_WARNING, "engine %s was closed while a call did not return; its memory is kept",
		       engine->name);
		return 0;
	}
	close_directory(engine);
	lw_ctrl_close(engine->ctrl);
	close_workers(engine);
	close_drivers(engine);
	lw_segment_fini(engine);
	lw_rcu_fini(&engine->rcu);
	close_tables(engine);
	drop_matrix(engine);
	engine->ctrl = NULL;
	atomic_store(&engine->state, LW_ENGINE_CLOSED);
	give_engine(engine);
	return 0;
}

int lw_engine_progress(struct lw_engine *engine)
{
	struct lw_worker *worker;
	uint64_t before;
	int error;

	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	worker = &engine->workers[0];
	before = atomic_load_explicit(&worker->requests, memory_order_relaxed);
	if (!lw_engine_caller_driven(engine))
		error = lw_fail_static(-EINVAL, "the engine has workers of its own; open it with poll = caller");
	else if (!lw_worker_drive(worker))
		error = lw_fail_static(-EBUSY, "another thread drives the engine");
	else
		error = (int)(atomic_load_explicit(&worker->requests, memory_order_relaxed) - before);
	lw_engine_leave(engine);
	return error;
}

const char *lw_engine_name(const struct lw_engine *engine)
{
	return engine != NULL && atomic_load(&engine->state) == LW_ENGINE_OPEN ? engine->name : NULL;
}
