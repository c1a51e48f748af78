#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The lab's NVMe targets: namespaces in memory over TCP and RDMA hold what is written, also as seen over the other way; a
# target that is taken away is an error within seconds, and is back when it is offered again.
set -euo pipefail

source test/lab/expect.sh

# shellcheck disable=SC2016
expect targets 0 -t 440 'set -e
	source test/lab/nvme.sh
	nvme_load
	nvme_subsystem nqn.lab:two "$(nvme_memory_file first 32M)" "$(nvme_memory_file second 16M)"
	nvme_subsystem nqn.lab:disk "$(nvme_memory_disk 16)"
	nvme_port 1 tcp 10.98.0.2 4420 nqn.lab:two nqn.lab:disk
	nvme_port 2 rdma 10.98.0.4 4421 nqn.lab:two nqn.lab:disk

	# What is written to a disk comes back, and lies in the memory behind it.
	check() {
		local data=/dev/shm/data
		head -c 4M /dev/urandom >$data
		timeout 60 dd if=$data of="/dev/$1" bs=512k oflag=direct status=none
		timeout 60 dd if="/dev/$1" bs=512k count=8 iflag=direct status=none | cmp - $data
		cmp -n 4194304 "$2" $data
		echo "$1: 4 MiB exact, behind it too"
	}

	over_tcp=$(nvme_connect transport=tcp traddr=10.98.0.2 host_traddr=10.98.0.1 trsvcid=4420 \
		nqn=nqn.lab:two ctrl_loss_tmo=600)
	over_rdma=$(nvme_connect transport=rdma traddr=10.98.0.4 host_traddr=10.98.0.3 trsvcid=4421 nqn=nqn.lab:disk)
	echo "controllers $(cat /sys/class/nvme/$over_tcp/transport) $(cat /sys/class/nvme/$over_rdma/transport)"
	check "$(nvme_namespace "$over_tcp" 1)" /dev/shm/first
	check "$(nvme_namespace "$over_tcp" 2)" /dev/shm/second
	check "$(nvme_namespace "$over_rdma")" /dev/ram0
	! nvme_namespace "$over_rdma" 2 || exit 1
	generic=$(nvme_namespace "$over_tcp")
	[ -c "/dev/ng${generic#nvme}" ] || exit 1

	nvme_withdraw 1 nqn.lab:two
	disk=$(nvme_namespace "$over_tcp")
	if timeout 60 dd if="/dev/$disk" of=/dev/null bs=4k count=1 iflag=direct status=none; then
		echo "the disk is there after its target has gone"
		exit 1
	fi
	nvme_offer 1 nqn.lab:two
	for _ in $(seq 300); do
		[ "$(cat "/sys/class/nvme/$over_tcp/state")" != live ] || break
		sleep 0.1
	done
	check "$(nvme_namespace "$over_tcp")" /dev/shm/first
	if nvme_connect transport=tcp traddr=10.98.0.2 trsvcid=4420 nqn=nqn.lab:none; then exit 1; fi
	for controller in /sys/class/nvme/nvme*; do nvme_disconnect "${controller##*/}"; done
	echo "left: $(ls /sys/class/nvme)"'
has out "controllers tcp rdma"
[ "$(grep -c '4 MiB exact' "$folder/out")" = 4 ] || fail "not all disks are exact"
grep -q "^left: $" "$folder/out" || fail "controllers are left"
has out "nqn=nqn.lab:none"
echo "targets over TCP and RDMA are exact, go and come back"
