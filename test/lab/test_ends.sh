#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How the lab ends when things go wrong in it: by itself, with a status that tells it, and with nothing left running.
set -euo pipefail

source test/lab/expect.sh

# A kernel that panics; a command that hangs; a lab that is ended from outside leaves nothing.
expect panic 125 'echo before; echo c >/proc/sysrq-trigger; sleep 60'
has err "Kernel panic - not syncing: sysrq triggered crash"
expect hang 124 -t 40 'echo waiting; sleep 1000'
has err "ended after 40 s; the console's end:"
bash $lab "echo runs; exec sleep 1000" >"$folder/out" 2>"$folder/err" &
lab_pid=$!
until grep -q runs "$folder/out"; do
	kill -0 $lab_pid 2>/dev/null || fail "it ended early"
	sleep 0.2
done
machine=$(pgrep -P "$lab_pid" -x timeout)
kill -TERM $lab_pid
status=0
wait $lab_pid || status=$?
[ $status = 143 ] || fail "it ended with $status after a signal"
for _ in $(seq 100); do
	[ -e "/proc/$machine" ] || break
	sleep 0.1
done
[ ! -e "/proc/$machine" ] || fail "the emulator outlives the script"
echo "ended by a signal it leaves nothing"
