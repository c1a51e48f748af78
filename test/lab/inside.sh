#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# inside.sh COMMAND [ARGUMENT]...: runs a test's program in the lab's virtual machine; skipped where there can't be one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/lab.sh" -q
# Linux 6.1's soft-RoCE can answer a WRITE that is sent again too early by "remote access error". On a busy host a packet
# of the machine's is not acknowledged in the driver's usual 67 ms: 2 s.
export LW_RDMA_TIMEOUT=${LW_RDMA_TIMEOUT:-19}
exec bash "$here/lab.sh" -t 440 "$@"
