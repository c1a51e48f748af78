/* SPDX-License-Identifier: Apache-2.0 */
/* lanes: what lanes over several links, their healing, and classes do, in network namespaces of their own.
 *
 *     lanes CASE [SECONDS] [--json]     CASE: share | cut | class | sick
 *
 * Each peer is a process with its own network; veth links with tbf give the links their rates. Exit 77, and the reason
 * on standard output, where that can't be done. */
#include "bench/measure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "common/bytes.h"
#include "common/engines.h"
#include "common/net.h"
#include "common/peer.h"
#include "common/stream.h"
#include "lib/clock.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define AREA (96 * MIB)
#define SMALL (4 * KIB)
#define LINKS_OF(a, b) "tcp_bind=10.99." #a ".2,10.99." #b ".2"

enum {
	SETTLE_MS = 1000,
	LONGEST_MS = 60000, /* of anything that is waited for */
	SAMPLES = 200000,
	LANES = 64,
	USED = 256 * 1024, /* bytes on a link that show that it is used */
	SICK_MS = 400,     /* deadline of requests to sick peers */
	SICK_LIVE = 64,
};

static double seconds = 1;

/* The initiator ----------------------------------------------------------------------------------------------------*/

static struct {
	struct lw_engine *engine;
	struct lw_channel *channel;
	unsigned char *local;
} own;

static void open_own(const char *settings)
{
	own.local = test_map(AREA, NULL);
	memset(own.local, 1, AREA);
	if (test_engine_try(settings, "10.99.1.1", &own.engine) != 0)
		fail_msg("%s", lw_last_error());
	test_register(own.engine, own.local, AREA, LW_ACCESS_LOCAL);
	assert_int_equal(lw_channel_self(own.engine, &own.channel), 0);
}

static struct lw_request write_to(const struct peer *peer, uint64_t length)
{
	struct lw_request request = {.local = own.local, .offset = peer->addr, .length = length, .op = LW_WRITE};

	if (lw_segment_open(own.engine, peer->name, 0, &request.segment) != 0)
		fail_msg("%s", lw_last_error());
	return request;
}

static struct test_stream *begin_stream(const struct peer *peer, uint64_t length, uint32_t depth, uint8_t priority)
{
	struct test_stream *stream = calloc(1, sizeof(*stream));

	assert_non_null(stream);
	stream->engine = own.engine;
	stream->request = write_to(peer, length);
	stream->request.priority = priority;
	stream->depth = depth;
	test_stream_begin(stream);
	return stream;
}

/* The requests that failed. */
static uint64_t end_stream(struct test_stream *stream)
{
	uint64_t failed;

	test_stream_end(stream);
	failed = atomic_load(&stream->failed);
	free(stream);
	return failed;
}

static void set_rate(const struct peer *peer, unsigned number, const char *rate)
{
	if (!test_net_rate(&(struct test_link){.number = number, .peer = peer->pid}, rate))
		exit(77);
}

/* share: two links of 1:4 ------------------------------------------------------------------------------------------*/

static double rate_of(const struct peer *peer)
{
	struct test_stream *stream = begin_stream(peer, MIB, 32, LW_FOREGROUND);
	uint64_t bytes, begin_ns;
	double rate;

	test_sleep_ms(SETTLE_MS);
	begin_ns = lw_now_ns();
	bytes = test_stream_bytes_in(stream, (uint32_t)(seconds * 1000));
	rate = (double)bytes / (double)(lw_now_ns() - begin_ns);
	if (end_stream(stream) != 0)
		fail_msg("requests failed");
	return rate;
}

