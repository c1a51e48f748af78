/* SPDX-License-Identifier: Apache-2.0 */
/* One schedule: an engine of its own, some hundred random steps, better weather, and the reckoning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

#define SETTINGS 24
#define STEPS 80 /* on the average, and 20 */
#define MAX_LANES 16
#define CONNECT_MS 200
#define REST_MS 100000 /* everything ends in that time once the weather is good */

struct settings {
	struct lw_setting list[SETTINGS];
	char text[SETTINGS][24];
	size_t count;
};

static void set(struct settings *settings, const char *name, uint64_t value)
{
	struct lw_setting *setting = &settings->list[settings->count];

	snprintf(settings->text[settings->count], sizeof(settings->text[0]), "%llu", (unsigned long long)value);
	*setting = (struct lw_setting){.name = name, .value = settings->text[settings->count++]};
}

static void set_word(struct settings *settings, const char *name, const char *value)
{
	settings->list[settings->count++] = (struct lw_setting){.name = name, .value = value};
}

static void open_engine(void)
{
	const char *const drivers[] = {"tcp", "shm,tcp", "tcp,shm", "shm"};
	uint64_t which = sim_random(8) < 4 ? sim_random(2) : sim_random(4);
	uint64_t lanes = 1 + (sim_chance(500) ? 0 : sim_random(5));
	struct settings settings = {.count = 0};
	struct lw_engine_opts opts;

	set_word(&settings, "poll", "caller");
	set_word(&settings, "hugepages", "off");
	set_word(&settings, "log_level", "error");
	set_word(&settings, "drivers", drivers[which]);
	sim.tcp_first = which == 2;
	set_word(&settings, "refresh", sim_chance(800) ? "on" : "off");
	set(&settings, "max_batches", 16);
	set(&settings, "max_tasks", 2048);
	set(&settings, "max_segments", 8);
	set(&settings, "max_channels", 2);
	set(&settings, "max_lanes", MAX_LANES);
	set(&settings, "max_slices", 64);
	set(&settings, "ring_size", 16);
	set(&settings, "slice_bytes", UINT64_C(4096) << sim_random(3));
	set(&settings, "lane_bytes", UINT64_C(65536) << sim_random(2));
	set(&settings, "tcp_lanes", sim_chance(300) ? 0 : lanes);
	set(&settings, "lane_stall_ms", sim_chance(200) ? 0 : sim_random(400));
	set(&settings, "foreground_weight", UINT64_C(1) << sim_random(12));
	for (uint32_t i = 0; i <= SIM_SELF; i++) /* ways make lanes, too */
		sim.peers[i].causes |= SIM_SHORT;
	set(&settings, "connect_timeout_ms", 10 + sim_random(CONNECT_MS - 10));
	set(&settings, "timeout_ms", 30000);
	SIM_CHECK(lw_engine_opts_init(&opts, sizeof(opts)) == 0, "no options");
	opts.name = "127.0.0.1";
	opts.settings = settings.list;
	opts.settings_count = settings.count;
	SIM_CHECK(lw_engine_open(&opts, &sim.engine) == 0, "no engine: %s", lw_last_error());
	sim.worker = &sim.engine->workers[0];
	SIM_CHECK(lw_channel_open(sim.engine, &sim.channel) == 0, "no channel: %s", lw_last_error());
}

static void step(void)
{
	uint64_t dice = sim_random(100);

	if (dice < 25)
		sim_app_submit();
	else if (dice < 62)
		sim_pass();
	else if (dice < 66 && !sim.calm)
		sim_app_cancel();
	else if (dice < 70)
		sim_app_poll();
	else if (dice < 74)
		sim_app_free(false);
	else if (dice < 82)
		sim_ctrl_run();
	else if (dice < 90)
		sim_peer_weather(&sim.peers[sim_random(SIM_PEERS + 1)]);
	else if (dice < 92)
		sim_tables_segment();
	else if (dice < 94)
		sim_tables_buffer();
	else if (dice < 99)
		sim.now_ns += sim_random(40) * SIM_MS;
	else if (!sim.calm)
		sim.now_ns += sim_random(2000) * SIM_MS;
	sim.now_ns += sim_chance(400) ? sim_random(2 * SIM_MS) : 0;
}

