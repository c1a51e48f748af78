#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_lwbench_raw.py.
exec timeout 230 python3 test/sys/test_lwbench_raw.py
