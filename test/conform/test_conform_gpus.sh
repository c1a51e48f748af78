#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance suite over memory of GPUs, of which the stand-in has some, by other drivers than tcp: a run
# of its own of test_conform.
exec timeout 350 "${LW_BUILD_DIR:?}/test/conform/test_conform" gpus