/* Passes and time until nothing is under way. */
static void rest(void)
{
	uint64_t end_ns = sim.now_ns + REST_MS * SIM_MS;

	for (uint32_t turn = 0; sim.live_count != 0 || !sim_ctrl_idle(); turn++) {
		SIM_CHECK(sim.now_ns < end_ns, "%u requests do not end when the weather is good", sim.live_count);
		sim_pass();
		sim_ctrl_run();
		sim.now_ns += turn < 20 ? SIM_MS / 2 : 20 * SIM_MS;
	}
	sim_pass();
}

/* Whether the last request of a peer may end like this: it offers less now, or there is no lane left for it, or another
 * one beside it was refused, which ends the connection. */
static bool may_miss(const struct sim_request *request)
{
	uint32_t reason = request->outcome.reason, causes = sim.peers[request->peer].causes;

	if (reason == LW_REASON_REMOTE_RANGE || reason == LW_REASON_REFUSED)
		return (causes & SIM_OFFER_LESS) != 0;
	if (reason == LW_REASON_RESET)
		return request->unfenced;
	return reason == LW_REASON_RESOURCES && sim.worker->free_lanes_count == 0;
}

/* What has to come through when the weather is good: everything that is not another life's. */
static void check_probes(void)
{
	const struct sim_batch *batch = &sim.batches[0];

	for (uint32_t i = 0; i < batch->submitted; i++) {
		const struct sim_request *request = &sim_requests[batch->requests[i]];
		const struct sim_segment *segment = &sim.segments[request->segment];
		bool same_life = request->peer == SIM_SELF || segment->life == sim.peers[request->peer].life;

		if (same_life && !request->bad_local && !request->bad_remote)
			SIM_CHECK(request->outcome.state == LW_COMPLETED || may_miss(request),
				  "a healthy peer is not reached: %s", lw_reason_string((int)request->outcome.reason));
		if (!same_life && request->peer != SIM_SELF)
			SIM_CHECK(request->outcome.state != LW_COMPLETED || segment->life == 0,
				  "a request reached another life of its peer");
	}
}

static void reckon(void)
{
	sim.healing = true;
	sim_peers_heal();
	rest();
	sim_app_free(true);
	/* Connects that began in bad weather have failed by then. */
	for (uint32_t i = 0; i <= CONNECT_MS / 20; i++) {
		sim.now_ns += 20 * SIM_MS;
		sim_pass();
	}
	sim_app_probe();
	rest();
	check_probes();
	for (uint32_t i = 0; i < SIM_BATCHES; i++)
		sim_app_poll();
	for (uint32_t i = 0; i < SIM_BATCHES; i++)
		SIM_CHECK(!sim.batches[i].owed, "the end of batch %u was never told", i);
	sim_app_free(true);
	sim_tables_end();
	rest();
	sim_inside_rest();
}

void sim_schedule(uint64_t seed)
{
	bool trace = sim.trace;
	const char *program = sim.program;
	uint64_t steps;
	bool dropped;

	for (uint32_t i = 0; i < sim.requests_top; i++)
		sim_requests[i].used = false;
	memset(&sim, 0, sizeof(sim));
	sim.trace = trace;
	sim.program = program;
	sim.seed = seed;
	sim.random = seed;
	/* Some begin a moment before the worker's milliseconds wrap. */
	sim.now_ns = sim_chance(100) ? ((UINT64_C(1) << 32) - sim_random(2000)) * SIM_MS
				     : (UINT64_C(1000000) + sim_random(1000000)) * SIM_MS;
	sim.last_pass_ns = sim.now_ns;
	sim.calm = sim_chance(150);
	sim.unordered = sim_chance(200);
	dropped = sim_chance(200);
	sim_driver_begin();
	sim_peers_begin();
	open_engine();
	sim_tables_begin();
	for (steps = 20 + sim_random(2 * STEPS); steps > 0; steps--)
		step();
	/* Or it is closed in the middle of everything. */
	if (!dropped)
		reckon();
	SIM_SAY("the engine is closed with %u requests under way", sim.live_count);
	SIM_CHECK(lw_engine_close(sim.engine) == 0, "the engine is not closed");
	SIM_CHECK(sim_driver_open_lanes() == 0, "%u lanes are open after the engine", sim_driver_open_lanes());
	sim_peers_end();
	for (uint32_t i = 0; i < SIM_BATCHES; i++)
		free(sim.batches[i].requests);
	SIM_CHECK(sim.reached == 0, "%u peers are held after the engine", sim.reached);
}
