/* SPDX-License-Identifier: Apache-2.0 */
/* Topologies of recorded trees under test/data/topology, of hwloc's XML and of this host, and the matrices of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/engines.h"
#include "meta/topology.h"

#define TREE(name) "test/data/topology/" name
#define NO_HWLOC "libthere-is-none.so.1"

static struct lw_topology *discover(const struct lw_topology_opts *opts)
{
	struct lw_topology *topology = NULL;

	assert_int_equal(lw_topology_discover(opts, &topology), 0);
	assert_non_null(topology);
	return topology;
}

static const struct lw_device *device_of(const struct lw_topology *topology, const char *name)
{
	for (size_t i = 0; i < topology->device_count; i++)
		if (strcmp(topology->devices[i].name, name) == 0)
			return &topology->devices[i];
	fail_msg("no device %s", name);
	return NULL;
}

static void assert_matrix(const struct lw_topology *topology, const char *expected)
{
	struct lw_matrix matrix = {.row_count = 0};
	char *text;

	assert_int_equal(lw_topology_matrix(topology, &matrix), 0);
	text = lw_matrix_print(&matrix);
	assert_string_equal(text, expected);
	free(text);
	lw_matrix_fini(&matrix);
}

static void assert_distance(const struct lw_topology *topology, const char *from, const char *to, const char *expected)
{
	const struct lw_device *a = device_of(topology, from), *b = device_of(topology, to);

	assert_string_equal(lw_distance_name(lw_topology_distance(a, b, NULL)), expected);
	assert_string_equal(lw_distance_name(lw_topology_distance(b, a, NULL)), expected);
}

static void test_discover_two_nodes_finds_devices_places_and_speeds(void **state)
{
	struct lw_topology *topology =
		discover(&(struct lw_topology_opts){.sysfs = TREE("two-nodes"), .hwloc = NO_HWLOC});
	const struct lw_device *device;

	(void)state;
	assert_int_equal(topology->node_count, 2);
	assert_int_equal(topology->nodes[1].number, 1);
	assert_string_equal(topology->nodes[1].cpus, "16-31");
	assert_int_equal(topology->device_count, 2 + 3 + 4 + 1 - 0);
	device = device_of(topology, "mlx5_0");
	assert_string_equal(device->pci, "0000:14:00.0");
	assert_string_equal(device->path, "pci0000:10/0000:10:00.0/0000:11:00.0/0000:12:01.0/0000:14:00.0");
	assert_int_equal(device->node, 0);
	assert_int_equal(device->speed_mbps, 200000);
	assert_true(device->usable);
	assert_int_equal(device_of(topology, "mlx5_1")->speed_mbps, 2500);
	device = device_of(topology, "eno1");
	assert_int_equal(device->kind, LW_DEVICE_NET);
	assert_int_equal(device->node, 1);
	assert_int_equal(device->speed_mbps, 25000);
	assert_true(device_of(topology, "lo")->loopback && device_of(topology, "lo")->usable);
	assert_string_equal(device_of(topology, "nvme0")->pci, "0000:25:00.0");
	assert_string_equal(device_of(topology, "cuda:3")->pci, "0000:92:00.0");
	assert_non_null(strstr(topology->note, "from sysfs"));
	lw_topology_free(topology);
}

static void test_discover_two_nodes_prefers_near_hcas(void **state)
{
	struct lw_topology *topology = discover(&(struct lw_topology_opts){.sysfs = TREE("two-nodes")});

	(void)state;
	assert_matrix(topology, "{\"cpu:0\":[[\"mlx5_0\",\"mlx5_1\"],[]],\"cpu:1\":[[],[\"mlx5_0\",\"mlx5_1\"]],"
				"\"cuda:0\":[[\"mlx5_0\"],[\"mlx5_1\"]],\"cuda:1\":[[\"mlx5_1\"],[\"mlx5_0\"]],"
				"\"cuda:2\":[[\"mlx5_0\",\"mlx5_1\"],[]],\"cuda:3\":[[\"mlx5_0\",\"mlx5_1\"],[]]}");
	lw_topology_free(topology);
}

static void test_distance_has_a_class_for_each_way(void **state)
{
	struct lw_topology *topology = discover(&(struct lw_topology_opts){.sysfs = TREE("two-nodes")});
	uint32_t hops = 0;

	(void)state;
	assert_distance(topology, "mlx5_0", "ib0", "card");
	assert_distance(topology, "cuda:0", "mlx5_0", "switch");
	assert_distance(topology, "cuda:1", "nvme0", "root");
	assert_distance(topology, "cuda:0", "mlx5_1", "node");
	assert_distance(topology, "cuda:2", "eno1", "node");
	assert_distance(topology, "cuda:2", "mlx5_0", "other");
	assert_distance(topology, "lo", "mlx5_0", "other");
	assert_distance(topology, "lo", "lo", "other");
	assert_int_equal(lw_topology_distance(device_of(topology, "cuda:0"), device_of(topology, "mlx5_0"), &hops),
			 LW_DISTANCE_SWITCH);
	assert_int_equal(hops, 4);
	lw_topology_distance(device_of(topology, "cuda:0"), device_of(topology, "lo"), &hops);
	assert_int_equal(hops, UINT32_MAX);
	lw_topology_free(topology);
}

static void test_discover_loopback_alone_has_a_node_and_no_nic(void **state)
{
	struct lw_topology *topology = discover(&(struct lw_topology_opts){.sysfs = TREE("loopback")});

	(void)state;
	assert_int_equal(topology->node_count, 1);
	assert_int_equal(topology->device_count, 1);
	assert_matrix(topology, "{\"cpu:0\":[[],[]]}");
	lw_topology_free(topology);
}

static void test_discover_nothing_at_all_has_one_node(void **state)
{
	struct lw_topology *topology = discover(&(struct lw_topology_opts){.sysfs = TREE("not-there")});

	(void)state;
	assert_int_equal(topology->node_count, 1);
	assert_int_equal(topology->device_count, 0);
	assert_matrix(topology, "{\"cpu:0\":[[],[]]}");
	lw_topology_free(topology);
}

static void test_discover_functions_tells_states_and_never_prefers_a_virtual_one(void **state)
{
	struct lw_topology *topology =
		discover(&(struct lw_topology_opts){.sysfs = TREE("functions"), .hwloc = NO_HWLOC});

	(void)state;
	assert_string_equal(device_of(topology, "mlx5_2")->of, "0000:3b:00.0");
	assert_string_equal(device_of(topology, "mlx5_0")->of, "");
	assert_string_equal(device_of(topology, "mlx5_11")->why, "no port is active");
	assert_string_equal(device_of(topology, "rxe0")->why, "no active port has a GID");
	assert_string_equal(device_of(topology, "rxe0")->pci, "0000:3b:00.0"); /* of the interface it runs on */
	assert_string_equal(device_of(topology, "ens1f0v1")->why, "it is not up");
	assert_string_equal(device_of(topology, "ens2")->why, "its link is down");
	assert_int_equal(device_of(topology, "ens2")->speed_mbps, 0);
	assert_false(device_of(topology, "ens2")->usable);
	assert_true(device_of(topology, "docker0")->bridge);
	assert_false(device_of(topology, "ens1f0")->bridge);
	/* Nobody knows the node of mlx5_10: it is available everywhere. Numbers sort by value. */
	assert_int_equal(device_of(topology, "mlx5_10")->node, -1);
	assert_non_null(strstr(topology->note, NO_HWLOC));
	assert_matrix(
		topology,
		"{\"cpu:0\":[[\"mlx5_0\"],[\"mlx5_2\",\"mlx5_10\"]],\"cpu:1\":[[],[\"mlx5_0\",\"mlx5_2\",\"mlx5_10\"]],"
		"\"hip:0\":[[\"mlx5_0\"],[\"mlx5_2\",\"mlx5_10\"]]}");
	lw_topology_free(topology);
}

