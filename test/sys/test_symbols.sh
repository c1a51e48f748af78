#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shared library exports what the public headers mark LW_API, and nothing else.
set -euo pipefail
export LC_ALL=C
library=${LW_BUILD_DIR:?}/liblanewise.so

marked=$(sed -nE 's/^LW_API [^(]*[ *](lw_[a-z0-9_]+)\(.*/\1/p' lib/include/lanewise/*.h | sort)
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
if [ "$marked" != "$exported" ]; then
	echo "< marked in the headers, > exported (is it in lib/lanewise.map?)"
	diff <(echo "$marked") <(echo "$exported")
	exit 1
fi
if readelf -d "$library" | grep NEEDED | grep -q librte_; then
	echo "DPDK is linked as a shared library"
	exit 1
fi
if readelf -d "$library" | grep NEEDED | grep 'uring\|ibverbs\|rdmacm\|hwloc\|curl\|hiredis\|sodium\|isal\|cuda'; then
	echo "what may be missing where the library runs is opened at run time, or linked into it"
	exit 1
fi
echo "$(echo "$marked" | wc -l) functions exported"
