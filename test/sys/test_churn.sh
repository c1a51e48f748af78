#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_churn.py in a network namespace without a name, which goes with it.
if ! unshare -n true 2>/dev/null; then
	echo "skipped: no network namespace can be made; it needs root"
	exit 77
fi
exec timeout 110 unshare -n python3 test/sys/test_churn.py