static void test_discover_filter_leaves_the_others_out(void **state)
{
	struct lw_topology *topology =
		discover(&(struct lw_topology_opts){.sysfs = TREE("functions"), .hcas = " mlx5_10 ,mlx5_2,mlx5"});

	(void)state;
	/* Without its card a virtual function is as good as any. */
	assert_matrix(topology, "{\"cpu:0\":[[\"mlx5_2\"],[\"mlx5_10\"]],\"cpu:1\":[[],[\"mlx5_2\",\"mlx5_10\"]],"
				"\"hip:0\":[[\"mlx5_2\"],[\"mlx5_10\"]]}");
	assert_string_equal(device_of(topology, "mlx5_0")->why, "not among those that may be used");
	lw_topology_free(topology);
}

static void test_discover_hca_that_may_not_be_opened_is_off(void **state)
{
	struct lw_topology *topology =
		discover(&(struct lw_topology_opts){.sysfs = TREE("two-nodes"), .dev = TREE("two-nodes")});

	(void)state;
	assert_false(device_of(topology, "mlx5_0")->usable);
	assert_non_null(strstr(device_of(topology, "mlx5_0")->why, "ib_uverbs"));
	assert_matrix(topology, "{\"cpu:0\":[[],[]],\"cpu:1\":[[],[]],\"cuda:0\":[[],[]],\"cuda:1\":[[],[]],"
				"\"cuda:2\":[[],[]],\"cuda:3\":[[],[]]}");
	lw_topology_free(topology);
}

static bool hwloc_is_there(void)
{
	void *library = dlopen("libhwloc.so.15", RTLD_NOW);

	return library != NULL && dlclose(library) == 0;
}

