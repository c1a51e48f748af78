#!/usr/bin/env bash
# The demo succeeds, finds damaged bytes, ends when it is told to, and leaves neither process nor file.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export LW_BUILD_DIR=${LW_BUILD_DIR:-$root/build/release}
if [[ ! -x $LW_BUILD_DIR/lwdemo ]]; then
	echo "skipped: lwdemo was not built in $LW_BUILD_DIR"
	exit 77
fi

room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
export TMPDIR=$room/tmp
mkdir "$TMPDIR"
failed=0

# Runs the demo apart (setsid), and leaves its pid in $room/pid. More arguments are settings.
demo() {
	rm -f "$room/pid"
	# shellcheck disable=SC2016 # expanded by the inner shell
	exec timeout 70 setsid --wait env "$@" bash -c 'echo $$ >"$0"; exec bash "$1"' "$room/pid" \
		"$root/test/sys/demo.sh" >"$room/log" 2>&1
}

# Judges a demo that ended: name, its status, the status wanted.
judge() {
	local left files
	# What has ended is no process that was left, though the init of a container may take its time to say goodbye to it.
	left=$(ps -o stat=,pid=,args= -s "$(<"$room/pid")" | awk '!/^Z/' || true)
	files=$(ls -A "$TMPDIR")
	if [[ $2 == "$3" && -z $left && -z $files ]]; then
		echo "ok: $1"
		return
	fi
	echo "not ok: $1: status $2, wanted $3; processes left: ${left:-none}; files left: ${files:-none}"
	cat "$room/log"
	failed=1
}

rc=0
(demo) || rc=$?
judge "the whole demo" $rc 0
grep -E 'GB/s|bytes in all|unchanged' "$room/log" || failed=1

rc=0
(demo LW_DEMO_MIB=16 LW_DEMO_CORRUPT=1) || rc=$?
judge "damaged bytes are found" $rc 1
grep -q 'the bytes differ' "$room/log" || failed=1

rm -f "$room/log" "$room/pid" # those of the run before
demo LW_DEMO_MIB=64 &
waiter=$!
for _ in $(seq 200); do
	! grep -qs '^3\.' "$room/log" || break
	sleep 0.05
done
kill -TERM "$(<"$room/pid")"
rc=0
wait "$waiter" || rc=$?
judge "SIGTERM in the middle leaves nothing" $rc 143
exit $failed
