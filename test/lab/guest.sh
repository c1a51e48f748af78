#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=dash
# Process 1 of the virtual machine, second half, at home in the host's files: makes the devices, runs the command, leaves
# its exit status in the run's folder and switches off. What it prints itself goes to the console.
#   lab.run=PATH      the run's folder: "command" in it is the command line; "status" gets its exit status
#   lab.modules=PATH  the modules of this kernel
box=/run/busybox
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

read -r line </proc/cmdline
for word in $line; do
	case $word in
	lab.run=*) run=${word#lab.run=} ;;
	lab.modules=*) modules=${word#lab.modules=} ;;
	lab.guest=*) here=${word#lab.guest=} here=${here%/*} ;;
	esac
done

up() {
	read -r seconds _ </proc/uptime
	echo "$seconds"
}

home=/lib/modules/$($box uname -r)
$box mkdir -p "$home"
$box mount -o bind "$modules" "$home"
$box hostname lab
$box ip link set lo up
ulimit -l unlimited
echo "lab: $(up) s: making the devices"
if bash "$here/devices.sh" up </dev/null; then
	echo "lab: $(up) s: the command starts"
	# The port can be opened once. A pipe leads to it, so that the command can open /dev/stdout again.
	exec 3<>/dev/vport0p1
	{
		bash "$run/command" 2>&1 3>&-
		echo $? >"$run/status"
	} <&3 | $box cat >&3
	echo "lab: $(up) s: the command ended with status $($box cat "$run/status")"
else
	echo "lab: there are no devices"
fi
$box sync
$box poweroff -f
