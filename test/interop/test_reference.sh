#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_reference.py.
. test/common/python_env.sh
exec timeout 230 "$python" test/interop/test_reference.py
