#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The lab itself: what comes out of the virtual machine, how it ends, what stays on the host, and the devices in it.
set -euo pipefail

source test/lab/expect.sh

# Words reach the command as they are; so do our variables; the status is the command's.
export LW_LAB_WORD="two  words"
mkdir "$folder/stays"
expect words 7 -w "$folder/stays" bash -c "printf '<%s>' \"\$@\" \"\$LW_LAB_WORD\" \"\$PWD\"; echo gone >'$folder/gone'
	echo kept >'$folder/stays/kept'; echo complaint >&2; exit 7" name "a  b" "\$HOME" "'"
has out "<a  b><\$HOME><'><two  words><$PWD>"
has out complaint
[ "$(cat "$folder/stays/kept")" = kept ] || fail "what was written to a share with -w is not there"
[ ! -e "$folder/gone" ] || fail "what was written elsewhere reached the host"

# Much output arrives whole, in order, while a command line of several words is bash's; a signal's status, too.
expect "much output, a signal" 137 'seq 1000000; kill -9 $$'
seq 1000000 | cmp - <(head -n 1000000 "$folder/out") || fail "1,000,000 lines differ"

# The devices: each is up, at 4096 bytes, has its IPv4 address as GID 1; wires carry what goes from one to another.
# shellcheck disable=SC2016
expect devices 0 'set -e
	for name in rxe0 rxe1 rxe2 rxe3 loop0 loop1; do
		ibv_devinfo -v -d $name | grep -E "hca_id|state:|active_mtu|GID\[ *1\]"
	done
	sent() { cat /sys/class/net/w0/statistics/tx_bytes; }
	before=$(sent)
	timeout 60 ibv_rc_pingpong -d rxe3 -g 1 -s 65536 -n 50 >server 2>&1 &
	for _ in $(seq 600); do
		! grep -q ":4853 .* 0A " /proc/net/tcp || break
		sleep 0.1
	done
	timeout 60 ibv_rc_pingpong -d rxe0 -g 1 -s 65536 -n 50 localhost
	wait $!
	echo "$(($(sent) - before)) bytes"
	[ $(($(sent) - before)) -gt 3276800 ]
	bash test/lab/devices.sh down 1
	rdma link show rxe1/1; rdma link show rxe0/1
	bash test/lab/devices.sh heal 1
	rdma link show rxe1/1'
[ "$(grep -c 'state:.*PORT_ACTIVE' "$folder/out")" = 6 ] || fail "not six devices are active"
[ "$(grep -c 'active_mtu:.*4096' "$folder/out")" = 6 ] || fail "not six devices have an MTU of 4096"
[ "$(grep -c 'GID\[.*::ffff:10.9[89]\.' "$folder/out")" = 6 ] || fail "not six devices have GID 1"
[ "$(grep 'link rxe1.*state' "$folder/out" | grep -o ' state [A-Z]*' | tr '\n' ,)" = " state DOWN, state ACTIVE," ] ||
	fail "rxe1 did not go down and come up again"
has out "link rxe0/1 state ACTIVE"

# A shell on standard input.
status=0
echo "hostname; exit 9" | bash $lab >"$folder/out" 2>"$folder/err" || status=$?
[ $status = 9 ] || fail "the shell ended with $status"
has out "^lab$"
