#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_refresh.py.
exec timeout 60 python3 test/sys/test_refresh.py
