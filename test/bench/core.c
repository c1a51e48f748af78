/* SPDX-License-Identifier: Apache-2.0 */
/* core: the engine's own cost. Prints a table and, with --json, one JSON array of {"name","value","unit","n"}; with
 * --trip nothing but the round trip beside the bare ring's, a second's work for those who change the hot path. The
 * worker runs on the first CPU and the submitting thread on the last; without two CPUs exit status 77.
 *
 * A figure is the median of many short samples of one run. Beside the engine's figures stand those of the bare pieces
 * (our ring, DPDK's, memcpy), taken in the same run, so that ratios can be judged on a machine whose clock and
 * placement drift. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <rte_pause.h>
#include <rte_ring.h>

#include <lanewise/lanewise.h>

#include "bench/measure.h"
#include "lib/rangemap.h"
#include "lib/ring/slab.h"
#include "lib/ring/spsc.h"

#define SAMPLES 20000
#define BUFFER ((size_t)64 << 20)

static void die(const char *what)
{
	fprintf(stderr, "core: %s: %s\n", what, lw_last_error());
	exit(1);
}

struct side {
	struct lw_engine *engine;
	struct lw_channel *channel;
	lw_segment_t segment;
	char *memory;
};

static void open_side(struct side *side, const char *poll, const char *target)
{
	char cpu[16];
	struct lw_setting settings[] = {{"poll", poll}, {"cpus", cpu}, {"ring_size", "4096"}};
	struct lw_engine_opts opts = {.size = sizeof(opts), .settings = settings, .settings_count = 3};
	struct lw_memory memory = {.length = BUFFER, .access = LW_ACCESS_REMOTE};
	lw_buffer_t id;

	snprintf(cpu, sizeof(cpu), "%d", first_cpu);
	side->memory = aligned_alloc(4096, BUFFER);
	if (side->memory == NULL)
		exit(1);
	memset(side->memory, 1, BUFFER);
	memory.addr = side->memory;
	if (lw_engine_open(&opts, &side->engine) != 0 || lw_memory_register(side->engine, &memory, 1, &id) != 0 ||
	    lw_channel_self(side->engine, &side->channel) != 0)
		die("open");
	side->segment = LW_SEGMENT_LOCAL;
	if (target != NULL && lw_segment_open(side->engine, target, 0, &side->segment) != 0)
		die("segment");
	pin(last_cpu); /* after the engine chose its CPUs from those that the thread may use */
}

static void close_side(struct side *side)
{
	lw_engine_close(side->engine);
	free(side->memory);
	unpin();
}

static void fill(const struct side *side, struct lw_request *requests, size_t count, uint64_t length)
{
	for (size_t i = 0; i < count; i++)
		requests[i] = (struct lw_request){
			.local = side->memory + i * length % (BUFFER / 2),
			.segment = side->segment,
			.offset = (uint64_t)(uintptr_t)side->memory + BUFFER / 2 + i * length % (BUFFER / 2),
			.length = length,
			.op = LW_WRITE,
		};
}

static void spin_until_done(struct lw_engine *engine, lw_batch_t batch)
{
	struct lw_batch_status status;

	do {
		if (lw_batch_status(engine, batch, &status) != 0)
			die("status");
	} while (status.state == LW_PENDING && (rte_pause(), true));
	if (status.state != LW_COMPLETED)
		die("a transfer failed");
}

struct costs {
	double submit[SAMPLES]; /* lw_submit alone */
	double trip[SAMPLES];   /* from before lw_submit to the sight of the end */
	double whole[SAMPLES];  /* from before lw_batch_alloc to after lw_batch_free */
};

