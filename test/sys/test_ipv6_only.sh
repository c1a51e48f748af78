#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_ipv6_only.py in a network of its own, whose loopback interface has no IPv4 address.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

if [ "${1:-}" != inside ]; then
	if ! unshare -n true 2>/dev/null; then
		echo "no network namespace of our own: this needs root"
		exit 77
	fi
	exec timeout 230 unshare -n bash "$0" inside
fi

ip link set lo up
ip -4 address flush dev lo
if [ -z "$(ip -6 -o address show dev lo)" ]; then
	echo "no IPv6 here"
	exit 77
fi
exec python3 test/sys/test_ipv6_only.py
