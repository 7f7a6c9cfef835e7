#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The program in README.md compiles as a user would compile it, checkpoints, and resumes on another mesh.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$root/README.md" >"$tmp/example.c"
check "README has a program" [ "$(wc -l <"$tmp/example.c")" -gt 20 ]
check "it compiles without a warning" gcc -std=c17 -Wall -Wextra -Werror -I"$root/ckpt" -o "$tmp/example" "$tmp/example.c" \
	-L"$build" -lckpt -Wl,-rpath,"$build"

export CKPTD_SOCKET=$socket # nothing but that nobody else's daemon is used: ckptd is found beside libckpt.so
launch() { # N: so many ranks, children of one process
	local pids=() i status=0
	for ((i = 0; i < $1; i++)); do
		(cd "$tmp" && exec ./example "$i" "$1" >"out.$i" 2>&1) &
		pids+=($!)
	done
	for i in "${pids[@]}"; do
		wait "$i" || status=$?
	done
	cat "$tmp"/out.*
	return $status
}
check "two ranks train" launch 2
check "from the beginning" grep -qx "rank 1 starts at step 0 with 0" "$tmp/out.1"
check "and their last step is committed" grep -q '"step":100,' <("$ckptctl" ls --json "$tmp/ckpts")
check "three ranks go on" launch 3
check "from there" grep -qx "rank 2 starts at step 100 with 100" "$tmp/out.2"
pkill -f "ckptd .*$socket" || true
tap_end
