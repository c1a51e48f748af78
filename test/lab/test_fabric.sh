#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Segments that are namespaces of an NVMe over Fabrics target: attached by their URL and detached, used where they are
# attached already, refused where they are not there, and a target that goes and comes back.
set -euo pipefail

source test/lab/expect.sh

# shellcheck disable=SC2016
expect fabric 0 -t 220 'set -e
	. test/lab/nvme.sh
	url=nvme+tcp://10.98.0.2:4420/nqn.lab:a
	moves() { # URL; more options of lwbench
		timeout 60 "$LW_BUILD_DIR/lwbench" initiator --target "$@" --validate --block-size 64k,4k,1000 --batch 4 --depth 2 \
			--count 8 --buffer-size 8m --set eal=off --set drivers=nvmeof
	}
	namespaces() { compgen -G "/dev/nvme*n*" | grep -c "nvme[0-9]*n[0-9]*$" || true; }
	nvme_load
	nvme_subsystem nqn.lab:a "$(nvme_memory_file a 64M)"
	nvme_port 1 tcp 10.98.0.2 4420 nqn.lab:a
	echo "before: $(namespaces)"
	moves $url
	for _ in $(seq 50); do [ "$(namespaces)" != 0 ] || break; sleep 0.1; done
	echo "detached: $(namespaces)"
	for wrong in nvme+tcp://10.98.0.2:4420/nqn.lab:b nvme+tcp://10.98.0.2:4421/nqn.lab:a "$url?nsid=7" nvme+tcp://host/nqn.a; do
		status=0
		moves "$wrong" >wrong 2>&1 || status=$?
		echo "wrong: $status: $(grep lwbench: wrong)"
	done
	controller=$(nvme_connect transport=tcp traddr=10.98.0.2 host_traddr=10.98.0.1 trsvcid=4420 nqn=nqn.lab:a)
	moves $url
	echo "stays: $(namespaces)"
	moves "file:/dev/$(nvme_namespace "$controller")"
	nvme_withdraw 1 nqn.lab:a
	status=0
	moves $url --set timeout_ms=1000 >gone 2>&1 || status=$?
	echo "gone: $status"
	nvme_offer 1 nqn.lab:a
	for _ in $(seq 100); do
		! moves $url >back 2>&1 || break
		sleep 0.3
	done
	grep "^validate" back | sed "s/^/back: /"'

has out "^before: 0$"
has out "^detached: 0$"
[ "$(grep -c '^wrong: 3: ' "$folder/out")" = 4 ] || fail "not each of four wrong URLs was refused"
has out "wrong: 3: .*4421.*refused"
has out "wrong: 3: .*has no namespace 7"
has out "^stays: 1$"
has out "^gone: [13]$"
has out "^back: validate"
echo "namespaces are attached, detached, refused and found again"
