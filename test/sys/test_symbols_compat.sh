#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libtransfer_engine.so exports what its two headers declare, each in its own stanza, and nothing else; it has the name
# that programs linked with Mooncake's ask for; and its headers are C and C++ that need nothing of ours.
set -euo pipefail
export LC_ALL=C
library=${LW_BUILD_DIR:?}/libtransfer_engine.so

# Functions that a header declares.
declared() {
	sed '/^#/d' "$1" | tr '\n' ' ' | sed -E 's:/\*[^*]*\*+([^/*][^*]*\*+)*/: :g; s/[{};]/\n/g' |
		sed -nE 's/^[ a-z_0-9*]*[ *]([a-zA-Z]+)\(.*\) *$/\1/p' | sort
}

# Functions that the library exports in a stanza.
exported() {
	nm -D --defined-only "$library" | awk -v stanza="$1" '$2 == "T" { split($3, part, "@+"); if (part[2] == stanza) print part[1] }' |
		sort
}

compare() {
	if [ "$(declared "$1")" != "$(exported "$2")" ]; then
		echo "< declared in $1, > exported as $2 (is it in lib/compat/transfer_engine.map?)"
		diff <(declared "$1") <(exported "$2")
		exit 1
	fi
}

compare lib/compat/transfer_engine_c.h TRANSFER_ENGINE_C_1
compare lib/compat/transfer_engine_ext.h LANEWISE_0.1
all=$(nm -D --defined-only "$library" | awk '$2 != "A"' | wc -l)
theirs=$(exported TRANSFER_ENGINE_C_1 | wc -l)
ours=$(exported LANEWISE_0.1 | wc -l)
if [ "$theirs" != 27 ] || [ "$all" != $((theirs + ours)) ]; then
	echo "$all symbols exported, $theirs of Mooncake's 27 and $ours additions among them"
	nm -D --defined-only "$library"
	exit 1
fi
if ! readelf -d "$library" | grep -q 'SONAME.*\[libtransfer_engine.so\]'; then
	echo "the SONAME is not libtransfer_engine.so"
	exit 1
fi
if ! readelf -d "$library" | grep -q 'NEEDED.*\[liblanewise.so\.'; then
	echo "liblanewise.so is not loaded with it: a process could have two engine libraries"
	exit 1
fi
for header in transfer_engine_c.h transfer_engine_ext.h; do
	echo "#include \"$header\"" | cc -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Ilib/compat -x c -
	if command -v c++ >/dev/null; then
		echo "#include \"$header\"" | c++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only -Ilib/compat -x c++ -
	fi
done
echo "$theirs functions of Mooncake's and $ours additions exported"
