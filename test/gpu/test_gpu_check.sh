#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program for real GPUs works: over the stand-in it finds every byte where it belongs, and without a GPU it says so.
set -u
out=$("${LW_BUILD_DIR:?}/test/gpu/gpu_check" --quick --library "$LW_BUILD_DIR/test/standin/libgpu_standin.so") || {
	printf '%s\nover the stand-in it ended with %d\n' "$out" $?
	exit 1
}
printf '%s\n' "$out"
[ "$(grep -c '^exact .* by nvlink$' <<<"$out")" = 6 ] && [ "$(tail -1 <<<"$out")" = "all well" ] || exit 1
# A real one, if there is one here; else its first call says what is missing.
out=$("$LW_BUILD_DIR/test/gpu/gpu_check" --quick 2>&1)
status=$?
printf '%s\n' "$out"
[ $status = 0 ] || { [ $status = 77 ] && [[ $out == skipped:* ]]; }
