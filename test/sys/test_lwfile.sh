#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_lwfile.py.
if [ ! -x "${LW_BUILD_DIR:?}/lwmeta" ]; then
	echo "lwmeta was not built: libmicrohttpd is missing"
	exit 77
fi
. test/common/python_env.sh
exec timeout 230 python3 test/sys/test_lwfile.py
