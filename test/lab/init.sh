#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=dash
# Process 1 of the virtual machine, first half, in its initramfs: mounts the host's files read-only (9p, tag root) under a
# layer in memory, the writable shares over it, and becomes their root. The kernel's command line names the rest:
#   lab.share=TAG:PATH  a writable share and where it goes, any number
#   lab.guest=PATH      the second half (guest.sh)
box=/bin/busybox

give_up() {
	echo "lab: $1"
	$box poweroff -f
}

$box mount -t proc proc /proc
$box mount -t sysfs sys /sys
$box mount -t devtmpfs dev /dev
while read -r module; do
	$box insmod "/modules/$module" || give_up "the module $module can't be loaded"
done </modules/order

options=trans=virtio,version=9p2000.L,msize=524288
$box mount -t 9p -o ro,$options,cache=loose root /lower || give_up "no share of the host's files"
$box mount -t tmpfs -o mode=755 memory /layer
$box mkdir /layer/upper /layer/work
$box mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work files /root ||
	give_up "no layer over the host's files"
for folder in proc sys dev; do
	$box mount -o move /$folder /root/$folder
done
$box mkdir -p /root/dev/shm /root/dev/pts
$box mount -t tmpfs -o mode=1777 memory /root/dev/shm
$box mount -t devpts pts /root/dev/pts
$box mount -t tmpfs -o mode=755 memory /root/run

read -r line </root/proc/cmdline
for word in $line; do
	case $word in
	lab.share=*)
		share=${word#lab.share=}
		$box mkdir -p "/root${share#*:}"
		$box mount -t 9p -o rw,$options,cache=mmap "${share%%:*}" "/root${share#*:}" ||
			give_up "no share for ${share#*:}"
		;;
	lab.guest=*) guest=${word#lab.guest=} ;;
	esac
done
$box cp $box /root/run/busybox
# This process itself, not a child: threads of the kernel share its root, and find the host's /sbin/modprobe then.
exec $box switch_root -c /dev/console /root /run/busybox sh "$guest"
