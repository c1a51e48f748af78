#!/usr/bin/env bash
# Moves a large real file into the memory of another process and back, and compares checksums at each end.
# Ends by itself within a minute and leaves neither a process nor a file. 0: all bytes are right.
#   LW_BUILD_DIR     where lwdemo was built (build/release)
#   LW_DEMO_MIB      least size of the file in MiB (256)
#   LW_DEMO_CORRUPT  1: damage what the target wrote down, to see that the comparison finds it
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${LW_BUILD_DIR:-$root/build/release}
program=$build/lwdemo
mib=${LW_DEMO_MIB:-256}
target=
mover=

say() { printf '%s\n' "$*"; }
die() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

[[ -x $program ]] || die "$program is not there; build first, or set LW_BUILD_DIR"
dir=$(mktemp -d)

# Ends one process that this script started.
end() {
	local pid=$1
	[[ -n $pid ]] || return 0
	kill "$pid" 2>/dev/null || return 0
	for _ in $(seq 50); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL "$pid" 2>/dev/null || true
}

cleanup() {
	end "$mover"
	end "$target"
	wait 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "1. A file: shared libraries of this machine, the largest first, until there are $mib MiB."
find /usr/lib -xdev -type f -name '*.so*' -readable -printf '%s %p\n' 2>/dev/null | sort -rn >"$dir/list" || true
[[ -s $dir/list ]] || die "there are no shared libraries under /usr/lib"
size=0
used=0
: >"$dir/file"
while ((size < mib << 20)); do
	while read -r bytes path; do
		cat "$path" >>"$dir/file" || die "no room for the file in $dir"
		size=$((size + bytes))
		used=$((used + 1))
		((used > 5)) || say "     $((bytes >> 10)) KiB  $path"
		((size < mib << 20)) || break
	done <"$dir/list"
done
size=$(stat -c %s "$dir/file")
say "   $used files, $size bytes in all."

say "2. A target: another process that offers $((size >> 20)) MiB of its memory."
"$program" target --file-size "$size" --out "$dir/held" --duration 50 >"$dir/target.log" 2>&1 &
target=$!
name=
for _ in $(seq 100); do
	name=$(sed -n 's/^lwdemo: target ready name=\([^ ]*\) .*/\1/p' "$dir/target.log")
	[[ -z $name ]] || break
	kill -0 "$target" 2>/dev/null || break
	sleep 0.1
done
if [[ -z $name ]]; then
	cat "$dir/target.log" >&2
	die "the target did not start"
fi
say "   It is process $target and is called $name."

say "3. An initiator: WRITE to the target, then READ back into cleared memory."
timeout --foreground 40 "$program" initiator --target "$name" --file "$dir/file" --back "$dir/back" >"$dir/initiator.log" 2>&1 &
mover=$!
rc=0
wait "$mover" || rc=$?
mover=
sed 's/^./   &/' "$dir/initiator.log"
if ((rc != 0)); then
	sed 's/^/   target: /' "$dir/target.log" >&2
	die "the initiator ended with $rc"
fi

if [[ ${LW_DEMO_CORRUPT:-0} == 1 ]]; then
	say "   (one byte of what the target held is damaged now)"
	printf '\x5a\xa5' | dd of="$dir/held" bs=1 seek=$((size / 2)) conv=notrunc status=none
fi

say "4. The checksums (SHA-256)."
declare -A sum
for what in file held back; do
	sum[$what]=$(sha256sum <"$dir/$what" | cut -d' ' -f1)
done
say "   the file               ${sum[file]}"
say "   what the target held   ${sum[held]}"
say "   what was read back     ${sum[back]}"
for what in held back; do
	[[ ${sum[$what]} == "${sum[file]}" ]] || die "the bytes differ"
done
say "All $size bytes arrived and came back unchanged."
