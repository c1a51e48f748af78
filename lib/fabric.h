/* SPDX-License-Identifier: Apache-2.0 */
/* NVMe over Fabrics: namespaces of targets that are named by a URL, as block devices of this host.
 *
 *   nvme+tcp://ADDRESS[:PORT]/SUBSYSTEM-NQN[?nsid=N]   nvme+rdma://...   IPv6 in brackets; port 4420, namespace 1
 *
 * The kernel has the connection (/dev/nvme-fabrics; root, and its modules nvme-tcp or nvme-rdma). One that is there
 * already is used as it is, whoever made it, and stays; one that was made here is ended with its last holder in this
 * process. Ours are made with fast_io_fail_tmo=5 and ctrl_loss_tmo=600: requests to a target that is gone end after 5
 * s, and one that returns within ten minutes is connected to again. The host's name is that of /etc/nvme/hostnqn and
 * hostid, if they are there.
 *
 * Any thread. A connection is made and ended by a thread of its own, lw-nvme, since the kernel may take minutes for it:
 * who waits does so for a while, and the thread ends what it was late with.
 */
#ifndef LW_FABRIC_H
#define LW_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lw_fabric;

bool lw_is_fabric_url(const char *path);

/* Holds the connection of a URL and tells its namespace's block device ("/dev/nvme1n1"). Blocks for at most timeout_ms
 * and some time of the file system. 0; -EINVAL the URL; -ENODEV the kernel has no NVMe over Fabrics, or no module for
 * the transport; -EACCES it is not for us; -ECONNREFUSED, -EHOSTUNREACH, -EIO the kernel's answer; -ETIMEDOUT; -ENOENT
 * there is no such namespace; -ENOMEM; why has the reason. */
int lw_fabric_hold(const char *url, uint32_t timeout_ms, struct lw_fabric **out, char device[64], char *why,
		   size_t why_size);

/* Lets go; if it was the last hold on a connection made here, it waits for at most wait_ms for the end of that, which
 * comes in any case while the process lives. NULL is fine. */
void lw_fabric_drop(struct lw_fabric *fabric, uint32_t wait_ms);

#endif
