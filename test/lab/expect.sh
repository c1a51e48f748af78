# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by tests of the lab itself: skips them where there is no lab, and checks how it ends and what comes out of it.

lab=test/lab/lab.sh
bash $lab -q

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
	echo "$1"
	tail -n 40 "$folder/out" "$folder/err"
	exit 1
}

# What is looked at, $1: runs the lab with the arguments from the third on; fails unless it ends with status $2.
expect() {
	local status=0 what=$1 wanted=$2
	shift 2
	bash $lab -t 200 "$@" >"$folder/out" 2>"$folder/err" || status=$?
	[ $status = "$wanted" ] || fail "$what: the lab ended with $status; $wanted was expected"
	echo "$what: ended with $wanted"
}

# Fails unless file $1 of the last run has $2 in it.
has() {
	grep -q -e "$2" "$folder/$1" || fail "\"$2\" is not in $1"
}
