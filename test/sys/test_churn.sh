#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_churn.py in a network namespace without a name, which goes with it.
if ! unshare -n true 2>/dev/null; then
	echo "skipped: no network namespace can be made; it needs root"
	exit 77
fi
# AddressSanitizer keeps what was freed for a while: it would look like a leak.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}quarantine_size_mb=0:thread_local_quarantine_size_kb=0
exec timeout 110 unshare -n python3 test/sys/test_churn.py
