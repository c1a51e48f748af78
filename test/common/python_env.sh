# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced: the package of apps/python on the library of the build tree. $python is a Python for it, with numpy if one has it.
export LANEWISE_LIBRARY=${LW_BUILD_DIR:?}/liblanewise.so.0
export PYTHONPATH=$PWD/apps/python:$PWD/test/common:$PWD/test/sys PYTHONDONTWRITEBYTECODE=1

python=python3
for candidate in python3 /usr/bin/python3; do
	if "$candidate" -c 'import numpy' 2>/dev/null; then
		python=$candidate
		break
	fi
done
[ "$python" = "${candidate:-}" ] || echo "no python3 here has numpy: arrays of it are left out (./dev setup installs it)"

# AddressSanitizer's runtime has to be the first library of its process, and Python leaves much to the end of the process.
runtime=$(ldd "$LANEWISE_LIBRARY" | awk '/lib(asan|tsan)\.so/ { print $3; exit }')
case $runtime in
*tsan*)
	echo "ThreadSanitizer doesn't see the locks of a Python that was built without it, and takes them for none"
	exit 77
	;;
?*) export LD_PRELOAD=$runtime ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-} ;;
esac
