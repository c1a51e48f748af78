#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A control group that limits huge pages: they can be mapped there, and end the process by SIGBUS when they are touched. An
# engine takes as many as it gets, and plain pages beyond; its transfers are exact.
set -euo pipefail

source test/lab/expect.sh

# shellcheck disable=SC2016
expect hugepages 0 -t 200 'set -e
	mkdir /run/cg
	mount -t cgroup2 none /run/cg
	echo +hugetlb >/run/cg/cgroup.subtree_control
	echo 160 >/proc/sys/vm/nr_hugepages
	export LW_MAX_TASKS=131072 LW_LOG_LEVEL=error
	enter() { # LIMIT COMMAND...
		echo $BASHPID >"/run/cg/$1/cgroup.procs"
		shift
		exec "$@"
	}
	inside() { (enter "$@"); }
	touch_one="import mmap; mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)[0] = 1"
	for limit in max 6M 0; do
		mkdir "/run/cg/$limit"
		echo $limit >"/run/cg/$limit/hugetlb.2MB.max"
		status=0
		inside $limit python3 -c "$touch_one" 2>/dev/null || status=$?
		echo "$limit: touched: $status"
		inside $limit "$LW_BUILD_DIR/lwinfo" --json | grep -o "\"hugepages\":[[:space:]]*[a-z]*" | sed "s/^/$limit: /"
		[ $limit != max ] || continue
		status=0
		inside $limit "$LW_BUILD_DIR/test/unit/test_pages" >pages 2>&1 || status=$?
		echo "$limit: pages: $status"
		status=0
		inside $limit "$LW_BUILD_DIR/test/unit/test_alloc" >alloc 2>&1 || status=$?
		echo "$limit: alloc: $status"
		enter $limit "$LW_BUILD_DIR/lwbench" target --buffer-size 16m >target 2>&1 &
		for _ in $(seq 100); do
			! grep -q name= target || break
			sleep 0.1
		done
		name=$(sed -n "s/.*name=\([^ ]*\).*/\1/p" target)
		status=0
		inside $limit "$LW_BUILD_DIR/lwbench" initiator --target "$name" --validate --buffer-size 16m --count 64 >moved 2>&1 ||
			status=$?
		echo "$limit: moved: $status"
		kill $!
		status=0
		wait $! || status=$?
		echo "$limit: target: $status"
		sed "s/^/$limit: /" "/run/cg/$limit/hugetlb.2MB.events"
	done'

for limit in 6M 0; do
	for what in pages alloc moved target; do
		has out "^$limit: $what: 0$"
	done
done
has out '^max: touched: 0$'
has out '^max: "hugepages":.*true$'
has out '^0: touched: 135$'
has out '^0: "hugepages":.*false$'
has out '^6M: max [1-9]' # it was met
echo "huge pages that a control group refuses are done without"