/* One peer behind each of the links alone, one behind both of another two of the same rates. */
static void share(void)
{
	static const char *const slow[] = {"link=1", NULL}, *const fast[] = {"link=2", NULL},
				 *const both[] = {"link=3+4", LINKS_OF(3, 4), NULL};
	struct peer peers[3];

	peer_start(&peers[0], AREA, slow);
	peer_start(&peers[1], AREA, fast);
	peer_start(&peers[2], AREA, both);
	open_own("");
	set_rate(&peers[0], 1, "200mbit");
	set_rate(&peers[1], 2, "800mbit");
	set_rate(&peers[2], 3, "200mbit");
	set_rate(&peers[2], 4, "800mbit");
	report("link_200_gbps", rate_of(&peers[0]), "GB/s", 1);
	report("link_800_gbps", rate_of(&peers[1]), "GB/s", 1);
	report("both_links_gbps", rate_of(&peers[2]), "GB/s", 1);
	for (int i = 0; i < 3; i++)
		peer_end(&peers[i]);
}

/* cut: one of two links, under load --------------------------------------------------------------------------------*/

/* How often lanes were lost so far, and how many are lost now. */
static uint64_t losses(void)
{
	static struct lw_lane_stats lanes[LANES];
	int count = lw_stats_lanes(own.engine, lanes, LANES);
	uint64_t sum = 0;

	for (int i = 0; i < count && i < LANES; i++)
		sum += lanes[i].retries + lanes[i].connects + lanes[i].errors +
		       (lanes[i].state != LW_LANE_UP ? UINT64_C(1) << 32 : 0);
	return sum;
}

static void wait_until(bool (*condition)(const void *arg), const void *arg, const char *what)
{
	uint64_t begin_ms = test_now_ms();
	const struct timespec pause = {.tv_nsec = 200000};

	while (!condition(arg)) {
		if (test_now_ms() - begin_ms > LONGEST_MS)
			fail_msg("never: %s", what);
		nanosleep(&pause, NULL);
	}
}

static bool is_lost(const void *before)
{
	return losses() != *(const uint64_t *)before;
}

struct marked {
	struct test_stream *stream;
	uint64_t after_ns;
};

static bool is_over(const void *arg)
{
	struct marked *marked = (struct marked *)(uintptr_t)arg;

	return test_stream_marked(marked->stream, &marked->after_ns);
}

struct used {
	const struct test_link *link;
	uint64_t from;
};

static bool is_used(const void *arg)
{
	const struct used *used = arg;

	return test_net_sent(used->link) >= used->from + USED;
}

static void wait_used(const struct test_link *link)
{
	struct used used = {.link = link, .from = test_net_sent(link)};

	wait_until(is_used, &used, "the link is used");
}

/* detect_ms: from the cut, after which packets vanish without a word, until the engine's figures show the first lane as
 * lost, which they are asked five times a ms. heal_ms: from that moment until the last request has completed that was
 * under way then; those were the cut lane's slices and the others'. takeback_ms: from the end of the outage until 256
 * KiB more have left by that link. All requests must complete. */
static void cut(void)
{
	static const char *const options[] = {"link=1+2", LINKS_OF(1, 2), NULL};
	struct test_link link = {.number = 2};
	struct marked marked = {0};
	uint64_t begin_ns, before;
	struct peer peer;

	peer_start(&peer, AREA, options);
	link.peer = peer.pid;
	open_own("");
	set_rate(&peer, 1, "800mbit");
	set_rate(&peer, 2, "800mbit");
	marked.stream = begin_stream(&peer, 64 * KIB, 16, LW_FOREGROUND);
	test_sleep_ms(SETTLE_MS);
	wait_used(&link);
	before = losses();
	begin_ns = lw_now_ns();
	test_net_cut(&link, TEST_CUT_SILENT);
	wait_until(is_lost, &before, "the cut lane is lost");
	test_stream_mark(marked.stream);
	report("detect_ms", (double)(lw_now_ns() - begin_ns) / 1e6, "ms", 1);
	wait_until(is_over, &marked, "what was under way has ended");
	report("heal_ms", (double)marked.after_ns / 1e6, "ms", 1);
	test_sleep_ms((uint32_t)(seconds * 1000));
	begin_ns = lw_now_ns();
	test_net_mend(&link, TEST_CUT_SILENT);
	wait_used(&link);
	report("takeback_ms", (double)(lw_now_ns() - begin_ns) / 1e6, "ms", 1);
	report("heal_failed", (double)end_stream(marked.stream), "requests", 1);
	peer_end(&peer);
}