/* One batch after the other, everything per request. */
static void one_at_a_time(const struct side *side, size_t count, uint64_t length, size_t samples, struct costs *costs)
{
	struct lw_request *requests = calloc(count, sizeof(*requests));

	fill(side, requests, count, length);
	for (size_t i = 0; i < samples + samples / 10; i++) {
		uint64_t t0 = now_ns(), t1, t2, t3, t4;
		lw_batch_t batch;

		if (lw_batch_alloc(side->channel, (uint32_t)count, 0, NULL, &batch) != 0)
			die("alloc");
		t1 = now_ns();
		if (lw_submit(side->channel, batch, requests, count) != 0)
			die("submit");
		t2 = now_ns();
		spin_until_done(side->engine, batch);
		t3 = now_ns();
		if (lw_batch_free(side->engine, batch) != 0)
			die("free");
		t4 = now_ns();
		if (i < samples / 10)
			continue; /* warm-up */
		costs->submit[i - samples / 10] = (double)(t2 - t1) / (double)count;
		costs->trip[i - samples / 10] = (double)(t3 - t1) / (double)count;
		costs->whole[i - samples / 10] = (double)(t4 - t0) / (double)count;
	}
	free(requests);
}

/* depth batches under way: nanoseconds per request of a steady stream. */
static double stream(const struct side *side, size_t count, uint64_t length, size_t depth, size_t rounds)
{
	struct lw_request *requests = calloc(count, sizeof(*requests));
	lw_batch_t batches[16] = {0};
	uint64_t start = 0;

	fill(side, requests, count, length);
	for (size_t i = 0; i < rounds + depth; i++) {
		lw_batch_t *slot = &batches[i % depth];

		if (i == depth)
			start = now_ns();
		if (*slot != 0) {
			spin_until_done(side->engine, *slot);
			lw_batch_free(side->engine, *slot);
		}
		if (lw_batch_alloc(side->channel, (uint32_t)count, 0, NULL, slot) != 0 ||
		    lw_submit(side->channel, *slot, requests, count) != 0)
			die("submit");
	}
	start = now_ns() - start;
	for (size_t i = 0; i < depth; i++) {
		spin_until_done(side->engine, batches[i]);
		lw_batch_free(side->engine, batches[i]);
	}
	free(requests);
	return (double)start / (double)(rounds * count);
}

/* A bare ring, ours or DPDK's: an entry to the other CPU and a flag back. */
struct echo {
	struct lw_spsc ours;
	struct rte_ring *theirs; /* NULL: ours */
	alignas(64) _Atomic uint64_t back;
	_Atomic bool stop;
};

static inline bool echo_pop(struct echo *echo, uint64_t *value)
{
	struct lw_run run;
	void *entry;

	if (echo->theirs != NULL) {
		if (rte_ring_sc_dequeue(echo->theirs, &entry) != 0)
			return false;
		*value = (uintptr_t)entry;
		return true;
	}
	if (!lw_spsc_pop(&echo->ours, &run))
		return false;
	*value = run.first;
	return true;
}

static inline void echo_push(struct echo *echo, uint64_t value)
{
	if (echo->theirs != NULL)
		rte_ring_sp_enqueue(echo->theirs, (void *)(uintptr_t)value);
	else
		lw_spsc_push(&echo->ours, &(struct lw_run){.first = value & LW_RUN_MASK, .count = 1});
}

static void *echo_main(void *arg)
{
	struct echo *echo = arg;
	uint64_t value;

	pin(first_cpu);
	while (!atomic_load_explicit(&echo->stop, memory_order_relaxed)) {
		if (echo_pop(echo, &value))
			atomic_store_explicit(&echo->back, value, memory_order_release);
		else
			rte_pause();
	}
	return NULL;
}

#define ECHO_ENTRIES 4096

static void bare_ring(struct rte_ring *theirs, double *values, size_t samples)
{
	static struct echo echo;
	static struct lw_spsc_entry entries[ECHO_ENTRIES];
	pthread_t thread;

	atomic_store(&echo.stop, false);
	atomic_store(&echo.back, 0);
	lw_spsc_init(&echo.ours, entries, ECHO_ENTRIES);
	echo.theirs = theirs;
	pthread_create(&thread, NULL, echo_main, &echo);
	for (uint64_t i = 1; i <= samples + samples / 10; i++) {
		uint64_t t0 = now_ns();

		echo_push(&echo, i);
		while (atomic_load_explicit(&echo.back, memory_order_acquire) != i)
			rte_pause();
		if (i > samples / 10)
			values[i - samples / 10 - 1] = (double)(now_ns() - t0);
	}
	atomic_store(&echo.stop, true);
	pthread_join(thread, NULL);
}

