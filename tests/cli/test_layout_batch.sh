#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckptctl layout --batch as a program meets it: lines through a pipe, against tests/vectors/layout/*.jsonl, which PyTorch 2.15.0
# answered (of literal, strided, fsdp and large every second case of a larger set; the others are whole). A line is a question with
# its answer behind it: "expect", "decoded", "result" and "result_shapes", or "error". Two answers are equal too where both leave a rank without elements:
# what its other dimensions keep does not matter. What the command does with its other options is unit-cli_layout's.
# shellcheck disable=SC2317,SC2329 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/../e2e/ckptd_tap.sh"
vectors=$root/tests/vectors/layout

# Each answer, with ranks that hold nothing made equal, refusals made equal.
plain() {
	awk '/^[{]"error":/ { print "refused"; next }
	{
		n = split($0, rank, /[}],[{]/)
		line = ""
		for (i = 1; i <= n; i++) {
			at = index(rank[i], "\"runs\":[")
			runs = substr(rank[i], at + 8)
			if (at && runs ~ /^\[\]|,\[\]/)
				rank[i] = substr(rank[i], 1, at + 7) "none"
			sub(/[]}]*$/, "", rank[i])
			line = line rank[i] "\n"
		}
		printf "%s\n", line
	}'
}
# The answers that stand in a file of vectors.
expected() { # FILE
	sed -E -e 's/^.*"error": ?true.*$/{"error":true}/' -e 's/^.*"expect":(.*)[}]$/\1/' -e 's/^.*("decoded":)/{\1/' \
		-e 's/^.*("result":)/{\1/' "$1"
}
questions() { # FILE
	sed -E 's/,"expect":.*$/}/' "$1"
}
answers_are_those_of_torch() { # NAME
	questions "$vectors/$1.jsonl" | "$ckptctl" layout --batch >"$tmp/got" || return
	[ "$(wc -l <"$tmp/got")" -eq "$(wc -l <"$vectors/$1.jsonl")" ] || { echo "not one line for each"; return 1; }
	plain <"$tmp/got" >"$tmp/got.plain"
	expected "$vectors/$1.jsonl" | plain >"$tmp/want.plain"
	diff "$tmp/want.plain" "$tmp/got.plain" | head -5
	[ -s "$tmp/want.plain" ] && cmp -s "$tmp/want.plain" "$tmp/got.plain"
}
for name in literal strided order fsdp ranks modes large errors strided_order partial; do
	check "all of $name.jsonl is answered as PyTorch answers it" answers_are_those_of_torch "$name"
done

an_error_stops_nothing() {
	printf '%s\n' 'no JSON' '' '{"shape":[4],"mesh":[2],"placements":["S(1)"]}' '{"mesh":[2],"strided":["S(0)"]}' |
		exits 0 "$ckptctl" layout --batch >"$tmp/got"
	[ "$(grep -c '^{"error":"..*"}$' "$tmp/got")" -eq 3 ] &&
		[ "$(tail -n 1 "$tmp/got")" = '{"decoded":[[0,[0]]]}' ]
}
check "lines that must be refused are answered with errors, and the last one is answered" an_error_stops_nothing

# Whoever asks one question and waits must not wait for a buffer to fill.
asked_one_by_one() {
	local answer
	coproc "$ckptctl" layout --batch
	for n in 1 2 3; do
		echo '{"shape":['$n'],"mesh":[1],"placements":["R"]}' >&"${COPROC[1]}"
		IFS= read -r -t "$limit_s" answer <&"${COPROC[0]}"
		[ "$answer" = '[{"coord":[0],"runs":[[[0,'$n']]]}]' ] || { echo "$answer"; return 1; }
	done
	local to=${COPROC[1]}
	exec {to}>&-
	wait "$COPROC_PID"
}
check "an answer comes as soon as its question is read" asked_one_by_one

many() {
	for name in literal strided order fsdp ranks modes errors strided_order partial; do
		questions "$vectors/$name.jsonl"
	done | awk 'length($0) < 200 { line[n++] = $0 } END { for (i = 0; i < 100000; i++) print line[i % n] }' >"$tmp/many"
	[ "$(wc -l <"$tmp/many")" -eq 100000 ]
	prlimit --as=$((64 << 20)) "$ckptctl" layout --batch "$tmp/many" >"$tmp/out"
	[ "$(wc -l <"$tmp/out")" -eq 100000 ]
}
check "100,000 questions are answered in 64 MiB" many
million() {
	prlimit --as=$((64 << 20)) "$ckptctl" layout --shape 64000003,1000 --mesh fsdp=64 --placements '_S(0, 1000000)' --summary >"$tmp/out"
	cat "$tmp/out"
	grep -q '64,000,003,000 elements' "$tmp/out"
}
check "a split factor of a million on 64 ranks is counted in 64 MiB" million
tap_end
