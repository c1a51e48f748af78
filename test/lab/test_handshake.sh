#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_handshake.py in the lab.
set -euo pipefail

if ! /usr/bin/python3 -c 'import pyverbs' 2>/dev/null; then
	echo "python3 has no pyverbs (./dev setup --lab installs it)"
	exit 77
fi
# shellcheck disable=SC2016
exec bash test/lab/inside.sh '. test/common/python_env.sh
	export PYTHONPATH=$PYTHONPATH:test/lab
	exec timeout 400 /usr/bin/python3 test/lab/test_handshake.py'