static void test_discover_xml_gives_the_same_kind_of_answer(void **state)
{
	struct lw_topology *topology;

	(void)state;
	if (!hwloc_is_there()) {
		print_message("skipped: libhwloc.so.15 is not there\n");
		skip();
	}
	topology = discover(&(struct lw_topology_opts){.xml = TREE("two-nodes.xml")});
	assert_int_equal(topology->node_count, 2);
	assert_string_equal(topology->nodes[1].cpus, "2-3");
	assert_string_equal(device_of(topology, "mlx5_0")->path, "pci0000:10/0000:10:00.0/0000:12:00.0");
	assert_string_equal(device_of(topology, "mlx5_2")->path, "pci0000:80/0000:80:02.0");
	assert_false(device_of(topology, "mlx5_2")->usable);
	assert_int_equal(device_of(topology, "nvme3")->node, 1);
	assert_int_equal(device_of(topology, "ib0")->kind, LW_DEVICE_NET);
	assert_distance(topology, "cuda:0", "mlx5_0", "switch");
	assert_distance(topology, "nvme3", "mlx5_1", "root");
	assert_matrix(topology, "{\"cpu:0\":[[\"mlx5_0\"],[\"mlx5_1\"]],\"cpu:1\":[[\"mlx5_1\"],[\"mlx5_0\"]],"
				"\"cuda:0\":[[\"mlx5_0\"],[\"mlx5_1\"]]}");
	lw_topology_free(topology);
}

static void test_discover_bad_xml_or_no_hwloc_is_an_error(void **state)
{
	struct lw_topology *topology = NULL;

	(void)state;
	assert_int_equal(
		lw_topology_discover(&(struct lw_topology_opts){.xml = TREE("two-nodes.xml"), .hwloc = NO_HWLOC},
				     &topology),
		-ENOTSUP);
	assert_null(topology);
}

/* hwloc is asked where devices of unknown nodes are; it looks at this host, so what comes out is this host's business.
 */
static void test_discover_asks_hwloc_and_leaves_affinity_alone(void **state)
{
	struct lw_topology *topology;
	cpu_set_t before, after;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	topology = discover(&(struct lw_topology_opts){.sysfs = TREE("functions")});
	assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_non_null(strstr(topology->note, "hwloc"));
	lw_topology_free(topology);
}

static void test_discover_this_host_works(void **state)
{
	struct lw_topology *topology = discover(NULL);
	bool loopback = false;

	(void)state;
	assert_true(topology->node_count >= 1);
	for (size_t i = 0; i < topology->device_count; i++)
		loopback |= topology->devices[i].loopback;
	assert_true(loopback);
	lw_topology_free(topology);
}

/* The report ---------------------------------------------------------------------------------------------------------
 */

static cJSON *report(struct lw_engine *engine)
{
	char *text = NULL;
	cJSON *json;

	assert_int_equal(lw_topology_json(engine, &text), 0);
	json = cJSON_Parse(text);
	assert_non_null(json);
	free(text);
	return json;
}

static void assert_sorted(const cJSON *json)
{
	const cJSON *item;

	cJSON_ArrayForEach(item, json)
	{
		if (cJSON_IsObject(json) && item->next != NULL)
			assert_true(strcmp(item->string, item->next->string) < 0);
		assert_sorted(item);
	}
}

static void assert_report_matrix(struct lw_engine *engine, const char *source, const char *matrix)
{
	cJSON *json = report(engine);
	char *text = cJSON_PrintUnformatted(cJSON_GetObjectItem(json, "matrix"));

	assert_sorted(json);
	assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "source")), source);
	if (matrix != NULL)
		assert_string_equal(text, matrix);
	cJSON_free(text);
	cJSON_Delete(json);
}

static void test_json_without_an_engine_reports_this_host(void **state)
{
	(void)state;
	assert_int_equal(lw_topology_json(NULL, NULL), -EINVAL);
	assert_report_matrix(NULL, "discovered", NULL);
}

static void test_json_setting_topology_gives_the_matrix(void **state)
{
	struct lw_engine *engine = test_engine("topology={\"cpu:1\":[[\"b\"],[]],\"cpu:0\":[[\"a\"],[\"b\"]]}");
	char *text = NULL;

	(void)state;
	assert_report_matrix(engine, "topology", "{\"cpu:0\":[[\"a\"],[\"b\"]],\"cpu:1\":[[\"b\"],[]]}");
	lw_engine_close(engine);
	assert_int_equal(lw_topology_json(engine, &text), -ESHUTDOWN);
	engine = test_engine("");
	assert_report_matrix(engine, "discovered", NULL);
	lw_engine_close(engine);
}