/* class: the foreground under bulk ---------------------------------------------------------------------------------*/

static double samples[SAMPLES];

/* Small requests, one at a time with pauses; the 99th percentile in us. */
static double p99_us(struct lw_request request, size_t *count)
{
	uint64_t until_ms = test_now_ms() + (uint64_t)(seconds * 1000);
	const struct timespec pause = {.tv_nsec = 200000};

	for (*count = 0; test_now_ms() < until_ms && *count < SAMPLES; ++*count) {
		uint64_t begin_ns = lw_now_ns();

		request.op = *count % 2 == 0 ? LW_WRITE : LW_READ;
		if (test_transfer(own.engine, own.channel, request).state != LW_COMPLETED)
			fail_msg("a request failed");
		samples[*count] = (double)(lw_now_ns() - begin_ns) / 1e3;
		nanosleep(&pause, NULL);
	}
	return percentile(samples, *count, 0.99);
}

static void measure_class(const char *tag, const struct peer *peer, const char *settings)
{
	static const char *const parts[] = {"idle_p99_us", "bulk_p99_us", "bulk_gbps", "slice_us"};
	double values[4];
	struct test_stream *bulk;
	struct lw_request request;
	uint64_t begin_ns, before;
	size_t count[2];

	open_own(settings);
	request = write_to(peer, SMALL);
	request.local = own.local + AREA - SMALL;
	request.offset = peer->addr + AREA - SMALL;
	test_transfer(own.engine, own.channel, request);
	values[0] = p99_us(request, &count[0]);
	bulk = begin_stream(peer, 4 * MIB, 16, LW_BULK);
	test_sleep_ms(SETTLE_MS);
	begin_ns = lw_now_ns();
	before = atomic_load(&bulk->bytes);
	values[1] = p99_us(request, &count[1]);
	values[2] = (double)(atomic_load(&bulk->bytes) - before) / (double)(lw_now_ns() - begin_ns);
	values[3] = 4.0 * (double)MIB / values[2] / 1e3; /* slice_bytes is 4 MiB */
	if (end_stream(bulk) != 0)
		fail_msg("requests of the bulk failed");
	for (int i = 0; i < 4; i++) {
		char name[64];

		snprintf(name, sizeof(name), "%s_%s", tag, parts[i]);
		report(name, values[i], strstr(parts[i], "gbps") != NULL ? "GB/s" : "us", count[i == 1]);
	}
	assert_int_equal(lw_engine_close(own.engine), 0);
	test_unmap(own.local, AREA);
}

static void class(void)
{
	static const char *const link[] = {"link=1", NULL}, *const near[] = {"shm_peers=on", NULL};
	struct peer peers[2];

	peer_start(&peers[0], AREA, link);
	peer_start(&peers[1], AREA, near);
	set_rate(&peers[0], 1, "1gbit");
	measure_class("link", &peers[0], "drivers=tcp");
	measure_class("loopback", &peers[1], "drivers=tcp");
	measure_class("shm", &peers[1], "drivers=shm shm_peers=on");
	for (int i = 0; i < 2; i++)
		peer_end(&peers[i]);
}

/* sick: healthy peers beside sick ones -----------------------------------------------------------------------------*/

enum { HEALTHY = 3, PEERS = 5 };

static struct {
	struct lw_request requests[PEERS];
	lw_batch_t live[SICK_LIVE];
	uint64_t seed, asked;
} sick;

