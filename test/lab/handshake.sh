#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# handshake.sh CLASS: runs this class of test_handshake.py in the lab.
set -euo pipefail

if ! /usr/bin/python3 -c 'import pyverbs' 2>/dev/null; then
	echo "python3 has no pyverbs (./dev setup --lab installs it)"
	exit 77
fi
exec bash test/lab/inside.sh ". test/common/python_env.sh
	export PYTHONPATH=\$PYTHONPATH:test/lab
	exec timeout 400 /usr/bin/python3 test/lab/test_handshake.py $1"