static void test_open_wrong_topology_is_refused_and_named(void **state)
{
	struct lw_engine *engine = NULL;

	(void)state;
	assert_int_equal(test_engine_try("topology={\"cpu:0\":[[\"a\"]]}", "127.0.0.1", &engine), -EINVAL);
	assert_non_null(strstr(lw_last_error(), "topology"));
	assert_non_null(strstr(lw_last_error(), "\"cpu:0\" is not a list of two lists"));
}

static char file[] = "/tmp/lw_test_topology_XXXXXX";

static void write_file(const char *text)
{
	FILE *to = fopen(file, "w");

	assert_non_null(to);
	fputs(text, to);
	assert_int_equal(fclose(to), 0);
}

static int make_file(void **state)
{
	int fd = mkstemp(file);

	(void)state;
	return fd < 0 ? -1 : close(fd);
}

static int drop_file(void **state)
{
	(void)state;
	unsetenv("MC_CUSTOM_TOPO_JSON");
	return unlink(file);
}

static int warnings;
static char warning[1100];

static void collect(int level, const char *line, void *arg)
{
	(void)arg;
	if (level == 1) {
		warnings++;
		snprintf(warning, sizeof(warning), "%s", line);
	}
}

static void test_open_topology_file_is_read_and_refused_when_wrong(void **state)
{
	struct lw_engine *engine = NULL;
	char setting[100];

	(void)state;
	snprintf(setting, sizeof(setting), "topology_file=%s", file);
	write_file(" {\"cpu:0\" : [ [\"mlx5_3\"], [] ]}\n");
	engine = test_engine(setting);
	assert_report_matrix(engine, "topology_file", "{\"cpu:0\":[[\"mlx5_3\"],[]]}");
	lw_engine_close(engine);
	write_file("{\"cpu:0\":[[7],[]]}");
	assert_int_equal(test_engine_try(setting, "127.0.0.1", &engine), -EINVAL);
	assert_non_null(strstr(lw_last_error(), file));
	assert_non_null(strstr(lw_last_error(), "\"cpu:0\"[0][0] is not a device name"));
	assert_int_equal(test_engine_try("topology_file=/not/there", "127.0.0.1", &engine), -ENOENT);
	assert_non_null(strstr(lw_last_error(), "/not/there"));
	assert_int_equal(test_engine_try("topology_file=/tmp", "127.0.0.1", &engine), -EINVAL);
}

static void test_open_environment_names_a_file_and_a_wrong_one_is_warned_of(void **state)
{
	struct lw_engine *engine;

	(void)state;
	write_file("{\"cpu:0\":[[\"mlx5_4\"],[]]}");
	setenv("MC_CUSTOM_TOPO_JSON", file, 1);
	engine = test_engine("");
	assert_report_matrix(engine, "topology_file", "{\"cpu:0\":[[\"mlx5_4\"],[]]}");
	lw_engine_close(engine);
	engine = test_engine("topology={\"cpu:0\":[[\"a\"],[]]}");
	assert_report_matrix(engine, "topology", "{\"cpu:0\":[[\"a\"],[]]}");
	lw_engine_close(engine);
	write_file("{");
	warnings = 0;
	lw_log_set(collect, NULL);
	engine = test_engine("");
	lw_log_set(NULL, NULL);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, file));
	assert_report_matrix(engine, "discovered", NULL);
	lw_engine_close(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_discover_two_nodes_finds_devices_places_and_speeds),
		cmocka_unit_test(test_discover_two_nodes_prefers_near_hcas),
		cmocka_unit_test(test_distance_has_a_class_for_each_way),
		cmocka_unit_test(test_discover_loopback_alone_has_a_node_and_no_nic),
		cmocka_unit_test(test_discover_nothing_at_all_has_one_node),
		cmocka_unit_test(test_discover_functions_tells_states_and_never_prefers_a_virtual_one),
		cmocka_unit_test(test_discover_filter_leaves_the_others_out),
		cmocka_unit_test(test_discover_hca_that_may_not_be_opened_is_off),
		cmocka_unit_test(test_discover_xml_gives_the_same_kind_of_answer),
		cmocka_unit_test(test_discover_bad_xml_or_no_hwloc_is_an_error),
		cmocka_unit_test(test_discover_asks_hwloc_and_leaves_affinity_alone),
		cmocka_unit_test(test_discover_this_host_works),
		cmocka_unit_test(test_json_without_an_engine_reports_this_host),
		cmocka_unit_test(test_json_setting_topology_gives_the_matrix),
		cmocka_unit_test(test_open_wrong_topology_is_refused_and_named),
		cmocka_unit_test(test_open_topology_file_is_read_and_refused_when_wrong),
		cmocka_unit_test(test_open_environment_names_a_file_and_a_wrong_one_is_warned_of),
	};

	return cmocka_run_group_tests(tests, make_file, drop_file);
}
