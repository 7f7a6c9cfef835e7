#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_golden.sh - tests/golden is what the command's unit tests would write, no file more and none less. That each
# output is that of its file is what these tests compare by themselves.
set -u
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "$0")/../e2e/trainer_tap.sh"
cd "$root" || exit 1
program=build/obj/mutant/unit/cli
[ -x $program ] || program=build/obj/release/unit/cli
writes() {
	mkdir "$tmp/golden" && TMPDIR=$tmp GOLDEN=$tmp/golden $program >"$tmp/log" 2>&1 && return
	grep -v 'OK \]\|RUN  ' "$tmp/log" | tail -n 20
	return 1
}
check "the command's tests write their golden files" writes
check "they are those of tests/golden (make golden writes them anew)" diff -r "$tmp/golden" tests/golden
mkdir -p "$tmp/golden/ls"
echo >"$tmp/golden/ls/no_test_asks_for_this.txt"
check "(control) one that no test asks for is found" eval '! diff -r "$tmp/golden" tests/golden'
tap_end
