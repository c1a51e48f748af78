#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# image.sh: makes the lab's folder ($LW_LAB_DIR, else build/lab): Debian's kernel and a static busybox, as packages that
# apt downloads and nobody installs, and from them
#   vmlinux      the kernel, not compressed
#   initrd.cpio  busybox, init.sh, and the modules that it takes to reach the host's files
#   kernel/      the kernel's package unpacked; "modules" is a link to the folder of its modules
# What is there already stays.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab=${LW_LAB_DIR:-$here/../../build/lab}
mkdir -p "$lab"
lab=$(cd "$lab" && pwd)
exec 9>"$lab/lock" # one at a time: machines start side by side
flock 9

# Loaded in this order, with what they need.
first_modules=(virtio_mmio virtio_rng 9pnet_virtio 9p virtio_console overlay)

# Unpacks package $1 into folder $2.
fetch() {
	local folder
	folder=$(mktemp -d "$lab/download.XXXXXX")
	(cd "$folder" && apt-get download -q "$1") || return 1
	rm -rf "${lab:?}/$2"
	dpkg-deb -x "$folder"/*.deb "$folder/files"
	mv "$folder/files" "$lab/$2"
	rm -rf "$folder"
}

fetch_kernel() {
	local package
	package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: *\(linux-image-[^ ]*\)$/\1/p' | head -n 1)
	[ -n "$package" ] || {
		echo "image.sh: apt knows no package linux-image-amd64 (apt-get update reads the lists)" >&2
		return 1
	}
	fetch "$package" kernel
}

make_kernel() {
	local version=${1##*/}
	depmod -b "$lab/kernel" "$version"
	python3 -B "$here/vmlinux.py" "$lab/kernel/boot/vmlinuz-$version" "$lab/vmlinux.part"
	ln -sfn "kernel/lib/modules/$version" "$lab/modules"
	mv "$lab/vmlinux.part" "$lab/vmlinux"
}

make_initrd() {
	local version root module verb file name
	version=$(basename "$(readlink "$lab/modules")")
	root=$(mktemp -d "$lab/initrd.XXXXXX")
	mkdir -p "$root"/{bin,proc,sys,dev,root,lower,layer,modules}
	cp "$lab/busybox/bin/busybox" "$root/bin/"
	: >"$root/modules/order"
	for module in "${first_modules[@]}"; do
		while read -r verb file _; do
			name=$(basename "$file" .xz)
			if [ "$verb" != insmod ] || grep -qx "$name" "$root/modules/order"; then
				continue # part of the kernel, or there already
			fi
			case $file in
			*.xz) xz -dc "$file" >"$root/modules/$name" ;;
			*) cp "$file" "$root/modules/$name" ;;
			esac
			echo "$name" >>"$root/modules/order"
		done < <(modprobe -d "$lab/kernel" -S "$version" -D "$module")
	done
	install -m 755 "$here/init.sh" "$root/init"
	(cd "$root" && find . | cpio -o -H newc --quiet) >"$lab/initrd.cpio.part"
	mv "$lab/initrd.cpio.part" "$lab/initrd.cpio"
	rm -rf "$root"
}

[ "$(uname -m)" = x86_64 ] || {
	echo "image.sh: the lab is a virtual machine for x86-64 and runs this host's programs; this host is $(uname -m)" >&2
	exit 1
}
[ -x "$lab/busybox/bin/busybox" ] || fetch busybox-static busybox
if [ ! -f "$lab/vmlinux" ]; then
	compgen -G "$lab/kernel/lib/modules/*" >/dev/null || fetch_kernel
	make_kernel "$lab/kernel/lib/modules"/*
fi
if [ ! -f "$lab/initrd.cpio" ] || [ "$here/init.sh" -nt "$lab/initrd.cpio" ] ||
	[ "$here/image.sh" -nt "$lab/initrd.cpio" ]; then
	make_initrd
fi
