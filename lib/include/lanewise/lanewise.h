/* SPDX-License-Identifier: Apache-2.0 */
/* Lanewise: a lock-free transfer engine between registered memory of processes, hosts, GPUs and files.
 *
 * The order of calls
 *   lw_engine_open -> lw_memory_register -> lw_segment_open -> lw_channel_self -> lw_batch_alloc -> lw_submit
 *   -> lw_batch_status | lw_batch_wait | lw_channel_poll -> lw_batch_free -> lw_engine_close
 *
 * Caveats, once for the whole library
 *   - A function returns 0 or a count on success and a negative errno value on failure; lw_last_error() then holds a
 *     sentence that names the object, the cause and the remedy. Outputs are written on success only.
 *   - "Any thread" means: any number of threads at once. "The channel's owner" means: one thread at a time.
 *   - A function may block only where its comment says so, and then it takes a timeout in milliseconds.
 *   - After a task reached a terminal state the engine touches neither its local nor its remote memory again.
 *     Until then both must stay mapped.
 *   - Requests are not ordered against each other, not even inside one batch.
 *   - Handles (batch, segment, buffer) are numbers with a generation. Stale, made-up and foreign ones get -EBADF.
 *   - After fork() the child must not use the parent's engines: every call answers -EOWNERDEAD. exec() is safe.
 *   - The library changes no signal disposition or mask, no affinity, limit, locale or environment of its host,
 *     never writes to stdout and never ends the process. Its threads are named lw-ctrl, lw-w<N>, with a metadata
 * store lw-store, and for segments of files, where the system allows no io_uring, lw-file (where it does, the kernel
 * may show threads of its own, iou-wrk-<N>), and for a moment lw-nvme, which connects to NVMe targets; with eal = on
 * there are also the EAL's (eal-intr-thread, rte-worker-N, lw-idle<N>), which stay, asleep, until the process ends.
 */
#ifndef LANEWISE_H
#define LANEWISE_H

#include <lanewise/channel.h>
#include <lanewise/engine.h>
#include <lanewise/error.h>
#include <lanewise/event.h>
#include <lanewise/file.h>
#include <lanewise/memory.h>
#include <lanewise/notify.h>
#include <lanewise/segment.h>
#include <lanewise/stats.h>
#include <lanewise/topology.h>
#include <lanewise/transfer.h>
#include <lanewise/types.h>
#include <lanewise/version.h>

#endif
