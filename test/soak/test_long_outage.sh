#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A link is down for 40 s; then the rate is that of before, for a minute.
# shellcheck source=test/common/soak.sh
. test/common/soak.sh "two minutes"
exec timeout 230 "${LW_BUILD_DIR:?}/test/sys/test_link_down" long