static struct rte_ring *dpdk_ring(void)
{
	ssize_t size = rte_ring_get_memsize(ECHO_ENTRIES);
	struct rte_ring *ring = size < 0 ? NULL : aligned_alloc(LW_CACHE_LINE, (size_t)size);

	if (ring == NULL || rte_ring_init(ring, "echo", ECHO_ENTRIES, RING_F_SP_ENQ | RING_F_SC_DEQ) != 0)
		exit(1);
	return ring;
}

/* As bare_ring does: a request of 64 bytes, from before lw_submit to the sight of its end, no clock read between. */
static void trips(const struct side *side, double *values, size_t samples)
{
	struct lw_request request;

	fill(side, &request, 1, 64);
	for (size_t i = 0; i < samples + samples / 10; i++) {
		lw_batch_t batch;
		uint64_t t0;

		if (lw_batch_alloc(side->channel, 1, 0, NULL, &batch) != 0)
			die("alloc");
		t0 = now_ns();
		if (lw_submit(side->channel, batch, &request, 1) != 0)
			die("submit");
		spin_until_done(side->engine, batch);
		if (i >= samples / 10)
			values[i - samples / 10] = (double)(now_ns() - t0);
		if (lw_batch_free(side->engine, batch) != 0)
			die("free");
	}
}

#define TURNS 40
#define TURN_SAMPLES 500
#define NEAR_NS 250 /* our ring's round trip below it: the two CPUs share a cache at this moment */

/* The rings and the engine in turn, since the distance of two CPUs of a virtual machine changes within seconds. The
 * engine's worker sleeps while the ring has its CPU. */
static void ring_and_trip(void)
{
	static double ring[TURNS * TURN_SAMPLES], trip[TURNS * TURN_SAMPLES], theirs[TURNS * TURN_SAMPLES];
	static double ratio[TURNS], near[TURNS], far[TURNS], ratio_theirs[TURNS];
	struct rte_ring *dpdk = dpdk_ring();
	size_t near_count = 0, far_count = 0;
	struct side own;

	open_side(&own, "adaptive", NULL);
	for (size_t i = 0; i < TURNS; i++) {
		double *bare = ring + i * TURN_SAMPLES, *ours = trip + i * TURN_SAMPLES;
		double middle, own_middle;

		trips(&own, ours, TURN_SAMPLES);
		usleep(1000);
		bare_ring(NULL, bare, TURN_SAMPLES);
		bare_ring(dpdk, theirs + i * TURN_SAMPLES, TURN_SAMPLES);
		middle = percentile(bare, TURN_SAMPLES, 0.5);
		own_middle = percentile(ours, TURN_SAMPLES, 0.5);
		ratio[i] = own_middle / middle;
		ratio_theirs[i] = own_middle / percentile(theirs + i * TURN_SAMPLES, TURN_SAMPLES, 0.5);
		if (middle < NEAR_NS)
			near[near_count++] = ratio[i];
		else
			far[far_count++] = ratio[i];
	}
	close_side(&own);
	free(dpdk);
	report("rte_ring_roundtrip_p50_ns", percentile(theirs, TURNS * TURN_SAMPLES, 0.5), "ns", TURNS * TURN_SAMPLES);
	report("roundtrip_64_vs_rte_ring", percentile(ratio_theirs, TURNS, 0.5), "ratio", TURNS);
	report("ring_roundtrip_p50_ns", percentile(ring, TURNS * TURN_SAMPLES, 0.5), "ns", TURNS * TURN_SAMPLES);
	report("ring_roundtrip_p99_ns", percentile(ring, TURNS * TURN_SAMPLES, 0.99), "ns", TURNS * TURN_SAMPLES);
	report("roundtrip_64_vs_ring", percentile(ratio, TURNS, 0.5), "ratio", TURNS);
	if (near_count != 0)
		report("roundtrip_64_vs_ring_near", percentile(near, near_count, 0.5), "ratio", near_count);
	if (far_count != 0)
		report("roundtrip_64_vs_ring_far", percentile(far, far_count, 0.5), "ratio", far_count);
}