static void tend_sick(bool ask)
{
	for (int i = 0; i < SICK_LIVE; i++) {
		struct lw_batch_status status;

		if (sick.live[i] != 0 && lw_batch_status(own.engine, sick.live[i], &status) == 0 &&
		    status.state != LW_PENDING) {
			lw_batch_free(own.engine, sick.live[i]);
			sick.live[i] = 0;
		}
		if (sick.live[i] != 0 || !ask)
			continue;
		ask = false;
		sick.asked++;
		if (lw_batch_alloc(own.channel, 1, 0, NULL, &sick.live[i]) != 0)
			fail_msg("%s", lw_last_error());
		test_submit(own.channel, sick.live[i], &sick.requests[HEALTHY + test_random(&sick.seed) % 2], 1);
	}
}

/* Requests to the healthy ones, one at a time; a quarter as many to the sick ones beside. */
static double healthy_p99_us(bool with_sick, size_t *count)
{
	uint64_t until_ms = test_now_ms() + (uint64_t)(seconds * 1000);

	for (*count = 0; test_now_ms() < until_ms && *count < SAMPLES; ++*count) {
		struct lw_request request = sick.requests[test_random(&sick.seed) % HEALTHY];
		uint64_t begin_ns = lw_now_ns();

		request.op = (uint8_t)(test_random(&sick.seed) % 2);
		request.length = SMALL << test_random(&sick.seed) % 5;
		if (test_transfer(own.engine, own.channel, request).state != LW_COMPLETED)
			fail_msg("a request to a healthy peer failed");
		samples[*count] = (double)(lw_now_ns() - begin_ns) / 1e3;
		if (with_sick && *count % 3 == 0)
			tend_sick(true);
	}
	return percentile(samples, *count, 0.99);
}

static void sick_peers(void)
{
	struct peer peers[PEERS];
	struct test_link link = {.number = PEERS};
	double without_us, with_us;
	size_t count[2];

	for (unsigned i = 0; i < PEERS; i++) {
		char option[16];
		const char *const options[] = {option, NULL};

		snprintf(option, sizeof(option), "link=%u", i + 1);
		peer_start(&peers[i], MIB, options);
	}
	open_own("connect_timeout_ms=300 refresh=off");
	sick.seed = 1;
	for (int i = 0; i < PEERS; i++) {
		sick.requests[i] = write_to(&peers[i], SMALL);
		if (test_transfer(own.engine, own.channel, sick.requests[i]).state != LW_COMPLETED)
			fail_msg("a first request failed");
		sick.requests[i].timeout_ms = i >= HEALTHY ? SICK_MS : 0;
	}
	link.peer = peers[PEERS - 1].pid;
	peer_freeze(&peers[HEALTHY]);
	test_net_cut(&link, TEST_CUT_SILENT);
	without_us = healthy_p99_us(false, &count[0]);
	with_us = healthy_p99_us(true, &count[1]);
	report("healthy_alone_p99_us", without_us, "us", count[0]);
	report("healthy_p99_us", with_us, "us", count[1]);
	report("sick_requests", (double)sick.asked, "requests", 1);
	test_net_mend(&link, TEST_CUT_SILENT);
	kill(peers[HEALTHY].pid, SIGCONT);
	for (int i = 0; i < PEERS; i++)
		peer_end(&peers[i]);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
		bool lanes; /* over several addresses */
	} cases[] = {{"share", share, true}, {"cut", cut, true}, {"class", class, false}, {"sick", sick_peers, false}};
	const char *name = argc > 1 ? argv[1] : "";
	int status;

	if (peer_main(argc, argv, &status))
		return status;
	for (int i = 2; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			measure_json = true;
		else
			seconds = strtod(argv[i], NULL);
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (strcmp(name, cases[i].name) != 0)
			continue;
		if (cases[i].lanes && !test_setting_known("tcp_bind")) {
			print_message("skipped: this build has no lanes over several addresses (setting tcp_bind)\n");
			return 77;
		}
		if (!test_net_enter())
			return 77;
		cases[i].run();
		measure_end();
		return 0;
	}
	fprintf(stderr, "lanes: share, cut, class or sick; then seconds, and --json\n");
	return 2;
}
