/* SPDX-License-Identifier: Apache-2.0 */
/* What this host is made of, and which NICs serve which memory. */
#ifndef LANEWISE_TOPOLOGY_H
#define LANEWISE_TOPOLOGY_H

#include <lanewise/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The topology as a JSON object, keys sorted, no blanks:
 *   devices    [{"addresses","bridge","kind","name","node","pci","speed_mbps","usable","virtual_function_of","why"}]:
 *              kind is hca (a verbs device), net, gpu or nvme; node the NUMA node or null; pci an address or ""; speed
 *              in Mbit/s, 0: unknown; why it is not usable, or "". GPUs are named cuda:N and hip:N in the order of
 * their PCI addresses. distances  [{"distance","from","hops","to"}] from each GPU to each hca and nvme: card, switch
 * (one PCI bridge), root (one root complex), node (one NUMA node) or other; hops on the PCI trees, or null matrix
 * {"<location>":[["<preferred hca>",...],["<other hca>",...]],...}, a location being cpu:<NUMA node>, cuda:<N> or
 * hip:<N>; null if empty nodes      [{"cpus","number"}], the NUMA nodes; never empty note       where this comes from,
 * and what is missing source     where the matrix comes from: "discovered", "topology" or "topology_file" (the
 * settings), or "set" (lw_topology_set). Devices are looked up at each call. The matrix is made of them, unless a
 * setting of the engine gives one. engine may be NULL: then the settings are not asked. The environment's MC_TE_FILTERS
 * ("mlx5_0,mlx5_1") says which HCAs may be used. The caller frees *out with free(). Any thread. Reads some hundred
 * small files under /sys, waits for nobody. 0; -EINVAL out is NULL; -ENOMEM; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_topology_json(struct lw_engine *engine, char **out);

/* Replaces the engine's matrix by this one, as the setting topology would have given it; NULL: by what is discovered.
 * Lanes that are open stay as they are. Any thread. Never blocks beyond a short table lock. 0; -EINVAL engine is NULL,
 * or json is no matrix (lw_last_error names the field); -ENOMEM; -ESHUTDOWN; -EOWNERDEAD. */
LW_API int lw_topology_set(struct lw_engine *engine, const char *json);

#ifdef __cplusplus
}
#endif
#endif
