# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by tests that take too long for each run, with how long they take: they run when LW_TEST_SOAK is set alone.
if [ -z "${LW_TEST_SOAK:-}" ]; then
	echo "left out, it takes $1: ./dev test --soak runs it"
	exit 77
fi
