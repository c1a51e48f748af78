#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The driver nvlink on a machine with an NVIDIA GPU: builds, runs the conformance suite over the stand-in, checks that
# bytes arrive on the real devices, and measures beside a plain loop of cudaMemcpyAsync in the same run.
#
#   run.sh                 here, from this source tree
#   run.sh pack [FOLDER]   builds, and copies the programs with all they need to FOLDER (build/gpu), for a machine that
#                          has neither a compiler nor packages: CUDA's runtime library too, if there is one here
#   run.sh packed [FOLDER] there: runs what was packed
#
# Without a GPU it goes to the first call of the CUDA runtime, says what that answered, and ends with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build() {
	[ -d build/release ] || cmake --preset release >/dev/null
	cmake --build build/release --target gpu_check_gpu test_conform_conform gpu_standin
}

# From a build tree or a packed folder $1, with the loader and its options before each program.
run() {
	local root=$1 status=0
	shift
	export LW_BUILD_DIR=$root GPU_CHECK_SELF="$* $root/test/gpu/gpu_check"
	echo "conform: the suite over the stand-in's devices"
	timeout 400 "$@" "$root/test/conform/test_conform" nvlink >"$root/conform.log" 2>&1 || status=$?
	tail -3 "$root/conform.log"
	[ $status = 0 ] || { echo "conform: it ended with $status; $root/conform.log has all of it" >&2 && return 1; }
	if command -v nvidia-smi >/dev/null; then
		nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader || true
		nvidia-smi topo -m || true
	fi
	local libraries=("$root"/lib/libcudart.so.*) library=()
	[ ! -e "${libraries[0]}" ] || library=(--library "${libraries[0]}")
	timeout 500 "$@" "$root/test/gpu/gpu_check" "${library[@]}"
}

pack() {
	local to=$1 program cudart
	build
	rm -rf "$to"
	mkdir -p "$to/lib" "$to/test/gpu" "$to/test/conform" "$to/test/standin"
	cp build/release/test/gpu/gpu_check "$to/test/gpu/"
	cp build/release/test/conform/test_conform "$to/test/conform/"
	cp build/release/test/standin/libgpu_standin.so "$to/test/standin/"
	for program in "$to/test/gpu/gpu_check" "$to/test/conform/test_conform"; do
		strip -g "$program"
		ldd "$program" | grep -o '/[^ ]*' | xargs -I{} cp -Lnu {} "$to/lib/"
	done
	cudart=$(ldconfig -p | sed -n 's/.*libcudart\.so\.[0-9.]* .*=> //p' | head -1)
	[ -z "$cudart" ] || cp -L "$cudart" "$to/lib/"
	du -sh "$to"
}

case ${1:-} in
"")
	build
	run "$PWD/build/release"
	;;
pack) pack "${2:-build/gpu}" ;;
packed)
	folder=$(cd "${2:-build/gpu}" && pwd)
	run "$folder" "$(compgen -G "$folder/lib/ld-linux*" | head -1)" --library-path "$folder/lib"
	;;
*)
	sed -n '3,13s/^# \?//p' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
