#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which address an engine without a name announces, in a network of its own: a loopback interface, a link that is down, a
# bridge of containers, and the interface that peers reach.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

if [ "${1:-}" != inside ]; then
	if ! unshare -n true 2>/dev/null; then
		echo "no network namespace of our own: this needs root"
		exit 77
	fi
	exec timeout 110 unshare -n bash "$0" inside
fi

unset MC_TCP_BIND_ADDRESS MC_USE_IPV6
lwinfo=${LW_BUILD_DIR:?}/lwinfo
export LW_EAL=off # nothing here needs it

# Waits until the interfaces run, which the kernel tells a moment after they are up.
running() {
	local interface
	for interface; do
		for _ in $(seq 100); do
			[[ $(ip -o link show dev "$interface") != *LOWER_UP*state\ UP* ]] || continue 2
			sleep 0.1
		done
		echo "$interface does not run"
		exit 1
	done
}

# Fails unless the engine's name begins with $1.
announces() {
	local name
	name=$("$lwinfo" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["info"]["name"])')
	case $name in
	"$1":*) echo "$name, as expected" ;;
	*)
		echo "$name is announced, not $1"
		exit 1
		;;
	esac
}

# Fails unless no engine can be opened, and the reason has $1 in it.
refused() {
	local why
	if why=$("$lwinfo" --json 2>&1 >/dev/null); then
		echo "an engine was opened; \"$1\" was expected"
		exit 1
	fi
	case $why in
	*"$1"*) echo "$why" ;;
	*)
		echo "\"$why\" doesn't have \"$1\" in it"
		exit 1
		;;
	esac
}

refused "no interface of this host is up and running"
ip link set lo up
announces 127.0.0.1

ip link add docker0 type bridge
ip address add 172.17.0.1/16 dev docker0
ip link add guest0 type veth peer name guest1
ip link set guest0 master docker0
ip link set guest0 up
ip link set guest1 up
ip link set docker0 up
running docker0
announces 172.17.0.1

ip link add down0 type veth peer name down1
ip address add 10.1.0.1/24 dev down0
ip link set down0 up # its other end is not: no carrier
ip link add wire0 type veth peer name wire1
ip address add 10.2.0.1/24 dev wire0
ip link set wire0 up
ip link set wire1 up
running wire0
announces 10.2.0.1

LW_ADDRESS=127.0.0.1 announces 127.0.0.1
MC_TCP_BIND_ADDRESS=172.17.0.1 announces 172.17.0.1
MC_TCP_BIND_ADDRESS=172.17.0.1 LW_ADDRESS=10.2.0.1 announces 10.2.0.1
MC_TCP_BIND_ADDRESS=10.9.9.9 refused '"10.9.9.9" is no address of this host; there are 10.2.0.1 (wire0), 172.17.0.1 (docker0)'

if ip address add 2001:db8::2/64 dev wire0 nodad 2>/dev/null; then
	announces 10.2.0.1
	MC_USE_IPV6=1 announces "[2001:db8::2]"
	ip address del 10.2.0.1/24 dev wire0
	announces "[2001:db8::2]"
fi