static void batches(void)
{
	static struct costs costs;
	struct side null, own;

	open_side(&null, "busy", "null://");
	one_at_a_time(&null, 64, 64, SAMPLES, &costs);
	report("submit_ns_batch64", percentile(costs.submit, SAMPLES, 0.5), "ns", SAMPLES);
	report("complete_ns_batch64", percentile(costs.trip, SAMPLES, 0.5), "ns", SAMPLES);
	report("whole_ns_batch64", percentile(costs.whole, SAMPLES, 0.5), "ns", SAMPLES);
	report("stream_ns_batch64", stream(&null, 64, 64, 8, SAMPLES), "ns", SAMPLES);
	one_at_a_time(&null, 1, 64, SAMPLES, &costs);
	report("submit_ns_batch1", percentile(costs.submit, SAMPLES, 0.5), "ns", SAMPLES);
	report("roundtrip_null_p50_ns", percentile(costs.trip, SAMPLES, 0.5), "ns", SAMPLES);
	report("submit_poll_ns_batch1", percentile(costs.whole, SAMPLES, 0.5), "ns", SAMPLES);
	one_at_a_time(&null, 4096, 64, 500, &costs);
	report("submit_ns_batch4096", percentile(costs.submit, 500, 0.5), "ns", 500);
	report("submit_poll_ns_batch4096", percentile(costs.whole, 500, 0.5), "ns", 500);
	close_side(&null);

	open_side(&own, "busy", NULL);
	one_at_a_time(&own, 1, 64, SAMPLES, &costs);
	report("roundtrip_64_p50_ns", percentile(costs.trip, SAMPLES, 0.5), "ns", SAMPLES);
	report("roundtrip_64_p99_ns", percentile(costs.trip, SAMPLES, 0.99), "ns", SAMPLES);
	one_at_a_time(&own, 1, 4096, SAMPLES, &costs);
	report("roundtrip_4k_p50_ns", percentile(costs.trip, SAMPLES, 0.5), "ns", SAMPLES);
	one_at_a_time(&own, 64, 64, SAMPLES, &costs);
	report("copy64_submit_ns_batch64", percentile(costs.submit, SAMPLES, 0.5), "ns", SAMPLES);
	report("copy64_complete_ns_batch64", percentile(costs.trip, SAMPLES, 0.5), "ns", SAMPLES);
	report("copy64_stream_ns_batch64", stream(&own, 64, 64, 8, SAMPLES), "ns", SAMPLES);
	close_side(&own);
	ring_and_trip();
}

#define PIECES 2000000

