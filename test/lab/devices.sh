#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# devices.sh up | down N | heal N: the RDMA devices of the virtual machine (soft-RoCE), in it as root.
#   rxe0 ... rxe3  over w0 ... w3 (10.98.0.1 ... .4), veth pairs whose other ends are ports of one bridge: each of the four
#                  reaches the other three over that wire, and itself without it
#   loop0, loop1   over interfaces without a wire (10.99.0.1, 10.99.1.1): each reaches itself
# GID index 1 of each is its IPv4 address (RoCE v2). "down" sets w<N> down, "heal" sets it up again, with its routes.
# All of it is in one network namespace: soft-RoCE of Linux 6.1 knows no other.
set -euo pipefail

wires=(0 1 2 3) loops=(0 1)

# What is sent from wire N's address to another wire's leaves by wire N: routes go when a link goes down.
route() {
	echo "route replace 10.98.0.0/24 dev w$1 src 10.98.0.$(($1 + 1)) table $((100 + $1))"
}

links() {
	local i
	echo "link add wire mtu 9000 type bridge forward_delay 0 mcast_snooping 0"
	for i in "${wires[@]}"; do
		echo "link add w$i mtu 9000 type veth peer name p$i mtu 9000"
	done
	for i in "${loops[@]}"; do
		echo "link add d$i mtu 9000 type dummy"
	done
}

# The table of local addresses would send what goes to one of our own over lo. So it comes last for what we send, and
# first for what arrives.
addresses() {
	local i address
	echo "link set wire up"
	echo "rule add pref 3 lookup local"
	echo "rule del pref 0"
	for i in "${wires[@]}"; do
		address=10.98.0.$((i + 1))
		echo "addr add $address/32 dev w$i"
		echo "link set p$i master wire up"
		echo "link set w$i up"
		echo "rule add pref 1 iif w$i lookup local"
		echo "rule add pref 1 from $address to $address lookup local"
		echo "rule add pref 2 from $address to 10.98.0.0/24 lookup $((100 + i))"
		route "$i"
	done
	for i in "${loops[@]}"; do
		echo "addr add 10.99.$i.1/24 dev d$i"
		echo "link set d$i up"
	done
}

devices() {
	local i
	for i in "${wires[@]}"; do
		echo "link add rxe$i type rxe netdev w$i"
	done
	for i in "${loops[@]}"; do
		echo "link add loop$i type rxe netdev d$i"
	done
}

# Programs start slowly in the machine: one of each does all.
up() {
	local i name ip=/proc/sys/net/ipv4/conf
	modprobe -a rdma_rxe rdma_ucm veth bridge dummy
	links | ip -batch -
	echo 0 >$ip/all/rp_filter
	for i in "${wires[@]}"; do
		echo 1 >"$ip/w$i/accept_local"
		echo 0 >"$ip/w$i/rp_filter"
		echo 1 >"$ip/w$i/arp_ignore"
	done
	for name in wire "${wires[@]/#/w}" "${wires[@]/#/p}"; do
		echo 1 >"/proc/sys/net/ipv6/conf/$name/disable_ipv6"
	done
	addresses | ip -batch -
	devices | rdma -b -
}

case ${1:-} in
up) up ;;
down) ip link set "w${2:?}" down ;;
heal)
	{
		echo "link set w${2:?} up"
		route "$2"
	} | ip -batch -
	;;
*)
	sed -n '3s/^# //p' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
