#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# devices.sh up | down N | heal N: the RDMA devices of the virtual machine (soft-RoCE), in it as root.
#   rxe0 ... rxe3  over w0 ... w3 (10.98.0.1 ... .4), veth pairs whose other ends are ports of one bridge: each of the four
#                  reaches the other three over that wire, and itself without it
#   loop0, loop1   over interfaces without a wire (10.99.0.1, 10.99.1.1): each reaches itself
# GID index 1 of each is its IPv4 address (RoCE v2). "down" sets w<N> down, "heal" sets it up again, with its routes.
# All of it is in one network namespace: soft-RoCE of Linux 6.1 knows no other.
set -euo pipefail

wires=4 loops=2

# What is sent from wire N's address to another wire's leaves by wire N: routes go when a link goes down.
route() {
	ip route replace 10.98.0.0/24 dev "w$1" src "10.98.0.$(($1 + 1))" table "$((100 + $1))"
}

wire() {
	local address=10.98.0.$(($1 + 1))
	ip link add "w$1" mtu 9000 type veth peer name "p$1" mtu 9000
	sysctl -qw "net.ipv4.conf.w$1.accept_local=1" "net.ipv4.conf.w$1.rp_filter=0" "net.ipv4.conf.w$1.arp_ignore=1" \
		"net.ipv6.conf.w$1.disable_ipv6=1" "net.ipv6.conf.p$1.disable_ipv6=1"
	ip addr add "$address/32" dev "w$1"
	ip link set "p$1" master wire up
	ip link set "w$1" up
	# The table of local addresses would send what goes to one of our own over lo. So it comes last for what we
	# send, and first for what arrives.
	ip rule add pref 1 iif "w$1" lookup local
	ip rule add pref 1 from "$address" to "$address" lookup local
	ip rule add pref 2 from "$address" to 10.98.0.0/24 lookup "$((100 + $1))"
	route "$1"
	rdma link add "rxe$1" type rxe netdev "w$1"
}

loop() {
	ip link add "d$1" mtu 9000 type dummy
	ip addr add "10.99.$1.1/24" dev "d$1"
	ip link set "d$1" up
	rdma link add "loop$1" type rxe netdev "d$1"
}

up() {
	local i
	modprobe -a rdma_rxe rdma_ucm veth bridge dummy
	sysctl -qw net.ipv4.conf.all.rp_filter=0
	ip link add wire mtu 9000 type bridge forward_delay 0 mcast_snooping 0
	sysctl -qw net.ipv6.conf.wire.disable_ipv6=1
	ip link set wire up
	ip rule add pref 3 lookup local
	ip rule del pref 0
	for ((i = 0; i < wires; i++)); do
		wire "$i"
	done
	for ((i = 0; i < loops; i++)); do
		loop "$i"
	done
}

case ${1:-} in
up) up ;;
down) ip link set "w${2:?}" down ;;
heal)
	ip link set "w${2:?}" up
	route "$2"
	;;
*)
	sed -n '3s/^# //p' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
