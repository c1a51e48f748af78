#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over a namespace of the kernel's NVMe over TCP target, which lies in memory. Not over RDMA: with
# soft-RoCE of Linux 6.1 requests were left pending in two of three runs, and whose fault that is was not found out.
set -euo pipefail

source test/lab/expect.sh

# shellcheck disable=SC2016
expect conform 0 -t 440 'source test/lab/nvme.sh
	set -e
	nvme_load
	nvme_subsystem nqn.lab:disk "$(nvme_memory_disk 16)"
	nvme_port 1 tcp 10.98.0.2 4420 nqn.lab:disk
	LW_TEST_DEVICE=/dev/$(nvme_namespace "$(nvme_connect transport=tcp traddr=10.98.0.2 host_traddr=10.98.0.1 \
		trsvcid=4420 nqn=nqn.lab:disk keep_alive_tmo=30 ctrl_loss_tmo=600)")
	export LW_TEST_DEVICE
	timeout 300 "$LW_BUILD_DIR/test/conform/test_conform" "a block device*" 2>&1'
grep -v '^\[ RUN\|^\[       OK' "$folder/out"
has out '^\[       OK \] a block device: test_transfer_every_op_and_size_exact'
echo "the suite passes over NVMe over TCP"