/* The pieces, each alone on one thread: enqueue and dequeue, slab, resolve, status. */
static void pieces(void)
{
	static struct lw_spsc_entry entries[1024];
	static _Atomic uint32_t next[4096];
	static struct lw_range ranges[20000];
	const struct lw_range *first;
	struct lw_batch_status status;
	struct lw_rangemap *map;
	struct lw_spsc ring;
	struct lw_slab slab;
	struct lw_run run = {.count = 1};
	struct side null;
	lw_batch_t batch;
	uint64_t start, sum = 0;

	lw_spsc_init(&ring, entries, 1024);
	start = now_ns();
	for (size_t i = 0; i < PIECES; i++) {
		lw_spsc_push(&ring, &run);
		sum += lw_spsc_pop(&ring, &run);
	}
	report("ring_push_pop_ns", (double)(now_ns() - start) / PIECES, "ns", PIECES);
	lw_slab_init(&slab, next, 4096);
	start = now_ns();
	for (size_t i = 0; i < PIECES; i++)
		lw_slab_give(&slab, lw_slab_take(&slab));
	report("slab_take_give_ns", (double)(now_ns() - start) / PIECES, "ns", PIECES);
	for (size_t i = 0; i < 20000; i++)
		ranges[i] = (struct lw_range){.addr = (i + 1) << 20, .end = ((i + 1) << 20) + (1 << 19), .access = 3};
	for (size_t count = 1; count <= 20000; count *= count == 1 ? 100 : 200) {
		char name[32];

		if (lw_rangemap_build(ranges, count, &map) != 0)
			exit(1);
		start = now_ns();
		for (size_t i = 0; i < PIECES; i++)
			sum += lw_rangemap_covers(map, (i * 7919 % count + 1) << 20, 4096, 1, &first);
		snprintf(name, sizeof(name), "resolve_ns_buffers%zu", count);
		report(name, (double)(now_ns() - start) / PIECES, "ns", PIECES);
		lw_rangemap_free(map);
	}
	if (sum != (uint64_t)4 * PIECES)
		exit(1);
	open_side(&null, "busy", "null://");
	start = now_ns();
	for (size_t i = 0; i < PIECES; i++)
		if (lw_batch_alloc(null.channel, 1, 0, NULL, &batch) != 0 || lw_batch_free(null.engine, batch) != 0)
			die("alloc");
	report("batch_alloc_free_ns", (double)(now_ns() - start) / PIECES, "ns", PIECES);
	lw_batch_alloc(null.channel, 1, 0, NULL, &batch);
	start = now_ns();
	for (size_t i = 0; i < PIECES; i++)
		lw_batch_status(null.engine, batch, &status);
	report("batch_status_ns", (double)(now_ns() - start) / PIECES, "ns", PIECES);
	lw_batch_free(null.engine, batch);
	close_side(&null);
}

struct crowd {
	const struct side *side;
	pthread_barrier_t *barrier;
	size_t rounds;
	double submit_ns;
	bool pinned;
	int cpu;
};

