#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_shm.py.
exec timeout 200 python3 test/sys/test_shm.py
