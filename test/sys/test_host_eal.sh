#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_host_eal.py.
. test/common/python_env.sh
exec timeout 230 "$python" test/sys/test_host_eal.py
