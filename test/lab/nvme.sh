# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Functions for scripts in the lab's virtual machine: NVMe targets backed by memory, and connections to them. Sourced.
# A namespace that was made, offered and connected to:
#   nvme_load
#   nvme_subsystem nqn.lab:a "$(nvme_memory_file a 64M)"
#   nvme_port 1 tcp 10.98.0.2 4420 nqn.lab:a
#   controller=$(nvme_connect transport=tcp traddr=10.98.0.2 host_traddr=10.98.0.1 trsvcid=4420 nqn=nqn.lab:a)
#   disk=$(nvme_namespace "$controller")
#   ... /dev/$disk, or without the block layer /dev/ng${disk#nvme} ...
#   nvme_disconnect "$controller"

nvmet=/sys/kernel/config/nvmet

# Loads target and initiator, over TCP and RDMA. Once.
nvme_load() {
	modprobe -a configfs nvmet-tcp nvmet-rdma nvme-tcp nvme-rdma
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
}

# A file NAME of SIZE (as truncate takes it) in memory; prints its path.
nvme_memory_file() {
	truncate -s "$2" "/dev/shm/$1"
	echo "/dev/shm/$1"
}

# A block device of so many MIB in memory, without a file below it: prints /dev/ram0. Once.
nvme_memory_disk() {
	modprobe brd rd_nr=1 "rd_size=$(($1 * 1024))"
	echo /dev/ram0
}

# Subsystem NQN with namespaces 1, 2, ... of these files or block devices, for any host.
nvme_subsystem() {
	local subsystem=$nvmet/subsystems/$1 number=0 path
	shift
	mkdir "$subsystem"
	echo 1 >"$subsystem/attr_allow_any_host"
	for path; do
		number=$((number + 1))
		mkdir "$subsystem/namespaces/$number"
		echo -n "$path" >"$subsystem/namespaces/$number/device_path"
		[ -b "$path" ] || echo 1 >"$subsystem/namespaces/$number/buffered_io" # tmpfs knows no direct access
		echo 1 >"$subsystem/namespaces/$number/enable"
	done
}

# Port ID of TRANSPORT (tcp, rdma) at ADDRESS SERVICE serves these subsystems.
nvme_port() {
	local id=$1 port=$nvmet/ports/$1 nqn
	mkdir "$port"
	echo "$2" >"$port/addr_trtype"
	echo ipv4 >"$port/addr_adrfam"
	echo "$3" >"$port/addr_traddr"
	echo "$4" >"$port/addr_trsvcid"
	shift 4
	for nqn; do
		nvme_offer "$id" "$nqn"
	done
}

# Port ID serves subsystem NQN, or does not any more: a target that dies under its initiators.
nvme_offer() {
	ln -s "$nvmet/subsystems/$2" "$nvmet/ports/$1/subsystems/$2"
}
nvme_withdraw() {
	rm "$nvmet/ports/$1/subsystems/$2"
}

# Connects with these options of the kernel's (NAME=VALUE each, later ones count) and prints the controller's name, when
# its first namespace is there. A link that breaks is an error to programs after 2 s, and the controller gone after 6 s.
nvme_connect() {
	local options answer controller option
	declare -A options=(
		[hostnqn]=nqn.lab:host [hostid]=11111111-2222-3333-4444-555555555555 [nr_io_queues]=2
		[ctrl_loss_tmo]=6 [fast_io_fail_tmo]=2 [reconnect_delay]=1 [keep_alive_tmo]=1
	)
	for option; do
		options[${option%%=*}]=${option#*=}
	done
	answer=$(for option in "${!options[@]}"; do
		echo "$option=${options[$option]}"
	done | nvme_fabrics) || return 1
	controller=nvme${answer#instance=}
	controller=${controller%%,*}
	for _ in $(seq 200); do
		if nvme_namespace "$controller" >/dev/null; then
			echo "$controller"
			return 0
		fi
		sleep 0.05
	done
	echo "nvme_connect: $controller has no namespace after 10 s" >&2
	return 1
}

# The name of namespace $2 (1) behind a controller, which belongs to its subsystem: controllers that reach the same one are
# paths to it. Fails while there is none.
nvme_namespace() {
	local path
	for path in /sys/class/nvme-subsystem/nvme-subsys*; do
		path=$path/nvme${path##*subsys}n${2:-1}
		if [ -e "${path%/*}/$1" ] && [ -e "$path" ] && [ -b "/dev/${path##*/}" ]; then
			echo "${path##*/}"
			return 0
		fi
	done
	return 1
}

# Hands lines of options to the kernel and prints its answer, "instance=N,cntlid=M": both through one open descriptor.
nvme_fabrics() {
	local options answer
	options=$(paste -sd ,)
	exec 5<>/dev/nvme-fabrics
	if echo -n "$options" >&5 && read -r answer <&5; then
		exec 5>&-
		echo "$answer"
	else
		exec 5>&-
		echo "nvme_connect: the kernel refused $options: $(dmesg | tail -n 1)" >&2
		return 1
	fi
}

nvme_disconnect() {
	echo 1 >"/sys/class/nvme/$1/delete_controller"
}
