/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/foreign.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/words.h"

const struct lw_foreign lw_foreign[] = {
	{"MC_TCP_BIND_ADDRESS", "address", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_TCP_PROTO", "tcp_proto", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_TCP_LANES_PER_PEER", "tcp_lanes", NULL, 1, 16, LW_FOREIGN_NUMBER},
	{"MC_TCP_MAX_CONNECTIONS_PER_PEER", "tcp_lanes", NULL, 1, 16, LW_FOREIGN_NUMBER}, /* the older name */
	{"MC_CUSTOM_TOPO_JSON", "topology_file", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_METADATA_CLUSTER_ID", "store_cluster", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_REDIS_USERNAME", "store_user", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_REDIS_PASSWORD", "store_password", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_REDIS_DB_INDEX", "store_db", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_DISABLE_HIP", "hip", "off", 0, 0, LW_FOREIGN_PRESENT},
	{"MC_DISABLE_MUSA", "musa", "off", 0, 0, LW_FOREIGN_PRESENT},
	{"MC_DISABLE_MACA", "maca", "off", 0, 0, LW_FOREIGN_PRESENT},
	{"MC_INTRANODE_NVLINK", "gpu_protocol", "nvlink_intra", 0, 0, LW_FOREIGN_PRESENT},
	{"MC_FORCE_TCP", "drivers", "tcp", 0, 0, LW_FOREIGN_PRESENT},
	{"MC_MIN_RPC_PORT", "port_min", NULL, 1024, 65535, LW_FOREIGN_NUMBER},
	{"MC_MIN_PRC_PORT", "port_min", NULL, 1024, 65535, LW_FOREIGN_NUMBER}, /* the older name */
	{"MC_MAX_RPC_PORT", "port_max", NULL, 1024, 65535, LW_FOREIGN_NUMBER},
	{"MC_MAX_PRC_PORT", "port_max", NULL, 1024, 65535, LW_FOREIGN_NUMBER}, /* the older name */
	{"MC_HANDSHAKE_CONNECT_TIMEOUT", "handshake_timeout_ms", NULL, 1, 3599, LW_FOREIGN_SECONDS},
	{"MC_HANDSHAKE_MAX_LENGTH", "handshake_max_bytes", NULL, 1048576, 134217728, LW_FOREIGN_NUMBER},
	{"MC_SLICE_TIMEOUT", "timeout_ms", NULL, 1, 65535, LW_FOREIGN_SECONDS},
	{"MC_TE_FILTERS", "rdma_devices", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_IB_PORT", "rdma_port", NULL, 1, 255, LW_FOREIGN_NUMBER},
	{"MC_GID_INDEX", "rdma_gid_index", NULL, 0, 255, LW_FOREIGN_NUMBER},
	{"NCCL_IB_GID_INDEX", "rdma_gid_index", NULL, 0, 255, LW_FOREIGN_NUMBER},
	{"MC_PKEY_INDEX", "rdma_pkey_index", NULL, 0, 65535, LW_FOREIGN_NUMBER},
	{"MC_NUM_QP_PER_EP", "rdma_qps", NULL, 1, 8, LW_FOREIGN_NUMBER},
	{"MC_MAX_WR", "rdma_wr", NULL, 16, 16384, LW_FOREIGN_NUMBER},
	{"MC_MAX_EP_PER_CTX", "rdma_max_endpoints", NULL, 16, 65535, LW_FOREIGN_NUMBER},
	{"MC_MAX_INLINE", "rdma_inline_bytes", NULL, 0, 1024, LW_FOREIGN_NUMBER},
	{"MC_MTU", "rdma_mtu", NULL, 512, 4096, LW_FOREIGN_NUMBER},
	{"MC_IB_TC", "rdma_traffic_class", NULL, 0, 255, LW_FOREIGN_NUMBER},
	{"MC_IB_SL", "rdma_sl", NULL, 0, 15, LW_FOREIGN_NUMBER},
	{"MC_IB_PCI_RELAXED_ORDERING", "rdma_relaxed_ordering", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_MAX_MR_SIZE", "rdma_max_mr_bytes", NULL, 0, 0, LW_FOREIGN_TEXT},
	{"MC_LOG_LEVEL", "log_level", NULL, 0, 0, LW_FOREIGN_LEVEL},
};
const size_t lw_foreign_count = sizeof(lw_foreign) / sizeof(lw_foreign[0]);

/* Read where they are needed: engine.c, topology.c, the stores, lib/compat. */
static const char *const used[] = {
	"MC_USE_IPV6",
	"MC_TCP_ADMISSION_TIMEOUT_MS",
};

/* Mooncake's, and without a meaning here: what they choose does not exist, or is always so. */
static const char *const unused[] = {
	"MC_HANDSHAKE_PORT",
	"MC_LEGACY_RPC_PORT_BINDING",
	"MC_HANDSHAKE_LISTEN_BACKLOG",
	"MC_DISABLE_METACACHE",
	"MC_TE_METADATA_REFRESH_INTERVAL_SECONDS",
	"MC_FORCE_HCA",
	"MC_FORCE_MNNVL",
	"MC_INTRA_NVLINK",
	"MC_USE_NVLINK_IPC",
	"MC_FORCE_MUSA",
	"MC_CXL_DEV_PATH",
	"MC_CXL_DEV_SIZE",
	"MC_USE_TENT",
	"MC_USE_TEV1",
	"MC_TCP_ENABLE_CONNECTION_POOL",
	"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER",
	"MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER",
	"MC_TCP_SLICE_SIZE",
	"MC_TCP_STATUS_TIMEOUT_SEC",
	"MC_NUM_CQ_PER_CTX",
	"MC_NUM_COMP_CHANNELS_PER_CTX",
	"MC_AUTO_GID_MAX_RETRIES",
	"MC_MAX_CQE_PER_CTX",
	"MC_MAX_SGE",
	"MC_WORKERS_PER_CTX",
	"MC_SLICE_SIZE",
	"MC_FRAGMENT_RATIO",
	"MC_RETRY_CNT",
	"MC_ENABLE_PARALLEL_REG_MR",
	"MC_ENDPOINT_STORE_TYPE",
	"MC_PATH_ROUNDROBIN",
	"MC_ENABLE_DEST_DEVICE_AFFINITY",
	"MC_ENABLE_HCA_PEER_AFFINITY",
	"MC_NIC_PEER_AFFINITY",
	"MC_MLX5_QP_UDP_SPORTS",
	"MC_MLX5_QP_LAG_PORT_BALANCE",
	"MC_RDMA_RAIL_PAUSE_SECONDS",
	"MC_CONN_PAUSE_TTL_MS",
	"MC_RDMA_BIND_ADDRESS",
	"MC_TRACK_RDMA_POSTED_SLICES",
	"MC_LOG_RDMA_SLICE_AFFINITY",
	"MC_LOG_DIR",
	"MC_TE_METRIC",
	"MC_TE_METRIC_INTERVAL_SECONDS",
	"MC_MAX_CONCURRENT_REG_MR",
	"MC_EFA_NIC_SELECTION",
	"MC_EFA_CQ_THREADS",
	"MC_MIN_REG_SIZE",
	"MC_RPC_PROTOCOL",
	"MC_RPC_CLIENT_IO_THREADS",
	"MC_TE_RPC_CLIENT_IO_THREADS",
	/* The Python interface's: apps/python looks at it. */
	"MC_TRANSFER_TIMEOUT",
	/* Another program's: Midnight Commander sets them in its shells. */
	"MC_SID",
	"MC_TMPDIR",
	"MC_CONTROL_FILE",
	"MC_CONTROL_PID",
};

/* Names that begin so are of vendors' builds, or of the store that stands above the engine. */
static const char *const unused_beginnings[] = {"MC_MUSA_", "MC_MACA_",  "MC_HIP_", "MC_UBSHMEM_",
						"MC_EFA_",  "MC_STORE_", "MC_YLT_"};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int number(const struct lw_foreign *foreign, const char *value, const char *unit, uint64_t *out, char *why,
		  size_t why_size)
{
	if (lw_parse_number(value, strlen(value), out) == 0 && *out >= foreign->min && *out <= foreign->max)
		return 0;
	snprintf(why, why_size, "is no whole number of %" PRIu32 " to %" PRIu32 "%s", foreign->min, foreign->max, unit);
	return -EINVAL;
}

int lw_foreign_convert(const struct lw_foreign *foreign, const char *value, char *text, size_t size, const char **out,
		       char *why, size_t why_size)
{
	static const char *const levels[][2] = {
		{"TRACE", "debug"}, {"INFO", "info"}, {"WARNING", "warning"}, {"ERROR", "error"}};
	uint64_t n = 0;
	int error;

	switch (foreign->kind) {
	case LW_FOREIGN_TEXT:
		*out = value;
		return 0;
	case LW_FOREIGN_PRESENT:
		*out = foreign->value;
		return 0;
	case LW_FOREIGN_NUMBER:
		*out = value;
		return number(foreign, value, "", &n, why, why_size);
	case LW_FOREIGN_SECONDS:
		error = number(foreign, value, " (s)", &n, why, why_size);
		if (error != 0)
			return error;
		snprintf(text, size, "%" PRIu64, n * 1000);
		*out = text;
		return 0;
	case LW_FOREIGN_LEVEL:
		break;
	}
	for (size_t i = 0; i < COUNT(levels); i++) {
		if (strcmp(value, levels[i][0]) == 0) {
			*out = levels[i][1];
			return 0;
		}
	}
	snprintf(why, why_size, "is none of TRACE, INFO, WARNING and ERROR");
	return -EINVAL;
}

static bool is_name(const char *name, size_t length, const char *known)
{
	return strlen(known) == length && memcmp(name, known, length) == 0;
}

enum lw_foreign_use lw_foreign_use(const char *name, size_t length)
{
	for (size_t i = 0; i < lw_foreign_count; i++)
		if (is_name(name, length, lw_foreign[i].variable))
			return LW_FOREIGN_USED;
	for (size_t i = 0; i < COUNT(used); i++)
		if (is_name(name, length, used[i]))
			return LW_FOREIGN_USED;
	for (size_t i = 0; i < COUNT(unused); i++)
		if (is_name(name, length, unused[i]))
			return LW_FOREIGN_UNUSED;
	for (size_t i = 0; i < COUNT(unused_beginnings); i++)
		if (length > strlen(unused_beginnings[i]) &&
		    memcmp(name, unused_beginnings[i], strlen(unused_beginnings[i])) == 0)
			return LW_FOREIGN_UNUSED;
	return LW_FOREIGN_UNKNOWN;
}

static void consider(const char *name, size_t length, const char *known, size_t *least, const char **best)
{
	size_t d = lw_word_distance(name, length, known);

	if (d < *least) {
		*least = d;
		*best = known;
	}
}

const char *lw_foreign_similar(const char *name, size_t length)
{
	const char *best = NULL;
	size_t least = 3;

	for (size_t i = 0; i < lw_foreign_count; i++)
		consider(name, length, lw_foreign[i].variable, &least, &best);
	for (size_t i = 0; i < COUNT(used); i++)
		consider(name, length, used[i], &least, &best);
	for (size_t i = 0; i < COUNT(unused); i++)
		consider(name, length, unused[i], &least, &best);
	return best;
}
