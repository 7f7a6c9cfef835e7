#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint of more files than the process may open: it is shown, verified, compared and converted all the same.
# shellcheck disable=SC2317,SC2329 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/../e2e/ckptd_tap.sh"
files=320 limit=64

mkdir "$tmp/src"
tar -xzf "$root/tests/vectors/v02/explicit.tar.gz" -C "$tmp/src"

# With few descriptors.
few() {
	(ulimit -n $limit && "$root/build/ckptctl" "$@") >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
}
made() {
	few convert "$tmp/src" "$tmp/many" --mesh fsdp=$files --layout '*=Shard(0)@fsdp'
	[ "$(find "$tmp/many" -name '*.part' | wc -l)" = $files ]
}
verified() {
	few verify --data "$tmp/many"
	grep -q 'every byte checked' "$tmp/out"
}
back() {
	few convert "$tmp/many" "$tmp/back" --mesh fsdp=2
	few diff --values "$tmp/src" "$tmp/back"
	grep -q '^equal' "$tmp/out"
}
check "$files files are made with $limit descriptors" made
check "they are opened and shown" few show --files "$tmp/many"
check "every byte of them is verified" verified
check "they are read again, and give what they were made of" back
tap_end
