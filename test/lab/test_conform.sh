#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over the driver rdma, in the lab. test/conform runs it over the others on the host.
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
bash test/lab/inside.sh "${LW_BUILD_DIR:?}/test/conform/test_conform" 'rdma*' >"$log" 2>&1 || status=$?
cat "$log"
[ "${status:-0}" != 77 ] || exit 77
grep -q '^\[       OK \] rdma' "$log" || {
	echo "this build has no driver rdma, or the suite no place for it"
	exit "${status:-77}"
}
exit "${status:-0}"
