#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No byte that nobody wrote leaves on a socket: Valgrind looks at each system call of test_uninitialised. Then it has to
# find such bytes when they are there. Memory of calloc(3) and mmap(2) counts as written: what is stale there, it can't see.
set -euo pipefail

build=${LW_BUILD_DIR:?}
program=$build/test/sys/test_uninitialised
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if ! command -v valgrind >/dev/null; then
	echo "valgrind is not installed: ./dev setup"
	exit 77
fi
if grep -q '^LW_SANITIZE:.*=.' "$build/CMakeCache.txt"; then
	echo "valgrind can't run programs that a sanitizer was built into"
	exit 77
fi

# The status of the program under Valgrind: 99 after a finding.
check() {
	local status=0
	timeout 100 valgrind -q --error-exitcode=99 --track-origins=no --fair-sched=yes --num-callers=20 "$program" "$@" \
		>"$log" 2>&1 || status=$?
	echo "$status"
}

status=$(check)
if [ "$status" != 0 ]; then
	cat "$log"
	echo "status $status: the program failed, or (99) Valgrind found something"
	exit 1
fi
for what in spoil-data spoil-send; do
	status=$(check $what)
	if [ "$status" != 99 ] || ! grep -q 'points to uninitialised byte' "$log"; then
		cat "$log"
		echo "$what: bytes that nobody wrote were sent, and Valgrind ended with status $status"
		exit 1
	fi
done
echo "nothing uninitialised was sent, and it would have been seen"
