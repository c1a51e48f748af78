#!/usr/bin/env bash
# run.sh SUITE [--json FILE] [--rounds N] [--seconds S]: measures one suite and prints a table. See README.md.
#   LW_BUILD_DIR  where the programs were built (build/release)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suites=$(cd "$here" && for file in suite_*.py; do
	name=${file#suite_}
	printf '%s ' "${name%.py}"
done)

if (($# == 0)) || [[ $1 == -h || $1 == --help ]]; then
	sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"
	echo "suites: $suites"
	(($#)) && exit 0
	exit 2
fi
suite=$1
shift
if [[ ! -f $here/suite_$suite.py ]]; then
	echo "run.sh: no suite '$suite'; there are: $suites" >&2
	exit 2
fi
export LW_BUILD_DIR=${LW_BUILD_DIR:-$here/../../build/release}
exec python3 -B "$here/suite_$suite.py" "$@"
