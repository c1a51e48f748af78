#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over the drivers of GPUs, on the stand-in's: a run of its own of test_conform.
exec timeout 350 "${LW_BUILD_DIR:?}/test/conform/test_conform" nvlink
