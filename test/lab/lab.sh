#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lab.sh [-t SECONDS] [-m MIB] [-w PATH]... [COMMAND [ARGUMENT]...]: runs a command in a virtual machine that has RDMA and
# NVMe over Fabrics, over this host's files. README.md tells what is in it.
# lab.sh -q: whether it can be used here: ends with 0, or with 77 and the reason.
#   -t  after so long it is ended (600)
#   -m  the machine's memory (1536)
#   -w  what is written below this folder stays; everything else that is written vanishes with the machine
# COMMAND alone is a bash command line; with arguments it is run as it is; without it a shell reads from standard input.
# Variables LW_*, MC_*, *SAN_OPTIONS and PYTHONPATH are passed on. Standard output is the command's (with its errors).
# Exit status: the command's; 124 it took too long; 125 the machine broke down; then the console's end goes to standard error.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab=${LW_LAB_DIR:-$here/../../build/lab}

probe_s=90 limit=600 memory=1536 shares=() question=false
while getopts :qt:m:w: option; do
	case $option in
	q) question=true ;;
	t) limit=$OPTARG ;;
	m) memory=$OPTARG ;;
	w) shares+=("$OPTARG") ;;
	*)
		sed -n '3,12s/^# //p' "${BASH_SOURCE[0]}" >&2
		exit 2
		;;
	esac
done
shift $((OPTIND - 1))

# Why no machine can be made here, or nothing.
missing() {
	local program
	for program in qemu-system-x86_64 setpriv flock rdma; do
		command -v "$program" >/dev/null || {
			echo "there is no $program (./dev setup --lab installs what the lab needs)"
			return
		}
	done
	[ -f "$lab/vmlinux" ] && [ -f "$lab/initrd.cpio" ] ||
		echo "there is no kernel in $lab (./dev setup --lab gets one)"
}

# Boots once, if nobody did yet since the host was started, and remembers what came of it.
probe() {
	local boot result
	boot=$(cat /proc/sys/kernel/random/boot_id)
	if ! grep -qs "^$boot " "$lab/probe"; then
		result=boots
		bash "${BASH_SOURCE[0]}" -t "$probe_s" true 2>"$lab/probe.log" ||
			result="the virtual machine does not boot in $probe_s s here ($lab/probe.log; $lab/probe has this verdict)"
		echo "$boot $result" >"$lab/probe"
	fi
	result=$(sed "s/^$boot //" "$lab/probe")
	[ "$result" = boots ] || echo "$result"
}

# Why tests of this build are not run in the machine, or nothing.
left_out() {
	[ -n "${LW_BUILD_DIR:-}" ] && [ -z "${LW_LAB_SANITIZED:-}" ] || return 0
	grep -qs '^LW_SANITIZE:.*=.' "$LW_BUILD_DIR/CMakeCache.txt" || return 0
	echo "a sanitizer in an emulated machine takes very long; with LW_LAB_SANITIZED=1 this runs all the same"
}

reason=$(missing)
if $question; then
	[ -n "$reason" ] || reason=$(left_out)
	[ -n "$reason" ] || reason=$(probe)
	[ -n "$reason" ] || exit 0
	echo "$reason"
	exit 77
fi
if [ -n "$reason" ]; then
	echo "lab.sh: $reason" >&2
	exit 125
fi
bash "$here/image.sh"
lab=$(cd "$lab" && pwd)

run=$(mktemp -d -t lab.XXXXXX)
qemu=
# shellcheck disable=SC2317
clean_up() {
	[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
	rm -rf "$run"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

{
	[ $# = 0 ] || echo 'exec </dev/null'
	echo 'export HOME=/root LANG=C.UTF-8'
	while read -r name; do
		[[ $name =~ ^(LW_.*|MC_.*|[A-Z]+SAN_OPTIONS|PYTHONPATH)$ ]] && printf 'export %s=%q\n' "$name" "${!name}"
	done < <(compgen -e)
	printf 'cd %q\n' "$PWD"
	case $# in
	0) echo 'exec bash' ;;
	1) printf '%s\n' "$1" ;;
	*) printf 'exec%s\n' "$(printf ' %q' "$@")" ;;
	esac
} >"$run/command"

# The emulator passes the host's time stamp counter through. Its rate is told, since measuring it in the guest does not end
# at times: what the host's kernel calls bogomips is twice the rate in MHz.
khz=$(awk '/^bogomips/ { printf "%d", $3 * 500; exit }' /proc/cpuinfo)
line="console=ttyS0 quiet panic=-1 oops=panic watchdog_thresh=60 mitigations=off nokaslr cryptomgr.notests random.trust_cpu=on"
line+=" hardened_usercopy=off no_timer_check tsc=reliable tsc_early_khz=$khz lpj=$((khz * 4))"
line+=" lab.guest=$here/guest.sh lab.modules=$(readlink -f "$lab/modules") lab.run=$run"

machine=(
	-machine "microvm,acpi=on,rtc=on,pit=off,pic=off" -accel "tcg,thread=multi,tb-size=512"
	-cpu Nehalem-v1 # no later vector instructions, which are slow in emulation
	-smp 2 -m "$memory" -nodefaults -no-user-config -display none -no-reboot
	-kernel "$lab/vmlinux" -initrd "$lab/initrd.cpio"
	-chardev "file,id=console,path=$run/console" -serial chardev:console
	-chardev "stdio,id=output,signal=off" -device virtio-serial-device
	-device "virtserialport,chardev=output,name=output"
	-object "rng-random,id=random,filename=/dev/urandom" -device "virtio-rng-device,rng=random"
)

# Shows folder $2 to the guest under tag $1; more options in $3.
share() {
	machine+=(
		-fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3"
		-device "virtio-9p-device,fsdev=$1,mount_tag=$1"
	)
	[ -n "$3" ] || line+=" lab.share=$1:$2"
}

share root / ",readonly=on"
share run "$run" ""
for i in "${!shares[@]}"; do
	share "share$i" "$(readlink -e "${shares[i]}")" ""
done

# The input never ends, since at its end the emulator unplugs the port that the output takes. The output goes through cat,
# since the emulator sets it to non-blocking, for everybody who has it.
mkfifo "$run/in" "$run/out"
exec 8<>"$run/in"
cat <"$run/out" &
output=$!
setpriv --pdeathsig TERM timeout -k 5 "$limit" qemu-system-x86_64 "${machine[@]}" -append "$line" \
	<&8 >"$run/out" 2>"$run/errors" &
qemu=$!
input=
if [ $# = 0 ]; then
	cat <&0 >&8 &
	input=$!
fi
status=0
wait "$qemu" || status=$?
qemu=
wait "$output" || true
[ -z "$input" ] || kill "$input" 2>/dev/null || true

[ ! -s "$run/status" ] || exit "$(cat "$run/status")"
{
	if [ $status = 124 ]; then
		echo "lab.sh: ended after $limit s; the console's end:"
	else
		echo "lab.sh: the machine broke down (the emulator ended with $status); the console's end:"
	fi
	tail -n 40 "$run/console"
	cat "$run/errors"
} >&2
[ $status = 124 ] && exit 124
exit 125
