#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_resets.py.
exec timeout 230 python3 test/sys/test_resets.py
