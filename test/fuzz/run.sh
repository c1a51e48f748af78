#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs fuzzers that were built under LW_BUILD_DIR, one after the other: run.sh [NAME|all] [SECONDS of each]. What they
# find to be new is kept there, and the next run begins with it.
set -euo pipefail

name=${1:-all} seconds=${2:-60} status=0
build=${LW_BUILD_DIR:?}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

names=()
for source in test/fuzz/fuzz_*.c; do
	names+=("$(basename "$source" .c | sed 's/^fuzz_//')")
done
if [ "$name" != all ]; then
	if [[ " ${names[*]} " != *" $name "* ]]; then
		echo "fuzz: there is no fuzzer \"$name\"; there are: ${names[*]}" >&2
		exit 2
	fi
	names=("$name")
fi
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
	echo "fuzz: \"$seconds\" is no number of seconds" >&2
	exit 2
fi

mkdir -p "$build/fuzz/found"
for name in "${names[@]}"; do
	corpus=$build/fuzz/corpus/$name log=$build/fuzz/$name.log rc=0
	mkdir -p "$corpus"
	length=4096
	case $name in tcp_*) length=512 ;; esac # scripts: what is longer is only slower
	"$build/test/fuzz/fuzz_$name" -max_total_time="$seconds" -max_len="$length" -timeout=20 -print_final_stats=1 \
		-dict="test/fuzz/words/$name" -artifact_prefix="$build/fuzz/found/$name-" "$corpus" \
		"test/fuzz/seeds/$name" >"$log" 2>&1 || rc=$?
	runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
	speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
	cover=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) corp: \([0-9]*\).*/\1 edges, \2 features, \3 inputs kept/p' \
		"$log" | tail -n 1)
	echo "fuzz: $name: ${runs:-?} runs, ${speed:-?} a second; ${cover:-nothing covered}"
	[ $rc != 0 ] || continue
	status=1
	grep -m 1 -E '^(ERROR|SUMMARY|==.*ERROR)|runtime error:|test/fuzz/.*\.c:[0-9]+:' "$log" || tail -n 5 "$log"
	found=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
	echo "fuzz: $name: FINDING in ${found:-no file}; the whole report: $log"
	[ -z "$found" ] || echo "fuzz: again: $build/test/fuzz/fuzz_$name $found"
done
[ $status != 0 ] || echo "fuzz: nothing found"
exit $status
