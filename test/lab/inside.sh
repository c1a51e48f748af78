#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# inside.sh COMMAND [ARGUMENT]...: runs a test's program in the lab's virtual machine; skipped where there can't be one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/lab.sh" -q
exec bash "$here/lab.sh" -t 440 "$@"
