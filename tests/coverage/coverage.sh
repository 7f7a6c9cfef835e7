#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# coverage.sh - runs instrumented test programs and prints which branches of some folders they took: a line per
# file, the totals per folder, and every branch that none took, with its source. Called by `make coverage`.
# usage: coverage.sh OBJECTS FOLDER... -- PROGRAM...      (programs below OBJECTS)
#
# Branches of an assert are not counted: it states that one of them is never taken. What no test can take is
# explained in tests/coverage/FOLDER (its last name), a line each; the rest, and what is explained and needs
# not be, is listed and left in build/coverage/untaken. Exit status 1 when that list has a line.
set -u
cd "$(dirname "$0")/../.." || exit 1
objects=$1
shift
folders=()
while [ "$1" != -- ]; do
	folders+=("$1")
	shift
done
shift
out=build/coverage
rm -rf "$out" && mkdir -p "$out" || exit 1
find "$objects" -name '*.gcda' -delete
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-c.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT

run() { # PROGRAM
	local corpus=()
	if [[ $1 == fuzz/* ]]; then
		corpus=(-n 1000)
		[ ! -d "tests/fuzz/corpus/${1#fuzz/}" ] || corpus+=("tests/fuzz/corpus/${1#fuzz/}")
	fi
	TMPDIR=$tmp timeout -k 5 "${TEST_SECONDS:-900}" "$objects/$1" "${corpus[@]}" >"$out/${1//\//-}.log" 2>&1 </dev/null ||
		echo "# $1 failed: see $out/${1//\//-}.log"
}
for program; do
	while [ "$(jobs -rp | wc -l)" -ge "${TEST_JOBS:-2}" ]; do
		wait -n
	done
	run "$program" &
done
wait

for folder in "${folders[@]}"; do
	for object in "$objects/$folder"/*.gcno; do
		# -b branches, -c counts, -t to stdout. A file that no program links has no .gcda and counts as untaken.
		gcov -b -c -t "$object" 2>>"$out/gcov.err"
	done | awk -v folder="$folder" -v list="$out/untaken" -v why="tests/coverage/${folder##*/}" -f tests/coverage/branches.awk
done
[ -s "$out/untaken" ] || exit 0
echo
echo "branches that no test takes and nothing explains (1st, 2nd, ... way out of the line):"
cat "$out/untaken"
exit 1