static void *crowd_main(void *arg)
{
	struct crowd *crowd = arg;
	struct side side = *crowd->side;
	struct lw_request requests[64];
	uint64_t spent = 0;

	if (crowd->pinned)
		pin(crowd->cpu);
	if (lw_channel_self(side.engine, &side.channel) != 0)
		die("channel");
	fill(&side, requests, 64, 64);
	pthread_barrier_wait(crowd->barrier);
	for (size_t i = 0; i < crowd->rounds; i++) {
		lw_batch_t batch;
		uint64_t start;
		int error;

		if (lw_batch_alloc(side.channel, 64, 0, NULL, &batch) != 0)
			die("alloc");
		/* The thread's own time: being preempted for another thread is not a cost of submit. */
		struct timespec a, b;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		error = lw_submit(side.channel, batch, requests, 64);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		start = (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000u + (uint64_t)b.tv_nsec - (uint64_t)a.tv_nsec;
		spent += start;
		if (error != 0)
			die("submit");
		if (lw_batch_wait(side.engine, batch, 10000, NULL) != 0 || lw_batch_free(side.engine, batch) != 0)
			die("wait");
	}
	crowd->submit_ns = (double)spent / (double)(crowd->rounds * 64);
	return NULL;
}

static void crowds(bool pinned)
{
	struct side null;

	open_side(&null, "adaptive", "null://");
	unpin(); /* the threads inherit it */
	for (size_t threads = 1; threads <= 16; threads *= threads == 1 ? 2 : threads == 2 ? 2 : 4) {
		struct crowd crowd[16];
		pthread_t thread[16];
		pthread_barrier_t barrier;
		double sum = 0;
		uint64_t start;
		char name[48];
		size_t rounds = 20000 / threads;

		pthread_barrier_init(&barrier, NULL, (unsigned int)threads + 1);
		for (size_t i = 0; i < threads; i++) {
			crowd[i] = (struct crowd){.side = &null,
						  .barrier = &barrier,
						  .rounds = rounds,
						  .pinned = pinned,
						  .cpu = i % 2 == 0 ? last_cpu : first_cpu};
			pthread_create(&thread[i], NULL, crowd_main, &crowd[i]);
		}
		pthread_barrier_wait(&barrier);
		start = now_ns();
		for (size_t i = 0; i < threads; i++) {
			pthread_join(thread[i], NULL);
			sum += crowd[i].submit_ns;
		}
		start = now_ns() - start;
		pthread_barrier_destroy(&barrier);
		snprintf(name, sizeof(name), "submit_ns_threads%zu%s", threads, pinned ? "_pinned" : "");
		report(name, sum / (double)threads, "ns", rounds * threads);
		snprintf(name, sizeof(name), "requests_m_s_threads%zu%s", threads, pinned ? "_pinned" : "");
		report(name, (double)(rounds * threads * 64) * 1e3 / (double)start, "M/s", rounds * threads);
	}
	close_side(&null);
}

/* What the machine takes to wake a sleeping thread on another CPU, without an engine. */
struct sleeper {
	int event, epoll;
	_Atomic size_t woken;
};

#define WAKES 300

static void *sleep_main(void *arg)
{
	struct sleeper *sleeper = arg;
	struct epoll_event event;
	uint64_t count;

	pin(first_cpu);
	for (size_t i = 1; i <= WAKES; i++) {
		while (epoll_wait(sleeper->epoll, &event, 1, 1000) < 1)
			;
		if (read(sleeper->event, &count, sizeof(count)) < 0)
			exit(1);
		atomic_store(&sleeper->woken, i);
	}
	return NULL;
}

static void bare_wake(void)
{
	struct sleeper sleeper = {.event = eventfd(0, EFD_NONBLOCK), .epoll = epoll_create1(0)};
	struct epoll_event event = {.events = EPOLLIN};
	static double values[WAKES];
	uint64_t one = 1;
	pthread_t thread;

	epoll_ctl(sleeper.epoll, EPOLL_CTL_ADD, sleeper.event, &event);
	pthread_create(&thread, NULL, sleep_main, &sleeper);
	pin(last_cpu);
	for (size_t i = 0; i < WAKES; i++) {
		uint64_t start;

		usleep(20000);
		start = now_ns();
		if (write(sleeper.event, &one, sizeof(one)) < 0)
			exit(1);
		while (atomic_load(&sleeper.woken) != i + 1)
			;
		values[i] = (double)(now_ns() - start) / 1e3;
	}
	pthread_join(thread, NULL);
	unpin();
	close(sleeper.event);
	close(sleeper.epoll);
	report("bare_wake_us", percentile(values, WAKES, 0.5), "us", WAKES);
	report("bare_wake_p90_us", percentile(values, WAKES, 0.9), "us", WAKES);
	report("bare_wake_p99_us", percentile(values, WAKES, 0.99), "us", WAKES);
}

static double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void idle(void)
{
	static double values[300];
	struct side own;
	uint64_t start;
	double cpu;
	struct costs *costs = calloc(1, sizeof(*costs));

	if (costs == NULL)
		exit(1);
	open_side(&own, "adaptive", NULL);
	one_at_a_time(&own, 1, 4096, 1, costs);
	usleep(100000);
	cpu = cpu_seconds();
	start = now_ns();
	usleep(3000000);
	report("idle_cpu_percent", (cpu_seconds() - cpu) * 1e11 / (double)(now_ns() - start), "%", 1);
	for (size_t i = 0; i < 300; i++) {
		usleep(20000);
		one_at_a_time(&own, 1, 4096, 1, costs);
		values[i] = costs->trip[0];
	}
	report("first_after_idle_us", percentile(values, 300, 0.5) / 1e3, "us", 300);
	report("first_after_idle_p90_us", percentile(values, 300, 0.9) / 1e3, "us", 300);
	report("first_after_idle_p99_us", percentile(values, 300, 0.99) / 1e3, "us", 300);
	close_side(&own);
	free(costs);
}

int main(int argc, char **argv)
{
	bool trip = argc > 1 && strcmp(argv[1], "--trip") == 0;

	measure_json = argc > 1 && strcmp(argv[1], "--json") == 0;
	if (!measure_cpus("core"))
		return 77;
	if (trip) {
		ring_and_trip();
		return 0;
	}
	pieces();
	batches();
	crowds(false);
	crowds(true);
	idle();
	bare_wake();
	measure_end();
	return 0;
}
