#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# inside.sh COMMAND [ARGUMENT]...: runs a test's program in the lab's virtual machine; skipped where there can't be one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/lab.sh" -q
# A busy host holds the machine's packets up for longer than the driver's usual 67 ms, 7 times. With 0.27 s a queue pair that
# the peer broke without a word is given up after 1.9 s, which tests wait for.
export LW_RDMA_TIMEOUT=${LW_RDMA_TIMEOUT:-16}
exec bash "$here/lab.sh" -t 440 "$@"
