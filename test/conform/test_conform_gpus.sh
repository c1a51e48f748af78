#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over gpus and block devices: a run of its own of test_conform.
exec timeout 230 "${LW_BUILD_DIR:?}/test/conform/test_conform" gpus
